//! How the command ends: one exit status for each kind of trouble, and one sentence about it.

use std::process::ExitCode;

use dfq::{Env, Error, ErrorKind};

use crate::args::Cli;
use crate::context::Context;

/// What a command answers when nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done; yes.
    Yes,
    /// Done, but the answer is no: a task failed, a check found something, nothing was there.
    No,
    /// The worker stopped itself rather than burn the queue.
    Halted,
    /// A command could not be started.
    CannotRun {
        /// It is there.
        found: bool,
    },
    /// Told to stop at once by this signal.
    Killed(u8),
    /// The store can be used, but something is lost.
    Degraded,
    /// Something went wrong, and has been said already.
    Told(ErrorKind),
}

impl Answer {
    pub(crate) fn yes_if(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }

    fn status(self) -> u8 {
        match self {
            Self::Yes => 0,
            Self::No => 1,
            Self::Halted => 12,
            Self::Degraded => 14,
            Self::CannotRun { found } => 127 - u8::from(found),
            Self::Killed(signal) => 128 + signal,
            Self::Told(kind) => status(kind),
        }
    }
}

/// The exit status for each kind of error, the same for every command.
pub(crate) fn status(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::ClaimLost => 4,
        ErrorKind::AlreadyCompleted => 5,
        ErrorKind::Unsupported => 6,
        ErrorKind::Full => 8,
        ErrorKind::Denied => 9,
        ErrorKind::Incompatible => 10,
        ErrorKind::Damaged => 11,
        ErrorKind::Unsafe => 13,
        // Unavailable, and whatever a later library may add: try again later.
        _ => 7,
    }
}

/// The table that `dfq --help` ends with.
pub(crate) const TABLE: &str = "\
Exit status:
  0    done
  1    done, but the answer is no: a task failed, a check found something, nothing was there
  2    wrong use or wrong input; nothing was changed, unless the message says so
  3    no such queue, task, index or record
  4    the claim is lost: somebody else has the task, or the lease ran out
  5    the task was finished already
  6    this kind of queue cannot do that
  7    the store did not answer; try again later
  8    no room left on the store
  9    no permission
  10   the queue was made by a newer dfq
  11   something in the queue is damaged
  12   `work` halted: the command cannot be run, or too much failed (--halt)
  13   the store is not safe: `doctor` says so, or has said so (--allow-unsafe)
  14   `doctor`: the store can be used, but something is lost
  129, 130, 143   `work` was stopped at once by a second signal, or `push`, `index` or `supervise --once` was interrupted
  141  whoever read the output wanted no more";

/// Runs a command to its end.
pub(crate) fn run(cli: Cli, env: Env) -> ExitCode {
    let context = match Context::new(&cli.global, env) {
        Ok(context) => context,
        Err(error) => return ExitCode::from(report(&error)),
    };
    let answer = (|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let answer = runtime.block_on(async {
            let answer = crate::commands::run(cli.command, &context).await;
            context.close().await;
            answer
        });
        // Reading stdin blocks a thread that nobody can wake.
        runtime.shutdown_background();
        answer
    })();
    let status = match answer {
        Ok(answer) => answer.status(),
        Err(error) => report(&error),
    };
    // Last of all, so that it is the last line of stderr: a command that failed was charged too.
    if cli.global.cost {
        crate::output::cost(&context);
    }
    ExitCode::from(status)
}

/// Says what went wrong, and answers the status for it.
pub(crate) fn report(error: &anyhow::Error) -> u8 {
    if is_broken_pipe(error) {
        return 128 + 13; // as if SIGPIPE had ended us: whoever read us wanted no more
    }
    // It may speak of a task's id, in which anything can be.
    crate::output::note!("dfq: {}", crate::output::printable(&format!("{error:#}")));
    match error.downcast_ref::<Error>() {
        Some(error) => status(error.kind()),
        None => status(ErrorKind::Unavailable),
    }
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// The request itself is wrong.
pub(crate) fn invalid(message: impl Into<String>) -> anyhow::Error {
    Error::new(ErrorKind::Invalid, message).into()
}

/// This kind of queue cannot do that.
pub(crate) fn unsupported(message: impl Into<String>) -> anyhow::Error {
    Error::new(ErrorKind::Unsupported, message).into()
}

/// There is no such thing.
pub(crate) fn not_found(message: impl Into<String>) -> anyhow::Error {
    Error::new(ErrorKind::NotFound, message).into()
}

/// A file or folder outside of any queue that cannot be written.
pub(crate) fn unwritable(path: &std::path::Path, error: &std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        Io::NotADirectory | Io::AlreadyExists | Io::IsADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{} cannot be written: {error}", path.display())).into()
}

/// Waits for Ctrl-C or SIGTERM, then asks to stop; answers which signal it was. From this call on neither ends the process.
pub(crate) fn stop_signal(
    stop: tokio_util::sync::CancellationToken,
) -> impl Future<Output = u8> + Send + 'static {
    use tokio::signal::unix::{SignalKind, signal};
    // At once: the future may not be polled for a while.
    let signals = signal(SignalKind::interrupt()).and_then(|interrupt| {
        signal(SignalKind::terminate()).map(|terminate| (interrupt, terminate))
    });
    async move {
        let Ok((mut interrupt, mut terminate)) = signals else {
            return std::future::pending().await;
        };
        let signal = tokio::select! {
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
        };
        stop.cancel();
        signal
    }
}
