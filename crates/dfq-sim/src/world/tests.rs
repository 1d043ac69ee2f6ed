//! That virtual time and one seed decide everything.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Several processes that take turns, by system calls and by timers.
fn several(seed: u64) -> Vec<String> {
    let (world, notes) = (World::new(seed), Notes::default());
    for process in 0..4 {
        let (pid, within, notes) = (world.start_process(), Arc::clone(&world), notes.clone());
        let work = async move {
            for step in 0..5 {
                within.pause(within.now() + Duration::from_micros(within.chance() % 100));
                within.at(within.now() + Duration::from_micros(within.chance() % 100)).await;
                notes.add(format!("{process}.{step} at {:?}", within.now()));
            }
        };
        world.spawn(pid, Box::pin(work));
    }
    assert_eq!(world.run(HOUR, 1000, || false), Ended::Still);
    notes.all()
}

#[test]
fn a_seed_decides_the_order() {
    assert_eq!(several(1).len(), 20);
    assert_eq!(several(1), several(1));
    assert_ne!(several(1), several(2));
}

#[test]
fn who_is_killed_stops_where_it_is_and_lets_go_of_what_it_holds() {
    let (world, notes) = (World::new(1), Notes::default());
    let (pid, within, noted) = (world.start_process(), Arc::clone(&world), notes.clone());
    let held = Arc::new(());
    let holds = Arc::clone(&held);
    world.spawn(
        pid,
        Box::pin(async move {
            let _holds = holds;
            loop {
                within.pause(within.now() + Duration::from_secs(1));
                noted.add("alive");
            }
        }),
    );
    world.act(Duration::from_millis(3500), move |world| world.kill(pid));
    assert_eq!(world.run(HOUR, 1000, || false), Ended::Still);
    assert_eq!(notes.all().len(), 3);
    assert_eq!(Arc::strong_count(&held), 1);
    assert!(world.is_dead(pid));
}

#[test]
fn who_is_frozen_wakes_up_late() {
    let world = World::new(1);
    let (pid, within, woke) = (world.start_process(), Arc::clone(&world), Notes::default());
    let noted = woke.clone();
    world.spawn(
        pid,
        Box::pin(async move {
            within.at(Duration::from_secs(10)).await;
            noted.add(format!("{:?}", within.now().as_secs()));
        }),
    );
    world.freeze(pid, Duration::from_secs(60));
    assert_eq!(world.run(HOUR, 1000, || false), Ended::Still);
    assert_eq!(woke.all(), ["60"]);
}

#[test]
fn a_run_ends_when_it_is_done_or_the_time_is_up() {
    let (world, done) = (World::new(1), Arc::new(AtomicBool::new(false)));
    let (within, finished) = (Arc::clone(&world), Arc::clone(&done));
    world.spawn(
        Pid::WORLD,
        Box::pin(async move {
            within.at(2 * HOUR).await;
            finished.store(true, Ordering::Relaxed);
        }),
    );
    let is_done = || done.load(Ordering::Relaxed);
    assert_eq!(world.run(HOUR, 1000, is_done), Ended::TimeUp);
    assert_eq!(world.now(), HOUR);
    assert_eq!(world.run(3 * HOUR, 1000, is_done), Ended::Done);
}
