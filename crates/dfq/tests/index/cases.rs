//! What an index does, wherever it is.

use std::collections::BTreeMap;

use dfq::ErrorKind;
use dfq::index::{Column, CompactOptions, CompactReport, Index, Kind, Record, ScanOptions};
use serde_json::{Value, json};

use super::places::Place;

pub(crate) fn record(key: &str, value: impl Into<Value>) -> Record {
    Record::new(key).unwrap().with("value", value)
}

pub(crate) async fn put(index: &Index, records: Vec<Record>) {
    for answer in index.put(records).await {
        answer.unwrap();
    }
}

pub(crate) async fn compact(index: &Index) -> CompactReport {
    let report = index.compact(CompactOptions { all: true, ..CompactOptions::default() }).await;
    let report = report.unwrap();
    assert_eq!((&report.unreadable, &report.failed), (&vec![], &vec![]));
    report
}

/// What a scan shows: the field `value` by key. A key that comes twice is an error.
pub(crate) async fn all(index: &Index, options: ScanOptions) -> BTreeMap<String, Value> {
    let (mut scan, mut found) = (index.scan(options), BTreeMap::new());
    while let Some(entry) = scan.next().await.unwrap() {
        let value = entry.fields.get("value").cloned().unwrap_or_default();
        assert_eq!(found.insert(entry.key.clone(), value), None, "{} came twice", entry.key);
    }
    found
}

pub(crate) async fn value(index: &Index, key: &str) -> Option<Value> {
    let entry = index.get(key).await.unwrap()?;
    assert_eq!(entry.key, key);
    Some(entry.fields.get("value").cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_is_seen_before_and_after_compaction() {
    for place in Place::all().await {
        let (one, other) = (place.index().await, place.index().await);
        put(&one, vec![record("a", "1"), record("b", "1"), record("a.b", "x")]).await;
        assert_eq!(value(&other, "a").await, Some(json!("1")));
        put(&other, vec![record("a", "2")]).await;
        for _ in 0..2 {
            assert_eq!(value(&one, "a").await, Some(json!("2")));
            assert_eq!(value(&one, "b").await, Some(json!("1")));
            assert_eq!(value(&one, "nothing").await, None);
            let found = all(&other, ScanOptions::default()).await;
            let expected = [("a", "2"), ("a.b", "x"), ("b", "1")];
            assert_eq!(found, expected.map(|(k, v)| (k.to_owned(), json!(v))).into());
            compact(&one).await;
        }
        let report = compact(&other).await;
        assert_eq!((report.shards, report.files), (0, 0), "there is nothing left to do");
        one.delete(vec!["a".to_owned()]).await.remove(0).unwrap();
        for _ in 0..2 {
            assert_eq!(value(&other, "a").await, None);
            assert_eq!(all(&one, ScanOptions::default()).await.len(), 2);
            compact(&other).await;
        }
        put(&other, vec![record("a", "3")]).await;
        assert_eq!(value(&one, "a").await, Some(json!("3")));
        let stats = one.stats().await.unwrap();
        assert_eq!((stats.records, stats.deletions, stats.inbox_files), (2, 1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_records_are_found_in_shards_and_bundles() {
    const RECORDS: usize = 6000;
    for place in Place::all().await {
        let index = place.index().await;
        // A few shards only, so that they have many blocks.
        let keys: Vec<String> = (0..RECORDS).map(|n| format!("k{n:05}")).collect();
        let long = "x".repeat(2000);
        let some = |keys: &[String], value: &str| {
            keys.iter().map(|key| record(key, format!("{value}{long}"))).collect::<Vec<_>>()
        };
        index.put_bundle(some(&keys[..4000], "1")).await.unwrap();
        index.put_bundle(some(&keys[3000..], "2")).await.unwrap();
        for round in 0..2 {
            for n in [0, 1, 2999, 3000, 3999, 4000, RECORDS - 1] {
                let expected = if n < 3000 { "1" } else { "2" };
                let found = value(&index, &keys[n]).await.unwrap();
                assert_eq!(&found.as_str().unwrap()[..1], expected, "{n} in round {round}");
            }
            assert_eq!(value(&index, "k00000a").await, None);
            assert_eq!(all(&index, ScanOptions::default()).await.len(), RECORDS);
            let prefix = ScanOptions { prefix: "k0001".to_owned(), ..ScanOptions::default() };
            assert_eq!(all(&index, prefix).await.len(), 10);
            let filtered = ScanOptions {
                filters: vec!["key=k00017".parse().unwrap()],
                ..ScanOptions::default()
            };
            assert_eq!(all(&index, filtered).await.len(), 1);
            compact(&index).await;
        }
        assert_eq!(index.stats().await.unwrap().records, RECORDS as u64);
    }
}

#[tokio::test]
async fn values_of_every_type_come_back() {
    let place = Place::folder();
    let index = place.index().await;
    let typed = vec![Column::new("seen", Kind::Datetime), Column::new("any", Kind::Json)];
    index.add_columns(typed).await.unwrap();
    let odd = "a\u{1f}b\nc\u{1e}d\re\0f\u{10}_\u{10}";
    let fields = json!({
        "key": "a", "text": odd, "empty": "", "whole": 12, "big": u64::MAX, "number": 1.5, "yes": true,
        "list": [1, "\n", null], "object": {"x": odd}, "nothing": null, "any": "text",
        "seen": "2026-11-19T01:02:03Z",
    });
    let record = Record::from_json(&fields.to_string(), "key").unwrap();
    put(&index, vec![record]).await;
    let mut expected = fields.clone();
    expected.as_object_mut().unwrap().shift_remove("nothing");
    for _ in 0..2 {
        let entry = place.index().await.get("a").await.unwrap().unwrap();
        let mut json = entry.to_json("key");
        json.sort_all_objects();
        expected.sort_all_objects();
        assert_eq!(json, expected);
        compact(&index).await;
    }
    // A whole number becomes any number, and nothing else changes its type.
    put(&index, vec![Record::new("b").unwrap().with("whole", 0.5)]).await;
    put(&index, vec![Record::new("c").unwrap().with("whole", 7)]).await;
    assert_eq!(place.index().await.get("a").await.unwrap().unwrap().fields["whole"], 12);
    for (field, value) in [
        ("text", json!(1)),
        ("yes", json!("no")),
        ("seen", json!("soon")),
        ("_x", json!(1)),
        ("key", json!(1)),
    ] {
        let record = Record::new("d").unwrap().with(field, value);
        let error = index.put(vec![record]).await.remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(field), "{error}");
    }
    for key in ["", "a\nb", "a\u{1f}", &"x".repeat(201)] {
        assert_eq!(Record::new(key).unwrap_err().kind(), ErrorKind::Invalid, "{key:?}");
        assert_eq!(index.get(key).await.unwrap_err().kind(), ErrorKind::Invalid, "{key:?}");
    }
}

#[tokio::test]
async fn there_is_no_index_until_it_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let options = dfq::OpenOptions::existing;
    let error = Index::open(dir.path(), options()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let index = Index::create(dir.path(), options(), "domain").await.unwrap();
    assert_eq!(index.key_column(), "domain");
    let again = Index::create(dir.path(), options(), "other").await.unwrap();
    assert_eq!(again.key_column(), "domain");
    Index::open("memory://index", dfq::OpenOptions::create()).await.unwrap();
    let error = Index::open("sqs://jobs", options()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
