//! What passes over ten thousand tasks cost, by the meter of the command and that of the server, and by `strace`.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use support::Desk;
use support::bucket::TestBucket;
use support::synced::{alone, merged, poll_some, push, stop};

const TASKS: u64 = 10_000;

/// A page of a listing has so many names.
const PAGE: u64 = 1_000;

/// A whole pass, as the command tells it.
#[derive(Clone, Debug)]
struct Pass {
    whole: bool,
    list: u64,
    get: u64,
    put: u64,
    delete: u64,
    listed: u64,
    looked_at: u64,
}

impl Pass {
    fn read(line: &str) -> Self {
        let said: serde_json::Value = serde_json::from_str(line).unwrap();
        let sent = |kind: &str| said["requests"][kind]["sent"].as_u64().unwrap_or(0);
        let number = |name: &str| said[name].as_u64().unwrap();
        Self {
            whole: said["whole"].as_bool().unwrap(),
            list: sent("list"),
            get: sent("get") + sent("head"),
            put: sent("put"),
            delete: sent("delete"),
            listed: number("listed"),
            looked_at: number("looked_at"),
        }
    }

    fn pages(&self) -> u64 {
        self.listed / PAGE + 1
    }
}

/// A pass of a process of its own; what its meter says must be what the server has counted.
fn pass(desk: &Desk, bucket: &TestBucket) -> Pass {
    bucket.server.meter().reset();
    let pass = Pass::read(desk.ok(&["supervise", "./a", "--once", "--json", "-q"]).trim());
    let counts = bucket.server.meter().counts();
    let counted = ["ListObjectsV2", "PutObject"].map(|op| counts.count(op));
    assert_eq!(counted[0], pass.list, "{counts:?}");
    // A new process also opens the queue.
    assert!(
        counted[1] >= pass.put
            && counts.total() <= pass.list + pass.get + pass.put + pass.delete + 2,
        "{counts:?}"
    );
    pass
}

#[test]
fn a_pass_costs_what_has_changed_and_an_idle_one_the_pages_of_the_hub() {
    let bucket = TestBucket::start();
    let (desk, hub) = (bucket.desk(), bucket.address("q"));
    desk.ok(&["supervise", "./a", "--with", &hub, "--every", "2s", "--once"]);
    push(&desk, "./a", (0..TASKS).map(|number| format!("t{number}")));
    desk.ok(&["supervise", "./a", "--once", "-q"]);
    let settled = pass(&desk, &bucket);
    assert!(settled.looked_at <= TASKS);
    // A process that begins: the settings, and the check-in.
    let begins = pass(&desk, &bucket);
    assert_eq!((begins.list, begins.looked_at), (begins.pages(), 0), "{begins:?}");
    assert!(begins.get <= 3 && begins.put == 1 && begins.delete == 0, "{begins:?}");
    reads_no_file(&desk);
    // One that goes on.
    let mut supervisor = desk.start(&["supervise", "./a", "--json", "-q"]);
    let lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
    let mut idle = Vec::new();
    for line in lines {
        let pass = Pass::read(&line.unwrap());
        assert!(pass.whole && pass.looked_at == 0, "{pass:?}");
        assert_eq!(pass.list, pass.pages(), "{pass:?}");
        match pass.put {
            0 => idle.push(pass),
            // The check-in.
            _ => assert!(pass.put == 1 && pass.get <= 2, "{pass:?}"),
        }
        if idle.len() == 3 {
            break;
        }
    }
    stop(supervisor);
    for pass in &idle {
        assert_eq!((pass.list, pass.get, pass.put, pass.delete), (11, 0, 0, 0), "{pass:?}");
    }
    // A hundred changes: pushes, delayed ones, claims that were given back, and records.
    push(&desk, "./a", (0..25).map(|number| format!("more{number}")));
    for number in 0..25 {
        let id = format!("later{number}");
        let said = desk.dfq_with(&["push", "./a", "--id", &id, "--delay", "1h", "-q"], "{}");
        assert_eq!(said.status, Some(0), "{said:?}");
    }
    alone(&desk, "a");
    let held = poll_some(&desk, "./a", 50);
    assert_eq!(held.len(), 50);
    for (held, verb) in held.chunks(25).zip(["ack", "release"]) {
        let receipts: Vec<&str> = held.iter().map(|(_, receipt)| receipt.as_str()).collect();
        desk.ok(&[&[verb, "./a", "-q"], &receipts[..]].concat());
    }
    let changed = pass(&desk, &bucket);
    // What was claimed may be among what was pushed.
    assert!((75..=100).contains(&changed.looked_at), "{changed:?}");
    assert!((75..=101).contains(&changed.put), "{changed:?}");
    assert!(changed.get <= begins.get + 4 * changed.looked_at, "{changed:?}");
    // The hub's floors once more, for those that were created.
    assert!(changed.list <= begins.list + 1, "{changed:?}");
    assert!(changed.delete <= 25, "{changed:?}");
    println!("a process begins: {begins:?}\nidle: {:?}\n100 changes: {changed:?}", idle[0]);
}

/// The files that are merged, and that a pass opens.
fn files_opened(desk: &Desk) -> Option<Vec<String>> {
    let pass = desk.command(&["supervise", "./a", "--once", "-q"]);
    let mut args = vec!["-f", "-qq", "-e", "trace=open,openat,openat2", "-o", "opened"];
    args.push(pass.get_program().to_str().unwrap());
    args.extend(pass.get_args().map(|arg| arg.to_str().unwrap()));
    let traced = desk.program(Path::new("strace"), &args).output().ok()?;
    if !traced.status.success() {
        return None;
    }
    let opened = desk.read("opened");
    let places = ["/task.json\"", "\"task.json\"", "lease", "completed/", "failed/", "floors/"];
    let is_merged = |line: &&str| {
        !line.contains("O_DIRECTORY") && places.iter().any(|place| line.contains(place))
    };
    Some(opened.lines().filter(is_merged).map(str::to_owned).collect())
}

fn reads_no_file(desk: &Desk) {
    if Command::new("strace").arg("-V").output().is_err() {
        println!(
            "SKIPPED: there is no strace; synced_nodes.rs shows the same with files that cannot be read"
        );
        return;
    }
    match files_opened(desk) {
        Some(opened) => {
            assert_eq!(opened, Vec::<String>::new());
            // One that was written again, alike, is read.
            let (one, _) = merged(&desk.path("a")).pop_first().unwrap();
            let path = desk.path("a").join(one);
            std::fs::write(&path, std::fs::read(&path).unwrap()).unwrap();
            let id = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
            let opened = files_opened(desk).unwrap();
            assert!(opened.iter().any(|line| line.contains("task.json")), "{opened:?}");
            assert!(opened.iter().all(|line| line.contains(id)), "{opened:?}");
        }
        None => println!("SKIPPED: strace may not trace here"),
    }
}
