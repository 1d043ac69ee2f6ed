use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::{Env, ManualClock, SeededChance};
use crate::model::NewTask;
use crate::options::OpenOptions;
use crate::queue::{PollRequest, Queue, TreeQueue};
use crate::store::memory::Memory;

const TWO_HOURS: Duration = Duration::from_secs(7200);

fn task(n: usize) -> NewTask {
    NewTask::from_json("{}").unwrap().id(TaskId::new(format!("t{n}")).unwrap())
}

/// A queue in which 300 tasks were done long ago. Of every sixth the next life waits.
async fn done_long_ago() -> TreeQueue<Memory> {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(3)));
    let options = OpenOptions { env: env.clone(), ..OpenOptions::create() };
    let queue = TreeQueue::open(Memory::new(env), options).await.unwrap();
    queue.push((0..300).map(task).collect()).await;
    let held = queue.poll(PollRequest::new(300)).await.unwrap().deliveries;
    assert_eq!(held.len(), 300);
    queue.ack(held.into_iter().map(|held| held.receipt).collect()).await;
    queue.push((0..300).step_by(6).map(|n| task(n).again()).collect()).await;
    clock.advance(2 * TWO_HOURS);
    queue
}

#[tokio::test]
async fn groups_of_any_size_show_everything_once() {
    let queue = done_long_ago().await;
    for enough in [1, 7, 40, 1000] {
        let (mut first, mut groups, mut records, mut pending) = (0, 0, 0, 0);
        while first < 256 {
            let group = queue.core.group(first, 256, enough, &|_| true).await.unwrap();
            let shards = first..group.stop;
            let all = group.records.keys().chain(group.pending.keys());
            for key in all {
                assert!(shards.contains(&usize::from(queue.core.names().shard(key).number())));
            }
            records += group.records.len();
            pending += group.pending.len();
            groups += 1;
            first = group.stop;
        }
        assert_eq!((records, pending), (300, 50), "{enough}");
        assert!(groups <= 350 / enough + 1, "{groups} groups of {enough}");
    }
}

#[tokio::test]
async fn a_purge_takes_as_many_groups_as_it_needs() {
    for enough in [1, 7, 40, 1000] {
        let queue = done_long_ago().await;
        let now = queue.core.now().await.unwrap();
        let ago = |time| now.saturating_sub(super::super::claim::signed(time)).unwrap();
        let age = Age { ended: ago(TWO_HOURS), written: ago(Duration::from_secs(300)) };
        for (dry_run, left) in [(true, 250), (false, 250), (false, 0)] {
            let purge = Purge { outcome: Outcome::Completed, older_than: TWO_HOURS, dry_run };
            let removed = queue.core.purge_in_groups(purge, age, enough).await.unwrap();
            assert_eq!(removed, left, "{enough}");
        }
    }
}
