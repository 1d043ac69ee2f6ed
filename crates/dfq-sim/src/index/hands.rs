//! How a process does the steps of a plan, and notes what it was told.
//!
//! Invariant: it uses the index as any program does, by its public verbs, one at a time.

use std::sync::Arc;
use std::time::Duration;

use dfq::index::{CompactOptions, CompactReport, Index, Record, ScanOptions};
use dfq::{Env, Result};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::plan::{KEYS, Step};
use super::tape::{Read, Write};
use super::yard::Yard;
use crate::gate::Door;
use crate::node::calendar;
use crate::world::Pid;

/// A process's hands on an index.
pub(super) struct Hands {
    yard: Arc<Yard>,
    door: Arc<Door>,
    host: usize,
    env: Env,
    index: Option<(Index, u64)>,
}

fn key(number: u8) -> &'static str {
    KEYS[usize::from(number) % KEYS.len()]
}

impl Hands {
    pub(super) fn new(yard: &Arc<Yard>, door: &Arc<Door>, host: usize, env: &Env) -> Self {
        Self { yard: Arc::clone(yard), door: Arc::clone(door), host, env: env.clone(), index: None }
    }

    /// The index, opened if it is not.
    async fn index(&mut self) -> Result<(Index, u64)> {
        if let Some(index) = &self.index {
            return Ok(index.clone());
        }
        let opened =
            (self.yard.open(self.host, &self.door, &self.env).await?, self.yard.next_handle());
        self.index = Some(opened.clone());
        Ok(opened)
    }

    fn pid(&self) -> Pid {
        self.door.pid
    }

