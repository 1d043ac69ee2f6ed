//! Where work runs beside its caller: in the background, on a thread that may block, on a thread of its own.
//!
//! Invariant: nothing else in this crate starts a task or a thread (clippy enforces it). So a program that brings
//! a [`Runner`] of its own decides what runs when, as a simulation must.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use tokio::sync::oneshot;

use super::Env;
use crate::error::{Error, ErrorKind, Result};

/// Something to be done.
pub type Work = BoxFuture<'static, ()>;

/// A place where work runs.
pub trait Runner: Send + Sync + fmt::Debug {
    /// Whether anything can run in the background here. A program without a runtime has nobody to do it.
    fn is_running(&self) -> bool;
    /// Runs it in the background, beside other work of that kind. Only while [`Runner::is_running`].
    fn spawn(&self, work: Work);
    /// Runs it on a thread that it may block. Only while [`Runner::is_running`].
    fn spawn_blocking(&self, work: Work);
    /// Runs it on a thread of this name, with timers of its own, so that no other work can starve it.
    fn spawn_thread(&self, name: &str, work: Work) -> std::io::Result<()>;
}

/// How work ended that has no result.
pub enum Ended {
    /// It panicked, with this.
    Panicked(Box<dyn Any + Send>),
    /// It was aborted, or the runtime is shutting down.
    Dropped,
}

/// Work under way. Await it for its result; it goes on if this is dropped.
pub struct Running<R> {
    result: oneshot::Receiver<std::thread::Result<R>>,
    ended: Arc<AtomicBool>,
    abort: AbortHandle,
}

impl<R: Send + 'static> Running<R> {
    /// The work to be run, and what its caller keeps of it.
    fn new(work: impl Future<Output = R> + Send + 'static) -> (Work, Self) {
        let (sender, result) = oneshot::channel();
        let ended = Ending(Arc::default());
        let kept = Arc::clone(&ended.0);
        let (abort, registration) = AbortHandle::new_pair();
        let work = async move {
            let _ended = ended;
            let work = AssertUnwindSafe(work).catch_unwind();
            if let Ok(done) = Abortable::new(work, registration).await {
                let _ = sender.send(done);
            }
        };
        (Box::pin(work), Self { result, ended: kept, abort })
    }

    /// Whether it has ended, however.
    pub fn is_finished(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Drops it where it waits next.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// The result. If it panicked so does the caller; if the runtime is shutting down, so is the caller.
    pub async fn result(self) -> R {
        match self.await {
            Ok(done) => done,
            Err(Ended::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(Ended::Dropped) => std::future::pending().await,
        }
    }
}

impl<R> Future for Running<R> {
    type Output = Result<R, Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(cx).map(|result| match result {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => Err(Ended::Panicked(panic)),
            Err(_) => Err(Ended::Dropped),
        })
    }
}

/// Says that it has ended when it is dropped, finished or not.
struct Ending(Arc<AtomicBool>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Env {
    /// Whether anything can run in the background here; see [`Runner::is_running`].
    pub fn is_running(&self) -> bool {
        self.runner.is_running()
    }

    /// Runs something in the background. Only while [`Env::is_running`].
    pub fn spawn<R: Send + 'static>(
        &self,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Running<R> {
        let (work, running) = Running::new(work);
        self.runner.spawn(work);
        running
    }

    /// Runs something that blocks on a thread that may. Only while [`Env::is_running`].
    pub fn spawn_blocking<R: Send + 'static>(
        &self,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Running<R> {
        let (work, running) = Running::new(work);
        self.runner.spawn_blocking(work);
        running
    }

    /// Runs something on a thread of its own; see [`Runner::spawn_thread`].
    pub fn spawn_thread<R: Send + 'static>(
        &self,
        name: &str,
        work: impl Future<Output = R> + Send + 'static,
    ) -> Result<Running<R>> {
        let (work, running) = Running::new(work);
        self.runner.spawn_thread(name, work).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the thread '{name}' cannot start: {error}"))
        })?;
        Ok(running)
    }
}

/// Tokio's runtime, and threads of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct TokioRunner;

#[allow(clippy::disallowed_methods, reason = "this is the seam")]
impl Runner for TokioRunner {
    fn is_running(&self) -> bool {
        tokio::runtime::Handle::try_current().is_ok()
    }

    fn spawn(&self, work: Work) {
        drop(tokio::spawn(work));
    }

    fn spawn_blocking(&self, work: Work) {
        drop(tokio::task::spawn_blocking(|| futures::executor::block_on(work)));
    }

    fn spawn_thread(&self, name: &str, work: Work) -> std::io::Result<()> {
        // Built on the thread: a runtime that is dropped in another one panics.
        let (started, ready) = std::sync::mpsc::channel();
        let main = move || match tokio::runtime::Builder::new_current_thread().enable_all().build()
        {
            Ok(runtime) => {
                let _ = started.send(Ok(()));
                runtime.block_on(work);
                // A call that hangs must not keep the thread from ending.
                runtime.shutdown_background();
            }
            Err(error) => _ = started.send(Err(error)),
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(main)?;
        ready.recv().unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_has_a_result_however_it_runs() {
        let env = Env::system();
        assert!(env.is_running());
        assert_eq!(env.spawn(async { 1 }).result().await, 1);
        assert_eq!(env.spawn_blocking(async { 2 }).result().await, 2);
        assert_eq!(env.spawn_thread("test", async { 3 }).unwrap().result().await, 3);
    }

    #[tokio::test]
    async fn a_panic_is_told_and_goes_no_further() {
        let env = Env::system();
        let ended = env.spawn(async { panic!("oh") }).await;
        let Err(Ended::Panicked(panic)) = ended else { panic!("it has a result") };
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"oh"));
    }

    #[tokio::test]
    async fn what_is_aborted_is_dropped() {
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let running = Env::system().spawn(async move {
            std::future::pending::<()>().await;
            drop(holds);
        });
        assert!(!running.is_finished());
        running.abort();
        assert!(matches!(running.await, Err(Ended::Dropped)));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn without_a_runtime_nothing_runs_in_the_background() {
        assert!(!Env::system().is_running());
    }
}
