//! What other programs read of an index: awk, Python's csv, DuckDB and frictionless agree with `dfq index scan`.
//!
//! DuckDB and frictionless are those of the Python that `DFQ_TEST_PYTHON` names (`servers/python-tools install`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::Command;

use serde_json::{Value, json};
use support::Desk;

/// Values at which readers of CSV have come to grief.
fn odd() -> Vec<Value> {
    let texts = [
        "plain",
        "a,b",
        "stray \" quote",
        "\"begins",
        "\"all of it\"",
        "\"\"",
        "'",
        "it's",
        "back\\slash\\n",
        "\\N",
        "NULL",
        "null",
        "",
        " spaces ",
        "tab\there",
        "two\nlines",
        "cr\rhere",
        "crlf\r\n",
        "unit\u{1f}separator",
        "record\u{1e}separator",
        "group\u{1d}separator",
        "escape\u{10}J",
        "\u{10}",
        "\u{10}0",
        "nul\0",
        "\u{c}feed",
        "next\u{85}line",
        "\u{2028}",
        "\u{feff}bom",
        "ünïcödé",
        "日本",
        "🦀",
        "#comment",
        "1e5",
        "0x10",
        "true",
        "2026-11-19",
    ];
    texts.map(Value::from).into_iter().collect()
}

/// An index of all of them, in which some keys were deleted, some have no values, and columns were added later.
fn make(desk: &Desk) {
    let put = |records: Vec<Value>| {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        let said = desk
            .dfq_with(&["index", "put", "-q", "./i", "--key-field", "name", "--jsonl", "-"], lines);
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""));
    };
    desk.ok(&["index", "init", "-q", "./i", "--key-field", "name", "--columns", "seen:datetime"]);
    let record = |(n, text): (usize, Value)| {
        json!({"name": format!("key {n} \"ü\", 'x'"), "text": text, "n": n, "half": n as f64 / 2.0, "even": n % 2 == 0,
               "seen": "2026-11-19T08:30:00Z", "list": [text, n, null]})
    };
    put(odd().into_iter().enumerate().map(record).collect());
    put(vec![
        json!({"name": "bare"}),
        json!({"name": "deleted", "text": "gone"}),
        json!({"name": "null", "n": null}),
    ]);
    desk.ok(&["index", "delete", "-q", "./i", "deleted", "never there"]);
    desk.ok(&["index", "compact", "-q", "./i", "--all"]);
}

/// A column that most of the shards know nothing of: their rows are shorter.
fn widen(desk: &Desk) {
    desk.ok(&["index", "put", "-q", "./i", "name=later", "added=\"later, too"]);
    desk.ok(&["index", "compact", "-q", "./i", "--all"]);
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Runs a program in the desk's folder; answers what it printed.
fn run(desk: &Desk, program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(desk.path("")).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The line of docs/index.md that begins so.
fn documented(begin: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/index.md"))
        .unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("$ ").filter(|line| line.starts_with(begin)));
    line.unwrap_or_else(|| panic!("docs/index.md has no '{begin}'")).replace("domains", "i")
}

fn python() -> Option<String> {
    let python = std::env::var("DFQ_TEST_PYTHON").ok();
    if python.is_none() {
        println!("SKIPPED: DFQ_TEST_PYTHON names no Python with DuckDB and frictionless");
    }
    python
}

fn reader() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/read_index.py").to_owned()
}

