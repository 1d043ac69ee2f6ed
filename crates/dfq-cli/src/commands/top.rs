//! `dfq top`: a live view of queues on the whole screen.
//!
//! Looking may take long on a large queue, so it happens beside the keyboard: quitting is always
//! answered at once. A look takes a part of the time only, however long it takes.

mod paint;
mod screen;
mod snapshot;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use dfq::Queue;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::duration;
use crate::commands::stats::open_all;
use crate::context::Context;
use crate::exit::{Answer, invalid};
use screen::Screen;
use snapshot::Snapshot;

/// Watch queues on the whole screen: counts, rates, workers, leases, failures
///
/// Keys: r looks again at once, q or Esc ends.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// The queues; without any, all in dfq.toml that exist
    #[arg(value_name = "QUEUE")]
    queues: Vec<String>,
    /// How often to look
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    every: Duration,
}

/// Looking takes at most one part of so many of the time.
const SHARE: u32 = 4;

/// What the keyboard asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    LookAgain,
    Repaint,
}

impl Top {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Err(invalid("top needs a terminal; use `dfq stats --watch` instead"));
        }
        let queues = open_all(context, &self.queues).await?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut screen = Screen::enter()?;
        let mut wishes = listen()?;
        let mut snapshots: Vec<Snapshot> = Vec::new();
        loop {
            let began = context.env.monotonic();
            let fresh = {
                let mut looking = std::pin::pin!(take_snapshots(&queues, &snapshots, context));
                loop {
                    tokio::select! {
                        fresh = &mut looking => break fresh?,
                        wish = wishes.recv() => match wish {
                            Some(Wish::Quit) | None => return Ok(Answer::Yes),
                            Some(_) => screen.paint(&snapshots)?,
                        },
                        _ = terminate.recv() => return Ok(Answer::Killed(15)),
                        _ = hangup.recv() => return Ok(Answer::Killed(1)),
                        _ = interrupt.recv() => return Ok(Answer::Yes),
                    }
                }
            };
            snapshots = fresh;
            screen.paint(&snapshots)?;
            let took = context.env.monotonic().saturating_sub(began);
            let pause = self.every.max(took * SHARE).max(Duration::from_millis(100));
            let mut rest = context.env.clock().sleep(pause);
            loop {
                tokio::select! {
                    () = &mut rest => break,
                    wish = wishes.recv() => match wish {
                        Some(Wish::Quit) | None => return Ok(Answer::Yes),
                        Some(Wish::LookAgain) => break,
                        Some(Wish::Repaint) => screen.paint(&snapshots)?,
                    },
                    _ = terminate.recv() => return Ok(Answer::Killed(15)),
                    _ = hangup.recv() => return Ok(Answer::Killed(1)),
                    _ = interrupt.recv() => return Ok(Answer::Yes),
                }
            }
        }
    }
}

async fn take_snapshots(
    queues: &[(String, Arc<dyn Queue>)],
    before: &[Snapshot],
    context: &Context,
) -> Result<Vec<Snapshot>> {
    let mut snapshots = Vec::with_capacity(queues.len());
    for (at, (name, queue)) in queues.iter().enumerate() {
        snapshots.push(Snapshot::at(name, &**queue, before.get(at), context).await?);
    }
    Ok(snapshots)
}

/// Reads the keyboard on a thread of its own, which ends with the process: nobody can wake it.
#[allow(clippy::disallowed_methods, reason = "a keyboard cannot be simulated")]
fn listen() -> Result<mpsc::Receiver<Wish>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::Builder::new().name("dfq-keys".to_owned()).spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            if wish(&event).is_some_and(|wish| sender.blocking_send(wish).is_err()) {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn wish(event: &Event) -> Option<Wish> {
    let KeyEvent { code, modifiers, kind, .. } = match event {
        Event::Resize(..) => return Some(Wish::Repaint),
        Event::Key(key) => *key,
        _ => return None,
    };
    if kind == KeyEventKind::Release {
        return None;
    }
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('r' | 'R') => Some(Wish::LookAgain),
        _ => None,
    }
}
