//! What readers must have been told, and what must be there in the end.
//!
//! Invariant: whatever is held against the index here is certain. It rests on what users asked and were told, at the true
//! time, and on the rows that left their processes. Where two things overlapped, neither is taken to have come first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dfq::index::Entry;

use super::plan::{DAY, KEYS};
use super::rows::{self, Stamp};
use super::tape::{Inner, Read, Write};
use super::watch::{KEPT, MERGED_WITHIN, SLACK, Watch, millis};
use super::yard::Yard;
use crate::check::Violation;

/// So far may a writer's notion of the store's time lag behind: a look that took long is carried on for a minute, and
/// times in a bucket are whole seconds.
const LAG: Duration = Duration::from_secs(130);

/// A lookup that takes weeks may miss deletions that were forgotten meanwhile.
const LONGEST_READ: Duration = DAY.saturating_mul(40);

/// A row that was sent to the inbox.
#[derive(Clone, Debug)]
struct Put<'a> {
    write: &'a Write,
    stamp: Stamp,
    /// When it was there; `None` if it never was.
    created: Option<Duration>,
    /// It was old already when it came. It may be seen until it is set aside.
    late: bool,
    aside: Option<Duration>,
}

impl Put<'_> {
    /// Whether a deletion keeps a row that counts before it from coming back: it is kept for so long.
    fn binds(&self, other: &Self) -> bool {
        let after = other.stamp.millis().saturating_sub(self.stamp.millis());
        !self.write.deleted || after < millis(KEPT.saturating_sub(DAY))
    }
}

type ByKey<'a> = BTreeMap<&'static str, Vec<Put<'a>>>;

/// Who put a row: at any time a process does one thing, and no key twice.
fn writer<'a>(
    tape: &'a Inner,
    pid: crate::world::Pid,
    at: Duration,
    key: &str,
) -> Option<&'a Write> {
    // The last one: what it did before may have been answered at this very moment.
    tape.writes.iter().rev().find(|write| {
        write.pid == pid
            && write.key == key
            && write.asked <= at
            && write.told.is_none_or(|(told, _)| told >= at)
    })
}

fn puts<'a>(tape: &'a Inner, watch: &Watch) -> ByKey<'a> {
    let mut puts = ByKey::new();
    for sent in &tape.sent {
        let file = watch.files.get(&(sent.name.clone(), Arc::from(sent.bytes.as_slice())));
        for row in rows::parse(&sent.bytes).unwrap_or_default() {
            let Some(write) = writer(tape, sent.pid, sent.at, &row.key) else { continue };
            let age = |wall: i64| wall.saturating_sub(row.stamp.millis());
            let late = file.is_some_and(|it| age(it.wall) >= millis(MERGED_WITHIN - DAY));
            puts.entry(write.key).or_default().push(Put {
                write,
                stamp: row.stamp,
                created: file.map(|file| file.created),
                late,
                aside: file.and_then(|file| file.aside),
            });
        }
    }
    puts
}

/// All that is wrong with a run.
pub(super) fn check(yard: &Yard) -> Vec<Violation> {
    let mut watch = Watch::through(yard);
    let mut wrong = std::mem::take(&mut watch.wrong);
    let tape = yard.tape.inner();
    let puts = puts(&tape, &watch);
    let mut say = |rule, text| wrong.push(Violation { rule, text });
    for text in &tape.damaged {
        say("nothing is taken for damaged", text.clone());
    }
    for write in tape.writes.iter().filter(|write| matches!(write.told, Some((_, true)))) {
        let told = write.told.map_or(Duration::MAX, |(told, _)| told);
        let there = |put: &Put<'_>| {
            std::ptr::eq(put.write, write) && put.created.is_some_and(|created| created <= told)
        };
        if !puts.get(write.key).is_some_and(|puts| puts.iter().any(there)) {
            say("what was put is in the inbox", format!("{write:?}"));
        }
    }
    for puts in puts.values() {
        check_stamps(yard, &watch, &tape, puts, &mut say);
    }
    for read in &tape.reads {
        check_read(&puts, &tape, &watch, read, &mut say);
    }
    wrong
}