#[test]
fn awk_reads_the_rows() {
    let desk = Desk::new();
    make(&desk);
    for _ in 0..2 {
        let rows = run(&desk, "sh", &["-c", r#"awk -F '\037' '$4 == ""' i/shards/*.usv"#]);
        let bare = |row: String| row.trim_end_matches('\u{1f}').to_owned();
        let scanned = desk.ok(&["index", "scan", "./i", "-o", "usv"]);
        let both =
            [rows, scanned].map(|text| sorted(&text).into_iter().map(bare).collect::<Vec<_>>());
        assert_eq!(both[0], both[1]);
        assert!(both[0].len() > odd().len());
        // As it is documented: the key and the first field.
        let line = documented("awk");
        let (line, _) = line.split_once(" | ").unwrap();
        assert_eq!(run(&desk, "sh", &["-c", line]).lines().count(), both[0].len());
        widen(&desk);
    }
}

#[test]
fn pythons_csv_reads_the_rows() {
    let desk = Desk::new();
    make(&desk);
    for _ in 0..2 {
        let read = run(&desk, "python3", &[&reader(), "i"]);
        let scanned = desk.ok(&["index", "scan", "./i"]);
        let parse = |text: &str| {
            let mut all: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            all.sort_by_key(|record| record["name"].as_str().unwrap().to_owned());
            all
        };
        assert_eq!(parse(&read), parse(&scanned));
        widen(&desk);
    }
}

#[test]
fn duckdb_reads_the_rows() {
    let Some(python) = python() else { return };
    let desk = Desk::new();
    make(&desk);
    let script = r#"
import duckdb, json, sys
fields = json.load(open("i/datapackage.json"))["resources"][0]["schema"]["fields"]
columns = {field["name"]: "VARCHAR" for field in fields}
rows = duckdb.sql(f"""
    SELECT * FROM read_csv('i/shards/*.usv', delim=chr(31), quote='', escape='', new_line='\\n', header=false,
                           auto_detect=false, null_padding=true, columns={columns})
    WHERE _deleted IS NULL""").fetchall()
for row in rows:
    sys.stdout.buffer.write(b"\x1f".join((it or "").encode() for it in row) + b"\n")
"#;
    for _ in 0..2 {
        let rows = run(&desk, &python, &["-c", script]);
        assert_eq!(sorted(&rows), sorted(&desk.ok(&["index", "scan", "./i", "-o", "usv"])));
        widen(&desk);
    }
}

#[test]
fn frictionless_validates_and_reads_the_rows() {
    let Some(python) = python() else { return };
    let desk = Desk::new();
    make(&desk);
    let script = r#"
import json, sys
from frictionless import Checklist, Package, validate
for checklist in [Checklist(), Checklist(skip_errors=["missing-cell"])][int(sys.argv[1]):]:
    report = validate("i/datapackage.json", checklist=checklist)
    assert report.valid, report.flatten(["rowNumber", "type", "message"])
for row in Package("i/datapackage.json").get_resource("shards").read_rows():
    row = dict(row)
    if not row["_deleted"]:
        seen = row["seen"] and row["seen"].strftime("%Y-%m-%dT%H:%M:%SZ")
        half = None if row["half"] is None else float(row["half"])
        print(json.dumps([row["name"], row["n"], half, row["even"], seen, row["text"] is None]))
"#;
    for round in ["0", "1"] {
        let read = run(&desk, &python, &["-c", script, round]);
        let scanned = desk.ok(&["index", "scan", "./i"]);
        let expected = scanned.lines().map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| record.get(name).cloned().unwrap_or(Value::Null);
            json!([
                field("name"),
                field("n"),
                field("half"),
                field("even"),
                field("seen"),
                field("text").is_null()
            ])
        });
        let read = read.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let by_name = |rows: Vec<Value>| {
            let mut rows: Vec<String> = rows.iter().map(Value::to_string).collect();
            rows.sort();
            rows
        };
        assert_eq!(by_name(read.collect()), by_name(expected.collect()));
        widen(&desk);
    }
}

/// What `-o csv` prints is CSV.
#[test]
fn csv_is_read_by_python() {
    let desk = Desk::new();
    make(&desk);
    desk.write("all.csv", desk.ok(&["index", "scan", "./i", "-o", "csv"]));
    let script = r#"
import csv, json
with open("all.csv", newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file, strict=True):
        print(json.dumps([row["name"], row["text"]]))
"#;
    let read = run(&desk, "python3", &["-c", script]);
    let expected: Vec<String> = desk
        .ok(&["index", "scan", "./i"])
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            json!([record["name"], record.get("text").cloned().unwrap_or("".into())]).to_string()
        })
        .collect();
    let read: Vec<String> =
        read.lines().map(|line| serde_json::from_str::<Value>(line).unwrap().to_string()).collect();
    assert_eq!(read, expected);
}
