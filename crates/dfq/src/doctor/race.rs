//! The race for a name: many clients want to create it at the same moment, and exactly one may win.
//!
//! Invariant: what is judged is what the clients were *told*, all of them, against what is there
//! afterwards. A client that got no answer has neither won nor lost.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::subject::{Kind, Subject};
use super::swap::Trial;
use crate::error::Result;
use crate::layout;
use crate::store::objects::{Swap, Version};
use crate::store::{Created, Tree};

/// What is raced for, and by which means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contest {
    /// A file with its content, as an ack creates a record.
    Record,
    /// A lease in a task's folder, as a claim creates it.
    Lease,
    /// A whole task, as a push publishes it.
    Task,
    /// An empty file by `O_CREAT|O_EXCL`, then its content: the way of programs other than this one.
    Exclusive,
    /// The next content of what all have read, as a compaction replaces a shard.
    Swap,
}

impl Contest {
    /// Where the winner's mark is to be found.
    pub(super) fn file(self, path: &str) -> String {
        match self {
            Self::Record | Self::Exclusive | Self::Swap => path.to_owned(),
            Self::Lease => layout::lease_file(path, 1),
            Self::Task => layout::task_file(path),
        }
    }
}

/// Something to race for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prize {
    /// Where, relative to the root.
    pub path: String,
}

/// Prizes that everybody races for in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Heat {
    /// By which means.
    pub contest: Contest,
    /// For what.
    pub prizes: Vec<Prize>,
}

/// What one client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It is yours.
    Won,
    /// It is somebody else's.
    Lost,
    /// Nothing that tells: an error, for this reason.
    Unknown(String),
}

/// What one client wrote for a prize, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The content it wrote, which no other writes.
    pub mark: String,
    /// What it was told.
    pub told: Told,
}

/// Those who race: threads of this process, other processes, or both.
#[async_trait]
pub trait Contenders: Send {
    /// How many processes they are spread over.
    fn processes(&self) -> usize;
    /// Lets all of them race; for each prize every client's entry.
    async fn race(&mut self, heat: Heat) -> Result<Vec<Vec<Entry>>>;
}

/// How many requests a client of a bucket has under way, so that one slow answer does not hold up
/// the rest. On a filesystem a call is short, and one at a time is closer together.
const UNDER_WAY: usize = 4;

/// Clients in this process.
pub struct Entrants<T: Tree> {
    subjects: Vec<Subject<T>>,
    clients: usize,
    mark: String,
}

impl<T: Tree> Entrants<T> {
    /// So many clients, spread over ways to the same store. `mark` must be unlike anybody else's.
    pub fn new(subjects: Vec<Subject<T>>, clients: usize, mark: String) -> Self {
        Self { subjects, clients: clients.max(1), mark }
    }

    /// Lets them race, all starting together; for each client its entries, prize by prize.
    async fn run(&self, heat: &Heat) -> Vec<Vec<Entry>> {
        let heat = Arc::new(heat.clone());
        let blocking = self.subjects.first().is_some_and(Subject::blocking);
        let (threads, tasks) = (
            Arc::new(std::sync::Barrier::new(self.clients)),
            Arc::new(tokio::sync::Barrier::new(self.clients)),
        );
        let running: Vec<_> = (0..self.clients)
            .map(|client| {
                let subject = self.subjects[client % self.subjects.len()].clone();
                let mark = format!("{}-{client}", self.mark);
                let heat = Arc::clone(&heat);
                let (threads, tasks) = (Arc::clone(&threads), Arc::clone(&tasks));
                let env = subject.env().clone();
                if blocking {
                    env.spawn_blocking(async move {
                        let ready = Ready::make(&subject, &heat, &mark).await;
                        threads.wait();
                        ready.go(&subject, &heat, &mark, 1).await
                    })
                } else {
                    env.spawn(async move {
                        let ready = Ready::make(&subject, &heat, &mark).await;
                        tasks.wait().await;
                        ready.go(&subject, &heat, &mark, UNDER_WAY).await
                    })
                }
            })
            .collect();
        let mut entries = Vec::with_capacity(running.len());
        for (client, run) in running.into_iter().enumerate() {
            entries.push(run.await.unwrap_or_else(|_| {
                let told = Told::Unknown("the client ended before its time".to_owned());
                let entry = Entry { mark: format!("{}-{client}", self.mark), told };
                vec![entry; heat.prizes.len()]
            }));
        }
        entries
    }
}

/// Turns each client's entries into each prize's.
pub(super) fn by_prize(clients: Vec<Vec<Entry>>, prizes: usize) -> Vec<Vec<Entry>> {
    let mut table: Vec<Vec<Entry>> = (0..prizes).map(|_| Vec::new()).collect();
    for client in clients {
        for (prize, entry) in client.into_iter().enumerate().take(prizes) {
            table[prize].push(entry);
        }
    }
    table
}

#[async_trait]
impl<T: Tree> Contenders for Entrants<T> {
    fn processes(&self) -> usize {
        1
    }

    async fn race(&mut self, heat: Heat) -> Result<Vec<Vec<Entry>>> {
        let prizes = heat.prizes.len();
        Ok(by_prize(self.run(&heat).await, prizes))
    }
}

/// A client at the starting line: what can be done beforehand has been.
struct Ready<T: Tree> {
    task_dirs: Vec<Option<T::TaskDir>>,
    prepared: Option<Result<T::PreparedLease>>,
    /// What is to be swapped, and the version that has its first content; none if somebody was faster.
    swaps: Vec<Result<(Trial, Option<Version>)>>,
}

