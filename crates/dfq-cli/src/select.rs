//! Which tasks are meant: by state, by `--where`, in the order in which a queue lists them.

use std::ops::ControlFlow;
use std::str::FromStr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::Queue;
use dfq::queue::{ListCursor, Place, TaskState, TaskView};

/// A state, or several, as `--state` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateName {
    /// Not finished and due: ready, leased, stale, backoff or damaged
    Pending,
    /// Waits for a worker
    Ready,
    /// A worker has it
    Leased,
    /// Its worker went silent; whoever polls next takes over
    Stale,
    /// Waits for its next attempt
    Backoff,
    /// Waits for its time
    Scheduled,
    /// Done
    Completed,
    /// Given up
    Failed,
    /// Its file cannot be read
    Damaged,
}

impl StateName {
    fn matches(self, state: &TaskState) -> bool {
        match self {
            Self::Pending => place_of(state) == Place::Pending,
            Self::Ready => matches!(state, TaskState::Ready),
            Self::Leased => matches!(state, TaskState::Leased { .. }),
            Self::Stale => matches!(state, TaskState::Stale { .. }),
            Self::Backoff => matches!(state, TaskState::Backoff { .. }),
            Self::Scheduled => matches!(state, TaskState::Scheduled { .. }),
            Self::Completed => matches!(state, TaskState::Completed),
            Self::Failed => matches!(state, TaskState::Failed),
            Self::Damaged => matches!(state, TaskState::Damaged),
        }
    }

    fn place(self) -> Place {
        match self {
            Self::Scheduled => Place::Scheduled,
            Self::Completed => Place::Completed,
            Self::Failed => Place::Failed,
            _ => Place::Pending,
        }
    }
}

fn place_of(state: &TaskState) -> Place {
    match state {
        TaskState::Scheduled { .. } => Place::Scheduled,
        TaskState::Completed => Place::Completed,
        TaskState::Failed => Place::Failed,
        _ => Place::Pending,
    }
}

/// One `--where`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    field: String,
    relation: Relation,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Is,
    IsNot,
    Contains,
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is no condition; write field=value, field!=value or field~part");
        let at = text.find(['=', '~', '!']).ok_or_else(wrong)?;
        let (field, rest) = text.split_at(at);
        let (relation, value) = match rest {
            _ if rest.starts_with("!=") => (Relation::IsNot, &rest[2..]),
            _ if rest.starts_with('=') => (Relation::Is, &rest[1..]),
            _ if rest.starts_with('~') => (Relation::Contains, &rest[1..]),
            _ => return Err(wrong()),
        };
        if field.is_empty() {
            return Err(wrong());
        }
        Ok(Self { field: field.to_owned(), relation, value: value.to_owned() })
    }
}

impl Condition {
    pub(crate) fn matches(&self, view: &TaskView) -> bool {
        let found = self.values(view);
        match self.relation {
            Relation::Is => found.contains(&self.value),
            Relation::IsNot => !found.contains(&self.value),
            Relation::Contains => {
                let part = self.value.to_lowercase();
                found.iter().any(|found| found.to_lowercase().contains(&part))
            }
        }
    }

    /// What the field is in this task: `id`, `error` and `worker` are the queue's own words, anything
    /// else is a member of the payload.
    fn values(&self, view: &TaskView) -> Vec<String> {
        match self.field.as_str() {
            "id" => vec![view.key.id().to_string()],
            "error" => last_error(view).into_iter().collect(),
            "worker" => {
                let last = view.attempts.last().map(|attempt| attempt.worker_id.clone());
                last.into_iter().collect()
            }
            field => {
                let payload = view.payload.as_ref().and_then(|payload| payload.parse().ok());
                let path = field.strip_prefix('.').unwrap_or(field);
                payload
                    .as_ref()
                    .and_then(|value| member(value, path))
                    .map(text)
                    .into_iter()
                    .collect()
            }
        }
    }
}

/// Why a task failed, or its last attempt did.
pub(crate) fn last_error(view: &TaskView) -> Option<String> {
    let attempts = || view.attempts.iter().rev().find_map(|attempt| attempt.error.clone());
    view.reason.clone().or_else(attempts)
}

