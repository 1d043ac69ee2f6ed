//! Records that another program puts into the inbox of its index, under names that it may use again.
//!
//! Invariant: a newer content under the same name is never lost. Where a name can be moved in one step (a directory) the
//! file is moved to a name of ours first, and only that is merged and removed. Elsewhere (a bucket) it is merged where it
//! is and stays there, because no removal can be bound to what was read. What was merged is remembered by its version, so
//! that it is not read each time; to lose that memory costs reads, and to merge a record again changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::inbox::{InboxFile, PAGE, Taken, rows_of};
use super::record::check_key;
use super::schema::{Manner, Schema};
use super::{Core, usv};
use crate::error::{ErrorKind, Result};
use crate::layout::{self, InboxName, Shard};
use crate::store::ObjectsExt as _;
use crate::store::objects::{List, Version};

/// How often a listing is read again from which files vanish.
const ROUNDS: usize = 100;

/// What the first line of the file begins with.
const FORMAT: &str = "dfq-seen-1";

/// Files beside the shards' inboxes, by the shard of the key that they are named for.
pub(super) type Flat = BTreeMap<Shard, Vec<InboxFile>>;

/// What became of a record that was to be moved to a name of ours.
enum Claimed {
    /// It has that name.
    Yes(String),
    /// It has gone.
    Gone,
    /// The store cannot do that.
    No,
}

impl Core {
    /// Records of another program that lie beside the inboxes of the shards. None in an index of ours, where they mean
    /// nothing.
    pub(super) async fn flat_seeds(&self) -> Result<Flat> {
        let mut flat = Flat::new();
        if self.schema().manner == Manner::Ours {
            return Ok(flat);
        }
        for folder in layout::flat_inboxes() {
            let mut listing = self.objects.list(List::folder(folder));
            loop {
                let part = listing.next(PAGE).await?;
                for file in part.files.into_iter().filter_map(InboxFile::new_flat) {
                    flat.entry(file.shard).or_default().push(file);
                }
                if part.end {
                    break;
                }
            }
        }
        Ok(flat)
    }

    /// Reads all that the inbox has for a shard. `flat` was listed before.
    pub(super) async fn take_all(&self, shard: Shard, flat: &[InboxFile]) -> Result<Taken> {
        let schema = self.schema();
        if schema.manner == Manner::Ours {
            let files = self.list_inbox(layout::inbox_of(Some(shard))).await?;
            let schema = if files.is_empty() { schema } else { self.reload().await? };
            return self.take(&schema, &files).await;
        }
        // First: what a compiler moves from here is among the files of the shard by then.
        let mut taken = self.take(&schema, flat).await?;
        for _ in 0..ROUNDS {
            let mut files = self.list_inbox(layout::inbox_of(Some(shard))).await?;
            if !self.objects.properties().remote {
                // A file that is moved while a folder is listed may be listed under neither name.
                let again = self.list_inbox(layout::inbox_of(Some(shard))).await?;
                let known: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
                files.extend(again.into_iter().filter(|file| !known.contains(&file.path)));
            }
            let more = self.take(&schema, &files).await?;
            taken.rows.add_all(&schema, more.rows);
            if !more.gone {
                break;
            }
        }
        Ok(taken)
    }

    /// The rows of a key in records of another program.
    pub(super) async fn seed_rows(&self, key: &str, schema: &Schema) -> Result<Vec<Vec<u8>>> {
        let mut rows = Vec::new();
        for path in layout::seeds_of_key(key) {
            let parse = || layout::parse_inbox(&path).or_else(|| layout::parse_flat(&path));
            let Some((shard, name)) = parse() else { continue };
            let Some(got) = self.objects.get(&path, None).await? else { continue };
            let file = InboxFile {
                path: path.clone(),
                shard,
                name,
                size: got.head.size,
                version: got.head.version,
            };
            let Ok(found) = rows_of(schema, &file, &got.bytes, true) else { continue };
            let of_key = found.into_iter().filter(|row| usv::key_of(row) == key.as_bytes());
            rows.extend(of_key.map(<[u8]>::to_vec));
        }
        Ok(rows)
    }

