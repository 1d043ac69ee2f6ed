//! A worker as it runs in a container: nowhere to write, no home, a bucket for a queue, and a SIGTERM some
//! time before the end. What docs/containers.md says of it is tried here.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::Desk;
use support::bucket::TestBucket;

/// Where nobody can make a file, not even root.
const NOWHERE: &str = "/proc";

/// Makes every mount read-only for what it runs, as `readonlyRootFilesystem` does.
const READ_ONLY: &str = r#"
    while read -r _ place _; do mount -o remount,bind,ro "$place"; done </proc/self/mounts 2>/dev/null
    for place in . "$HERE" /tmp /var/tmp /dev/shm; do
        if touch "$place/.probe" 2>/dev/null; then rm "$place/.probe"; exit 99; fi
    done
    exec "$@""#;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ground {
    /// The working directory and TMPDIR cannot be written to.
    NoPlace,
    /// Nothing can.
    ReadOnly,
}

/// A queue in a bucket, and what commands find around them.
struct Container {
    bucket: TestBucket,
    desk: Desk,
    ground: Ground,
}

impl Container {
    fn new(ground: Ground) -> Self {
        let bucket = TestBucket::start();
        let desk = bucket.desk();
        Self { bucket, desk, ground }
    }

    /// The program in the container. Signals reach it, though whoever runs the tests may ignore some.
    fn run(&self, program: &Path, args: &[&str]) -> Command {
        let bare = ["env", "--default-signal=HUP,INT,TERM", "-u", "HOME", "TMPDIR=/proc"];
        let mut words: Vec<&str> = match self.ground {
            Ground::NoPlace => Vec::new(),
            Ground::ReadOnly => vec!["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"],
        };
        words.extend(bare);
        words.push(program.to_str().unwrap());
        words.extend(args);
        let mut command = self.desk.program(Path::new(words[0]), &words[1..]);
        command.env("GO", self.desk.path("go")).env("HERE", self.desk.path("."));
        if self.ground == Ground::NoPlace {
            command.current_dir(NOWHERE);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Whether such a container can be had here.
    fn is_possible(&self) -> bool {
        let tried = self.run(Path::new("true"), &[]).output();
        let possible = tried.is_ok_and(|tried| tried.status.success());
        if !possible {
            let _ = writeln!(std::io::stderr(), "SKIPPED: no {:?} container here", self.ground);
        }
        possible
    }

    fn work(&self, options: &[&str], script: &str) -> Worker {
        let queue = self.bucket.address("jobs");
        let args = [&["work", &queue], options, &["--", "sh", "-c", script]].concat();
        Worker::start(self.run(Path::new(env!("CARGO_BIN_EXE_dfq")), &args))
    }

    /// Completed, ready, and all that is pending.
    fn counts(&self) -> [u64; 3] {
        let line = self.desk.ok(&["stats", &self.bucket.address("jobs"), "--json"]);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        ["completed", "ready", "pending"].map(|key| line[key].as_u64().unwrap())
    }
}

struct Worker {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
    printed: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let printed = BufReader::new(child.stdout.take().unwrap());
        Self { child, said, printed }
    }

    /// Waits for a command to begin, then asks the worker to stop, and waits until it has understood.
    fn stop_in_mid_task(&mut self) {
        assert!(find(&mut self.printed, "began"), "no command began");
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(find(&mut self.said, "stopping: commands may finish"), "it does not stop");
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

/// Reads until a line holds the text.
fn find(lines: &mut impl BufRead, text: &str) -> bool {
    lines.lines().map_while(Result::ok).any(|line| line.contains(text))
}

fn check(ground: Ground) {
    let container = Container::new(ground);
    if !container.is_possible() {
        return;
    }
    let tasks = [r#"{"id":"a"}"#, r#"{"id":"b"}"#, r#"{"id":"c"}"#];
    container.desk.ok(&[&["push", &container.bucket.address("jobs")], &tasks[..]].concat());

    // A command that ends within the grace is heard to its end, and no other is begun.
    let go = container.desk.path("go");
    assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
    let mut worker = container.work(&["--grace", "10m"], r#"echo began; read -r _ <"$GO""#);
    worker.stop_in_mid_task();
    std::fs::write(&go, "\n").unwrap();
    let (status, said) = worker.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("1 task completed, in"), "{said}");
    assert_eq!(container.counts(), [1, 2, 2]);

    // One that does not is stopped, and its task is free at once, though its lease had minutes to go.
    let mut worker = container.work(&["--grace", "100ms"], "echo began; exec sleep 600");
    worker.stop_in_mid_task();
    let (status, said) = worker.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("0 tasks completed, 1 given back, in"), "{said}");
    assert_eq!(container.counts(), [1, 2, 2]);

    let (status, said) = container.work(&["--drain", "-j", "2"], "true").end();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(container.counts(), [3, 0, 0]);
}

#[test]
fn a_worker_without_a_place_of_its_own() {
    check(Ground::NoPlace);
}

#[test]
fn a_worker_where_nothing_can_be_written() {
    check(Ground::ReadOnly);
}

/// All that a task definition has to say can be said by the environment.
#[test]
fn the_environment_is_configuration_enough() {
    let bucket = TestBucket::start();
    let desk = bucket.desk();
    desk.write("etc/dfq.toml", format!("bucket = '{}'\n[queues.jobs]\n", bucket.address("dfq")));
    let file = desk.path("etc/dfq.toml");
    let run = |args: &[&str]| {
        let mut command = desk.command(args);
        command.current_dir(NOWHERE).env("DFQ_CONFIG", &file);
        command.env("DFQ_QUEUE_TYPE", "s3").env("DFQ_CAMPAIGN", "spring");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["push", "jobs", "id=a"]);
    let out = run(&["work", "jobs", "--drain", "--", "printenv", "DFQ_QUEUE"]);
    assert_eq!(out.trim(), bucket.address("dfq/campaigns/spring/queues/jobs"));
}

/// The first block of this language in docs/containers.md.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/containers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// What the page tells people to copy is taken by `dfq`, and its times fit together.
#[test]
fn the_page_is_right() {
    let dockerfile = block("dockerfile");
    let line = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let words: Vec<String> = serde_json::from_str(line).unwrap();
    let grace = words.iter().skip_while(|word| *word != "--grace").nth(1).unwrap();
    let grace = dfq::config::parse_duration(grace).unwrap().as_secs();
    let definition: serde_json::Value = serde_json::from_str(&block("json")).unwrap();
    let container = &definition["containerDefinitions"][0];
    let stop_timeout = container["stopTimeout"].as_u64().unwrap();
    assert!(grace + 10 <= stop_timeout && stop_timeout <= 120, "{grace} and {stop_timeout}");

    let bucket = TestBucket::start();
    let desk = bucket.desk();
    desk.write("dfq.toml", block("toml").replace("s3://box/dfq", &bucket.address("dfq")));
    let variables = container["environment"].as_array().unwrap().iter();
    let variables = variables.map(|it| [&it["name"], &it["value"]].map(|it| it.as_str().unwrap()));
    let variables: Vec<_> = variables.map(|[name, value]| (name, value)).collect();
    let run = |args: &[&str]| {
        let output = desk.command(args).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["push", "jobs", "url=https://example.com/"]);
    let words = words.iter().map(|word| if word == "fetch" { "echo" } else { word });
    let args: Vec<&str> = words
        .flat_map(|word| match word {
            "jobs" => vec!["jobs", "--drain"],
            word => vec![word],
        })
        .collect();
    assert_eq!(run(&args), "https://example.com/\n");
}
