//! The parent: pushes, starts workers, and sends them signals until everything is done.

#![allow(clippy::disallowed_methods, reason = "the parent of real processes lives in real time")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command};
use std::time::Duration;

use dfq::model::{Durability, Layout};
use dfq::{Env, ErrorKind, NewTask, Pushed, Queue, Settings, TaskId};
use dfq_s3_server::{Faults, Server};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Runtime;

use crate::journal::{self, Incident};
use crate::site::{ENDPOINT, Site};
use crate::worker::{LAST, SEED};
use crate::{Plan, now, one_in, seeded};

/// What the parent knows for the verification.
#[derive(Default)]
pub(crate) struct Told {
    /// Everything that it pushed.
    pub(crate) tasks: Vec<String>,
    /// The journals of workers that were killed.
    pub(crate) killed: BTreeSet<String>,
    pub(crate) journals: Vec<String>,
    pub(crate) stops: usize,
    pub(crate) setup: String,
    /// What our own server did wrong, if it is our own and was to do so.
    pub(crate) faults: Option<BTreeMap<&'static str, u64>>,
    pub(crate) own_server: bool,
    /// By how much the calendar was ahead of the shared clock, at the start and at the end.
    calendar: (i128, i128),
}

impl Told {
    /// A time on the shared clock by which a file had been given its name, going by the change time
    /// that the kernel noted. Only a kernel's tick is lost, unless somebody has set the calendar.
    pub(crate) fn certainly(&self, changed: i128) -> u64 {
        let (start, end) = self.calendar;
        let tick = 20_000_000;
        u64::try_from(changed - start.min(end) + tick).unwrap_or(u64::MAX)
    }
}

fn calendar_ahead(env: &Env) -> i128 {
    env.clock().wall().as_nanosecond() - i128::from(now(env))
}

struct Member {
    child: Child,
    journal: String,
    /// Stopped until then.
    stopped: Option<u64>,
    killed: bool,
}

struct Crew<'a> {
    env: Env,
    site: &'a Site,
    members: Vec<Member>,
    told: Told,
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl Member {
    fn signal(&self, signal: Signal) -> Result<(), String> {
        // It is our child and was not waited for, so the number is still its own.
        kill_process(Pid::from_child(&self.child), signal).map_err(|e| format!("kill: {e}"))
    }
}

