//! Reading all records, or those that are asked for.
//!
//! Invariant: a scan sees every put that returned before it came to the shard of its key, once and as it counts. It holds
//! the inbox of one shard and a part of that shard in memory, never a whole shard (of an index that another program made
//! it holds one shard, which need not be sorted). If a shard changes under its eyes, it
//! goes on after the last key in the new version.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;

use memchr::memchr;
use serde_json::Value;

use super::compact::damaged;
use super::inbox::InboxFile;
use super::merge::{InOrder, Ordered};
use super::record::Entry;
use super::schema::{Manner, Schema};
use super::seeds::Flat;
use super::ulid::time_text;
use super::{Core, Index, usv};
use crate::error::{Error, Result};
use crate::layout::Shard;
use crate::planted::{self, Planted};
use crate::store::Version;

/// How much of a shard is read at a time.
const PART: u64 = 1 << 20;

/// Records handed out at a time of those that are in memory already.
const MOST_AT_ONCE: usize = 1000;

/// What is to be read.
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Only records for which all of these hold.
    pub filters: Vec<Filter>,
    /// Each record with its row, as [`Entry::row`].
    pub rows: bool,
}

/// A field that must have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The name of the field, or of the key's column.
    pub field: String,
    /// The value: a text, or what JSON writes for anything else. Empty for null.
    pub value: String,
}

impl FromStr for Filter {
    type Err = Error;

    /// Reads `field=value`.
    fn from_str(text: &str) -> Result<Self> {
        let (field, value) =
            text.split_once('=').filter(|(field, _)| !field.is_empty()).ok_or_else(|| {
                Error::invalid(format!("'{text}' is not a condition; write field=value"))
            })?;
        Ok(Self { field: field.to_owned(), value: value.to_owned() })
    }
}

impl Filter {
    fn holds(&self, entry: &Entry, key_column: &str) -> bool {
        if self.field == key_column {
            return entry.key == self.value;
        }
        match entry.fields.get(&self.field) {
            None | Some(Value::Null) => self.value.is_empty(),
            Some(Value::String(text)) => *text == self.value,
            Some(value) => serde_json::to_string(value).is_ok_and(|text| text == self.value),
        }
    }
}

/// Records on their way, shard by shard, and within a shard in the order of their keys.
pub struct Scan {
    index: Index,
    options: Arc<ScanOptions>,
    shards: std::ops::RangeInclusive<u8>,
    /// What another program has put beside the inboxes, as listed at the beginning.
    flat: Option<Flat>,
    cursor: Option<Cursor>,
    ready: VecDeque<Entry>,
}

/// Where a scan is in a shard.
struct Cursor {
    shard: Shard,
    schema: Arc<Schema>,
    /// What the inbox has from here on.
    news: Ordered,
    /// All that there is, the shard too.
    in_news: bool,
    /// What is read next, and of which version; `None` if nothing was read yet.
    place: Option<(Version, u64)>,
    /// Bytes of that version that were read and not looked at. At their end may be the beginning of a row.
    rest: Vec<u8>,
    /// `rest` is to be looked at before anything more is read.
    has_rows: bool,
    /// The rows that were looked at.
    order: InOrder,
    /// Nothing comes after `rest`.
    last_part: bool,
    /// The last key that was handed out or passed over.
    last_key: Vec<u8>,
    /// Nothing more comes.
    end: bool,
}

impl Index {
    /// All records that are asked for, shard by shard and, within a shard, in the order of their keys.
    pub fn scan(&self, options: ScanOptions) -> Scan {
        Scan {
            index: self.clone(),
            options: Arc::new(options),
            shards: 0..=u8::MAX,
            flat: None,
            cursor: None,
            ready: VecDeque::new(),
        }
    }
}

impl Scan {
    /// The next record; `None` at the end. After an error the same can be asked for again.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        while self.ready.is_empty() {
            if !self.step().await? {
                return Ok(None);
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Records that are at hand, some hundred or thousand at a time; none at the end.
    pub async fn next_batch(&mut self) -> Result<Vec<Entry>> {
        while self.ready.is_empty() {
            if !self.step().await? {
                return Ok(Vec::new());
            }
        }
        Ok(std::mem::take(&mut self.ready).into())
    }

    /// Reads on; whether there was anything to be read.
    async fn step(&mut self) -> Result<bool> {
        let mut cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            None => {
                let Some(number) = self.shards.clone().next() else { return Ok(false) };
                let (shard, options) = (Shard::numbered(number), Arc::clone(&self.options));
                if self.flat.is_none() {
                    self.flat =
                        Some(self.index.run(|core| async move { core.flat_seeds().await }).await?);
                }
                let flat = self.flat.as_ref().and_then(|flat| flat.get(&shard)).cloned();
                let flat = flat.unwrap_or_default();
                let begin =
                    |core: Arc<Core>| async move { core.begin(shard, flat, &options).await };
                let cursor = self.index.run(begin).await?;
                self.shards.next();
                cursor
            }
        };
        let options = Arc::clone(&self.options);
        let (cursor, read) = self
            .index
            .run(|core| async move {
                let read = core.read_on(&mut cursor, &options).await;
                let latest = read.iter().flatten().filter_map(|entry| entry.updated_at).max();
                if let Some(latest) = latest.and_then(time_text) {
                    core.stamps.note_row(latest.as_bytes(), &core.env);
                }
                (cursor, read)
            })
            .await;
        if !cursor.end {
            self.cursor = Some(cursor);
        }
        self.ready.extend(read?);
        Ok(true)
    }
}

