//! What goes wrong on the way to a bucket, and what a queue then says and holds. Each test has our
//! own server do it to the very request that it names, and makes sure that it was done.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "the store's clock is the machine's")]

#[path = "bucket/access.rs"]
mod access;
#[path = "bucket/clocks.rs"]
mod clocks;
#[path = "bucket/credentials.rs"]
mod credentials;
#[path = "bucket/listings.rs"]
mod listings;
#[path = "bucket/purges.rs"]
mod purges;
#[path = "bucket/purges_overtaken.rs"]
mod purges_overtaken;
#[path = "bucket/reads.rs"]
mod reads;
#[path = "bucket/unclear.rs"]
mod unclear;
#[path = "bucket/world.rs"]
mod world;
#[path = "bucket/writes.rs"]
mod writes;
