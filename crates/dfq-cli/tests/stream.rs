//! `dfq work --stream`: one long-lived command for each slot.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

mod support;

use support::{Desk, Said};

fn desk(tasks: &[&str]) -> Desk {
    let desk = Desk::new();
    desk.ok(&["init", "-q", "./jobs", "--backoff", "10ms", "--backoff-max", "10ms"]);
    let lines: String = tasks.iter().map(|id| format!("{{\"id\":\"{id}\"}}\n")).collect();
    assert_eq!(desk.dfq_with(&["push", "-q", "./jobs"], lines).status, Some(0));
    desk
}

/// Runs a shell script that reads a task into `$line` and finds its id in `$id`, again and again.
fn stream(desk: &Desk, more: &[&str], body: &str) -> Said {
    let script = format!(
        r#"echo start >> starts; while read -r line; do id=${{line#*\"id\":\"}}; id=${{id%%\"*}}; {body}; done"#
    );
    let args = [&["work", "./jobs", "--stream"], more, &["--", "sh", "-c", &script]].concat();
    desk.dfq(&args)
}

fn starts(desk: &Desk) -> usize {
    desk.read("starts").lines().count()
}

fn record(desk: &Desk, outcome: &str, id: &str) -> serde_json::Value {
    let shards = std::fs::read_dir(desk.path("jobs").join(outcome)).unwrap();
    let mut files = shards.map(|shard| shard.unwrap().path().join(format!("{id}.json")));
    serde_json::from_slice(&std::fs::read(files.find(|file| file.exists()).unwrap()).unwrap())
        .unwrap()
}

#[test]
fn many_tasks_few_processes() {
    let ids: Vec<String> = (0..60).map(|n| format!("t{n}")).collect();
    let desk = desk(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let said = stream(&desk, &["-j", "3", "--drain"], r#"echo '{"ok":true}'"#);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("60 tasks completed"), "{said:?}");
    assert!(starts(&desk) <= 3);
}

#[test]
fn answers() {
    let desk = desk(&["good", "bad", "retry", "release"]);
    let body = r#"case $id in
        good) echo '{"ok":true}' ;;
        bad) echo '{"fail":"no such page"}' ;;
        retry) case $line in *'"attempt":1,'*) echo '{"retry":"not yet","delay":"1ms"}' ;; *) echo '{"ok":true}' ;; esac ;;
        release) case $line in *'"attempt":1,'*) echo '{"release":"busy"}' ;; *) echo '{"ok":true}' ;; esac ;;
    esac"#;
    let said = stream(&desk, &["--drain"], body);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert_eq!(starts(&desk), 1);
    assert_eq!(record(&desk, "failed", "bad")["_dfq"]["reason"], "no such page");
    let attempts = |id: &str| record(&desk, "completed", id)["_dfq"]["attempts"].clone();
    assert_eq!(attempts("retry")[0]["error"], "not yet");
    assert_eq!(attempts("release")[0]["state"], "released");
}

#[test]
fn a_child_that_dies_loses_only_the_task_it_had() {
    let ids: Vec<String> = (0..20).map(|n| format!("t{n}")).chain(["deadly".into()]).collect();
    let desk = desk(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let body =
        r#"if [ "$id" = deadly ]; then echo "cannot stand it" >&2; exit 3; fi; echo '{"ok":true}'"#;
    let said = stream(&desk, &["--drain", "--max-attempts", "2"], body);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("20 tasks completed"), "{said:?}");
    let failed = record(&desk, "failed", "deadly");
    let reason = failed["_dfq"]["reason"].as_str().unwrap();
    assert_eq!(reason, "the command died in mid-task (exit status 3): cannot stand it");
    assert_eq!(failed["_dfq"]["attempts"].as_array().unwrap().len(), 2);
    assert!((2..=3).contains(&starts(&desk)), "one, and one anew after each death but the last");
}

