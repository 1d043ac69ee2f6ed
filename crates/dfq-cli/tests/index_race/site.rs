//! Where the index is, how it is looked at, and what must be so at the end.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use dfq_s3_server::{Credential, Faults, Options, Server};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::book::Book;
use crate::clock;
use crate::support::Desk;
use crate::{Plan, Wrong};

/// What the scripts in `servers/` make, and our own server as well.
const BUCKET: &str = "dfq-test";
const KEYS: (&str, &str) = ("testkey", "testsecret");

/// How often what failed is tried again, where it must succeed in the end.
const TRIES: usize = 30;

pub(crate) struct Site {
    pub(crate) desk: Desk,
    pub(crate) index: String,
    /// How far behind listings are, in milliseconds.
    pub(crate) lag: i64,
    server: Option<(Server, Runtime)>,
}

/// A server of our own that does wrong, in every way there is, from a seed.
fn own_server(plan: &Plan, seed: u64) -> (Server, Runtime) {
    let list_lag = Duration::from_millis(plan.lag);
    let mut faults = Faults { seed, list_lag, ..Faults::default() };
    // Six of them can happen to any request, the others to some: no request is safer than asked for.
    let rate = f64::from(plan.faults) / 100.0 / 6.0;
    for name in Faults::NAMES {
        assert!(faults.set(name, rate));
    }
    let credential = Credential::new(KEYS.0, KEYS.1);
    let options = Options { bucket: BUCKET.to_owned(), credential, faults, ..Options::default() };
    let runtime = Runtime::new().unwrap();
    (runtime.block_on(Server::start(options)).unwrap(), runtime)
}

impl Site {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let server = plan.own_server.then(|| own_server(plan, seed));
        let own = server.as_ref().map(|(server, _)| server.endpoint());
        let desk = Desk::in_folder(&plan.dir);
        let lag = i64::try_from(plan.lag).unwrap();
        let Some(endpoint) = own.or_else(|| plan.s3.clone()) else {
            return Self { desk, index: "./index".to_owned(), lag, server };
        };
        let desk = desk.with(vec![
            ("AWS_ENDPOINT_URL_S3", endpoint),
            ("AWS_ACCESS_KEY_ID", KEYS.0.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEYS.1.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]);
        let index = format!("s3://{BUCKET}/index-race-{}-{seed}", std::process::id());
        Self { desk, index, lag, server }
    }

    /// `dfq index VERB INDEX …`, perhaps of a process whose clock is wrong.
    pub(crate) fn command(&self, slot: usize, wrong: Wrong, verb: &str, more: &[&str]) -> Command {
        let args = [&["index", verb, &self.index][..], more].concat();
        if !wrong.clocks || slot.is_multiple_of(2) {
            return self.desk.command(&args);
        }
        let mut command = self.desk.program(&std::env::current_exe().unwrap(), &args);
        clock::shift(&mut command, if slot % 4 == 1 { 3_600 } else { -3_600 });
        command
    }

    /// What a command prints. It is tried again while the store does not answer.
    pub(crate) fn ask(&self, verb: &str, more: &[&str]) -> Result<String, String> {
        let args = [&["index", verb, &self.index][..], more].concat();
        let mut said = self.desk.dfq(&args);
        for _ in 0..TRIES {
            if said.status != Some(7) {
                break;
            }
            said = self.desk.dfq(&args);
        }
        match said.status {
            Some(0) => Ok(said.out),
            _ => Err(format!("{said:?}")),
        }
    }

    /// The values of all keys that a scan shows.
    fn scan(&self) -> Result<BTreeMap<usize, u64>, String> {
        let mut found = BTreeMap::new();
        for line in self.ask("scan", &[])?.lines() {
            let (key, value) = parse(&serde_json::from_str(line).map_err(|e| e.to_string())?)?;
            if found.insert(key, value).is_some() {
                return Err(format!("k{key} is there twice"));
            }
        }
        Ok(found)
    }

