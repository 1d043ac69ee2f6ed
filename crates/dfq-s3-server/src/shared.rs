//! What the parts of one server share. Each setting has a lock of its own and is read when a request
//! needs it, so a change holds from the next request on.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::access::{Credential, Rules};
use crate::faults::{Dice, Fault, Plan};
use crate::lies::Lies;
use crate::meter::Meter;
use crate::request::RequestInfo;
use crate::store::Store;

type Predicate = Box<dyn Fn(&RequestInfo) -> Option<Fault> + Send>;

/// A test's own choice of faults, and what it has seen so far.
pub(crate) struct Script {
    choose: Predicate,
    seen: BTreeMap<(&'static str, String), u64>,
}

impl Script {
    pub(crate) fn new(choose: Predicate) -> Self {
        Self { choose, seen: BTreeMap::new() }
    }
}

/// Chance and script under one lock: requests are numbered, drawn for and scripted in one order.
#[derive(Default)]
pub(crate) struct Director {
    pub(crate) dice: Dice,
    pub(crate) script: Option<Script>,
    seq: u64,
}

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) meter: Meter,
    pub(crate) credentials: RwLock<Vec<Credential>>,
    pub(crate) rules: RwLock<Rules>,
    pub(crate) lies: RwLock<Lies>,
    pub(crate) director: Mutex<Director>,
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>, value: T) {
    *lock.write().unwrap_or_else(PoisonError::into_inner) = value;
}

impl Shared {
    pub(crate) fn direct<R>(&self, act: impl FnOnce(&mut Director) -> R) -> R {
        act(&mut self.director.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Numbers a request and decides what happens to it. A script goes before chance, which is drawn
    /// all the same so that a script does not move it.
    pub(crate) fn plan(&self, info: &mut RequestInfo) -> Plan {
        self.direct(|director| {
            director.seq += 1;
            info.seq = director.seq;
            let mut plan = director.dice.roll(info);
            if let Some(script) = &mut director.script {
                let nth = script.seen.entry((info.op, info.key.clone())).or_default();
                *nth += 1;
                info.nth = *nth;
                if let Some(fault) = (script.choose)(info) {
                    plan.fault = Some(fault);
                }
            }
            match plan.fault {
                Some(Fault::Delay(delay)) => plan.delay += delay,
                Some(Fault::StaleList(age)) => plan.list_age = age,
                _ => {}
            }
            plan
        })
    }
}
