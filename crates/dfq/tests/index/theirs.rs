//! Indexes that another program made.

use dfq::index::{Column, CompactOptions, Index, Kind, Record, ScanOptions};
use dfq::{ErrorKind, OpenOptions};
use serde_json::json;

use super::cases::{all, compact, put};
use super::places::Place;

/// The shard of a key.
pub(crate) fn shard(key: &str) -> String {
    use sha2::Digest;
    format!("{:02x}", sha2::Sha256::digest(key.as_bytes())[0])
}

pub(crate) fn row(fields: &[&str], end: &str) -> Vec<u8> {
    format!("{}{end}", fields.join("\u{1f}")).into_bytes()
}

pub(crate) const PACKAGE: &str = r#"{"resources": [{"name": "domains", "path": "shards/*.usv", "schema": {"fields": [
    {"name": "domain", "type": "string"}, {"name": "value", "type": "string"},
    {"name": "updated_at", "type": "datetime"}, {"name": "note", "type": "string"}]}}]}"#;

const ENDS: [&str; 3] = ["\u{1e}\n", "\u{1e}", "\n"];

async fn value(index: &Index, key: &str) -> Option<serde_json::Value> {
    index.get(key).await.unwrap().map(|entry| entry.fields.get("value").cloned().unwrap())
}

/// Keys of one shard, so that a shard has several rows.
pub(crate) fn mates(of: &str) -> Vec<String> {
    let all = (0..).map(|n| format!("{of}{n}.com"));
    all.filter(|key| shard(key) == shard(of)).take(4).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn their_shards_and_all_their_inboxes_are_read_and_merged_as_they_are() {
    for end in ENDS {
        for place in Place::all().await {
            let keys = mates("mate");
            let [a, b, c, d] = [&keys[0], &keys[1], &keys[2], &keys[3]];
            let sh = shard(a);
            place.write("datapackage.json", PACKAGE.as_bytes()).await;
            // Neither sorted nor each key once, and the later one first.
            let rows = [
                row(&[b, "b2", "2026-01-02T00:00:00Z", "x\"y"], end),
                row(&[a, "a1", "2026-01-01T00:00:00Z", ""], end),
                row(&[b, "b1", "2026-01-01T00:00:00Z", ""], end),
            ]
            .concat();
            place.write(&format!("shards/{sh}.usv"), &rows).await;
            let new = |key: &str, value: &str| row(&[key, value, "2026-02-01T00:00:00Z", ""], end);
            place.write(&format!("{a}.usv"), &new(a, "a2")).await;
            place.write(&format!("inbox/{c}.usv"), &new(c, "c1")).await;
            place.write(&format!("inbox/{sh}/{d}.usv"), &new(d, "d1")).await;
            let index = place.existing().await.unwrap();
            let ours = Record::new("own.com").unwrap().with("value", "o1");
            let ours = ours.with("updated_at", "2026-03-01T00:00:00Z");
            put(&index, vec![ours]).await;
            for round in 0..3 {
                let what = format!("round {round}, {end:?}");
                for (key, expected) in [(a, "a2"), (b, "b2"), (c, "c1"), (d, "d1")] {
                    assert_eq!(value(&index, key).await, Some(json!(expected)), "{what}");
                }
                assert_eq!(value(&index, "own.com").await, Some(json!("o1")), "{what}");
                assert_eq!(index.get("none.com").await.unwrap(), None);
                let found = all(&index, ScanOptions::default()).await;
                assert_eq!(found.len(), 5, "{what}: {found:?}");
                assert_eq!(found[a], json!("a2"), "{what}");
                compact(&index).await;
            }
            let mut rows = [
                new(a, "a2"),
                row(&[b, "b2", "2026-01-02T00:00:00Z", "x\"y"], end),
                new(c, "c1"),
                new(d, "d1"),
            ];
            rows.sort();
            let bytes = place.read(&format!("shards/{sh}.usv")).await.unwrap();
            assert_eq!(String::from_utf8(bytes), String::from_utf8(rows.concat()), "{end:?}");
            let own = format!("shards/{}.usv", shard("own.com"));
            let own = String::from_utf8(place.read(&own).await.unwrap()).unwrap();
            let expected = row(&["own.com", "o1", "2026-03-01T00:00:00Z", ""], end);
            assert_eq!(own.as_bytes(), expected, "{end:?}: it ends as the others do");
            // Their columns are as they were.
            let package = place.read("datapackage.json").await.unwrap();
            assert_eq!(package, PACKAGE.as_bytes());
        }
    }
}

/// Their writer replaces a file that is being merged: the newer content is there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_written_again_is_merged_again() {
    for place in Place::all().await {
        place.write("datapackage.json", PACKAGE.as_bytes()).await;
        let index = place.existing().await.unwrap();
        for (n, path) in ["a.com.usv", "inbox/a.com.usv"].into_iter().enumerate() {
            for m in 0..3 {
                let (value_is, time) = (format!("{n}{m}"), format!("2026-01-0{}", 1 + 3 * n + m));
                place.write(path, &row(&["a.com", &value_is, &time, ""], "\n")).await;
                assert_eq!(value(&index, "a.com").await, Some(json!(value_is)));
                compact(&index).await;
                assert_eq!(value(&index, "a.com").await, Some(json!(value_is)));
                let again = compact(&index).await;
                assert_eq!((again.shards, again.files), (0, 0), "nothing is merged twice");
            }
        }
    }
}

