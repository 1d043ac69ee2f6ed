//! Leases about to be created, written once and put into many tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use super::claim::signed;
use super::core::Core;
use crate::clock::lock;
use crate::error::Result;
use crate::format;
use crate::model::Lease;
use crate::planted::{self, Planted};
use crate::store::Tree;

/// The most leases that are names of one file. Some filesystems allow no more than 1,023.
const MAX_SHARED: usize = 1000;

/// Leases about to be created, by what is asked of them. What is claimed within a moment, by one poll or
/// by many, has the same lease but for the attempt's number; on a disk these are names of one file,
/// because a name costs a fraction of what a file does.
///
/// So a `lease_id` stands for this process, an attempt's number and a moment. On one task it is used
/// once, since the name of an attempt is.
pub(super) type Drafts<T> = BTreeMap<Wanted, Arc<Draft<T>>>;

/// What a lease is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    pub(super) length: Duration,
    pub(super) attempt: u32,
    pub(super) moving: bool,
}

pub(super) struct Draft<T: Tree> {
    pub(super) file: T::PreparedLease,
    pub(super) lease: Lease,
    /// The monotonic time before it was written: the lease holds from then.
    pub(super) written: Duration,
    uses: AtomicUsize,
}

impl<T: Tree> Draft<T> {
    /// Still good for another claim: the lease must not be noticeably shorter than it says.
    fn is_fresh(&self, length: Duration, now: Duration) -> bool {
        let moment = (length / 100).min(Duration::from_secs(1));
        self.uses.load(Ordering::Relaxed) < MAX_SHARED && now.saturating_sub(self.written) <= moment
    }

    /// Whether it can be used once more, and then notes that.
    fn try_use(&self, length: Duration, now: Duration) -> bool {
        self.is_fresh(length, now) && self.uses.fetch_add(1, Ordering::Relaxed) < MAX_SHARED
    }
}

impl<T: Tree> Core<T> {
    /// Such a lease: the one made last, if that was a moment ago.
    pub(super) async fn draft_for(&self, wanted: Wanted) -> Result<Arc<Draft<T>>> {
        let Wanted { length, attempt, moving } = wanted;
        let now = self.env.monotonic();
        let ready = lock(&self.drafts).get(&wanted).map(Arc::clone);
        if let Some(draft) = ready.filter(|draft| draft.try_use(length, now)) {
            return Ok(draft);
        }
        let store_now = self.now().await?;
        let lease = Lease {
            worker_id: self.worker_id.clone(),
            lease_id: Some(self.env.nonce()),
            attempt,
            created_at: store_now,
            heartbeat_at: store_now,
            expires_at: store_now.saturating_add(signed(length)).unwrap_or(Timestamp::MAX),
            host: Some(self.env.host().name.clone()),
            pid: Some(self.env.host().pid),
            state: None,
            error: None,
            not_before: None,
            moving,
            node: self.node().await?,
            beat: 0,
        };
        let written = self.env.monotonic();
        let file = self.tree.prepare_lease(&format::encode_lease(&lease)).await?;
        let after = planted::is(Planted::CountsFromAfter);
        let written = if after { self.env.monotonic() } else { written };
        let draft = Arc::new(Draft { file, lease, written, uses: AtomicUsize::new(1) });
        // Dropped only when the lock is free: the last one to drop a draft removes its file.
        let _stale = {
            let mut drafts = lock(&self.drafts);
            let stale = |wanted: &Wanted, draft: &mut Arc<Draft<T>>| {
                !draft.is_fresh(wanted.length, written)
            };
            let mut gone: Vec<_> = drafts.extract_if(.., stale).map(|(_, draft)| draft).collect();
            gone.extend(drafts.insert(wanted, Arc::clone(&draft)));
            gone
        };
        Ok(draft)
    }
}