    /// Does a step. An error only if the index cannot be opened.
    pub(super) async fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Wait(time) => self.env.clock().sleep(*time).await,
            Step::Put { keys, own, column, size, bundle } => {
                self.put(keys, *own, *column, *size, *bundle).await?;
            }
            Step::Delete(keys) => self.delete(keys).await?,
            Step::Get(keys) => {
                for number in keys {
                    let _ = self.get(key(*number)).await?;
                }
            }
            Step::Scan(rest) => _ = self.scan(*rest).await?,
            Step::Compact { lock, all } => _ = self.compact(*lock, *all).await?,
            Step::Churn { key, times } => {
                for _ in 0..*times {
                    self.put(&[*key], None, None, 0, false).await?;
                    let _ = self.compact(false, false).await?;
                }
            }
            Step::Reopen => self.index = None,
            // Before there is an index it would be one of another program's.
            Step::Litter if self.yard.tape.inner().sent.is_empty() => {}
            Step::Litter => {
                let name = format!("inbox/36/litter-{}.usv", self.pid());
                self.yard.tape.inner().litter.push(name.clone());
                let objects = self.yard.objects(self.host, &self.door, &self.env);
                let _ = objects.put(&name, b"not\x1fours\n").await;
            }
            Step::Cut => {}
        }
        Ok(())
    }

    /// Notes writes that are asked for; answers where they are noted.
    fn asked(&self, handle: u64, writes: Vec<Write>) -> std::ops::Range<usize> {
        let mut tape = self.yard.tape.inner();
        let from = tape.writes.len();
        tape.writes.extend(writes.into_iter().map(|write| Write { handle, ..write }));
        from..tape.writes.len()
    }

    /// Notes their answers.
    fn told(&self, at: std::ops::Range<usize>, answers: &[Result<()>]) {
        let now = self.yard.world.now();
        for (number, answer) in at.zip(answers) {
            self.yard.tape.inner().writes[number].told = Some((now, answer.is_ok()));
            let write = self.yard.tape.inner().writes[number].clone();
            let what = if write.deleted { "delete" } else { "put" };
            self.yard.note(format!(
                "{} {what} {} {:?} own {:?}, asked at {:?}: {answer:?}",
                self.pid(),
                write.key,
                write.fields.get("n"),
                write.own,
                write.asked
            ));
            if let Err(error) = answer {
                self.yard.tape.failed(error);
            }
        }
    }

    fn write(&self, key: &'static str) -> Write {
        Write {
            pid: self.pid(),
            handle: 0,
            key,
            own: None,
            deleted: false,
            fields: serde_json::Map::new(),
            asked: self.yard.world.now(),
            told: None,
        }
    }

    async fn put(
        &mut self,
        keys: &[u8],
        own: Option<i64>,
        column: Option<u8>,
        size: u32,
        bundle: bool,
    ) -> Result<()> {
        let (index, handle) = self.index().await?;
        let own: Option<Timestamp> =
            own.map(|own| calendar(Duration::ZERO) + SignedDuration::from_millis(own));
        let (mut records, mut writes) = (Vec::new(), Vec::new());
        for number in keys {
            let n = self.yard.next();
            let mut write = Write { own, ..self.write(key(*number)) };
            write.fields.insert("n".to_owned(), Value::from(n));
            if let Some(column) = column {
                // Tells whose column it is, and whose record.
                let value = n * 10 + i64::from(column);
                write.fields.insert(format!("c{column}"), Value::from(value));
            }
            if size > 0 {
                let letter = char::from(b'a' + u8::try_from(n % 26).unwrap_or(0));
                let text = String::from(letter).repeat(size as usize);
                write.fields.insert("text".to_owned(), Value::from(text));
            }
            let mut record = Record::new(write.key)?;
            for (name, value) in &write.fields {
                record = record.with(name, value.clone());
            }
            records.push(match own {
                Some(own) => record.updated_at(own),
                None => record,
            });
            writes.push(write);
        }
        let count = writes.len();
        let at = self.asked(handle, writes);
        let answers = match bundle {
            true => vec![index.put_bundle(records).await; count],
            false => index.put(records).await,
        };
        self.told(at, &answers);
        Ok(())
    }

    async fn delete(&mut self, keys: &[u8]) -> Result<()> {
        let (index, handle) = self.index().await?;
        let deletions =
            keys.iter().map(|number| Write { deleted: true, ..self.write(key(*number)) });
        let at = self.asked(handle, deletions.collect());
        let keys = keys.iter().map(|number| key(*number).to_owned()).collect();
        let answers = index.delete(keys).await;
        self.told(at, &answers);
        Ok(())
    }

    /// Looks a key up; whether that was answered.
    pub(super) async fn get(&mut self, key: &'static str) -> Result<Result<()>> {
        let (index, handle) = self.index().await?;
        let asked = self.yard.world.now();
        let answer = index.get(key).await;
        let told = self.yard.world.now();
        let shown = answer.as_ref().map(|entry| {
            entry.as_ref().map(|it| (it.updated_at, it.ulid.clone(), it.fields.get("n").cloned()))
        });
        self.yard.note(format!("{} get {key}, asked at {asked:?}: {shown:?}", self.pid()));
        Ok(match answer {
            Ok(entry) => {
                let found = entry.into_iter().collect();
                let read = Read { handle, key: Some(key), asked, told, found };
                self.yard.tape.inner().reads.push(read);
                Ok(())
            }
            Err(error) => {
                self.yard.tape.failed(&error);
                Err(error)
            }
        })
    }

    /// Reads everything; whether that was answered.
    pub(super) async fn scan(&mut self, rest: Duration) -> Result<Result<()>> {
        let (index, handle) = self.index().await?;
        let asked = self.yard.world.now();
        let (mut scan, mut found) = (index.scan(ScanOptions::default()), Vec::new());
        loop {
            match scan.next_batch().await {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => found.extend(batch),
                Err(error) => {
                    self.yard.tape.failed(&error);
                    self.yard.note(format!("{} scan: {error}", self.pid()));
                    return Ok(Err(error));
                }
            }
            if !rest.is_zero() {
                self.env.clock().sleep(rest).await;
            }
        }
        let told = self.yard.world.now();
        let shown: Vec<_> = found.iter().map(|it| (&it.key, it.fields.get("n"))).collect();
        self.yard.note(format!("{} scan, asked at {asked:?}: {shown:?}", self.pid()));
        self.yard.tape.inner().reads.push(Read { handle, key: None, asked, told, found });
        Ok(Ok(()))
    }

    /// Merges what is in the inbox.
    pub(super) async fn compact(&mut self, lock: bool, all: bool) -> Result<Result<CompactReport>> {
        let (index, _) = self.index().await?;
        self.yard.tape.inner().compactions += 1;
        let options = CompactOptions { lock, all, workers: 2, ..CompactOptions::default() };
        let answer = index.compact(options).await;
        self.yard.note(format!("{} compact: {answer:?}", self.pid()));
        if let Err(error) = &answer {
            self.yard.tape.failed(error);
        }
        Ok(answer)
    }
}
