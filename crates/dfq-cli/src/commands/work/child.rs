//! A child process: started in a group of its own, watched, and stopped with its whole group.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use dfq::Env;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

/// Where programs are looked for if PATH is not set, as libc does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// How long a process that was asked to end has, before it is made to.
const ASKED: Duration = Duration::from_secs(2);

/// A child and its group. Dropped while it runs, the group is killed.
pub(super) struct Group {
    child: Child,
    leader: Option<Pid>,
    ended: bool,
}

/// Whether there is such a program: as the system looks for it, in a folder if it names one, else in PATH.
pub(super) fn check_program(program: &str) -> Result<(), String> {
    use rustix::fs::{Access, access};
    let is_file = |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file());
    let runs = |path: &Path| is_file(path) && access(path, Access::EXEC_OK).is_ok();
    let candidates: Vec<PathBuf> = match program.contains('/') {
        true => vec![PathBuf::from(program)],
        false => {
            let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
            std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
        }
    };
    if candidates.iter().any(|candidate| runs(candidate)) {
        return Ok(());
    }
    let why = match candidates.iter().any(|candidate| is_file(candidate)) {
        true => "it is not executable",
        false => "there is no such program",
    };
    Err(format!("'{program}' cannot be run: {why}"))
}

/// A command that has the umask that we were started with.
pub(super) fn command(program: &str) -> Command {
    match (crate::context::own_umask(), std::env::current_exe()) {
        (Some(umask), Ok(dfq)) => {
            let mut command = Command::new(dfq);
            command.args(["umask", &format!("{umask:o}"), "--", program]);
            command
        }
        _ => Command::new(program),
    }
}

impl Group {
    /// Starts a command with pipes on all three streams.
    pub(super) fn start(command: &mut Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, leader, ended: false })
    }

    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the leader's end.
    pub(super) async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let status = self.child.wait().await.context("cannot wait for the command")?;
        self.ended = true;
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        // Not once the leader is reaped: its number may be somebody else's by then.
        if let Some(leader) = self.leader.filter(|_| !self.ended) {
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Asks the whole group to end, then makes it; at once if `hard` says so. Answers when the leader
    /// is gone.
    pub(super) async fn stop(&mut self, env: &Env, hard: &CancellationToken) {
        if !hard.is_cancelled() {
            self.signal(Signal::TERM);
            tokio::select! {
                _ = self.child.wait() => {}
                () = env.clock().sleep(ASKED) => {}
                () = hard.cancelled() => {}
            }
        }
        // The leader may be gone while others of its group are not; as a zombie or not at all, its
        // number stays theirs as long as one of them lives.
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
        self.ended = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// How a command ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
