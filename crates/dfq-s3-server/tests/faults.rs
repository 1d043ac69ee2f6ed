//! Every fault as a client meets it, and whether the request was executed.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real requests take real time")]

mod common;

use std::time::{Duration, Instant};

use common::{builder, chain, client, create, get, honest, path, put, update};
use dfq_s3_server::{Fault, Faults, Server};
use futures::TryStreamExt;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt};

/// The status that the server gave last; nothing if it hung up.
fn last_status(server: &Server) -> Option<u16> {
    server.meter().recent().last().unwrap().status
}

/// One create under one fault: what the client was told, and whether the object is there.
async fn create_under(fault: Fault) -> (String, Option<u16>, bool) {
    let server = honest().await;
    server.on(move |request| (request.op == "PutObject").then_some(fault));
    let error = create(&client(&server), "k", "x").await.unwrap_err();
    assert_eq!(server.meter().counts().fault(fault.name()), 1);
    (chain(&error), last_status(&server), server.objects().contains_key("k"))
}

#[tokio::test]
async fn a_lost_request_is_not_executed() {
    let (error, status, executed) = create_under(Fault::LoseRequest).await;
    assert_eq!((status, executed), (None, false));
    assert!(error.contains("error sending request"), "{error}");
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_is_executed() {
    let (error, status, executed) = create_under(Fault::LoseAnswer).await;
    assert_eq!((status, executed), (None, true));
    assert!(error.contains("error sending request"), "{error}");
}

#[tokio::test]
async fn conflicts() {
    for (fault, wanted) in [(Fault::Conflict, false), (Fault::ConflictExecuted, true)] {
        let (error, status, executed) = create_under(fault).await;
        assert_eq!((status, executed), (Some(409), wanted));
        assert!(error.contains("ConditionalRequestConflict"), "{error}");
    }
}

#[tokio::test]
async fn object_store_takes_a_conflict_for_a_loss() {
    // Worth a test of its own: only the status deep in the error tells 409 from 412.
    let server = honest().await;
    let client = client(&server);
    server.on(|request| request.is_conditional_put().then_some(Fault::Conflict));
    let created = create(&client, "k", "x").await;
    assert!(matches!(created, Err(Error::AlreadyExists { .. })), "{created:?}");
    let updated = update(&client, "k", "x", "\"0\"").await;
    assert!(matches!(updated, Err(Error::AlreadyExists { .. })), "{updated:?}");
    put(&client, "k", "x").await.unwrap();
}

#[tokio::test]
async fn server_errors() {
    let cases = [
        (Fault::PreconditionExecuted, 412, "PreconditionFailed", true),
        (Fault::Error, 500, "InternalError", false),
        (Fault::ErrorExecuted, 500, "InternalError", true),
        (Fault::SlowDown, 503, "SlowDown", false),
        (Fault::SlowDownExecuted, 503, "SlowDown", true),
    ];
    for (fault, code, name, wanted) in cases {
        let (error, status, executed) = create_under(fault).await;
        assert_eq!((status, executed), (Some(code), wanted));
        assert!(error.contains(name), "{error}");
    }
}

#[tokio::test]
async fn a_body_cut_short_is_an_error_after_half_of_it() {
    let server = honest().await;
    let client = client(&server);
    let body = "0123456789".repeat(1000);
    put(&client, "k", &body).await.unwrap();
    server.on(|request| (request.op == "GetObject").then_some(Fault::CutBody));
    let answer = client.get(&path("k")).await.unwrap();
    assert_eq!(answer.meta.size, 10_000, "the whole body is promised");
    let mut stream = answer.into_stream();
    let mut read = 0;
    let error = loop {
        match stream.try_next().await {
            Ok(Some(bytes)) => read += bytes.len(),
            Ok(None) => panic!("it ended as if it were whole"),
            Err(error) => break error,
        }
    };
    assert_eq!(read, 5000, "{}", chain(&error));
    server.off();
    assert_eq!(get(&client, "k").await.unwrap(), body);
}

#[tokio::test]
async fn a_delayed_request_takes_effect_after_its_client_has_gone() {
    let server = honest().await;
    let options = ClientOptions::new().with_allow_http(true).with_no_system_certificates(true);
    let options = options.with_timeout(Duration::from_millis(1500));
    let hasty = builder(&server).with_client_options(options).build().unwrap();
    let delay = Duration::from_secs(8);
    server.on(move |request| (request.op == "PutObject").then_some(Fault::Delay(delay)));
    assert!(create(&hasty, "k", "late").await.is_err());
    assert!(server.objects().is_empty());
    let started = Instant::now();
    while server.objects().is_empty() && started.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.objects()["k"], "late");
}

