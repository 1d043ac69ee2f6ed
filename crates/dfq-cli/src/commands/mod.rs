//! One file for each verb: what it takes, and what it does.

pub(crate) mod bench;
pub(crate) mod cancel;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod conflicts;
pub(crate) mod cp;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod failed;
pub(crate) mod gc;
pub(crate) mod generate;
pub(crate) mod iam_policy;
pub(crate) mod index;
pub(crate) mod init;
pub(crate) mod ls;
pub(crate) mod pause;
pub(crate) mod peek;
pub(crate) mod poll;
pub(crate) mod push;
pub(crate) mod queues;
pub(crate) mod retry;
pub(crate) mod settle;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod supervise;
pub(crate) mod top;
pub(crate) mod umask;
pub(crate) mod unlock;
pub(crate) mod wait;
pub(crate) mod work;
pub(crate) mod workers;

use anyhow::Result;

use crate::args::Command;
use crate::context::Context;
use crate::exit::Answer;

/// Runs a verb.
pub(crate) async fn run(command: Command, context: &Context) -> Result<Answer> {
    match command {
        Command::Push(args) => args.run(context).await,
        Command::Work(args) => args.run(context).await,
        Command::Poll(args) => args.run(context).await,
        Command::Ack(args) => args.run(context).await,
        Command::Nack(args) => args.run(context).await,
        Command::Fail(args) => args.run(context).await,
        Command::Heartbeat(args) => args.run(context).await,
        Command::Release(args) => args.run(context).await,
        Command::Ls(args) => args.run(context).await,
        Command::Show(args) => args.run(context).await,
        Command::Peek(args) => args.run(context).await,
        Command::Stats(args) => args.run(context).await,
        Command::Top(args) => args.run(context).await,
        Command::Workers(args) => args.run(context).await,
        Command::Explain(args) => args.run(context).await,
        Command::Failed(args) => args.run(context).await,
        Command::Retry(args) => args.run(context).await,
        Command::Cancel(args) => args.run(context).await,
        Command::Unlock(args) => args.run(context).await,
        Command::Pause(args) => args.run(context).await,
        Command::Resume(args) => args.run(context).await,
        Command::Gc(args) => args.run(context).await,
        Command::Supervise(args) => args.run(context).await,
        Command::Conflicts(args) => args.run(context).await,
        Command::Index(args) => args.run(context).await,
        Command::Check(args) => args.run(context).await,
        Command::Wait(args) => args.run(context).await,
        Command::Export(args) => args.run(context).await,
        Command::Cp(args) => args.run(context).await,
        Command::Mv(args) => args.run(context).await,
        Command::Init(args) => args.run(context).await,
        Command::Queues(args) => args.run(context).await,
        Command::Config(args) => args.run(context).await,
        Command::IamPolicy(args) => args.run(context).await,
        Command::Bench(args) => args.run(context).await,
        Command::Doctor(args) => args.run(context).await,
        Command::Demo(args) => args.run(context).await,
        Command::Completions(args) => args.run(context).await,
        Command::Man(args) => args.run(context).await,
        Command::Umask(args) => args.run(context).await,
    }
}
