//! Races: whatever others do before any call of a verb, no update is lost and none comes back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::Env;
use dfq::clock::{Clock as _, ManualClock, SkippingClock, SystemChance};
use dfq::conformance::faulty::faulty_folder;
use dfq::index::{CompactOptions, CompactReport, ImportOptions, Index, ScanOptions};
use dfq::store::memory::MemoryObjects;
use dfq::store::objects::Objects;
use futures::executor::block_on;
use serde_json::{Value, json};

use super::cases::{all, compact, put, record, value};
use super::meddled::Meddled;
use super::places::Place;
use super::theirs::shard;

/// Compacts everything, without locks and one shard after the other.
pub(crate) async fn compact_anyway(index: &Index) -> dfq::Result<CompactReport> {
    let options =
        CompactOptions { all: true, workers: 1, lock: false, ..CompactOptions::default() };
    index.compact(options).await
}

/// What the index says of a key: by a lookup, and where that costs little by a scan, which agrees.
pub(crate) async fn said(place: &Place, key: &str) -> Option<Value> {
    let index = place.index().await;
    let by_get = value(&index, key).await;
    if !matches!(place, Place::Memory(_)) {
        return by_get;
    }
    let options = ScanOptions { prefix: key.to_owned(), ..ScanOptions::default() };
    assert_eq!(all(&index, options).await.remove(key), by_get, "{key}");
    by_get
}

/// What others do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Others {
    Compact,
    Put,
    PutAndCompact,
    Delete,
    DeleteAndCompact,
}

impl Others {
    const ALL: [Self; 5] =
        [Self::Compact, Self::Put, Self::PutAndCompact, Self::Delete, Self::DeleteAndCompact];

    /// Does it to a key that was put as "1"; whether it was done.
    fn act(self, index: &Index, key: &str) -> (impl Future<Output = ()> + Send + 'static, Came) {
        let (index, key, came) = (index.clone(), key.to_owned(), Came::default());
        let comes = came.clone();
        let act = async move {
            // Whoever changes a record has read it: so the change is later, whatever the clocks show.
            assert_eq!(value(&index, &key).await, Some(json!("1")));
            match self {
                Self::Compact => {}
                Self::Put | Self::PutAndCompact => put(&index, vec![record(&key, "2")]).await,
                Self::Delete | Self::DeleteAndCompact => {
                    index.delete(vec![key]).await.remove(0).unwrap();
                }
            }
            if matches!(self, Self::Compact | Self::PutAndCompact | Self::DeleteAndCompact) {
                compact_anyway(&index).await.unwrap();
            }
            comes.0.store(true, Ordering::SeqCst);
        };
        (act, came)
    }

    /// What there is afterwards.
    fn leaves(self) -> Option<Value> {
        match self {
            Self::Compact => Some(json!("1")),
            Self::Put | Self::PutAndCompact => Some(json!("2")),
            Self::Delete | Self::DeleteAndCompact => None,
        }
    }
}

#[derive(Clone, Default)]
struct Came(Arc<AtomicBool>);

