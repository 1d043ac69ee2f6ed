//! What an index in a bucket costs, counted in requests: per shard that is compacted, and per lookup.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a real server has real times")]

#[path = "bucket/elsewhere.rs"]
mod elsewhere;

use std::collections::BTreeSet;
use std::sync::Arc;

use dfq::index::{CompactOptions, CompactReport, ImportOptions, Index, Record};
use dfq::meter::{self, Meter, RequestKind};
use elsewhere::Elsewhere;

/// Looks at the store's clock, which it takes a write to do, happen once a minute.
const CLOCK: u64 = 3;

/// What was asked of the store.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    pages: u64,
    reads: u64,
    writes: u64,
    removals: u64,
}

struct Shop {
    elsewhere: Elsewhere,
    meter: Meter,
    index: Index,
}

impl Shop {
    /// What a verb asks for.
    async fn cost<R>(&self, verb: impl Future<Output = R>) -> (Cost, R) {
        let before = self.meter.counts();
        let answer = verb.await;
        let sent = meter::since(&self.meter.counts(), &before);
        // What a stall lets fail is sent again, and does not count.
        let of = |kind| sent.get(&kind).map_or(0, |count| count.sent - count.failed);
        let cost = Cost {
            pages: of(RequestKind::List),
            reads: of(RequestKind::Get) + of(RequestKind::Head),
            writes: of(RequestKind::Put),
            removals: of(RequestKind::Delete),
        };
        (cost, answer)
    }

    async fn compact(&self, all: bool) -> (Cost, CompactReport) {
        let options = CompactOptions { all, ..CompactOptions::default() };
        let (cost, report) = self.cost(self.index.compact(options)).await;
        (cost, report.unwrap())
    }

    async fn put(&self, records: Vec<Record>) {
        for answer in self.index.put(records).await {
            answer.unwrap();
        }
    }
}

fn run(test: impl AsyncFnOnce(&Shop)) {
    let elsewhere = Elsewhere::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (env, meter) = (elsewhere.env(), Meter::default());
    let index = runtime.block_on(async {
        let bucket = Arc::new(elsewhere.bucket(env.clone(), &meter).await);
        Index::over(bucket, env, None, Some("key")).await.unwrap()
    });
    runtime.block_on(test(&Shop { elsewhere, meter, index }));
}

fn record(key: &str, n: usize) -> Record {
    Record::new(key).unwrap().with("n", n).with("about", "x".repeat(500))
}

fn numbered(range: std::ops::Range<usize>) -> Vec<Record> {
    range.map(|n| record(&format!("k{n}"), n)).collect()
}

/// Shards that have rows.
fn shards(shop: &Shop) -> BTreeSet<String> {
    let keys = shop.elsewhere.server.objects().into_keys();
    keys.filter(|key| key.starts_with("jobs/shards/") && key.ends_with(".usv")).collect()
}

#[test]
fn a_small_inbox_is_one_listing_and_each_shard_a_read_and_a_write() {
    run(async |shop| {
        for round in 0..2 {
            shop.put(numbered(round * 100..round * 100 + 700)).await;
            let (cost, report) = shop.compact(true).await;
            let touched = report.shards as u64;
            assert!(report.files == 700 && touched > 200, "{report:?}");
            // From a random shard on, and then from the first; and what other programs have put beside.
            assert!(cost.pages <= 4, "{cost:?}");
            // Each file, each shard, and what there is for all: columns and statistics.
            assert!(cost.reads <= 700 + touched + 4 + CLOCK, "{touched} shards: {cost:?}");
            // The lock and the shard.
            assert!(cost.writes <= 2 * touched + 2 + CLOCK, "{touched} shards: {cost:?}");
            // The lock and all files.
            assert!(cost.removals <= 2 * touched + CLOCK, "{touched} shards: {cost:?}");
        }
        assert!(shards(shop).len() > 200);
    });
}

#[test]
fn a_full_shard_is_a_page_and_a_removal_for_each_thousand_files() {
    run(async |shop| {
        for round in 1..=2 {
            shop.put((0..2_500).map(|n| record("one", n)).collect()).await;
            let (cost, report) = shop.compact(false).await;
            assert_eq!(report.files, 2_500);
            // Those that choose the shard, too.
            assert!(cost.pages <= 3 + 2, "{round}: {cost:?}");
            assert!(cost.reads <= 2_500 + 1 + 4 + CLOCK, "{round}: {cost:?}");
            assert!(cost.writes <= 2 + 2 + CLOCK, "{round}: {cost:?}");
            assert!(cost.removals <= 3 + 1 + CLOCK, "{round}: {cost:?}");
        }
    });
}

#[test]
fn an_idle_compaction_is_a_few_pages() {
    run(async |shop| {
        shop.put(numbered(0..100)).await;
        shop.compact(true).await;
        for all in [true, false] {
            let (cost, report) = shop.compact(all).await;
            assert_eq!(report.files, 0);
            assert!(cost.pages <= 4, "{cost:?}");
            assert_eq!((cost.reads, cost.writes, cost.removals), (0, 0, 0), "{cost:?}");
        }
    });
}

#[test]
fn an_import_is_a_read_of_each_shard_and_a_lookup_two_listings_and_two_reads() {
    run(async |shop| {
        // Enough that every shard has several blocks.
        let mut import = shop.index.import(ImportOptions::default()).await.unwrap();
        import.add(numbered(0..40_000)).await.unwrap();
        let (cost, imported) = shop.cost(import.finish()).await;
        assert_eq!(imported.unwrap().shards, 256);
        // The lock, the shard, and where its blocks begin; and what there is for all.
        assert!(cost.reads <= 256 + 3 + CLOCK && cost.pages == 0, "{cost:?}");
        assert!(cost.writes <= 3 * 256 + 2 + CLOCK && cost.removals <= 256, "{cost:?}");
        shop.put(vec![record("waits", 1)]).await;
        let most = |reads| move |cost: &Cost| cost.pages == 2 && cost.reads <= reads;
        for (key, is_there, fits) in
            [("k7", true, most(2)), ("none", false, most(2)), ("waits", true, most(3))]
        {
            let (cost, entry) = shop.cost(shop.index.get(key)).await;
            assert_eq!(entry.unwrap().is_some(), is_there);
            assert!(fits(&cost) && cost.writes + cost.removals == 0, "{key}: {cost:?}");
        }
    });
}