impl Core {
    /// Reads the inbox of a shard, before anything of the shard.
    async fn begin(
        &self,
        shard: Shard,
        flat: Vec<InboxFile>,
        options: &ScanOptions,
    ) -> Result<Cursor> {
        let mut news = self.take_all(shard, &flat).await?.rows;
        // After the inbox was listed: whatever was put by then has its columns.
        let schema = self.schema();
        let in_news = schema.manner != Manner::Ours;
        if in_news {
            // It need not be sorted.
            news.add_all(&schema, self.their_rows(shard, &schema).await?);
        }
        let news = news.starting_at(options.prefix.as_bytes());
        Ok(Cursor {
            shard,
            schema,
            news,
            in_news,
            place: None,
            rest: Vec::new(),
            has_rows: false,
            order: InOrder::default(),
            last_part: false,
            last_key: Vec::new(),
            end: false,
        })
    }

    /// Reads the next part of a shard. A cursor is as it was after an error.
    async fn read_on(&self, cursor: &mut Cursor, options: &ScanOptions) -> Result<Vec<Entry>> {
        if cursor.in_news {
            let mut out = Vec::new();
            self.rest_of_news(cursor, options, &mut out);
            return Ok(out);
        }
        if !cursor.has_rows && !self.read_part(cursor, options).await? {
            let mut out = Vec::new();
            if cursor.last_part {
                self.rest_of_news(cursor, options, &mut out);
            }
            return Ok(out);
        }
        let mut out = Vec::new();
        let bytes = std::mem::take(&mut cursor.rest);
        let mut from = bytes.as_slice();
        cursor.has_rows = false;
        while let Some(end) = memchr(usv::END, from) {
            if out.len() >= MOST_AT_ONCE {
                cursor.has_rows = true;
                break;
            }
            let row = &from[..end];
            if let Err(error) = self.check_row(cursor, row).await {
                cursor.has_rows = true;
                if out.is_empty() {
                    cursor.rest = from.to_vec();
                    return Err(error);
                }
                // Next time, with this row again: those before it are handed out.
                break;
            }
            from = &from[end + 1..];
            cursor.old_row(row, options, &mut out);
        }
        cursor.rest = from.to_vec();
        if cursor.last_part && !cursor.has_rows {
            if let Err(error) = cursor.order.end(&cursor.rest) {
                cursor.has_rows = true;
                return if out.is_empty() { Err(damaged(cursor.shard, &error)) } else { Ok(out) };
            }
            self.rest_of_news(cursor, options, &mut out);
        }
        Ok(out)
    }

    /// Sees to it that a row can be handed out.
    async fn check_row(&self, cursor: &mut Cursor, row: &[u8]) -> Result<()> {
        if usv::width(row) > cursor.schema.columns.len() {
            cursor.schema = self.reload().await?;
        }
        if planted::is(Planted::ScanPartsMixed) {
            return Ok(());
        }
        cursor.order.look(usv::first_four(row).0).map_err(|error| damaged(cursor.shard, &error))
    }

    /// Reads more bytes of a shard; whether there are any. If it has changed, all is read again.
    async fn read_part(&self, cursor: &mut Cursor, options: &ScanOptions) -> Result<bool> {
        let at = cursor.place.as_ref().map_or(0, |(_, at)| *at);
        let got = self.shard_part(cursor.shard, at..at + PART).await?.map(|(got, _)| got);
        if planted::is(Planted::ScanReadsShardFirst) && cursor.place.is_none() {
            cursor.news = self.begin(cursor.shard, Vec::new(), options).await?.news;
        }
        let Some(got) = got else {
            cursor.last_part = true;
            return Ok(false);
        };
        match &cursor.place {
            Some((version, _)) if *version == got.head.version => {}
            Some(_) if planted::is(Planted::ScanPartsMixed) => {}
            // Another version: from its beginning, and after the last key.
            Some(_) => {
                (cursor.place, cursor.rest) = (None, Vec::new());
                cursor.order = InOrder::default();
                return Ok(false);
            }
            None => self.check_untouched(cursor.shard, &got.head).await?,
        }
        let next = at + got.bytes.len() as u64;
        cursor.rest.extend(got.bytes);
        cursor.place = Some((got.head.version, next));
        cursor.last_part = next >= got.head.size;
        Ok(true)
    }

    fn rest_of_news(&self, cursor: &mut Cursor, options: &ScanOptions, out: &mut Vec<Entry>) {
        while let Some((_, row)) = cursor.news.next() {
            cursor.hand_out(&row, options, out);
            if out.len() >= MOST_AT_ONCE {
                cursor.in_news = true;
                return;
            }
        }
        cursor.end = true;
    }
}

impl Cursor {
    fn old_row(&mut self, row: &[u8], options: &ScanOptions, out: &mut Vec<Entry>) {
        let key = usv::key_of(row);
        if key <= self.last_key.as_slice() && !planted::is(Planted::ScanRepeats) {
            return;
        }
        while self.news.peek().is_some_and(|(new, _)| new.as_slice() < key) {
            if let Some((_, new)) = self.news.next() {
                self.hand_out(&new, options, out);
            }
        }
        let new = self.news.next_if(|(new, _)| new.as_slice() == key);
        match new {
            Some((_, new)) if self.schema.compare(&new, row).is_gt() => {
                self.hand_out(&new, options, out);
            }
            _ => self.hand_out(row, options, out),
        }
    }

    fn hand_out(&mut self, row: &[u8], options: &ScanOptions, out: &mut Vec<Entry>) {
        let key = usv::key_of(row);
        self.last_key.clear();
        self.last_key.extend(key);
        if !key.starts_with(options.prefix.as_bytes()) {
            return;
        }
        let Some(mut entry) = self.schema.entry(row) else { return };
        let key_column = self.schema.key_column();
        if options.filters.iter().all(|filter| filter.holds(&entry, key_column)) {
            entry.row = options.rows.then(|| self.schema.filled(row));
            out.push(entry);
        }
    }
}
