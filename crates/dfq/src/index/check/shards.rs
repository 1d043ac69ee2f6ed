//! One shard, with its block index and its lock.

use jiff::Timestamp;

use super::rows::Rows;
use super::{CheckReport, Counted};
use crate::error::{Error, ErrorKind, Result};
use crate::index::blocks::Blocks;
use crate::index::manifest::ShardCounts;
use crate::index::schema::{Manner, Schema};
use crate::index::{Core, usv};
use crate::layout::{self, Shard};
use crate::store::ObjectsExt as _;
use crate::store::objects::{Got, Head};

/// How often a shard that changes under our eyes is looked at again.
const ROUNDS: usize = 100;

/// How much is read at a time.
const PART: u64 = 8 << 20;

/// A shard as it was found.
pub(super) struct Looked {
    /// What is known of its content; none if nothing was swapped yet.
    pub(super) head: Option<Head>,
    /// What is wrong with it, in sentences.
    pub(super) problems: Vec<String>,
    pub(super) counts: ShardCounts,
    /// Where its blocks begin.
    blocks: Blocks,
    /// What its block index says fits the rows, whichever version it belongs to.
    blocks_fit: bool,
    /// A file lies under its plain name that is not what it should be.
    pub(super) odd_plain: bool,
}

impl Core {
    pub(super) async fn check_shard(
        &self,
        shard: Shard,
        repair: bool,
        report: &mut CheckReport,
        counted: &mut Counted,
    ) -> Result<()> {
        self.check_lock(shard, repair, report).await?;
        let Some(mut looked) = self.look_at(shard).await? else { return Ok(()) };
        let name = layout::index_shard(shard);
        if !looked.problems.is_empty() {
            let mut repaired = None;
            if repair {
                let done = self.repair_shard(shard, &looked).await?;
                repaired = Some(done);
                // As it is now.
                if let Some(now) = self.look_at(shard).await? {
                    looked = Looked { problems: looked.problems, ..now };
                }
            }
            let mut problems = std::mem::take(&mut looked.problems).into_iter();
            report.tell_repaired(name.as_str(), problems.next().unwrap_or_default(), repaired);
            problems.for_each(|problem| report.tell(name.as_str(), problem));
        }
        self.check_blocks(shard, &looked, repair, report).await?;
        report.shards += 1;
        report.records += looked.counts.records;
        report.deletions += looked.counts.deletions;
        report.bytes += looked.counts.bytes;
        counted.insert(shard, looked.counts);
        Ok(())
    }

