//! Three nodes, each with workers and a supervisor of its own, and one bucket.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeMap;
use std::process::Child;

use rustix::process::Signal;
use support::bucket::Place;
use support::synced::{eventually, merged, push, signal, stats, stop};
use support::{Desk, pause};

const NODES: [&str; 3] = ["./n1", "./n2", "./n3"];

/// How often the supervisor of one node is killed.
const KILLS: usize = 10;

#[test]
fn three_nodes_do_all_tasks_though_one_is_cut_off_and_one_is_killed() {
    Town::new(Place::own(), tasks(2001)).lives();
}

#[test]
fn on_another_server_as_well() {
    if let Some(place) = Place::of_others() {
        Town::new(place, tasks(300)).lives();
    }
}

/// A number of tasks, unless somebody wants another.
fn tasks(usual: usize) -> usize {
    let wanted = std::env::var("DFQ_TEST_TASKS").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(usual)
}

struct Town {
    place: Place,
    hub: String,
    all: usize,
}

impl Town {
    fn new(place: Place, all: usize) -> Self {
        Self { hub: place.address("town"), place, all }
    }

    fn desk(&self) -> &Desk {
        &self.place.desk
    }

    fn supervise(&self, node: &str) -> Child {
        self.desk().start(&["supervise", node, "--with", &self.hub, "--every", "2s", "-q"])
    }

    fn work(&self, node: &str) -> Child {
        // With a period of two seconds, as tasks of three seconds with one of a minute.
        let done =
            format!("echo $DFQ_TASK_ID >> {}.done; sleep 0.1", self.desk().path(node).display());
        self.desk().start(&["work", node, "-j", "4", "-q", "--", "sh", "-c", &done])
    }

    /// Pushes a part of the tasks, in turn on each node.
    fn push(&self, from: usize, to: usize) {
        for (at, node) in NODES.iter().enumerate() {
            let ids = (from..to).filter(|number| number % NODES.len() == at);
            push(self.desk(), node, ids.map(|number| format!("t{number}")));
        }
    }

    fn lives(&self) {
        let (desk, all) = (self.desk(), self.all as u64);
        let mut supervisors: Vec<Child> = NODES.iter().map(|node| self.supervise(node)).collect();
        for node in NODES {
            let made = desk.path(node).join("queue.json");
            eventually("the folder is made", || made.exists());
        }
        // A third is known to all, when one is cut off before anybody works.
        let known = self.all / 3;
        self.push(0, known);
        let has_all = |node: &&str| stats(desk, node)["pending"] == known as u64;
        eventually("all nodes have the first", || NODES.iter().all(&has_all));
        signal(&supervisors[2], Signal::STOP);
        supervisors[1].kill().unwrap();
        supervisors[1].wait().unwrap();
        self.push(known, self.all);
        let workers: Vec<Child> = NODES.iter().map(|node| self.work(node)).collect();
        // One is killed again and again, wherever it is.
        let mut amid = 0;
        for kill in 0..KILLS {
            supervisors[1] = self.supervise(NODES[1]);
            // It rests until the one that was killed before counts as gone.
            eventually("it has its turn", || self.has_its_turn(&supervisors[1]));
            (0..2 * kill).for_each(|_| pause());
            amid += usize::from(self.is_amid_its_first_pass(&supervisors[1]));
            supervisors[1].kill().unwrap();
            supervisors[1].wait().unwrap();
        }
        assert!(amid > 0, "no pass was cut short");
        supervisors[1] = self.supervise(NODES[1]);
        signal(&supervisors[2], Signal::CONT);
        // However long it takes: the runner ends what hangs.
        loop {
            let stats = stats(desk, &self.hub);
            if stats["pending"] == 0 && stats["completed"] == all {
                break;
            }
            (0..10).for_each(|_| pause());
        }
        workers.into_iter().for_each(stop);
        supervisors.into_iter().for_each(stop);
        self.settle();
        let first = merged(&desk.path(NODES[0]));
        assert_eq!(first.len() as u64, all, "one record each, and nothing else");
        for node in &NODES[1..] {
            assert!(merged(&desk.path(node)) == first, "{node} is not as {}", NODES[0]);
        }
        assert_eq!(stats(desk, &self.hub)["completed"], all);
        let mut runs: BTreeMap<String, u64> = BTreeMap::new();
        for node in NODES {
            for id in desk.read(&format!("{node}.done")).lines() {
                *runs.entry(id.to_owned()).or_default() += 1;
            }
        }
        assert_eq!(runs.len() as u64, all);
        let ran = |times: u64| runs.values().filter(|runs| **runs == times).count();
        let (once, twice, thrice) = (ran(1), ran(2), ran(3));
        println!(
            "{all} tasks: {once} ran once, {twice} twice, {thrice} on all three nodes; of {KILLS} kills, {amid} were in \
             the first pass of a supervisor"
        );
        assert_eq!((once + twice + thrice) as u64, all, "no node does a task twice: {runs:?}");
    }

    /// Merges each node until nothing changes, with everything compared.
    fn settle(&self) {
        for _ in 0..3 {
            for node in NODES {
                let _ = std::fs::remove_file(self.desk().path(node).join("sync/memory.json"));
                self.desk().ok(&["supervise", node, "--once", "--quiet"]);
            }
        }
    }

    /// From then on it is in its first pass.
    fn has_its_turn(&self, supervisor: &Child) -> bool {
        let path = self.desk().path(NODES[1]).join("sync/supervisor.json");
        let turn = std::fs::read(path).unwrap_or_default();
        let turn: serde_json::Value = serde_json::from_slice(&turn).unwrap_or_default();
        turn["pid"] == supervisor.id()
    }

    /// What a supervisor has done is written down at the end of each pass.
    fn is_amid_its_first_pass(&self, supervisor: &Child) -> bool {
        let status = self.desk().read(&format!("{}/sync/status.json", NODES[1]));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["pid"] != supervisor.id()
    }
}
