//! Whether a store keeps what a queue rests on: tried, not believed.
//!
//! Invariant: whatever is tried lies in a folder of its own under `tmp/` and is removed afterwards; a
//! live queue beside it is not disturbed. A verdict is reached by what clients were told and what was
//! there, never by a server's or a filesystem's name.
//!
//! [`examine`] looks at a store through [`Subject`]s, lets [`Contenders`] race for names, measures, and
//! makes a [`Report`]: checks, a verdict for each [`Promise`], advice. Verdicts stay with the store
//! ([`Diagnosis`]), and whoever pushes or claims heeds them. [`Meeting`] is the same race between
//! machines that know nothing of each other but the store.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use dfq::doctor::{Entrants, Examination, Subject, Verdict};
//!
//! # let dir = std::env::temp_dir().join(format!("dfq-doctor-doc-{}", std::process::id()));
//! let env = dfq::Env::system();
//! let here = Subject::directory(&dir, env.clone())?;
//! let mut clients = Entrants::new(vec![here.clone()], 8, env.nonce());
//! let report = dfq::doctor::examine(&[here], &mut clients, &Examination::quick()).await?;
//! assert_ne!(report.verdict, Verdict::Refused);
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok::<(), dfq::Error>(()) }).unwrap();
//! ```

mod advice;
mod basics;
mod clock;
mod contest;
mod exam;
mod measure;
mod meet;
mod mount;
mod race;
mod s3;
mod subject;
mod swap;
mod verdict;

pub use crate::model::{Diagnosis, Verdict};
pub use exam::{Examination, Report, examine};
pub use measure::{Operation, Speed};
pub use meet::Meeting;
pub use mount::{Mount, Reach};
pub use race::{Contenders, Contest, Entrants, Entry, Heat, Prize, Told};
pub use subject::Subject;
pub use verdict::{Check, Kept, Meaning, Outcome, Promise};