impl Came {
    fn came(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A compactor stands still before each of its calls, while a key of which it merges an old file is written again, or
/// deleted, or compacted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_come_before_every_call_of_a_compactor() {
    for place in Place::all().await {
        let others = place.index().await;
        let (index, meddled) = Meddled::index(&place).await;
        for act in Others::ALL {
            for at in 0.. {
                let key = format!("{act:?}-{at}.");
                put(&others, vec![record(&key, "0")]).await;
                compact(&others).await;
                put(&others, vec![record(&key, "1")]).await;
                let (what, came) = act.act(&others, &key);
                meddled.others_before(at, what);
                let report = compact_anyway(&index).await.unwrap();
                assert_eq!(report.failed, Vec::<String>::new(), "{key}");
                if !came.came() {
                    assert!(at > 6, "only {at} calls");
                    break;
                }
                assert_eq!(
                    said(&place, &key).await,
                    act.leaves(),
                    "{key} before {:?}",
                    meddled.calls()
                );
                compact(&others).await;
                assert_eq!(said(&place, &key).await, act.leaves(), "{key} in the end");
                assert_eq!(others.stats().await.unwrap().inbox_files, 0, "{key}");
            }
        }
    }
}

/// Keys of the first shard, so many that it has several blocks.
fn many_of_a_shard(begin: &str) -> Vec<String> {
    let keys = (0..).map(|n| format!("{begin}{n}."));
    keys.filter(|key| shard(key) == "00").take(40).collect()
}

/// What a scan shows of the first shard.
async fn first_shard(index: &Index) -> BTreeMap<String, Value> {
    let (mut scan, mut found) = (index.scan(ScanOptions::default()), BTreeMap::new());
    while let Some(entry) = scan.next().await.unwrap() {
        if shard(&entry.key) != "00" {
            break;
        }
        let value = entry.fields["value"].clone();
        assert_eq!(found.insert(entry.key.clone(), value), None, "{} came twice", entry.key);
    }
    found
}

/// A lookup and a scan stand still before each of their calls: between the inbox and the shard, and between two parts of
/// the shard. Whatever others do, they see the put that returned before, or what came after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_come_before_every_call_of_a_reader() {
    for place in Place::all().await {
        let others = place.index().await;
        let (index, meddled) = Meddled::index(&place).await;
        // Where a scan may end.
        let second = (0..).map(|n| format!("end{n}")).find(|key| shard(key) == "01").unwrap();
        put(&others, vec![record(&second, "1")]).await;
        for act in Others::ALL {
            let keys = many_of_a_shard(&format!("{act:?}-"));
            let long = "0".repeat(1000);
            let first = keys.iter().map(|key| record(key, long.as_str())).collect();
            others.put_bundle(first).await.unwrap();
            compact(&others).await;
            for scans in [false, true] {
                for at in 0.. {
                    let key = &keys[(at * 7) % keys.len()];
                    // Reads it, so that what is put is later.
                    value(&others, key).await;
                    put(&others, vec![record(key, "1")]).await;
                    let (what, came) = act.act(&others, key);
                    meddled.others_before(at, what);
                    let found = match scans {
                        false => value(&index, key).await,
                        true => first_shard(&index).await.remove(key),
                    };
                    let (right, calls) = ([Some(json!("1")), act.leaves()], meddled.calls());
                    assert!(right.contains(&found), "{key}: {found:?} after {at} of {calls:?}");
                    compact(&others).await;
                    if !came.came() {
                        assert!(at > 3, "only {at} calls");
                        break;
                    }
                }
            }
        }
    }
}

/// An import stands still before each of its calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_come_before_every_call_of_an_import() {
    for place in Place::all().await {
        let others = place.index().await;
        let (index, meddled) = Meddled::index(&place).await;
        for act in [Others::PutAndCompact, Others::DeleteAndCompact] {
            for at in 0.. {
                let key = format!("{act:?}-{at}.");
                put(&others, vec![record(&key, "1")]).await;
                let scratch = tempfile::tempdir().unwrap();
                let scratch = Some(scratch.path().to_owned());
                let options = ImportOptions { scratch, ..ImportOptions::default() };
                let mut import = index.import(options).await.unwrap();
                let old = "2020-01-01T00:00:00Z".parse().unwrap();
                let mate = format!("{key}new");
                let records = vec![record(&key, "old").updated_at(old), record(&mate, "new")];
                import.add(records).await.unwrap();
                let (what, came) = act.act(&others, &key);
                meddled.others_before(at, what);
                import.finish().await.unwrap();
                if !came.came() {
                    assert!(at > 6, "only {at} calls");
                    break;
                }
                assert_eq!(said(&place, &key).await, act.leaves(), "{key}");
                assert_eq!(said(&place, &mate).await, Some(json!("new")), "{mate}");
                compact(&others).await;
                assert_eq!(said(&place, &key).await, act.leaves(), "{key} in the end");
            }
        }
    }
}

