//! The processes: each slot starts one after the other, and kills some of them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dfq::Env;
use dfq::clock::{SeededChance, SystemClock};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::book::{Book, Entry};
use crate::clock::now;
use crate::site::{Site, parse};
use crate::{Plan, Wrong};

/// Readers at a time, and keys that they look up.
const READERS: usize = 2;
const LOOKUPS: usize = 8;

/// How much longer writers go on, at the most, if what is to be tried has not happened.
const PATIENCE: usize = 30;

/// The most records of one process.
const RECORDS: usize = 30;

/// What happened so far.
#[derive(Default)]
struct Tally {
    writers_killed: AtomicUsize,
    compactors_killed: AtomicUsize,
    unavailable: AtomicUsize,
    looks: AtomicUsize,
    shards: AtomicUsize,
    locked: AtomicUsize,
    lost: AtomicUsize,
}

struct Crew<'a> {
    plan: &'a Plan,
    site: &'a Site,
    wrong: Wrong,
    seed: u64,
    book: Book,
    tally: Tally,
    /// Writers that are not done.
    writing: AtomicUsize,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// A child that does not outlive the race.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets them race; what they wrote.
pub(crate) fn race(plan: &Plan, seed: u64, wrong: Wrong, site: &Site) -> Result<Book, String> {
    site.ask("init", &["--columns", "v:integer"])?;
    // Shards whose compactors were killed stay locked for minutes, so there are many. Without the lock all meet in some.
    let keys = if wrong.no_lock { 60 } else { 400 };
    let crew = Crew {
        plan,
        site,
        wrong,
        seed,
        book: Book::new(keys),
        tally: Tally::default(),
        writing: AtomicUsize::new(plan.writers),
        failed: AtomicBool::new(false),
        failure: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for slot in 0..plan.writers {
            let crew = &crew;
            scope.spawn(move || {
                crew.notes(crew.write(slot));
                crew.writing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for slot in 0..plan.compactors {
            let crew = &crew;
            scope.spawn(move || crew.notes(crew.compact(slot)));
        }
        for slot in 0..READERS {
            let crew = &crew;
            scope.spawn(move || crew.notes(crew.read(slot)));
        }
    });
    println!("index race: {}", crew.summary());
    let failure = crew.failure.lock().unwrap().take();
    failure.map_or(Ok(crew.book), Err)
}

impl Crew<'_> {
    fn notes(&self, result: Result<(), String>) {
        if let Err(error) = result {
            self.failed.store(true, Ordering::Relaxed);
            self.failure.lock().unwrap().get_or_insert(error);
        }
    }

    fn goes_on(&self) -> bool {
        self.writing.load(Ordering::Relaxed) > 0 && !self.failed.load(Ordering::Relaxed)
    }

    fn chance(&self, role: u64, slot: usize) -> Env {
        let seed = self.seed.wrapping_mul(1_000_003) + role * 1_000 + slot as u64;
        Env::new(std::sync::Arc::new(SystemClock), std::sync::Arc::new(SeededChance::new(seed)))
    }

    /// Whether everything has happened that must have happened for a pass to mean something.
    fn had_enough(&self) -> bool {
        let tally = &self.tally;
        let is = |count: &AtomicUsize, least: usize| count.load(Ordering::Relaxed) >= least;
        let met = if self.wrong.no_lock { &tally.lost } else { &tally.locked };
        is(&tally.writers_killed, self.plan.writers)
            && is(&tally.compactors_killed, self.plan.compactors)
            && is(&tally.looks, 20)
            && is(&tally.shards, 20)
            && is(met, 1)
    }

    fn write(&self, slot: usize) -> Result<(), String> {
        let env = self.chance(1, slot);
        let (mut round, least) = (0, self.plan.rounds);
        while !self.failed.load(Ordering::Relaxed) && (round < least || !self.had_enough()) {
            if round > least * PATIENCE {
                return Err("it does not come to what is to be tried".to_owned());
            }
            round += 1;
            match env.below(6) {
                0 => self.delete(slot, &env)?,
                1 => self.put(slot, &env, &["-q", "--bundle", "--jsonl", "-"])?,
                _ => self.put(slot, &env, &["-q", "--jsonl", "-"])?,
            }
        }
        Ok(())
    }

    /// A time that a record brings along: mostly none, often one in the past, sometimes one to come. There are so few that
    /// several records of a key have the same.
    fn own_time(&self, env: &Env) -> Option<i64> {
        let minutes = i64::try_from(10 + env.below(20)).unwrap();
        // About one for each key, however many writes there are.
        let writes = self.plan.writers * self.plan.rounds.max(1) * RECORDS / 2;
        let whole = now() / 3_600_000 * 3_600_000;
        match env.below(10) {
            0..3 => Some(whole - (60 + minutes) * 60_000),
            3 if env.below(writes / 10 + 1) < self.book.keys() / 2 => {
                Some(whole + (120 + minutes) * 60_000)
            }
            _ => None,
        }
    }

    fn put(&self, slot: usize, env: &Env, args: &[&str]) -> Result<(), String> {
        let (mut entries, mut lines) = (Vec::new(), String::new());
        for _ in 0..=env.below(RECORDS) {
            let (key, value) = (env.below(self.book.keys()), self.book.next_value());
            let own = self.own_time(env);
            let _ = write!(lines, "{{\"key\":\"k{key}\",\"v\":{value}");
            if let Some(own) = own {
                let time = Timestamp::from_millisecond(own).unwrap();
                let _ = write!(lines, ",\"updated_at\":\"{time}\"");
            }
            // Columns come in the midst of it, from several at once.
            if env.below(8) == 0 {
                let _ = write!(lines, ",\"w{}\":{value}", env.below(40));
            }
            lines += "}\n";
            entries.push(Entry { key, value: Some(value), own });
        }
        let command = self.site.command(slot, self.wrong, "put", args);
        self.run_writer(env, command, &entries, &lines)
    }

    fn delete(&self, slot: usize, env: &Env) -> Result<(), String> {
        let mut keys: Vec<usize> =
            (0..=env.below(5)).map(|_| env.below(self.book.keys())).collect();
        keys.sort_unstable();
        keys.dedup();
        let names: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
        let args: Vec<&str> =
            std::iter::once("-q").chain(names.iter().map(String::as_str)).collect();
        let command = self.site.command(slot, self.wrong, "delete", &args);
        let entry = |key| Entry { key, value: None, own: None };
        let entries: Vec<Entry> = keys.into_iter().map(entry).collect();
        self.run_writer(env, command, &entries, "")
    }

    fn run_writer(
        &self,
        env: &Env,
        mut command: Command,
        entries: &[Entry],
        input: &str,
    ) -> Result<(), String> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = self.book.begin(entries, now());
        let mut running = Running(command.spawn().map_err(|e| e.to_string())?);
        if let Some(mut stdin) = running.0.stdin.take() {
            let _ = stdin.write_all(input.as_bytes());
        }
        let killed = env.below(3) == 0;
        if killed {
            std::thread::sleep(pause(env));
            let _ = running.0.kill();
        }
        let status = running.0.wait().map_err(|e| e.to_string())?;
        self.book.end(process, status.success(), now());
        match status.code() {
            None if killed => count(&self.tally.writers_killed, 1),
            Some(0) => {}
            Some(7) => count(&self.tally.unavailable, 1),
            _ => {
                let mut said = String::new();
                if let Some(mut err) = running.0.stderr.take() {
                    let _ = std::io::Read::read_to_string(&mut err, &mut said);
                }
                return Err(format!("a writer ended with {status}: {said}"));
            }
        }
        Ok(())
    }

    fn compact(&self, slot: usize) -> Result<(), String> {
        let env = self.chance(2, slot);
        let (out, err) = (format!("compactor-{slot}.out"), format!("compactor-{slot}.err"));
        let file = |name: &str| File::create(self.site.desk.path(name)).map_err(|e| e.to_string());
        while self.goes_on() {
            let mut args = vec!["--json"];
            // Some go on until they are told to stop, some look at a page and end.
            let every = env.below(3) > 0;
            if every {
                args.extend(["--all", "--every", "20ms"]);
            }
            if self.wrong.no_lock {
                args.push("--no-lock");
            }
            let mut command = self.site.command(slot, self.wrong, "compact", &args);
            command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?);
            let mut running = Running(command.spawn().map_err(|e| e.to_string())?);
            let mut killed = env.below(4) > 0;
            if killed || every {
                std::thread::sleep(pause(&env));
            }
            if killed {
                let _ = running.0.kill();
            } else if every {
                std::thread::sleep(pause(&env));
                let _ = kill_process(Pid::from_child(&running.0), Signal::TERM);
            }
            let status = running.0.wait().map_err(|e| e.to_string())?;
            killed &= status.code().is_none();
            count(&self.tally.compactors_killed, usize::from(killed));
            self.tell(&self.site.desk.read(&out));
            match status.code() {
                Some(0) => {}
                _ if killed => {}
                // It was told to stop before it listened.
                None | Some(143) if every => {}
                // The store did not answer, for all of it or for some shards.
                Some(1 | 7) if self.plan.faults > 0 => count(&self.tally.unavailable, 1),
                _ => {
                    let said = self.site.desk.read(&out) + &self.site.desk.read(&err);
                    return Err(format!("a compactor ended with {status}: {said}"));
                }
            }
        }
        Ok(())
    }

    /// Counts what compactors report, a line each round.
    fn tell(&self, out: &str) {
        for report in out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let tally = &self.tally;
            let all = [("shards", &tally.shards), ("locked", &tally.locked), ("lost", &tally.lost)];
            for (member, total) in all {
                count(total, report[member].as_u64().unwrap_or(0) as usize);
            }
        }
    }

    fn read(&self, slot: usize) -> Result<(), String> {
        let env = self.chance(3, slot);
        while self.goes_on() {
            let keys: Vec<usize> = (0..LOOKUPS).map(|_| env.below(self.book.keys())).collect();
            let names: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
            let args: Vec<&str> =
                std::iter::once("--json").chain(names.iter().map(String::as_str)).collect();
            let mut command = self.site.command(slot, self.wrong, "get", &args);
            // What is newer than a listing that lags may not be in it.
            let looked = now() - self.site.lag;
            let output = command.output().map_err(|e| e.to_string())?;
            let told = String::from_utf8_lossy(&output.stdout);
            match output.status.code() {
                Some(0 | 3) => {}
                Some(7) => {
                    count(&self.tally.unavailable, 1);
                    continue;
                }
                _ => {
                    let error = String::from_utf8_lossy(&output.stderr);
                    return Err(format!("a reader ended with {}: {error}", output.status));
                }
            }
            let lines: Vec<&str> = told.lines().collect();
            if lines.len() != keys.len() {
                return Err(format!("{} answers for {} keys: {told}", lines.len(), keys.len()));
            }
            for (key, line) in keys.into_iter().zip(lines) {
                let answer: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
                let found = match answer["found"].as_bool() {
                    Some(true) => Some(parse(&answer["record"])?),
                    _ => None,
                };
                if found.is_some_and(|(found, _)| found != key) {
                    return Err(format!("k{key} was asked for: {line}"));
                }
                self.book.judge(key, looked, found.map(|(_, value)| value))?;
                count(&self.tally.looks, 1);
            }
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let (answered, unknown) = self.book.counts();
        let mut text = format!("{answered} writes answered, {unknown} not");
        let tally = &self.tally;
        for (what, total) in [
            ("writers killed", &tally.writers_killed),
            ("compactors killed", &tally.compactors_killed),
            ("commands that gave up", &tally.unavailable),
            ("lookups", &tally.looks),
            ("shards merged", &tally.shards),
            ("locked", &tally.locked),
            ("lost", &tally.lost),
        ] {
            let _ = write!(text, ", {} {what}", total.load(Ordering::Relaxed));
        }
        text
    }
}

fn count(total: &AtomicUsize, number: usize) {
    total.fetch_add(number, Ordering::Relaxed);
}

/// Some time within which a process may be in the middle of something.
fn pause(env: &Env) -> Duration {
    let most = [10, 50, 250][env.below(3)];
    Duration::from_micros(env.below(most * 1_000) as u64)
}
