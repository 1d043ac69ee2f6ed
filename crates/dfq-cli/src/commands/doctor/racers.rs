//! The processes that race: this command started again, told on stdin how to get at the store and then
//! what to race for, answering on stdout what its clients were told. They end when their stdin does.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use dfq::address::Address;
use dfq::doctor::{Contenders, Entrants, Entry, Heat, Subject};
use dfq::options::S3Options;
use dfq::store::Tree;
use dfq::{Env, OpenOptions};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::subjects::Subjects;
use crate::context::whole;
use crate::exit::Answer;

/// Longer than any request with its repetitions; a mount may hang for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the configuration says of getting at a bucket. Credentials are not in it: every process finds
/// its own.
#[derive(Default, Serialize, Deserialize)]
struct Access {
    endpoint: Option<String>,
    region: Option<String>,
    profile: Option<String>,
    path_style: Option<bool>,
}

impl Access {
    fn of(options: &S3Options) -> Self {
        let S3Options { endpoint, region, profile, path_style, .. } = options.clone();
        Self { endpoint, region, profile, path_style }
    }

    fn options(self) -> S3Options {
        let Self { endpoint, region, profile, path_style } = self;
        S3Options { endpoint, region, profile, path_style, ..S3Options::default() }
    }
}

/// The side of a process that races.
pub(super) async fn race(addresses: &[String], clients: usize, env: &Env) -> Result<Answer> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let Some(line) = lines.next_line().await? else { return Ok(Answer::Yes) };
    let access: Access = serde_json::from_str(&line).context("an access that cannot be read")?;
    let options = OpenOptions { s3: access.options(), ..OpenOptions::existing() };
    let mut parsed = Vec::new();
    for address in addresses {
        parsed.extend(Address::parse(address)?);
    }
    match Subjects::open(&parsed, &options).await? {
        Subjects::Directories(subjects) => heats(subjects, clients, env, lines).await,
        Subjects::Buckets(subjects) => heats(subjects, clients, env, lines).await,
    }
}

async fn heats<T: Tree>(
    subjects: Vec<Subject<T>>,
    clients: usize,
    env: &Env,
    mut heats: Lines<BufReader<Stdin>>,
) -> Result<Answer> {
    let mut entrants = Entrants::new(subjects, clients, env.nonce());
    while let Some(line) = heats.next_line().await? {
        let heat: Heat = serde_json::from_str(&line).context("a heat that cannot be read")?;
        crate::output::json_line(&entrants.race(heat).await?)?;
    }
    Ok(Answer::Yes)
}

/// The side of the one that examines.
pub(super) struct Racers {
    racers: Vec<Racer>,
    env: Env,
}

struct Racer {
    process: Child,
    heats: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// What it is told before its first heat.
    first: Option<Vec<u8>>,
}

impl Racers {
    /// Starts them, spread over the addresses.
    pub(super) fn start(
        addresses: &[Address],
        processes: usize,
        clients: usize,
        options: &OpenOptions,
    ) -> Result<Self> {
        let access = Access::of(&options.s3);
        // Each address has at least one process.
        let processes = processes.max(addresses.len());
        let program = std::env::current_exe().context("this command cannot find itself")?;
        let mut racers = Vec::with_capacity(processes);
        for number in 0..processes {
            let own = clients / processes + usize::from(number < clients % processes);
            let mut command = Command::new(&program);
            command
                .args(["doctor", "--racer", "--clients", &own.max(1).to_string(), "--"])
                .arg(whole(&addresses[number % addresses.len()]))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Ctrl-C is for the one that examines, which clears up.
                .process_group(0)
                .kill_on_drop(true);
            let mut process = command.spawn().context("a racing process cannot be started")?;
            let (Some(heats), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
                anyhow::bail!("a racing process has no pipes");
            };
            let answers = BufReader::new(answers).lines();
            let first = Some(serde_json::to_vec(&access)?);
            racers.push(Racer { process, heats, answers, first });
        }
        Ok(Self { racers, env: options.env.clone() })
    }

    /// Lets them go, and waits for them to be gone.
    pub(super) async fn end(self) {
        for Racer { mut process, heats, .. } in self.racers {
            drop(heats);
            tokio::select! {
                _ = process.wait() => {}
                () = self.env.clock().sleep(Duration::from_secs(5)) => {}
            }
        }
    }
}

impl Racer {
    async fn answer(&mut self) -> Result<Vec<Vec<Entry>>> {
        let line = self.answers.next_line().await?.context("a racing process ended early")?;
        Ok(serde_json::from_str(&line)?)
    }
}

#[async_trait]
impl Contenders for Racers {
    fn processes(&self) -> usize {
        self.racers.len()
    }

    async fn race(&mut self, heat: Heat) -> dfq::Result<Vec<Vec<Entry>>> {
        let mut line = serde_json::to_vec(&heat)
            .map_err(|error| super::broken(format!("a heat cannot be written: {error}")))?;
        line.push(b'\n');
        let gone =
            |error: std::io::Error| super::broken(format!("a racing process is gone: {error}"));
        for racer in &mut self.racers {
            let mut told = racer.first.take().map(|first| [&first[..], b"\n"].concat());
            let told = told.get_or_insert_default();
            told.extend_from_slice(&line);
            racer.heats.write_all(told).await.map_err(gone)?;
        }
        for racer in &mut self.racers {
            racer.heats.flush().await.map_err(gone)?;
        }
        let answers = futures::future::try_join_all(self.racers.iter_mut().map(Racer::answer));
        let answers = tokio::select! {
            answers = answers => answers.map_err(|error| super::broken(format!("{error:#}")))?,
            () = self.env.clock().sleep(PATIENCE) => {
                let message = format!("the race has hung for {} s", PATIENCE.as_secs());
                return Err(super::broken(message));
            }
        };
        let mut prizes: Vec<Vec<Entry>> = heat.prizes.iter().map(|_| Vec::new()).collect();
        for process in answers {
            for (prize, entries) in prizes.iter_mut().zip(process) {
                prize.extend(entries);
            }
        }
        Ok(prizes)
    }
}
