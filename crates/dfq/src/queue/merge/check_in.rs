//! How a node tells the hub of itself, and finds out that its folder is a copy, or not what it was.
//!
//! Invariant: a node's record in the hub shows a nonce that only this folder has written down. A record that shows
//! another was written by another folder of the same id: one of the two is a copy, a cloned card or a restored backup.
//! The folder that finds this out takes a new id.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::look::Shown;
use super::memory::Memory;
use super::node::Identity;
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

    /// Tells the hub of this node, now and then, and at once if the hub seems not to know it any more.
    pub(super) async fn check_in(&mut self, there: &Shown) -> Result<()> {
        let (now, period) = (self.here.env.monotonic(), self.here.period());
        let is_due = |last| now.saturating_sub(last) >= period * EVERY_PERIODS;
        let is_shown = there.nodes.iter().any(|(node, _)| *node == self.identity.node);
        if is_shown && !self.checked_in.is_none_or(is_due) {
            return Ok(());
        }
        // Another supervisor of this folder may have found out that it is a copy.
        self.note_identity().await?;
        let path = layout::node_record(&self.identity.node);
        let stored = self.there.tree.read(&path).await?;
        let record = stored.as_ref().map(|it| serde_json::from_slice::<NodeDoc>(&it.bytes));
        let mut shown = String::new();
        match record {
            Some(Ok(record)) => {
                // After the hub: another supervisor of this folder notes its nonce here first.
                if !self.here.has_nonce(&self.identity, &record.nonce).await? {
                    self.become_another(&record).await?;
                }
                shown = record.nonce;
            }
            // Of a copy it tells nothing, and it is written anew.
            Some(Err(_)) => self.passed.troubles.push(format!("'{path}' in the hub is damaged")),
            None if self.identity.known => self.begin_anew(there).await?,
            None if self.is_new().await? => self.check_emptied(there).await?,
            None => {}
        }
        let with = Some(self.there.tree.properties().address.clone());
        if self.identity.with != with {
            self.identity.with = with;
            self.here.put_identity(&self.identity).await?;
        }
        let nonce = self.here.env.nonce();
        // First here, durably: the hub must not show what this folder does not know.
        self.here.add_nonce(&self.identity, &nonce).await?;
        let record = NodeDoc { nonce: nonce.clone(), ..self.own_record() };
        let path = layout::node_record(&self.identity.node);
        self.there.tree.replace(&path, &format::line(&record)).await?;
        if !self.identity.known {
            self.identity.known = true;
            self.here.put_identity(&self.identity).await?;
        }
        self.here.drop_old_nonces(&[&nonce, &shown]).await?;
        self.checked_in = Some(now);
        Ok(())
    }

    /// Who this folder is by now.
    async fn note_identity(&mut self) -> Result<()> {
        let identity = self.here.identity().await?;
        if identity.node != self.identity.node {
            self.memory = Memory::load(&self.here, queue_id(&self.here), &identity.node).await;
        }
        self.identity = identity;
        Ok(())
    }

    /// Whether no hub has ever heard of this folder. One that was a copy, and was killed before its new id was known
    /// to the hub, is not new.
    async fn is_new(&self) -> Result<bool> {
        Ok(self.identity.nonces.is_empty() && self.here.check_ins().await?.is_empty())
    }

    /// The hub has forgotten this node, so it was emptied, or made anew. What was known of it is worth nothing.
    async fn begin_anew(&mut self, there: &Shown) -> Result<()> {
        let hub = &self.there.tree.properties().address;
        if !self.options.sure {
            return Err(Error::invalid(format!(
                "{hub} does not know this node any more: it was emptied, or is another. Check the address; to fill \
                 it again from this folder, say --yes"
            )));
        }
        self.memory = Memory::default();
        self.save().await?;
        // Before the hub knows this node again: if this is cut short, the next pass begins anew, too.
        let here = super::look::list(&self.here).await?;
        self.send_floors(&here, there).await
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
        let known = self.here.identity().await?;
        let is_done = known.node != self.identity.node; // by another supervisor
        if !is_done {
            let with = known.with;
            self.here.put_identity(&Identity { with, ..self.here.new_identity() }).await?;
        }
        self.note_identity().await?;
        let own = &self.identity.node;
        let trouble = format!(
            "this folder is a copy of node '{}' ({}:{}): it is node '{own}' from now on",
            other.node, other.host, other.folder
        );
        self.passed.troubles.push(trouble);
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
        let Some(stored) = hub.read(&layout::node_record(node)).await? else { continue };
        let was = match serde_json::from_slice::<NodeDoc>(&stored.bytes) {
            Ok(record) if (&*record.host, &*record.folder) == (host, folder) => {
                let until = record.at.strftime("%Y-%m-%d %H:%M UTC");
                format!("was node '{node}' until {until}")
            }
            // All that is left of its record is the name.
            Err(_)
                if node.rsplit_once('-').is_some_and(|it| it.0 == layout::encode_segment(host)) =>
            {
                format!("may have been node '{node}'")
            }
            _ => continue,
        };
        return Err(Error::invalid(format!(
            "'{folder}' on {host} {was}, and now it is a new folder. If its disk is not mounted, mount it. If it is to begin \
             anew, say --yes"
        )));
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
