//! Whether a content is replaced only as what it was read as: what the compaction of an index rests on.

use std::sync::Arc;

use super::subject::{Kind, Subject};
use super::verdict::{Check, Promise};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, Swapped};
use crate::store::Tree;
use crate::store::bucket::Bucket;
use crate::store::fs::Filesystem;
use crate::store::objects::{Objects, Swap, Version};

const NAME: &str = "swap";

/// Something that can be swapped: where, by what name, and what its first content is.
pub(super) struct Trial {
    store: Arc<dyn Objects>,
    name: Swapped,
    before: Vec<u8>,
}

impl Trial {
    /// Below a folder of the doctor's. On a filesystem that folder has a store of its own, so that all of it goes with it.
    pub(super) fn at<T: Tree>(subject: &Subject<T>, path: &str) -> Result<Self> {
        // Unlike any other: many stores make versions of the content alone.
        let before = format!("before {path}").into_bytes();
        let (store, name): (Arc<dyn Objects>, _) = match subject.kind() {
            Kind::Directory(root) => {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                let store = Filesystem::create(&root.join(folder), subject.env().clone())?;
                (Arc::new(store), name)
            }
            Kind::Bucket(bucket) => (Arc::<Bucket>::clone(bucket), path),
        };
        Ok(Self { store, name: layout::trial_of_the_doctor(name), before })
    }

    /// Gives it its first content, unless somebody has.
    pub(super) async fn begin(&self) -> Result<()> {
        self.store.swap(&self.name, None, &self.before).await.map(drop)
    }

    /// The version of its first content; none if it has another by now.
    pub(super) async fn first(&self) -> Result<Option<Version>> {
        let there = self.store.load(&self.name).await?;
        let there = there.ok_or_else(|| {
            let name = self.name.as_str();
            Error::new(ErrorKind::Unavailable, format!("'{name}' cannot be seen from here"))
        })?;
        Ok((there.bytes == self.before).then_some(there.head.version))
    }

    pub(super) async fn swap(&self, version: &Version, bytes: &[u8]) -> Result<Swap> {
        self.store.swap(&self.name, Some(version), bytes).await
    }

    pub(super) async fn content(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.store.load(&self.name).await?.map(|there| there.bytes))
    }
}

/// One at a time: what was read is replaced and read back, what was superseded or is not there is refused. Answers
/// whether it can be raced for.
pub(super) async fn examine<T: Tree>(subject: &Subject<T>, scratch: &str) -> Result<(Check, bool)> {
    let folder = layout::below(scratch, NAME);
    let wrong = subject.on(|subject| async move { one_by_one(&subject, &folder).await }).await?;
    Ok(match wrong {
        None => {
            let detail = "what was read is replaced, what was superseded is refused";
            let means = Some("an index can be compacted here");
            let check = Check::yes(NAME, detail);
            (check.meaning(Promise::Index, super::Verdict::Safe, means), true)
        }
        Some(wrong) => (Check::breaks(NAME, wrong, &[Promise::Index]), false),
    })
}

/// What is wrong, if anything is.
async fn one_by_one<T: Tree>(subject: &Subject<T>, folder: &str) -> Result<Option<String>> {
    let answered = async {
        let trial = Trial::at(subject, &layout::below(folder, "one"))?;
        trial.begin().await?;
        let Some(first) = trial.first().await? else {
            return Ok(Some("what was just written is not what is read"));
        };
        let Swap::Written(_) = trial.swap(&first, b"second").await? else {
            return Ok(Some("what nobody had changed is said to have changed"));
        };
        if trial.content().await?.as_deref() != Some(b"second") {
            return Ok(Some("what was just swapped is not what is read"));
        }
        if let Swap::Written(_) = trial.swap(&first, b"stale").await? {
            return Ok(Some("ignored: a content was replaced though it had changed"));
        }
        if trial.content().await?.as_deref() != Some(b"second") {
            return Ok(Some("a swap was refused, and carried out all the same"));
        }
        let missing = Trial::at(subject, &layout::below(folder, "missing"))?;
        if let Swap::Written(_) = missing.swap(&first, b"missing").await? {
            return Ok(Some("ignored: a content that was not there was replaced"));
        }
        Ok(None)
    };
    let answered: Result<Option<&str>> = answered.await;
    match answered {
        Ok(wrong) => Ok(wrong.map(str::to_owned)),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}
