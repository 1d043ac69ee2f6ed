//! Lease files.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Time, line, time, timestamp};
use crate::model::{Lease, LeaseState};

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StateDoc {
    Failed,
    Released,
    Withdrawn,
}

impl From<LeaseState> for StateDoc {
    fn from(state: LeaseState) -> Self {
        match state {
            LeaseState::Failed => Self::Failed,
            LeaseState::Released => Self::Released,
            LeaseState::Withdrawn => Self::Withdrawn,
        }
    }
}

impl From<StateDoc> for LeaseState {
    fn from(state: StateDoc) -> Self {
        match state {
            StateDoc::Failed => Self::Failed,
            StateDoc::Released => Self::Released,
            StateDoc::Withdrawn => Self::Withdrawn,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct LeaseDoc<'a> {
    worker_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_id: Option<Cow<'a, str>>,
    #[serde(default)]
    attempt: u32,
    created_at: Time,
    heartbeat_at: Time,
    expires_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateDoc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Time>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    moving: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "super::is_zero")]
    beat: u64,
}

/// The content of a lease file.
pub(crate) fn encode_lease(lease: &Lease) -> Vec<u8> {
    let borrow = |text: &'_ Option<String>| text.as_deref().map(|text| Cow::Owned(text.to_owned()));
    let doc = LeaseDoc {
        worker_id: Cow::Borrowed(&lease.worker_id),
        lease_id: borrow(&lease.lease_id),
        attempt: lease.attempt,
        created_at: Time(lease.created_at),
        heartbeat_at: Time(lease.heartbeat_at),
        expires_at: Time(lease.expires_at),
        host: borrow(&lease.host),
        pid: lease.pid,
        state: lease.state.map(StateDoc::from),
        error: borrow(&lease.error),
        not_before: time(lease.not_before),
        moving: lease.moving,
        node: borrow(&lease.node),
        beat: lease.beat,
    };
    line(&doc)
}

/// Reads the lease file of an attempt, ours or the seeds' four fields; `None` if it cannot be read.
pub(crate) fn decode_lease(bytes: &[u8], attempt: u32) -> Option<Lease> {
    let doc: LeaseDoc<'_> = serde_json::from_slice(bytes).ok()?;
    let owned = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
    Some(Lease {
        worker_id: doc.worker_id.into_owned(),
        lease_id: owned(doc.lease_id),
        attempt, // the name decides: that is what was won
        created_at: doc.created_at.0,
        heartbeat_at: doc.heartbeat_at.0,
        expires_at: doc.expires_at.0,
        host: owned(doc.host),
        pid: doc.pid,
        state: doc.state.map(LeaseState::from),
        error: owned(doc.error),
        not_before: timestamp(doc.not_before),
        moving: doc.moving,
        node: owned(doc.node),
        beat: doc.beat,
    })
}
