//! One suite for everything that implements [`Objects`].
//!
//! A store implements [`ObjectsProvider`] and writes `dfq::objects_tests!(make)` in a test file. Each case begins
//! with an empty store. Races are run by real threads where calls block, and by tasks elsewhere, each with a handle
//! of its own.

#![allow(clippy::unwrap_used, reason = "a suite of tests")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Env;
use crate::layout::{shown_for_trial, swapped_for_trial};
use crate::store::Created;
use crate::store::objects::{List, Objects, Part, Swap, Version};

pub use crate::store::Swapped;

/// A store that is empty at first.
#[async_trait]
pub trait ObjectsProvider: Send + Sync {
    /// A handle to it, like another process's.
    async fn open(&self) -> Arc<dyn Objects>;
}

/// What makes a provider, or finds that there is none to be had here.
pub trait MadeObjects {
    /// What was made.
    type Provider: ObjectsProvider;
    /// Hands it over.
    fn made(self) -> Option<Self::Provider>;
}

impl<P: ObjectsProvider> MadeObjects for P {
    type Provider = P;
    fn made(self) -> Option<P> {
        Some(self)
    }
}

impl<P: ObjectsProvider> MadeObjects for Option<P> {
    type Provider = P;
    fn made(self) -> Option<P> {
        self
    }
}

/// A name to be swapped in a test.
pub fn trial(name: &str) -> Swapped {
    swapped_for_trial(name)
}

/// A name to be swapped in a test, whose content is shown under its plain name too.
pub fn shown(name: &str) -> Swapped {
    shown_for_trial(name)
}

/// What [`Objects::swap`] answered, if it was written.
#[track_caller]
pub fn written(swap: Swap) -> Version {
    match swap {
        Swap::Written(version) => version,
        Swap::Lost => panic!("nobody else was there to lose to"),
    }
}

/// What was put is read back, whole, in parts, and described.
pub async fn contents_come_back(provider: &dyn ObjectsProvider) {
    let objects = provider.open().await;
    assert_eq!(objects.get("a/b", None).await.unwrap(), None);
    assert_eq!(objects.head("a/b").await.unwrap(), None);
    objects.put("a/b", b"0123456789").await.unwrap();
    let now = objects.now().await.unwrap();
    let got = objects.get("a/b", None).await.unwrap().unwrap();
    assert_eq!((&got.bytes[..], got.head.size), (&b"0123456789"[..], 10));
    let age = now.duration_since(got.head.modified).abs();
    assert!(age.as_secs() < 600, "{now} is the store's time, and it was written just before");
    assert_eq!(objects.head("a/b").await.unwrap(), Some(got.head.clone()));
    assert_eq!(objects.head("a").await.unwrap(), None, "a folder has no content");

    for (range, part) in
        [(0..3, "012"), (3..5, "34"), (7..100, "789"), (10..12, ""), (50..60, ""), (4..4, "")]
    {
        let got = objects.get("a/b", Some(range.clone())).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&got.bytes), part, "{range:?}");
        assert_eq!(got.head.size, 10, "{range:?}");
    }
    objects.put("empty", b"").await.unwrap();
    let empty = objects.get("empty", Some(0..5)).await.unwrap().unwrap();
    assert_eq!((empty.bytes.len(), empty.head.size), (0, 0));
    assert_eq!(objects.get("missing", Some(0..5)).await.unwrap(), None);
}

/// A name is created once, and put as often as one likes.
pub async fn names_are_created_once(provider: &dyn ObjectsProvider) {
    let (one, other) = (provider.open().await, provider.open().await);
    assert_eq!(one.create("x", b"first").await.unwrap(), Created::New);
    assert_eq!(other.create("x", b"second").await.unwrap(), Created::Exists);
    let first = one.get("x", None).await.unwrap().unwrap();
    assert_eq!(first.bytes, b"first");
    other.put("x", b"third, which is longer").await.unwrap();
    let third = one.get("x", None).await.unwrap().unwrap();
    assert_eq!(third.bytes, b"third, which is longer");
    assert_ne!(first.head.version, third.head.version);
    other.remove(&["x".to_owned()], Duration::MAX).await.unwrap();
    assert_eq!(one.create("x", b"fourth").await.unwrap(), Created::New);
}

