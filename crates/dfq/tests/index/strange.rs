//! Files that nobody expects, and what they cost: themselves, and nothing else.

use std::time::{Duration, SystemTime};

use dfq::ErrorKind;
use dfq::index::{CompactOptions, CompactReport, Index, Record, ScanOptions};
use dfq::store::objects::Objects;
use dfq_s3_server::Lies;
use serde_json::json;

use super::cases::{all, compact, put, record, value};
use super::checks::check;
use super::meddled::Meddled;
use super::places::Place;
use super::theirs::{PACKAGE, mates, row, shard};

/// A ulid of a time that is long past.
const LONG_AGO: &str = "01000000000000000000000000";

/// Compacts everything, whatever cannot be read.
async fn compact_most(index: &Index) -> CompactReport {
    index.compact(CompactOptions { all: true, ..CompactOptions::default() }).await.unwrap()
}

/// Keys of one shard, in their order.
fn sorted_mates(of: &str) -> Vec<String> {
    let mut keys = mates(of);
    keys.sort();
    keys
}

/// The only file that the inbox has of a key.
async fn file_of(place: &Place, key: &str) -> String {
    let begin = format!("inbox/{}/{key}.0", shard(key));
    let names = place.names().await;
    names.into_iter().find(|name| name.starts_with(&begin)).unwrap()
}

