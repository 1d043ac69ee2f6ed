//! All other names: the columns, the inbox, what was put aside, and what is not ours.

use futures::StreamExt;

use super::CheckReport;
use crate::error::{ErrorKind, Result};
use crate::index::Core;
use crate::index::inbox::{InboxFile, PAGE, SETTLES_IN, rows_of};
use crate::index::schema::{Manner, Schema};
use crate::layout::{self, below};
use crate::store::objects::{List, Listed, Swap};

/// Files of the inbox read at a time.
const AT_ONCE: usize = 16;

impl Core {
    /// In a directory: whether the columns under the plain name are those that count.
    pub(super) async fn check_columns(&self, report: &mut CheckReport, repair: bool) -> Result<()> {
        let name = layout::index_schema();
        let Some(there) =
            self.objects.load(&name).await?.filter(|_| !self.objects.properties().remote)
        else {
            return Ok(());
        };
        let plain = self.objects.get(name.as_str(), None).await?;
        if plain.as_ref().is_some_and(|plain| plain.bytes == there.bytes) {
            return Ok(());
        }
        let problem = "the file under this name is not what dfq wrote last: it was changed by something else, \
                       or a writer was stopped";
        let mut repaired = None;
        if repair {
            if plain.is_some() {
                let kept = layout::set_aside(&name, &self.env.nonce());
                self.objects.rename(name.as_str(), &kept).await?;
            }
            // Written again, so that it is shown.
            let version = Some(&there.head.version);
            if let Swap::Written(_) = self.objects.swap(&name, version, &there.bytes).await? {
                repaired = Some("shown again; what lay there is in aside/".to_owned());
            }
        }
        report.tell_repaired(name.as_str(), problem, repaired);
        Ok(())
    }

    /// Every name there is.
    pub(super) async fn check_files(&self, repair: bool, report: &mut CheckReport) -> Result<()> {
        let mut listing = self.objects.list(List::below(""));
        loop {
            let part = listing.next(PAGE).await?;
            let schema = self.reload().await?;
            let mut inbox = Vec::new();
            for file in part.files {
                self.sort(file, &schema, &mut inbox, report);
            }
            report.inbox_files += inbox.len() as u64;
            self.check_inbox(inbox, &schema, repair, report).await?;
            if part.end {
                break;
            }
        }
        if report.aside_files > 0 {
            let problem = format!(
                "{} files lie here that were too old to be merged, or not readable, or changed by something else \
                 than dfq; look at them, put what is good in them again, and remove them",
                report.aside_files
            );
            report.tell(below(layout::ASIDE, ""), problem);
        }
        if !self.objects.properties().remote {
            self.check_versions(report).await?;
        }
        Ok(())
    }

    /// What a name is.
    fn sort(
        &self,
        file: Listed,
        schema: &Schema,
        inbox: &mut Vec<InboxFile>,
        report: &mut CheckReport,
    ) {
        let name = &file.name;
        let is_in = |folder: &str| name.starts_with(&below(folder, ""));
        if *name == layout::index_schema().as_str() || *name == layout::MANIFEST {
            return;
        }
        if is_in(layout::ASIDE) {
            report.aside_files += 1;
        } else if is_in(layout::TMP) || layout::parse_shards(name).is_some() {
            // What is being written, and what was looked at already.
        } else if layout::parse_inbox(name).is_some() {
            inbox.extend(InboxFile::new(file));
        } else if let Some(flat) = InboxFile::new_flat(file.clone()) {
            match schema.manner {
                Manner::Ours => report.tell(flat.path, NOT_MERGED),
                Manner::Theirs(_) => inbox.push(flat),
            }
        } else {
            report.tell(file.name, "no file of an index has such a name");
        }
    }

    async fn check_inbox(
        &self,
        files: Vec<InboxFile>,
        schema: &Schema,
        repair: bool,
        report: &mut CheckReport,
    ) -> Result<()> {
        let now = self.stamps.now(&*self.objects, &self.env).await?;
        let mut reading = futures::stream::iter(files)
            .map(|file| async move {
                let got = self.objects.get(&file.path, None).await;
                (file, got)
            })
            .buffered(self.at_once(AT_ONCE));
        while let Some((file, got)) = reading.next().await {
            let problem = match got {
                // Merged by now.
                Ok(None) => continue,
                Ok(Some(got)) => {
                    let settled = now >= got.head.modified + SETTLES_IN;
                    match rows_of(schema, &file, &got.bytes, settled) {
                        Ok(_) => continue,
                        Err(why) => why.to_owned(),
                    }
                }
                Err(error) if error.kind() == ErrorKind::Damaged => error.to_string(),
                Err(error) => return Err(error),
            };
            if file.is_seed() && schema.manner == Manner::Ours {
                report.tell(file.path, NOT_MERGED);
                continue;
            }
            // Its writer may be about to put it right.
            let mut repaired = None;
            if repair && !file.is_seed() {
                match self.set_aside(&file.path).await {
                    Ok(()) => repaired = Some(format!("moved to {}", layout::aside_of(&file.path))),
                    Err(error) if error.kind() == ErrorKind::Damaged => {}
                    Err(error) => return Err(error),
                }
            }
            report.tell_repaired(file.path, problem, repaired);
        }
        Ok(())
    }

    async fn check_versions(&self, report: &mut CheckReport) -> Result<()> {
        let mut listing = self.objects.list(List::below(below(layout::VERSIONS, "")));
        loop {
            let part = listing.next(PAGE).await?;
            for file in part.files {
                if !layout::is_version_of_index(&file.name) {
                    report.tell(file.name, "no file of an index has such a name");
                }
            }
            if part.end {
                return Ok(());
            }
        }
    }
}

/// What is said of another program's record in an index of ours.
const NOT_MERGED: &str = "another program's record, which is not merged: it does not say which of its fields are which; \
                          put it with `dfq index put`, and remove it";
