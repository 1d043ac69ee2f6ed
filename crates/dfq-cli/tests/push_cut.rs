//! `dfq push` that does not come to its end: what it says was pushed is in the bucket.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use std::collections::BTreeSet;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dfq_s3_server::{Fault, Link};
use rustix::process::{Pid, Signal, kill_process};
use support::bucket::TestBucket;
use support::{Desk, Said};

const TASKS: usize = 300;

/// A bucket, and a desk from which it is reached over a line, with a file of tasks of 50 kB.
struct Far {
    bucket: TestBucket,
    link: Link,
    desk: Desk,
}

impl Far {
    fn new() -> Self {
        let bucket = TestBucket::start();
        let link = bucket.link(|_| {});
        let desk = bucket.desk().and(vec![("AWS_ENDPOINT_URL_S3", link.endpoint())]);
        let filler = "x".repeat(50_000);
        let line = |n| format!("{{\"id\":\"t{n}\",\"filler\":\"{filler}\"}}\n");
        desk.write("tasks.jsonl", (0..TASKS).map(line).collect::<String>());
        Self { bucket, link, desk }
    }

    fn args(&self) -> [String; 4] {
        ["push", &self.bucket.address("jobs"), "--jsonl", "tasks.jsonl"].map(str::to_owned)
    }

    /// The ids of the tasks in the bucket.
    fn there(&self) -> BTreeSet<String> {
        let keys = self.bucket.server.objects().into_keys();
        let folders = keys.filter_map(|key| Some(key.strip_suffix("/task.json")?.to_owned()));
        folders.map(|folder| folder.rsplit('/').next().unwrap().to_owned()).collect()
    }

    /// What was said to be pushed is there, and is as many as were named.
    fn check(&self, said: &Said) -> usize {
        let named: BTreeSet<String> = said.out.lines().map(str::to_owned).collect();
        let there = self.there();
        assert!(named.is_subset(&there), "{} named, {} there", named.len(), there.len());
        let (_, after) = said.err.split_once("pushed so far: ").unwrap();
        let number: usize = after.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(number, named.len(), "{}", said.err);
        assert!(number < TASKS);
        number
    }
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

fn end(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    Said { command: String::new(), out, err, status: output.status.code() }
}

#[test]
fn a_line_that_is_cut() {
    let far = Far::new();
    // In the middle of the second batch: eight megabytes are pushed at a time.
    far.link.cut_after(11_000_000);
    let args = far.args();
    let said = far.desk.dfq(&args.each_ref().map(String::as_str));
    assert_eq!(said.status, Some(7), "{}", said.err);
    assert!(far.check(&said) > 0, "{}", said.err);
}

/// Ctrl-C: what is on its way is waited for, so the number is the very one.
#[test]
fn an_interrupted_push_says_how_many() {
    let far = Far::new();
    // In the middle of the first batch. However slow this test is, the push is not over before it is interrupted.
    far.link.hold_after(6_000_000);
    let args = far.args();
    let child = far.desk.start(&args.each_ref().map(String::as_str));
    support::until("some are pushed", || far.there().len() > 5);
    interrupt(&child);
    far.link.go_on();
    let said = end(child);
    assert_eq!(said.status, Some(130), "{}", said.err);
    assert_eq!(far.check(&said), far.there().len(), "{}", said.err);
}

/// Once more: it ends though the store never answers, and counts nothing that was not answered.
#[test]
fn a_push_that_is_interrupted_twice_waits_for_nothing() {
    let far = Far::new();
    let hung = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hung);
    far.bucket.server.on(move |request| {
        let hangs = request.op == "PutObject" && request.key.ends_with("9/task.json");
        seen.fetch_add(usize::from(hangs), Ordering::SeqCst);
        hangs.then_some(Fault::Delay(std::time::Duration::from_secs(3600)))
    });
    let args = far.args();
    let mut child = far.desk.start(&args.each_ref().map(String::as_str));
    support::until("one hangs", || hung.load(Ordering::SeqCst) > 0);
    interrupt(&child);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    interrupt(&child);
    let said = end(child);
    assert_eq!(said.status, Some(130), "{}", said.err);
    assert!(said.err.contains("on the way, perhaps pushed too"), "{}", said.err);
    assert!(far.check(&said) <= far.there().len(), "{}", said.err);
}
