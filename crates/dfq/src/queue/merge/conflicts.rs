//! Tasks that lost against another of the same id: `conflicts/`, in the folder of the node that removed them.

use crate::error::{ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Outcome, Payload, TaskKey};
use crate::queue::TreeQueue;
use crate::store::Tree;
use crate::store::objects::List;

/// A task that lost.
#[derive(Clone, Debug)]
pub struct Conflict {
    /// The id and the life that it was pushed as.
    pub key: TaskKey,
    /// What tells it from others of that id: a part of its push's nonce, or of the hash of its bytes.
    pub mark: String,
    /// What it asked for, if it can be read.
    pub payload: Option<Payload>,
    /// The whole file.
    pub bytes: Vec<u8>,
}

/// Names in one request.
const PAGE: usize = 1000;

/// What a file asks for: a task, or a record of one. A record of bytes that could not be read asks for nothing.
fn payload_of(key: &TaskKey, bytes: &[u8]) -> Option<Payload> {
    let record = format::decode_record(bytes, Outcome::Failed, key).ok();
    if record.is_some_and(|record| record.damaged.is_some()) {
        return None;
    }
    format::decode_task(bytes, key).ok().map(|(payload, _)| payload)
}

impl<T: Tree> TreeQueue<T> {
    /// How many tasks have lost in this place.
    pub async fn count_conflicts(&self) -> Result<u64> {
        let mut count = 0;
        self.each_conflict(|_, _| count += 1).await?;
        Ok(count)
    }

    /// The tasks that have lost in this place, in the order of their ids.
    pub async fn conflicts(&self) -> Result<Vec<Conflict>> {
        let mut names = Vec::new();
        self.each_conflict(|key, mark| names.push((key, mark))).await?;
        names.sort();
        let mut conflicts = Vec::new();
        for (key, mark) in names {
            let path = layout::conflict_path(&key, &mark);
            let Some(stored) = self.core.tree.read(&path).await? else { continue };
            let payload = payload_of(&key, &stored.bytes);
            conflicts.push(Conflict { key, mark, payload, bytes: stored.bytes });
        }
        Ok(conflicts)
    }

    /// Removes one, which somebody has dealt with.
    pub async fn drop_conflict(&self, conflict: &Conflict) -> Result<()> {
        self.core.tree.remove_file(&layout::conflict_path(&conflict.key, &conflict.mark)).await
    }

    pub(super) async fn each_conflict(&self, mut found: impl FnMut(TaskKey, String)) -> Result<()> {
        let folder = layout::below(layout::CONFLICTS, "");
        let mut listing = self.core.tree.list(List::below(folder.clone()));
        loop {
            let part = match listing.next(PAGE).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                part => part?,
            };
            for file in part.files {
                let name = file.name.strip_prefix(&folder).unwrap_or(&file.name);
                if let Some((key, mark)) = layout::parse_conflict_name(name) {
                    found(key, mark);
                }
            }
            if part.end {
                return Ok(());
            }
        }
    }
}