/// The file of a key that was put first is merged last.
#[tokio::test]
async fn of_two_records_of_one_time_the_one_with_the_greater_ulid_counts() {
    for place in Place::all().await {
        let index = place.index().await;
        let time = "2026-01-01T00:00:00Z".parse().unwrap();
        let begin = format!("inbox/{}/a.0", shard("a"));
        put(&index, vec![record("a", "9").updated_at(time)]).await;
        let first = place.names().await.into_iter().find(|name| name.starts_with(&begin)).unwrap();
        put(&index, vec![record("a", "1").updated_at(time)]).await;
        assert_eq!(said(&place, "a").await, Some(json!("1")), "both in the inbox");
        let bytes = place.read(&first).await.unwrap();
        place.objects().await.remove(std::slice::from_ref(&first), Duration::MAX).await.unwrap();
        compact(&index).await;
        place.write(&first, &bytes).await;
        assert_eq!(said(&place, "a").await, Some(json!("1")), "the later one in the shard");
        let report = compact(&index).await;
        assert_eq!(report.files, 1);
        assert_eq!(said(&place, "a").await, Some(json!("1")), "both were merged");
        put(&index, vec![record("a", "0").updated_at(time)]).await;
        assert_eq!(said(&place, "a").await, Some(json!("0")), "the latest in the inbox");
        compact(&index).await;
        assert_eq!(said(&place, "a").await, Some(json!("0")));
    }
}

/// A record that says that it is older than the deletion of its key does not bring it back.
#[tokio::test]
async fn a_deletion_beats_a_late_older_put() {
    for place in Place::all().await {
        let index = place.index().await;
        let old = "2020-01-01T00:00:00Z".parse().unwrap();
        for compacts in [false, true] {
            let key = format!("key-{compacts}");
            put(&index, vec![record(&key, "1")]).await;
            index.delete(vec![key.clone()]).await.remove(0).unwrap();
            if compacts {
                compact(&index).await;
                // Once more, for something else in that shard.
                let mut mates = (0..).map(|n| format!("mate-{n}"));
                let mate = mates.find(|mate| shard(mate) == shard(&key)).unwrap();
                put(&index, vec![record(&mate, "1")]).await;
                compact(&index).await;
            }
            put(&index, vec![record(&key, "late").updated_at(old)]).await;
            assert_eq!(said(&place, &key).await, None);
            compact(&index).await;
            assert_eq!(said(&place, &key).await, None);
            put(&index, vec![record(&key, "2")]).await;
            assert_eq!(said(&place, &key).await, Some(json!("2")));
        }
    }
}

/// A compactor dies after it has written the shard, so the file that it merged is still there. What is put before the
/// next compactor comes stays, even if the old file is merged after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_merged_already_undoes_nothing() {
    for place in Place::all().await {
        for deletes in [false, true] {
            let key = format!("key-{deletes}");
            let others = place.index().await;
            put(&others, vec![record(&key, "1")]).await;
            let (index, meddled) = Meddled::index(&place).await;
            meddled.die_before_first("remove inbox/");
            compact_anyway(&index).await.unwrap_err();
            let begin = format!("inbox/{}/{key}.0", shard(&key));
            let left =
                place.names().await.into_iter().find(|name| name.starts_with(&begin)).unwrap();
            assert_eq!(said(&place, &key).await, Some(json!("1")));
            assert_eq!(value(&others, &key).await, Some(json!("1")));
            let expected = match deletes {
                true => {
                    others.delete(vec![key.clone()]).await.remove(0).unwrap();
                    None
                }
                false => {
                    put(&others, vec![record(&key, "2")]).await;
                    Some(json!("2"))
                }
            };
            assert_eq!(said(&place, &key).await, expected);
            // The newer one is merged, and then the old one again.
            let bytes = place.read(&left).await.unwrap();
            place.objects().await.remove(std::slice::from_ref(&left), Duration::MAX).await.unwrap();
            compact_anyway(&others).await.unwrap();
            place.write(&left, &bytes).await;
            assert_eq!(said(&place, &key).await, expected);
            assert_eq!(compact_anyway(&others).await.unwrap().files, 1);
            assert_eq!(said(&place, &key).await, expected);
            assert_eq!(others.stats().await.unwrap().inbox_files, 0);
        }
    }
}

/// Two compactors merge a shard, and the one that has read more loses: it removes nothing of what it has read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compactor_that_has_lost_removes_nothing() {
    for place in Place::all().await {
        let others = place.index().await;
        let keys = super::theirs::mates("lost");
        put(&others, vec![record(&keys[0], "1"), record(&keys[1], "1")]).await;
        let begin = format!("inbox/{}/{}.0", shard(&keys[1]), keys[1]);
        let new = place.names().await.into_iter().find(|name| name.starts_with(&begin)).unwrap();
        let (index, meddled) = Meddled::index(&place).await;
        // The other one had listed the inbox before the second record came.
        let (objects, busy) = (place.objects().await, others.clone());
        meddled.others_before_first("swap shards/", async move {
            let bytes = objects.get(&new, None).await.unwrap().unwrap().bytes;
            objects.remove(std::slice::from_ref(&new), Duration::MAX).await.unwrap();
            assert_eq!(compact_anyway(&busy).await.unwrap().files, 1);
            objects.put(&new, &bytes).await.unwrap();
        });
        let report = compact_anyway(&index).await.unwrap();
        assert_eq!((report.lost, report.files), (1, 0));
        for _ in 0..2 {
            assert_eq!(said(&place, &keys[0]).await, Some(json!("1")));
            assert_eq!(said(&place, &keys[1]).await, Some(json!("1")));
            compact(&others).await;
        }
    }
}