/// Many names go at once, and missing ones do no harm.
pub async fn many_are_removed(provider: &dyn ObjectsProvider) {
    let objects = provider.open().await;
    let names: Vec<String> = (0..25).map(|n| format!("some/{n}")).collect();
    for name in &names {
        objects.put(name, b"x").await.unwrap();
    }
    let mut gone: Vec<String> = names[..20].to_vec();
    gone.push("some/never".to_owned());
    objects.remove(&gone, Duration::MAX).await.unwrap();
    objects.remove(&gone, Duration::MAX).await.unwrap();
    objects.remove(&["some/0".to_owned()], Duration::MAX).await.unwrap();
    objects.remove(&[], Duration::MAX).await.unwrap();
    let left: BTreeSet<String> =
        all(&*objects, List::below("some/"), 7).await.into_iter().collect();
    assert_eq!(left, names[20..].iter().cloned().collect());
}

async fn parts(objects: &dyn Objects, what: List, limit: usize) -> Vec<Part> {
    let (mut listing, mut parts) = (objects.list(what), Vec::new());
    loop {
        let part = listing.next(limit).await.unwrap();
        let end = part.end;
        parts.push(part);
        if end {
            return parts;
        }
    }
}

async fn all(objects: &dyn Objects, what: List, limit: usize) -> Vec<String> {
    let parts = parts(objects, what, limit).await.into_iter();
    parts.flat_map(|part| part.files).map(|file| file.name).collect()
}

/// Names come in the order of their bytes, whole or after a name, in parts of any size.
pub async fn names_are_listed_in_order(provider: &dyn ObjectsProvider) {
    let objects = provider.open().await;
    let names = ["b.1/x", "b/a", "b/a.b/c", "b/a/c", "b/a0", "b/z/1", "b/z/2", "b0", "c"];
    // In another order than they come in, and not as siblings are sorted: '.' < '/' < '0'.
    for name in ["c", "b/z/2", "b/a0", "b.1/x", "b0", "b/z/1", "b/a.b/c"] {
        objects.put(name, name.as_bytes()).await.unwrap();
    }
    // In a directory, a name is a file or a folder.
    let flat = !objects.properties().blocking;
    let names: Vec<&str> =
        names.into_iter().filter(|name| flat || !matches!(*name, "b/a")).collect();
    objects.put("b/a/c", b"b/a/c").await.unwrap();
    if flat {
        objects.put("b/a", b"b/a").await.unwrap();
    }
    for limit in [1, 2, 3, 1000] {
        assert_eq!(all(&*objects, List::below(""), limit).await, names, "{limit} at a time");
    }
    let within: Vec<&str> = names.iter().copied().filter(|name| name.starts_with("b/")).collect();
    assert_eq!(all(&*objects, List::below("b/"), 2).await, within);
    let halfway: Vec<&str> = names.iter().copied().filter(|name| name.starts_with("b/a")).collect();
    assert_eq!(all(&*objects, List::below("b/a"), 2).await, halfway);
    assert_eq!(all(&*objects, List::below("nothing/"), 2).await, [""; 0]);
    for after in ["b/a.b/c", "b/a/", "b/a/c", "b/b", "b/z/1", "b/zzz"] {
        let what = List::Below { prefix: "b/".to_owned(), after: Some(after.to_owned()) };
        let later: Vec<&str> = within.iter().copied().filter(|name| *name > after).collect();
        assert_eq!(all(&*objects, what, 2).await, later, "after {after}");
    }
    let listed = parts(&*objects, List::below("b/z/"), 10).await.remove(0).files;
    for file in listed {
        assert_eq!(Some(file.head.size), Some(file.name.len() as u64));
        let head = objects.head(&file.name).await.unwrap().unwrap();
        assert_eq!(file.head.version, head.version);
        assert_eq!(file.head.modified.as_second(), head.modified.as_second());
    }
}

