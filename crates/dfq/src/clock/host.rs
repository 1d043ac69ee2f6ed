//! Who we are. It comes in from outside, as time does: a simulation runs many processes in one.

use std::fmt;

/// A process on a machine, as leases and workers' records show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The machine's name.
    pub name: String,
    /// The process there.
    pub pid: u32,
}

impl Host {
    /// This process.
    #[allow(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn system() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { name, pid: std::process::id() }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.pid)
    }
}
