//! Nodes of a synced queue: folders of a desk, merged by real processes with a hub on a real server.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::bucket::TestBucket;
use super::{Desk, Said};

/// What is merged, by path below the root, without white space at the ends.
pub(crate) type Files = BTreeMap<String, String>;

/// What of a place is merged. A pause is mirrored, and told apart.
const PLACES: [&str; 5] = ["pending/", "scheduled/", "completed/", "failed/", "floors/"];

/// A server of our own, with a hub on it, and a desk for the nodes.
pub(crate) struct Town {
    pub(crate) bucket: TestBucket,
    pub(crate) desk: Arc<Desk>,
    pub(crate) hub: String,
}

impl Town {
    /// A hub, and these nodes, each merged once.
    pub(crate) fn with_nodes(nodes: &[&str]) -> Self {
        let bucket = TestBucket::start();
        let (desk, hub) = (Arc::new(bucket.desk()), bucket.address("town"));
        let town = Self { bucket, desk, hub };
        for node in nodes {
            town.desk.ok(&["supervise", node, "--with", &town.hub, "--once", "--quiet"]);
        }
        town
    }

    /// One pass of a node, which must come to its end.
    pub(crate) fn merge(&self, node: &str) {
        self.desk.ok(&["supervise", node, "--once", "--quiet"]);
    }

    /// One pass of a node, and what it said.
    pub(crate) fn try_merge(&self, node: &str) -> Said {
        self.desk.dfq(&["supervise", node, "--once"])
    }

    /// What the hub has of what is merged.
    pub(crate) fn in_hub(&self) -> Files {
        let objects = self.bucket.server.objects().into_iter();
        let ours = objects.filter_map(|(key, bytes)| {
            let key = key.strip_prefix("town/")?;
            let is_merged = PLACES.iter().any(|place| key.starts_with(place));
            is_merged.then(|| (key.to_owned(), text(&bytes)))
        });
        ours.collect()
    }

    /// Passes of these nodes in turn until nothing changes any more, which takes a few rounds at most; first with what
    /// they remember, and then with everything compared: a record of a task that a node never had comes with that.
    pub(crate) fn settle(&self, nodes: &[&str]) {
        self.come_to_rest(nodes);
        for node in nodes {
            let _ = std::fs::remove_file(self.desk.path(node).join("sync/memory.json"));
        }
        self.come_to_rest(nodes);
    }

    fn come_to_rest(&self, nodes: &[&str]) {
        let all = || {
            let folders = nodes.iter().map(|node| merged(&self.desk.path(node)));
            folders.chain([self.in_hub()]).collect::<Vec<_>>()
        };
        for _ in 0..6 {
            let before = all();
            for node in nodes {
                self.merge(node);
            }
            if all() == before {
                return;
            }
        }
        panic!("passes do not come to rest");
    }

    /// All places are the same; answers what they have.
    pub(crate) fn alike(&self, nodes: &[&str]) -> Files {
        let hub = self.in_hub();
        for node in nodes {
            assert_alike(node, &merged(&self.desk.path(node)), &hub);
        }
        hub
    }
}

/// As [`assert_eq`], but it names what differs alone.
fn assert_alike(node: &str, here: &Files, hub: &Files) {
    let names: std::collections::BTreeSet<_> = here.keys().chain(hub.keys()).collect();
    let differ: Vec<_> = names
        .into_iter()
        .filter(|name| here.get(*name) != hub.get(*name))
        .map(|name| format!("{name}\n  {node}: {:?}\n  hub: {:?}", here.get(name), hub.get(name)))
        .collect();
    assert!(differ.is_empty(), "{node} and the hub differ:\n{}", differ.join("\n"));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// All files below a folder that are merged.
pub(crate) fn merged(root: &Path) -> Files {
    fn walk(folder: &Path, root: &Path, into: &mut Files) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, root, into);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                into.insert(name, text(&std::fs::read(&path).unwrap()));
            }
        }
    }
    let mut files = Files::new();
    for place in PLACES {
        walk(&root.join(place), root, &mut files);
    }
    files
}

/// The ids of what has ended so.
pub(crate) fn ended<'a>(files: &'a Files, place: &str) -> Vec<&'a str> {
    let records = files.keys().filter_map(|name| name.strip_prefix(place)?.strip_prefix('/'));
    records.filter_map(|name| name.split_once('/')?.1.strip_suffix(".json")).collect()
}

/// The stems of what is pending.
pub(crate) fn pending(files: &Files) -> Vec<&str> {
    let tasks = files.keys().filter_map(|name| name.strip_prefix("pending/"));
    tasks.filter_map(|name| name.split_once('/')?.1.strip_suffix("/task.json")).collect()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Stops it in good order.
pub(crate) fn stop(mut child: Child) {
    signal(&child, Signal::TERM);
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// What a queue has, by a look at it.
pub(crate) fn stats(desk: &Desk, queue: &str) -> BTreeMap<String, u64> {
    let said = desk.ok(&["stats", queue, "--json", "--quiet"]);
    let all: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&said).unwrap();
    all.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

/// Pushes tasks of these ids.
pub(crate) fn push(desk: &Desk, node: &str, ids: impl IntoIterator<Item = impl AsRef<str>>) {
    let line = |id: &str| format!("{{\"id\":\"{id}\",\"from\":\"{node}\"}}\n");
    let lines: String = ids.into_iter().map(|id| line(id.as_ref())).collect();
    let said = desk.dfq_with(&["push", node, "--jsonl", "-", "--id-field", "id", "-q"], lines);
    assert_eq!(said.status, Some(0), "{said:?}");
}

/// Does all that is free on a node.
pub(crate) fn work(desk: &Desk, node: &str) {
    desk.ok(&["work", node, "--until", "idle", "-q", "--", "true"]);
}

/// Waits until something is so, however slow the machine is.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(600), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A time so many days ago, as files have it.
pub(crate) fn wall_days_ago(days: i64) -> String {
    // A bucket tells its time in whole seconds.
    let ago = jiff::SignedDuration::from_hours(days * 24) + jiff::SignedDuration::from_mins(1);
    (jiff::Timestamp::now() - ago).to_string()
}

/// Lets a node leave no tasks to others.
pub(crate) fn alone(desk: &Desk, node: &str) {
    let path = format!("{node}/sync/nodes.json");
    let mut told: serde_json::Value = serde_json::from_str(&desk.read(&path)).unwrap();
    let id: serde_json::Value =
        serde_json::from_str(&desk.read(&format!("{node}/sync/node.json"))).unwrap();
    told["nodes"] = serde_json::json!([id["node"]]);
    desk.write(&path, format!("{told}\n"));
}

/// Claims all that is free: ids and receipts.
pub(crate) fn poll(desk: &Desk, node: &str) -> Vec<(String, String)> {
    poll_some(desk, node, 100)
}

/// Claims so many at the most.
pub(crate) fn poll_some(desk: &Desk, node: &str, most: usize) -> Vec<(String, String)> {
    let said = desk.dfq(&["poll", node, "-n", &most.to_string()]);
    let held = said.out.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("id"), text("receipt"))
    });
    held.collect()
}