impl Crew<'_> {
    fn hire(&mut self) -> Result<Member, String> {
        let journal = format!("journal-{}", self.told.journals.len());
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.arg(&self.site.dir).arg(&journal).env(SEED, self.env.next_u64().to_string());
        if let Some(endpoint) = &self.site.endpoint {
            command.env(ENDPOINT, endpoint);
        }
        let child = command.spawn().map_err(|e| format!("cannot start a worker: {e}"))?;
        self.told.journals.push(journal.clone());
        Ok(Member { child, journal, stopped: None, killed: false })
    }

    /// Replaces those that are gone; one that went without being killed is a failure.
    fn replace(&mut self) -> Result<(), String> {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if let Some(status) = member.child.try_wait().map_err(|e| e.to_string())? {
                if !member.killed {
                    return Err(format!("{} ended by itself: {status}", member.journal));
                }
                self.members[at] = self.hire()?;
            }
        }
        Ok(())
    }

    fn resume(&mut self, everyone: bool) -> Result<(), String> {
        let now = now(&self.env);
        for member in &mut self.members {
            if member.stopped.is_some_and(|until| everyone || until <= now) {
                member.signal(Signal::CONT)?;
                member.stopped = None;
            }
        }
        Ok(())
    }

    /// Picks a worker, and mostly waits until it is about to ask the queue something: the moments
    /// that matter are within its calls, and most of all between the steps of an ack.
    fn pick(&self) -> usize {
        let at = self.env.below(self.members.len());
        let member = &self.members[at];
        if !one_in(&self.env, 4) && member.stopped.is_none() && !member.killed {
            let path = self.site.dir.join(&member.journal);
            let mut patience = 100;
            while patience > 0 && !journal::in_a_call(&path) {
                std::thread::sleep(Duration::from_micros(100));
                patience -= 1;
            }
            // The longer a call, the more steps it has.
            let most = [50, 500, 5_000][self.env.below(3)];
            std::thread::sleep(Duration::from_micros(self.env.below(most) as u64));
        }
        at
    }

    fn kill_one(&mut self) -> Result<(), String> {
        let at = self.pick();
        let member = &mut self.members[at];
        if !member.killed {
            member.signal(Signal::KILL)?;
            member.killed = true;
            self.told.killed.insert(member.journal.clone());
        }
        Ok(())
    }

    fn stop_one(&mut self) -> Result<(), String> {
        let stopped = self.members.iter().filter(|member| member.stopped.is_some()).count();
        if stopped * 3 >= self.members.len() {
            return Ok(());
        }
        let at = self.pick();
        // Past the lease in most cases, and now and then so briefly that it comes back with a lease
        // that is just about to run out.
        let longest = self.site.pace().longest_lease;
        let mut pause = longest.mul_f64(1.05 + self.env.fraction());
        if one_in(&self.env, 4) {
            pause = longest.mul_f64(self.env.fraction());
        }
        let until = now(&self.env) + pause.as_nanos() as u64;
        let member = &mut self.members[at];
        if member.stopped.is_none() && !member.killed {
            member.signal(Signal::STOP)?;
            member.stopped = Some(until);
            self.told.stops += usize::from(pause > longest);
        }
        Ok(())
    }

    /// Whether everything has happened that must have happened for a pass to mean something.
    fn had_enough(&self) -> Result<bool, String> {
        let Told { killed, stops, journals, .. } = &self.told;
        if killed.len() < 3 * self.members.len() || *stops < self.members.len() {
            return Ok(false);
        }
        let mut missing = Incident::all();
        for name in journals {
            let path = self.site.dir.join(name);
            let events = if path.exists() { journal::read(&path)? } else { Vec::new() };
            missing.retain(|incident| !events.iter().any(|event| incident.is(event)));
        }
        Ok(missing.is_empty())
    }

    /// Lets everybody finish.
    fn dismiss(&mut self) -> Result<(), String> {
        self.resume(true)?;
        std::fs::write(self.site.dir.join(LAST), "").map_err(|e| e.to_string())?;
        for member in &mut self.members {
            let status = member.child.wait().map_err(|e| e.to_string())?;
            if !status.success() && !member.killed {
                return Err(format!("{} ended with {status}", member.journal));
            }
        }
        Ok(())
    }
}

fn settings(env: &Env, site: &Site) -> Settings {
    let durable = one_in(env, 2);
    Settings {
        layout: if one_in(env, 4) { Layout::Flat } else { Layout::Sharded },
        durability: if durable { Durability::Durable } else { Durability::Relaxed },
        lease: site.pace().shortest_lease,
        max_attempts: 1_000_000,
        max_lost: 1_000_000,
        ..Settings::default()
    }
}

