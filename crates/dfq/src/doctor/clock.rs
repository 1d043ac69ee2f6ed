//! The store's clock beside this machine's, and how finely it tells times apart.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::subject::{Kind, Subject};
use super::verdict::Check;
use crate::clock::Env;
use crate::error::Result;
use crate::layout;
use crate::store::Tree;

/// What was found out about the store's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreTime {
    /// How far it is ahead of this machine's.
    offset: SignedDuration,
    /// Two writes closer together may carry the same time.
    pub(super) resolution: Duration,
}

/// Samples taken of a clock that may be fine.
const SAMPLES: usize = 64;

/// Clocks that differ by less are not worth a word.
const WORTH_A_WORD: SignedDuration = SignedDuration::from_secs(5);

pub(super) async fn examine<T: Tree>(
    subject: &Subject<T>,
    env: &Env,
    scratch: &str,
    creates: bool,
) -> Result<StoreTime> {
    let path = layout::below(scratch, "now");
    let (clock, many) = (env.clone(), creates && !matches!(subject.kind(), Kind::Bucket(_)));
    let (offset, samples) = subject
        .on(|subject| async move {
            let before = clock.clock().wall();
            let first = match many {
                true => subject.tree().now().await?,
                // The same, but in our own folder.
                false => {
                    subject.tree().replace(&path, b"").await?;
                    let stored = subject.tree().read(&path).await?;
                    stored.map_or(before, |stored| stored.modified)
                }
            };
            let after = clock.clock().wall();
            let middle = before + after.duration_since(before) / 2;
            let mut samples = vec![first];
            while many && samples.len() < SAMPLES {
                samples.push(subject.tree().now().await?);
            }
            Ok::<_, crate::Error>((first.duration_since(middle), samples))
        })
        .await?;
    let resolution = match subject.kind() {
        Kind::Bucket(bucket) => match bucket.raw() {
            Some(raw) => super::s3::listed_resolution(raw, scratch).await,
            None => Duration::from_secs(1),
        },
        _ => resolution(&samples),
    };
    Ok(StoreTime { offset, resolution })
}

/// The smallest step between times; whole seconds if none has a fraction.
fn resolution(samples: &[Timestamp]) -> Duration {
    if samples.iter().all(|time| time.subsec_nanosecond() == 0) {
        return Duration::from_secs(1);
    }
    let steps = samples.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    // A clock that did not move while we looked ticks no faster than the kernel.
    steps.filter(|step| !step.is_zero()).min().unwrap_or(Duration::from_millis(10))
}

impl StoreTime {
    pub(super) fn checks(&self) -> [Check; 2] {
        let length = self.offset.unsigned_abs();
        let side = if self.offset.is_negative() { "behind" } else { "ahead of" };
        let offset = match length {
            length if length < WORTH_A_WORD.unsigned_abs() => {
                Check::yes("clock", "agrees with this machine's")
            }
            length => Check::note(
                "clock",
                format!(
                    "{} s {side} this machine's; leases go by the store's clock alone, so this harms \
                     nothing",
                    length.as_secs()
                ),
            ),
        };
        let resolution = match self.resolution {
            second if second >= Duration::from_secs(1) => {
                Check::note("times", "whole seconds; leases should not be shorter than 5 s")
            }
            fine if fine >= Duration::from_millis(1) => {
                Check::yes("times", format!("told apart to {} ms", fine.as_millis()))
            }
            fine => Check::yes("times", format!("told apart to {} µs", fine.as_micros().max(1))),
        };
        [offset, resolution]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_step_is_the_resolution() {
        let at = |nanos: i64| Timestamp::UNIX_EPOCH + Duration::from_nanos(nanos as u64);
        assert_eq!(resolution(&[at(0), at(0), at(2_000_000_000)]), Duration::from_secs(1));
        assert_eq!(resolution(&[at(1), at(1), at(4_000_001)]), Duration::from_millis(4));
        assert_eq!(resolution(&[at(5), at(5)]), Duration::from_millis(10));
    }
}
