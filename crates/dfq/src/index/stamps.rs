//! The stamps of records: the order in which puts count.
//!
//! Invariant: a stamp is later than every stamp that this handle gave or read before, so what is written after something
//! was read counts before it. Its time is the store's, which all writers share. Stamps far in the future are refused,
//! because everything later would have to follow them.

use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use super::row::Stamp;
use super::ulid::{Ulid, read_time, time_text};
use crate::clock::{Env, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{self, Planted};
use crate::store::Objects;

/// How far ahead of the store's clock a stamp may be.
const MOST_AHEAD: Duration = Duration::from_secs(24 * 3600);

/// How long a look at the store's clock is carried on by our own, and how long it may take.
const SAMPLE_LIFE: Duration = Duration::from_secs(60);

/// How exact the clocks of buckets are.
const SECOND: Duration = Duration::from_secs(1);

/// How often the store's clock is looked at before that is given up.
const LOOKS: usize = 5;

/// What is known of the store's clock, and which stamps were given.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The store's time, and our monotonic time when it was told.
    sample: Option<(Timestamp, Duration)>,
    last: Ulid,
    /// The highest time, in milliseconds and rounded down, by which a row that was read counts.
    read: u64,
}

fn millis(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// The store's time, more exactly if that can be told. Buckets show whole seconds; so two processes that put one after the
/// other would have the same time, and chance would decide. Our own clock tells more, where it agrees as far as can be
/// seen.
fn sharpened(store: Timestamp, own: Timestamp, asking: Duration) -> Timestamp {
    let may_be = store..store.saturating_add(SECOND + asking).unwrap_or(store);
    let is_rounded = store.subsec_nanosecond() == 0 && asking < SECOND;
    if is_rounded && may_be.contains(&own) { own } else { store }
}

impl Stamps {
    /// What the store's clock shows, within a second or two.
    pub(super) async fn now(&self, objects: &dyn Objects, env: &Env) -> Result<Timestamp> {
        if planted::is(Planted::StampByOwnClock) {
            return Ok(env.clock().wall());
        }
        let known = lock(&self.state).sample;
        if let Some((store, taken)) = known {
            let age = env.monotonic().saturating_sub(taken);
            if age < SAMPLE_LIFE {
                return Ok(store + age);
            }
        }
        for _ in 0..LOOKS {
            let asked = env.monotonic();
            let store = objects.now().await?;
            // Counted from after the answer, so that the estimate leads by a second at the most.
            let told = env.monotonic();
            // This process may have slept meanwhile: what it was told is not the time any more.
            let is_fresh = told.saturating_sub(asked) <= SAMPLE_LIFE;
            if is_fresh || planted::is(Planted::OldSampleTaken) {
                let store = sharpened(store, env.clock().wall(), told.saturating_sub(asked));
                lock(&self.state).sample = Some((store, told));
                return Ok(store);
            }
        }
        let message = "the store takes minutes to tell the time".to_owned();
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The next stamp. `own` is the time that the record brings along.
    pub(super) fn next(&self, now: Timestamp, own: Option<Timestamp>, env: &Env) -> Result<Stamp> {
        let latest = now.saturating_add(MOST_AHEAD).unwrap_or(now);
        let own_latest =
            if planted::is(Planted::FutureStampTaken) { Timestamp::MAX } else { latest };
        if let Some(own) = own.filter(|own| *own > own_latest) {
            return Err(Error::invalid(format!(
                "its time {own} is more than a day ahead of the store's clock, which shows {now}"
            )));
        }
        let mut state = lock(&self.state);
        let mut time = millis(now).max(state.last.millis());
        if own.is_none() && time <= state.read {
            time = state.read + 1;
        }
        if time > millis(latest) {
            let message = format!(
                "the store's clock shows {now}, which is more than a day before an earlier look; \
                 set it right"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let ulid = match time > state.last.millis() {
            true => Ulid::new(time, env),
            false => state.last.next(),
        };
        if !planted::is(Planted::LastStampForgotten) {
            state.last = ulid;
        }
        drop(state);
        let counts = match own {
            Some(own) => own,
            None => {
                Timestamp::from_millisecond(i64::try_from(time).unwrap_or(i64::MAX)).unwrap_or(now)
            }
        };
        let updated_at = time_text(counts)
            .ok_or_else(|| Error::invalid(format!("its time {counts} is before the year 0")))?;
        Ok(Stamp { updated_at, ulid })
    }

    /// Notes a row that was read. A row whose time is too far ahead is not followed there.
    pub(super) fn note(&self, updated_at: &[u8], now: Timestamp) {
        let text = std::str::from_utf8(updated_at).unwrap_or_default();
        let Some(time) = read_time(text) else { return };
        if planted::is(Planted::ReadNotFollowed) {
            return;
        }
        if time <= now.saturating_add(MOST_AHEAD).unwrap_or(now) {
            let mut state = lock(&self.state);
            state.read = state.read.max(millis(time));
        }
    }

    /// Notes the row that a reader got.
    pub(super) fn note_row(&self, updated_at: &[u8], env: &Env) {
        let sample = lock(&self.state).sample;
        let now = match sample {
            Some((store, taken)) => store + env.monotonic().saturating_sub(taken),
            // Only to see that it is not absurd.
            None => env.clock().wall(),
        };
        self.note(updated_at, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_told_more_exactly_by_a_clock_that_agrees() {
        let at = |millis: i64| {
            Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap_or_default()
        };
        let quickly = Duration::from_millis(40);
        assert_eq!(sharpened(at(0), at(700), quickly), at(700));
        assert_eq!(sharpened(at(0), at(1020), quickly), at(1020));
        // It does not agree, or nobody knows.
        assert_eq!(sharpened(at(0), at(1050), quickly), at(0));
        assert_eq!(sharpened(at(0), at(-1), quickly), at(0));
        assert_eq!(sharpened(at(0), at(700), SECOND), at(0));
        // The store is exact by itself.
        assert_eq!(sharpened(at(3), at(700), quickly), at(3));
    }
}
