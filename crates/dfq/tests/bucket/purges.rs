//! A purge frees names, and what is on its way to remove an old task must not meet a new one of that name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::queue::Purge;
use dfq::store::bucket::Bucket;
use dfq::store::{Folders as _, ObjectsExt as _, Tree as _};
use dfq::{Env, NewTask, Outcome, PollRequest, Pushed, Queue, TaskId};
use dfq_s3_server::{Fault, Lies, Rules};

use crate::world::*;

/// Longer than a purge must keep any record here, and how far the clock goes on before each.
const KEPT: Duration = Duration::from_secs(2 * 3600);

/// So many hours have passed; queues that are opened from now on know it.
fn hours_pass(world: &World, hours: i64) {
    world.set_clock(hours * 3_600_000);
}

async fn purge(queue: &dyn Queue) -> u64 {
    let purge = Purge { outcome: Outcome::Completed, older_than: KEPT, dry_run: false };
    queue.purge(purge).await.unwrap().records
}

async fn finish(world: &World) {
    let queue = world.with_task(LONG).await;
    let delivery = claim(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
    queue.close().await;
    assert_eq!(world.keys("pending/"), [""; 0]);
}

/// A push that met the record is still about to take its own file back, when the record is purged and
/// somebody pushes the task anew.
#[tokio::test]
async fn a_push_that_takes_back_its_task_takes_back_no_other() {
    let world = World::new().await;
    finish(&world).await;
    hours_pass(&world, 3);
    let (alice, bob) = (world.worker().await, world.worker().await);
    assert!(matches!(push(&*alice).await.unwrap(), Pushed::Finished(..)));
    purge(&*bob).await;
    let pushed = push(&*bob).await.unwrap();
    alice.close().await;
    match pushed {
        Pushed::Created(_) => _ = claim(&*bob).await,
        _ => assert_eq!(world.keys("completed/"), [COMPLETED], "{pushed:?}"),
    }
}

/// That a record was written anew makes its task no younger.
#[tokio::test]
async fn what_is_pushed_again_and_again_is_purged_in_the_end() {
    let world = World::new().await;
    finish(&world).await;
    hours_pass(&world, 3);
    let queue = world.worker().await;
    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Finished(..)));
    queue.close().await;
    assert_eq!(purge(&*queue).await, 0, "somebody may still be removing remains of it");
    hours_pass(&world, 5);
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 1);
    assert_eq!(world.keys("completed/"), [""; 0]);
    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Created(_)));
}

/// What a purge that was killed half-way leaves: a mark, for the sake of which nothing is removed.
#[tokio::test]
async fn a_mark_of_a_purge_ends_no_task() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let bucket = world.server.bucket();
    let env = Env::system();
    let tree = Bucket::s3(bucket, PREFIX, world.options(), env, Default::default()).await.unwrap();
    let mark = r#"{"_dfq":{"id":"a","outcome":"completed","forgotten":true}}"#;
    tree.replace(COMPLETED, mark.as_bytes()).await.unwrap();
    // Whoever works until nothing is left does not take it for nothing, at the first look or later.
    for queue in [queue, world.worker().await, world.worker().await] {
        let polled = queue.poll(PollRequest::new(1)).await.unwrap();
        assert!(polled.deliveries.is_empty() && polled.idle.next.is_some(), "{polled:?}");
        queue.close().await;
    }
    assert!(world.keys("pending/").contains(&TASK.to_owned()));
    // Nobody is at it any more: whoever meets it does what the purge did not come to, if it may.
    hours_pass(&world, 3);
    world.server.set_rules(Rules::default().deny("s3:DeleteObject"));
    let queue = world.worker().await;
    assert!(poll(&*queue, 1).await.unwrap().is_empty());
    let mark = tree.read(COMPLETED).await.unwrap();
    let other = world.worker().await;
    assert!(poll(&*other, 1).await.unwrap().is_empty());
    assert_eq!(tree.read(COMPLETED).await.unwrap(), mark, "nobody makes it young again");
    world.server.set_rules(Rules::default());
    hours_pass(&world, 6);
    let queue = world.worker().await;
    assert_eq!(world.claim_in_time(&*queue).await.earlier.failed, 0);
    assert_eq!(world.keys("completed/"), [""; 0]);
}

