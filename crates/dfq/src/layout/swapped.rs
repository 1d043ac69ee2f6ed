//! Names whose content is swapped, version by version.
//!
//! Invariant: such a name is written by [`Objects::swap`](crate::store::Objects::swap) and in no other way. On a
//! filesystem its versions lie in a folder of their own, so a file that was put under the plain name would be
//! something else. The functions of this module are the only ones that make a [`Swapped`].

/// A name that is only ever swapped; see [`Objects::swap`](crate::store::Objects::swap).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Swapped {
    name: String,
    shown: bool,
}

impl Swapped {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Whether a store that keeps the versions elsewhere also shows the content under the plain name, for the tools
    /// of people. That copy may lag.
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    fn hidden(name: String) -> Self {
        Self { name, shown: false }
    }

    /// With the content under the plain name too.
    pub(super) fn shown(name: String) -> Self {
        Self { name, shown: true }
    }
}

/// Where a filesystem keeps the versions of names that are swapped.
pub(crate) const VERSIONS: &str = "versions";

/// A record in a bucket. It was created, and a purge or a removal swaps it all the same: the one to mark it as
/// forgotten, the other to make it young (decision 19). This and `merged` are the only exceptions. It works because a bucket
/// keeps what was created and what is swapped under the same key; on a filesystem nobody does this.
pub(crate) fn record_that_a_purge_swaps(path: &str) -> Swapped {
    Swapped::hidden(path.to_owned())
}

/// A file in a bucket that a merge replaces, on the condition that it is still what was read. As above, this works because
/// a bucket keeps all contents alike.
pub(crate) fn merged(path: &str) -> Swapped {
    Swapped::hidden(path.to_owned())
}

/// The watch that idle workers keep, in a bucket. No worker's record has such a name.
pub(crate) fn watch() -> Swapped {
    Swapped::hidden(super::below(super::WORKERS, "watch"))
}

/// Where a purge finds out whether a store keeps its conditions.
pub(crate) fn trial_of_a_purge(nonce: &str) -> Swapped {
    Swapped::hidden(super::below(super::TMP, &format!("purge-{nonce}")))
}

/// Where an index finds out the same.
pub(crate) fn trial_of_an_index(nonce: &str) -> Swapped {
    Swapped::hidden(super::below(super::TMP, &format!("swap-{nonce}")))
}

/// Where the doctor tries and races.
#[cfg(feature = "doctor")]
pub(crate) fn trial_of_the_doctor(name: &str) -> Swapped {
    Swapped::hidden(name.to_owned())
}

/// A name to try a store with.
#[cfg(any(test, feature = "conformance"))]
pub(crate) fn swapped_for_trial(name: &str) -> Swapped {
    Swapped::hidden(name.to_owned())
}

/// A name to try a store with, whose content is shown under its plain name too.
#[cfg(any(test, feature = "conformance"))]
pub(crate) fn shown_for_trial(name: &str) -> Swapped {
    Swapped::shown(name.to_owned())
}

/// The folder that holds the versions of a name.
pub(crate) fn versions_dir(name: &Swapped) -> String {
    super::below(VERSIONS, &name.name)
}

/// Where a file goes that lies under the plain name of what is swapped and was not put there by the store.
pub(crate) fn set_aside(name: &Swapped, nonce: &str) -> String {
    super::below(super::ASIDE, &format!("{}.{nonce}", name.name))
}

/// Nobody writes that many versions; a name that says so is somebody else's.
const MOST_VERSIONS: u64 = 1_000_000_000_000_000;

/// The number of a version, from its name; versions are named `1`, `2`, and so on.
pub(crate) fn parse_version_name(name: &str) -> Option<u64> {
    let ours = |number: &u64| (1..=MOST_VERSIONS).contains(number) && number.to_string() == name;
    name.parse().ok().filter(ours)
}
