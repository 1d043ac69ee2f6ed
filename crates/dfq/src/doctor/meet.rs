//! The race between machines, or mounts, that know nothing of each other but the store.
//!
//! Invariant: nothing here relies on exclusivity or on clocks, which are what is to be found out. Every
//! peer writes files of its own only, under names that it alone uses, and waits for those of the
//! others; rounds are counted, not timed; no wait is without end.
//!
//! ```text
//! tmp/doctor-meeting/<peer>.json     who I am, whom I see, and with whom I would start
//! tmp/doctor-<peers>/<peer>.heat-3   I am at the line for this heat
//! tmp/doctor-<peers>/<peer>.told     what my clients were told
//! tmp/doctor-<peers>/<peer>.left     I have read what I need
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::contest::{Raced, begin_swaps, read_all};
use super::race::{Contenders, Contest, Entrants, Entry, Heat, Prize};
use super::subject::{Kind, Subject};
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::layout;
use crate::store::Tree;

/// How to meet others.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// How many there are, this one too.
    pub peers: usize,
    /// How many clients race from here.
    pub clients: usize,
    /// How long to wait for all to come.
    pub wait: Duration,
}

/// Prizes in one heat, which everybody takes in the same order without waiting in between: who is
/// behind loses, which is quick, and so catches up with those in front.
const HEAT: usize = 20;
const HEATS: usize = 5;
/// How long a peer may take for one heat.
const SILENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A meeting has at most so many.
const MOST_PEERS: usize = 256;

/// What a peer says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    host: String,
    /// All whose files are there. That mine is among them tells that this peer is alive now.
    sees: Vec<String>,
    /// With whom it would start.
    agreed: Vec<String>,
}

/// What a peer's clients were told, contest by contest, round by round.
type ToldAll = Vec<Vec<Vec<Entry>>>;

/// One peer, in one meeting.
struct Seat<'a, T: Tree> {
    subject: &'a Subject<T>,
    env: &'a Env,
    stop: &'a CancellationToken,
    me: String,
    meeting: String,
}

impl Meeting {
    pub(super) async fn race<T: Tree>(
        &self,
        subject: &Subject<T>,
        env: &Env,
        does: (bool, bool),
        stop: &CancellationToken,
    ) -> Result<Vec<Raced>> {
        if !(2..=MOST_PEERS).contains(&self.peers) {
            return Err(Error::invalid(format!("a meeting has 2 to {MOST_PEERS} peers")));
        }
        let me = env.nonce();
        let seat = Seat { subject, env, stop, me, meeting: layout::doctors_folder("meeting") };
        let met = seat.meet(self).await;
        let raced = match met {
            Ok(peers) => {
                let common = layout::doctors_folder(&session(&peers));
                let raced = seat.race(self, &peers, &common, does).await;
                seat.leave(&peers, &common, raced.is_ok()).await;
                raced
            }
            Err(error) => Err(error),
        };
        let hello = seat.hello(&seat.me);
        let _ = seat.subject.on(|s| async move { s.tree().remove_file(&hello).await }).await;
        if let Kind::Directory(root) = subject.kind() {
            // As long as others are there it stays.
            let _ = std::fs::remove_dir(root.join(&seat.meeting));
        }
        raced
    }

    /// What is raced for, where there is a way to create and a way to swap.
    fn contests(kind: &Kind, (creates, swaps): (bool, bool)) -> Vec<Contest> {
        let mut contests = match (kind, creates) {
            (Kind::Directory(_), true) => vec![Contest::Record, Contest::Task, Contest::Exclusive],
            (Kind::Directory(_), false) => vec![Contest::Exclusive],
            (_, true) => vec![Contest::Record],
            (_, false) => vec![],
        };
        contests.extend(swaps.then_some(Contest::Swap));
        contests
    }
}

