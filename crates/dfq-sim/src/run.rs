//! One run: a plan is carried out, then everything calms down, and what is left is worked off.
//!
//! Invariant: the outcome of a run is a function of its plan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dfq::worker::Until;

use crate::cast::{Cast, Hands};
use crate::check::{self, Violation};
use crate::gate::{Door, Troubles};
use crate::history::{Event, History};
use crate::node;
use crate::plan::{Fault, Plan, Step, Store, Work};
use crate::stage::{Kept, Stage};
use crate::world::{Ended, Pid};

/// By then everybody must be through with a plan, in virtual time.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// And by then all that is left must be worked off.
const LONGEST_AFTER: Duration = Duration::from_secs(12 * 3600);

/// More than any plan takes.
const MOST_STEPS: u64 = 3_000_000;

/// What came of a run.
pub struct Outcome {
    /// What was wrong.
    pub violations: Vec<Violation>,
    /// What happened.
    pub history: Arc<History>,
    /// How often something was let run.
    pub steps: u64,
}

/// Carries out a plan. The history has single calls only if `keeps_calls`.
pub fn run(plan: &Plan, keeps_calls: bool) -> Outcome {
    let stage = Stage::new(plan.clone(), keeps_calls);
    let cast = Cast::new(&stage);
    let mut violations = Vec::new();
    let begins = if plan.made { prepare(&stage) } else { Duration::ZERO };
    for (number, actor) in plan.actors.iter().enumerate() {
        let cast = Arc::clone(&cast);
        stage.world.act(begins + actor.starts, move |_| cast.start(number));
    }
    for fault in &plan.faults {
        arrange(fault, begins, &stage, &cast);
    }
    let ended = stage.world.run(begins + LONGEST, MOST_STEPS, || cast.is_over());
    if ended != Ended::Done {
        let unfinished = cast.unfinished();
        let text = format!("{ended:?} before all are through with their plans: {unfinished}");
        violations.push(Violation { rule: "everybody comes to an end", text });
    }
    stage.history.happened(Event::Calm);
    stage.calm_down();
    let done = Arc::new(AtomicBool::new(false));
    let pid = work_off(&stage, &done);
    let ended = stage
        .world
        .run(stage.world.now() + LONGEST_AFTER, MOST_STEPS, || done.load(Ordering::Relaxed));
    if ended != Ended::Done {
        let text = format!("{ended:?} before {pid} has worked off what is left");
        violations.push(Violation { rule: "every task ends once faults stop", text });
    }
    violations.extend(check::check(&stage));
    let steps = stage.world.steps();
    stage.world.end();
    Outcome { violations, history: Arc::clone(&stage.history), steps }
}

/// Makes the queues before anybody else comes, and answers when that is done.
fn prepare(stage: &Arc<Stage>) -> Duration {
    let done = Arc::new(AtomicBool::new(false));
    let pid = stage.world.start_process();
    let env = node::env(&stage.world, &stage.nodes[0], pid);
    let door = healthy_door(stage, pid);
    let (within, done_within) = (Arc::clone(stage), Arc::clone(&done));
    let work = async move {
        let mut hands = Hands::new(&within, &door, 0, &env, usize::MAX);
        for number in 0..within.kept.len() {
            while hands.queue(number).await.is_err() {
                env.clock().sleep(Duration::from_secs(1)).await;
            }
        }
        hands.close().await;
        done_within.store(true, Ordering::Relaxed);
    };
    stage.world.spawn(pid, Box::pin(work));
    stage.world.run(LONGEST, MOST_STEPS, || done.load(Ordering::Relaxed));
    stage.world.now()
}

fn arrange(fault: &Fault, begins: Duration, stage: &Arc<Stage>, cast: &Arc<Cast>) {
    let (world, cast, within) = (&stage.world, Arc::clone(cast), Arc::clone(stage));
    match fault.clone() {
        // These are met at the door.
        Fault::Process(..) | Fault::At(..) | Fault::Refused(..) => {}
        Fault::PowerCut(at) => world.act(begins + at, move |_| power_cut(&within, &cast)),
        Fault::Jump(host, at, by) => world.act(begins + at, move |_| {
            if within.is_calm() {
                return;
            }
            within.history.happened(Event::Jumped(format!("machine {host} by {by:#}")));
            within.nodes[host].jump(by);
        }),
        Fault::Suspend(host, at, lasts) => world.act(begins + at, move |world| {
            for pid in cast.running(Some(host)) {
                within.history.happened(Event::Stalled(pid, world.now() + lasts));
                world.freeze(pid, world.now() + lasts);
            }
        }),
    }
}

/// The power of the machine that holds the directory fails.
pub(crate) fn power_cut(stage: &Arc<Stage>, cast: &Arc<Cast>) {
    if stage.is_calm() {
        return;
    }
    let over_a_network = matches!(&stage.plan.store, Store::Disk(kind) if kind.nfs.is_some());
    if !over_a_network {
        for actor in 0..stage.plan.actors.len() {
            cast.kill(actor, true);
        }
    }
    stage.history.happened(Event::PowerCut);
    for kept in &stage.kept {
        if let Kept::Disk(disk, _) = kept {
            disk.power_cut(&mut || stage.world.chance());
        }
    }
}

/// The door of a process for which nothing goes wrong.
fn healthy_door(stage: &Arc<Stage>, pid: Pid) -> Arc<Door> {
    Arc::new(Door {
        world: Arc::clone(&stage.world),
        history: Arc::clone(&stage.history),
        pid,
        troubles: Troubles::none(),
        on_kill: Arc::new(|| {}),
        on_cut: Arc::new(|| {}),
    })
}

/// Starts a healthy process that works off what is left, then looks whether all is well.
fn work_off(stage: &Arc<Stage>, done: &Arc<AtomicBool>) -> Pid {
    let pid = stage.world.start_process();
    stage.history.happened(Event::Started(format!("{pid} works off what is left")));
    let env = node::env(&stage.world, &stage.nodes[0], pid);
    let door = healthy_door(stage, pid);
    let (stage, done, world) = (Arc::clone(stage), Arc::clone(done), Arc::clone(&stage.world));
    let work = async move {
        let queues =
            if stage.plan.actors.iter().any(|it| it.steps.iter().any(is_transfer)) { 2 } else { 1 };
        let mut hands = Hands::new(&stage, &door, 0, &env, usize::MAX);
        for number in 0..queues {
            let Ok(queue) = hands.queue(number).await else { return };
            let _ = queue.resume().await;
            if env.below(2) == 0 {
                let _ = queue.check(true).await;
            }
            let work = Work {
                lasts: LONGEST_AFTER,
                slots: 2,
                busy: Duration::from_millis(10),
                fails: 0,
                elsewhere: number == 1,
            };
            hands.work(queue, work, Until::Drained).await;
        }
        hands.close().await;
        // What is still on its way to a bucket arrives before this.
        env.clock().sleep(Duration::from_secs(180)).await;
        for number in 0..queues {
            let Ok(queue) = hands.queue(number).await else { return };
            let _ = queue.check(false).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    world.spawn(pid, Box::pin(work));
    pid
}

fn is_transfer(step: &Step) -> bool {
    matches!(step, Step::Transfer { .. })
}
