//! The index over memory, folders and a server of our own.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real threads race")]

#[path = "index/cases.rs"]
mod cases;
#[path = "index/places.rs"]
mod places;