/// A folder shows its names and the folders in it, and a listing that is kept for a while goes on.
pub async fn folders_are_listed(provider: &dyn ObjectsProvider) {
    let objects = provider.open().await;
    for name in ["q/1", "q/2", "q/a/x", "q/a/y", "q/b/c/d", "r"] {
        objects.put(name, b"x").await.unwrap();
    }
    for limit in [1, 2, 1000] {
        let all = parts(&*objects, List::folder("q/"), limit).await;
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for part in all {
            files.extend(part.files.into_iter().map(|file| file.name));
            folders.extend(part.folders);
        }
        assert_eq!((files, folders), (strings(["q/1", "q/2"]), strings(["q/a/", "q/b/"])));
    }
    let root = parts(&*objects, List::folder(""), 1000).await.remove(0);
    assert_eq!(root.folders, ["q/"]);
    assert_eq!(root.files.into_iter().map(|file| file.name).collect::<Vec<_>>(), ["r"]);

    let mut kept = objects.list(List::below("q/"));
    let first = kept.next(2).await.unwrap();
    let kept = tokio::spawn(async move { kept.next(1000).await }).await.unwrap().unwrap();
    let seen = first.files.into_iter().chain(kept.files).map(|file| file.name);
    assert_eq!(seen.collect::<Vec<_>>(), ["q/1", "q/2", "q/a/x", "q/a/y", "q/b/c/d"]);
}

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// A content is swapped only for the version that it has.
pub async fn swaps_keep_their_condition(provider: &dyn ObjectsProvider) {
    let (one, other) = (provider.open().await, provider.open().await);
    let name = trial("shards/5e");
    assert_eq!(one.load(&name).await.unwrap(), None);
    let elsewhere = trial("shards/of-another-name");
    let elsewhere = written(one.swap(&elsewhere, None, b"elsewhere").await.unwrap());
    assert_eq!(one.swap(&name, Some(&elsewhere), b"never").await.unwrap(), Swap::Lost);
    assert_eq!(one.load(&name).await.unwrap(), None);

    let first = written(one.swap(&name, None, b"first").await.unwrap());
    assert_eq!(other.swap(&name, None, b"another first").await.unwrap(), Swap::Lost);
    let got = other.load(&name).await.unwrap().unwrap();
    assert_eq!((&got.bytes[..], &got.head.version), (&b"first"[..], &first));

    let second = written(other.swap(&name, Some(&first), b"second").await.unwrap());
    assert_eq!(one.swap(&name, Some(&first), b"late").await.unwrap(), Swap::Lost);
    assert_eq!(one.swap(&name, None, b"late too").await.unwrap(), Swap::Lost);
    assert_eq!(one.load(&name).await.unwrap().unwrap().bytes, b"second");
    // A version that a write answered will do for the next one.
    let third = written(other.swap(&name, Some(&second), b"third").await.unwrap());
    assert_ne!(first, third);
    let got = one.load(&name).await.unwrap().unwrap();
    assert_eq!((&got.bytes[..], got.head.size, got.head.version), (&b"third"[..], 5, third));
    assert_eq!(one.load(&trial("shards/5f")).await.unwrap(), None, "names do not share versions");
}

/// Parts of a content are read with the version that they are of.
pub async fn parts_are_of_one_version(provider: &dyn ObjectsProvider) {
    let (one, other) = (provider.open().await, provider.open().await);
    let name = trial("parts");
    assert_eq!(one.load_part(&name, 0..5).await.unwrap(), None);
    let first = written(one.swap(&name, None, b"0123456789").await.unwrap());
    for (range, part) in [(0..3, "012"), (7..100, "789"), (10..12, ""), (4..4, ""), (0..0, "")] {
        let got = other.load_part(&name, range.clone()).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&got.bytes), part, "{range:?}");
        assert_eq!((got.head.size, &got.head.version), (10, &first), "{range:?}");
    }
    // As long as the marks that a folder keeps.
    let second = written(other.swap(&name, Some(&first), b"01234567890").await.unwrap());
    let got = one.load_part(&name, 9..20).await.unwrap().unwrap();
    assert_eq!((&got.bytes[..], got.head.version), (&b"90"[..], second));
}

