//! Counts what is asked of a store that charges by the request, and the bytes to and from a bucket.
//!
//! Invariant: every request that leaves this process is counted once, where it leaves, whether or not
//! it was a repetition and whatever became of it: that is what is charged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::clock::lock;

/// What a request was, as a price list sorts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestKind {
    /// Writes an object.
    Put,
    /// Reads an object.
    Get,
    /// Asks whether an object is there.
    Head,
    /// Lists names.
    List,
    /// Removes objects, one or many.
    Delete,
    /// Sends messages, one or a batch.
    Send,
    /// Asks for messages.
    Receive,
    /// Changes for how long messages are hidden.
    Hide,
    /// Removes messages that are done.
    Remove,
    /// Asks about a queue, or makes one.
    Manage,
}

impl RequestKind {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 10] = [
        Self::Put,
        Self::Get,
        Self::Head,
        Self::List,
        Self::Delete,
        Self::Send,
        Self::Receive,
        Self::Hide,
        Self::Remove,
        Self::Manage,
    ];

    /// The kind in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Hide => "hide",
            Self::Remove => "remove",
            Self::Manage => "manage",
        }
    }
}

/// Requests by kind.
pub type Counts = BTreeMap<RequestKind, Count>;

/// How many requests have left, whatever became of them. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    tally: Arc<Mutex<Tally>>,
    /// What is counted here is counted there, too.
    whole: Option<Arc<Meter>>,
}

#[derive(Debug, Default)]
struct Tally {
    counts: Counts,
    bytes: Bytes,
}

/// Bytes to and from a bucket: the bodies of requests and answers, without their headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// To the bucket.
    pub sent: u64,
    /// From it. Listings count, too.
    pub received: u64,
}

impl Bytes {
    /// What came on top of an earlier number.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { sent: self.sent - earlier.sent, received: self.received - earlier.received }
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// All that were sent, retries too.
    pub sent: u64,
    /// Those whose answer was no: nothing was there to be read, or something to be created was.
    pub no: u64,
    /// Those that were refused, or never answered.
    pub failed: u64,
}

impl Meter {
    /// The counts so far.
    pub fn counts(&self) -> Counts {
        lock(&self.tally).counts.clone()
    }

    /// The bytes so far.
    pub fn bytes(&self) -> Bytes {
        lock(&self.tally).bytes
    }

    /// A meter for a part of what this one counts: whatever it counts is counted here, too.
    #[must_use]
    pub fn for_part(&self) -> Self {
        Self { tally: Arc::default(), whole: Some(Arc::new(self.clone())) }
    }

    /// Adds what another process counted.
    pub fn add(&self, counts: &Counts) {
        self.note(&|tally| add(&mut tally.counts, counts));
    }

    pub(crate) fn no(&self, kind: RequestKind) {
        self.note(&|tally| tally.counts.entry(kind).or_default().no += 1);
    }

    pub(crate) fn sent(&self, kind: RequestKind) {
        self.note(&|tally| tally.counts.entry(kind).or_default().sent += 1);
    }

    pub(crate) fn failed(&self, kind: RequestKind) {
        self.note(&|tally| tally.counts.entry(kind).or_default().failed += 1);
    }

    pub(crate) fn bytes_sent(&self, bytes: u64) {
        self.note(&|tally| tally.bytes.sent += bytes);
    }

    pub(crate) fn bytes_received(&self, bytes: u64) {
        self.note(&|tally| tally.bytes.received += bytes);
    }

    fn note(&self, note: &dyn Fn(&mut Tally)) {
        note(&mut lock(&self.tally));
        if let Some(whole) = &self.whole {
            whole.note(note);
        }
    }
}

/// Adds counts to counts.
pub fn add(sum: &mut Counts, counts: &Counts) {
    for (kind, count) in counts {
        let sum = sum.entry(*kind).or_default();
        sum.sent += count.sent;
        sum.no += count.no;
        sum.failed += count.failed;
    }
}

/// What came on top of earlier counts of the same meter.
pub fn since(now: &Counts, earlier: &Counts) -> Counts {
    let minus = |(kind, now): (&RequestKind, &Count)| {
        let earlier = earlier.get(kind).copied().unwrap_or_default();
        let count = Count {
            sent: now.sent - earlier.sent,
            no: now.no - earlier.no,
            failed: now.failed - earlier.failed,
        };
        (*kind, count)
    };
    now.iter().map(minus).filter(|(_, count)| count.sent > 0).collect()
}

