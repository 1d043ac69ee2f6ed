//! A look at all pending tasks, in bounded memory: how many wait for what, and a few of each.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::Result;
use dfq::Queue;
use dfq::queue::{ListCursor, Place, Stats, TaskState, TaskView};
use jiff::Timestamp;

use super::{Finding, Surroundings};
use crate::commands::workers::Life;
use crate::output;
use crate::select::{Selection, StateName};

/// No more tasks than this are looked into.
const AT_MOST: usize = 100_000;
/// Where a look is a request, so many of those that have a lease are looked into.
const LOOKS: usize = 100;
/// So many are named.
const NAMED: usize = 3;
/// So many holders are named.
const HOLDERS: usize = 5;

/// Tasks that wait for the same.
#[derive(Debug, Default)]
struct Group {
    count: u64,
    ids: Vec<String>,
    /// When the first of them may go on.
    next: Option<(Timestamp, String)>,
}

impl Group {
    fn add(&mut self, view: &TaskView, until: Option<Timestamp>) {
        self.count += 1;
        if self.ids.len() < NAMED {
            self.ids.push(view.key.id().to_string());
        }
        let Some(until) = until else { return };
        if self.next.as_ref().is_none_or(|(next, _)| until < *next) {
            self.next = Some((until, view.key.id().to_string()));
        }
    }

    /// `3 tasks (a, b, c)`.
    fn named(&self) -> String {
        let more = if self.count > self.ids.len() as u64 { ", …" } else { "" };
        format!("{} ({}{more})", output::count(self.count, "task"), self.ids.join(", "))
    }

    fn verb(&self) -> &'static str {
        if self.count == 1 { "is" } else { "are" }
    }

    fn finding(&self, about: &'static str, text: String) -> Finding {
        let until = self.next.as_ref().map(|(until, _)| *until);
        Finding::new(about, text).count(self.count).until(until).ids(&self.ids)
    }
}

/// What pending tasks wait for.
#[derive(Debug, Default)]
pub(super) struct PendingGroups {
    looked: u64,
    ready: Group,
    leased: BTreeMap<String, Group>,
    stale: Group,
    backoff: Group,
    damaged: Group,
    /// They have a lease, and were not looked into.
    claimed: Group,
    scheduled: Group,
    /// Ready ones that say they are of another schema than the first.
    schemas: Group,
}

impl PendingGroups {
    pub(super) async fn of(queue: &dyn Queue) -> Result<Self> {
        let mut groups = Self::default();
        let all = Selection {
            state: vec![StateName::Pending],
            limit: Some(AT_MOST),
            looks: Some(LOOKS),
            ..Selection::default()
        };
        let each = |view: TaskView| {
            groups.looked += 1;
            groups.add(&view);
            Ok(ControlFlow::Continue(()))
        };
        all.visit(queue, each).await?;
        // Those that are due first stand on the first page.
        let first = ListCursor::at(Place::Scheduled).at_most(NAMED);
        for view in queue.list(Some(first)).await?.tasks {
            if let TaskState::Scheduled { due } = view.state {
                groups.scheduled.add(&view, Some(due));
            }
        }
        Ok(groups)
    }

