//! One examination from beginning to end.

use std::time::Duration;

use jiff::Unit;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::advice::Measured;
use super::contest::Race;
use super::measure::{self, Speed};
use super::meet::Meeting;
use super::mount::{self, Mount};
use super::race::{Contenders, Contest};
use super::s3;
use super::subject::{Kind, Subject};
use super::verdict::{self, Check, Kept};
use super::{basics, basics::Means, clock, swap};
use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::{Diagnosis, Verdict};
use crate::store::{EntryKind, Tree};

/// How to examine.
#[derive(Clone, Debug, Default)]
pub struct Examination {
    /// Time and chance.
    pub env: Env,
    /// Rounds of each race; without it as many as fit into some seconds, up to 50.
    pub rounds: Option<usize>,
    /// Do not measure.
    pub only_checks: bool,
    /// Do not write the verdict to the store.
    pub forget: bool,
    /// Race with others who examine the same store, too.
    pub meeting: Option<Meeting>,
    /// Ends it early; what was laid out is removed all the same.
    pub stop: CancellationToken,
}

impl Examination {
    /// The checks alone, few rounds, nothing remembered.
    pub fn quick() -> Self {
        Self { rounds: Some(10), only_checks: true, forget: true, ..Self::default() }
    }
}

/// Rounds of a race, where nobody asked for more.
const ROUNDS: usize = 50;
/// Folders of doctors that never came back are removed after this time.
const ABANDONED: Duration = Duration::from_secs(3600);
/// How long to wait for what was written on one mount to be seen on another.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// What was found out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub address: String,
    /// What it is, in words.
    pub store: String,
    /// The verdict on the whole.
    pub verdict: Verdict,
    /// Why it is not better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The verdict on each promise.
    pub promises: Vec<Kept>,
    /// Everything that was looked at.
    pub checks: Vec<Check>,
    /// What was measured.
    pub speed: Vec<Speed>,
    /// What that means.
    pub advice: Vec<String>,
    /// The verdict was written to the store.
    pub remembered: bool,
}

/// Examines a store through one or more ways to it, the first of which is looked at closely.
pub async fn examine<T: Tree>(
    subjects: &[Subject<T>],
    contenders: &mut dyn Contenders,
    how: &Examination,
) -> Result<Report> {
    let Some(subject) = subjects.first() else {
        return Err(Error::invalid("there is nothing to examine"));
    };
    let scratch = layout::doctors_folder(&how.env.nonce());
    let exam = Exam { subject, subjects, how, scratch };
    exam.remove_abandoned().await;
    let examined = exam.run(contenders).await;
    let removed = subject.remove_folder(&exam.scratch).await;
    let reported = match (examined, removed) {
        (Ok((report, true)), Ok(())) if !how.forget => exam.remember(report).await,
        (Ok((report, _)), Ok(())) => Ok(report),
        // Who lacks a permission may not be able to clear up either.
        (Ok((mut report, false)), Err(error)) => {
            let detail = format!("something may be left in '{}': {error}", exam.scratch);
            report.checks.push(Check::note("clearing up", detail));
            Ok(report)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    exam.leave_no_folder();
    reported
}

pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the examination was stopped")
}

struct Exam<'a, T: Tree> {
    subject: &'a Subject<T>,
    subjects: &'a [Subject<T>],
    how: &'a Examination,
    scratch: String,
}

