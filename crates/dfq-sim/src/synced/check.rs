//! What must be true once passes change nothing any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::life::COMMON;
use super::town::{Accounts, Town};
use super::watch::life_of;
use crate::check::Violation;

type Files = BTreeMap<String, Vec<u8>>;

/// The number in a payload, a task, a record.
pub(super) fn number_in(json: &str) -> Option<i64> {
    serde_json::from_str::<serde_json::Value>(json).ok()?.get("n")?.as_i64()
}

fn number_of(bytes: &[u8]) -> Option<i64> {
    number_in(std::str::from_utf8(bytes).ok()?)
}

fn is_task(path: &str) -> bool {
    (path.starts_with("pending/") || path.starts_with("scheduled/")) && path.ends_with("/task.json")
}

fn is_lease(path: &str) -> bool {
    path.starts_with("pending/") && !path.ends_with("/task.json")
}

fn is_record(path: &str) -> bool {
    path.starts_with("completed/") || path.starts_with("failed/")
}

fn places(town: &Town) -> Vec<(String, Files)> {
    let nodes = town.houses.iter().enumerate();
    let mut places: Vec<_> =
        nodes.map(|(number, house)| (format!("node {number}"), house.disk.files())).collect();
    places.push(("the hub".to_owned(), town.hub.files()));
    places
}

/// Notes which tasks have a record anywhere: they have ended.
pub(super) fn note_records(town: &Town) {
    let mut accounts = town.accounts();
    for (_, files) in places(town) {
        for (path, bytes) in files.iter().filter(|(path, _)| is_record(path)) {
            accounts.ended.extend(number_of(bytes).filter(|_| !is_moved(bytes)));
            let stem = path.rsplit('/').next().and_then(|name| name.strip_suffix(".json"));
            accounts.recorded.extend(stem.map(|stem| life_of(stem).0.to_owned()));
        }
    }
}

/// Whether a record says that its task is in another queue.
fn is_moved(record: &[u8]) -> bool {
    let record = serde_json::from_slice::<serde_json::Value>(record).ok();
    record.is_some_and(|record| record["_dfq"]["moved_to"].is_string())
}

/// Whether anything is left to be done anywhere.
pub(super) fn is_drained(town: &Town) -> bool {
    places(town).iter().all(|(_, files)| !files.keys().any(|path| is_task(path)))
}

/// What is wrong when passes change nothing any more.
pub(super) fn check(town: &Arc<Town>, drained: bool) -> Vec<Violation> {
    note_records(town);
    let mut violations = Vec::new();
    let mut wrong = |rule, text| violations.push(Violation { rule, text });
    let places = places(town);
    let Some((_, hub)) = places.last() else { return Vec::new() };
    // A lease that cannot be read holds its number until its task is over, and so do those after it.
    let is_torn = |(path, bytes): &(&String, &Vec<u8>)| {
        is_lease(path) && serde_json::from_slice::<serde_json::Value>(bytes).is_err()
    };
    let torn = places.iter().flat_map(|(_, files)| files.iter().filter(is_torn));
    let torn: BTreeSet<_> = torn.filter_map(|(path, _)| path.rsplit_once('/')).collect();
    let torn: BTreeSet<&str> = torn.into_iter().map(|(folder, _)| folder).collect();
    let is_held =
        |path: &str| is_lease(path) && path.rsplit_once('/').is_some_and(|it| torn.contains(it.0));
    let merged = |files: &Files| -> BTreeMap<String, Vec<u8>> {
        let merged = files.iter().filter(|(path, _)| {
            let is_here = path.starts_with("pending/") || path.starts_with("scheduled/");
            (is_here || is_record(path)) && !is_held(path)
        });
        merged.map(|(path, bytes)| (path.clone(), bytes.trim_ascii_end().to_vec())).collect()
    };
    let there = merged(hub);
    for (place, files) in &places[..places.len() - 1] {
        let here = merged(files);
        let names: BTreeSet<_> = here.keys().chain(there.keys()).collect();
        if let Some(path) = names.into_iter().find(|path| here.get(*path) != there.get(*path)) {
            let show =
                |files: &Files| files.get(path).map(|it| String::from_utf8_lossy(it).into_owned());
            let (one, other) = (show(&here), show(&there));
            wrong("places are alike", format!("{place}: {path} is {one:?}, in the hub {other:?}"));
        }
    }
    let accounts = town.accounts();
    let (mut to_do, mut kept, mut ids) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (_, files) in &places {
        for (path, bytes) in files {
            let known = is_task(path) || is_record(path) || path.starts_with("conflicts/");
            if known {
                let value = serde_json::from_slice::<serde_json::Value>(bytes).ok();
                let id = value.as_ref().and_then(|it| it["_dfq"]["id"].as_str()).map(str::to_owned);
                ids.extend(id);
            }
            if is_task(path) {
                to_do.extend(number_of(bytes));
            } else if path.starts_with("conflicts/") {
                kept.extend(number_of(bytes));
            }
        }
    }
    kept.extend(town.moved().iter().filter_map(|task| number_of(task)));
    for (number, id, delayed) in &accounts.pushed {
        let done = accounts.acked.contains(number) || accounts.ended.contains(number);
        let there = to_do.contains(number) || kept.contains(number);
        // A delayed push asks for the id to be done, whoever pushed it; a purge may have forgotten that it was. And
        // of what was spoiled there is no other copy.
        let has_lived = ids.contains(id) || accounts.recorded.contains(id);
        let excused = (*delayed && has_lived) || accounts.spoiled.contains(number);
        if !done && !there && !excused && *number != COMMON {
            wrong("nothing pushed is lost", format!("n {number} of '{id}' is nowhere"));
        }
    }
    for number in to_do.iter().filter(|it| **it != COMMON && !accounts.retried.contains(it)) {
        if accounts.acked.contains(number) {
            wrong(
                "nothing finished comes back",
                format!("n {number} was done, and is to be done again"),
            );
        }
    }
    for text in buried(&places, &accounts) {
        wrong("a damaged copy ends no healthy one", text);
    }
    for (place, files) in &places {
        if let Some(text) = gap(files) {
            wrong("lives have no gaps", format!("{place}: {text}"));
        }
    }
    if drained {
        for number in &to_do {
            wrong("every task ends", format!("n {number} is still to be done"));
        }
    }
    violations
}

