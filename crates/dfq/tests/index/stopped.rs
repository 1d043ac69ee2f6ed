//! A process that is stopped at every single call, and calls whose answers are lost: nothing is lost and nothing half
//! done counts, and the next one finishes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dfq::Env;
use dfq::index::{ImportOptions, Index, ScanOptions};
use dfq::store::faulty::{Faulty, Mishap};
use dfq::store::memory::MemoryObjects;
use dfq::store::objects::Objects;
use dfq::store::retrying::Retrying;
use serde_json::{Value, json};

use super::cases::value;
use super::cases::{all, compact, put, record};
use super::checks::check;
use super::meddled::Meddled;
use super::places::Place;
use super::races::compact_anyway;
use super::theirs::shard;

/// What a scan shows of the keys that begin like this.
async fn shown(index: &Index, begin: &str) -> BTreeMap<String, Value> {
    all(index, ScanOptions { prefix: begin.to_owned(), ..ScanOptions::default() }).await
}

/// A key of the first shard or of the second.
fn key_of(begin: &str, name: &str) -> String {
    let mut keys = (0..).map(|n| format!("{begin}{name}{n}"));
    keys.find(|key| shard(key).as_str() < "02").unwrap_or_default()
}

/// Puts something of every kind: what is in a shard already, what is new, changed, deleted, and in a bundle. What there
/// is then.
async fn prepare(index: &Index, begin: &str) -> BTreeMap<String, Value> {
    let key = |name: &str| key_of(begin, name);
    put(index, vec![record(&key("kept"), "1"), record(&key("changed"), "1")]).await;
    put(index, vec![record(&key("deleted"), "1")]).await;
    compact_anyway(index).await.unwrap();
    put(index, vec![record(&key("changed"), "2"), record(&key("new"), "1")]).await;
    index.delete(vec![key("deleted")]).await.remove(0).unwrap();
    let bundle = (0..3).map(|n| record(&key(&format!("b{n}-")), "1")).collect();
    index.put_bundle(bundle).await.unwrap();
    let mut model = BTreeMap::from([
        (key("kept"), json!("1")),
        (key("changed"), json!("2")),
        (key("new"), json!("1")),
    ]);
    model.extend((0..3).map(|n| (key(&format!("b{n}-")), json!("1"))));
    model
}

/// Takes away the locks of the dead, as time does.
async fn unlock(place: &Place) {
    let mut names = place.names().await;
    names.retain(|name| name.ends_with(".lock"));
    place.objects().await.remove(&names, Duration::MAX).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compactor_is_killed_at_every_call() {
    for place in Place::all().await {
        let others = place.index().await;
        let (index, meddled) = Meddled::index(&place).await;
        for at in 0.. {
            let begin = format!("{at}.");
            let model = prepare(&others, &begin).await;
            meddled.die_before(at);
            let all_at_once = dfq::index::CompactOptions {
                all: true,
                workers: 1,
                ..dfq::index::CompactOptions::default()
            };
            let _ = index.compact(all_at_once).await;
            let calls = meddled.calls().len();
            for key in model.keys().chain([&key_of(&begin, "deleted")]) {
                let found = value(&others, key).await;
                assert_eq!(found.as_ref(), model.get(key), "{key}, killed before call {at}");
            }
            unlock(&place).await;
            compact(&others).await;
            assert_eq!(shown(&others, &begin).await, model, "finished after {at}");
            assert_eq!(others.stats().await.unwrap().inbox_files, 0, "finished after {at}");
            if calls <= at {
                assert!(at > 15, "only {at} calls");
                break;
            }
        }
        check(&others, true).await;
        assert_eq!(check(&others, false).await.findings, vec![]);
    }
}

/// A put that was answered is there; one that was not is there or is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_is_killed_at_every_call() {
    for place in Place::all().await {
        let others = place.index().await;
        for at in 0.. {
            let (index, meddled) = Meddled::index(&place).await;
            let key = |name: &str| format!("{at}.{name}");
            put(&others, vec![record(&key("d"), "1")]).await;
            // It has read what it deletes: so the deletion is later, whatever the clocks show.
            assert_eq!(value(&index, &key("d")).await, Some(json!("1")));
            meddled.die_before(at);
            // With a column that is new each time.
            let own = format!("field{at}");
            let one = record(&key("a"), "1").with(own.as_str(), 1);
            let put_it = index.put(vec![one]).await.remove(0).is_ok();
            let bundle = vec![record(&key("b"), "1"), record(&key("c"), "1")];
            let bundled = index.put_bundle(bundle).await.is_ok();
            let deleted = index.delete(vec![key("d")]).await.remove(0).is_ok();
            let made = meddled.calls().len();
            for _ in 0..2 {
                let found = shown(&others, &key("")).await;
                let has = |name: &str| found.contains_key(&key(name));
                assert!(!put_it || has("a"), "{at}: {found:?}");
                assert!(!bundled || (has("b") && has("c")), "{at}: {found:?}");
                assert!(!deleted || !has("d"), "{at}: {found:?}");
                assert!(found.values().all(|value| *value == json!("1")), "{at}: {found:?}");
                compact(&others).await;
            }
            if made <= at {
                assert!(put_it && bundled && deleted && at > 5, "only {at} calls");
                break;
            }
        }
        check(&others, true).await;
        assert_eq!(check(&others, false).await.findings, vec![]);
    }
}

