//! Every lie as a client meets it.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real requests take real time")]

mod common;

use std::time::{Duration, SystemTime};

use common::{chain, client, create, honest, path, put, raw, update};
use dfq_s3_server::Lies;
use futures::TryStreamExt;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use s3s::dto::{Timestamp, TimestampFormat};

#[tokio::test]
async fn quoted_etags_are_refused_and_unquoted_ones_taken() {
    let server = honest().await;
    let client = client(&server);
    let etag = put(&client, "k", "one").await.unwrap().e_tag.unwrap();
    server.set_lies(Lies { refuse_quoted_etags: true, ..Lies::default() });
    let quoted = update(&client, "k", "two", &etag).await;
    assert!(matches!(quoted, Err(Error::Precondition { .. })), "{quoted:?}");
    update(&client, "k", "two", etag.trim_matches('"')).await.unwrap();
    create(&client, "k", "three").await.unwrap_err();
}

#[tokio::test]
async fn if_match_is_ignored_but_not_if_none_match() {
    let server = honest().await;
    let client = client(&server);
    server.set_lies(Lies { ignore_if_match: true, ..Lies::default() });
    put(&client, "k", "one").await.unwrap();
    update(&client, "k", "two", "\"0\"").await.unwrap();
    create(&client, "k", "three").await.unwrap_err();
    assert_eq!(server.objects()["k"], "two");
}

#[tokio::test]
async fn if_match_is_ignored_on_delete_alone() {
    let server = honest().await;
    let client = client(&server);
    server.set_lies(Lies { ignore_if_match_on_delete: true, ..Lies::default() });
    put(&client, "k", "one").await.unwrap();
    update(&client, "k", "two", "\"0\"").await.unwrap_err();
    let deleted = raw(&server, "DELETE", "/dfq-test/k", &[("if-match", "\"0\"")]).await;
    assert_eq!((deleted.status, server.objects().len()), (204, 0));
}

#[tokio::test]
async fn conditional_puts_are_not_implemented() {
    let server = honest().await;
    let client = client(&server);
    server.set_lies(Lies { refuse_conditional_put: true, ..Lies::default() });
    let error = create(&client, "k", "x").await.unwrap_err();
    assert!(chain(&error).contains("NotImplemented"), "{}", chain(&error));
    assert_eq!(server.meter().counts().status(501), 1);
    put(&client, "k", "x").await.unwrap();
}

#[tokio::test]
async fn listings_have_whole_seconds() {
    let server = honest().await;
    let client = client(&server);
    for n in 0..5 {
        put(&client, &format!("k{n}"), "x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let millis = || async {
        let all: Vec<_> = client.list(None).try_collect().await.unwrap();
        all.iter().map(|o| o.last_modified.timestamp_subsec_millis()).collect::<Vec<_>>()
    };
    assert!(millis().await.iter().any(|millis| *millis > 0));
    server.set_lies(Lies { whole_seconds: true, ..Lies::default() });
    assert_eq!(millis().await, [0; 5]);
}

#[tokio::test]
async fn the_clock_is_wrong_everywhere_alike() {
    for hours in [-5_i64, 3] {
        let server = honest().await;
        let client = client(&server);
        server.set_lies(Lies { clock_offset_ms: hours * 3_600_000, ..Lies::default() });
        put(&client, "k", "x").await.unwrap();
        let modified = client.head(&path("k")).await.unwrap().last_modified;
        let true_now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let ahead = modified.timestamp() - i64::try_from(true_now).unwrap();
        assert!((ahead - hours * 3600).abs() <= 5, "{ahead}");
        let listed = client.list(None).try_next().await.unwrap().unwrap();
        assert_eq!(listed.last_modified.timestamp(), modified.timestamp());
        let answer = raw(&server, "HEAD", "/dfq-test/k", &[]).await;
        let date = answer.headers["date"].to_str().unwrap();
        let date = Timestamp::parse(TimestampFormat::HttpDate, date).unwrap();
        let offset = Duration::from_secs(hours.unsigned_abs() * 3600);
        let now = SystemTime::now();
        let wrong_now = if hours < 0 { now - offset } else { now + offset };
        let slack = Duration::from_secs(5);
        let around = Timestamp::from(wrong_now - slack)..=Timestamp::from(wrong_now + slack);
        assert!(around.contains(&date), "{date:?}");
    }
}
