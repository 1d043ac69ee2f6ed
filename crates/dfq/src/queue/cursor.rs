//! How far a listing of tasks has come, and how closely it looks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::TaskView;
use super::pages::Met;
use super::types::Place;
use super::walk::Spot;
use crate::layout::Due;
use crate::model::TaskKey;

/// How far a listing has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor {
    pub(super) place: Place,
    /// Where the place goes on, if it does.
    pub(super) spot: Option<Spot>,
    /// What is left of a folder that did not fit on one page.
    pub(super) rest: VecDeque<Named>,
    /// Later lives that are scheduled, once they were looked for: those before them are history.
    pub(super) scheduled: Option<Arc<BTreeSet<TaskKey>>>,
    /// How many tasks may still be looked into that need not be; `None` if all are.
    pub(super) looks: Option<usize>,
    /// No more tasks than this are looked at for one page.
    pub(super) at_most: usize,
    /// There are so few that each is asked for its records, also if it has no lease.
    pub(super) few: bool,
}

/// A task that a listing has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) met: Met,
    /// When it is due, if it is scheduled.
    pub(super) due: Option<Due>,
}

impl ListCursor {
    /// From the beginning of a place on.
    pub fn at(place: Place) -> Self {
        let (spot, rest) = (Some(Spot::START), VecDeque::new());
        Self { place, spot, rest, scheduled: None, looks: None, at_most: usize::MAX, few: true }
    }

    /// Without what has to be asked for: where a look is a request, pending tasks come without their payload, and
    /// without the rest of what is in their file. Of those that have a lease, `looks` are looked into; the others
    /// are [`TaskState::Claimed`](super::TaskState::Claimed). In a long listing, something that is left of a finished
    /// task may pass for a task.
    #[must_use]
    pub fn briefly(mut self, looks: usize) -> Self {
        self.looks = Some(looks);
        self
    }

    /// With about so many tasks on a page at the most: more are not looked at.
    #[must_use]
    pub fn at_most(mut self, tasks: usize) -> Self {
        self.at_most = tasks.max(1);
        self
    }

    /// The place that comes next.
    pub fn place(&self) -> Place {
        self.place
    }

    /// On with another place, as closely as before.
    pub(super) fn on_to(self, place: Place) -> Self {
        Self { looks: self.looks, at_most: self.at_most, ..Self::at(place) }
    }
}

/// A part of a listing.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// Tasks.
    pub tasks: Vec<TaskView>,
    /// Where to go on; nothing at the end.
    pub next: Option<ListCursor>,
}