/// Tasks that are in `conflicts/` because a copy of them was spoiled, though the hub had another.
fn buried(places: &[(String, Files)], accounts: &Accounts) -> BTreeSet<String> {
    let is_over = |number: &i64| accounts.acked.contains(number) || accounts.ended.contains(number);
    let mut buried = BTreeSet::new();
    for (path, bytes) in places.iter().flat_map(|(_, files)| files) {
        let Some(number) = number_of(bytes).filter(|it| accounts.healed.contains(it)) else {
            continue;
        };
        let stem = path.strip_prefix("conflicts/").and_then(|name| name.split('.').next());
        let Some(stem) = stem.filter(|_| !is_over(&number)) else { continue };
        let is_its = |path: &str| is_record(path) && path.ends_with(&format!("/{stem}.json"));
        let ends = places.iter().flat_map(|(_, files)| files).filter(|(path, _)| is_its(path));
        let ends: Vec<_> = ends.map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect();
        let is_by_damage = |end: &std::borrow::Cow<'_, str>| {
            end.contains("\"damaged") && !end.contains("\"cancelled")
        };
        if !ends.is_empty() && ends.iter().all(is_by_damage) {
            buried.insert(format!("n {number} was not done, for a copy of it could not be read"));
        }
    }
    buried
}

/// A life whose earlier ones are neither there nor forgotten.
fn gap(files: &Files) -> Option<String> {
    let mut floors: BTreeMap<String, u64> = BTreeMap::new();
    let mut lives: BTreeMap<String, BTreeMap<u64, (bool, bool)>> = BTreeMap::new();
    for (path, bytes) in files {
        if path.starts_with("floors/") {
            let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
            for floor in value["floors"].as_array().into_iter().flatten() {
                let (id, life) = (floor["id"].as_str()?, floor["generation"].as_u64()?);
                let known = floors.entry(id.to_owned()).or_default();
                *known = (*known).max(life);
            }
        }
        let stem = match path.split('/').collect::<Vec<_>>()[..] {
            ["pending", _, stem, "task.json"] => (stem.to_owned(), false),
            ["completed" | "failed", _, name] => (name.trim_end_matches(".json").to_owned(), true),
            _ => continue,
        };
        let (id, life) = match stem.0.split_once('@') {
            Some((id, life)) => (id.to_owned(), life.parse().ok()?),
            None => (stem.0.clone(), 1),
        };
        let there = lives.entry(id).or_default().entry(life).or_default();
        if stem.1 { there.1 = true } else { there.0 = true }
    }
    for (id, lives) in &lives {
        let floor = floors.get(id).copied().unwrap_or(0);
        for life in lives.keys().filter(|life| **life > floor + 1) {
            if !lives.get(&(life - 1)).is_some_and(|(_, ended)| *ended) {
                return Some(format!(
                    "'{id}' has life {life}, and no end of the one before (floor {floor})"
                ));
            }
        }
    }
    None
}
