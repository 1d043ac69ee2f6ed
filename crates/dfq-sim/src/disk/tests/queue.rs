//! The library itself on the model.

use futures::executor::block_on;

use dfq::clock::{Env, SeededChance};
use dfq::queue::TreeQueue;
use dfq::store::fs::Filesystem;
use dfq::{NewTask, OpenOptions, PollRequest, Pushed, Queue};

use super::*;

fn push_poll_ack(world: &World, mount: Mount) {
    let env = Env::new(Arc::new(world.clock.clone()), Arc::new(SeededChance::new(7)));
    let (sys, root) = (world.on(mount), world.disk.root());
    let store = Filesystem::with(sys, root, "model".to_owned(), env.clone(), false);
    block_on(async {
        let options = OpenOptions { env, ..OpenOptions::create() };
        let queue = TreeQueue::open(store, options).await.unwrap();
        let tasks = ["one", "two"].map(|id| {
            NewTask::from_json(&format!(r#"{{"id": "{id}", "url": "https://example.com/"}}"#))
                .unwrap()
        });
        for pushed in queue.push(tasks.to_vec()).await {
            assert!(matches!(pushed.unwrap(), Pushed::Created(_)));
        }
        world.clock.advance(Duration::from_secs(60));
        let polled = queue.poll(PollRequest::new(2)).await.unwrap().deliveries;
        assert_eq!(polled.len(), 2);
        let receipts = polled.into_iter().map(|delivery| delivery.receipt).collect();
        for acked in queue.ack(receipts).await {
            acked.unwrap();
        }
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(queue.poll(PollRequest::new(2)).await.unwrap().deliveries.len(), 0);
    });
    world.check();
    let files = world.disk.files();
    let completed = files.keys().filter(|path| path.starts_with("completed/")).count();
    assert_eq!(completed, 2, "{:?}", files.keys());
    assert!(!files.keys().any(|path| path.starts_with("pending/")), "{:?}", files.keys());
}

#[test]
fn a_queue_works_on_every_kind_of_disk() {
    for has_unnamed in [true, false] {
        for has_links in [true, false] {
            for tick in [Duration::from_nanos(1), Duration::from_secs(2)] {
                let traits = Traits { has_unnamed, has_links, tick, ..Traits::default() };
                push_poll_ack(&World::new(traits), Mount::local());
            }
        }
    }
}

#[test]
fn a_queue_works_over_the_network() {
    for seconds in [0, 3, 30] {
        let mount = Mount::network(1, Duration::from_secs(seconds));
        push_poll_ack(&World::new(Traits::default()), mount);
    }
}

/// Same seed, same calls, same answers.
#[test]
fn the_model_is_deterministic() {
    let calls = || {
        let world = World::new(Traits::default());
        push_poll_ack(&world, Mount::local());
        let answers = std::mem::take(&mut *lock(&world.gate.1));
        assert!(answers.len() > 50 && world.disk.calls() as usize == answers.len());
        answers
    };
    assert_eq!(calls(), calls());
}
