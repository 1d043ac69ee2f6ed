//! The index over memory, folders and a server of our own.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real threads race")]

#[path = "index/cases.rs"]
mod cases;
#[path = "index/checks.rs"]
mod checks;
#[path = "index/imports.rs"]
mod imports;
#[path = "index/places.rs"]
mod places;
#[path = "index/swaps.rs"]
mod swaps;
#[path = "index/theirs.rs"]
mod theirs;