/// Servers that take no condition on an ETag, or not in the form in which they sent it. On the former a purge
/// chooses to write without one.
#[tokio::test]
async fn servers_that_refuse_etags_can_be_purged() {
    purged_with(Lies { refuse_quoted_etags: true, ..Lies::default() }).await;
    purged_with(Lies { refuse_etags: true, ..Lies::default() }).await;
}

async fn purged_with(lie: Lies) {
    let world = World::new().await;
    finish(&world).await;
    let lies = |hours: i64| Lies { clock_offset_ms: hours * 3_600_000, ..lie.clone() };
    world.server.set_lies(lies(3));
    let queue = world.worker().await;
    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Finished(..)));
    assert_eq!(world.keys("pending/"), [""; 0]);
    assert_eq!(purge(&*queue).await, 0);
    world.server.set_lies(lies(6));
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 1);
    assert_eq!(world.keys("completed/"), [""; 0]);
}

/// Every answer to what a purge writes and removes is lost once.
#[tokio::test]
async fn a_purge_without_answers() {
    let world = World::new().await;
    finish(&world).await;
    hours_pass(&world, 3);
    let queue = world.worker().await;
    world.server.on(|request| {
        let writes = request.op == "PutObject" && request.key.ends_with(COMPLETED);
        let removes = request.op.starts_with("DeleteObject");
        ((writes || removes) && request.nth == 1).then_some(Fault::LoseAnswer)
    });
    assert_eq!(purge(&*queue).await, 1);
    assert_eq!(world.faults(Fault::LoseAnswer), 2);
    assert_eq!(world.keys("completed/"), [""; 0]);
    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Created(_)));
}

/// A life that failed is not said to have completed because the purge of the next one is put off.
#[tokio::test]
async fn a_purge_that_is_put_off_writes_no_history() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let receipt = claim(&*queue).await.receipt;
    queue.fail(vec![(receipt, "no".to_owned())]).await.remove(0).unwrap();
    queue.retry(vec![TaskId::new("a").unwrap()]).await.remove(0).unwrap();
    let receipt = claim(&*queue).await.receipt;
    ack(&*queue, &receipt).await.unwrap();
    queue.close().await;
    hours_pass(&world, 3);
    // Somebody writes the record anew between the purge's first look at it and the second.
    let (bucket, env) = (world.server.bucket(), Env::system());
    let tree = Bucket::s3(bucket, PREFIX, world.options(), env, Default::default()).await.unwrap();
    let slot = format!("{}@2", TASK.trim_end_matches("/task.json"));
    let prepared = tree.prepare_lease(b"{}").await.unwrap();
    tree.create_lease(&slot, 1, &prepared).await.unwrap();
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 0, "its remains were removed for the record's sake");
    assert_eq!(world.keys("failed/"), ["failed/ca/a.json"]);
    assert_eq!(world.keys("completed/"), ["completed/ca/a@2.json"]);
}

/// That a record was written anew is seen in the listing, so that what it says is looked at.
#[tokio::test]
async fn what_was_written_anew_counts_from_its_end() {
    let world = World::new().await;
    finish(&world).await;
    hours_pass(&world, 3);
    let queue = world.worker().await;
    assert!(matches!(push(&*queue).await.unwrap(), Pushed::Finished(..)));
    queue.close().await;
    world.set_clock(3 * 3_600_000 + 600_000);
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 1);
    assert_eq!(world.keys("completed/"), [""; 0]);
}

/// It may do no more than write its mark. The next one need not wait until the mark is as old as records must be.
#[tokio::test]
async fn the_next_purge_goes_on_where_one_was_cut_short() {
    let world = World::new().await;
    finish(&world).await;
    hours_pass(&world, 3);
    let queue = world.worker().await;
    world.server.set_rules(Rules::default().deny_under("s3:DeleteObject", "some/where/completed"));
    let old = Purge { outcome: Outcome::Completed, older_than: KEPT, dry_run: false };
    queue.purge(old).await.unwrap_err();
    assert_eq!(world.keys("completed/"), [COMPLETED]);
    world.server.set_rules(Rules::default());
    assert_eq!(purge(&*queue).await, 0, "somebody may still be at it");
    world.set_clock(3 * 3_600_000 + 600_000);
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 1);
    assert_eq!(world.keys("completed/"), [""; 0]);
}

