//! How a kind of store is used: how tasks are found in it, which looks are made, how purged ids are forgotten.
//!
//! Invariant: the protocol is the same everywhere. What is chosen here, once, when a queue is opened, is what the
//! protocol leaves open: the order in which tasks are tried, and looks that only save work or tell something
//! sooner. In a directory a look is a system call; in a bucket it is a request, which takes a round trip and
//! costs money (decisions 17 and 23).

use std::time::Duration;

use crate::model::Settings;
use crate::store::Properties;

/// What is chosen for a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strategy {
    pub(super) finding: Finding,
    pub(super) looks: Looks,
    pub(super) forgetting: Forgetting,
    /// A folder is a thing of its own that stays until it is removed. Elsewhere it is a part of names.
    pub(super) has_folders: bool,
    /// Other programs write files in place here: a task that breaks off, or is not there yet, may be on its way.
    pub(super) has_partial_files: bool,
}

/// How tasks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Folder by folder, a shard at a time: see `discover`.
    Shards,
    /// By pages of keys across folders: see `survey`.
    Pages,
}

/// How an id is forgotten, so that nobody takes a later task of its name for the purged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgetting {
    /// A floor tells the lives that are forgotten, and no number is used twice: decision 21.
    Floors,
    /// A removal may arrive late, so it rests on a young record, and a purge marks a record before it goes:
    /// decision 19.
    Marks,
}

/// Which looks are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// Calls to the store that are worth having under way at once, for one verb.
    pub(super) at_once: usize,
    /// How long a look at the store's clock is good for.
    pub(super) clock_life: Duration,
    /// What the store's clock shows may be behind by one of its ticks.
    pub(super) clock_is_rounded: bool,
    /// If the first lease of a task exists, all leases are read. Otherwise only that one: it was just created.
    pub(super) all_leases_after_a_collision: bool,
    /// A task that somebody has, or that waits, is looked for all the same.
    pub(super) at_tasks_that_wait: bool,
    /// An owner looks for a later lease before it finishes. Otherwise its clock and the record decide.
    pub(super) before_an_end: bool,
    /// An owner that gives a task back looks for records. Where removals are put off, a finished task is still there.
    pub(super) for_records_when_giving_back: bool,
    /// An owner that renews its lease looks for the task and for a later lease before it writes, and afterwards.
    /// Otherwise its own file tells before that the task goes on, and afterwards it looks for a later lease.
    pub(super) at_the_task_when_renewing: bool,
    /// A push looks for earlier lives first. Otherwise it publishes, and looks afterwards.
    pub(super) before_a_push: bool,
    /// Every poll looks at the root and at `scheduled/`. Otherwise only every few seconds.
    pub(super) at_the_root_each_poll: bool,
    /// A poll that has claimed something begins another round over the queue to find more.
    pub(super) on_another_round_for_more: bool,
    /// A poll that met a task in the hands of another poll of this process asks to be repeated at once.
    /// Otherwise in a second.
    pub(super) again_at_once: bool,
    /// After a failure the store is asked something else, to tell a bad file from a bad store.
    pub(super) elsewhere_after_a_failure: bool,
}

impl Looks {
    /// Where a look is a system call.
    const BY_CALLS: Self = Self {
        at_once: 1,
        clock_life: Duration::from_secs(10),
        clock_is_rounded: false,
        all_leases_after_a_collision: true,
        at_tasks_that_wait: true,
        before_an_end: true,
        for_records_when_giving_back: false,
        at_the_task_when_renewing: true,
        before_a_push: true,
        at_the_root_each_poll: true,
        on_another_round_for_more: true,
        again_at_once: true,
        elsewhere_after_a_failure: true,
    };

    /// Where a look is a request.
    const BY_REQUESTS: Self = Self {
        at_once: 64,
        clock_life: Duration::from_secs(60),
        clock_is_rounded: true,
        all_leases_after_a_collision: false,
        at_tasks_that_wait: false,
        before_an_end: false,
        for_records_when_giving_back: true,
        at_the_task_when_renewing: false,
        before_a_push: false,
        at_the_root_each_poll: false,
        on_another_round_for_more: false,
        again_at_once: false,
        elsewhere_after_a_failure: false,
    };
}

impl Strategy {
    pub(super) fn of(store: &Properties, settings: &Settings) -> Self {
        if store.remote {
            // Where places are merged, no number may come twice: a node may be away for weeks.
            let forgetting = match settings.synced {
                Some(_) => Forgetting::Floors,
                None => Forgetting::Marks,
            };
            Self {
                finding: Finding::Pages,
                looks: Looks::BY_REQUESTS,
                forgetting,
                has_folders: false,
                has_partial_files: false,
            }
        } else {
            Self {
                finding: Finding::Shards,
                looks: Looks::BY_CALLS,
                forgetting: Forgetting::Floors,
                has_folders: true,
                has_partial_files: true,
            }
        }
    }
}
