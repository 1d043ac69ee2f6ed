//! The command line of a task: `{.field}`, `{.a.b}` and `{}` in the arguments, all other braces as
//! they are.
//!
//! Values come from whoever pushed the task. They are arguments and nothing else: no shell reads them,
//! they are never the command itself, not part of a script in its usual forms, and one that begins with a dash does not
//! pass for an option.

use dfq::{Error, ErrorKind, Result};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use super::refused;

/// A command with placeholders.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) program: String,
    args: Vec<Vec<Part>>,
    allow_dash: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The whole task.
    Task,
    /// The member at this path.
    Field(String),
}

/// Programs that take a script as an argument: the letters of a short option, and the long options,
/// that come before it. Without any, the first argument that is no option is the script.
const INTERPRETERS: [(&str, &str, &[&str]); 23] = [
    ("sh", "c", &[]),
    ("bash", "c", &[]),
    ("dash", "c", &[]),
    ("ash", "c", &[]),
    ("zsh", "c", &[]),
    ("ksh", "c", &[]),
    ("mksh", "c", &[]),
    ("fish", "c", &["--command"]),
    ("su", "c", &["--command"]),
    ("script", "c", &["--command"]),
    ("python", "c", &[]),
    ("pypy", "c", &[]),
    ("perl", "eE", &[]),
    ("ruby", "e", &[]),
    ("node", "ep", &["--eval", "--print"]),
    ("nodejs", "ep", &["--eval", "--print"]),
    ("php", "r", &["--run"]),
    ("lua", "e", &[]),
    ("env", "S", &["--split-string"]),
    ("awk", "", &[]),
    ("gawk", "", &[]),
    ("mawk", "", &[]),
    ("nawk", "", &[]),
];

/// Options of awk that take the next word with them.
const AWK_PAIRS: [&str; 3] = ["-v", "-F", "-f"];

impl Template {
    pub(crate) fn new(command: &[String], allow_dash: bool) -> anyhow::Result<Self> {
        let Some((program, args)) = command.split_first() else {
            return Err(crate::exit::invalid("no command: say what to run after `--`"));
        };
        if parse(program).iter().any(|part| !matches!(part, Part::Text(_))) {
            return Err(crate::exit::invalid(
                "the command itself cannot come from a task; put {} or {.field} into its arguments",
            ));
        }
        let template = Self {
            program: program.clone(),
            args: args.iter().map(|arg| parse(arg)).collect(),
            allow_dash,
        };
        template.refuse_scripts(command)?;
        Ok(template)
    }

    /// Whether anything is filled in.
    pub(super) fn has_fields(&self) -> bool {
        self.args.iter().flatten().any(|part| !matches!(part, Part::Text(_)))
    }

    /// A value inside a script would be run as a part of it. The usual forms are refused; there are
    /// more programs that run what they are given than anybody can list.
    fn refuse_scripts(&self, command: &[String]) -> anyhow::Result<()> {
        for (at, word) in command.iter().enumerate() {
            let name = word.rsplit('/').next().unwrap_or(word);
            let name =
                name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
            let Some((_, letters, long)) = INTERPRETERS.iter().find(|(known, ..)| *known == name)
            else {
                continue;
            };
            let rest = &command[at + 1..];
            let scripts = match letters.is_empty() {
                true => awk_program(rest).into_iter().collect(),
                false => scripts_after(rest, letters, long),
            };
            // The command's own arguments begin after its first word.
            let has_value = |script: &usize| {
                let parts = self.args.get(at + script);
                parts.is_some_and(|parts| parts.iter().any(|part| !matches!(part, Part::Text(_))))
            };
            if scripts.iter().any(has_value) {
                return Err(crate::exit::invalid(format!(
                    "a value inside a script for {name} would be run as code; pass it as an argument: \
                     sh -c 'curl \"$1\"' _ {{.url}}"
                )));
            }
        }
        Ok(())
    }

