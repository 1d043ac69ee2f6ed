//! Pages of listings, as the server makes them.
//!
//! Invariant: a page goes on after the last thing that the one before it showed. Names come in the order of their
//! bytes, and none that stays where it is is passed over or shown twice.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use dfq::store::objects::Listed;

use super::request::{Asked, Page};
use super::server::Object;

/// The page that was asked for, of these objects.
pub(super) fn page(objects: &BTreeMap<String, Object>, asked: &Asked, step: Duration) -> Page {
    let (mut page, mut from) = (Page::default(), asked.from.clone());
    loop {
        let next = objects.range((from.clone(), Bound::Unbounded)).next();
        let found =
            next.and_then(|(name, object)| Some((name, name.strip_prefix(&asked.prefix)?, object)));
        let Some((name, rest, object)) = found else { return page };
        if page.files.len() + page.folders.len() >= asked.limit {
            page.next = Some(from);
            return page;
        }
        from = match rest.split_once('/').filter(|_| asked.folders) {
            Some((folder, _)) => {
                let path = format!("{}{folder}", asked.prefix);
                page.folders.push(format!("{path}/"));
                // Past everything in this folder: '0' is the character after '/'.
                Bound::Included(format!("{path}0"))
            }
            None => {
                page.files.push(Listed { name: name.clone(), head: object.head(step) });
                Bound::Excluded(name.clone())
            }
        };
    }
}
