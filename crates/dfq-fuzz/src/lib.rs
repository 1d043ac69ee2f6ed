//! Fuzz targets: a function for each parser that reads what others can write, and what must hold for any input.
//!
//! A target takes bytes and panics if a property does not hold. The same functions run in three ways: over the
//! corpus and over mutations of it under a fixed seed (`tests/fuzz.rs`, a part of `./test`), over inputs made to hurt
//! (`tests/hostile.rs`), and under a fuzzer that is guided by coverage (`./fuzz`, by way of `guided/`).
//! Why it is so: docs/decisions/0029-fuzzing.md.

#![allow(clippy::unwrap_used, reason = "a target says what is wrong by a panic")]

pub mod corpus;
pub mod mutate;
mod targets;

/// One parser, or a few that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its file in `corpus/`.
    pub name: &'static str,
    /// Panics if a property does not hold.
    run: fn(&[u8]),
    /// Words that mean something to it, for mutations.
    pub words: &'static [&'static str],
    /// It may allocate so many times the length of its input at once, beyond [`BASE_BYTES`].
    memory: u64,
}

/// What any target may allocate, however short its input.
const BASE_BYTES: u64 = 256 << 10;

/// All targets.
pub const TARGETS: [Target; 21] = {
    use targets::{JSON, command, files, messages, names, queue};
    const fn target(name: &'static str, run: fn(&[u8]), words: &'static [&'static str]) -> Target {
        Target { name, run, words, memory: 60 }
    }
    [
        target("task", files::task, JSON),
        target("record", files::record, JSON),
        target("lease", files::lease, JSON),
        target("settings", files::settings, JSON),
        target("floors", files::floors, JSON),
        target("worker", files::worker, JSON),
        target("marks", files::marks, JSON),
        target("doctor", files::doctor, JSON),
        target("receipt", names::receipt, names::WORDS),
        target("names", names::names, names::WORDS),
        target("due", names::due, names::WORDS),
        target("address", names::address, names::WORDS),
        // A queue of two letters has fourteen settings.
        Target { memory: 200, ..target("config", names::config, names::CONFIG) },
        target("sqs_body", messages::sqs_body, JSON),
        target("sqs_foreign", messages::sqs_foreign, JSON),
        // It writes a listing in which each letter may be a key.
        Target { memory: 400, ..target("listing", messages::listing, messages::XML) },
        target("answer", command::answer, JSON),
        // Each letter may be a word.
        Target { memory: 400, ..target("template", command::template, command::WORDS) },
        target("arguments", command::arguments, command::WORDS),
        target("shown", command::shown, command::WORDS),
        // Everything at once, so it holds many copies.
        Target { name: "queue", run: queue::queue, words: JSON, memory: 2000 },
    ]
};

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Runs it. Reading may take memory in proportion to what is read, and no more.
    pub fn check(self, input: &[u8]) {
        let used = allocation_counter::measure(|| (self.run)(input)).bytes_max;
        let limit = BASE_BYTES + self.memory * input.len() as u64;
        assert!(
            used <= limit,
            "{used} bytes for an input of {}, the limit is {limit}",
            input.len()
        );
    }
}
