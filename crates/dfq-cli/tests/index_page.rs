//! docs/index.md says what happens: every command in it is run, in its order, and prints what stands there.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use support::Desk;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A command, and what it prints.
#[derive(Debug, Default)]
struct Step {
    command: String,
    expected: Vec<String>,
}

/// The commands in the blocks of `console`: a line that begins with `$`, and those after it that begin with `>`.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        for line in block.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.to_owned(), expected: Vec::new() });
            } else if let Some(more) = line.strip_prefix("> ") {
                let step = steps.last_mut().unwrap();
                step.command += "\n";
                step.command += more;
            } else {
                steps.last_mut().unwrap().expected.push(line.to_owned());
            }
        }
    }
    steps
}

/// Whether a line is as expected, where `…` stands for anything.
fn fits(line: &str, expected: &str) -> bool {
    let Some((first, others)) = expected.split_once('…') else { return line == expected };
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let (middle, last) = others.rsplit_once('…').unwrap_or(("", others));
    for part in middle.split('…') {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn the_page_is_right() {
    let page = std::fs::read_to_string(Path::new(HERE).join("../../docs/index.md")).unwrap();
    let steps = steps(&page);
    assert!(steps.len() > 30, "{}", steps.len());
    let desk = Desk::new();
    let reader = std::fs::read(Path::new(HERE).join("../../examples/read_index.py")).unwrap();
    desk.write("read_index.py", reader);
    // `python3` is the one that has DuckDB and frictionless, if there is any.
    let python = std::env::var("DFQ_TEST_PYTHON").ok();
    std::fs::create_dir(desk.path("bin")).unwrap();
    if let Some(python) = &python {
        desk.write("bin/python3", format!("#!/bin/sh\nexec '{python}' \"$@\"\n"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(desk.path("bin/python3"), mode).unwrap();
    }
    let dfq = Path::new(env!("CARGO_BIN_EXE_dfq")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", desk.path("bin").display(), dfq.display());
    let plain = desk.command(&[]);
    for Step { command, expected } in &steps {
        if python.is_none() && (command.contains("duckdb") || command.contains("frictionless")) {
            println!("SKIPPED: DFQ_TEST_PYTHON names no Python with DuckDB and frictionless");
            continue;
        }
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(desk.path(""));
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => bash.env(name, value),
                None => bash.env_remove(name),
            };
        }
        let output = bash.env("PATH", &path).env("LC_ALL", "C.UTF-8").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        let right = lines.len() == expected.len()
            && lines.iter().zip(expected).all(|(line, expected)| fits(line, expected));
        assert!(right, "{command}\nshould print\n{}\nand prints\n{said}", expected.join("\n"));
    }
}
