//! Removing all of a tree, for what was only made to be measured or tried.

use super::Bucket;
use crate::error::Result;

impl Bucket {
    /// Removes every object below the prefix, whatever it is; answers how many there were.
    pub async fn remove_all(&self) -> Result<u64> {
        let mut removed = 0;
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let mut from = None;
            loop {
                let listed = self.client.list(&folder, from, 1000).await?;
                let below = |name: &String| format!("{folder}{}/", name.trim_end_matches('/'));
                folders.extend(listed.folders.iter().map(below));
                let keys: Vec<String> =
                    listed.files.iter().map(|name| format!("{folder}{name}")).collect();
                self.client.remove(&keys).await?;
                removed += keys.len() as u64;
                from = listed.next;
                if from.is_none() {
                    break;
                }
            }
        }
        Ok(removed)
    }
}