/// Of an import that was killed some shards may be there. To import again does the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_is_killed_at_every_call() {
    for place in Place::all().await {
        let others = place.index().await;
        for at in 0.. {
            let (index, meddled) = Meddled::index(&place).await;
            let keys: Vec<String> = (0..3).map(|n| format!("{at}.{n}")).collect();
            let records: Vec<_> = keys.iter().map(|key| record(key, "1")).collect();
            put(&others, vec![record(&format!("{at}.kept"), "1")]).await;
            meddled.die_before(at);
            let done = import(&index, records.clone()).await.is_ok();
            let calls = meddled.calls().len();
            let found = shown(&others, &format!("{at}.")).await;
            assert!(found.contains_key(&format!("{at}.kept")), "{at}");
            assert!(!done || found.len() == 4, "{at}: {found:?}");
            unlock(&place).await;
            import(&others, records).await.unwrap();
            assert_eq!(shown(&others, &format!("{at}.")).await.len(), 4, "{at}");
            if calls <= at {
                assert!(done && at > 12, "only {at} calls");
                break;
            }
        }
        check(&others, true).await;
        assert_eq!(check(&others, false).await.findings, vec![]);
    }
}

async fn import(index: &Index, records: Vec<dfq::index::Record>) -> dfq::Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    let scratch = Some(scratch.path().to_owned());
    let options = ImportOptions { scratch, ..ImportOptions::default() };
    let mut import = index.import(options).await?;
    import.add(records).await?;
    import.finish().await.map(drop)
}

/// A call fails, or is carried out without an answer, and is made again: nothing comes of it, at any call.
#[tokio::test]
async fn a_lost_answer_changes_nothing() {
    let memory = MemoryObjects::new("memory:".to_owned(), Env::system());
    let faulty = Faulty::new(memory.clone());
    let place = Place::Memory(memory);
    let others = place.index().await;
    let store: Arc<dyn Objects> = Arc::new(Retrying::new(faulty.clone(), Env::system()));
    let index = Index::over(store, Env::system(), None, None).await.unwrap();
    for mishap in [Mishap::Fails, Mishap::LosesAnswer] {
        for at in 0.. {
            let begin = format!("{mishap:?}{at}.");
            let model = prepare(&others, &begin).await;
            faulty.arm([(at, mishap)]);
            let report = compact(&index).await;
            let calls = faulty.calls().len();
            assert_eq!((report.lost, report.locked), (0, 0), "{mishap:?} {at}");
            assert_eq!(report.shards, report_shards(&model, &begin), "{mishap:?} {at}");
            assert_eq!(shown(&others, &begin).await, model, "{mishap:?} {at}");
            assert_eq!(others.stats().await.unwrap().inbox_files, 0, "{mishap:?} {at}");
            assert_eq!(check(&others, false).await.findings, vec![], "{mishap:?} {at}");
            unlock(&place).await;
            if calls <= at {
                assert!(at > 15, "only {at} calls");
                break;
            }
        }
    }
}

/// How many shards had anything in the inbox.
fn report_shards(model: &BTreeMap<String, Value>, begin: &str) -> usize {
    let (kept, deleted) = (key_of(begin, "kept"), key_of(begin, "deleted"));
    let keys = model.keys().filter(|key| **key != kept).chain([&deleted]);
    keys.map(|key| shard(key)).collect::<std::collections::BTreeSet<_>>().len()
}