    fn add(&mut self, view: &TaskView) {
        match &view.state {
            TaskState::Leased { worker_id, until } => {
                self.leased.entry(worker_id.clone()).or_default().add(view, Some(*until));
            }
            TaskState::Stale { .. } => self.stale.add(view, None),
            TaskState::Backoff { until } => self.backoff.add(view, Some(*until)),
            TaskState::Damaged => self.damaged.add(view, None),
            TaskState::Claimed => self.claimed.add(view, None),
            _ => {
                self.ready.add(view, None);
                let schema = view.payload.as_ref().and_then(|p| p.integer_member("schema_version"));
                if schema.is_some_and(|schema| schema != 1) {
                    self.schemas.add(view, None);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.looked == 0
    }

    pub(super) fn findings(&self, stats: &Stats, around: &Surroundings) -> Vec<Finding> {
        let mut findings = Vec::new();
        let (now, name) = (around.now, &around.name);
        let next = |group: &Group| match &group.next {
            Some((at, _)) if group.count == 1 => output::relative(*at, now),
            Some((at, id)) => format!("{} ({id})", output::relative(*at, now)),
            None => String::new(),
        };
        let group = &self.ready;
        if group.count > 0 {
            let text = format!("{} {} ready for the next worker.", group.named(), group.verb());
            findings.push(group.finding("ready", text));
        }
        if self.schemas.count > 0 && around.alive().next().is_some() {
            let named = self.schemas.named();
            let text = format!(
                "Of these, {named} have another schema_version than 1: workers with --schema may leave them alone."
            );
            findings.push(self.schemas.finding("schema", text));
        }
        for (worker_id, group) in self.leased.iter().take(HOLDERS) {
            let (tasks, verb) = (group.named(), group.verb());
            let holder = around.describe(worker_id);
            let which = if group.count == 1 { "the lease" } else { "the first lease" };
            let ends = next(group);
            let mut text = format!("{tasks} {verb} leased by {holder}; {which} ends {ends}.");
            let worker = around.workers.iter().find(|worker| worker.worker_id == *worker_id);
            if worker.map(|worker| Life::of(worker, now)) != Some(Life::Alive) {
                let id = group.ids.first().map_or_else(String::new, |id| output::shell(id));
                text += &format!(
                    " Unless renewed, others take over then; `dfq unlock {name} {id}` allows it now."
                );
            }
            findings.push(group.finding("leased", text).worker(worker_id));
        }
        if self.leased.len() > HOLDERS {
            let others = self.leased.len() - HOLDERS;
            let count = self.leased.values().skip(HOLDERS).map(|group| group.count).sum();
            let tasks = output::count(count, "task");
            let text =
                format!("{tasks} more are leased by {others} other workers; `dfq workers {name}`.");
            findings.push(Finding::new("leased", text).count(count));
        }
        let group = &self.stale;
        if group.count > 0 {
            let (named, verb) = (group.named(), group.verb());
            let text = format!(
                "{named} {verb} stale: the worker went silent, and whoever polls next takes over."
            );
            findings.push(group.finding("stale", text));
        }
        let group = &self.backoff;
        if group.count > 0 {
            let (named, verb) = (group.named(), group.verb());
            let text = format!(
                "{named} {verb} in backoff after a failure; the next try is {}.",
                next(group)
            );
            findings.push(group.finding("backoff", text));
        }
        if self.claimed.count > 0 {
            let tasks = output::count(self.claimed.count, "task");
            let text = format!(
                "{tasks} more with a lease: to save requests, only {LOOKS} of these were looked into."
            );
            findings.push(Finding::new("claimed", text).count(self.claimed.count));
        }
        let group = &self.damaged;
        if group.count > 0 {
            let (named, verb) = (group.named(), group.verb());
            let text = format!(
                "{named} {verb} damaged: the next worker sets it aside among the failed ones; `dfq check {name}` says what is wrong."
            );
            findings.push(group.finding("damaged", text));
        }
        if let Some((due, id)) = &self.scheduled.next {
            let tasks = output::count(stats.scheduled, "task");
            let when = output::relative(*due, now);
            let text = if *due <= now {
                format!(
                    "{tasks} scheduled; the first ({id}) came due {when} and comes with the next poll."
                )
            } else {
                format!("{tasks} scheduled; the first ({id}) is due {when}.")
            };
            let finding = Finding::new("scheduled", text).count(stats.scheduled).until(Some(*due));
            findings.push(finding.ids(&self.scheduled.ids));
        }
        if self.looked >= AT_MOST as u64 && stats.pending > self.looked {
            let looked = output::thousands(self.looked);
            let all = output::thousands(stats.pending);
            let text = format!("This is about the first {looked} of {all} pending tasks.");
            findings.push(Finding::new("partial", text).count(self.looked));
        }
        findings
    }
}