async fn push(queue: &dyn Queue, ids: &[String]) -> Result<(), String> {
    let mut left: Vec<&String> = ids.iter().collect();
    for _ in 0..10 {
        let task = |id: &&String| {
            let task = NewTask::from_json(r#"{"work":"none"}"#)?;
            Ok(task.id(TaskId::new(id.as_str())?))
        };
        let tasks = left.iter().map(task).collect::<dfq::Result<_>>().map_err(|e| e.to_string())?;
        let first = left.len() == ids.len();
        let mut again = Vec::new();
        for (id, answer) in left.into_iter().zip(queue.push(tasks).await) {
            match answer {
                Ok(Pushed::Created(_)) => {}
                // The answer to the first push was lost for good.
                Ok(_) if !first => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => again.push(id),
                other => return Err(format!("push answered {other:?}")),
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        left = again;
    }
    Err(format!("{} tasks cannot be pushed", left.len()))
}

pub(crate) fn run(
    plan: &Plan,
    seed: u64,
    site: &Site,
    runtime: &Runtime,
    server: Option<&Server>,
) -> Result<Told, String> {
    let env = seeded(seed);
    let settings = settings(&env, site);
    let (layout, durability) = (settings.layout, settings.durability);
    let queue = runtime.block_on(site.open(Some(settings))).map_err(|e| e.to_string())?;
    let pending = || runtime.block_on(site.pending(layout));
    let tasks: Vec<String> = (0..plan.tasks).map(|n| format!("t{n}")).collect();
    let setup = match &site.endpoint {
        None => format!("{} workers, {layout:?}, {durability:?}", plan.workers),
        Some(at) => format!("{} workers, {layout:?}, {at}, {} % faults", plan.workers, plan.faults),
    };
    let calendar = (calendar_ahead(&env), 0);
    let own_server = server.is_some();
    let told = Told { tasks, setup, calendar, own_server, ..Told::default() };
    println!("race: seed {seed}, {}, {} tasks", told.setup, plan.tasks);

    // Half of the tasks are there from the start. The rest comes in a trickle, so that all workers
    // are after the same few. If that is done before enough has happened, further tasks follow until
    // it has: however fast the machine and whatever the seed, the race is never run idly.
    let mut left = told.tasks.clone();
    let first = left.split_off(left.len() / 2);
    for batch in first.chunks(500) {
        runtime.block_on(push(&*queue, batch))?;
    }
    let mut crew = Crew { env, site, members: Vec::new(), told };
    for _ in 0..plan.workers {
        let member = crew.hire()?;
        crew.members.push(member);
    }
    let most = site.pace().tick;
    // Where leases are long, workers live long enough to lose one.
    let kills = if site.in_a_bucket() { (160 / plan.workers).max(8) } else { 8 };
    let mut enough = false;
    for tick in 1_u64.. {
        std::thread::sleep(most.mul_f64(0.1 + 0.9 * crew.env.fraction()));
        crew.replace()?;
        crew.resume(false)?;
        if one_in(&crew.env, kills) {
            crew.kill_one()?;
        } else if one_in(&crew.env, 8) {
            crew.stop_one()?;
        }
        if !enough && tick % 16 == 0 {
            // All the wrong that the server can do.
            let all_faults = server.is_none_or(|server| {
                plan.faults == 0 || server.meter().counts().faults.len() == Faults::NAMES.len()
            });
            enough = all_faults && crew.had_enough()?;
        }
        if left.is_empty() && !enough && one_in(&crew.env, 4) {
            left.push(format!("t{}", crew.told.tasks.len()));
            crew.told.tasks.extend(left.last().cloned());
        }
        let batch = 1 + crew.env.below(plan.workers);
        runtime.block_on(push(&*queue, &left.split_off(left.len().saturating_sub(batch))))?;
        if left.is_empty() && enough && tick % 16 == 0 && pending()? == 0 {
            break;
        }
        if tick % 4096 == 0 || (site.in_a_bucket() && tick % 256 == 0) {
            println!("race: {} pending, {} to be pushed", pending()?, left.len());
        }
    }
    if let Some(server) = server {
        // Whoever leaves now must be able to see that there is nothing left.
        let counts = server.meter().counts();
        server.set_faults(Faults::default());
        crew.told.setup.push_str(&format!(", requests {}", counts.total()));
        crew.told.faults = (plan.faults > 0).then_some(counts.faults);
    }
    crew.dismiss()?;
    runtime.block_on(await_clean_tree(&*queue, site, layout))?;
    crew.told.calendar.1 = calendar_ahead(&crew.env);
    Ok(std::mem::take(&mut crew.told))
}

/// What killed workers left half cleaned is cleaned by the next poll, which must not find work. In a
/// bucket it may take some polls: nobody looks into a lease before it has run out, and leases without
/// a task are left alone for a minute.
async fn await_clean_tree(queue: &dyn Queue, site: &Site, layout: Layout) -> Result<(), String> {
    let mut wrong = String::new();
    for _ in 0..if site.in_a_bucket() { 120 } else { 1 } {
        let polled = queue.poll(dfq::PollRequest::new(1)).await.map_err(|e| e.to_string())?;
        if let Some(delivery) = polled.deliveries.first() {
            return Err(format!("{} was left behind, attempt {}", delivery.key, delivery.attempt));
        }
        let rest = site.pending(layout).await?;
        let problems = queue.check(false).await.map_err(|e| e.to_string())?;
        if rest == 0 && problems.is_empty() {
            return Ok(());
        }
        wrong = format!("{rest} tasks are still pending; the tree has problems: {problems:?}");
        if site.in_a_bucket() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    Err(wrong)
}