#[tokio::test]
async fn what_cannot_be_written_there_is_refused_by_name() {
    let place = Place::folder();
    place.write("datapackage.json", PACKAGE.as_bytes()).await;
    let index = place.existing().await.unwrap();
    let error = index.delete(vec!["a".to_owned()]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("_deleted"), "{error}");
    for (field, value) in [("value", "a\u{1f}b"), ("note", "a\nb"), ("other", "x")] {
        let record = Record::new("a").unwrap().with(field, value);
        let error = index.put(vec![record]).await.remove(0).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    let more = vec![Column::new("other", Kind::String)];
    assert_eq!(index.add_columns(more).await.unwrap_err().kind(), ErrorKind::Invalid);
    // Their empty texts are nulls, without an escape.
    let record = Record::new("a").unwrap().with("value", "").with("note", "n");
    put(&index, vec![record.with("updated_at", "2026-01-01")]).await;
    compact(&index).await;
    let bytes = place.read(&format!("shards/{}.usv", shard("a"))).await.unwrap();
    assert_eq!(bytes, b"a\x1f\x1f2026-01-01\x1fn\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_names_it_is_read_and_not_written_until_somebody_names_the_columns() {
    for place in Place::all().await {
        let sh = shard("a.com");
        let bytes = row(&["a.com", "1", "2026-01-01", "n"], "\u{1e}\n");
        place.write(&format!("shards/{sh}.usv"), &bytes).await;
        place.write("a.com.usv", &row(&["a.com", "2", "2026-01-02", "n"], "\u{1e}\n")).await;
        let index = place.existing().await.unwrap();
        assert_eq!(index.key_column(), "key");
        assert!(index.get("a.com").await.unwrap().unwrap().fields.contains_key("column_2"));
        for error in [
            index.put(vec![Record::new("b").unwrap()]).await.remove(0).unwrap_err(),
            index.compact(CompactOptions::default()).await.unwrap_err(),
            index.import(dfq::index::ImportOptions::default()).await.err().unwrap(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("--columns"), "{error}");
        }
        let report = index.check(dfq::index::CheckOptions::default()).await.unwrap();
        assert_eq!((report.shards, report.records), (1, 1), "{report:?}");
    }
}

#[tokio::test]
async fn columns_are_named_once_and_must_fit() {
    let dir = tempfile::tempdir().unwrap();
    let columns = |names: &[&str]| names.iter().map(|it| Column::new(*it, Kind::String)).collect();
    let adopt = |names: &[&str]| Index::adopt(dir.path(), OpenOptions::existing(), columns(names));
    let names = ["domain", "value", "updated_at", "note"];
    let error = adopt(&names).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let sh = shard("a.com");
    std::fs::create_dir_all(dir.path().join("shards")).unwrap();
    let path = dir.path().join(format!("shards/{sh}.usv"));
    let bytes = row(&["a.com", "1", "2026-01-01", "n"], "\u{1e}\n");
    std::fs::write(&path, &bytes).unwrap();
    for (wrong, why) in [
        (&names[..3], "have 4 columns, and 3 are named"),
        (&["domain", "value", "value", "note"], "two columns are called 'value'"),
        (&["domain", "", "value", "note"], "must not be empty"),
    ] {
        let error = adopt(wrong).await.err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
    }
    let index = adopt(&names).await.unwrap();
    let error = adopt(&names).await.err().unwrap();
    assert!(error.to_string().contains("named already"), "{error}");
    let record = Record::new("b.com").unwrap().with("value", "2");
    put(&index, vec![record.with("updated_at", "2026-01-02")]).await;
    compact(&index).await;
    assert_eq!(value(&index, "a.com").await, Some(json!("1")));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "it was not touched");
    let written = std::fs::read(dir.path().join(format!("shards/{}.usv", shard("b.com"))));
    assert_eq!(written.unwrap(), b"b.com\x1f2\x1f2026-01-02\x1f\x1e\n");
    let ours = tempfile::tempdir().unwrap();
    Index::create(ours.path(), OpenOptions::existing(), "key").await.unwrap();
    let error = Index::adopt(ours.path(), OpenOptions::existing(), columns(&names)).await;
    assert!(error.err().unwrap().to_string().contains("named already"));
}