    /// Moves records of another program to names of ours where that can be done, and leaves out those that were merged
    /// as they are. What cannot be read stays and is reported.
    pub(super) async fn claim_seeds(
        &self,
        shard: Shard,
        schema: &Schema,
        files: Vec<InboxFile>,
        unreadable: &mut Vec<String>,
    ) -> Result<Vec<InboxFile>> {
        if schema.manner == Manner::Ours || !files.iter().any(InboxFile::is_seed) {
            return Ok(files);
        }
        let seen = self.seen(shard).await?;
        let mut ready = Vec::with_capacity(files.len());
        let mut movable = true;
        for mut file in files {
            if !file.is_seed() {
                ready.push(file);
                continue;
            }
            if seen.get(&file.path).is_some_and(|tag| tag == file.version.tag()) {
                continue;
            }
            match self.claim(&file, schema, movable, unreadable).await? {
                Some(Claimed::Yes(path)) => {
                    if let Some((shard, name)) = layout::parse_inbox(&path) {
                        (file.path, file.shard, file.name) = (path, shard, name);
                        ready.push(file);
                    }
                }
                Some(Claimed::No) => {
                    movable = false;
                    ready.push(file);
                }
                Some(Claimed::Gone) | None => {}
            }
        }
        Ok(ready)
    }

    /// Moves one record to a name of ours; none if it cannot be read.
    async fn claim(
        &self,
        file: &InboxFile,
        schema: &Schema,
        movable: bool,
        unreadable: &mut Vec<String>,
    ) -> Result<Option<Claimed>> {
        if !movable {
            return Ok(Some(Claimed::No));
        }
        // Before it is moved, so that what cannot be merged keeps its name.
        let taken = self.take(schema, std::slice::from_ref(file)).await?;
        if taken.gone {
            return Ok(Some(Claimed::Gone));
        }
        if !taken.unreadable.is_empty() {
            unreadable.extend(taken.unreadable);
            return Ok(None);
        }
        let Some(key) = taken.rows.only_key() else {
            unreadable.push(format!("{}: records of several keys in one file", file.path));
            return Ok(None);
        };
        if let Err(error) = check_key(&key) {
            unreadable.push(format!("{}: {error}", file.path));
            return Ok(None);
        }
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let ulid = self.stamps.next(now, None, &self.env)?.ulid;
        let to = layout::inbox_file(&key, &ulid.to_string());
        match self.objects.rename(&file.path, &to).await {
            Ok(true) => Ok(Some(Claimed::Yes(to))),
            Ok(false) => Ok(Some(Claimed::Gone)),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Some(Claimed::No)),
            Err(error) => Err(error),
        }
    }

    /// Which records of another program were merged into a shard, and stayed: versions by name.
    async fn seen(&self, shard: Shard) -> Result<BTreeMap<String, String>> {
        let there = self.objects.read(&layout::shard_seen(shard)).await?;
        let Some(there) = there else { return Ok(BTreeMap::new()) };
        let mut rows = usv::rows(&there.bytes);
        if rows.next() != Some(FORMAT.as_bytes()) {
            return Ok(BTreeMap::new());
        }
        let text = |row, number| usv::unescape(usv::field(row, number)).map(|it| it.into_owned());
        Ok(rows.filter_map(|row| Some((text(row, 0)?, text(row, 1)?))).collect())
    }

    /// Remembers records that were merged and stayed. What fails is left to the next time.
    /// `there` are those that are still there.
    pub(super) async fn note_seen(
        &self,
        shard: Shard,
        merged: Vec<(String, Version)>,
        there: &BTreeSet<String>,
    ) {
        if merged.is_empty() {
            return;
        }
        if let Err(error) = self.write_seen(shard, merged, there).await {
            tracing::debug!(%error, "what was merged of another program's records was not noted");
        }
    }

    async fn write_seen(
        &self,
        shard: Shard,
        merged: Vec<(String, Version)>,
        there: &BTreeSet<String>,
    ) -> Result<()> {
        let mut seen = self.seen(shard).await?;
        seen.retain(|path, _| there.contains(path));
        seen.extend(merged.into_iter().map(|(path, version)| (path, version.tag().to_owned())));
        let mut bytes = FORMAT.as_bytes().to_vec();
        bytes.push(usv::END);
        for (path, tag) in seen {
            usv::escape(&mut bytes, &path);
            bytes.push(usv::FIELD);
            usv::escape(&mut bytes, &tag);
            bytes.push(usv::END);
        }
        self.objects.put(&layout::shard_seen(shard), &bytes).await
    }

    /// Files of our own inbox that may hold a key: its own and the bundles.
    pub(super) fn is_of_key(file: &InboxFile, key: &str) -> bool {
        matches!(&file.name, InboxName::Record { key: named, .. } if named == key)
    }
}
