//! What goes on in a town: a user and a supervisor on each node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dfq::queue::merge::{Arrived, Merge};
use dfq::queue::{Nacked, Purge};
use dfq::store::Folders;
use dfq::transfer::{Mode, Transfer};
use dfq::{
    Delivery, Env, ErrorKind, Nack, NewTask, Outcome, Payload, PollRequest, Pushed, Queue, Release,
    TaskId,
};

use super::check::number_in;
use super::plan::{Deed, IDS, LEASE, PERIOD, Step};
use super::town::{Folder, Town, lock};
use super::watch::life_of;
use crate::gate::Door;
use crate::node;
use crate::plan::Trouble;

/// A number that any push may have.
pub(super) const COMMON: i64 = 0;

fn id(number: usize) -> Option<TaskId> {
    TaskId::new(IDS[number % IDS.len()]).ok()
}

/// Starts the user of a node, who does the steps of the plan.
pub(super) fn start_user(town: &Arc<Town>, node: usize) {
    let pid = town.world.start_process();
    let env = node::env(&town.world, &town.houses[node].node, pid);
    let door = town.door(pid, None);
    let within = Arc::clone(town);
    lock(&town.users).insert(pid, node);
    town.note(format!("{pid} is the user of node {node}"));
    let steps: Vec<Step> =
        town.plan.steps.iter().filter(|step| step.node == node).cloned().collect();
    let work = async move {
        let Ok(folder) = within.folder(node, &door, &env).await else { return };
        let mut user =
            User { town: Arc::clone(&within), node, door, env, folder, held: Vec::new() };
        for step in steps {
            user.env.clock().sleep(step.wait).await;
            let told = user.does(&step.deed).await;
            within.note(format!("node {node}: {:?}: {told}", step.deed));
        }
        user.folder.close().await;
        within.houses[node].is_over.store(true, Ordering::Relaxed);
    };
    town.world.spawn(pid, Box::pin(work));
}

struct User {
    town: Arc<Town>,
    node: usize,
    door: Arc<Door>,
    env: Env,
    folder: Folder,
    held: Vec<Delivery>,
}

impl User {
    async fn does(&mut self, deed: &Deed) -> String {
        match deed {
            Deed::Push { id, again, delay, common } => {
                let number = if *common { COMMON } else { self.town.next() };
                let Some(task) = task(*id, number) else { return String::new() };
                let mut task = if *again { task.again() } else { task };
                if let Some(delay) = delay {
                    task = task.delay(Duration::from_secs(*delay));
                }
                let pushed = self.folder.push(vec![task]).await.remove(0);
                self.note_push(&pushed, number, *id, delay.is_some())
            }
            Deed::PushThere { id } => {
                let number = self.town.next();
                let Some(task) = task(*id, number) else { return String::new() };
                let Ok(hub) = self.town.hub(&self.door, &self.env).await else {
                    return "no hub".to_owned();
                };
                let pushed = hub.push(vec![task]).await.remove(0);
                hub.close().await;
                self.note_push(&pushed, number, *id, false)
            }
            Deed::Poll(most) => match self.folder.poll(PollRequest::new(*most)).await {
                Ok(polled) => {
                    let told: Vec<_> = polled
                        .deliveries
                        .iter()
                        .map(|it| {
                            format!(
                                "{} attempt {} (n {:?})",
                                it.key,
                                it.attempt,
                                number_in(it.payload.as_json())
                            )
                        })
                        .collect();
                    self.held.extend(polled.deliveries);
                    told.join(", ")
                }
                Err(error) => error.to_string(),
            },
            Deed::Ack => {
                let mut told = Vec::new();
                for held in std::mem::take(&mut self.held) {
                    let number = number_in(held.payload.as_json());
                    let answer = self.folder.ack(vec![held.receipt]).await.remove(0);
                    if answer.is_ok() {
                        let mut accounts = self.town.accounts();
                        accounts.acked.extend(number);
                    }
                    told.push(format!("{} n {number:?}: {answer:?}", held.key));
                }
                told.join(", ")
            }
            Deed::Nack | Deed::Fail | Deed::Release => self.settle(deed).await,
            Deed::Beat => {
                let receipts = self.held.iter().map(|it| it.receipt.clone()).collect();
                let answers = self.folder.heartbeat(receipts).await;
                let told = format!("{answers:?}");
                let mut answers = answers.into_iter();
                self.held.retain(|_| {
                    !answers.next().is_some_and(|it| {
                        it.is_err_and(|error| {
                            matches!(
                                error.kind(),
                                ErrorKind::ClaimLost | ErrorKind::AlreadyCompleted
                            )
                        })
                    })
                });
                told
            }
            Deed::Retry(number) => {
                let Some(id) = id(*number) else { return String::new() };
                let failed = self.folder.get(id.clone()).await.ok().flatten();
                let failed =
                    failed.and_then(|it| it.payload).and_then(|it| number_in(it.as_json()));
                let answer = self.folder.retry(vec![id.clone()]).await.remove(0);
                // Which life it was is only known by what is there now.
                let now = self.folder.get(id).await.ok().flatten();
                let now = now.and_then(|it| it.payload).and_then(|it| number_in(it.as_json()));
                self.town.accounts().retried.extend(failed.into_iter().chain(now));
                format!("{answer:?}")
            }
            Deed::Cancel(number) => {
                let Some(id) = id(*number) else { return String::new() };
                format!("{:?}", self.folder.cancel(vec![id], "no".to_owned()).await)
            }
            Deed::Unlock(number) => {
                let Some(id) = id(*number) else { return String::new() };
                format!("{:?}", self.folder.unlock(vec![id]).await)
            }
            Deed::Rot(number) => self.rot(*number).await,
            Deed::RotLease(number) => self.rot_lease(*number).await,
            Deed::Forget => {
                let _ = self.folder.tree().remove_file("sync/memory.json").await;
                String::new()
            }
            Deed::Jump(by) => {
                self.town.houses[self.node].node.jump(jiff::SignedDuration::from_secs(*by));
                String::new()
            }
            Deed::Kill(calls) => self.trouble(*calls, Trouble::Killed),
            Deed::Stall { calls, seconds } => {
                self.trouble(*calls, Trouble::Stalled(Duration::from_secs(*seconds)))
            }
            Deed::Offline(seconds) => {
                let until = self.town.world.now() + Duration::from_secs(*seconds);
                *lock(&self.town.houses[self.node].offline_until) = until;
                String::new()
            }
            Deed::Purge => self.purge().await,
            Deed::Move => self.moves().await.unwrap_or_else(|error| error.to_string()),
        }
    }

