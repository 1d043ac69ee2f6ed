//! A queue over the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use dfq::{NewTask, OpenOptions, PollRequest, Pushed, Queue, TreeQueue};

use super::{History, Traits, Weather, World, seconds};

/// Tasks that go through; what was heard of it, and what is left.
async fn run(seed: u64, weather: Weather) -> (Vec<String>, BTreeMap<String, Vec<u8>>) {
    let world = World::new(seed, Traits::s3());
    let tap = Arc::new(History::default());
    let tree = world.bucket.sim_tree(world.env.clone(), Arc::clone(&world.weather), tap.clone());
    let options = OpenOptions {
        env: world.env.clone(),
        worker_id: Some("worker".to_owned()),
        ..OpenOptions::create()
    };
    let queue = TreeQueue::open(tree, options).await.unwrap();
    world.set(weather);
    let tasks = (0..5).map(|n| NewTask::from_json(&format!(r#"{{"id": "t{n}"}}"#)).unwrap());
    for pushed in queue.push(tasks.collect()).await {
        assert!(matches!(pushed, Ok(Pushed::Created(_))), "{pushed:?}");
    }
    let mut done = 0;
    for _ in 0..200 {
        let Ok(polled) = queue.poll(PollRequest::new(2)).await else { continue };
        for delivery in polled.deliveries {
            done += usize::from(queue.ack(vec![delivery.receipt]).await.remove(0).is_ok());
        }
        if done >= 5 {
            break;
        }
        world.env.clock().sleep(seconds(5)).await;
    }
    assert_eq!(done, 5);
    queue.close().await;
    while world.bucket.under_way() > 0 {
        world.env.clock().sleep(seconds(1)).await;
    }
    let mut heard = world.changes.take();
    heard.extend(tap.take());
    heard.push(format!("{:?}", world.env.monotonic()));
    let counts = queue.tree().objects().inner().requests();
    heard.push(format!("{counts:?}"));
    (heard, world.bucket.files())
}

#[tokio::test(start_paused = true)]
async fn tasks_go_through() {
    let (heard, files) = run(1, Weather::calm()).await;
    let done = files.keys().filter(|name| name.starts_with("completed/")).count();
    assert_eq!(done, 5, "{heard:#?}");
    assert!(!files.keys().any(|name| name.ends_with("task.json")), "{files:?}");
}

#[tokio::test(start_paused = true)]
async fn a_seed_decides_everything() {
    let storm = Weather { late_at_most: seconds(30), ..Weather::stormy() };
    let first = run(5, storm.clone()).await;
    assert_eq!(first, run(5, storm.clone()).await);
    assert_ne!(first.0, run(6, storm).await.0);
}

/// What arrives late may lie beside a record. No task is lost for it, and none is done twice.
#[tokio::test(start_paused = true)]
async fn tasks_go_through_storms() {
    for seed in 0..20 {
        let (heard, files) = run(seed, Weather::stormy()).await;
        let done = files.keys().filter(|name| name.starts_with("completed/")).count();
        assert_eq!(done, 5, "{heard:#?}");
    }
}