/// What is shown under its plain name is there, after each swap.
pub async fn a_content_is_shown(provider: &dyn ObjectsProvider) {
    let (one, other) = (provider.open().await, provider.open().await);
    let name = shown("shards/5e.usv");
    let mut version = None;
    for n in 0..70 {
        let (objects, text) = (if n % 2 == 0 { &one } else { &other }, n.to_string());
        let swapped = objects.swap(&name, version.as_ref(), text.as_bytes()).await.unwrap();
        version = Some(written(swapped));
        let plain = one.get("shards/5e.usv", None).await.unwrap().unwrap();
        assert_eq!(plain.bytes, text.as_bytes());
        assert_eq!(other.load(&name).await.unwrap().unwrap().bytes, text.as_bytes());
    }
    assert_eq!(all(&*one, List::below("aside/"), 10).await, [""; 0], "nothing was set aside");
}

/// Long histories stay as quick to read as short ones, and nothing of them is read back.
pub async fn many_versions_follow_each_other(provider: &dyn ObjectsProvider) {
    let (one, other) = (provider.open().await, provider.open().await);
    let name = trial("long");
    let mut version = written(one.swap(&name, None, b"0").await.unwrap());
    for n in 1..=150 {
        let text = n.to_string();
        let stale = version.clone();
        version = written(one.swap(&name, Some(&version), text.as_bytes()).await.unwrap());
        if n % 50 == 0 {
            assert_eq!(other.load(&name).await.unwrap().unwrap().bytes, text.as_bytes());
            assert_eq!(other.swap(&name, Some(&stale), b"stale").await.unwrap(), Swap::Lost);
        }
    }
    assert_eq!(other.load(&name).await.unwrap().unwrap().bytes, b"150");
}

/// Many act at once, each with a handle of its own: as threads where calls block.
async fn together<R, F>(
    provider: &dyn ObjectsProvider,
    count: usize,
    act: impl Fn(Arc<dyn Objects>, usize) -> F + Send + Sync + Clone + 'static,
) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let gate = Arc::new(tokio::sync::Barrier::new(count));
    let mut racers = Vec::new();
    for number in 0..count {
        let (objects, act, gate) = (provider.open().await, act.clone(), Arc::clone(&gate));
        let blocking = objects.properties().blocking;
        let race = async move {
            gate.wait().await;
            act(objects, number).await
        };
        racers.push(match blocking {
            true => {
                let runtime = tokio::runtime::Handle::current();
                tokio::task::spawn_blocking(move || runtime.block_on(race))
            }
            false => tokio::spawn(race),
        });
    }
    let mut answers = Vec::with_capacity(count);
    for racer in racers {
        answers.push(racer.await.expect("a racer that ends"));
    }
    answers
}

/// The winner of each name. Exactly one racer has won it.
#[track_caller]
fn winners(won: &[Vec<bool>]) -> Vec<usize> {
    let names = won.iter().map(Vec::len).max().unwrap_or(0);
    let winners = (0..names).map(|name| {
        let all: Vec<usize> = (0..won.len()).filter(|racer| won[*racer][name]).collect();
        assert_eq!(all.len(), 1, "of name {name}: {all:?}");
        all[0]
    });
    winners.collect()
}

/// Everybody creates the same names: each name has one winner, and holds what that one wrote.
pub async fn one_creator_wins(provider: &dyn ObjectsProvider) {
    const RACERS: usize = 8;
    const NAMES: usize = 10;
    let won = together(provider, RACERS, async |objects, racer| {
        let mut won = Vec::new();
        for n in 0..NAMES {
            let content = racer.to_string();
            let created = objects.create(&format!("raced/{n}"), content.as_bytes()).await.unwrap();
            won.push(created == Created::New);
        }
        won
    });
    let (won, objects) = (won.await, provider.open().await);
    for (n, winner) in winners(&won).into_iter().enumerate() {
        let there = objects.get(&format!("raced/{n}"), None).await.unwrap().unwrap();
        assert_eq!(there.bytes, winner.to_string().as_bytes());
    }
}

