//! Trees that were written before: by the seeds' own V2 workers, and by earlier versions of ours.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use dfq::model::Layout;
use dfq::queue::{Detail, TaskState};
use dfq::{OpenOptions, Pushed};
use support::{Site, ack_all, id, poll, push};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_seed_tree_is_recognised_and_left_as_it_is() {
    let site = Site::copy_of("seeds/v2");
    let queue = dfq::open(site.path("q"), OpenOptions::existing()).await.unwrap();
    assert_eq!(queue.settings().layout, Layout::Flat);
    let stats = queue.stats(Detail::States).await.unwrap();
    assert_eq!((stats.pending, stats.completed), (5, 1));
    assert!(!site.exists("queue.json"));
    assert_eq!(queue.get(id("0a1b2c3d4e")).await.unwrap().unwrap().state, TaskState::Completed);
}

#[tokio::test]
async fn a_seed_tree_is_claimed_taken_over_and_finished() {
    let site = Site::copy_of("seeds/v2");
    let before = site.read("pending/5f1d7c0aa2/task.json");
    // Just copied, so the lease that pi-4 wrote and the torn one look alive.
    let queue = site.queue().await;
    let free = poll(&*queue).await;
    let names: Vec<&str> = free.iter().map(|held| held.id().as_str()).collect();
    assert_eq!(names, ["5f1d7c0aa2", "acme-plumbing.example", "plumbers in Phoenix, AZ"]);
    assert!(free.iter().all(|held| held.attempt == 1));
    assert_eq!(free[0].payload.as_json(), before, "the payload is just what they printed");
    assert_eq!(free[0].payload.string_member("domain").as_deref(), Some("acme.com"));
    ack_all(&*queue, free).await;
    let record: serde_json::Value =
        serde_json::from_str(&site.read("completed/plumbers in Phoenix, AZ.json")).unwrap();
    assert_eq!(record["search_phrase"], "plumbers in Phoenix, AZ");
    assert_eq!(record["_dfq"]["outcome"], "completed");

    // A lease without its task may be of one that is on its way; not an hour later.
    assert!(site.exists("pending/dead00beef/lease.json"));
    for name in ["9b2e66d1f0", "c0ffee0042", "dead00beef"] {
        site.age(&format!("pending/{name}/lease.json"), HOUR);
    }
    let taken = poll(&*site.queue().await).await;
    let names: Vec<_> = taken.iter().map(|held| (held.id().as_str(), held.attempt)).collect();
    assert_eq!(names, [("9b2e66d1f0", 2), ("c0ffee0042", 2)]);
    let old = site.read("pending/9b2e66d1f0/lease.json");
    assert!(old.contains("pi-4"), "nobody's lease is touched");
    ack_all(&*queue, taken).await;
    assert_eq!(std::fs::read_dir(site.path("q/pending")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(site.path("q/completed")).unwrap().count(), 6);
}

#[tokio::test]
async fn what_a_seed_worker_finished_is_not_done_again() {
    let site = Site::copy_of("seeds/v2");
    let queue = site.queue().await;
    let again = queue.push(vec![support::task("0a1b2c3d4e")]).await.remove(0).unwrap();
    assert!(matches!(again, Pushed::Finished(..)), "{again:?}");
}

#[tokio::test]
async fn a_tree_of_format_1_is_read() {
    let site = Site::copy_of("format/v1");
    for lease in ["pending/1e/leased/lease.json", "pending/db/thrice/lease.3.json"] {
        site.age(lease, HOUR);
    }
    let queue = dfq::open(site.path("q"), OpenOptions::existing()).await.unwrap();
    let stats = queue.stats(Detail::States).await.unwrap();
    assert_eq!((stats.pending, stats.scheduled, stats.completed, stats.failed), (5, 1, 2, 2));
    assert_eq!(queue.check(false).await.unwrap(), []);
    for (name, state) in [
        ("ready", "ready"),
        ("leased", "stale"),
        ("thrice", "stale"),
        ("nacked", "ready"),
        ("later", "scheduled"),
        ("done", "ready"),
        ("gone", "failed"),
        ("torn", "failed"),
    ] {
        let view = queue.get(id(name)).await.unwrap().unwrap();
        assert_eq!(view.state.name(), state, "{name}");
    }
    let held = poll(&*queue).await;
    let found: Vec<_> = held
        .iter()
        .map(|held| (held.id().as_str(), held.key.generation(), held.attempt, held.fence))
        .collect();
    let wanted = [
        ("done", 3, 1, (2 << 32) + 1),
        ("leased", 1, 2, 2),
        ("nacked", 1, 2, 2),
        ("ready", 1, 1, 1),
        ("thrice", 1, 4, 4),
    ];
    assert_eq!(found, wanted);
    ack_all(&*queue, held).await;
    push(&*queue, "new").await;
}
