//! A model of a bucket, and of what lies between it and the processes that use it.
//!
//! Invariant: the server is right, and the way to it is not. What [`Bucket`] carries out is one step for everybody.
//! A request of a process ([`SimObjects`]) travels in the network's time, not in the process's: it arrives, late or
//! twice or not at all, also if the process has given up or died meanwhile. What becomes of it is drawn from the
//! [`Weather`] when it is sent.

mod client;
mod line;
mod objects;
mod pages;
mod request;
mod server;
#[cfg(test)]
mod tests;
mod weather;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dfq::Env;
use dfq::store::keys::{KeyTree, Manner};
use jiff::Timestamp;

pub use objects::SimObjects;
pub use weather::{Delay, Denied, Weather};

use crate::seam::{Call, Witness};
use line::Line;
use server::Server;

/// How late a removal may arrive before the protocol makes no promise any more. A removal is sent up to one minute
/// after it was decided on, by a record that was up to two minutes old. A purge forgets records of five minutes. Two
/// minutes lie between (decision 19).
pub const LATEST_PROMISED: Duration = Duration::from_secs(120);

/// Who hears of each request of one process, for a history.
pub trait Tap: Send + Sync + fmt::Debug + 'static {
    /// The request has left the process.
    fn sent(&self, call: &Call) -> Luck;
    /// The process has this answer, in a few words, or has given up waiting for it.
    fn answered(&self, call: &Call, answer: &str);
    /// The process was killed. It sends nothing more, and none of its requests is answered any more.
    fn is_dead(&self) -> bool;
}

/// What becomes of one request, whatever the weather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    /// What the weather has for it.
    AsDrawn,
    /// It never arrives.
    Lost,
    /// It is carried out, and the answer never arrives.
    AnswerLost,
    /// It arrives so long after it was sent.
    Late(Duration),
}

/// Nobody listens, and the process lives for ever.
impl Tap for () {
    fn sent(&self, _: &Call) -> Luck {
        Luck::AsDrawn
    }

    fn answered(&self, _: &Call, _: &str) {}

    fn is_dead(&self) -> bool {
        false
    }
}

/// What kind of server it is.
#[derive(Clone, Debug)]
pub struct Traits {
    /// Where the queue is, for messages.
    pub address: String,
    /// The step of modification times in answers to GET and HEAD.
    pub head_resolution: Duration,
    /// The step of modification times in listings.
    pub list_resolution: Duration,
    /// How long a listing may go on to show what was there before. Everything else is always true.
    pub listing_lag: Duration,
}

impl Traits {
    /// Amazon's: whole seconds, and listings that show what is there.
    pub fn s3() -> Self {
        Self {
            address: "s3://sim/queue".to_owned(),
            head_resolution: Duration::from_secs(1),
            list_resolution: Duration::from_secs(1),
            listing_lag: Duration::ZERO,
        }
    }
}

/// The server. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Bucket {
    server: Arc<Server>,
}

impl Bucket {
    /// An empty bucket.
    ///
    /// `network` is the world in which requests travel: its clock, its chance and its runner belong to the simulation
    /// and outlive every process. `clock` is the server's own. `witness` is told of each change while the server is
    /// locked, so it must not come back to the bucket, and it must not panic: nobody would hear it.
    pub fn new(
        traits: Traits,
        network: Env,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
        witness: Arc<dyn Witness>,
    ) -> Self {
        Self { server: Arc::new(Server::new(traits, network, Box::new(clock), witness)) }
    }

    /// The connection of one process. Its weather may be changed at any time, and may be shared with others.
    pub fn line(&self, env: Env, weather: Arc<Mutex<Weather>>, tap: Arc<dyn Tap>) -> SimObjects {
        SimObjects::new(Line::new(Arc::clone(&self.server), env, weather, tap))
    }

    /// A queue's storage over such a connection, in the manner of the real bucket.
    pub fn sim_tree(
        &self,
        env: Env,
        weather: Arc<Mutex<Weather>>,
        tap: Arc<dyn Tap>,
    ) -> KeyTree<SimObjects> {
        let manner = Manner { time_resolution: Duration::from_secs(1), removes_together: true };
        KeyTree::over(self.line(env.clone(), weather, tap), env, manner)
    }

    /// Listings do not lag any more.
    pub fn list_promptly(&self) {
        self.server.list_promptly();
    }

    /// Everything that is there now.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.server.files()
    }

    /// When each of them was last written, on the server's clock and not rounded.
    pub fn times(&self) -> BTreeMap<String, Timestamp> {
        self.server.times()
    }

    /// How many requests are under way, those included that nobody waits for any more. If there are none and nobody
    /// sends any, what is there stays as it is.
    pub fn under_way(&self) -> usize {
        self.server.under_way()
    }
}

/// Locks a mutex whose data stays valid even if somebody panicked while they held it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
