//! Removing all of a tree, for what was only made to be measured or tried.

use std::time::Duration;

use super::Bucket;
use crate::error::Result;
use crate::store::objects::{List, Objects};

impl Bucket {
    /// Removes every object below the prefix, whatever it is; answers how many there were.
    pub async fn remove_all(&self) -> Result<u64> {
        let mut removed = 0;
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let mut listing = self.objects().list(List::folder(folder));
            loop {
                let part = listing.next(1000).await?;
                folders.extend(part.folders);
                let names: Vec<String> = part.files.into_iter().map(|file| file.name).collect();
                self.objects().remove(&names, Duration::MAX).await?;
                removed += names.len() as u64;
                if part.end {
                    break;
                }
            }
        }
        Ok(removed)
    }
}