    /// The arguments for a task.
    pub(crate) fn fill(&self, task: &str) -> Result<Vec<String>> {
        let mut ends_options = false;
        let mut filled = Vec::with_capacity(self.args.len());
        for parts in &self.args {
            let mut arg = String::new();
            for part in parts {
                match part {
                    Part::Text(text) => arg.push_str(text),
                    Part::Task => arg.push_str(task),
                    Part::Field(path) => arg.push_str(&field(task, path)?),
                }
            }
            if arg.contains('\0') {
                return Err(refused("a value with a NUL character cannot be an argument"));
            }
            let from_task = !matches!(parts.first(), None | Some(Part::Text(_)));
            if from_task && arg.starts_with('-') && !ends_options && !self.allow_dash {
                return Err(refused(format!(
                    "'{arg}' begins with a dash and could be taken for an option; put -- before it in \
                     the command, or say --allow-dash"
                )));
            }
            // Only one that was written so: a value must not end the options for the next.
            ends_options |= *parts == [Part::Text("--".to_owned())];
            filled.push(arg);
        }
        Ok(filled)
    }
}

/// Where scripts may be: the words of an option that takes one, and the first word after it that is no
/// option.
fn scripts_after(words: &[String], letters: &str, long: &[&str]) -> Vec<usize> {
    let takes_script = |word: &str| {
        let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        short.is_some_and(|short| short.contains(|letter| letters.contains(letter)))
            || long.iter().any(|option| word.split('=').next() == Some(option))
    };
    // Each of them: there may be several scripts, which are run as one.
    let options = (0..words.len()).filter(|at| takes_script(&words[*at]));
    let after = |option: usize| (option + 1..words.len()).find(|at| !words[*at].starts_with('-'));
    options.flat_map(|option| std::iter::once(option).chain(after(option))).collect()
}

/// The first word that is neither an option nor the value of one.
fn awk_program(words: &[String]) -> Option<usize> {
    let mut at = 0;
    while at < words.len() {
        match words[at].as_str() {
            "-f" | "--file" => return None, // the program is in a file
            "--" => return Some(at + 1),
            word if AWK_PAIRS.contains(&word) => at += 2,
            word if word.starts_with('-') => at += 1,
            _ => return Some(at),
        }
    }
    None
}

fn parse(arg: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut text = String::new();
    let mut rest = arg;
    while let Some(open) = rest.find('{') {
        let placeholder = rest[open + 1..].find('}').map(|close| &rest[open + 1..open + 1 + close]);
        let part = match placeholder {
            Some("") => Some(Part::Task),
            Some(placeholder) => placeholder
                .strip_prefix('.')
                .filter(|path| !path.is_empty() && !path.contains(['{', ' ', '"', ',', ':']))
                .map(|path| Part::Field(path.to_owned())),
            None => None,
        };
        match part {
            Some(part) => {
                text.push_str(&rest[..open]);
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(part);
                rest = &rest[open + 2 + placeholder.map_or(0, str::len)..];
            }
            None => {
                text.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
            }
        }
    }
    text.push_str(rest);
    if !text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

/// The member at a path, as its author wrote it: numbers keep all their digits.
fn field(task: &str, path: &str) -> Result<String> {
    let found = raw_member(task, path).ok_or_else(|| {
        let message = format!("the task has no member '{path}', which the command asks for");
        Error::new(ErrorKind::NotFound, message)
    })?;
    let text = found.get().trim();
    if text.starts_with('"') {
        return serde_json::from_str(text).map_err(|error| refused(error.to_string()));
    }
    Ok(text.to_owned())
}

fn raw_member<'a>(json: &'a str, path: &str) -> Option<&'a RawValue> {
    if json.trim_start().starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
        let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        let item = *items.get(first.parse::<usize>().ok()?)?;
        return rest.map_or(Some(item), |rest| raw_member(item.get(), rest));
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    if let Some(found) = members.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    raw_member(members.get(first)?.get(), rest)
}

#[cfg(test)]
mod tests;
