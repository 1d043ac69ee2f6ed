//! One suite for every provider.
//!
//! A provider implements [`Provider`] and writes `dfq::conformance_tests!(make)` in a test file, where
//! `make` is an async function that answers a fresh provider with an empty queue (or an `Option` of one). What a provider
//! cannot do is not skipped: the suite asserts that it says so.

pub mod faulty;
mod finishing;
pub mod objects;
mod operating;
pub mod parsers;
mod pushing;
mod racing;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::model::{Backoff, NewTask, Receipt, Settings, TaskId};
use crate::queue::{Delivery, PollRequest, Pushed, Queue};

pub use finishing::*;
pub use operating::*;
pub use pushing::*;
pub use racing::*;

/// A store with one queue in it.
#[async_trait]
pub trait Provider: Send + Sync {
    /// A handle to the queue, as a worker of its own. The first call makes the queue with these
    /// settings; later ones open it.
    async fn worker(&self, settings: &Settings) -> Arc<dyn Queue>;
    /// Lets time pass, for the store and for every worker.
    async fn pass(&self, time: Duration);
    /// The lease with which waiting for its end takes no longer than a test may.
    fn lease(&self) -> Duration;
}

/// What makes a provider, or finds that there is none to be had here. Whoever answers nothing says so
/// loudly.
pub trait Made {
    /// What was made.
    type Provider: Provider;
    /// Hands it over.
    fn made(self) -> Option<Self::Provider>;
}

impl<P: Provider> Made for P {
    type Provider = P;
    fn made(self) -> Option<P> {
        Some(self)
    }
}

impl<P: Provider> Made for Option<P> {
    type Provider = P;
    fn made(self) -> Option<P> {
        self
    }
}

/// Settings with leases that do not run out during a test.
pub fn settings(provider: &dyn Provider) -> Settings {
    Settings { lease: Duration::from_secs(600), ..short_leases(provider) }
}

/// Settings with leases and backoffs short enough to wait for.
pub fn short_leases(provider: &dyn Provider) -> Settings {
    let step = provider.lease() / 4;
    Settings {
        lease: provider.lease(),
        max_attempts: 3,
        max_lost: 3,
        backoff: Backoff { base: step, max: step * 4 },
        ..Settings::default()
    }
}

fn id(text: &str) -> TaskId {
    TaskId::new(text).expect("a good id")
}

fn task(name: &str) -> NewTask {
    NewTask::from_value(&serde_json::json!({ "n": name })).expect("a good task").id(id(name))
}

async fn push(queue: &dyn Queue, task: NewTask) -> Result<Pushed> {
    queue.push(vec![task]).await.pop().expect("one answer")
}

async fn poll(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    queue.poll(PollRequest::new(max)).await.expect("a poll").deliveries
}

/// Polls for exactly one task.
async fn claim(queue: &dyn Queue) -> Delivery {
    let mut got = poll(queue, 1).await;
    assert_eq!(got.len(), 1, "there is one task to be had");
    got.remove(0)
}

async fn one<T: Send>(answers: impl Future<Output = Vec<Result<T>>> + Send) -> Result<T> {
    let mut answers = answers.await;
    assert_eq!(answers.len(), 1, "one answer for one question");
    answers.remove(0)
}

async fn ack(queue: &dyn Queue, receipt: &Receipt) -> Result<()> {
    one(queue.ack(vec![receipt.clone()])).await
}

#[track_caller]
fn kind<T: std::fmt::Debug>(answer: Result<T>) -> ErrorKind {
    answer.as_ref().map_err(Error::kind).expect_err("an error")
}

/// An error that names the provider: it cannot do that.
#[track_caller]
fn assert_unsupported<T: std::fmt::Debug>(queue: &dyn Queue, answer: Result<T>) {
    let error = answer.expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let provider = queue.capabilities().provider;
    assert!(error.to_string().contains(provider), "'{error}' does not name {provider}");
}

/// Claim lost or somebody else's: what a worker that was too late may be told.
#[track_caller]
fn assert_too_late<T: std::fmt::Debug>(answer: Result<T>) {
    let kind = kind(answer);
    assert!(matches!(kind, ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted), "{kind:?}");
}

/// Makes a test of every case, each on a fresh provider.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_tests!($make;
            a_task_goes_through, payloads_come_back_byte_for_byte, odd_ids_are_kept,
            an_id_is_pushed_once, a_finished_id_stays_finished, again_starts_a_new_life,
            empty_batches_are_fine, bad_tasks_are_refused_singly, a_delayed_task_waits,
            delayed_twice_is_done_once, a_held_task_is_not_handed_out,
            a_silent_workers_task_is_taken_over, heartbeats_keep_a_task,
            nobody_acks_after_their_lease, acks_twice_are_fine, a_receipt_works_elsewhere,
            a_batch_answers_each, a_nacked_task_comes_back, failures_end_a_task,
            lost_leases_end_a_task, a_tasks_own_limit_counts, released_tasks_cost_no_attempt,
            a_failed_task_is_set_aside, fences_grow, cancel_ends_a_task, unlock_frees_a_task,
            unlock_ends_a_backoff, retry_starts_a_failed_task_again, a_paused_queue_rests,
            schemas_are_left_to_others, looking_changes_nothing, everything_is_listed,
            young_records_are_kept, workers_are_seen, a_push_wakes_a_waiter,
            many_pollers_share, many_pushers_agree
        );
    };
    ($make:expr; $($case:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                use $crate::conformance::Made;
                if let Some(provider) = $make().await.made() {
                    $crate::conformance::$case(&provider).await;
                }
            }
        )+
    };
}
