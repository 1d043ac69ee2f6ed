//! The way up to a store: how many large uploads are under way at once, and what they send together.
//!
//! Invariant: until an upload times out nobody waits here, and there is always room for one. Uploads share one
//! line, so each of them is as slow as there are many. When one times out, half as many are sent at once from then
//! on, and the line is taken for half as fast; each time that as many as that have come through, one more is sent.
//! Those that were sent together time out together, and count once. If nothing came through in between, the line
//! may be dead: then whoever waits for room is told so, or the last of many would be told after hours.
//!
//! What is small, such as a lease, never waits: it takes hardly anything from the line, and a heartbeat must not
//! stand in line behind a task of many megabytes.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::clock::lock;

/// Bodies of up to so many bytes are not held up, and not counted.
const SMALL: u64 = 4 * 1024;

/// When so many uploads may be sent at once, the limit is lifted: one batch never sends more.
const WIDEST: usize = 64;

/// How many times slower than expected a line is taken for at the most.
const SLOWEST: u64 = 16;

/// The way up to one store. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Uplink(Arc<Shared>);

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    room: Notify,
}

/// What is on the line.
#[derive(Debug, Default)]
struct Line {
    window: Window,
    uploads: usize,
    bytes: u64,
}

/// The line may be dead: while this one was waiting for room, all others timed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead;

/// How many may be sent at once.
#[derive(Debug, Default)]
struct Window {
    /// None until the first timeout.
    limit: Option<usize>,
    /// How many have come through since the limit was changed.
    passed: usize,
    /// Whether any has, since it was narrowed.
    alive: bool,
    /// How many times slower than expected the line is taken for, less one.
    slower: u64,
    /// How often it was narrowed though none had.
    dead: u64,
    /// How often it was narrowed. What began before the last time says nothing about the limit that holds now.
    narrowed: u64,
}

impl Window {
    fn has_room(&self, uploads: usize) -> bool {
        self.limit.is_none_or(|limit| uploads < limit)
    }

    fn widen(&mut self) {
        self.alive = true;
        let Some(limit) = self.limit else { return };
        self.passed += 1;
        if self.passed >= limit {
            (self.limit, self.passed) = (Some(limit + 1).filter(|limit| *limit < WIDEST), 0);
        }
        if self.limit.is_none() {
            self.slower = 0;
        }
    }

    /// One that began when the window had been narrowed so often has timed out, one of so many. Answers whether
    /// the line may be dead.
    fn narrow(&mut self, began: u64, uploads: usize) -> bool {
        if began != self.narrowed {
            return false;
        }
        let at_once = self.limit.map_or(uploads, |limit| limit.min(uploads));
        self.limit = Some((at_once / 2).max(1));
        self.slower = (2 * self.slower + 1).min(SLOWEST - 1);
        let dead = !self.alive;
        self.dead += u64::from(dead);
        (self.passed, self.alive, self.narrowed) = (0, false, self.narrowed + 1);
        dead
    }
}

impl Uplink {
    /// Waits until one more may be sent. What it answers is to be kept until there is an answer, or no more hope.
    pub(super) async fn enter(&self, bytes: u64) -> Result<Upload, Dead> {
        if bytes <= SMALL {
            return Ok(Upload { uplink: None, bytes, began: 0 });
        }
        let dead = self.dead();
        loop {
            // Listening first, so that no room is missed that comes between the look and the wait.
            let mut room = std::pin::pin!(self.0.room.notified());
            room.as_mut().enable();
            if self.dead() != dead {
                // The room that it was woken for is another's.
                self.0.room.notify_one();
                return Err(Dead);
            }
            if let Some(began) = self.try_enter(bytes) {
                return Ok(Upload { uplink: Some(self.clone()), bytes, began });
            }
            room.await;
        }
    }

    fn dead(&self) -> u64 {
        lock(&self.0.line).window.dead
    }

    fn try_enter(&self, bytes: u64) -> Option<u64> {
        let mut line = lock(&self.0.line);
        if !line.window.has_room(line.uploads) {
            return None;
        }
        line.uploads += 1;
        line.bytes += bytes;
        Some(line.window.narrowed)
    }

    /// How many bytes an ordinary line would carry while this one carries so many of one upload, if all that are
    /// under way get the same share.
    pub(super) fn shared_with(&self, bytes: u64) -> u64 {
        let line = lock(&self.0.line);
        let fair = bytes.saturating_mul(line.uploads.max(1) as u64);
        line.bytes.max(bytes).min(fair).saturating_mul(line.window.slower + 1)
    }
}

impl fmt::Debug for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lock(&self.0.line).fmt(f)
    }
}

/// A place on the line, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Upload {
    /// None for what is small.
    uplink: Option<Uplink>,
    bytes: u64,
    began: u64,
}

impl Upload {
    /// It came through, whatever the answer.
    pub(super) fn passed(self) {
        if let Some(uplink) = &self.uplink {
            lock(&uplink.0.line).window.widen();
            // Perhaps there is room for two now.
            uplink.0.room.notify_one();
        }
    }

    /// It did not come through in time.
    pub(super) fn timed_out(self) {
        let Some(uplink) = &self.uplink else { return };
        let mut line = lock(&uplink.0.line);
        let uploads = line.uploads;
        let dead = line.window.narrow(self.began, uploads);
        tracing::debug!("an upload timed out, one of {uploads}: {:?}", line.window);
        if dead {
            uplink.0.room.notify_waiters();
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(uplink) = &self.uplink {
            let mut line = lock(&uplink.0.line);
            line.uploads = line.uploads.saturating_sub(1);
            line.bytes = line.bytes.saturating_sub(self.bytes);
            drop(line);
            uplink.0.room.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
