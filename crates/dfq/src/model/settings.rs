//! A queue's own settings, kept in its `queue.json`.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The features of a queue that this version knows, by the names in its `requires`.
pub const FEATURES: [&str; 1] = [SYNCED];

/// The feature of queues that are merged with another place.
pub(crate) const SYNCED: &str = "synced";

/// How names are laid out in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `pending/<sh>/<task>/`: 256 folders by hash. The default.
    #[default]
    Sharded,
    /// `pending/<task>/`: the seeds' own layout.
    Flat,
}

/// What a push or an ack that returned has been through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// It survives a power cut.
    #[default]
    Durable,
    /// It survives the process. A power cut may lose the last seconds.
    Relaxed,
}

/// How long a failed task waits for its next attempt: doubling from `base` up to `max`, of which a
/// random part between a half and the whole is taken, so that failures that came together do not
/// come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub base: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Backoff {
    /// The wait after the `failures`-th failure, where `fraction` (0 to 1) is the chance in it.
    pub fn wait(&self, failures: u32, fraction: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.max);
        let part = full.as_secs_f64() * (0.5 + 0.5 * fraction.clamp(0.0, 1.0));
        // The longest of all durations is rounded up to one second more.
        Duration::try_from_secs_f64(part).unwrap_or(full)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(5), max: Duration::from_secs(15 * 60) }
    }
}

/// Who may use a queue in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Whoever the umask of its users lets in.
    #[default]
    Umask,
    /// Every member of its folder's group. Programs that use such a queue need the umask 002; the
    /// command `dfq` sees to it by itself.
    Group,
}

/// What a queue that is merged with another place asks of everyone besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The same in all places of one queue, and in no other queue.
    pub queue_id: String,
    /// How often each node merges.
    pub period: Duration,
    /// This is the place in the middle, in which nobody works.
    pub hub: bool,
}

/// What a queue asks of everyone who uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The format of the tree.
    pub format: u32,
    /// Names in the tree.
    pub layout: Layout,
    /// For how long a claim holds without a heartbeat.
    pub lease: Duration,
    /// How many failures of its handler end a task.
    pub max_attempts: u32,
    /// How many leases that ran out (dead or stalled workers) end a task.
    pub max_lost: u32,
    /// The wait between attempts.
    pub backoff: Backoff,
    /// What a push or ack that returned has been through.
    pub durability: Durability,
    /// Who may use it.
    pub shared: Shared,
    /// How it is merged with another place, if it is.
    pub synced: Option<Synced>,
    /// When the queue was made.
    pub created_at: Option<Timestamp>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format: FORMAT_VERSION,
            layout: Layout::Sharded,
            lease: Duration::from_secs(600),
            max_attempts: 5,
            max_lost: 10,
            backoff: Backoff::default(),
            durability: Durability::Durable,
            shared: Shared::Umask,
            synced: None,
            created_at: None,
        }
    }
}

impl Settings {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        check_lease(self.lease)?;
        if self.max_attempts == 0 {
            return Err(Error::invalid("max_attempts must be at least 1"));
        }
        if self.max_lost == 0 {
            return Err(Error::invalid("max_lost must be at least 1"));
        }
        match &self.synced {
            Some(synced) => self.check_synced(synced),
            None => Ok(()),
        }
    }
}

impl Settings {
    /// What a queue needs that is merged with another place.
    fn check_synced(&self, synced: &Synced) -> Result<()> {
        if self.layout == Layout::Flat {
            return Err(Error::invalid(
                "a queue with the flat layout cannot be synced; use 'sharded'",
            ));
        }
        if synced.queue_id.is_empty() {
            return Err(Error::invalid("a synced queue needs a queue_id"));
        }
        let (shortest, longest) = (Duration::from_millis(10), Duration::from_secs(24 * 3600));
        if !(shortest..=longest).contains(&synced.period) {
            return Err(Error::invalid(format!(
                "a queue cannot be synced every {:?}: that must be between {shortest:?} and 24 h",
                synced.period
            )));
        }
        synced.check_lease(self.lease)
    }
}

impl Synced {
    /// The node of a queue that is known by its hub's address, for those that begin while they cannot ask it: all that
    /// name the same hub agree.
    pub fn of_hub(hub: &str, period: Duration) -> Self {
        let digest = Sha256::digest(hub.as_bytes());
        let queue_id = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { queue_id, period, hub: false }
    }

    /// A lease must outlive two passes, or other nodes hear of its renewals too late.
    pub(crate) fn check_lease(&self, lease: Duration) -> Result<()> {
        let least = self.period.saturating_mul(2);
        if lease < least {
            return Err(Error::invalid(format!(
                "a lease of {lease:?} is too short for a queue that is synced every {:?}: other nodes would \
                 hear of it too late; use {least:?} or more",
                self.period
            )));
        }
        Ok(())
    }
}

/// Lease lengths that mean something: not so short that it is over before it is written, nor longer
/// than others would believe.
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    let (shortest, longest) = (Duration::from_millis(20), Duration::from_secs(24 * 3600));
    if !(shortest..=longest).contains(&lease) {
        return Err(Error::invalid(format!(
            "a lease of {lease:?} is out of range: it must be between {shortest:?} and 24 h"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_limit_and_never_below_half() {
        let backoff = Backoff { base: Duration::from_secs(10), max: Duration::from_secs(60) };
        let full = |failures| backoff.wait(failures, 1.0).as_secs();
        assert_eq!([full(1), full(2), full(3), full(4)], [10, 20, 40, 60]);
        assert_eq!(full(u32::MAX), 60);
        assert_eq!(backoff.wait(1, 0.0).as_secs(), 5);
    }

    #[test]
    fn leases_of_no_length_are_refused() {
        assert!(check_lease(Duration::ZERO).is_err());
        assert!(check_lease(Duration::from_secs(600)).is_ok());
        assert!(check_lease(Duration::from_secs(48 * 3600)).is_err());
    }
}
