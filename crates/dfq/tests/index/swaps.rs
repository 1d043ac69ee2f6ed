//! An index on servers whose `If-Match` is broken.

use dfq::ErrorKind;
use dfq::index::{CompactOptions, Index, Record};
use dfq_s3_server::{Lies, Server};
use serde_json::json;

use super::cases::{compact, put, record};
use super::places::Place;

fn server(place: &Place) -> &Server {
    match place {
        Place::Bucket(server) => server,
        _ => unreachable!("it is a bucket"),
    }
}

async fn refused(index: &Index) -> String {
    let all = CompactOptions { all: true, ..CompactOptions::default() };
    let error = index.compact(all).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    error.to_string()
}

/// Before the first write: what is there stays as it is, and can be looked up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_conditions_are_broken_nothing_is_compacted() {
    let lies = [
        (Lies { ignore_if_match: true, ..Lies::default() }, "ignores If-Match"),
        (Lies { ignore_conditions: true, ..Lies::default() }, "ignores If-Match"),
        (Lies { refuse_etags: true, ..Lies::default() }, "no condition that it is unchanged"),
    ];
    for (lies, why) in lies {
        let place = Place::bucket().await;
        // One handle, whose stamps have an order: the server's clock shows whole seconds to another.
        let first = place.index().await;
        put(&first, vec![record("a", 1), record("b", 2)]).await;
        compact(&first).await;
        put(&first, vec![record("a", 3)]).await;
        server(&place).set_lies(lies.clone());
        let (index, before) = (place.index().await, place.names().await);
        let shards = place.read("shards/ca.usv").await;
        let said = refused(&index).await;
        assert!(said.starts_with("this index cannot be compacted here: "), "{said}");
        assert!(said.contains(why), "{lies:?}: {said}");
        assert_eq!(place.names().await, before, "{lies:?}");
        assert_eq!(place.read("shards/ca.usv").await, shards, "{lies:?}");
        // What needs no condition goes on. A new column does: two who add one at once would undo each other's.
        put(&index, vec![record("c", 4)]).await;
        assert_eq!(index.get("a").await.unwrap().unwrap().fields["value"], json!(3));
        let wider = Record::new("d").unwrap().with("other", 5);
        let error = index.put(vec![wider.clone()]).await.remove(0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        // Once the server is mended.
        server(&place).set_lies(Lies::default());
        put(&index, vec![wider]).await;
        compact(&index).await;
        assert_eq!(index.get("a").await.unwrap().unwrap().fields["value"], json!(3));
        assert_eq!(index.get("d").await.unwrap().unwrap().fields["other"], json!(5));
    }
}

/// As Ceph 16 has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etags_without_quotes_are_found_out() {
    let place = Place::bucket().await;
    server(&place).set_lies(Lies { refuse_quoted_etags: true, ..Lies::default() });
    let index = place.index().await;
    for round in 1..4 {
        put(&index, vec![record("a", round)]).await;
        assert_eq!(compact(&index).await.shards, 1);
        assert_eq!(index.get("a").await.unwrap().unwrap().fields["value"], json!(round));
    }
}

/// It is asked once, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_of_a_server_is_not_asked_again() {
    let place = Place::bucket().await;
    let index = place.index().await;
    put(&index, vec![record("a", 0)]).await;
    let trials =
        || server(&place).objects().into_keys().filter(|key| key.contains("tmp/swap-")).count();
    let mut written = Vec::new();
    for round in 1..3 {
        put(&index, vec![record("a", round)]).await;
        let before = server(&place).meter().counts().count("PutObject");
        compact(&index).await;
        written.push(server(&place).meter().counts().count("PutObject") - before);
        assert_eq!(trials(), 0);
    }
    // A lock, a shard, what is said of it.
    assert!(written.iter().all(|number| *number <= 5), "{written:?}");
}