    /// Moves all that this node can claim to another queue.
    async fn moves(&self) -> dfq::Result<String> {
        let here: Arc<dyn Queue> =
            Arc::new(self.town.folder(self.node, &self.door, &self.env).await?);
        let elsewhere = Arc::new(self.town.another_queue(&self.door, &self.env).await?);
        let transfer = Transfer::new(Arc::clone(&here), elsewhere, Mode::Move, self.env.clone())?;
        let report = transfer.lease(LEASE).again(true).run(&mut |_| {}).await;
        here.close().await;
        Ok(format!("{report:?}"))
    }

    fn note_push(
        &self,
        pushed: &dfq::Result<Pushed>,
        number: i64,
        id: usize,
        delayed: bool,
    ) -> String {
        if matches!(pushed, Ok(Pushed::Created(_))) {
            self.town.accounts().pushed.push((number, IDS[id].to_owned(), delayed));
        }
        format!("n {number}: {pushed:?}")
    }

    async fn settle(&mut self, deed: &Deed) -> String {
        if self.held.is_empty() {
            return "nothing held".to_owned();
        }
        let held = self.held.remove(0);
        let number = number_in(held.payload.as_json());
        match deed {
            Deed::Nack => {
                let nack = Nack { receipt: held.receipt, error: "no".to_owned(), delay: None };
                let answer = self.folder.nack(vec![nack]).await.remove(0);
                if matches!(answer, Ok(Nacked::GivenUp)) {
                    self.town.accounts().ended.extend(number);
                }
                format!("{} {answer:?}", held.key)
            }
            Deed::Fail => {
                let failures = vec![(held.receipt, "hopeless".to_owned())];
                let answer = self.folder.fail(failures).await.remove(0);
                if answer.is_ok() {
                    self.town.accounts().ended.extend(number);
                }
                format!("{} {answer:?}", held.key)
            }
            _ => {
                let answer = self.folder.release(vec![Release::now(held.receipt)]).await;
                format!("{} {answer:?}", held.key)
            }
        }
    }

    /// Spoils the file of a task that is pending here.
    async fn rot(&self, number: usize) -> String {
        let Some(path) = self.file_of(number, |name| name == "task.json") else {
            return "not here".to_owned();
        };
        let read = |files: BTreeMap<String, Vec<u8>>| {
            files.get(&path).and_then(|bytes| number_in(std::str::from_utf8(bytes).ok()?))
        };
        let task = read(self.town.houses[self.node].disk.files());
        if let Some(task) = task {
            let mut accounts = self.town.accounts();
            match read(self.town.hub.files()) == Some(task) {
                true => accounts.healed.insert(task),
                false => accounts.spoiled.insert(task),
            };
        }
        format!("{path}: {:?}", self.folder.tree().replace(&path, b"{\"torn").await)
    }

    /// Spoils the first lease of a task that is pending here.
    async fn rot_lease(&self, number: usize) -> String {
        let Some(path) = self.file_of(number, |name| name.starts_with("lease")) else {
            return "not here".to_owned();
        };
        format!("{path}: {:?}", self.folder.tree().replace(&path, b"{\"torn").await)
    }

    /// The first file of that name of an id that is pending here.
    fn file_of(&self, number: usize, is_it: impl Fn(&str) -> bool) -> Option<String> {
        let files = self.town.houses[self.node].disk.files();
        let mut paths = files.into_keys().filter(|path| path.starts_with("pending/"));
        paths.find(|path| {
            let mut parts = path.rsplit('/');
            let (name, stem) = (parts.next(), parts.next());
            name.is_some_and(&is_it) && stem.is_some_and(|stem| life_of(stem).0 == IDS[number])
        })
    }