#[test]
fn nonsense_is_no_verdict() {
    for (answer, why) in [
        ("hello", "not a valid answer"),
        (r#"{"ok":1}"#, "not a valid answer"),
        (r#"{"ok":false}"#, "one of ok"),
        (r#"{"ok":true,"fail":"x"}"#, "one of ok"),
        (r#"{"retry":"x","delay":"soon"}"#, "no length of time"),
        (r#"{"done":true}"#, "not a valid answer"),
        ("", "not a valid answer"),
        (r#"{"ok":true,"id":"b"}"#, "asked about"),
    ] {
        let desk = desk(&["a", "b"]);
        let body =
            format!(r#"if [ $id = a ]; then echo '{answer}'; else echo '{{"ok":true}}'; fi"#);
        let said = stream(&desk, &["--drain", "--max-attempts", "1"], &body);
        assert_eq!(said.status, Some(1), "{answer}: {said:?}");
        let reason = record(&desk, "failed", "a")["_dfq"]["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(why), "{answer}: {reason}");
        record(&desk, "completed", "b");
    }
}

#[test]
fn words_that_nobody_asked_for_are_not_taken_for_an_answer() {
    let desk = desk(&["a", "b", "c", "d"]);
    // Every second answer is one too many, and would complete a task that was never done. Both come in
    // one write, which a shell's own commands do not promise: the second is there when the first is.
    let body = r#"echo "$id" >> done; env printf '{"ok":true}\n{"ok":true}\n'; sleep 0.2"#;
    let said = stream(&desk, &["--drain"], body);
    assert!(said.err.contains("a command that had no task said"), "{said:?}");
    let done = desk.read("done");
    let mut done: Vec<_> = done.lines().collect();
    done.sort_unstable();
    assert_eq!((said.status, done), (Some(0), vec!["a", "b", "c", "d"]), "{}", said.err);
}

/// Ends after three tasks, as programs that leak memory do on purpose.
#[test]
fn a_child_that_ends_between_tasks_costs_nothing() {
    let ids: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    let desk = desk(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let body = r#"echo '{"ok":true}'; n=$((n+1)); if [ $n = 3 ]; then exit 0; fi"#;
    let said = stream(&desk, &["-j", "2", "--drain", "--max-attempts", "1"], body);
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("40 tasks completed, in"), "{said:?}");
    assert!(starts(&desk) >= 14);
}

#[test]
fn a_late_word_about_another_task_is_nonsense_where_tasks_are_named() {
    let desk = desk(&["a", "b"]);
    // Says it again a while later, when it has the next task already.
    let body = r#"echo "$id" >> done; echo "{\"ok\":true,\"id\":\"$id\"}"; sleep 0.3; echo "{\"ok\":true,\"id\":\"$id\"}"; sleep 0.2"#;
    let said = stream(&desk, &["--drain"], body);
    assert_eq!(said.status, Some(0), "{said:?}");
    let done = desk.read("done");
    assert!(done.contains('a') && done.contains('b'), "both were done: {done}");
}

#[test]
fn a_task_that_takes_too_long_costs_its_child() {
    let desk = desk(&["slow", "quick"]);
    let body = r#"if [ $id = slow ]; then sleep 600; fi; echo '{"ok":true}'"#;
    let said = stream(&desk, &["--drain", "--max-attempts", "1", "--timeout", "5s"], body);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert_eq!(record(&desk, "failed", "slow")["_dfq"]["reason"], "timed out after 5s");
    record(&desk, "completed", "quick");
}

#[test]
fn what_it_prints_on_stderr_is_passed_on() {
    let desk = desk(&["a"]);
    let said = stream(&desk, &["--drain", "-q"], r#"echo "about $id" >&2; echo '{"ok":true}'"#);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("", "about a\n"));
}

#[test]
fn payloads_of_several_lines_come_on_one() {
    let desk = desk(&[]);
    desk.ok(&["push", "-q", "./jobs", "{\n \"id\": \"x\",\n \"n\": 12345678901234567890123\n}"]);
    let said = stream(&desk, &["--drain", "-q"], r#"echo "$line" >&2; echo '{"ok":true}'"#);
    assert!(
        said.err.contains(r#""task":{  "id": "x",  "n": 12345678901234567890123 }}"#),
        "{said:?}"
    );
}

#[test]
fn the_python_example() {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: there is no python3 here");
        return;
    }
    let desk = desk(&["a", "b", "bad"]);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/enrich.py");
    let said = desk.dfq(&["work", "./jobs", "--stream", "--drain", "--", "python3", example]);
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("2 tasks completed, 1 failed"), "{said:?}");
}
