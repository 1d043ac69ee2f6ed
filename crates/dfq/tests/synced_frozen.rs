//! A node and its hub as they were written when synced queues came: every later version must read and merge them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use dfq::conformance::faulty::FaultyFolder;
use dfq::queue::merge::{Merge, MergeOptions};
use dfq::queue::{Detail, TaskState};
use dfq::{Pushed, Queue, Settings};
use support::{Faulty, Site, ack_all, id, poll, task};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Copies of both, as they look so long after they were made.
struct Frozen {
    node: Site,
    hub: Site,
    /// When they are opened. Their settings are their own.
    folder: std::sync::Arc<Faulty>,
    middle: std::sync::Arc<Faulty>,
}

impl Frozen {
    async fn thawed(after: Duration) -> Self {
        let node = Site::copy_of("format/v1-synced/node");
        let hub = Site::copy_of("format/v1-synced/hub");
        for site in [&node, &hub] {
            site.pass(after);
        }
        let (folder, _) = node.faulty(Settings::default()).await;
        let (middle, _) = hub.faulty(Settings::default()).await;
        Self { node, hub, folder, middle }
    }

    async fn merge(&self) -> Merge<FaultyFolder, FaultyFolder> {
        // The copies are elsewhere, and years may have passed.
        let how = MergeOptions { sure: true };
        Merge::with(&self.folder, &self.middle, how).await.unwrap()
    }

    fn wait(&self, time: Duration) {
        self.node.pass(time);
        self.hub.pass(time);
    }
}

#[tokio::test]
async fn a_frozen_node_and_its_hub_are_read_and_are_alike() {
    let frozen = Frozen::thawed(Duration::ZERO).await;
    let synced = frozen.folder.settings().synced.clone().unwrap();
    assert_eq!((synced.period, synced.hub), (Duration::from_secs(60), false));
    assert!(frozen.middle.settings().synced.clone().unwrap().hub);
    assert_eq!(frozen.folder.node().await.unwrap().node, "pi-1-ebd4fa62");
    for place in [&frozen.folder, &frozen.middle] {
        let stats = place.stats(Detail::Counts).await.unwrap();
        assert_eq!((stats.pending, stats.scheduled, stats.completed, stats.failed), (5, 1, 1, 1));
        assert_eq!(place.check(false).await.unwrap(), []);
    }
    for (name, state) in [
        ("ready", "ready"),
        ("here", "leased"),
        ("there", "leased"),
        ("later", "scheduled"),
        ("done", "completed"),
        ("gone", "failed"),
    ] {
        let view = frozen.folder.get(id(name)).await.unwrap().unwrap();
        assert_eq!(view.state.name(), state, "{name}");
    }
    let kept = frozen.folder.conflicts().await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].key.id().as_str(), kept[0].mark.as_str()), ("both", "91d2f68ffa079a5b"));
    assert_eq!(kept[0].payload.as_ref().unwrap().string_member("from").as_deref(), Some("a"));
    // Every file is compared, for the copies are other files; and all are as they should be.
    let passed = frozen.merge().await.pass(true).await.unwrap();
    assert!(passed.is_calm() && passed.looked_at >= 8, "{passed:?}");
    assert_eq!(passed.troubles, Vec::<String>::new());
}

#[tokio::test]
async fn a_frozen_node_works_on_however_late() {
    for after in [Duration::ZERO, 10 * DAY, 200 * DAY] {
        let frozen = Frozen::thawed(after).await;
        let mut merge = frozen.merge().await;
        merge.pass(true).await.unwrap();
        // A life that was forgotten is not begun again.
        let pushed = frozen.folder.push(vec![task("purged")]).await.remove(0).unwrap();
        assert!(matches!(&pushed, Pushed::Created(key) if key.generation() == 2), "{pushed:?}");
        let mut done = 0;
        // Other nodes' leases hold for their length and two periods, and until a pass has begun since.
        for _ in 0..30 {
            frozen.wait(Duration::from_secs(60));
            merge.pass(false).await.unwrap();
            let held = poll(&*frozen.folder).await;
            done += held.len();
            ack_all(&*frozen.folder, held).await;
        }
        assert_eq!(done, 6, "all that was pending, and what was pushed");
        merge.pass(true).await.unwrap();
        for place in [&frozen.folder, &frozen.middle] {
            let stats = place.stats(Detail::Counts).await.unwrap();
            assert_eq!((stats.pending, stats.completed, stats.failed), (0, 7, 1), "{after:?}");
        }
        let view = frozen.middle.get(id("there")).await.unwrap().unwrap();
        assert_eq!(view.state, TaskState::Completed);
        assert_eq!(view.attempts.len(), 2, "the claim of the other node counts");
    }
}