impl<T: Tree> Exam<'_, T> {
    /// Does a part, unless told to stop. Where calls block the part itself looks: a call that is under way may
    /// still write, so it is waited for.
    async fn step<R>(&self, part: impl Future<Output = Result<R>>) -> Result<R> {
        if self.how.stop.is_cancelled() {
            return Err(stopped());
        }
        if self.subject.blocking() {
            return part.await;
        }
        tokio::select! {
            biased;
            done = part => done,
            () = self.how.stop.cancelled() => Err(stopped()),
        }
    }

    /// The report, and whether all that a verdict needs was found out.
    async fn run(&self, contenders: &mut dyn Contenders) -> Result<(Report, bool)> {
        let scratch = self.scratch.as_str();
        let basics = self.step(basics::examine(self.subject, scratch)).await?;
        let mut checks = Vec::new();
        let mut mount = None;
        match self.subject.kind() {
            Kind::Directory(root) => {
                let found = Mount::of(root);
                let across = self.subjects.len() > 1 || self.how.meeting.is_some();
                checks.push(found.check(across));
                checks.extend(basics.checks);
                checks.extend(mount::calls(root, scratch)?);
                checks.push(mount::notices(root, scratch, found.reach));
                mount = Some(found);
            }
            Kind::Bucket(bucket) => {
                checks.extend(basics.checks);
                if let (Some(raw), true) = (bucket.raw(), basics.usable) {
                    checks.push(self.step(s3::patiently(|| s3::if_match(raw, scratch))).await?);
                    let delete = || s3::conditional_delete(bucket, raw, scratch);
                    checks.push(self.step(s3::patiently(delete)).await?);
                    checks.push(self.step(s3::patiently(|| s3::versioning(raw))).await?);
                    checks.push(self.step(s3::patiently(|| s3::lifecycle(raw))).await?);
                }
            }
        }
        let (mut speed, mut advice) = (Vec::new(), Vec::new());
        if basics.usable {
            self.step(self.same_place()).await?;
            let (check, swaps) = self.step(swap::examine(self.subject, scratch)).await?;
            checks.push(check);
            checks.extend(self.races(contenders, basics.means, swaps).await?);
            let time = self
                .step(clock::examine(self.subject, &self.how.env, scratch, basics.means.creates))
                .await?;
            checks.extend(time.checks());
            if !self.how.only_checks {
                speed = self.measure(basics.means.creates).await?;
                let measured = Measured {
                    speed: &speed,
                    resolution: time.resolution,
                    mount: mount.as_ref(),
                    bucket: matches!(self.subject.kind(), Kind::Bucket(_)),
                    cores: std::thread::available_parallelism().map_or(1, usize::from),
                    memory_bytes: memory(),
                };
                advice = measured.advice();
            }
        }
        let (verdict, cause) = verdict::overall(&checks, false);
        let address = self.subject.address().to_owned();
        let store = mount.map_or_else(|| address.clone(), |mount| mount.describe());
        let promises = verdict::promises(&checks);
        let report = Report {
            address,
            store,
            verdict,
            cause,
            promises,
            checks,
            speed,
            advice,
            remembered: false,
        };
        Ok((report, basics.usable))
    }

    async fn races(
        &self,
        contenders: &mut dyn Contenders,
        means: Means,
        swaps: bool,
    ) -> Result<Vec<Check>> {
        let rounds = self.how.rounds.unwrap_or(ROUNDS);
        let mut contests = Vec::new();
        match self.subject.kind() {
            Kind::Directory(_) if means.creates => {
                contests.extend([Contest::Record, Contest::Lease, Contest::Task]);
                contests.push(Contest::Exclusive);
            }
            Kind::Directory(_) => contests.push(Contest::Exclusive),
            _ if means.creates => contests.push(Contest::Record),
            _ => {}
        }
        contests.extend(swaps.then_some(Contest::Swap));
        let mut checks = Vec::new();
        for contest in contests {
            let race = Race {
                subject: self.subject,
                env: &self.how.env,
                scratch: &self.scratch,
                contest,
                ways: self.subjects.len(),
                // For what the queue does not need, half as many will do.
                rounds: if contest == Contest::Swap { rounds.div_ceil(2) } else { rounds },
                patient: self.how.rounds.is_some(),
                stop: &self.how.stop,
            };
            let raced = self.step(race.run(contenders)).await?;
            checks.push(raced.check(self.subject.kind(), means)?);
        }
        if let Some(meeting) = &self.how.meeting {
            let raced = meeting
                .race(self.subject, &self.how.env, (means.creates, swaps), &self.how.stop)
                .await?;
            for raced in raced {
                checks.push(raced.check(self.subject.kind(), means)?);
            }
        }
        Ok(checks)
    }

    async fn measure(&self, creates: bool) -> Result<Vec<Speed>> {
        self.step(measure::prepare(self.subject, &self.scratch)).await?;
        let mut speed = Vec::new();
        for item in measure::plan(self.subject, creates) {
            let measuring = measure::measure(self.subject, &self.how.env, &self.scratch, item);
            speed.push(self.step(measuring).await?);
        }
        Ok(speed)
    }

    /// Several ways must lead to the same place, or a race between them says nothing.
    async fn same_place(&self) -> Result<()> {
        let path = layout::below(&self.scratch, "here");
        let (at, mark) = (path.clone(), self.scratch.clone());
        self.subject
            .on(|subject| async move { subject.tree().replace(&at, mark.as_bytes()).await })
            .await?;
        for subject in &self.subjects[1..] {
            let began = self.how.env.monotonic();
            loop {
                let at = path.clone();
                let seen =
                    subject.on(|subject| async move { subject.tree().read(&at).await }).await?;
                if seen.is_some_and(|seen| seen.bytes == self.scratch.as_bytes()) {
                    break;
                }
                if self.how.env.monotonic() - began > SEEN_WITHIN || self.how.stop.is_cancelled() {
                    return Err(Error::invalid(format!(
                        "what is written to '{}' is not seen at '{}' within {} s; name ways to the \
                         same place",
                        self.subject.address(),
                        subject.address(),
                        SEEN_WITHIN.as_secs()
                    )));
                }
                self.how.env.clock().sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// Removes what doctors left behind that were killed.
    async fn remove_abandoned(&self) {
        let abandoned = self
            .subject
            .on(|subject| async move {
                let tree = subject.tree();
                let mut abandoned = Vec::new();
                let Ok(page) = tree.list_folder(layout::TMP, None, 1000).await else {
                    return abandoned;
                };
                let ours = |name: &str| name.starts_with(layout::DOCTORS_FOLDER);
                let mut folders = page.entries.into_iter().filter(|entry| ours(&entry.name));
                let Some(first) = folders.next() else { return abandoned };
                let Ok(now) = tree.now().await else { return abandoned };
                for folder in std::iter::once(first).chain(folders) {
                    let folder = layout::below(layout::TMP, &folder.name);
                    if last_change(tree, &folder).await.is_some_and(|at| at + ABANDONED < now) {
                        abandoned.push(folder);
                    }
                }
                abandoned
            })
            .await;
        for folder in abandoned {
            // Whoever examines next tries again.
            let _ = self.subject.remove_folder(&folder).await;
        }
    }

    /// Where there is no queue, `tmp/` was ours.
    fn leave_no_folder(&self) {
        if let Kind::Directory(root) = self.subject.kind()
            && !root.join(layout::SETTINGS).exists()
        {
            let _ = std::fs::remove_dir(root.join(layout::TMP));
        }
    }

    /// Writes down what the store itself is to be blamed for, or praised.
    async fn remember(&self, report: Report) -> Result<Report> {
        let (verdict, cause) = verdict::overall(&report.checks, true);
        let now = self.how.env.clock().wall();
        let found = Diagnosis {
            verdict,
            cause,
            store: report.store.clone(),
            examined_at: now.round(Unit::Microsecond).unwrap_or(now),
            host: self.how.env.host().name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let bytes = format::encode_diagnosis(&found);
        let written = self
            .subject
            .on(|subject| async move { subject.tree().replace(layout::DOCTOR, &bytes).await });
        self.step(written).await?;
        Ok(Report { remembered: true, ..report })
    }
}

/// When something in a folder was last written, as far as its first files tell.
async fn last_change<T: Tree>(tree: &T, folder: &str) -> Option<jiff::Timestamp> {
    let (mut folder, mut last) = (folder.to_owned(), None);
    for _ in 0..3 {
        let entries = tree.list_folder(&folder, None, 20).await.ok()?.entries;
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::File) {
            let stored = tree.read(&layout::below(&folder, &entry.name)).await.ok().flatten();
            last = last.max(stored.map(|stored| stored.modified));
        }
        match entries.iter().find(|entry| entry.kind == EntryKind::Folder) {
            Some(below) => folder = layout::below(&folder, &below.name),
            None => break,
        }
    }
    last
}

/// How much memory this machine has.
fn memory() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
