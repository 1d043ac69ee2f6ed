//! Nodes of a synced queue in real folders, with a hub on a real server, and clocks that a test puts forward.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real files have real times")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dfq::conformance::faulty::FaultyFolder;
use dfq::model::Synced;
use dfq::options::S3Options;
use dfq::queue::merge::{Merge, Passed};
use dfq::queue::{Detail, Purge};
use dfq::store::bucket::Bucket;
use dfq::store::fs::RealSys;
use dfq::store::fs::fault::FaultSys;
use dfq::{Nack, Outcome, Queue, Settings, TreeQueue};
use dfq::{OpenOptions, PollRequest};
use dfq_s3_server::{Lies, Options, Server};
use support::{Faulty, Site, id, push, task};

const PERIOD: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

fn settings(hub: bool) -> Settings {
    let synced = Synced { queue_id: "town".to_owned(), period: PERIOD, hub };
    Settings { lease: LEASE, synced: Some(synced), ..Settings::default() }
}

struct Node {
    site: Site,
    queue: Arc<Faulty>,
    sys: FaultSys<RealSys>,
    merge: Merge<FaultyFolder, Bucket>,
}

impl Node {
    async fn pass(&mut self) -> Passed {
        self.merge.pass(false).await.unwrap()
    }

    /// Claims all that is free, but for most tasks of others while there are some of its own.
    async fn poll(&self) -> Vec<dfq::Delivery> {
        self.queue.poll(PollRequest::new(100)).await.unwrap().deliveries
    }
}

struct Town {
    server: Server,
    /// By how many milliseconds the hub's clock is ahead of the machine's.
    ahead: AtomicI64,
    nodes: Vec<Node>,
}

impl Town {
    /// A hub, and nodes whose clocks are so much ahead of this machine's.
    async fn new(hub_ahead: Duration, ahead: &[Duration]) -> Self {
        let server = Server::start(Options::default()).await.unwrap();
        let mut town = Self { server, ahead: AtomicI64::new(0), nodes: Vec::new() };
        town.put_hub_forward(hub_ahead);
        for ahead in ahead {
            let site = Site::new();
            site.pass(*ahead);
            let (queue, sys) = site.faulty(settings(false)).await;
            let merge = Merge::new(&*queue, &town.hub(&site).await).await.unwrap();
            town.nodes.push(Node { site, queue, sys, merge });
        }
        town
    }

