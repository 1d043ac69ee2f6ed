//! The parent: pushes, starts workers, and sends them signals until everything is done.

#![allow(clippy::disallowed_methods, reason = "the parent of real processes lives in real time")]

use std::collections::HashSet;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use dfq::model::{Durability, Layout};
use dfq::{Env, NewTask, OpenOptions, Pushed, Queue, Settings, TaskId};
use rustix::process::{Pid, Signal, kill_process};

use crate::journal::{self, Incident};
use crate::worker::{LAST, SEED};
use crate::{Plan, now, one_in, seeded};

/// The longest lease that workers ask for.
const LONGEST_LEASE: Duration = Duration::from_millis(500);

/// What the parent knows for the verification.
#[derive(Default)]
pub(crate) struct Told {
    /// Everything that it pushed.
    pub(crate) tasks: Vec<String>,
    /// The journals of workers that were killed.
    pub(crate) killed: HashSet<String>,
    pub(crate) journals: Vec<String>,
    pub(crate) stops: usize,
    pub(crate) setup: String,
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
    dir: &'a Path,
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
        command.arg(self.dir).arg(&journal).env(SEED, self.env.next_u64().to_string());
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
            let path = self.dir.join(&member.journal);
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
        let mut pause = LONGEST_LEASE.mul_f64(1.05 + self.env.fraction());
        if one_in(&self.env, 4) {
            pause = LONGEST_LEASE.mul_f64(self.env.fraction());
        }
        let until = now(&self.env) + pause.as_nanos() as u64;
        let member = &mut self.members[at];
        if member.stopped.is_none() && !member.killed {
            member.signal(Signal::STOP)?;
            member.stopped = Some(until);
            self.told.stops += usize::from(pause > LONGEST_LEASE);
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
            let path = self.dir.join(name);
            let events = if path.exists() { journal::read(&path)? } else { Vec::new() };
            missing.retain(|incident| !events.iter().any(|event| incident.is(event)));
        }
        Ok(missing.is_empty())
    }

    /// Lets everybody finish.
    fn dismiss(&mut self) -> Result<(), String> {
        self.resume(true)?;
        std::fs::write(self.dir.join(LAST), "").map_err(|e| e.to_string())?;
        for member in &mut self.members {
            let status = member.child.wait().map_err(|e| e.to_string())?;
            if !status.success() && !member.killed {
                return Err(format!("{} ended with {status}", member.journal));
            }
        }
        Ok(())
    }
}

fn settings(env: &Env) -> Settings {
    let durable = one_in(env, 2);
    Settings {
        layout: if one_in(env, 4) { Layout::Flat } else { Layout::Sharded },
        durability: if durable { Durability::Durable } else { Durability::Relaxed },
        lease: Duration::from_millis(300),
        max_attempts: 1_000_000,
        max_lost: 1_000_000,
        ..Settings::default()
    }
}

fn push(queue: &dyn Queue, ids: &[String]) -> Result<(), String> {
    let task = |id: &String| {
        let task = NewTask::from_json(r#"{"work":"none"}"#)?;
        Ok(task.id(TaskId::new(id.as_str())?))
    };
    let tasks = ids.iter().map(task).collect::<dfq::Result<_>>().map_err(|e| e.to_string())?;
    for answer in futures::executor::block_on(queue.push(tasks)) {
        match answer {
            Ok(Pushed::Created(_)) => {}
            other => return Err(format!("push answered {other:?}")),
        }
    }
    Ok(())
}

/// Folders under `pending/`, shards not counted.
pub(crate) fn pending(dir: &Path, layout: Layout) -> usize {
    let list = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let pending = dir.join("queue/pending");
    match layout {
        Layout::Flat => list(&pending).count(),
        Layout::Sharded => list(&pending).map(|shard| list(&shard.path()).count()).sum(),
    }
}

pub(crate) fn run(plan: &Plan, seed: u64, dir: &Path) -> Result<Told, String> {
    let env = seeded(seed);
    let settings = settings(&env);
    let (layout, durability) = (settings.layout, settings.durability);
    let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
    let queue = futures::executor::block_on(dfq::open(dir.join("queue"), options));
    let queue = queue.map_err(|e| e.to_string())?;
    let tasks: Vec<String> = (0..plan.tasks).map(|n| format!("t{n}")).collect();
    let setup = format!("{} workers, {layout:?}, {durability:?}", plan.workers);
    let calendar = (calendar_ahead(&env), 0);
    let told = Told { tasks, setup, calendar, ..Told::default() };
    println!("race: seed {seed}, {}, {} tasks", told.setup, plan.tasks);

    // Half of the tasks are there from the start. The rest comes in a trickle, so that all workers
    // are after the same few. If that is done before enough has happened, further tasks follow until
    // it has: however fast the machine and whatever the seed, the race is never run idly.
    let mut left = told.tasks.clone();
    let first = left.split_off(left.len() / 2);
    for batch in first.chunks(500) {
        push(&*queue, batch)?;
    }
    let mut crew = Crew { env, dir, members: Vec::new(), told };
    for _ in 0..plan.workers {
        let member = crew.hire()?;
        crew.members.push(member);
    }
    let mut enough = false;
    for tick in 1_u64.. {
        std::thread::sleep(Duration::from_millis(1 + crew.env.below(12) as u64));
        crew.replace()?;
        crew.resume(false)?;
        match crew.env.below(8) {
            0 => crew.kill_one()?,
            1 => crew.stop_one()?,
            _ => {}
        }
        if !enough && tick % 16 == 0 {
            enough = crew.had_enough()?;
        }
        if left.is_empty() && !enough && one_in(&crew.env, 4) {
            left.push(format!("t{}", crew.told.tasks.len()));
            crew.told.tasks.extend(left.last().cloned());
        }
        let batch = 1 + crew.env.below(plan.workers);
        push(&*queue, &left.split_off(left.len().saturating_sub(batch)))?;
        if left.is_empty() && enough && tick % 16 == 0 && pending(dir, layout) == 0 {
            break;
        }
        if tick % 4096 == 0 {
            println!("race: {} pending, {} to be pushed", pending(dir, layout), left.len());
        }
    }
    crew.dismiss()?;
    settle(&*queue, dir, layout)?;
    crew.told.calendar.1 = calendar_ahead(&crew.env);
    Ok(std::mem::take(&mut crew.told))
}

/// What killed workers left half cleaned is cleaned by the next poll, which must not find work.
fn settle(queue: &dyn Queue, dir: &Path, layout: Layout) -> Result<(), String> {
    let polled = futures::executor::block_on(queue.poll(dfq::PollRequest::new(1)));
    let polled = polled.map_err(|e| e.to_string())?;
    if let Some(delivery) = polled.deliveries.first() {
        return Err(format!("{} was left behind, attempt {}", delivery.key, delivery.attempt));
    }
    let rest = pending(dir, layout);
    if rest > 0 {
        return Err(format!("{rest} tasks are still pending"));
    }
    let problems = futures::executor::block_on(queue.check(false)).map_err(|e| e.to_string())?;
    if !problems.is_empty() {
        return Err(format!("the tree has problems: {problems:?}"));
    }
    Ok(())
}
