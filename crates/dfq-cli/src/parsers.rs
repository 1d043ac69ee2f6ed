//! What reads arguments, lines and answers, for those who fuzz it. Thin: each function is one of the command's own.

use std::time::Duration;

use dfq::worker::TaskResult;

use crate::commands::push::source::{self, Format};
use crate::commands::stats::alarm::Alarm;
use crate::commands::work::halt::Limit;
use crate::commands::work::template::Template;
use crate::select::Condition;
use crate::{args, output};

/// A child's answer about a task; `names_tasks` if it has said before which task it means.
pub fn answer(line: &[u8], id: &str, mut names_tasks: bool) -> Result<(TaskResult, bool), String> {
    let answer = crate::commands::work::answer::read(line, id, &mut names_tasks)?;
    Ok((answer.result, names_tasks))
}

/// The arguments of a command for a task. `None` if the command itself is refused.
pub fn fill(
    command: &[String],
    allow_dash: bool,
    task: &str,
) -> Option<Result<Vec<String>, dfq::Error>> {
    Template::new(command, allow_dash).ok().map(|template| template.fill(task))
}

/// `--schema`.
pub fn schema_range(text: &str) -> Result<(i64, i64), String> {
    crate::commands::work::schema_range(text)
}

/// A length of time.
pub fn duration(text: &str) -> Result<Duration, String> {
    args::duration(text)
}

/// `--alert`, as it is printed.
pub fn alarm(text: &str) -> Option<String> {
    text.parse::<Alarm>().ok().map(|alarm| alarm.to_string())
}

/// `--halt`: the number, and whether it is a percentage.
pub fn halt(text: &str) -> Option<(u64, bool)> {
    match text.parse::<Limit>().ok()? {
        Limit::Count(count) => Some((count, false)),
        Limit::Percent(percent) => Some((percent, true)),
    }
}

/// Whether this is a condition of `--where`.
pub fn is_condition(text: &str) -> bool {
    text.parse::<Condition>().is_ok()
}

/// The task on a line of `dfq push`, as JSON.
pub fn pushed_line(line: Vec<u8>, text: bool) -> Option<String> {
    let format = if text { Format::Text } else { Format::Json };
    source::read_line(1, line, format).ok().flatten().map(|input| input.json)
}

/// The tasks that words of `dfq push` make, as JSON.
pub fn pushed_words(words: &[String]) -> Option<Vec<String>> {
    let inputs = source::given(words, "pushed").ok()?;
    Some(inputs.into_iter().map(|input| input.json).collect())
}

/// A member of a value, by its path.
pub fn member(value: &serde_json::Value, path: &str) -> Option<String> {
    crate::select::member(value, path).map(crate::select::text)
}

/// The first columns of a text.
pub fn cut(text: &str, width: usize) -> String {
    output::cut(text, width)
}

/// A text without what a terminal would obey.
pub fn printable(text: &str) -> String {
    output::printable(text)
}

/// A word as a shell takes it.
pub fn shell(word: &str) -> String {
    output::shell(word)
}

/// A length of time in few letters.
pub fn print_duration(duration: Duration) -> String {
    output::duration(duration)
}
