//! Many rounds of a race, and what they say together.

use std::time::Duration;

use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use super::basics::Means;
use super::exam::stopped;
use super::race::{Contenders, Contest, Entry, Heat, Prize, Round, Told, judge};
use super::subject::{Kind, Subject};
use super::swap::Trial;
use super::verdict::{Check, Outcome, Promise};
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::store::Tree;

/// Prizes in one heat.
const HEAT: usize = 5;
/// A race that nobody asked to be longer ends after this time, but not before so many rounds.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
const AT_LEAST: usize = 10;
/// When so many rounds went wrong there is nothing left to find out.
const WRONG_ENOUGH: usize = 10;
/// Reads under way at a time, when looking who won.
const READS: usize = 16;

/// How a race went.
#[derive(Clone, Debug)]
pub(super) struct Raced {
    pub(super) contest: Contest,
    /// The most who raced in one round.
    pub(super) clients: usize,
    /// Where they are, in words: `in 4 processes`.
    pub(super) field: String,
    /// Between peers that met through the store.
    pub(super) peers: bool,
    pub(super) rounds: usize,
    pub(super) exact: usize,
    pub(super) undecided: usize,
    /// The most who were told that the same thing is theirs.
    pub(super) most: usize,
    /// What was wrong, first.
    pub(super) wrong: Option<String>,
    /// Why a round could not be judged, first.
    pub(super) silent: Option<String>,
}

impl Raced {
    pub(super) fn new(contest: Contest, field: String, peers: bool) -> Self {
        Self {
            contest,
            clients: 0,
            field,
            peers,
            rounds: 0,
            exact: 0,
            undecided: 0,
            most: 0,
            wrong: None,
            silent: None,
        }
    }

    pub(super) fn add(&mut self, entries: &[Entry], found: Option<&[u8]>) {
        self.rounds += 1;
        self.clients = self.clients.max(entries.len());
        match judge(entries, found) {
            Round::Exact => self.exact += 1,
            Round::Undecided(why) => {
                self.undecided += 1;
                self.silent.get_or_insert(why);
            }
            Round::Wrong(winners, why) => {
                self.most = self.most.max(winners);
                self.wrong.get_or_insert(why);
            }
        }
    }

    /// What it means for a queue; an error if it says nothing at all.
    pub(super) fn check(&self, kind: &Kind, means: Means) -> Result<Check> {
        let name = self.name(kind);
        if let Some(wrong) = &self.wrong {
            let check = Check::new(name, Outcome::No, self.sentence(kind, means, wrong));
            return Ok(self.broken(kind, means.creates).iter().fold(check, |check, promise| {
                check.meaning(*promise, super::Verdict::Refused, None)
            }));
        }
        if self.undecided * 2 > self.rounds {
            let why = self.silent.as_deref().unwrap_or("no answers");
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} of {} rounds of the race had no outcome, so nothing can be said ({why})",
                    self.undecided, self.rounds
                ),
            ));
        }
        let open = match self.undecided {
            0 => String::new(),
            number => format!(", {number} had no outcome"),
        };
        let Self { exact, rounds, clients, field, .. } = self;
        let detail =
            format!("one winner in {exact} of {rounds} rounds{open} ({clients} clients {field})");
        Ok(Check::yes(name, detail))
    }

    fn name(&self, kind: &Kind) -> &'static str {
        match (self.contest, kind, self.peers) {
            (Contest::Record, Kind::Bucket(_), false) => "race: conditional create",
            (Contest::Record, Kind::Bucket(_), true) => "race of peers: conditional create",
            (Contest::Record, _, false) => "race: records",
            (Contest::Record, _, true) => "race of peers: records",
            (Contest::Lease, ..) => "race: leases",
            (Contest::Task, _, false) => "race: tasks",
            (Contest::Task, _, true) => "race of peers: tasks",
            (Contest::Exclusive, _, false) => "race: O_EXCL",
            (Contest::Exclusive, _, true) => "race of peers: O_EXCL",
            (Contest::Swap, _, false) => "race: swap",
            (Contest::Swap, _, true) => "race of peers: swap",
        }
    }

    fn broken(&self, kind: &Kind, creates: bool) -> &'static [Promise] {
        match (self.contest, kind) {
            // A bucket has one way to create; everything rests on it.
            (Contest::Record, Kind::Bucket(_)) => {
                &[Promise::OneOwner, Promise::OneCompletion, Promise::AtLeastOnce]
            }
            (Contest::Record, _) => &[Promise::OneCompletion],
            (Contest::Lease, _) => &[Promise::OneOwner],
            (Contest::Task, _) => &[Promise::AtLeastOnce],
            // Only other programs use it, unless there is nothing better.
            (Contest::Exclusive, _) if creates => &[],
            (Contest::Exclusive, _) => &[Promise::OneOwner, Promise::OneCompletion],
            (Contest::Swap, _) => &[Promise::Index],
        }
    }

    fn sentence(&self, kind: &Kind, found: Means, wrong: &str) -> String {
        let means = match (self.contest, kind) {
            (Contest::Record, Kind::Bucket(_)) => "conditional PUT",
            (Contest::Record, _) => "creating a file if absent",
            (Contest::Lease, _) => "creating a lease if absent",
            (Contest::Task, _) => "renaming a folder if absent",
            (Contest::Exclusive, _) => "O_EXCL",
            (Contest::Swap, Kind::Bucket(_)) => "If-Match",
            (Contest::Swap, _) => "swapping",
        };
        let thing = match (self.contest, kind) {
            (Contest::Swap, _) => "replaced the same version",
            (_, Kind::Bucket(_)) => "created the same key",
            _ => "created the same name",
        };
        let Self { most, clients, exact, rounds, field, .. } = self;
        match most {
            0 | 1 => format!(
                "{means} fails: {wrong} (one winner in {exact} of {rounds} rounds, {field})"
            ),
            most if most == clients && !found.honoured => format!(
                "{means} ignored: {most} of {clients} clients were told that they had {thing}"
            ),
            most => format!(
                "{means} is not atomic: up to {most} of {clients} clients were told that they had \
                 {thing}, one winner in only {exact} of {rounds} rounds ({field})"
            ),
        }
    }
}