/// In a folder: a compactor stands still before it writes the shard, for days in which there are so many versions that the
/// one it read is pruned, and so is the number that it would use. It has lost, whether its clock tells it of the days or
/// stood still with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compactor_that_wakes_after_days_has_lost() {
    for knows in [true, false] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let clock = SkippingClock::default();
        let env = || Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
        let folder = |env: Env| -> Arc<dyn Objects> {
            Arc::new(faulty_folder(dir.path(), &clock, env).unwrap())
        };
        let others = Index::over(folder(env()), env(), None, Some("key")).await.unwrap();
        put(&others, vec![record("a", "first")]).await;
        compact(&others).await;
        put(&others, vec![record("a", "second")]).await;
        let still = Env::new(Arc::new(ManualClock::default()), Arc::new(SystemChance));
        let late_env = if knows { env() } else { still };
        let (late, meddled) = Meddled::over(folder(late_env.clone()), late_env).await;
        let (busy, days) = (others.clone(), clock.clone());
        meddled.others_before_first("swap shards/", async move {
            for n in 0..140 {
                value(&busy, "a").await;
                put(&busy, vec![record("a", n.to_string())]).await;
                compact_anyway(&busy).await.unwrap();
                if n == 70 {
                    days.skip(Duration::from_secs(3 * 24 * 3600), Duration::ZERO);
                }
            }
        });
        let report = compact_anyway(&late).await.unwrap();
        assert_eq!((report.lost, report.files), (1, 0), "{knows}");
        let versions = dir.path().join(format!("versions/shards/{}.usv", shard("a")));
        let names: Vec<_> = std::fs::read_dir(&versions).unwrap().collect();
        assert!(!versions.join("1").exists() && !versions.join("2").exists(), "{knows}: {names:?}");
        for index in [&others, &late] {
            assert_eq!(value(index, "a").await, Some(json!("139")), "{knows}");
        }
        assert_eq!(others.stats().await.unwrap().inbox_files, 0, "{knows}");
    }
}

/// A merge that takes longer than a lock is held renews it: nobody else begins the same work.
#[tokio::test]
async fn a_lock_is_renewed_while_a_shard_is_merged() {
    let clock = ManualClock::default();
    let env = Env::new(Arc::new(clock.clone()), Arc::new(SystemChance));
    let memory = MemoryObjects::new("memory:".to_owned(), env.clone());
    let (index, meddled) = Meddled::over(Arc::new(memory.clone()), env.clone()).await;
    // So long a shard that it is read in three parts.
    let keys = (0..).map(|n| format!("key{n}")).filter(|key| shard(key) == "00");
    let keys: Vec<String> = keys.take(20).collect();
    let long = "x".repeat(1_000_000);
    put(&index, keys.iter().map(|key| record(key, long.as_str())).collect()).await;
    compact(&index).await;
    put(&index, vec![record(&keys[0], "2")]).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sees, moves) = (Arc::clone(&seen), clock.clone());
    meddled.before_each(["load shards/", "swap shards/"], move || {
        let lock = block_on(memory.get("shards/00.lock", None)).unwrap().unwrap();
        let lock: Value = serde_json::from_slice(&lock.bytes).unwrap();
        let until: jiff::Timestamp = lock["expires_at"].as_str().unwrap().parse().unwrap();
        sees.lock().unwrap().push(until > moves.wall());
        moves.advance(Duration::from_secs(150));
    });
    assert_eq!(compact(&index).await.files, 1);
    // Until it is swapped; after that nobody has anything to lose.
    assert_eq!(seen.lock().unwrap()[..4], [true; 4], "held all the time");
    assert_eq!(value(&index, &keys[0]).await, Some(json!("2")));
}