/// What a million requests of each kind cost, in dollars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// PUT, COPY and POST.
    pub put: f64,
    /// LIST.
    pub list: f64,
    /// GET and HEAD.
    pub get: f64,
    /// DELETE, one or many.
    pub delete: f64,
    /// Any request to an SQS queue.
    pub sqs: f64,
    /// Any request to a FIFO queue of SQS.
    pub sqs_fifo: f64,
}

/// The list prices of us-east-1, 2026.
impl Default for Prices {
    fn default() -> Self {
        Self { put: 5.0, list: 5.0, get: 0.4, delete: 0.0, sqs: 0.4, sqs_fifo: 0.5 }
    }
}

impl Prices {
    /// The names of the prices.
    pub const KEYS: [&str; 6] = ["put", "list", "get", "delete", "sqs", "sqs_fifo"];

    /// The price of this name.
    pub fn get(&self, key: &str) -> Option<f64> {
        let mut prices = *self;
        prices.slot(key).copied()
    }

    /// Changes the price of this name, if there is one.
    pub fn set(&mut self, key: &str, dollars: f64) {
        if let Some(price) = self.slot(key) {
            *price = dollars;
        }
    }

    fn slot(&mut self, key: &str) -> Option<&mut f64> {
        match key {
            "put" => Some(&mut self.put),
            "list" => Some(&mut self.list),
            "get" => Some(&mut self.get),
            "delete" => Some(&mut self.delete),
            "sqs" => Some(&mut self.sqs),
            "sqs_fifo" => Some(&mut self.sqs_fifo),
            _ => None,
        }
    }

    /// What a million requests of this kind cost.
    pub fn per_million(&self, kind: RequestKind) -> f64 {
        match kind {
            RequestKind::Put => self.put,
            RequestKind::List => self.list,
            RequestKind::Get | RequestKind::Head => self.get,
            RequestKind::Delete => self.delete,
            RequestKind::Send
            | RequestKind::Receive
            | RequestKind::Hide
            | RequestKind::Remove
            | RequestKind::Manage => self.sqs,
        }
    }

    /// What these requests cost; those that failed are charged too.
    pub fn dollars(&self, counts: &Counts) -> f64 {
        let each = counts.iter().map(|(kind, count)| self.per_million(*kind) * count.sent as f64);
        each.fold(0.0, |sum, cost| sum + cost / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_its_own_costs_what_the_list_says() {
        let meter = Meter::default();
        for kind in [RequestKind::Put, RequestKind::Put, RequestKind::Put, RequestKind::Get] {
            meter.sent(kind);
        }
        meter.sent(RequestKind::Delete);
        let millionth = Prices::default().dollars(&meter.counts());
        assert!((millionth * 1e6 - 15.4).abs() < 1e-9, "{millionth}");
    }

    #[test]
    fn prices_have_names() {
        let mut prices = Prices::default();
        for (number, key) in Prices::KEYS.into_iter().enumerate() {
            prices.set(key, number as f64);
        }
        let read = Prices::KEYS.map(|key| prices.get(key).unwrap());
        assert_eq!(read, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(prices.get("post"), None);
        assert_eq!(prices.per_million(RequestKind::Head), prices.get);
    }

    #[test]
    fn a_part_is_counted_in_the_whole() {
        let whole = Meter::default();
        let (one, other) = (whole.for_part(), whole.for_part());
        one.sent(RequestKind::Put);
        one.bytes_sent(100);
        other.bytes_received(7);
        assert_eq!(other.counts(), Counts::new());
        assert_eq!(one.counts(), whole.counts());
        assert_eq!(one.bytes(), Bytes { sent: 100, received: 0 });
        assert_eq!(whole.bytes(), Bytes { sent: 100, received: 7 });
        assert_eq!(whole.bytes().since(one.bytes()), Bytes { sent: 0, received: 7 });
    }

    #[test]
    fn counts_add_up_and_down() {
        let meter = Meter::default();
        meter.sent(RequestKind::Put);
        let before = meter.counts();
        meter.sent(RequestKind::Put);
        meter.no(RequestKind::Put);
        meter.sent(RequestKind::List);
        meter.failed(RequestKind::List);
        let more = since(&meter.counts(), &before);
        assert_eq!(more[&RequestKind::Put], Count { sent: 1, no: 1, failed: 0 });
        assert_eq!(more[&RequestKind::List], Count { sent: 1, no: 0, failed: 1 });
        let mut sum = before.clone();
        add(&mut sum, &more);
        assert_eq!(sum, meter.counts());
        assert_eq!(since(&sum, &sum), Counts::new());
    }
}