/// One kind of race on one store.
pub(super) struct Race<'a, T: Tree> {
    pub(super) subject: &'a Subject<T>,
    pub(super) env: &'a Env,
    pub(super) scratch: &'a str,
    pub(super) contest: Contest,
    /// Addresses that they are spread over.
    pub(super) ways: usize,
    pub(super) rounds: usize,
    /// Goes on for as many rounds as were asked for, however long they take.
    pub(super) patient: bool,
    /// Looked at between heats.
    pub(super) stop: &'a CancellationToken,
}

impl<T: Tree> Race<'_, T> {
    pub(super) async fn run(&self, contenders: &mut dyn Contenders) -> Result<Raced> {
        let mut field = match contenders.processes() {
            1 => "in one process".to_owned(),
            processes => format!("in {processes} processes"),
        };
        if self.ways > 1 {
            field += &format!(", {} ways to the same place", self.ways);
        }
        let began = self.env.monotonic();
        let mut rounds: Vec<(Prize, Vec<Entry>)> = Vec::new();
        let mut wrong = 0;
        while rounds.len() < self.rounds {
            if self.stop.is_cancelled() {
                return Err(stopped());
            }
            let prizes = self.prepare(rounds.len(), HEAT.min(self.rounds - rounds.len())).await?;
            let heat = Heat { contest: self.contest, prizes: prizes.clone() };
            let raced = contenders.race(heat).await?;
            let won = |entry: &&Entry| entry.told == Told::Won;
            let several = |entries: &&Vec<Entry>| entries.iter().filter(won).count() > 1;
            wrong += raced.iter().filter(several).count();
            rounds.extend(prizes.into_iter().zip(raced));
            let long = self.env.monotonic() - began > LONG_ENOUGH && rounds.len() >= AT_LEAST;
            if wrong >= WRONG_ENOUGH || (long && !self.patient) {
                break;
            }
        }
        let mut raced = Raced::new(self.contest, field, false);
        let paths = rounds.iter().map(|(prize, _)| self.contest.file(&prize.path)).collect();
        for (found, (_, entries)) in
            read_all(self.subject, self.contest, paths).await.into_iter().zip(&rounds)
        {
            raced.add(entries, found?.as_deref());
        }
        Ok(raced)
    }

    /// Lays out what a heat needs.
    async fn prepare(&self, first: usize, count: usize) -> Result<Vec<Prize>> {
        let name = format!("{:?}", self.contest).to_lowercase();
        let folder = layout::below(self.scratch, &name);
        let paths: Vec<String> =
            (first..first + count).map(|n| layout::below(&folder, &n.to_string())).collect();
        let prize = |path: String| Prize { path };
        match self.contest {
            Contest::Record | Contest::Task => {}
            Contest::Lease => {
                let tasks: Vec<_> =
                    paths.iter().map(|path| (path.clone(), b"{}".to_vec())).collect();
                let published = self
                    .subject
                    .on(|subject| async move { subject.tree().publish(&tasks, false).await });
                published.await.into_iter().collect::<Result<Vec<_>>>()?;
            }
            Contest::Exclusive => {
                if let Kind::Directory(root) = self.subject.kind() {
                    std::fs::create_dir_all(root.join(&folder)).map_err(|error| {
                        let message = format!("'{folder}' cannot be made: {error}");
                        Error::new(ErrorKind::Unavailable, message)
                    })?;
                }
            }
            Contest::Swap => begin_swaps(self.subject, &paths).await?,
        }
        Ok(paths.into_iter().map(prize).collect())
    }
}

/// Gives what is to be swapped its first content.
pub(super) async fn begin_swaps<T: Tree>(subject: &Subject<T>, paths: &[String]) -> Result<()> {
    let begin = |path: String| {
        subject.on(|subject| async move { Trial::at(&subject, &path)?.begin().await })
    };
    let begun = futures::future::join_all(paths.iter().cloned().map(begin)).await;
    begun.into_iter().collect()
}

/// The contents of files, several at a time.
pub(super) async fn read_all<T: Tree>(
    subject: &Subject<T>,
    contest: Contest,
    paths: Vec<String>,
) -> Vec<Result<Option<Vec<u8>>>> {
    let read = |path: String| {
        subject.on(|subject| async move {
            match contest {
                Contest::Swap => Trial::at(&subject, &path)?.content().await,
                _ => Ok(subject.tree().read(&path).await?.map(|stored| stored.bytes)),
            }
        })
    };
    futures::stream::iter(paths.into_iter().map(read)).buffered(READS).collect().await
}