    /// Reads a shard and tells what is wrong with it; `None` if there is no such shard.
    pub(super) async fn look_at(&self, shard: Shard) -> Result<Option<Looked>> {
        for _ in 0..ROUNDS {
            let schema = self.reload().await?;
            let looked = match schema.manner {
                Manner::Ours => self.look_at_ours(shard, &schema).await?,
                Manner::Theirs(_) => self.look_at_theirs(shard, &schema).await?,
            };
            match looked {
                Look::Nothing => return Ok(None),
                Look::At(mut looked) => {
                    // Rows with new columns may have come since the columns were read.
                    let has_problems = !looked.problems.is_empty();
                    if has_problems && self.reload().await?.columns != schema.columns {
                        continue;
                    }
                    if self.plain_is_odd(shard, looked.head.as_ref()).await? {
                        looked.odd_plain = true;
                        looked.problems.push(
                            "the file under this name is not what dfq wrote last: it was changed by \
                             something else, or a compiler was stopped"
                                .to_owned(),
                        );
                    }
                    return Ok(Some(*looked));
                }
                Look::Changed => {}
            }
        }
        let name = layout::index_shard(shard);
        let message = format!("'{}' does not stay as it is", name.as_str());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn look_at_ours(&self, shard: Shard, schema: &Schema) -> Result<Look> {
        let name = layout::index_shard(shard);
        let mut rows = Rows::new(schema, shard);
        let Some(first) = self.objects.load_part(&name, 0..PART).await? else {
            return self.look_at_stranger(shard).await;
        };
        let Got { mut bytes, head } = first;
        let mut blocks = Blocks::for_size(head.size);
        let said = self.blocks_file(shard).await?.map(|(blocks, _)| blocks).unwrap_or_default();
        let mut said = said.begins().iter().peekable();
        let mut blocks_fit = true;
        let (mut at, mut read) = (0, bytes.len() as u64);
        loop {
            let end = memchr::memrchr(usv::END, &bytes).map_or(0, |at| at + 1);
            for row in usv::rows(&bytes[..end]) {
                blocks.note(at, row);
                rows.look(row, true);
                if let Some((begin, key)) = said.next_if(|(begin, _)| *begin <= at) {
                    blocks_fit &= *begin == at && usv::key_of(row) == key.as_slice();
                }
                at += row.len() as u64 + 1;
            }
            bytes.drain(..end);
            if read >= head.size {
                break;
            }
            let part = self.objects.load_part(&name, read..read + PART).await?;
            let part = part.filter(|part| part.head.version == head.version);
            let Some(part) = part.filter(|part| !part.bytes.is_empty()) else {
                return Ok(Look::Changed);
            };
            read += part.bytes.len() as u64;
            bytes.extend(part.bytes);
        }
        if !bytes.is_empty() {
            rows.look(&bytes, true);
            rows.fault("it is cut short");
        }
        let mut looked = self.looked(shard, head, rows, blocks).await?;
        looked.blocks_fit = blocks_fit && said.next().is_none();
        Ok(Look::At(looked))
    }

    async fn look_at_theirs(&self, shard: Shard, schema: &Schema) -> Result<Look> {
        let Some(whole) = self.whole_shard(shard).await? else { return Ok(Look::Nothing) };
        let pin = self.blocks_file(shard).await?.map(|(_, pin)| pin);
        // Only what dfq wrote has an order, and blocks.
        let sorted = !whole.plain && pin.is_some_and(|pin| pin.version == whole.head.version);
        let mut rows = Rows::new(schema, shard);
        let mut blocks = Blocks::for_size(whole.head.size);
        let text = whole.bytes.as_ptr() as usize;
        for row in usv::foreign_rows(&whole.bytes, schema.columns.len()) {
            blocks.note((row.as_ptr() as usize - text) as u64, row);
            rows.look(row, sorted);
        }
        let mut looked = self.looked(shard, whole.head, rows, blocks).await?;
        if whole.plain {
            looked.head = None;
        }
        Ok(Look::At(looked))
    }

    async fn looked(
        &self,
        shard: Shard,
        head: Head,
        rows: Rows<'_>,
        blocks: Blocks,
    ) -> Result<Box<Looked>> {
        let mut problems = rows.faults;
        if rows.more_faults > 0 {
            problems.push(format!("so are {} more of its rows", rows.more_faults));
        }
        if let Err(touched) = self.check_untouched(shard, &head).await {
            match touched.kind() {
                ErrorKind::Damaged => {
                    problems.insert(0, "it was changed since dfq wrote it".to_owned())
                }
                _ => return Err(touched),
            }
        }
        let counts = ShardCounts::new(rows.counts, head.size);
        let (odd_plain, blocks_fit) = (false, true);
        Ok(Box::new(Looked { head: Some(head), problems, counts, blocks, blocks_fit, odd_plain }))
    }

    /// In a directory: a file under the plain name of a shard of which there is no version.
    async fn look_at_stranger(&self, shard: Shard) -> Result<Look> {
        let name = layout::index_shard(shard);
        if self.objects.properties().remote || self.objects.head(name.as_str()).await?.is_none() {
            return Ok(Look::Nothing);
        }
        if self.objects.load_part(&name, 0..0).await?.is_some() {
            return Ok(Look::Changed);
        }
        let problems = vec!["it was not written here by dfq: it is not used".to_owned()];
        let (counts, blocks) = (ShardCounts::default(), Blocks::default());
        let (odd_plain, blocks_fit) = (true, true);
        let looked = Looked { head: None, problems, counts, blocks, blocks_fit, odd_plain };
        Ok(Look::At(Box::new(looked)))
    }

    /// In a directory: whether something else than the last version lies under the plain name.
    pub(super) async fn plain_is_odd(&self, shard: Shard, head: Option<&Head>) -> Result<bool> {
        let Some(head) = head.filter(|_| !self.objects.properties().remote) else {
            return Ok(false);
        };
        let name = layout::index_shard(shard);
        let Some(plain) = self.objects.head(name.as_str()).await? else { return Ok(true) };
        // A link has both; a copy only the size, and then the bytes.
        if (plain.size, plain.modified) == (head.size, head.modified) {
            return Ok(false);
        }
        let mut at = 0;
        while plain.size == head.size && at < head.size {
            let one = self.objects.get(name.as_str(), Some(at..at + PART)).await?;
            let other = self.objects.load_part(&name, at..at + PART).await?;
            match (one, other) {
                (Some(one), Some(other)) if one.bytes == other.bytes && !one.bytes.is_empty() => {
                    at += one.bytes.len() as u64;
                }
                _ => return Ok(true),
            }
        }
        Ok(plain.size != head.size)
    }

    /// The block index of a shard that was looked at.
    async fn check_blocks(
        &self,
        shard: Shard,
        looked: &Looked,
        repair: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let Some(head) = &looked.head else { return Ok(()) };
        let path = layout::shard_blocks(shard);
        let there = self.objects.read(&path).await?;
        let wanted = looked.blocks.are_many() || !self.objects.properties().remote;
        let problem = match there.map(|there| Blocks::parse(&there.bytes)) {
            None if !wanted => return Ok(()),
            // Nothing of theirs has one, until dfq writes it.
            _ if self.schema().manner != Manner::Ours => return Ok(()),
            None => "it is missing: a compiler was stopped before it wrote it",
            Some(None) => "it is not a block index",
            Some(Some((_, pin))) if pin.is_of(head) => match looked.blocks_fit {
                true => return Ok(()),
                false => "its blocks are not where the rows are",
            },
            Some(Some((_, pin))) if pin.version == head.version && !repair => return Ok(()),
            Some(Some(_)) => {
                "it belongs to another version of the shard: a compiler was stopped, or the shard was \
                 changed by something else than dfq"
            }
        };
        let mut repaired = None;
        // Not before the shard itself is in order.
        if repair && self.look_at(shard).await?.is_some_and(|now| now.rows_are_right()) {
            match wanted {
                true => self.write_blocks(shard, &looked.blocks, &head.version, head.size).await,
                false => {
                    self.objects
                        .remove(std::slice::from_ref(&path), std::time::Duration::MAX)
                        .await?
                }
            }
            repaired = Some("written anew".to_owned());
        }
        report.tell_repaired(path, problem, repaired);
        Ok(())
    }

    async fn check_lock(&self, shard: Shard, repair: bool, report: &mut CheckReport) -> Result<()> {
        let path = layout::shard_lock(shard);
        let Some(expired) = self.expired_lock(shard).await? else { return Ok(()) };
        let problem = match expired {
            Some((worker, at)) => lock_problem(&worker, at),
            None => "it is not a lock of dfq, and old".to_owned(),
        };
        let mut repaired = None;
        if repair {
            self.objects.remove(std::slice::from_ref(&path), std::time::Duration::MAX).await?;
            repaired = Some("removed".to_owned());
        }
        report.tell_repaired(path, problem, repaired);
        Ok(())
    }
}

fn lock_problem(worker: &str, at: Timestamp) -> String {
    let worker: String = worker.chars().take(100).collect();
    format!("the lock of '{}' expired at {at}: that compiler was stopped", worker.escape_debug())
}

/// A look at a shard.
enum Look {
    Nothing,
    Changed,
    At(Box<Looked>),
}

impl Looked {
    fn rows_are_right(&self) -> bool {
        self.problems.is_empty()
    }
}