    /// What the next supervisor here meets. It starts at once.
    fn trouble(&self, calls: u64, trouble: Trouble) -> String {
        *lock(&self.town.houses[self.node].trouble) = Some((calls, trouble));
        String::new()
    }

    async fn purge(&self) -> String {
        let Ok(hub) = self.town.hub(&self.door, &self.env).await else {
            return "no hub".to_owned();
        };
        super::check::note_records(&self.town);
        let mut told = Vec::new();
        for outcome in [Outcome::Completed, Outcome::Failed] {
            let older_than = Duration::from_secs(7200);
            let purge = Purge { outcome, older_than, dry_run: false };
            told.push(format!("{:?}", hub.purge(purge).await));
        }
        hub.close().await;
        told.join(", ")
    }
}

fn task(id: usize, number: i64) -> Option<NewTask> {
    let payload = Payload::from_json(&format!("{{\"n\":{number}}}")).ok()?;
    Some(NewTask::new(payload).id(TaskId::new(IDS[id]).ok()?))
}

/// Starts the supervisor of a node, which merges until all is calm, and begins anew when it was killed.
pub(super) fn start_supervisor(town: &Arc<Town>, node: usize) {
    if town.calm.load(Ordering::Relaxed) {
        return;
    }
    let pid = town.world.start_process();
    let env = node::env(&town.world, &town.houses[node].node, pid);
    let trouble = lock(&town.houses[node].trouble).take();
    let door = town.door(pid, trouble);
    let within = Arc::clone(town);
    town.note(format!("{pid} is the supervisor of node {node}"));
    let work = async move {
        supervise(&within, node, &door, &env).await;
        within.houses[node].is_quiet.store(true, Ordering::Relaxed);
    };
    town.world.spawn(pid, Box::pin(work));
    *lock(&town.houses[node].supervisor) = Some(pid);
    // Looks now and then whether it lives, or is to be killed.
    watch_over(town, node, pid);
}

fn watch_over(town: &Arc<Town>, node: usize, pid: crate::world::Pid) {
    let within = Arc::clone(town);
    let again = town.world.now() + Duration::from_secs(20);
    town.world.act(again, move |world| {
        if within.calm.load(Ordering::Relaxed) {
            return;
        }
        let is_to_die = lock(&within.houses[node].trouble).is_some();
        if world.is_dead(pid) {
            start_supervisor(&within, node);
        } else if is_to_die {
            world.kill(pid);
            start_supervisor(&within, node);
        } else {
            watch_over(&within, node, pid);
        }
    });
}

async fn supervise(town: &Arc<Town>, node: usize, door: &Arc<Door>, env: &Env) {
    let mut merge = None;
    while !town.calm.load(Ordering::Relaxed) {
        if town.world.now() < *lock(&town.houses[node].offline_until) {
            let sleeps = match town.plan.together {
                true => until_all_begin(town.world.now()),
                false => PERIOD / 4,
            };
            env.clock().sleep(sleeps).await;
            continue;
        }
        if merge.is_none() {
            let opened = async {
                let folder = town.folder(node, door, env).await?;
                let hub = town.hub(door, env).await?;
                Merge::new(&folder, &hub).await
            };
            merge = opened.await.ok();
        }
        if let Some(merge) = &mut merge {
            let thorough = env.below(4) == 0;
            let passed = merge.pass(thorough).await;
            town.passes.fetch_add(1, Ordering::Relaxed);
            if passed.is_ok() {
                lock(&town.ended_passes).push((town.world.now(), door.pid));
            }
            if passed.as_ref().is_ok_and(|it| !it.is_calm()) || passed.is_err() {
                town.note(format!("node {node}: a pass: {passed:?}"));
            }
        }
        let sleeps = match town.plan.together {
            true => {
                until_all_begin(town.world.now())
                    + Duration::from_millis(1) * (env.below(200) as u32)
            }
            false => PERIOD / 2 + PERIOD / 8 * (env.below(9) as u32),
        };
        if !town.plan.at_once {
            env.clock().sleep(sleeps).await;
            continue;
        }
        for _ in 0..4 {
            env.clock().sleep(sleeps / 4).await;
            if town.world.now() < *lock(&town.houses[node].offline_until) {
                continue;
            }
            if let Some(merge) = &mut merge {
                let arrived = merge.merge_arrived(&town.arrivals(node)).await;
                match arrived {
                    Ok(Arrived::Merged(_)) => {
                        lock(&town.ended_passes).push((town.world.now(), door.pid));
                    }
                    Ok(Arrived::Nothing | Arrived::TooMuch) => continue,
                    Err(_) => {}
                }
                town.note(format!("node {node}: arrivals: {arrived:?}"));
            }
        }
    }
}

/// How long it is until the moment at which all supervisors begin a pass.
fn until_all_begin(now: Duration) -> Duration {
    let each = PERIOD / 2;
    each - Duration::from_nanos((now.as_nanos() % each.as_nanos()) as u64)
}
