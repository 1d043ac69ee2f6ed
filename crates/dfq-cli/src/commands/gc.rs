//! `dfq gc`: removes finished records that nobody needs any more.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use dfq::queue::{Purge, Purged};
use dfq::{Outcome, Queue};
use serde::Serialize;

use crate::args::{Careful, duration};
use crate::context::{Context, confirm};
use crate::exit::Answer;
use crate::output;

/// Remove old records of finished tasks
///
/// Says how many there are and asks first. An id whose records are gone is as good as new: pushing it
/// again does it again. Files that killed processes left half-made, and workers not heard of for a
/// week, go too.
#[derive(Args, Debug)]
pub(crate) struct Gc {
    /// The queue
    queue: String,
    #[command(flatten)]
    which: Finished,
    /// Only what finished at least so long ago: 7d, 12h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Duration,
    #[command(flatten)]
    careful: Careful,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct Finished {
    /// Records of completed tasks
    #[arg(long)]
    completed: bool,
    /// Records of failed tasks; they cannot be retried afterwards
    #[arg(long)]
    failed: bool,
}

#[derive(Default, Serialize)]
struct Removed {
    dry_run: bool,
    completed: u64,
    failed: u64,
    leftovers: u64,
}

impl Gc {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let queue = context.open(&self.queue).await?;
        // To count costs as much as to remove: not when nobody asked for the number.
        if !self.careful.yes {
            let found = self.purge(&*queue, true).await?;
            let sentence = found.sentence(&self);
            if self.careful.dry_run {
                return tell(context, &found, &format!("would remove {sentence}"));
            }
            if found.is_nothing() {
                return tell(context, &Removed::default(), "nothing is old enough to be removed");
            }
            if !confirm(false, &format!("Remove {sentence} for good?"))? {
                if !context.quiet {
                    crate::output::note!("dfq: nothing was changed");
                }
                return Ok(Answer::No);
            }
        }
        let removed = self.purge(&*queue, false).await?;
        tell(context, &removed, &format!("removed {}", removed.sentence(&self)))
    }

    async fn purge(&self, queue: &dyn Queue, dry_run: bool) -> Result<Removed> {
        let purge = async |outcome| {
            queue.purge(Purge { outcome, older_than: self.older_than, dry_run }).await
        };
        let mut removed = Removed { dry_run, ..Removed::default() };
        if self.which.completed {
            let Purged { records, leftovers } = purge(Outcome::Completed).await?;
            (removed.completed, removed.leftovers) = (records, leftovers);
        }
        if self.which.failed {
            let Purged { records, leftovers } = purge(Outcome::Failed).await?;
            removed.failed = records;
            // Either call sees to them: what the first only counted, the second counts again.
            removed.leftovers = removed.leftovers.max(leftovers);
        }
        Ok(removed)
    }
}

impl Removed {
    fn is_nothing(&self) -> bool {
        self.completed + self.failed + self.leftovers == 0
    }

    fn sentence(&self, asked: &Gc) -> String {
        let mut parts = Vec::new();
        if asked.which.completed {
            parts.push(output::count(self.completed, "completed record"));
        }
        if asked.which.failed {
            parts.push(output::count(self.failed, "failed record"));
        }
        if self.leftovers > 0 {
            parts.push(output::count(self.leftovers, "leftover"));
        }
        parts.join(" and ")
    }
}

fn tell(context: &Context, removed: &Removed, sentence: &str) -> Result<Answer> {
    if context.json {
        output::json_line(removed)?;
    } else if !context.quiet {
        crate::output::note!("dfq: {sentence}");
    }
    Ok(Answer::Yes)
}
