//! `dfq export` and `dfq push --jsonl` are each other's inverse: ids and payloads come through as they
//! were, to the letter, but that line breaks between members may become spaces.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;

use support::Desk;
use support::bucket::TestBucket;

/// Ids and payloads that somebody who parses and prints JSON, or builds names from ids, would change.
fn odd_tasks() -> BTreeMap<String, String> {
    let large = format!("{{\"text\":\"{}\"}}", "x€\\n".repeat(40_000));
    assert!(large.len() > 200_000);
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let tasks = [
        ("plain", "{\"url\": \"https://example.com/\"}"),
        ("with spaces and / slashes", "{}"),
        ("../../etc/passwd", "{\"a\":{\"b\":[1,{\"c\":null}]}}"),
        ("päivä 😀", "{\"ä\":\"päivä 😀 \u{200b}\u{2028}\", \"raw\":\"\u{fffe}\"}"),
        ("-dash", "{\"escaped\":\"\\u00e4\\ud83d\\ude00\\/\\t\"}"),
        (".dot", "{\"z\":1,\"a\":2,\"m\":3}"),
        ("a@2", "{ \"b\" :1,\t\"a\":2 , \"b\":3 }"),
        ("100%41", "{\"big\":9007199254740993,\"bigger\":12345678901234567890123}"),
        ("numbers", "{\"e\":1e400,\"f\":1.50,\"zero\":-0.0,\"E\":1E+2}"),
        ("\ttab", "[1, 2.0, \"three\"]"),
        ("\"quoted\"", "\"just text\""),
        ("number", "42"),
        ("null", "null"),
        ("false", "false"),
        ("empty", "\"\""),
        // An object that looks like what a payload that is none is wrapped in.
        ("wrapped", "{\"payload\":42}"),
        ("own id", "{\"id\":\"another\"}"),
        ("nested", "{\"task\":{\"_dfq\":{\"id\":\"not mine\"}}}"),
        ("large", &large),
        ("deep", &deep),
    ];
    tasks.into_iter().map(|(id, json)| (id.to_owned(), json.to_owned())).collect()
}

/// Every task of a queue as a worker gets it: id and text.
fn worked(desk: &Desk, queue: &str) -> BTreeMap<String, String> {
    let out = format!("out-{}", queue.replace(['/', ':'], "-"));
    std::fs::create_dir(desk.path(&out)).unwrap();
    let script =
        r#"d=$(mktemp -d "$OUT/XXXXXX") && printf %s "$DFQ_TASK_ID" >"$d/id" && cat >"$d/task""#;
    let mut command =
        desk.command(&["work", queue, "-j", "4", "--drain", "--", "sh", "-c", script]);
    let ended = command.env("OUT", desk.path(&out)).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let read = |folder: std::io::Result<std::fs::DirEntry>| {
        let folder = folder.unwrap().path();
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let task = text("task");
        // What ends the command's stdin is no part of the task.
        (text("id"), task.strip_suffix('\n').unwrap_or(&task).to_owned())
    };
    std::fs::read_dir(desk.path(&out)).unwrap().map(read).collect()
}

fn push(desk: &Desk, queue: &str, tasks: &BTreeMap<String, String>) {
    for (id, json) in tasks {
        let said = desk.dfq_with(&["push", "-q", queue, &format!("--id={id}")], json);
        assert_eq!(said.status, Some(0), "{said:?}");
    }
}

/// What differs, short enough to be read.
fn assert_same(got: &BTreeMap<String, String>, expected: &BTreeMap<String, String>) {
    assert!(got.keys().eq(expected.keys()), "{:?}", got.keys());
    for (id, text) in expected {
        let short = |text: &str| text.chars().take(200).collect::<String>();
        assert!(got[id] == *text, "{id}: {} became {}", short(text), short(&got[id]));
    }
}

fn exported(desk: &Desk, queue: &str) -> Vec<String> {
    let mut lines: Vec<String> = desk.ok(&["export", queue]).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn from_a_folder_to_a_folder_and_to_a_bucket() {
    let bucket = TestBucket::start();
    let desk = bucket.desk();
    let tasks = odd_tasks();
    push(&desk, "./old", &tasks);
    let lines = exported(&desk, "./old");
    assert_eq!(lines.len(), tasks.len(), "a line for each");
    desk.write("tasks.jsonl", lines.join("\n"));
    for new in ["./new", &bucket.address("new")] {
        let said = desk.dfq(&["push", new, "--jsonl", "tasks.jsonl"]);
        assert_eq!(said.status, Some(0), "{said:?}");
        assert_eq!(exported(&desk, new), lines, "{new} exports what was exported");
        let again = desk.dfq(&["push", new, "--jsonl", "tasks.jsonl"]);
        let known = format!("0 tasks pushed, {} in the queue already", tasks.len());
        assert!(again.err.contains(&known), "{again:?}");
        assert_same(&worked(&desk, new), &tasks);
    }
    assert_same(&worked(&desk, "./old"), &tasks);
}

#[test]
fn line_breaks_between_members_become_spaces_and_those_in_texts_stay() {
    let desk = Desk::new();
    let json = "{\n  \"text\": \"one\\ntwo\",\r\n  \"list\": [\n1,\n2]\n}";
    desk.ok(&["push", "./old", "--id", "broken up", json]);
    let lines = exported(&desk, "./old").join("\n");
    assert_eq!(desk.dfq_with(&["push", "./new", "--jsonl", "-"], &lines).status, Some(0));
    let got = worked(&desk, "./new");
    assert_eq!(got["broken up"], json.replace(['\n', '\r'], " "));
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(parse(&got["broken up"]), parse(json));
}

/// Delayed and failed tasks come along if they are asked for; what has been done does not.
#[test]
fn what_is_exported_is_what_was_asked_for() {
    let desk = Desk::new();
    desk.ok(&["push", "./old", r#"{"id":"done"}"#, r#"{"id":"bad"}"#]);
    let script = "test $DFQ_TASK_ID = done || exit 65";
    desk.dfq(&["work", "./old", "--drain", "--", "sh", "-c", script]);
    desk.ok(&["push", "./old", "id=later", "--delay", "1h"]);
    desk.ok(&["push", "./old", "id=now"]);
    let ids = |lines: Vec<String>| {
        let id = |line: &String| {
            let task: serde_json::Value = serde_json::from_str(line).unwrap();
            task["_dfq"]["id"].as_str().unwrap().to_owned()
        };
        lines.iter().map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids(exported(&desk, "./old")), ["later", "now"]);
    let failed = desk.ok(&["export", "./old", "--state", "failed"]);
    assert_eq!(desk.dfq_with(&["push", "./old", "--again"], &failed).status, Some(0));
    assert_eq!(ids(exported(&desk, "./old")), ["bad", "later", "now"]);
}