impl<T: Tree> Ready<T> {
    async fn make(subject: &Subject<T>, heat: &Heat, mark: &str) -> Self {
        let mut ready = Self { task_dirs: Vec::new(), prepared: None, swaps: Vec::new() };
        if heat.contest == Contest::Lease {
            ready.prepared = Some(subject.tree().prepare_lease(mark.as_bytes()).await);
            for prize in &heat.prizes {
                ready.task_dirs.push(subject.tree().open(&prize.path).await.ok().flatten());
            }
        }
        if heat.contest == Contest::Swap {
            for prize in &heat.prizes {
                ready.swaps.push(first_version(subject, &prize.path).await);
            }
        }
        ready
    }

    async fn go(self, subject: &Subject<T>, heat: &Heat, mark: &str, at_once: usize) -> Vec<Entry> {
        let mut attempts = Vec::with_capacity(heat.prizes.len());
        for (number, prize) in heat.prizes.iter().enumerate() {
            let ready = &self;
            attempts.push(async move {
                let told = ready.attempt(subject, heat.contest, number, prize, mark).await;
                Entry { mark: mark.to_owned(), told }
            });
        }
        futures::stream::iter(attempts).buffered(at_once).collect().await
    }

    async fn attempt(
        &self,
        subject: &Subject<T>,
        contest: Contest,
        number: usize,
        prize: &Prize,
        mark: &str,
    ) -> Told {
        let (tree, bytes) = (subject.tree(), mark.as_bytes());
        let one = |answers: Vec<Result<Created>>| match answers.into_iter().next() {
            Some(Ok(Created::New)) => Told::Won,
            Some(Ok(Created::Exists)) => Told::Lost,
            Some(Err(error)) => Told::Unknown(error.to_string()),
            None => Told::Unknown("no answer".to_owned()),
        };
        match contest {
            Contest::Record => {
                one(tree.create_all(&[(prize.path.clone(), bytes.to_vec())], false).await)
            }
            Contest::Task => {
                one(tree.publish(&[(prize.path.clone(), bytes.to_vec())], false).await)
            }
            Contest::Lease => {
                match (self.task_dirs.get(number).and_then(Option::as_ref), &self.prepared) {
                    (Some(task_dir), Some(Ok(prepared))) => {
                        one(vec![tree.create_lease(task_dir, 1, prepared).await])
                    }
                    (_, Some(Err(error))) => Told::Unknown(error.to_string()),
                    _ => Told::Unknown(format!("'{}' cannot be seen from here", prize.path)),
                }
            }
            Contest::Exclusive => match subject.kind() {
                Kind::Directory(root) => exclusive(root.join(&prize.path), bytes),
                _ => Told::Unknown("there are no files".to_owned()),
            },
            Contest::Swap => match self.swaps.get(number) {
                Some(Ok((_, None))) => Told::Lost,
                Some(Ok((trial, Some(version)))) => match trial.swap(version, bytes).await {
                    Ok(Swap::Written(_)) => Told::Won,
                    Ok(Swap::Lost) => Told::Lost,
                    Err(error) => Told::Unknown(error.to_string()),
                },
                Some(Err(error)) => Told::Unknown(error.to_string()),
                None => Told::Unknown("no answer".to_owned()),
            },
        }
    }
}

async fn first_version<T: Tree>(
    subject: &Subject<T>,
    path: &str,
) -> Result<(Trial, Option<Version>)> {
    let trial = Trial::at(subject, path)?;
    let version = trial.first().await?;
    Ok((trial, version))
}

fn exclusive(path: PathBuf, bytes: &[u8]) -> Told {
    use std::io::Write;
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        // What it wrote may be lost; that it was told it had created the file counts.
        Ok(mut file) => {
            let _ = file.write_all(bytes);
            Told::Won
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Told::Lost,
        Err(error) => Told::Unknown(error.to_string()),
    }
}

/// How a round went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// One winner, and it is the winner's.
    Exact,
    /// Not enough answers to tell.
    Undecided(String),
    /// More than one winner, or not the winner's: so many were told that it is theirs, and this is
    /// what is wrong.
    Wrong(usize, String),
}

/// Compares what all were told with what is there.
pub(super) fn judge(entries: &[Entry], found: Option<&[u8]>) -> Round {
    let told = |wanted: fn(&Told) -> bool| entries.iter().filter(move |entry| wanted(&entry.told));
    let winners: Vec<&Entry> = told(|told| *told == Told::Won).collect();
    let lost = told(|told| *told == Told::Lost).count();
    let silent = told(|told| matches!(told, Told::Unknown(_))).find_map(|entry| {
        if let Told::Unknown(why) = &entry.told { Some(why.as_str()) } else { None }
    });
    let is_there = |entry: &Entry| found == Some(entry.mark.as_bytes());
    match (winners.as_slice(), found) {
        ([winner], Some(_)) if is_there(winner) => Round::Exact,
        ([_], Some(_)) => {
            Round::Wrong(1, "the winner's content was replaced by another's".to_owned())
        }
        ([_], None) => Round::Wrong(1, "what the winner had created was not there".to_owned()),
        // The winner's answer was lost; it would have found out by reading back.
        ([], Some(_)) if entries.iter().any(is_there) => Round::Exact,
        ([], _) => match silent {
            Some(why) => Round::Undecided(why.to_owned()),
            None => Round::Wrong(0, format!("all {lost} clients were told that it exists already")),
        },
        (several, _) => Round::Wrong(
            several.len(),
            format!("{} of {} clients were told that it is theirs", several.len(), entries.len()),
        ),
    }
}

#[cfg(test)]
mod tests;
