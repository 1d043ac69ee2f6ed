//! The lock of a shard that is being compacted.
//!
//! Invariant: nothing rests on it. It saves the work of a compiler that would lose the swap; two that hold it at once do
//! no harm. Whether it has expired is judged by the store's clock.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Core;
use crate::error::Result;
use crate::layout::{self, Shard};
use crate::planted::{self, Planted};
use crate::store::{Created, ObjectsExt as _, Stored};

/// How long a lock is held without being renewed.
pub(crate) const HELD_FOR: Duration = Duration::from_secs(300);

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    worker_id: String,
    created_at: Timestamp,
    expires_at: Timestamp,
}

/// A lock that we hold, as far as we know.
pub(crate) struct Lock {
    path: String,
    /// On our monotonic clock.
    written: Duration,
    created_at: Timestamp,
}

impl Core {
    /// Takes the lock of a shard; `None` if somebody else has it.
    pub(super) async fn lock(&self, shard: Shard) -> Result<Option<Lock>> {
        let path = layout::shard_lock(shard);
        // Twice: the first time it may be released under our eyes.
        for _ in 0..2 {
            let written = self.env.monotonic();
            let now = self.stamps.now(&*self.objects, &self.env).await?;
            let lock = Lock { path: path.clone(), written, created_at: now };
            let bytes = self.lock_file(&lock, now);
            if self.objects.create(&path, &bytes).await? == Created::New {
                return Ok(Some(lock));
            }
            let Some(there) = self.objects.read(&path).await? else { continue };
            // Ours, if the answer was lost.
            if there.bytes == bytes {
                return Ok(Some(lock));
            }
            if now < expires_at(&there, now).1 || planted::is(Planted::LockForEver) {
                return Ok(None);
            }
            self.objects.put(&path, &bytes).await?;
            return Ok(Some(lock));
        }
        Ok(None)
    }

    fn lock_file(&self, lock: &Lock, now: Timestamp) -> Vec<u8> {
        let file = File {
            worker_id: self.worker_id.clone(),
            created_at: lock.created_at,
            expires_at: now + HELD_FOR,
        };
        serde_json::to_vec(&file).unwrap_or_default()
    }

    /// The lock of a shard if it has expired: whose it was and until when, if it says so.
    pub(super) async fn expired_lock(
        &self,
        shard: Shard,
    ) -> Result<Option<Option<(String, Timestamp)>>> {
        let Some(there) = self.objects.read(&layout::shard_lock(shard)).await? else {
            return Ok(None);
        };
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let (worker_id, until) = expires_at(&there, now);
        Ok((now >= until).then(|| worker_id.map(|worker_id| (worker_id, until))))
    }

    /// Renews a lock, if there is one and it is time for that. Whether that works or not: the swap decides.
    pub(super) async fn keep(&self, lock: &mut Option<Lock>) {
        let Some(lock) = lock else { return };
        let written = self.env.monotonic();
        if written.saturating_sub(lock.written) < HELD_FOR / 3 {
            return;
        }
        let renewed = async {
            let now = self.stamps.now(&*self.objects, &self.env).await?;
            self.objects.put(&lock.path, &self.lock_file(lock, now)).await
        };
        match renewed.await {
            Ok(()) => lock.written = written,
            Err(error) => tracing::debug!(%error, "the lock of a shard was not renewed"),
        }
    }

    /// Gives a lock back, unless it may be somebody else's by now. What fails is left to run out.
    pub(super) async fn release(&self, lock: Lock) {
        let until = lock.written.saturating_add(HELD_FOR);
        if self.env.monotonic() >= until {
            return;
        }
        if let Err(error) = self.objects.remove(&[lock.path], until).await {
            tracing::debug!(%error, "the lock of a shard was not removed; it runs out");
        }
    }
}

/// Whose a lock is, if it says so, and when it expires.
fn expires_at(there: &Stored, now: Timestamp) -> (Option<String>, Timestamp) {
    let (worker_id, said) = match serde_json::from_slice::<File>(&there.bytes) {
        Ok(file) => (Some(file.worker_id), file.expires_at),
        Err(_) => (None, Timestamp::MAX),
    };
    // A store whose clock was wrong may have let somebody hold it for years, or have written it years ahead.
    let after = |time: Timestamp| time.saturating_add(2 * HELD_FOR).unwrap_or(time);
    match there.modified > after(now) {
        true => (worker_id, now),
        false => (worker_id, said.min(after(there.modified))),
    }
}
