//! No bucket, no permission, wrong keys: one sentence that says which, and never a secret in it.

use dfq::options::S3Options;
use dfq::queue::Detail;
use dfq::{Error, ErrorKind, Pushed};
use dfq_s3_server::{Credential, Options, Rules};

use crate::world::*;

#[track_caller]
fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(words.iter().all(|word| text.contains(word)), "not {words:?}: {error}");
    for secret in ["test-secret-key", "AWS4-HMAC", "Signature="] {
        assert!(!text.contains(secret), "{error}");
    }
}

#[tokio::test]
async fn there_is_no_bucket() {
    let world = World::new().await;
    let error = open("no-such-bucket", world.options(), LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::NotFound, &["no such bucket", "s3://no-such-bucket"]);
}

#[tokio::test]
async fn there_is_no_server() {
    let world = World::new().await;
    let options = world.options();
    world.server.stop().await;
    let error = open("dfq-test", options, LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Unavailable, &["s3://dfq-test"]);
}

fn without(world: &World, action: &str) {
    world.server.set_rules(Rules::default().deny(action));
}

#[tokio::test]
async fn who_may_not_put() {
    let world = World::new().await;
    without(&world, "s3:PutObject");
    let error = world.open(LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["s3:PutObject"]);
    world.server.set_rules(Rules::default());
    let queue = world.with_task(LONG).await;
    without(&world, "s3:PutObject");
    let other = dfq::NewTask::from_json(r#"{"id": "b"}"#).unwrap();
    let error = queue.push(vec![other]).await.remove(0).unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:PutObject"]);
    let error = poll(&*queue, 1).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:PutObject"]);
    world.server.set_rules(Rules::default());
    let delivery = claim(&*queue).await;
    without(&world, "s3:PutObject");
    let error = ack(&*queue, &delivery.receipt).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:PutObject"]);
    assert_eq!((world.keys("completed/").len(), world.keys(TASK).len()), (0, 1));
    world.server.set_rules(Rules::default());
    ack(&*queue, &delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn who_may_not_get() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    without(&world, "s3:GetObject");
    let error = world.open(LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["s3:GetObject"]);
    let error = poll(&*queue, 1).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:GetObject"]);
    assert_eq!((world.keys("failed/").len(), world.keys(TASK).len()), (0, 1));
    world.server.set_rules(Rules::default());
    let delivery = world.claim_in_time(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
}

/// What is done is done, also where nobody may clean up after it.
#[tokio::test]
async fn who_may_not_delete() {
    let world = World::new().await;
    let (queue, other) = (world.with_task(LONG).await, world.worker().await);
    let delivery = claim(&*queue).await;
    without(&world, "s3:DeleteObject");
    let (log, _guard) = crate::credentials::Log::start();
    ack(&*queue, &delivery.receipt).await.unwrap();
    assert_eq!(world.keys("completed/"), [COMPLETED]);
    let mut said = String::new();
    for _ in 0..8 {
        match poll(&*other, 1).await {
            Ok(got) => assert!(got.is_empty(), "handed out finished"),
            Err(error) => said.push_str(&error.to_string()),
        }
        match push(&*other).await {
            Ok(pushed) => assert!(matches!(pushed, Pushed::Finished(..)), "{pushed:?}"),
            Err(error) => assert_says(&error, ErrorKind::Denied, &["s3:DeleteObject"]),
        }
        pause(500).await;
    }
    said.push_str(&log.text());
    let said: Vec<&str> = said.lines().filter(|line| line.contains("s3:DeleteObject")).collect();
    assert!(!said.is_empty(), "somebody must say what is missing");
    assert_eq!(world.keys("pending/"), [LEASE, TASK]);
    world.server.set_rules(Rules::default());
    world.tidy(&*world.worker().await).await;
}

#[tokio::test]
async fn who_may_not_list() {
    let world = World::new().await;
    let queue = world.with_task(LONG).await;
    without(&world, "s3:ListBucket");
    let error = poll(&*queue, 1).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:ListBucket"]);
    let error = queue.stats(Detail::Counts).await.unwrap_err();
    assert_says(&error, ErrorKind::Denied, &["s3:ListBucket"]);
    // Then what is missing looks forbidden.
    let error = open("dfq-test", world.options(), LONG).await.map(|_| ());
    assert!(error.is_ok(), "what is there can be read: {error:?}");
    world.server.set_rules(Rules::default());
    let delivery = claim(&*queue).await;
    ack(&*queue, &delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn who_may_not_list_and_looks_for_what_is_not_there() {
    let world = World::new().await;
    without(&world, "s3:ListBucket");
    let error = world.open(LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["s3:ListBucket"]);
}

#[tokio::test]
async fn wrong_credentials() {
    let world = World::new().await;
    let mut options = world.options();
    options.credentials = Some(("test-access-key".to_owned(), "some-other-secret".to_owned()));
    let error = open("dfq-test", options.clone(), LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["credentials are wrong", "s3://dfq-test"]);
    assert!(!error.to_string().contains("some-other-secret"), "{error}");
    options.credentials = Some(("nobody".to_owned(), "some-other-secret".to_owned()));
    let error = open("dfq-test", options, LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["credentials are wrong"]);
    world.server.expire_credentials();
    let error = world.open(LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["expired"]);
}

/// A session's key and secret are not enough without its token.
#[tokio::test]
async fn a_token_is_missing() {
    let credential =
        Credential::new("test-access-key", "test-secret-key").with_session_token("t0ken");
    let options = Options { credential, ..Options::default() };
    let world = World::with(options).await;
    let error = world.open(LONG).await.err().unwrap();
    assert_says(&error, ErrorKind::Denied, &["credentials are wrong"]);
}

/// A server that gives everybody the same answer.
fn answering(answer: &'static str) -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    endpoint
}

/// What the matter is, and what to do about it.
#[tokio::test]
async fn wrong_regions_clocks_and_endpoints_are_told_as_what_they_are() {
    let region = "HTTP/1.1 301 Moved Permanently\r\nx-amz-bucket-region: eu-west-3\r\n\
        content-length: 0\r\nconnection: close\r\n\r\n";
    let skewed = "HTTP/1.1 403 Forbidden\r\ncontent-length: 47\r\nconnection: close\r\n\r\n\
        <Error><Code>RequestTimeTooSkewed</Code></Error>";
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let nowhere = nobody.clone();
    for (endpoint, kind, words) in [
        (answering(region), ErrorKind::Invalid, ["eu-west-3", "AWS_REGION"]),
        (answering(skewed), ErrorKind::Denied, ["clock", "wrong"]),
        (nobody, ErrorKind::Unavailable, ["no answer from", nowhere.as_str()]),
    ] {
        let options = S3Options {
            endpoint: Some(endpoint),
            region: Some("us-east-1".to_owned()),
            credentials: Some(("key".to_owned(), "secret".to_owned())),
            ..S3Options::default()
        };
        let error = open("dfq-test", options, LONG).await.err().unwrap();
        assert_says(&error, kind, &words);
    }
}
