//! `dfq push`, as typed and as piped.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::Desk;

#[test]
fn tasks_as_json_and_as_pairs() {
    let desk = Desk::new();
    let said = [
        desk.dfq(&["push", "./jobs", r#"{"id": "a", "n": 1}"#, r#"{"id": "b"}"#]),
        desk.dfq(&["push", "./jobs", "id=c", "url=https://example.com/?q=1", "depth:=2"]),
        desk.dfq(&["push", "./jobs", "--id", "d", "[1, 2]"]),
        desk.dfq(&["push", "./jobs", "--json", "id=a", "id2=x"]),
        desk.dfq(&["push", "./jobs", "id=a"]),
        desk.dfq(&["push", "./jobs", "n=1", "--id-hash"]),
        desk.dfq(&["push", "./jobs", "n=1", "--id-hash"]),
        desk.dfq(&["push", "./jobs", "n:=7", "--id-field", "n"]),
        desk.dfq(&["push", "./jobs", "n=1"]),
    ];
    assert_transcript!("push", desk.transcript(&said));
}

#[test]
fn lines_and_json_lines() {
    let desk = Desk::new();
    desk.write("urls.txt", "https://a.example/\r\n\n  two words \nü\n");
    let said = [
        desk.dfq(&["push", "./jobs", "--lines", "urls.txt"]),
        desk.dfq_with(&["push", "./jobs", "--id-field", "line", "--lines", "-"], "x\ny\nx\n"),
        desk.dfq_with(&["push", "./jobs", "--json"], "{\"id\":\"a\"}\n\n[1,2]\n{\"id\":\"a\"}"),
        desk.dfq_with(&["push", "./jobs"], ""),
        desk.dfq_with(&["push", "-q", "./jobs"], "{\"id\":\"quiet\"}\n"),
        desk.dfq(&["work", "-q", "./jobs", "--drain", "--", "true"]),
        desk.dfq(&["push", "./jobs", "id=a"]),
        desk.dfq(&["push", "./jobs", "id=a", "--again", "--json"]),
    ];
    assert_transcript!("push_lines", desk.transcript(&said));
}

/// The rule for bad lines: those before are pushed, those after are not, and the message says so.
#[test]
fn a_bad_line_names_its_number() {
    let desk = Desk::new();
    let mut not_text = b"{\"id\":\"before\"}\n".to_vec();
    not_text.extend_from_slice(b"\"\xff\"\n{\"id\":\"after\"}\n");
    let said = [
        desk.dfq_with(&["push", "./none"], "{oops\n"),
        desk.dfq_with(
            &["push", "./jobs"],
            "{\"id\":\"one\"}\n\n{\"id\":\"two\"}\n{\"id\":\n{\"id\":\"four\"}\n",
        ),
        desk.dfq_with(&["push", "./bytes"], not_text),
        desk.dfq_with(&["push", "./field", "--id-field", "n"], "{\"n\":1}\n{\"m\":2}\n"),
        desk.dfq_with(&["push", "./field", "--id-field", "n"], "{\"n\":[1]}\n"),
        desk.dfq_with(
            &["push", "./ids"],
            format!(
                "{{\"id\":\"ok\"}}\n{{\"id\":\"{}\"}}\n{{\"id\":\"after\"}}\n",
                "x".repeat(300)
            ),
        ),
        desk.dfq(&["push", "./none", "--jsonl", "no-such-file"]),
    ];
    assert_transcript!("push_bad_lines", desk.transcript(&said));
    assert!(!desk.path("none").exists(), "bad input makes no queue");
}

#[test]
fn wrong_uses() {
    let desk = Desk::new();
    let said = [
        desk.dfq(&["push", "./none", "{oops"]),
        desk.dfq(&["push", "./none", "word"]),
        desk.dfq(&["push", "./none", "a=1", "{\"b\":2}"]),
        desk.dfq(&["push", "./none", "a:=nope"]),
        desk.dfq(&["push", "./none", "a=1", "a=2"]),
        desk.dfq(&["push", "./none", "--id", "x", "{}", "{}"]),
        desk.dfq(&["push", "./none", "--id", "", "{}"]),
        desk.dfq(&["push", "./none", "--id", "x", "--id-hash", "{}"]),
        desk.dfq(&["push", "./none", "--delay", "-5m", "{}"]),
        desk.dfq(&["push", "./none", "--delay", "tomorrow", "{}"]),
        desk.dfq(&["push", "./none", "--max-attempts", "0", "{}"]),
        desk.dfq(&["push"]),
        desk.on_terminal(&["push", "./none"], ""),
    ];
    assert_transcript!("push_wrong_uses", desk.transcript(&said));
    assert!(!desk.path("none").exists(), "nothing was changed");
}

#[test]
fn a_slow_writers_tasks_are_not_kept_waiting() {
    use std::io::Write;
    let desk = Desk::new();
    let mut command = desk.command(&["push", "-q", "./jobs"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for n in 0..3 {
        writeln!(stdin, "{{\"id\":\"t{n}\"}}").unwrap();
        // The writer goes on only once the task is there.
        support::until("it is pushed", || {
            desk.dfq(&["work", "-q", "./jobs", "--limit", "1", "--", "true"]).status == Some(0)
        });
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
