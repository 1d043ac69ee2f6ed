//! Looking at all of an index, and mending what can be mended.
//!
//! Invariant: nothing that cannot be read is destroyed. Before a shard is written anew, the bytes that were there are kept
//! under `aside/`; only then is it swapped, on the condition that it is still what was looked at. Compilers and writers may
//! go on meanwhile: what they change under our eyes is looked at again.
//!
//! | looked at | found |
//! | --- | --- |
//! | each shard, row by row | not sorted, torn, not ours, of another shard; changed since dfq wrote it |
//! | its block index | of another version, or with blocks where no rows begin |
//! | its lock | expired |
//! | each file of the inbox | not readable as what its name says |
//! | `manifest.json` | other counts |
//! | `datapackage.json` | replaced by something else under its plain name |
//! | every other name | not of an index; or what lies in `aside/` |

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::compact::Progress;
use super::manifest::ShardCounts;
use super::{Core, Index};
use crate::error::Result;
use crate::layout::{self, Shard};

mod files;
mod repair;
mod rows;
mod shards;

/// How many findings are told.
const MOST_TOLD: usize = 1000;

/// What is to be done about what is found.
#[derive(Clone, Default)]
pub struct CheckOptions {
    /// Mend what can be mended.
    pub repair: bool,
    /// Told after each shard.
    pub progress: Option<Progress>,
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions").field("repair", &self.repair).finish_non_exhaustive()
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// What is wrong with it.
    pub problem: String,
    /// What was done about it, if anything.
    pub repaired: Option<String>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Shards that there are.
    pub shards: usize,
    /// Records in them.
    pub records: u64,
    /// Deletions in them.
    pub deletions: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files in the inbox.
    pub inbox_files: u64,
    /// Files under `aside/`.
    pub aside_files: u64,
    /// What is not as it should be, up to a thousand.
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub more_findings: u64,
}

impl CheckReport {
    fn tell(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.tell_repaired(path, problem, None);
    }

    fn tell_repaired(
        &mut self,
        path: impl Into<String>,
        problem: impl Into<String>,
        repaired: Option<String>,
    ) {
        if self.findings.len() >= MOST_TOLD {
            self.more_findings += 1;
            return;
        }
        let (path, problem) = (path.into(), problem.into());
        self.findings.push(Finding { path, problem, repaired });
    }
}

/// What is in the shards, as counted.
type Counted = BTreeMap<Shard, ShardCounts>;

impl Index {
    /// Reads all of the index and tells what is not as it should be; with `repair`, mends what can be mended. Others may
    /// use the index meanwhile.
    pub async fn check(&self, options: CheckOptions) -> Result<CheckReport> {
        let repair = options.repair;
        let mut report = CheckReport::default();
        report = self
            .run(move |core| async move {
                core.check_columns(&mut report, repair).await.map(|()| report)
            })
            .await?;
        let mut counted = Counted::new();
        let total = layout::all_shards().count();
        for (done, shard) in layout::all_shards().enumerate() {
            (report, counted) = self
                .run(move |core| async move {
                    core.check_shard(shard, repair, &mut report, &mut counted).await?;
                    Ok::<_, crate::Error>((report, counted))
                })
                .await?;
            if let Some(progress) = &options.progress {
                progress(done + 1, total);
            }
        }
        self.run(move |core| async move {
            core.check_files(repair, &mut report).await?;
            core.check_manifest(counted, repair, &mut report).await?;
            Ok(report)
        })
        .await
    }
}

impl Core {
    /// The statistics against what was counted.
    async fn check_manifest(
        &self,
        counted: Counted,
        repair: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let manifest = self.manifest().await?;
        let said = manifest.map(|manifest| manifest.shards).unwrap_or_default();
        let nothing = ShardCounts::default();
        let wrong: Vec<Shard> = layout::all_shards()
            .filter(|shard| {
                let said = said.get(&shard.name()).unwrap_or(&nothing);
                said != counted.get(shard).unwrap_or(&nothing)
            })
            .collect();
        let Some(first) = wrong.first() else { return Ok(()) };
        let problem = format!(
            "it does not say what is in {} of the shards, such as {}; a compiler that was stopped leaves it so",
            wrong.len(),
            first.name()
        );
        let repaired = match repair {
            false => None,
            true => {
                self.name_shards_of(&counted).await;
                self.write_counts(counted, true).await?;
                Some("counted anew".to_owned())
            }
        };
        report.tell_repaired(layout::MANIFEST, problem, repaired);
        Ok(())
    }
}