    fn compare(&self, book: &Book, when: &str) -> Result<(), String> {
        let found = self.scan()?;
        for key in 0..book.keys() {
            book.judge(key, i64::MAX, found.get(&key).copied())
                .map_err(|error| format!("{when}, {error}"))?;
        }
        Ok(())
    }

    fn count(&self, verb: &str, more: &[&str], member: &str) -> Result<u64, String> {
        let out = self.ask(verb, more)?;
        let report: Value = serde_json::from_str(&out).map_err(|e| format!("{e}: {out}"))?;
        report[member].as_u64().ok_or(format!("no {member} in {out}"))
    }

    /// The index is what the book says: as it was left, when all is merged, and when that is done again.
    pub(crate) fn verify(&self, book: &Book) -> Result<(), String> {
        if let Some((server, _)) = &self.server {
            server.set_faults(Faults::default());
        }
        self.compare(book, "as it was left")?;
        // Those that were killed have left locks behind.
        let merge = ["--all", "--no-lock", "--json"];
        for _ in 0..TRIES {
            self.ask("compact", &merge)?;
            if self.count("stats", &["--json"], "inbox_files")? == 0 {
                break;
            }
        }
        let left = self.count("stats", &["--json"], "inbox_files")?;
        if left > 0 {
            return Err(format!("{left} files stay in the inbox"));
        }
        self.compare(book, "merged")?;
        let written = self.count("compact", &merge, "bytes_written")?;
        if written > 0 {
            return Err(format!("merged again, {written} bytes were written"));
        }
        // A compactor that is killed between a shard and its block index leaves one that is of no use.
        self.desk.dfq(&["index", "check", &self.index, "--repair"]);
        self.empty_aside(book)?;
        self.ask("check", &[])?;
        self.compare(book, "checked")
    }

    /// In a folder, a content that two replaced at the same moment may have been taken for a stranger's: it is kept, though
    /// nobody needs it. Nothing else may lie there.
    fn empty_aside(&self, book: &Book) -> Result<(), String> {
        let aside = self.desk.path("index/aside");
        for folder in [aside.clone(), aside.join("shards")] {
            let files = std::fs::read_dir(folder).into_iter().flatten();
            for path in files.map(|file| file.unwrap().path()).filter(|path| path.is_file()) {
                let text = std::fs::read_to_string(&path).unwrap();
                let is_schema = text.starts_with('{');
                let mut rows = text.lines().filter(|_| !is_schema);
                if let Some(row) = rows.find(|row| !knows(book, row)) {
                    return Err(format!("nobody put {row:?}, which lies in {}", path.display()));
                }
                std::fs::remove_file(path).unwrap();
            }
        }
        Ok(())
    }

    /// Keeps what there is, to be looked at.
    pub(crate) fn leave(self) -> String {
        let folder = self.desk.keep();
        format!("{} in {}", self.index, folder.display())
    }
}

/// The key and the value of a record, all of whose fields must be as they were put.
pub(crate) fn parse(record: &Value) -> Result<(usize, u64), String> {
    let key = record["key"].as_str().and_then(|key| key.strip_prefix('k')?.parse().ok());
    let value = record["v"].as_u64();
    let (Some(key), Some(value)) = (key, value) else {
        return Err(format!("nobody put {record}"));
    };
    let fields = record.as_object().into_iter().flatten();
    let extra = fields.filter(|(name, field)| name.starts_with('w') && !field.is_null());
    for (name, field) in extra {
        if field.as_u64() != Some(value) {
            return Err(format!("{name} of k{key} is not as it was put: {record}"));
        }
    }
    Ok((key, value))
}

/// Whether somebody put this row of a shard.
fn knows(book: &Book, row: &str) -> bool {
    let fields: Vec<&str> = row.split('\u{1f}').collect();
    let key = fields[0].strip_prefix('k').and_then(|key| key.parse().ok());
    let value = fields.get(4).and_then(|value| value.parse().ok());
    let deleted = fields.get(3) == Some(&"true");
    key.is_some_and(|key| book.knows(key, value.filter(|_| !deleted)))
}
