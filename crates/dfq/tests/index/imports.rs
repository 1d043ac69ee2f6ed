//! Imports: straight into the shards.

use dfq::index::{ImportOptions, Index, Record, ScanOptions};
use serde_json::json;

use super::cases::{all, compact, put, record};
use super::places::Place;

async fn import(index: &Index, batches: Vec<Vec<Record>>) -> dfq::index::ImportReport {
    let scratch = tempfile::tempdir().unwrap();
    let options =
        ImportOptions { scratch: Some(scratch.path().to_owned()), ..ImportOptions::default() };
    let mut import = index.import(options).await.unwrap();
    for batch in batches {
        import.add(batch).await.unwrap();
    }
    let report = import.finish().await.unwrap();
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left there");
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_imported_is_found_and_counts_as_if_it_had_been_put() {
    for place in Place::all().await {
        let index = place.index().await;
        put(&index, vec![record("k1", "before"), record("kept", "before")]).await;
        compact(&index).await;
        let late = "2020-01-01T00:00:00Z".parse().unwrap();
        put(&index, vec![record("k2", "waits in the inbox").updated_at(late)]).await;
        let some = (0..500).map(|n| record(&format!("k{n}"), "1")).collect();
        let again = (400..600).map(|n| record(&format!("k{n}"), "2")).collect();
        let report = import(&index, vec![some, again]).await;
        assert_eq!(report.records, 700);
        assert!(report.shards > 200 && report.bytes_written > 10_000, "{report:?}");
        for round in 0..2 {
            let found = all(&index, ScanOptions::default()).await;
            assert_eq!(found.len(), 601, "round {round}");
            for (key, value) in
                [("k1", "1"), ("k2", "1"), ("k399", "1"), ("k400", "2"), ("kept", "before")]
            {
                assert_eq!(found[key], json!(value), "{key}");
            }
            compact(&index).await;
        }
        assert_eq!(place.index().await.stats().await.unwrap().records, 601);
        let report = index.check(dfq::index::CheckOptions::default()).await.unwrap();
        assert_eq!((report.records, &report.findings), (601, &vec![]));
    }
}
