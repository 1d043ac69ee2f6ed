//! The commands that look again and again: `stats --watch`, `top`, `wait`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::Desk;

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A command on a terminal that can be typed on while it runs.
struct Session {
    child: Child,
    screen: std::fs::File,
    sent: String,
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

impl Session {
    fn start(desk: &Desk, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let open = || -> OwnedFd {
            std::fs::File::options().read(true).write(true).open(&name).unwrap().into()
        };
        let mut command = desk.command(args);
        command.env("TERM", "xterm-256color");
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        let session =
            Self { child: command.spawn().unwrap(), screen: master.into(), sent: String::new() };
        session.resize(80, 24);
        session
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.screen, size).unwrap();
    }

    fn read(&mut self) -> bool {
        let mut part = [0; 4096];
        match self.screen.read(&mut part) {
            Ok(read) if read > 0 => {
                self.sent += &String::from_utf8_lossy(&part[..read]);
                true
            }
            // A terminal that nobody holds open any more answers EIO: that is its end.
            _ => false,
        }
    }

    fn until(&mut self, text: &str) {
        while !self.sent.contains(text) {
            assert!(self.read(), "it ended without {text:?}: {}", self.sent);
        }
    }

    /// Reads to the end; the screen must be as it was.
    fn end(mut self) -> (Option<i32>, String) {
        while self.read() {}
        let status = self.child.wait().unwrap().code();
        let (entered, left) = (self.sent.find(ENTER), self.sent.rfind(LEAVE));
        assert!(entered.is_some() && entered < left, "{:?}", self.sent);
        assert!(self.sent.rfind(SHOW_CURSOR) > entered, "{:?}", self.sent);
        (status, self.sent)
    }
}

fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "id=first"]);
    desk.ok(&["poll", "./jobs"]);
    desk.ok(&["push", "./jobs", "id=second"]);
    desk
}

#[test]
fn top_ends_by_a_key() {
    for key in ["q", "\u{1b}", "\u{3}"] {
        let desk = desk();
        let mut session = Session::start(&desk, &["top", "./jobs"]);
        session.until("LEASED");
        session.screen.write_all(key.as_bytes()).unwrap();
        let (status, sent) = session.end();
        assert_eq!(status, Some(0), "{sent:?}");
        assert!(sent.contains("ready 1") && sent.contains("first"), "{sent:?}");
    }
}

/// SQS only counts: that is shown, beside all that is known of others.
#[test]
fn top_shows_what_a_queue_tells() {
    let Some(endpoint) = support::sqs::ministack() else { return };
    let desk = support::sqs::desk(endpoint);
    desk.ok(&["push", "sqs://top", "id=there"]);
    desk.ok(&["push", "./jobs", "id=here"]);
    let mut session = Session::start(&desk, &["top", "sqs://top", "./jobs"]);
    session.until("./jobs");
    session.until("pending 1");
    session.screen.write_all(b"q").unwrap();
    let (status, sent) = session.end();
    assert_eq!(status, Some(0), "{sent:?}");
    assert!(sent.contains("pending ~1") && sent.contains("completed -"), "{sent:?}");
}

#[test]
fn top_survives_tiny_screens_and_ends_by_a_signal() {
    let desk = desk();
    let mut session = Session::start(&desk, &["top", "./jobs", "--every", "100ms"]);
    session.until("LEASED");
    for (columns, rows) in [(1, 1), (3, 2), (0, 0), (200, 60)] {
        session.resize(columns, rows);
        signal(&session.child, Signal::WINCH);
        session.sent.clear();
        session.sent.push_str(ENTER);
        session.until("\u{1b}[?2026l");
    }
    signal(&session.child, Signal::TERM);
    let (status, sent) = session.end();
    assert_eq!(status, Some(143), "{sent:?}");
}

#[test]
fn top_needs_a_terminal() {
    let desk = desk();
    let said = desk.dfq(&["top", "./jobs"]);
    assert_eq!(said.status, Some(2));
    assert_eq!(said.err, "dfq: top needs a terminal; use `dfq stats --watch` instead\n");
}

#[test]
fn watching_a_pipe_gives_lines_until_ctrl_c() {
    let desk = desk();
    let mut child = desk.start(&["stats", "./jobs", "--watch", "--every", "100ms"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        let figures = "./jobs pending=2 ready=1 leased=1 stale=0 backoff=0 damaged=0 scheduled=0";
        assert!(line.contains(figures), "{line}");
    }
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watching_ends_with_an_alarm() {
    let desk = desk();
    let args = ["stats", "./jobs", "--watch", "--json", "--fail-if", "pending>=2"];
    let said = desk.dfq(&args);
    assert_eq!(said.status, Some(1));
    assert_eq!(said.err, "dfq: ./jobs: pending is 2 (pending>=2)\n");
    assert_eq!(said.out.lines().count(), 1);
}

#[test]
fn watching_repaints_a_terminal() {
    let desk = desk();
    let args = ["stats", "./jobs", "--watch", "--every", "100ms"];
    let mut session = Session::start(&desk, &args);
    session.until("\u{1b}[11F"); // back up over what was painted
    signal(&session.child, Signal::INT);
    while session.read() {}
    assert_eq!(session.child.wait().unwrap().code(), Some(0));
}

#[test]
fn waiting_until_all_is_done() {
    let desk = Desk::new();
    desk.ok(&["init", "./jobs"]);
    let empty = desk.dfq(&["wait", "./jobs"]);
    assert_eq!((empty.status, empty.out.as_str()), (Some(0), ""), "{empty:?}");
    desk.ok(&["push", "./jobs", "id=a"]);
    let late = desk.dfq(&["wait", "./jobs", "--timeout", "300ms"]);
    assert_eq!(late.status, Some(1), "{late:?}");
    assert!(
        late.err.contains("1 task left") && late.err.contains("dfq explain ./jobs"),
        "{late:?}"
    );
    let json = desk.dfq(&["wait", "./jobs", "--timeout", "0", "--json"]);
    assert!(json.out.contains(r#""outcome":"timeout","pending":1"#), "{json:?}");

    let mut waiting = desk.start(&["wait", "./jobs"]);
    let mut told = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert_eq!(told.next().unwrap().unwrap(), "dfq: waiting for 1 task");
    let claimed: serde_json::Value = serde_json::from_str(&desk.ok(&["poll", "./jobs"])).unwrap();
    desk.ok(&["ack", "./jobs", claimed["receipt"].as_str().unwrap()]);
    assert!(told.next().unwrap().unwrap().starts_with("dfq: nothing is left after "));
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

#[test]
fn waiting_for_a_task_that_fails() {
    let desk = Desk::new();
    desk.ok(&["push", "./jobs", "id=a"]);
    let waiting = desk.start(&["wait", "./jobs", "--json"]);
    let claimed: serde_json::Value = serde_json::from_str(&desk.ok(&["poll", "./jobs"])).unwrap();
    desk.ok(&["fail", "./jobs", claimed["receipt"].as_str().unwrap()]);
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said,
        "{\"outcome\":\"failed\",\"pending\":0,\"scheduled\":0,\"completed\":0,\"failed\":1}\n"
    );
    let again = desk.dfq(&["wait", "./jobs"]);
    assert_eq!(again.status, Some(1));
    assert!(again.err.contains("1 failed task; `dfq failed ./jobs`"), "{again:?}");
}

#[test]
fn waiting_on_a_terminal_shows_a_bar() {
    let desk = desk();
    let said = desk.on_terminal(&["wait", "./jobs", "--timeout", "500ms"], "");
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.out.contains("0/2") && said.out.contains("2 left"), "{said:?}");
}
