//! What matters in a synced queue besides: how its merge goes, and what other nodes have to do with a task.

use anyhow::Result;
use dfq::queue::{TaskState, TaskView};

use super::{Finding, Surroundings};
use crate::commands::supervise::state::{Look, Merge};
use crate::context::Context;
use crate::output;

/// A node of a synced queue.
pub(super) struct Node {
    look: Look,
    merge: Merge,
}

impl Node {
    /// Nothing, if the queue is not one.
    pub(super) async fn of(context: &Context, queue: &str) -> Result<Option<Self>> {
        let Some(look) = Look::new(context, queue)? else { return Ok(None) };
        Ok(look.look().await?.map(|merge| Self { look, merge }))
    }

    pub(super) async fn explain_queue(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let left = self.look.count_left().await?;
        if left.tasks > 0 {
            let tasks = output::count(left.tasks, "task");
            let verb = if left.tasks == 1 { "is" } else { "are" };
            let at_least = if left.at_least { "at least " } else { "" };
            let text = format!(
                "Of these, {at_least}{tasks} {verb} left to other nodes first, for two periods."
            );
            findings.push(Finding::new("left", text).count(left.tasks));
        }
        self.explain_merge(findings);
        Ok(())
    }

    fn explain_merge(&self, findings: &mut Vec<Finding>) {
        let text = format!("The folder was {}.", self.merge.line());
        let merge = Some(self.merge.json());
        findings.push(Finding { merge, ..Finding::new("merge", text) });
        if let Some(trouble) = self.merge.trouble() {
            findings.push(Finding::new("not_merged", format!("{trouble}.")));
        }
    }

    pub(super) async fn explain_task(
        &self,
        view: &TaskView,
        around: &Surroundings,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let (here, id, name) = (self.look.task(view).await?, view.key.id(), &around.name);
        let mut found = Vec::new();
        let of_node = |about, text, node: &Option<String>| Finding {
            node: node.clone(),
            ..Finding::new(about, text)
        };
        if let Some(left) = here.left_for {
            let node = here.left_to.as_deref().unwrap_or("another");
            let until = around.now.saturating_add(left).ok();
            let left = output::duration(left);
            let text = format!(
                "It is left to node '{node}' first: workers here may take it in {left}, or once nothing was \
                 heard of other nodes for five periods."
            );
            found.push(of_node("left", text, &here.left_to).until(until));
        }
        if let Some(node) = &here.claimed_at {
            let text = match &view.state {
                TaskState::Leased { until, .. } => format!(
                    "That worker is on node '{node}'. If nothing is heard of it, its lease is judged over {}, at the next \
                     pass that ends after that.",
                    output::relative(*until, around.now)
                ),
                _ => format!("That worker was on node '{node}'."),
            };
            let until = match &view.state {
                TaskState::Leased { until, .. } => Some(*until),
                _ => None,
            };
            found.push(of_node("elsewhere", text, &here.claimed_at).until(until));
        }
        if here.conflicts > 0 {
            let (kept, typed) = (here.conflicts, output::shell(id.as_str()));
            let others = output::count(kept, "other task");
            let verb = if kept == 1 { "was" } else { "were" };
            let text = format!(
                "{others} of this id {verb} pushed elsewhere and lost; `dfq conflicts {name} {typed}` shows what is kept."
            );
            found.push(Finding::new("conflict", text).count(kept));
        }
        if here.never_went_up {
            let text = "It was pushed here and has not gone up yet: no other node knows of it.";
            found.push(Finding::new("not_up", text));
        }
        // Right after what it is in.
        findings.splice(1.min(findings.len())..1.min(findings.len()), found);
        if self.merge.trouble().is_some() {
            self.explain_merge(findings);
        }
        Ok(())
    }
}
