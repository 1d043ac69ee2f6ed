//! The answer of a child to one task: a line of JSON.

use dfq::worker::TaskResult;
use serde::Deserialize;
use serde_json::{Map, Value};

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: TaskResult,
    /// Records for the index, if the answer says anything of them.
    pub(crate) records: Option<Vec<Map<String, Value>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    ok: Option<bool>,
    retry: Option<String>,
    fail: Option<String>,
    release: Option<String>,
    delay: Option<String>,
    record: Option<Map<String, Value>>,
    records: Option<Vec<Map<String, Value>>>,
    /// Which task it is about; need not be said.
    id: Option<String>,
}

/// Reads an answer about the task `id`. A child that has once said which task it means must go on doing so. An
/// error says what is wrong: the child cannot be used any more.
pub(crate) fn read(answer: &[u8], id: &str, names_tasks: &mut bool) -> Result<Answer, String> {
    let text = String::from_utf8_lossy(answer);
    let nonsense = |why: &str| {
        // What is wrong may quote what was said.
        let shown = |text: &str| crate::output::cut(&crate::output::printable(text), 200);
        let (said, why) = (shown(text.trim()), shown(why));
        Err(format!("the command answered '{said}', which is not a valid answer ({why})"))
    };
    if !text.ends_with('\n') {
        return Err("the command died in mid-answer".to_owned());
    }
    let mut line: AnswerLine = match serde_json::from_str(&text) {
        Ok(line) => line,
        Err(error) => return nonsense(&error.to_string()),
    };
    let about = line.id.as_deref();
    if about.is_some_and(|about| about != id) || (about.is_none() && *names_tasks) {
        return nonsense(&format!("it was asked about '{}'", crate::output::printable(id)));
    }
    *names_tasks |= about.is_some();
    let delay = match line.delay.as_deref().map(dfq::config::parse_duration).transpose() {
        Ok(delay) => delay,
        Err(error) => return nonsense(&error.to_string()),
    };
    let records = match (line.record.take(), line.records.take()) {
        (Some(_), Some(_)) => return nonsense("one of record and records is wanted"),
        (record, records) => record.map(|record| vec![record]).or(records),
    };
    if records.is_some() && line.ok != Some(true) {
        return nonsense("a record goes with ok");
    }
    let result = match line {
        AnswerLine {
            ok: Some(true), retry: None, fail: None, release: None, delay: None, ..
        } => TaskResult::Ack,
        AnswerLine {
            ok: None | Some(false),
            retry: Some(error),
            fail: None,
            release: None,
            ..
        } => TaskResult::Retry { error, delay },
        AnswerLine {
            ok: None | Some(false),
            retry: None,
            fail: Some(reason),
            release: None,
            delay: None,
            ..
        } => TaskResult::Fail { reason },
        AnswerLine {
            ok: None | Some(false), retry: None, fail: None, release: Some(why), ..
        } => TaskResult::Release { reason: Some(why), delay },
        _ => return nonsense("one of ok, retry, fail and release is wanted"),
    };
    Ok(Answer { result, records })
}

#[cfg(test)]
mod tests;
