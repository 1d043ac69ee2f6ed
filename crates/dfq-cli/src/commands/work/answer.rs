//! The answer of a child to one task: a line of JSON.

use dfq::worker::TaskResult;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    ok: Option<bool>,
    retry: Option<String>,
    fail: Option<String>,
    release: Option<String>,
    delay: Option<String>,
    /// Which task it is about; need not be said.
    id: Option<String>,
}

/// Reads an answer about the task `id`. A child that has once said which task it means must go on doing so. An
/// error says what is wrong: the child cannot be used any more.
pub(crate) fn read(answer: &[u8], id: &str, names_tasks: &mut bool) -> Result<TaskResult, String> {
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
    let line: AnswerLine = match serde_json::from_str(&text) {
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
    Ok(match line {
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
    })
}

#[cfg(test)]
mod tests;
