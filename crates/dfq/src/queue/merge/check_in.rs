//! How a node tells the hub of itself, and finds out that its folder is a copy, or not what it was.
//!
//! Invariant: a node's record in the hub shows a nonce that only this folder has written down. A record that shows
//! another was written by another folder of the same id: one of the two is a copy, a cloned card or a restored backup.
//! The folder that finds this out takes a new id.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::look::Shown;
use super::memory::Memory;
use super::pass::{Merge, queue_id};
use crate::error::{Error, Result};
use crate::format;
use crate::layout;
use crate::store::Tree;
use crate::store::objects::List;

/// A node tells of itself once in so many periods. Others count it as silent after five.
const EVERY_PERIODS: u32 = 3;

/// Names in one request.
const PAGE: usize = 1000;

/// So many nonces are kept: a request that was given up may still arrive.
const NONCES: usize = 16;

/// For so long a floor is followed. The hub keeps it for two days more.
pub(super) const HORIZON: SignedDuration = SignedDuration::from_hours(90 * 24);

/// A node, as its record in the hub tells.
#[derive(Debug, Serialize, Deserialize)]
struct NodeDoc {
    node: String,
    nonce: String,
    host: String,
    folder: String,
    version: String,
    at: Timestamp,
}

impl<H: Tree, T: Tree> Merge<H, T> {
    /// An error if this folder was away for so long that purges which it has not heard of are forgotten by now.
    pub(super) async fn check_absence(&self) -> Result<()> {
        let Some(last) = self.last_merged().await? else { return Ok(()) };
        let away = self.here.now().await?.duration_since(last);
        if self.options.sure || away < HORIZON {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "this folder was last merged {} days ago, and its hub remembers purges for {} days: tasks that were done and \
             purged meanwhile may be done again. To merge it all the same, say --yes",
            away.as_hours() / 24,
            HORIZON.as_hours() / 24
        )))
    }

    /// When this folder was last merged, on its own clock. Nothing, if it never was.
    async fn last_merged(&self) -> Result<Option<Timestamp>> {
        let began = self.here.neighbours().await.began;
        if began.is_some() || !self.identity.known {
            return Ok(began);
        }
        // That file is not synced, so a power cut may have spoiled it. The identity is, at each check-in.
        let identity = self.here.tree.head(&layout::node_identity()).await?;
        Ok(identity.map(|identity| identity.modified))
    }

    /// An error if this folder was merged with another hub before: a slip of the pen would make two queues of one.
    pub(super) fn check_hub(&self) -> Result<()> {
        let now = &self.there.tree.properties().address;
        match &self.identity.with {
            Some(with) if with != now && !self.options.sure => Err(Error::invalid(format!(
                "this folder was merged with {with} until now; to merge it with {now} from now on, say --yes"
            ))),
            _ => Ok(()),
        }
    }

    /// Tells the hub of this node, now and then.
    pub(super) async fn check_in(&mut self, there: &Shown) -> Result<()> {
        let (now, period) = (self.here.env.monotonic(), self.here.period());
        let is_due = |last| now.saturating_sub(last) >= period * EVERY_PERIODS;
        if !self.checked_in.is_none_or(is_due) {
            return Ok(());
        }
        let path = layout::node_record(&self.identity.node);
        let stored = self.there.tree.read(&path).await?;
        let record = stored.and_then(|it| serde_json::from_slice::<NodeDoc>(&it.bytes).ok());
        // After the hub: another supervisor of this folder notes its nonce here first.
        self.identity = self.here.identity().await?;
        match record {
            Some(record) if !self.identity.nonces.contains(&record.nonce) => {
                self.become_another(&record).await?;
            }
            None if self.identity.known => self.begin_anew()?,
            None if self.identity.nonces.is_empty() => self.check_emptied(there).await?,
            _ => {}
        }
        let nonce = self.here.env.nonce();
        self.identity.nonces.push(nonce.clone());
        let excess = self.identity.nonces.len().saturating_sub(NONCES);
        self.identity.nonces.drain(..excess);
        self.identity.with = Some(self.there.tree.properties().address.clone());
        // First here, durably: the hub must not show what this folder does not know.
        self.here.put_identity(&self.identity).await?;
        let record = NodeDoc { nonce, ..self.own_record() };
        let path = layout::node_record(&self.identity.node);
        self.there.tree.replace(&path, &format::line(&record)).await?;
        if !self.identity.known {
            self.identity.known = true;
            self.here.put_identity(&self.identity).await?;
        }
        self.checked_in = Some(now);
        Ok(())
    }

    /// The hub has forgotten this node, so it was emptied, or made anew. What was known of it is worth nothing.
    fn begin_anew(&mut self) -> Result<()> {
        let hub = &self.there.tree.properties().address;
        if !self.options.sure {
            return Err(Error::invalid(format!(
                "{hub} does not know this node any more: it was emptied, or is another. To fill it again from this \
                 folder, say --yes"
            )));
        }
        self.memory = Memory::default();
        self.refills = true;
        Ok(())
    }

    fn own_record(&self) -> NodeDoc {
        NodeDoc {
            node: self.identity.node.clone(),
            nonce: String::new(),
            host: self.here.env.host().name.clone(),
            folder: self.here.tree.properties().address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at: self.here.env.clock().wall(),
        }
    }

    /// This folder is a copy of another: from now on it is a node of its own.
    async fn become_another(&mut self, other: &NodeDoc) -> Result<()> {
        self.identity = self.here.new_identity();
        let own = &self.identity.node;
        let trouble = format!(
            "this folder is a copy of node '{}' ({}:{}): it is node '{own}' from now on",
            other.node, other.host, other.folder
        );
        self.passed.troubles.push(trouble);
        self.here.put_identity(&self.identity).await?;
        self.memory = Memory::load(&self.here, queue_id(&self.here), &self.identity.node).await;
        Ok(())
    }

    /// An error if a new node is where another was: its disk may not be mounted.
    async fn check_emptied(&self, there: &Shown) -> Result<()> {
        if self.options.sure {
            return Ok(());
        }
        let (own, nodes) = (self.own_record(), there.nodes.iter().map(|(node, _)| node));
        check_place(&self.there.tree, nodes, &own.host, &own.folder).await
    }
}