async fn remove(place: &Place, name: String) {
    place.objects().await.remove(&[name], Duration::MAX).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_too_large_to_be_read_costs_only_itself() {
    for place in [Place::memory(), Place::folder()] {
        let keys = sorted_mates("large");
        let index = place.index().await;
        put(&index, vec![record(&keys[0], "replaced"), record(&keys[2], "1")]).await;
        let large = vec![b'x'; (64 << 20) + 1];
        // One that is young, and before all others in the order of names; and one that should be set aside.
        let young = file_of(&place, &keys[0]).await;
        let old = format!("inbox/{}/{}.{LONG_AGO}.usv", shard(&keys[1]), keys[1]);
        for name in [&young, &old] {
            place.write(name, &large).await;
        }
        let report = compact_most(&index).await;
        assert_eq!((report.files, report.failed.len()), (1, 0), "{report:?}");
        // Memory has no limit.
        let stays = report.unreadable.len() as u64;
        assert_eq!(stays + report.set_aside, 2, "{report:?}");
        assert_eq!(value(&index, &keys[2]).await, Some(json!("1")));
        assert_eq!(index.stats().await.unwrap().inbox_files, stays, "they are where they were");
    }
}

#[tokio::test]
async fn more_unreadable_files_than_one_pass_takes() {
    let (place, keys) = (Place::memory(), sorted_mates("torn"));
    let index = place.index().await;
    put(&index, vec![record(&keys[1], "1")]).await;
    for n in 0..10_001 {
        place
            .write(&format!("inbox/{}/{}.0ZZZ{n:022}.usv", shard(&keys[0]), keys[0]), b"torn")
            .await;
    }
    let report = compact_most(&index).await;
    assert_eq!(report.files, 1, "{:?}", report.unreadable.first());
    assert_eq!(report.unreadable.len(), 100);
    let again = compact_most(&index).await;
    assert_eq!((again.shards, again.files), (0, 0));
}

/// In an index of another program, in a bucket: what lies beside the inboxes has its turn however full these are.
#[tokio::test]
async fn a_full_inbox_does_not_hide_what_lies_beside_it() {
    let place = Place::bucket().await;
    place.write("datapackage.json", PACKAGE.as_bytes()).await;
    let sh = shard("a.com");
    let long = "x".repeat(33 << 20);
    for n in 0..2 {
        let name = format!("inbox/{sh}/a.com.0ZZZ{n:022}.usv");
        place.write(&name, &row(&["a.com", &long, "2026-01-01", ""], "\n")).await;
    }
    place.write("a.com.usv", &row(&["a.com", "2", "2026-01-02", ""], "\n")).await;
    let index = place.existing().await.unwrap();
    compact(&index).await;
    let rows = place.read(&format!("shards/{sh}.usv")).await.unwrap();
    assert_eq!(rows, row(&["a.com", "2", "2026-01-02", ""], "\n"));
    let again = compact(&index).await;
    assert_eq!((again.shards, again.files), (0, 0));
}

/// A scan that could not read the columns goes on where it was.
#[tokio::test]
async fn a_scan_loses_nothing_to_an_error() {
    for place in Place::all().await {
        let keys = sorted_mates("scanned");
        put(&place.index().await, keys.iter().map(|key| record(key, "1")).collect()).await;
        compact(&place.index().await).await;
        let (index, meddled) = Meddled::index(&place).await;
        // Columns that this one has not heard of.
        let other = place.index().await;
        assert_eq!(value(&other, &keys[3]).await, Some(json!("1")));
        put(&other, vec![Record::new(&keys[3]).unwrap().with("new", "2")]).await;
        compact(&other).await;
        meddled.fail_once("load datapackage.json");
        let (mut scan, mut found, mut errors) = (index.scan(ScanOptions::default()), vec![], 0);
        loop {
            match scan.next().await {
                Ok(Some(entry)) => found.push(entry.key),
                Ok(None) => break,
                Err(_) => errors += 1,
            }
        }
        assert_eq!((errors, found), (1, keys));
    }
}

/// Somebody has written into a shard in a bucket.
#[tokio::test]
async fn a_shard_that_is_not_as_dfq_writes_it_is_not_scanned() {
    let (place, keys) = (Place::memory(), sorted_mates("edited"));
    let index = place.index().await;
    put(&index, keys.iter().map(|key| record(key, "1")).collect()).await;
    compact(&index).await;
    let name = format!("shards/{}.usv", shard(&keys[0]));
    let bytes = place.read(&name).await.unwrap();
    let rows: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let reversed: Vec<u8> = rows.iter().rev().copied().flatten().copied().collect();
    let torn = bytes[..bytes.len() - 1].to_vec();
    let strange = [&bytes[..], b"zzz\x1fstrange\n"].concat();
    for wrong in [reversed, torn, strange] {
        place.write(&name, &wrong).await;
        let mut scan = index.scan(ScanOptions::default());
        for _ in 0..2 {
            // Rows before the wrong one may come first.
            let error = loop {
                match scan.next().await {
                    Ok(entry) => assert!(entry.is_some(), "it came to an end"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(&name), "{error}");
        }
        let error = index.compact(CompactOptions::default()).await;
        assert!(error.is_ok(), "nothing waits");
        put(&index, vec![record(&keys[0], "2")]).await;
        let error = index.compact(CompactOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert_eq!(place.read(&name).await.unwrap(), wrong, "it was not touched");
        assert!(!check(&index, true).await.findings.is_empty());
        assert_eq!(all(&index, ScanOptions::default()).await.len(), keys.len());
        remove(&place, file_of(&place, &keys[0]).await).await;
        place.write(&name, &bytes).await;
    }
}

/// The newest file of a key cannot be read, and those before it are too long to be read at once.
#[tokio::test]
async fn the_latest_record_that_can_be_read_is_found() {
    let place = Place::memory();
    let index = place.index().await;
    let long = |digit: &str| digit.repeat(3000);
    for digit in ["1", "2", "3"] {
        put(&index, vec![record("a", long(digit))]).await;
    }
    let sh = shard("a");
    let mut names = place.names().await;
    names.retain(|name| name.starts_with(&format!("inbox/{sh}/")));
    assert_eq!(names.len(), 3);
    let mut torn = place.read(&names[2]).await.unwrap();
    torn.truncate(2000);
    place.write(&names[2], &torn).await;
    assert_eq!(value(&index, "a").await, Some(json!(long("2"))));
}

/// The server's clock was years ahead when a compactor died, and was set right.
#[tokio::test]
async fn a_lock_of_the_future_has_expired() {
    let place = Place::folder();
    let index = place.index().await;
    put(&index, vec![record("a", "1")]).await;
    let lock = format!("shards/{}.lock", shard("a"));
    let text = r#"{"worker_id":"x","created_at":"2200-01-01T00:00:00Z","expires_at":"2200-01-01T00:05:00Z"}"#;
    place.write(&lock, text.as_bytes()).await;
    let Place::Folder(dir) = &place else { unreachable!("it is a folder") };
    let file = std::fs::File::options().write(true).open(dir.path().join(&lock)).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    let report = compact(&index).await;
    assert_eq!((report.locked, report.files), (0, 1));
    assert_eq!(place.read(&lock).await, None);
}

/// The statistics are not worth an error.
#[tokio::test]
async fn a_manifest_that_cannot_be_read_is_written_anew() {
    for place in Place::all().await {
        let index = place.index().await;
        for wrong in [vec![b' '; 2 << 20], b"{".to_vec()] {
            place.write("manifest.json", &wrong).await;
            assert_eq!(index.stats().await.unwrap().records, 0);
            put(&index, vec![record("a", "1")]).await;
            compact(&index).await;
            assert_eq!(index.stats().await.unwrap().records, 1);
            place.write("manifest.json", &wrong).await;
            check(&index, true).await;
            assert_eq!(check(&index, false).await.findings, vec![]);
        }
    }
}

/// In an index that is ordered by `updated_at`, a record without one is of now: its put is seen.
#[tokio::test]
async fn a_put_without_a_time_is_seen_in_an_index_of_another_program() {
    for place in Place::all().await {
        place.write("datapackage.json", PACKAGE.as_bytes()).await;
        let sh = shard("a.com");
        let theirs = row(&["a.com", "1", "2026-01-01T00:00:00Z", ""], "\n");
        place.write(&format!("shards/{sh}.usv"), &theirs).await;
        let index = place.existing().await.unwrap();
        for n in 2..5 {
            let new = Record::new("a.com").unwrap().with("value", n.to_string());
            put(&index, vec![new]).await;
            assert_eq!(value(&index, "a.com").await, Some(json!(n.to_string())));
            compact(&index).await;
            assert_eq!(value(&index, "a.com").await, Some(json!(n.to_string())));
        }
        // What was read is of tomorrow; what is put after it was read is later.
        let ahead = jiff::Timestamp::now() + Duration::from_secs(3600);
        let theirs = row(&["a.com", "5", &ahead.to_string(), ""], "\n");
        place.write("a.com.usv", &theirs).await;
        assert_eq!(value(&index, "a.com").await, Some(json!("5")));
        put(&index, vec![Record::new("a.com").unwrap().with("value", "6")]).await;
        assert_eq!(value(&index, "a.com").await, Some(json!("6")));
    }
}

/// A store that does not keep the condition of a swap, and even one that says that it does, is not compacted. One that
/// takes ETags only without quotes is.
#[tokio::test]
async fn a_store_that_keeps_no_condition_is_not_compacted() {
    let lies = |name: &str| {
        let mut lies = Lies::default();
        assert!(lies.tell(name));
        lies
    };
    for (name, works) in [
        ("ignore-if-match", false),
        ("ignore-conditions", false),
        ("refuse-etags", false),
        ("refuse-conditional-put", false),
        ("refuse-quoted-etags", true),
    ] {
        let place = Place::bucket().await;
        put(&place.index().await, vec![record("a", "1")]).await;
        compact(&place.index().await).await;
        let Place::Bucket(server) = &place else { unreachable!("it is a bucket") };
        server.set_lies(lies(name));
        let index = place.existing().await.unwrap();
        // It has read what it changes: so the change is later, whatever the clocks show.
        assert_eq!(value(&index, "a").await, Some(json!("1")));
        if name != "refuse-conditional-put" {
            put(&index, vec![record("a", "2")]).await;
        }
        let shards = place.read(&format!("shards/{}.usv", shard("a"))).await.unwrap();
        if works {
            assert_eq!(compact(&index).await.files, 1);
            assert_eq!(value(&index, "a").await, Some(json!("2")));
            continue;
        }
        let scratch = tempfile::tempdir().unwrap();
        let scratch = Some(scratch.path().to_owned());
        let options = dfq::index::ImportOptions { scratch, ..Default::default() };
        let mut import = index.import(options).await.unwrap();
        import.add(vec![record("a", "3")]).await.unwrap();
        let errors =
            [import.finish().await.err(), index.compact(CompactOptions::default()).await.err()];
        for error in errors.into_iter().take(if name == "refuse-conditional-put" { 1 } else { 2 }) {
            let error = error.unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        }
        assert_eq!(
            place.read(&format!("shards/{}.usv", shard("a"))).await.unwrap(),
            shards,
            "{name}"
        );
    }
}