#[tokio::test]
async fn a_delayed_answer_has_already_been_executed() {
    let server = honest().await;
    let client = client(&server);
    let delay = Duration::from_secs(5);
    server.on(move |_| Some(Fault::DelayAnswer(delay)));
    let executed = async {
        while !server.objects().contains_key("k") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (started, written) = (Instant::now(), create(&client, "k", "x"));
    tokio::pin!(written);
    tokio::select! {
        biased;
        () = executed => {}
        answer = &mut written => panic!("answered before it was seen: {answer:?}"),
    }
    written.await.unwrap();
    assert!(started.elapsed() >= delay);
}

#[tokio::test]
async fn every_request_takes_its_latency() {
    let server = honest().await;
    let client = client(&server);
    let latency = Duration::from_millis(40);
    server.set_faults(Faults { latency, ..Faults::default() });
    let started = Instant::now();
    for _ in 0..5 {
        put(&client, "k", "x").await.unwrap();
    }
    assert!(started.elapsed() >= 5 * latency, "{:?}", started.elapsed());
}

async fn listed(client: &impl ObjectStore) -> Vec<String> {
    client.list(None).map_ok(|object| object.location.to_string()).try_collect().await.unwrap()
}

#[tokio::test]
async fn a_listing_that_is_behind_shows_what_was() {
    let server = honest().await;
    let client = client(&server);
    put(&client, "old", "x").await.unwrap();
    put(&client, "gone", "x").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let changed = Instant::now();
    put(&client, "new", "x").await.unwrap();
    client.delete(&path("gone")).await.unwrap();
    server.on(move |_| Some(Fault::StaleList(changed.elapsed() + Duration::from_millis(500))));
    assert_eq!(listed(&client).await, ["gone", "old"]);
    get(&client, "new").await.unwrap();
    server.off();
    assert_eq!(listed(&client).await, ["new", "old"]);

    // By chance: somewhere within the lag, and right once the lag has passed.
    server.set_faults(Faults { list_lag: Duration::from_millis(200), ..Faults::default() });
    let mut views = Vec::new();
    for n in 0..40 {
        put(&client, &format!("n{n:02}"), "x").await.unwrap();
        views.push(listed(&client).await.len());
    }
    assert!(views.iter().enumerate().any(|(n, seen)| *seen < n + 3), "{views:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(listed(&client).await.len(), 42);
}

#[tokio::test]
async fn a_script_faults_exactly_the_third_put_of_a_key() {
    let server = honest().await;
    let client = client(&server);
    let third = |key: &str, nth| key == "a" && nth == 3;
    server.on(move |r| (r.op == "PutObject" && third(&r.key, r.nth)).then_some(Fault::SlowDown));
    let mut refused = Vec::new();
    for n in 1..=5 {
        put(&client, "b", "x").await.unwrap();
        get(&client, "b").await.unwrap();
        if put(&client, "a", "x").await.is_err() {
            refused.push(n);
        }
    }
    assert_eq!(refused, [3]);
}

/// A fixed sequence of requests: what became of each.
async fn sequence(faults: &Faults) -> Vec<(Option<Fault>, Option<u16>)> {
    let server = honest().await;
    server.set_faults(faults.clone());
    let client = client(&server);
    for n in 0..40 {
        let _ = create(&client, &format!("k{n}"), "x").await;
        let _ = get(&client, &format!("k{}", n / 2)).await;
        let _ = listed_or_not(&client).await;
    }
    server.meter().recent().into_iter().map(|record| (record.fault, record.status)).collect()
}

async fn listed_or_not(client: &impl ObjectStore) -> Result<usize, Error> {
    Ok(client.list(None).try_collect::<Vec<_>>().await?.len())
}

#[tokio::test]
async fn the_same_seed_and_requests_meet_the_same_faults() {
    let faults = Faults {
        seed: 42,
        lose_request: 0.05,
        lose_answer: 0.05,
        conflict: 0.1,
        conflict_executed: 0.1,
        error: 0.05,
        error_executed: 0.05,
        slow_down: 0.05,
        cut_body: 0.2,
        ..Faults::default()
    };
    let first = sequence(&faults).await;
    assert_eq!(first.len(), 120, "the client retried, or a request was not counted");
    let kinds = |seen: &[(Option<Fault>, _)]| {
        let mut names: Vec<_> =
            seen.iter().filter_map(|(fault, _)| *fault).map(Fault::name).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    assert_eq!(kinds(&first), 8, "not every kind of fault came up: {first:?}");
    assert_eq!(first, sequence(&faults).await);
    assert_ne!(first, sequence(&Faults { seed: 43, ..faults }).await);
}