/// A task that was done, and of which a crash has left the file, would be done again without its record.
#[tokio::test]
async fn remains_go_before_the_record() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    let task = world.server.objects()[&format!("{PREFIX}/{TASK}")].clone();
    let receipt = claim(&*queue).await.receipt;
    ack(&*queue, &receipt).await.unwrap();
    queue.close().await;
    hours_pass(&world, 3);
    world.server.put(&format!("{PREFIX}/{TASK}"), &task);
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 0, "its remains were removed for the record's sake");
    assert_eq!(world.keys("pending/"), [""; 0]);
    world.set_clock(3 * 3_600_000 + 600_000);
    let queue = world.worker().await;
    assert_eq!(purge(&*queue).await, 1);
    assert!(poll(&*queue, 1).await.unwrap().is_empty());
}

/// Who may not remove anything can push what has finished as often as it likes.
#[tokio::test]
async fn a_producer_that_may_not_remove_is_told_that_it_has_finished() {
    let world = World::new().await;
    finish(&world).await;
    let queue = world.worker().await;
    world.server.set_rules(Rules::default().deny("s3:DeleteObject"));
    for _ in 0..3 {
        assert!(matches!(push(&*queue).await.unwrap(), Pushed::Finished(..)));
        queue.close().await;
    }
    world.server.set_rules(Rules::default());
    world.tidy(&*queue).await;
}

/// Pushers, workers and purges at once, on tasks that finished long ago: whoever is told that a task was
/// created finds that it is done.
#[tokio::test(flavor = "multi_thread")]
async fn pushers_and_purges_race() {
    const TASKS: usize = 40;
    let world = World::new().await;
    let id = |n: usize| TaskId::new(format!("t{n}")).unwrap();
    let task = move |n| NewTask::from_json("{}").unwrap().id(id(n));
    let done: Arc<Mutex<BTreeMap<TaskId, usize>>> = Arc::default();
    let mut created: BTreeMap<TaskId, usize> = BTreeMap::new();
    let work = |queue: Arc<dyn Queue>, done: Arc<Mutex<BTreeMap<TaskId, usize>>>| async move {
        loop {
            let got = queue.poll(PollRequest::new(8)).await.unwrap();
            let (nothing, more) = (got.deliveries.is_empty(), got.idle.more);
            for delivery in got.deliveries {
                *done.lock().unwrap().entry(delivery.id().clone()).or_default() += 1;
                let _ = queue.ack(vec![delivery.receipt]).await;
            }
            if nothing && !more {
                // What it would remove only hours later is not for a test in which they pass in a moment.
                return queue.close().await;
            }
        }
    };
    let rounds = if std::env::var_os("DFQ_TEST_LONG").is_some() { 12 } else { 5 };
    for round in 0..rounds {
        hours_pass(&world, round * 3);
        let mut pushing = tokio::task::JoinSet::new();
        for _ in 0..2 {
            let queue = world.worker().await;
            pushing.spawn(async move {
                let mut created = Vec::new();
                for n in 0..TASKS {
                    if let Pushed::Created(key) = queue.push(vec![task(n)]).await.remove(0).unwrap()
                    {
                        created.push(key.id().clone());
                    }
                }
                queue.close().await;
                created
            });
        }
        let (purger, worker) = (world.worker().await, world.worker().await);
        let purging = async {
            for _ in 0..3 {
                purge(&*purger).await;
            }
        };
        tokio::join!(purging, work(worker, Arc::clone(&done)));
        for id in pushing.join_all().await.into_iter().flatten() {
            *created.entry(id).or_default() += 1;
        }
        let last = world.worker().await;
        work(last, Arc::clone(&done)).await;
        let done = done.lock().unwrap();
        for (id, created) in &created {
            let done = done.get(id).copied().unwrap_or(0);
            assert!(done >= *created, "round {round}: {id} created {created} times, done {done}");
        }
    }
}
