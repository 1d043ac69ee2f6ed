//! A small S3 server for the tests of dfq: real HTTP on the loopback, real signatures, objects in
//! memory. Its conditional writes are atomic. A test makes it lose requests and answers, refuse,
//! stall and lag, from a seed or by a script, and makes it lie as servers in the wild do.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use dfq_s3_server::{Fault, Faults, Lies, Options, Rules, Server};
//!
//! let server = Server::start(Options::default()).await?;
//! println!("{} {}", server.endpoint(), server.bucket());
//! server.set_faults(Faults { seed: 7, lose_answer: 0.1, ..Faults::default() });
//! server.set_lies(Lies { whole_seconds: true, ..Lies::default() });
//! server.set_rules(Rules::default().deny("s3:ListBucket"));
//! server.on(|r| (r.op == "PutObject" && r.key == "a" && r.nth == 3).then_some(Fault::Conflict));
//! assert_eq!(server.meter().count("PutObject"), 0);
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "a tool of real time: it delays real requests and stamps objects by the machine's clock"
)]

mod access;
mod faults;
mod front;
mod lies;
mod link;
mod listing;
mod meter;
mod request;
mod server;
mod service;
mod shared;
mod store;

pub use access::{Credential, Rules};
pub use faults::{Fault, Faults};
pub use lies::Lies;
pub use link::Link;
pub use meter::{Counts, Meter, Record};
pub use request::RequestInfo;
pub use server::{Options, Server};
