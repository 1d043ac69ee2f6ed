//! Being told to stop in the middle of a push, or of a put.
//!
//! Kept true: what was sent before the first signal is waited for, so that what is said of it is so. A second signal
//! is obeyed at once.

use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long after a signal a person is told what is waited for.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// Told to stop at once, by this signal.
pub(crate) struct Interrupted(pub(crate) u8);

/// Signals to stop, as they come.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> Result<Self> {
        let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
        Ok(Self { interrupt: interrupt?, terminate: terminate? })
    }

    /// The number of the next.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        }
    }

    /// Lets something come to its end, which is about so many tasks or records. Answers what came of it, and the signal if one
    /// came meanwhile.
    pub(crate) async fn let_finish<R>(
        &mut self,
        work: impl Future<Output = R>,
        number: usize,
        noun: &str,
    ) -> Result<(R, Option<u8>), Interrupted> {
        let mut work = std::pin::pin!(work);
        let signal = tokio::select! {
            biased;
            done = &mut work => return Ok((done, None)),
            signal = self.next() => signal,
        };
        let say = async {
            dfq::Env::system().clock().sleep(SAID_AFTER).await;
            let some = crate::output::count(number as u64, noun);
            crate::output::note!(
                "dfq: waiting for {some} that are being sent; press Ctrl-C again to stop at once"
            );
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            done = &mut work => Ok((done, Some(signal))),
            signal = self.next() => Err(Interrupted(signal)),
            () = say => Err(Interrupted(signal)),
        }
    }
}
