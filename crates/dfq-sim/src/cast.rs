//! Those who take part: each a process that does the steps of its plan, one after the other.
//!
//! Invariant: a process uses the library as any program does, by its public verbs. After a crash it begins anew with
//! the step at which it was, as a supervisor would start it again.

mod steps;

pub(crate) use steps::Hands;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dfq::Env;

use crate::gate::Door;
use crate::history::Event;
use crate::node;
use crate::plan::Step;
use crate::run::power_cut;
use crate::stage::Stage;
use crate::world::Pid;

/// How long it takes until a process is started again.
const RESTART: Duration = Duration::from_secs(2);

/// A queue that cannot be opened is tried again after this.
const REOPEN: Duration = Duration::from_secs(5);

/// Where an actor is in its plan.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    pid: Option<Pid>,
    step: usize,
    over: bool,
}

/// All actors of a run.
pub struct Cast {
    stage: Arc<Stage>,
    progress: Mutex<Vec<Progress>>,
}

impl Cast {
    /// Nobody has started yet.
    pub fn new(stage: &Arc<Stage>) -> Arc<Self> {
        let progress = Mutex::new(vec![Progress::default(); stage.plan.actors.len()]);
        Arc::new(Self { stage: Arc::clone(stage), progress })
    }

    fn progress(&self) -> MutexGuard<'_, Vec<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all are done, or dead for good. Those who are refused something for ever are not waited for.
    pub fn is_over(&self) -> bool {
        let progress = self.progress();
        let mut each = progress.iter().zip(&self.stage.troubles);
        each.all(|(actor, troubles)| actor.over || troubles.lasts())
    }

    /// Who is not done, and where.
    pub fn unfinished(&self) -> String {
        let progress = self.progress();
        let each = progress.iter().enumerate().filter(|(_, it)| !it.over);
        let each = each.map(|(actor, it)| format!("actor {actor} at step {}", it.step));
        each.collect::<Vec<_>>().join(", ")
    }

    /// The processes that run now, of those on a machine or of all.
    pub fn running(&self, host: Option<usize>) -> Vec<Pid> {
        let progress = self.progress();
        let actors = progress.iter().zip(&self.stage.plan.actors);
        let there = actors.filter(|(_, actor)| host.is_none_or(|host| actor.host == host));
        there.filter_map(|(progress, _)| progress.pid).collect()
    }

    /// Starts an actor, or starts it again.
    pub fn start(self: &Arc<Self>, actor: usize) {
        let stage = &self.stage;
        let plan = &stage.plan.actors[actor];
        let pid = stage.world.start_process();
        let step = {
            let mut progress = self.progress();
            progress[actor].pid = Some(pid);
            progress[actor].step
        };
        let role = format!("{pid} is actor {actor} on machine {}, from step {step}", plan.host);
        stage.history.happened(Event::Started(role));
        stage.history.plays(pid, actor);
        let env = node::env(&stage.world, &stage.nodes[plan.host], pid);
        let (cast, env_within) = (Arc::clone(self), env.clone());
        let work = async move { cast.play(actor, pid, env_within).await };
        stage.world.spawn(pid, Box::pin(work));
    }

    /// Kills an actor's process, if it runs. It starts again if the plan says so, or if everything does.
    pub fn kill(self: &Arc<Self>, actor: usize, and_all_start_again: bool) {
        let stage = &self.stage;
        let Some(pid) = self.progress()[actor].pid.take() else { return };
        stage.history.happened(Event::Killed(pid));
        stage.world.kill(pid);
        if !(stage.plan.actors[actor].restarts || and_all_start_again) {
            self.progress()[actor].over = true;
            return;
        }
        let cast = Arc::clone(self);
        stage.world.act(stage.world.now() + RESTART, move |_| cast.start(actor));
    }

    /// The door of a process.
    pub fn door(self: &Arc<Self>, actor: usize, pid: Pid) -> Arc<Door> {
        let (stage, cast) = (&self.stage, Arc::clone(self));
        let on_kill = move || {
            let (world, cast) = (Arc::clone(&cast.stage.world), Arc::clone(&cast));
            world.act(world.now(), move |_| cast.kill(actor, false));
        };
        let cast = Arc::clone(self);
        let on_cut = move || {
            let (world, cast) = (Arc::clone(&cast.stage.world), Arc::clone(&cast));
            world.act(world.now(), move |_| power_cut(&cast.stage, &cast));
        };
        Arc::new(Door {
            world: Arc::clone(&stage.world),
            history: Arc::clone(&stage.history),
            pid,
            troubles: Arc::clone(&stage.troubles[actor]),
            on_kill: Arc::new(on_kill),
            on_cut: Arc::new(on_cut),
        })
    }

    async fn play(self: &Arc<Self>, actor: usize, pid: Pid, env: Env) {
        let stage = &self.stage;
        let plan = &stage.plan.actors[actor];
        let door = self.door(actor, pid);
        let mut hands = Hands::new(stage, &door, plan.host, &env, actor);
        loop {
            let number = self.progress()[actor].step;
            let Some(step) = plan.steps.get(number) else { break };
            if *step == Step::Cut {
                // Whoever pulls the plug does not do it again when the power is back.
                self.progress()[actor].step += 1;
                (door.on_cut)();
                env.clock().sleep(Duration::from_millis(1)).await;
                continue;
            }
            while let Err(error) = hands.take(step).await {
                stage.history.happened(Event::Note(format!("{pid} cannot go on: {error}")));
                env.clock().sleep(REOPEN).await;
            }
            self.progress()[actor].step += 1;
        }
        hands.close().await;
        self.progress()[actor] = Progress { pid: None, step: plan.steps.len(), over: true };
    }
}