/// What is put later counts later (I2), as far as that is certain.
fn check_stamps(
    yard: &Yard,
    watch: &Watch,
    tape: &Inner,
    puts: &[Put<'_>],
    say: &mut impl FnMut(&'static str, String),
) {
    let clock_is_steady = watch.set_back.is_empty() && !jumps(yard);
    for put in puts {
        if let Some(own) = put.write.own {
            let text = own.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
            if put.stamp.updated_at != text {
                say("a record counts by its own time", format!("{put:?}"));
            }
            let latest = yard.store_clock(put.write.told.map_or(Duration::ZERO, |it| it.0));
            let latest = latest.saturating_add(DAY + LAG).unwrap_or(latest);
            if clock_is_steady && own > latest && matches!(put.write.told, Some((_, true))) {
                say("times far in the future are refused", format!("{put:?}"));
            }
        }
    }
    for one in puts.iter().filter(|put| put.write.own.is_none()) {
        let Some((told, _)) = one.write.told else { continue };
        // One that followed what it had read may be ahead of the clock.
        let clock = yard.store_clock(told + Duration::from_secs(2)).to_string();
        let is_ahead = one.stamp.updated_at.as_str() > &clock[..19];
        for other in puts.iter().filter(|put| put.write.own.is_none() && put.write.asked >= told) {
            let same = one.write.handle == other.write.handle;
            let was_set_back = watch.set_back.iter().any(|at| *at <= other.write.asked + LAG);
            let later = other.write.asked.saturating_sub(told) > LAG;
            let certain = same || (later && !is_ahead && !was_set_back && clock_is_steady);
            if certain && other.stamp <= one.stamp {
                say("what is put later counts later", format!("{other:?}\n  after {one:?}"));
            }
        }
    }
    // What was read counts before what is put afterwards.
    for read in tape.reads.iter().filter(|read| read.key.is_some()) {
        let Some(entry) = read.found.first() else { continue };
        let Some(seen) = entry.updated_at else { continue };
        let seen = seen.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let after = puts.iter().filter(|put| {
            put.write.own.is_none()
                && put.write.handle == read.handle
                && put.write.asked >= read.told
        });
        for put in after.filter(|put| put.stamp.updated_at <= seen) {
            let text = format!("{put:?}\n  after {:?} of '{}' was read", seen, entry.key);
            say("what is put after something was read counts after it", text);
        }
    }
}

/// The store's clock is set in this plan.
fn jumps(yard: &Yard) -> bool {
    let sets = |fault: &crate::plan::Fault| matches!(fault, crate::plan::Fault::Jump(0, ..));
    yard.plan.faults.iter().any(sets)
}

fn check_read(
    puts: &ByKey<'_>,
    tape: &Inner,
    watch: &Watch,
    read: &Read,
    say: &mut impl FnMut(&'static str, String),
) {
    if read.told.saturating_sub(read.asked) > LONGEST_READ {
        return;
    }
    let mut found: BTreeMap<&str, &Entry> = BTreeMap::new();
    for entry in &read.found {
        let asked_for = read.key.is_none_or(|key| key == entry.key);
        if !asked_for || found.insert(&entry.key, entry).is_some() {
            say("a scan shows each key once", format!("'{}' at {:?}", entry.key, read.asked));
        }
        if !KEYS.contains(&entry.key.as_str()) {
            say("what is found was put", format!("{entry:?}"));
        }
    }
    for key in KEYS.into_iter().filter(|key| read.key.is_none_or(|asked| asked == *key)) {
        let of_key = puts.get(key).map(Vec::as_slice).unwrap_or_default();
        let seen_before = seen_before(tape, read, key);
        // What must count, and what may.
        let must: Vec<&Put<'_>> = of_key
            .iter()
            .filter(|put| {
                let done = put.write.told.is_some_and(|(told, ok)| ok && told <= read.asked);
                let was_seen = seen_before.contains(&put.stamp.ulid.as_str());
                // An old file may be set aside at any time.
                (done || was_seen) && !put.late && put.aside.is_none_or(|aside| aside > read.told)
            })
            .collect();
        let may: Vec<&Put<'_>> = of_key
            .iter()
            .filter(|put| put.created.is_some_and(|created| created <= read.told))
            .collect();
        match found.get(key) {
            Some(entry) => check_found(entry, &must, &may, watch, read, say),
            None => {
                let latest =
                    must.iter().filter(|put| !put.write.deleted).max_by_key(|put| &put.stamp);
                let Some(latest) = latest else { continue };
                let is_deleted = |put: &&Put<'_>| put.write.deleted && put.stamp > latest.stamp;
                if !may.iter().any(is_deleted) {
                    let text = format!("'{key}' at {:?}..{:?}: {latest:?}", read.asked, read.told);
                    say("a put that returned is seen", text);
                }
            }
        }
    }
}

/// What this handle has seen of a key before it asked this.
fn seen_before<'a>(tape: &'a Inner, read: &Read, key: &str) -> Vec<&'a str> {
    let earlier = tape.reads.iter().filter(|it| it.handle == read.handle && it.told <= read.asked);
    let found = earlier.flat_map(|it| &it.found).filter(|entry| entry.key == key);
    found.filter_map(|entry| entry.ulid.as_deref()).collect()
}

fn check_found(
    entry: &Entry,
    must: &[&Put<'_>],
    may: &[&Put<'_>],
    watch: &Watch,
    read: &Read,
    say: &mut impl FnMut(&'static str, String),
) {
    let at = format!("'{}' at {:?}..{:?}", entry.key, read.asked, read.told);
    let ulid = entry.ulid.as_deref().unwrap_or_default();
    let Some(put) = may.iter().find(|put| put.stamp.ulid == ulid) else {
        return say("what is found was put", format!("{at}: {entry:?}"));
    };
    if put.write.deleted || entry.fields != put.write.fields {
        let text = format!("{at}: {:?} instead of {:?}", short(entry), put.write);
        say("what is found is what was put", text);
    }
    // Until it is set aside, an old file can be seen whose deletion was forgotten.
    if put.late && read.asked < watch.calm + SLACK {
        return;
    }
    if let Some(later) = must.iter().find(|it| it.stamp > put.stamp && it.binds(put)) {
        let text = format!("{at}: {put:?}\n  and not {later:?}");
        say("what counts is the latest", text);
    }
}

/// Without long texts.
fn short(entry: &Entry) -> Vec<(&str, String)> {
    let text = |value: &serde_json::Value| value.to_string().chars().take(30).collect();
    entry.fields.iter().map(|(name, value)| (name.as_str(), text(value))).collect()
}