/// An error if a node was in this folder of this machine, which is now new: its disk may not be mounted.
async fn check_place<T: Tree>(
    hub: &T,
    nodes: impl Iterator<Item = &String>,
    host: &str,
    folder: &str,
) -> Result<()> {
    for node in nodes {
        let stored = hub.read(&layout::node_record(node)).await?;
        let record = stored.and_then(|it| serde_json::from_slice::<NodeDoc>(&it.bytes).ok());
        let was_here = |record: &NodeDoc| (&*record.host, &*record.folder) == (host, folder);
        if let Some(record) = record.filter(was_here) {
            return Err(Error::invalid(format!(
                "'{folder}' on {host} was node '{}' until {}, and now it is a new folder. If its disk is not mounted, \
                 mount it. If it is to begin anew, say --yes",
                record.node,
                record.at.strftime("%Y-%m-%d %H:%M UTC")
            )));
        }
    }
    Ok(())
}

/// The same before the folder is made.
pub(crate) async fn check_new_folder<T: Tree>(hub: &T, host: &str, folder: &str) -> Result<()> {
    let workers = layout::below(layout::WORKERS, "");
    let (mut listing, mut nodes) = (hub.list(List::below(workers.clone())), BTreeSet::new());
    loop {
        let part = listing.next(PAGE).await?;
        let names = part.files.iter().filter_map(|file| file.name.strip_prefix(&workers));
        nodes.extend(names.filter_map(layout::parse_node_name));
        if part.end {
            return check_place(hub, nodes.iter(), host, folder).await;
        }
    }
}