/// The member at a path such as `a.b`, if there is one. A member whose name has the dots comes first.
pub(crate) fn member<'a>(
    value: &'a serde_json::Value,
    path: &str,
) -> Option<&'a serde_json::Value> {
    if let Some(found) = value.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    let below = match value {
        serde_json::Value::Array(items) => items.get(first.parse::<usize>().ok()?)?,
        _ => value.get(first)?,
    };
    match below {
        serde_json::Value::Array(items) => match rest.split_once('.') {
            None => items.get(rest.parse::<usize>().ok()?),
            Some(_) => member(below, rest),
        },
        _ => member(below, rest),
    }
}

/// A value as a word: strings without their quotes, everything else as JSON.
pub(crate) fn text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The tasks that a command is about.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Only tasks in this state; may be given more than once
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub(crate) state: Vec<StateName>,
    /// Only tasks with field=value, field!=value or field~part; field is a member of the task as
    /// `a.b`, or id, error or worker. May be given more than once: all must hold
    #[arg(long = "where", value_name = "CONDITION")]
    pub(crate) conditions: Vec<Condition>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Only names and states are wanted: so many tasks that have a lease are looked into for that.
    #[arg(skip)]
    pub(crate) looks: Option<usize>,
}

impl Selection {
    pub(crate) fn matches(&self, view: &TaskView) -> bool {
        (self.state.is_empty() || self.state.iter().any(|state| state.matches(&view.state)))
            && self.conditions.iter().all(|condition| condition.matches(view))
    }

    /// Whether any task will do.
    pub(crate) fn picks_nothing(&self) -> bool {
        self.state.is_empty() && self.conditions.is_empty()
    }

    /// Whether tasks in this place are meant.
    pub(crate) fn wants(&self, place: Place) -> bool {
        self.state.is_empty() || self.state.iter().any(|state| state.place() == place)
    }

    /// Whether all conditions can be decided without what was pushed.
    pub(crate) fn needs_no_payload(&self) -> bool {
        self.conditions.iter().all(|it| ["id", "error", "worker"].contains(&it.field.as_str()))
    }

    /// From where to list a place, as closely as it takes.
    fn cursor(&self, place: Place, left: usize) -> ListCursor {
        // What is left out by a condition has to be looked at all the same.
        let most = if self.picks_nothing() { left } else { usize::MAX };
        let cursor = ListCursor::at(place).at_most(most);
        match self.looks {
            Some(looks) => cursor.briefly(looks),
            None => cursor,
        }
    }

    /// Shows every task that is meant to `each`, until that has seen enough.
    pub(crate) async fn visit(
        &self,
        queue: &dyn Queue,
        mut each: impl FnMut(TaskView) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut left = self.limit.unwrap_or(usize::MAX);
        for place in [Place::Pending, Place::Scheduled, Place::Completed, Place::Failed] {
            if !self.wants(place) {
                continue;
            }
            let mut cursor = Some(self.cursor(place, left));
            while let Some(from) = cursor.take().filter(|from| from.place() == place) {
                let page = queue.list(Some(from)).await?;
                for view in page.tasks.into_iter().filter(|view| self.matches(view)) {
                    if left == 0 || each(view)?.is_break() {
                        return Ok(());
                    }
                    left -= 1;
                }
                if left == 0 {
                    return Ok(());
                }
                cursor = page.next;
            }
        }
        Ok(())
    }
}

/// Reads ids as a person types them.
pub(crate) fn task_ids(ids: &[String]) -> Result<Vec<dfq::TaskId>> {
    ids.iter().map(|id| Ok(dfq::TaskId::new(id.as_str())?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        let read = |text: &str| text.parse::<Condition>();
        let is = |field: &str, relation, value: &str| {
            Ok(Condition { field: field.into(), relation, value: value.into() })
        };
        assert_eq!(read("a.b=c=d"), is("a.b", Relation::Is, "c=d"));
        assert_eq!(read("error~time out"), is("error", Relation::Contains, "time out"));
        assert_eq!(read("x!="), is("x", Relation::IsNot, ""));
        for wrong in ["", "x", "=y", "~y", "x!y"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn members_by_path() {
        let value = serde_json::json!({"a": {"b": [10, {"c": 1}]}, "x.y": 2, "s": "t"});
        let at = |path: &str| member(&value, path).map(text);
        assert_eq!(at("a.b.0").as_deref(), Some("10"));
        assert_eq!(at("a.b.1.c").as_deref(), Some("1"));
        assert_eq!(at("x.y").as_deref(), Some("2"));
        assert_eq!(at("s").as_deref(), Some("t"));
        assert_eq!(at("a.z"), None);
    }
}