/// A name that exactly these peers come to.
fn session(peers: &[String]) -> String {
    let digest = Sha256::digest(peers.join(" ").as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

impl<T: Tree> Seat<'_, T> {
    fn hello(&self, peer: &str) -> String {
        layout::below(&self.meeting, &format!("{peer}.json"))
    }

    async fn write(&self, path: String, value: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(value).unwrap_or_default();
        self.subject.on(|s| async move { s.tree().replace(&path, &bytes).await }).await
    }

    /// Reads what another has written; `None` if it is not there, or not all of it yet.
    async fn read<V: DeserializeOwned>(&self, path: String) -> Result<Option<V>> {
        let read = self.subject.on(|s| async move { s.tree().read(&path).await }).await?;
        Ok(read.and_then(|stored| serde_json::from_slice(&stored.bytes).ok()))
    }

    async fn pause(&self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(super::exam::stopped()),
            () = self.env.clock().sleep(LOOK_EVERY) => Ok(()),
        }
    }

    /// Waits until all are there and all have agreed on who all are.
    async fn meet(&self, meeting: &Meeting) -> Result<Vec<String>> {
        let host = self.env.host().name.clone();
        let began = self.env.monotonic();
        let mut hello = Hello { host, sees: Vec::new(), agreed: Vec::new() };
        loop {
            self.write(self.hello(&self.me), &hello).await?;
            let others = self.others().await?;
            // Only who has seen me is here now; other files are those of doctors that are gone.
            let here = |hello: &Hello| hello.sees.contains(&self.me);
            let mut all: Vec<String> = others
                .iter()
                .filter(|(_, hello)| here(hello))
                .map(|(peer, _)| peer.clone())
                .chain([self.me.clone()])
                .collect();
            all.sort_unstable();
            hello.sees = others.iter().map(|(peer, _)| peer.clone()).collect();
            if all.len() > meeting.peers {
                return Err(Error::invalid(format!(
                    "{} examine this store at once; say --peers {} everywhere",
                    all.len(),
                    all.len()
                )));
            }
            if all.len() == meeting.peers {
                let same =
                    |(peer, hello): &(String, Hello)| !all.contains(peer) || hello.agreed == all;
                let agreed = hello.agreed == all && others.iter().all(same);
                hello.agreed = all.clone();
                self.write(self.hello(&self.me), &hello).await?;
                if agreed {
                    return Ok(all);
                }
            }
            if self.env.monotonic() - began > meeting.wait {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} of {} peers came within {} s; start `dfq doctor --peer --peers {}` for \
                         the same place on each of them, or see whether they see each other's files",
                        all.len(),
                        meeting.peers,
                        meeting.wait.as_secs(),
                        meeting.peers
                    ),
                ));
            }
            self.pause().await?;
        }
    }

    async fn others(&self) -> Result<Vec<(String, Hello)>> {
        let meeting = self.meeting.clone();
        let page =
            self.subject.on(|s| async move { s.tree().list_folder(&meeting, None, 1000).await });
        let mut others = Vec::new();
        for entry in page.await?.entries {
            let Some(peer) = entry.name.strip_suffix(".json").filter(|peer| *peer != self.me)
            else {
                continue;
            };
            if let Some(hello) = self.read(self.hello(peer)).await? {
                others.push((peer.to_owned(), hello));
            }
        }
        Ok(others)
    }

    /// Waits for a file of every peer.
    async fn all<V: DeserializeOwned>(
        &self,
        peers: &[String],
        common: &str,
        ending: &str,
    ) -> Result<Vec<V>> {
        let began = self.env.monotonic();
        let mut found = Vec::with_capacity(peers.len());
        for peer in peers {
            loop {
                if let Some(value) =
                    self.read(layout::below(common, &format!("{peer}.{ending}"))).await?
                {
                    found.push(value);
                    break;
                }
                if self.env.monotonic() - began > SILENCE {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        format!(
                            "a peer has not been heard of for {} s (its file '{ending}' is not \
                             seen here); the race has no outcome, so start all of them again",
                            SILENCE.as_secs()
                        ),
                    ));
                }
                self.pause().await?;
            }
        }
        Ok(found)
    }

    async fn race(
        &self,
        meeting: &Meeting,
        peers: &[String],
        common: &str,
        does: (bool, bool),
    ) -> Result<Vec<Raced>> {
        let contests = Meeting::contests(self.subject.kind(), does);
        let prizes = |contest: Contest, heat: usize| -> Vec<Prize> {
            let name = format!("{contest:?}").to_lowercase();
            let folder = layout::below(common, &name);
            let path = |n: usize| layout::below(&folder, &(heat * HEAT + n).to_string());
            (0..HEAT).map(|n| Prize { path: path(n) }).collect()
        };
        let mut entrants =
            Entrants::new(vec![self.subject.clone()], meeting.clients, self.me.clone());
        let mut told: ToldAll = Vec::new();
        for (number, contest) in contests.iter().enumerate() {
            if let (Contest::Exclusive, Kind::Directory(root)) = (contest, self.subject.kind()) {
                let _ = std::fs::create_dir_all(root.join(common).join("exclusive"));
            }
            let mut rounds = Vec::new();
            for heat in 0..HEATS {
                let prizes = prizes(*contest, heat);
                if *contest == Contest::Swap {
                    let paths: Vec<String> =
                        prizes.iter().map(|prize| prize.path.clone()).collect();
                    begin_swaps(self.subject, &paths).await?;
                }
                let line = format!("heat-{}", number * HEATS + heat);
                self.write(layout::below(common, &format!("{}.{line}", self.me)), &true).await?;
                self.all::<bool>(peers, common, &line).await?;
                rounds.extend(entrants.race(Heat { contest: *contest, prizes }).await?);
            }
            told.push(rounds);
        }
        self.write(layout::below(common, &format!("{}.told", self.me)), &told).await?;
        let all: Vec<ToldAll> = self.all(peers, common, "told").await?;
        let mut races = Vec::new();
        for (number, contest) in contests.iter().enumerate() {
            let mut raced = Raced::new(*contest, format!("of {} peers", peers.len()), true);
            let all_prizes = (0..HEATS).flat_map(|heat| prizes(*contest, heat));
            let paths = all_prizes.map(|prize| contest.file(&prize.path)).collect();
            for (round, found) in
                read_all(self.subject, *contest, paths).await.into_iter().enumerate()
            {
                let rounds = all.iter().filter_map(|told| told.get(number)?.get(round));
                let entries: Vec<Entry> = rounds.flatten().cloned().collect();
                raced.add(&entries, found?.as_deref());
            }
            races.push(raced);
        }
        Ok(races)
    }

    /// The first of the peers clears up, once the others have seen what they need.
    async fn leave(&self, peers: &[String], common: &str, orderly: bool) {
        let _ = self.write(layout::below(common, &format!("{}.left", self.me)), &true).await;
        let mut clears_up = peers.first() == Some(&self.me);
        if clears_up && orderly {
            clears_up = self.all::<bool>(peers, common, "left").await.is_ok();
        }
        if clears_up {
            let _ = self.subject.remove_folder(common).await;
        }
    }
}