    async fn hub(&self, site: &Site) -> TreeQueue<Bucket> {
        let (key, secret) = (self.server.access_key(), self.server.secret_key());
        let options = S3Options {
            endpoint: Some(self.server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some((key.to_owned(), secret.to_owned())),
            ..S3Options::default()
        };
        let bucket =
            Bucket::s3(self.server.bucket(), "town", options, site.env(), Default::default());
        let create = Some(settings(true));
        let options = OpenOptions { env: site.env(), create, ..OpenOptions::default() };
        TreeQueue::open(bucket.await.unwrap(), options).await.unwrap()
    }

    fn put_hub_forward(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap();
        let clock_offset_ms = self.ahead.fetch_add(by, Ordering::SeqCst) + by;
        self.server.set_lies(Lies { clock_offset_ms, ..Lies::default() });
    }

    /// Lets time pass everywhere.
    fn wait(&self, time: Duration) {
        self.put_hub_forward(time);
        self.nodes.iter().for_each(|node| node.site.pass(time));
    }

    /// Each node merges once in each period, for so long.
    async fn live(&mut self, time: Duration) {
        let periods = time.as_secs() / PERIOD.as_secs();
        for _ in 0..periods {
            self.wait(PERIOD);
            self.merge().await;
        }
    }

    async fn merge(&mut self) {
        for node in &mut self.nodes {
            node.pass().await;
        }
    }

    /// The first node renews what it holds.
    async fn beat(&self, held: &[dfq::Delivery]) {
        let receipts = held.iter().map(|it| it.receipt.clone()).collect();
        assert!(self.nodes[0].queue.heartbeat(receipts).await.iter().all(Result::is_ok));
    }

    /// Passes until nothing changes.
    async fn settle(&mut self) {
        for _ in 0..6 {
            let mut calm = true;
            for node in &mut self.nodes {
                let passed = node.merge.pass(true).await.unwrap();
                assert_eq!(passed.troubles, Vec::<String>::new());
                calm &= passed.is_calm();
            }
            if calm {
                return;
            }
        }
        panic!("passes do not come to rest");
    }
}

/// Hours apart: who holds what is respected, what a dead node held is taken over when its time has come and not an hour
/// earlier or later, and so with a backoff; the first push counts, and what is purged stays away.
async fn hours_apart(hub: Duration, ahead: [Duration; 3]) {
    let mut town = Town::new(hub, &ahead).await;
    for (number, node) in town.nodes.iter().enumerate() {
        push(&*node.queue, &format!("own-{number}")).await;
        let payload = format!("{{\"from\":{number}}}");
        let both = dfq::NewTask::from_json(&payload).unwrap().id(id("both"));
        node.queue.push(vec![both]).await.remove(0).unwrap();
    }
    town.settle().await;
    for node in &town.nodes {
        assert_eq!(node.queue.stats(Detail::States).await.unwrap().pending, 4);
    }
    let kept = town.nodes.iter().map(|node| node.queue.count_conflicts());
    let kept: u64 = futures::future::join_all(kept).await.into_iter().map(Result::unwrap).sum();
    assert!(kept >= 2, "two of three payloads lost: {kept} are kept");
    // The first node claims all, its own part first, and lives on.
    let mut held = Vec::new();
    for _ in 0..200 {
        held.extend(town.nodes[0].poll().await);
        if held.len() == 4 {
            break;
        }
        town.live(PERIOD).await;
        town.beat(&held).await;
    }
    assert_eq!(held.len(), 4, "nobody else has claimed any");
    town.merge().await;
    for _ in 0..20 {
        town.live(2 * PERIOD).await;
        town.beat(&held).await;
        town.merge().await;
        for other in &town.nodes[1..] {
            assert_eq!(other.poll().await.len(), 0, "what is renewed is left to its owner");
        }
    }
    // It gives one back for ten minutes, and dies with the others.
    let nack = Nack { receipt: held[0].receipt.clone(), error: "no".into(), delay: Some(LEASE) };
    town.nodes[0].queue.nack(vec![nack]).await.remove(0).unwrap();
    town.merge().await;
    let name = held[0].id().as_str().to_owned();
    for node in &town.nodes {
        let view = node.queue.get(id(&name)).await.unwrap().unwrap();
        assert_eq!(view.state.name(), "backoff");
    }
    let mut first = Vec::new();
    for minute in 1..=50 {
        town.wait(PERIOD);
        for node in &mut town.nodes[1..] {
            node.pass().await;
        }
        for delivery in town.nodes[1].poll().await {
            first.push((delivery.id().as_str().to_owned(), minute));
        }
        if first.len() == 4 {
            break;
        }
    }
    for (id, minute) in &first {
        // A lease of ten minutes and two periods; a backoff of ten minutes. Some is put off, but not for an hour.
        let least = if *id == name { 9 } else { 11 };
        assert!(*minute >= least, "{id} after {minute} minutes: {first:?}");
    }
    assert_eq!(first.len(), 4);
    // What is done and purged stays away.
    for name in ["own-0", "own-1", "own-2", "both"] {
        town.nodes[2].queue.cancel(vec![id(name)], "enough".into()).await.remove(0).unwrap();
    }
    town.settle().await;
    town.wait(5 * HOUR);
    let hub = town.hub(&town.nodes[1].site).await;
    let purge = Purge { outcome: Outcome::Failed, older_than: 3 * HOUR, dry_run: false };
    assert_eq!(hub.purge(purge).await.unwrap().records, 4);
    town.settle().await;
    for node in &town.nodes {
        let stats = node.queue.stats(Detail::States).await.unwrap();
        assert_eq!((stats.pending, stats.completed, stats.failed), (0, 0, 0));
        assert_eq!(node.poll().await.len(), 0);
    }
}

#[tokio::test]
async fn a_node_whose_clock_is_an_hour_ahead() {
    hours_apart(Duration::ZERO, [HOUR, Duration::ZERO, Duration::ZERO]).await;
}

#[tokio::test]
async fn a_node_whose_clock_is_an_hour_behind() {
    hours_apart(HOUR, [Duration::ZERO, HOUR, HOUR]).await;
}

#[tokio::test]
async fn nodes_whose_clocks_are_an_hour_before_and_after_the_hubs() {
    hours_apart(HOUR, [Duration::ZERO, HOUR, 2 * HOUR]).await;
}

/// A purge is followed by the hub's clock: by its own, this node would take it for long forgotten.
#[tokio::test]
async fn a_node_whose_clock_is_a_year_ahead() {
    hours_apart(Duration::ZERO, [365 * 24 * HOUR, Duration::ZERO, Duration::ZERO]).await;
}

/// A machine without a clock of its own: it merged while it took the time for that of 1970, and was told better since.
#[tokio::test]
async fn a_clock_that_was_set_is_no_absence() {
    let mut town = Town::new(Duration::ZERO, &[Duration::ZERO]).await;
    town.merge().await;
    let told = "sync/nodes.json";
    let mut nodes: serde_json::Value =
        serde_json::from_str(&town.nodes[0].site.read(told)).unwrap();
    let now = nodes["began"].clone();
    nodes["began"] = "1970-01-01T00:10:00Z".into();
    town.nodes[0].site.write(told, nodes.to_string());
    let hub = town.hub(&town.nodes[0].site).await;
    let merge = async || Merge::new(&*town.nodes[0].queue, &hub).await.unwrap();
    town.nodes[0].site.pass(2 * Duration::from_secs(1));
    merge().await.pass(false).await.unwrap();
    let after: serde_json::Value = serde_json::from_str(&town.nodes[0].site.read(told)).unwrap();
    assert!(after["clock_set"].as_str() >= now.as_str(), "workers are told: {after}");
    // And one whose clock stood still while it was away was away all the same.
    nodes["began"] = now;
    nodes["began_there"] = "2001-01-01T00:00:00Z".into();
    town.nodes[0].site.write(told, nodes.to_string());
    town.nodes[0].site.pass(2 * Duration::from_secs(1));
    let refused = merge().await.pass(false).await.unwrap_err();
    assert!(refused.to_string().contains("days ago"), "{refused}");
}

/// Files below a folder.
fn files(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

/// Every file that is merged cannot be read any more, and a pass that has nothing to do does not notice.
#[tokio::test]
async fn a_pass_with_nothing_to_do_reads_no_file_and_gets_no_object() {
    let mut town = Town::new(Duration::ZERO, &[Duration::ZERO]).await;
    let node = &mut town.nodes[0];
    let queue = Arc::clone(&node.queue);
    let pushed = queue.push((0..500).map(|n| task(&format!("t{n}"))).collect()).await;
    assert!(pushed.iter().all(Result::is_ok));
    let held = queue.poll(PollRequest::new(40)).await.unwrap().deliveries;
    let receipts = held[..20].iter().map(|it| it.receipt.clone()).collect();
    assert!(queue.ack(receipts).await.iter().all(Result::is_ok));
    let later = (0..20).map(|n| task(&format!("later{n}")).delay(HOUR)).collect();
    assert!(queue.push(later).await.iter().all(Result::is_ok));
    node.pass().await;
    // What was written is looked at once more, in what it was answered to be.
    node.pass().await;
    let (mut merged, root) = (Vec::new(), node.site.path("q"));
    for place in ["pending", "scheduled", "completed", "failed", "floors"] {
        files(&root.join(place), &mut merged);
    }
    assert_eq!(merged.len(), 500 - 20 + 20 + 20 + 20, "tasks, leases, records, delayed tasks");
    for path in &merged {
        node.sys.spoil(path.metadata().unwrap().ino(), Some(rustix::io::Errno::IO));
    }
    town.server.meter().reset();
    node.sys.arm(None);
    let passed = node.pass().await;
    assert!(passed.is_calm(), "{passed:?}");
    assert_eq!((passed.looked_at, passed.troubles.len()), (0, 0));
    let counts = town.server.meter().counts();
    assert_eq!((counts.count("ListObjectsV2"), counts.total()), (1, 1), "{counts:?}");
    // What is read is what changed.
    let one = merged.iter().find(|path| path.ends_with("task.json")).unwrap();
    let text = std::fs::read(one).unwrap();
    std::fs::write(one, text).unwrap();
    let read = node.merge.pass(false).await;
    assert!(read.is_err() || !read.unwrap().is_calm(), "the changed file cannot be read");
}
