//! Leases about to be created, written once and put into many tasks.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use super::claim::signed;
use super::core::Core;
use crate::clock::lock;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::model::Lease;
use crate::store::Tree;

/// The most leases that are names of one file. Some filesystems allow no more than 1,023.
const MAX_SHARED: usize = 1000;

/// Leases about to be created. What is claimed within a moment, by one poll or by many, has the same
/// lease but for the attempt's number; on a disk these are names of one file, because a name costs a
/// fraction of what a file does.
///
/// So a `lease_id` stands for this process, an attempt's number and a moment. On one task it is used
/// once, since the name of an attempt is.
pub(super) struct Drafts<T: Tree> {
    pub(super) length: Duration,
    by_attempt: HashMap<u32, Draft<T>>,
}

pub(super) struct Draft<T: Tree> {
    pub(super) file: T::Draft,
    pub(super) lease: Lease,
    /// The monotonic time before it was written: the lease holds from then.
    pub(super) written: Duration,
    uses: usize,
}

impl<T: Tree> Draft<T> {
    /// Still good for another claim: the lease must not be noticeably shorter than it says.
    fn is_fresh(&self, length: Duration, now: Duration) -> bool {
        let moment = (length / 100).min(Duration::from_secs(1));
        self.uses < MAX_SHARED && now.saturating_sub(self.written) <= moment
    }
}

impl<T: Tree> Core<T> {
    /// What is left of the last poll's drafts, if they are for leases of this length.
    pub(super) fn take_drafts(&self, length: Duration) -> Drafts<T> {
        let last = lock(&self.drafts).take().filter(|drafts| drafts.length == length);
        let mut drafts = last.unwrap_or_else(|| Drafts { length, by_attempt: HashMap::new() });
        let now = self.env.monotonic();
        drafts.by_attempt.retain(|_, draft| draft.is_fresh(length, now));
        drafts
    }

    pub(super) async fn draft_for<'a>(
        &self,
        drafts: &'a mut Drafts<T>,
        attempt: u32,
    ) -> Result<&'a Draft<T>> {
        let now = self.env.monotonic();
        let ready = drafts.by_attempt.get(&attempt);
        if !ready.is_some_and(|draft| draft.is_fresh(drafts.length, now)) {
            let store_now = self.now().await?;
            let lease = Lease {
                worker_id: self.worker_id.clone(),
                lease_id: Some(self.env.nonce()),
                attempt,
                created_at: store_now,
                heartbeat_at: store_now,
                expires_at: store_now
                    .saturating_add(signed(drafts.length))
                    .unwrap_or(Timestamp::MAX),
                host: Some(self.host.clone()),
                pid: Some(self.pid),
                state: None,
                error: None,
                not_before: None,
            };
            let written = self.env.monotonic();
            let file = self.tree.draft(&format::encode_lease(&lease)).await?;
            drafts.by_attempt.insert(attempt, Draft { file, lease, written, uses: 0 });
        }
        let unmade = || Error::new(ErrorKind::Unavailable, "no lease could be written");
        let draft = drafts.by_attempt.get_mut(&attempt).ok_or_else(unmade)?;
        draft.uses += 1; // twice for some, which only makes a new one due sooner
        Ok(draft)
    }
}
