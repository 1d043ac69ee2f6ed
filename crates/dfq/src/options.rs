//! How to open a queue: plain values, of which each provider takes what concerns it.

use std::fmt;

use crate::clock::Env;
use crate::meter::Meter;
use crate::model::{Backoff, Settings};

/// How to open a queue.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Time and chance.
    pub env: Env,
    /// The name to claim under; by default made of host, process and a nonce.
    pub worker_id: Option<String>,
    /// Make the queue if there is none, with these settings.
    pub create: Option<Settings>,
    /// Give tasks up after so many failures, whatever the queue's own limit; a limit that a task was
    /// pushed with stands above both.
    pub max_attempts: Option<u32>,
    /// Counts the requests to a store that charges by the request.
    pub meter: Meter,
    /// Use the store even if the doctor found it unsafe: two workers may then do the same task.
    pub allow_unsafe: bool,
    /// How to get at S3, where that differs from the ordinary AWS environment.
    pub s3: S3Options,
    /// How to get at SQS, where that differs from the ordinary AWS environment.
    pub sqs: SqsOptions,
}

impl OpenOptions {
    /// Opens a queue that must exist.
    pub fn existing() -> Self {
        Self::default()
    }

    /// Makes the queue if there is none.
    pub fn create() -> Self {
        Self { create: Some(Settings::default()), ..Self::default() }
    }
}

/// How to get at S3, where that differs from the ordinary AWS environment.
#[derive(Clone, Default)]
pub struct S3Options {
    /// The server, if it is not AWS. Only one that begins with `http://` is spoken to in the clear.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The profile of `~/.aws` to take everything else from.
    pub profile: Option<String>,
    /// The bucket's name stands in the path, not in the host name. By default it does.
    pub path_style: Option<bool>,
    /// Access key and secret.
    pub credentials: Option<(String, String)>,
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("path_style", &self.path_style)
            .finish_non_exhaustive()
    }
}

/// How to get at SQS, where that differs from the ordinary AWS environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SqsOptions {
    /// The server, if it is not AWS.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Access key and secret.
    pub credentials: Option<(String, String)>,
    /// The queue that tasks go to when they are given up: a name or a URL. A redrive policy of the
    /// queue itself works without.
    pub dead_letter: Option<String>,
    /// The member of a payload that names its group in a FIFO queue. Tasks without one are each a group
    /// of their own, so that none waits for another.
    pub group: Option<String>,
    /// The wait after failures, of which SQS keeps nothing.
    pub backoff: Option<Backoff>,
}

impl fmt::Debug for SqsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("credentials", &self.credentials.as_ref().map(|_| "…"))
            .field("dead_letter", &self.dead_letter)
            .field("group", &self.group)
            .field("backoff", &self.backoff)
            .finish()
    }
}
