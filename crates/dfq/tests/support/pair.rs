//! Two nodes of a synced queue and its hub: real folders, all three.

use std::sync::Arc;
use std::time::Duration;

use dfq::conformance::faulty::FaultyFolder;
use dfq::model::{Backoff, Synced};
use dfq::queue::merge::{Merge, Passed};
use dfq::store::fs::RealSys;
use dfq::store::fs::fault::FaultSys;
use dfq::{Delivery, Settings};

use super::{Faulty, Site, poll};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Far longer than these tests take.
pub(crate) const PERIOD: Duration = Duration::from_secs(3600);

fn settings(hub: bool) -> Settings {
    let synced = Some(Synced { queue_id: "q".to_owned(), period: PERIOD, hub });
    let backoff = Backoff { base: 10 * SECOND, max: 10 * SECOND };
    Settings { synced, backoff, lease: PERIOD * 4, ..Settings::default() }
}

/// Two nodes that know of each other.
pub(crate) struct Pair {
    pub(crate) sites: [Site; 2],
    pub(crate) nodes: [Arc<Faulty>; 2],
    /// Their system calls.
    pub(crate) calls: [FaultSys<RealSys>; 2],
    pub(crate) hub: Site,
    merges: [Merge<FaultyFolder, FaultyFolder>; 2],
}

/// What merges a folder with the hub, by system calls of its own.
pub(crate) struct Supervisor {
    pub(crate) merge: Merge<FaultyFolder, FaultyFolder>,
    pub(crate) here: FaultSys<RealSys>,
    pub(crate) there: FaultSys<RealSys>,
}

impl Supervisor {
    /// A pass, in a test that calls it from within another's system call.
    pub(crate) fn pass_now(mut self) -> Passed {
        let pass = move || futures::executor::block_on(self.merge.pass(false)).unwrap();
        std::thread::spawn(pass).join().unwrap()
    }
}

impl Pair {
    pub(crate) async fn new() -> Self {
        let hub = Site::new();
        let sites = [hub.another(), hub.another()];
        let (there, _) = hub.faulty(settings(true)).await;
        let (one, one_calls) = sites[0].faulty(settings(false)).await;
        let (other, other_calls) = sites[1].faulty(settings(false)).await;
        let merges =
            [Merge::new(&one, &there).await.unwrap(), Merge::new(&other, &there).await.unwrap()];
        let (nodes, calls) = ([one, other], [one_calls, other_calls]);
        let mut pair = Self { sites, nodes, calls, hub, merges };
        pair.merge().await;
        pair
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.hub.pass(time);
    }

    /// Another supervisor of a node's folder.
    pub(crate) async fn supervisor(&self, node: usize) -> Supervisor {
        let (folder, here) = self.sites[node].faulty(settings(false)).await;
        let (hub, there) = self.hub.faulty(settings(true)).await;
        Supervisor { merge: Merge::new(&folder, &hub).await.unwrap(), here, there }
    }

    /// One node merges.
    pub(crate) async fn merge_one(&mut self, node: usize) -> Passed {
        self.merges[node].pass(false).await.unwrap()
    }

    /// One node merges, and looks at all records.
    pub(crate) async fn merge_thoroughly(&mut self, node: usize) -> Passed {
        self.merges[node].pass(true).await.unwrap()
    }

    /// Both nodes merge, twice, so that each has what the other had.
    pub(crate) async fn merge(&mut self) {
        for node in [0, 1, 0, 1] {
            self.merge_one(node).await;
        }
    }

    /// What each node finds to do.
    pub(crate) async fn poll(&self) -> [Vec<Delivery>; 2] {
        [poll(&*self.nodes[0]).await, poll(&*self.nodes[1]).await]
    }
}
