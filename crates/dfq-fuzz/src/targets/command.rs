//! What the command reads: answers of children, templates, arguments, lines to push. And what it shows of them.

use std::time::Duration;

use dfq::worker::TaskResult;
use dfq::{NewTask, Payload};
use dfq_cli::parsers as p;
use serde_json::Value;

use super::{is_json, text};

/// Words of templates and arguments.
pub(crate) const WORDS: &[&str] = &[
    "{}",
    "{.a}",
    "{.a.b}",
    "{.a.0}",
    "{.",
    "}",
    "{{",
    "--",
    "-",
    "sh",
    "-c",
    "awk",
    "python3",
    "\n",
    "{\"a\":{\"b\":[1,\"-x\"]}}",
    "10m",
    "3h50m",
    "1.5h",
    "7d",
    "-5s",
    "P1D",
    "1y",
    "99999999999999w",
    "nan",
    "inf",
    "0",
    "1..3",
    "..=",
    "fail=10",
    "fail=50%",
    "fail=0",
    "failed>0",
    "oldest>=1h",
    "pending = 5",
    "a=1",
    "a:=1",
    "a:={",
    "a!=b",
    "a~b",
    "\u{301}",
    "\u{200d}",
];

pub(crate) fn answer(input: &[u8]) {
    // Bytes that are no text count as one letter each.
    let value: Option<Value> = serde_json::from_str(&String::from_utf8_lossy(input)).ok();
    let said = |name: &str| value.as_ref().and_then(|value| value.get(name));
    for names_tasks in [false, true] {
        match p::answer(input, "a", names_tasks) {
            Ok((result, names_now)) => {
                assert!(input.ends_with(b"\n"), "a part of a line was taken for an answer");
                let id = said("id").filter(|id| !id.is_null());
                assert!(id.is_none_or(|id| id == "a"), "an answer for another task");
                assert_eq!(names_now, id.is_some());
                assert!(names_now || !names_tasks);
                match result {
                    TaskResult::Ack => assert_eq!(said("ok"), Some(&Value::Bool(true))),
                    _ => assert_ne!(said("ok"), Some(&Value::Bool(true))),
                }
            }
            Err(why) => {
                assert!(!why.chars().any(char::is_control), "{why:?}");
                assert!(why.len() < 16 << 10, "{} bytes of complaint", why.len());
            }
        }
    }
}

/// A task on the first line; then a word of the command on each.
pub(crate) fn template(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let mut lines = text.split('\n');
    let task = lines.next().unwrap_or_default();
    let command: Vec<String> = lines.map(str::to_owned).collect();
    for allow_dash in [false, true] {
        let Some(Ok(args)) = p::fill(&command, allow_dash, task) else { continue };
        assert_eq!(args.len() + 1, command.len(), "a value became several arguments, or none");
        let mut ended = false;
        for (word, arg) in command[1..].iter().zip(&args) {
            assert!(!arg.contains('\0'));
            if !word.contains('{') {
                assert_eq!(word, arg);
            }
            let from_task = word.starts_with("{}") || word.starts_with("{.");
            // A brace that is no placeholder stands for itself.
            if from_task && arg.starts_with('-') {
                assert!(allow_dash || ended, "'{arg}' passes for an option");
            }
            ended |= word == "--";
        }
    }
}

pub(crate) fn arguments(input: &[u8]) {
    for text in [false, true] {
        let Some(json) = p::pushed_line(input.to_vec(), text) else { continue };
        if text {
            let line = Payload::from_json(&json).unwrap().string_member("line").unwrap();
            assert!(input.starts_with(line.as_bytes()));
        }
        let _ = NewTask::from_json(&json);
    }
    let Some(text) = text(input) else { return };
    if let Ok(duration) = p::duration(text)
        // More days than these cannot be typed.
        && duration < Duration::from_secs(7_000_000 * 86_400)
    {
        let printed = p::print_duration(duration);
        let again = p::duration(&printed).unwrap();
        // Two units are shown, and seconds without their parts.
        assert!(again <= duration && duration - again <= duration / 2 + Duration::from_millis(1));
    }
    if let Ok((low, high)) = p::schema_range(text) {
        assert!(low <= high);
    }
    if let Some(alarm) = p::alarm(text) {
        assert_eq!(p::alarm(&alarm).as_ref(), Some(&alarm));
    }
    if let Some((number, percent)) = p::halt(text) {
        assert!(number >= 1 && (!percent || number <= 100));
    }
    let _ = p::is_condition(text);
    let words: Vec<String> = text.split('\n').map(str::to_owned).collect();
    if let Some(tasks) = p::pushed_words(&words) {
        assert!(tasks.iter().all(|task| is_json(task.as_bytes())));
        assert!(tasks.len() == 1 || tasks.len() == words.len());
    }
    if let Ok(value) = serde_json::from_str::<Value>(&words[0]) {
        let _ = p::member(&value, words.last().unwrap());
    }
}

pub(crate) fn shown(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let printable = p::printable(&text);
    assert!(!printable.chars().any(char::is_control));
    assert_eq!(printable.chars().count(), text.chars().count());
    for width in [1, 20, 200] {
        let cut = p::cut(&printable, width);
        let whole = cut == printable;
        let start = cut.strip_suffix('…').unwrap_or(&cut);
        assert!(whole || printable.starts_with(start));
        assert!(cut.chars().count() <= 8 * width + 1, "{} letters", cut.chars().count());
    }
    let word = p::shell(&text);
    let quoted = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\''));
    match quoted {
        Some(inner) => assert!(!inner.replace(r"'\''", "").contains('\'')),
        None => assert!(!word.contains([' ', '\'', '"', '$', '`', ';', '\n', '\\', '*'])),
    }
}
