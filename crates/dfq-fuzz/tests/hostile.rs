//! Inputs made to hurt: deep, long and repetitive ones. None takes much stack, memory or time.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a thread with a small stack")]

use std::time::Duration;

use dfq_fuzz::{TARGETS, Target};
use rustix::time::{ClockId, clock_gettime};

/// How long the inputs are. What takes steps by the square of it takes hundreds of millions.
const LENGTH: usize = 16 << 10;

/// A tenth of what a thread usually has.
const STACK: usize = 768 << 10;

/// Of the processor's time, in a debug build on a slow machine.
const AT_MOST: Duration = Duration::from_secs(2);

fn repeated(before: &str, part: &str, after: &str) -> Vec<u8> {
    let times = LENGTH / part.len();
    [before, &part.repeat(times), after].concat().into_bytes()
}

fn hostile(target: &str) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    // Nesting, closed and not.
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("{", "}"), ("a = [", "]"), ("{a=", "}")] {
        let times = LENGTH / 2 / open.len();
        let deep = format!("{}1{}", open.repeat(times), close.repeat(times));
        inputs.push(deep.clone().into_bytes());
        inputs.push(format!("{{\"_dfq\":{{\"id\":\"a\",\"x\":{deep}}}}}").into_bytes());
        inputs.push(format!("{{\"x\":{deep},\"_dfq\":{{\"id\":\"a\"}}}}").into_bytes());
        inputs.push(format!("x = {deep}").into_bytes());
        inputs.push(repeated("", open, ""));
    }
    let inside = [
        ("answer", "{\"ok\":true,\"id\":\"", "\"}\n"),
        ("config", "[queues.a]\naddress = \"", "\""),
        ("config", "[queues.", "]"),
        ("address", "s3://b/", ""),
        ("listing", "<Contents><Key>", "</Key></Contents>"),
        ("template", "{\"a\":1}\necho\n", ""),
        ("queue", "@@ pending/ca/a/task.json\n", "\n"),
        ("queue", "@@ pending/ca/", "/task.json\n{}\n"),
    ];
    for part in [
        "a.",
        "[a.",
        "\"",
        "\\",
        "\\u",
        "\\uD800",
        "%",
        "%2",
        "%2E",
        "@",
        "@2",
        "/",
        "//",
        "../",
        ".",
        "0",
        "9",
        "-",
        "1e",
        "{.",
        "{}",
        "{",
        "&",
        "&a",
        "&a;",
        "&#",
        "<Contents>",
        "<Contents><Key>",
        "</Contents>",
        "\n",
        " ",
        "\u{301}",
        "\u{200d}",
        "\u{ffff}",
        "\u{1f600}",
        "\0",
        "'",
        "#",
        "=",
        "a=1\n",
        "[[a]]\n",
        "h",
        "1h",
        "1h ",
        "1s,",
    ] {
        inputs.push(repeated("", part, ""));
        inputs.push(repeated("{\"a\":\"", part, "\"}\n"));
        inputs.push(repeated("", part, &"x".repeat(300)));
        for (_, before, after) in inside.iter().filter(|(of, ..)| *of == target) {
            inputs.push(repeated(before, part, after));
        }
    }
    // Many members, the same one and others.
    inputs.push(repeated("{", "\"_dfq\":{\"id\":\"a\"},", "\"b\":1}"));
    let members: String = (0..LENGTH / 12).map(|n| format!("\"{n}\":{n},")).collect();
    inputs.push(format!("{{{members}\"_dfq\":{{\"id\":\"a\"}}}}").into_bytes());
    let tables: String = (0..LENGTH / 16).map(|n| format!("[queues.q{n}]\n")).collect();
    inputs.push(tables.into_bytes());
    inputs
}

fn spent() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

fn withstands(target: Target) {
    for input in hostile(target.name) {
        let began = spent();
        target.check(&input);
        let took = spent() - began;
        let start = String::from_utf8_lossy(&input[..60.min(input.len())]).into_owned();
        if std::env::var_os("DFQ_FUZZ_TIMES").is_some() && took > AT_MOST / 50 {
            println!("{} takes {took:?} for {start:?}…", target.name);
        }
        assert!(took < AT_MOST, "{} takes {took:?} for {start:?}…", target.name);
    }
}

fn in_small_stack(targets: impl Iterator<Item = Target>) {
    for target in targets {
        let thread = std::thread::Builder::new().stack_size(STACK).name(target.name.to_owned());
        thread.spawn(move || withstands(target)).unwrap().join().unwrap();
    }
}

#[test]
fn hostile_files() {
    in_small_stack(TARGETS.into_iter().take(8));
}

#[test]
fn hostile_names_and_messages() {
    in_small_stack(TARGETS.into_iter().skip(8).take(8));
}

#[test]
fn hostile_arguments() {
    in_small_stack(TARGETS.into_iter().skip(16).filter(|target| target.name != "queue"));
}

#[test]
fn hostile_queues() {
    in_small_stack(Target::named("queue").into_iter());
}