/// Everybody begins the same names by a swap: each has one winner.
pub async fn one_first_swap_wins(provider: &dyn ObjectsProvider) {
    const RACERS: usize = 8;
    const NAMES: usize = 10;
    let won = together(provider, RACERS, async |objects, racer| {
        let mut won = Vec::new();
        for n in 0..NAMES {
            let (name, content) = (trial(&format!("born/{n}")), racer.to_string());
            let swap = objects.swap(&name, None, content.as_bytes()).await.unwrap();
            won.push(matches!(swap, Swap::Written(_)));
        }
        won
    });
    let (won, objects) = (won.await, provider.open().await);
    for (n, winner) in winners(&won).into_iter().enumerate() {
        let there = objects.load(&trial(&format!("born/{n}"))).await.unwrap().unwrap();
        assert_eq!(there.bytes, winner.to_string().as_bytes());
    }
}

/// Everybody counts in one content by swaps: no count is lost, none is made twice, and every version that was
/// told to a winner was told to nobody else.
pub async fn everybody_counts(provider: &dyn ObjectsProvider) {
    const RACERS: usize = 8;
    const EACH: u64 = 12;
    let objects = provider.open().await;
    written(objects.swap(&trial("counter"), None, b"0 nobody").await.unwrap());
    let told = together(provider, RACERS, async |objects, racer| {
        let (name, env, mut told) = (trial("counter"), Env::system(), Vec::new());
        while (told.len() as u64) < EACH {
            let got = objects.load(&name).await.unwrap().unwrap();
            let text = String::from_utf8(got.bytes).unwrap();
            let count: u64 = text.split_once(' ').unwrap().0.parse().unwrap();
            let next = format!("{} {racer} {}", count + 1, env.nonce());
            match objects.swap(&name, Some(&got.head.version), next.as_bytes()).await {
                Ok(Swap::Written(_)) => told.push(count + 1),
                Ok(Swap::Lost) => {}
                Err(error) => panic!("{error}"),
            }
        }
        told
    });
    let mut told: Vec<u64> = told.await.into_iter().flatten().collect();
    told.sort_unstable();
    let expected: Vec<u64> = (1..=RACERS as u64 * EACH).collect();
    assert_eq!(told, expected, "every count was made once");
    let last = objects.load(&trial("counter")).await.unwrap().unwrap();
    let last = String::from_utf8(last.bytes).unwrap();
    assert!(last.starts_with(&format!("{} ", RACERS as u64 * EACH)), "{last}");
}

/// A version that no store can have made is an error or a loss, never a write.
pub async fn odd_versions_are_refused(provider: &dyn ObjectsProvider) {
    let objects = provider.open().await;
    let name = trial("odd");
    written(objects.swap(&name, None, b"there").await.unwrap());
    for tag in ["", "*", "0.0", "-1", "\"\"", "99.99", "18446744073709551615.1"] {
        if let Ok(swap) = objects.swap(&name, Some(&Version::new(tag)), b"wrong").await {
            assert_eq!(swap, Swap::Lost, "{tag}");
        }
        assert_eq!(objects.load(&name).await.unwrap().unwrap().bytes, b"there", "{tag}");
    }
}

/// Makes a test of every case, each on a fresh store.
#[macro_export]
macro_rules! objects_tests {
    ($make:expr) => {
        $crate::objects_tests!($make;
            contents_come_back, names_are_created_once, many_are_removed,
            names_are_listed_in_order, folders_are_listed, swaps_keep_their_condition,
            parts_are_of_one_version, a_content_is_shown,
            many_versions_follow_each_other, one_creator_wins, one_first_swap_wins,
            everybody_counts, odd_versions_are_refused
        );
    };
    ($make:expr; $($case:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                use $crate::conformance::objects::MadeObjects;
                if let Some(provider) = $make().await.made() {
                    $crate::conformance::objects::$case(&provider).await;
                }
            }
        )+
    };
}
