//! What the names in a queue's tree stand for, as FORMAT.md has them.

use dfq::TaskKey;

/// A name that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A task that can be claimed.
    Task,
    /// One that waits for its time.
    Scheduled,
    /// The lease of this attempt.
    Lease(u32),
    /// A record.
    Completed,
    /// A record.
    Failed,
    /// A file of floors.
    Floor,
}

/// What a name stands for, and the name of the life. Nothing for all other files.
pub(super) fn parse(name: &str) -> Option<(Kind, &str)> {
    let (folder, rest) = name.split_once('/')?;
    let file = rest.rsplit('/').next()?;
    let life = || rest.rsplit('/').nth(1);
    match folder {
        "pending" if file == "task.json" => Some((Kind::Task, life()?)),
        "pending" => Some((Kind::Lease(attempt(file)?), life()?)),
        "scheduled" if file == "task.json" => Some((Kind::Scheduled, life()?)),
        "completed" => Some((Kind::Completed, file.strip_suffix(".json")?)),
        "failed" => Some((Kind::Failed, file.strip_suffix(".json")?)),
        "floors" => Some((Kind::Floor, "")),
        _ => None,
    }
}

/// The attempt of a lease, by the name of its file.
pub(super) fn attempt(file: &str) -> Option<u32> {
    match file.strip_prefix("lease")?.strip_suffix(".json")? {
        "" => Some(1),
        number => number.strip_prefix('.')?.parse().ok(),
    }
}

/// The name of a lease's file.
pub(super) fn lease_file(attempt: u32) -> String {
    match attempt {
        1 => "lease.json".to_owned(),
        n => format!("lease.{n}.json"),
    }
}

/// An id as names have it.
pub(super) fn encoded(id: &str) -> String {
    let mut name = String::new();
    for (at, byte) in id.bytes().enumerate() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            b'.' if at > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// The name of a life.
pub(crate) fn stem(key: &TaskKey) -> String {
    match key.generation() {
        0 | 1 => encoded(key.id().as_str()),
        life => format!("{}@{life}", encoded(key.id().as_str())),
    }
}

/// The name of the id's first life, and the number of this one.
pub(super) fn id_and_life(stem: &str) -> (&str, u32) {
    match stem.split_once('@') {
        Some((id, life)) => (id, life.parse().unwrap_or(1)),
        None => (stem, 1),
    }
}

/// The name of a life of an id.
pub(super) fn life_of(id: &str, life: u32) -> String {
    if life <= 1 { id.to_owned() } else { format!("{id}@{life}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_in_both_layouts() {
        assert_eq!(parse("pending/ca/a@2/task.json"), Some((Kind::Task, "a@2")));
        assert_eq!(parse("pending/a/lease.json"), Some((Kind::Lease(1), "a")));
        assert_eq!(parse("pending/ca/a/lease.12.json"), Some((Kind::Lease(12), "a")));
        assert_eq!(parse("scheduled/20270115T0800Z/a/task.json"), Some((Kind::Scheduled, "a")));
        assert_eq!(parse("completed/5e/%2E..json"), Some((Kind::Completed, "%2E.")));
        assert_eq!(parse("failed/a.json"), Some((Kind::Failed, "a")));
        assert_eq!(parse("queue.json"), None);
        assert_eq!(parse("workers/p1.json"), None);
    }

    #[test]
    fn lives_are_named_as_ids_are() {
        assert_eq!(encoded(".."), "%2E.");
        assert_eq!(encoded("d@2"), "d%402");
        assert_eq!(id_and_life("a@12"), ("a", 12));
        assert_eq!(life_of("a", 1), "a");
    }
}
