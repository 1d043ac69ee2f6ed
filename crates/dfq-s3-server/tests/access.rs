//! Signatures, sessions that end, and permissions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{builder, chain, client, create, get, honest, path, put};
use dfq_s3_server::{Credential, Rules};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{Error, ObjectStore, ObjectStoreExt};

#[tokio::test]
async fn signatures_are_checked() {
    let server = honest().await;
    put(&client(&server), "k", "x").await.unwrap();
    let wrong_secret = builder(&server).with_secret_access_key("wrong").build().unwrap();
    let error = get(&wrong_secret, "k").await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    assert!(chain(&error).contains("SignatureDoesNotMatch"), "{}", chain(&error));
    put(&wrong_secret, "k", "y").await.unwrap_err();
    assert_eq!(server.objects()["k"], "x");

    let stranger = builder(&server).with_access_key_id("stranger").build().unwrap();
    let error = get(&stranger, "k").await.unwrap_err();
    assert!(chain(&error).contains("InvalidAccessKeyId"), "{}", chain(&error));
    let unsigned = builder(&server).with_skip_signature(true).build().unwrap();
    assert!(matches!(get(&unsigned, "k").await, Err(Error::PermissionDenied { .. })));
    assert_eq!(server.meter().counts().status(403), 4);
}

#[tokio::test]
async fn sessions_have_a_token_and_an_end() {
    let server = honest().await;
    let session = Credential::new("session", "secret").with_session_token("token-1");
    server.set_credentials(vec![session]);
    let old = client(&server);
    assert!(chain(&put(&old, "k", "x").await.unwrap_err()).contains("InvalidAccessKeyId"));

    let with_token = |token: &str| {
        let builder = builder(&server).with_access_key_id("session");
        builder.with_secret_access_key("secret").with_token(token).build().unwrap()
    };
    let right = with_token("token-1");
    put(&right, "k", "x").await.unwrap();
    let error = put(&with_token("token-2"), "k", "y").await.unwrap_err();
    assert!(chain(&error).contains("InvalidToken"), "{}", chain(&error));

    server.expire_credentials();
    let error = put(&right, "k", "y").await.unwrap_err();
    assert!(chain(&error).contains("ExpiredToken"), "{}", chain(&error));
    assert_eq!(server.meter().recent().last().unwrap().status, Some(400));

    let renewed = Credential::new("session", "secret").with_session_token("token-2");
    server.set_credentials(vec![renewed]);
    put(&with_token("token-2"), "k", "z").await.unwrap();
    assert_eq!(server.objects()["k"], "z");
}

#[tokio::test]
async fn actions_are_denied_one_by_one() {
    let server = honest().await;
    let client = client(&server);
    put(&client, "k", "x").await.unwrap();

    server.set_rules(Rules::default().deny("s3:PutObject"));
    assert!(matches!(create(&client, "n", "x").await, Err(Error::PermissionDenied { .. })));
    assert!(client.copy(&path("k"), &path("n")).await.is_err());
    get(&client, "k").await.unwrap();

    server.set_rules(Rules::default().deny("s3:GetObject"));
    let error = get(&client, "k").await.unwrap_err();
    assert!(chain(&error).contains("AccessDenied"), "{}", chain(&error));
    assert!(client.head(&path("k")).await.is_err());
    put(&client, "k", "y").await.unwrap();

    server.set_rules(Rules::default().deny_under("s3:DeleteObject", "k"));
    let keys = stream::iter(["k", "other"].map(|key| Ok(path(key)))).boxed();
    let results: Vec<_> = client.delete_stream(keys).collect().await;
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "{results:?}");
    assert_eq!(server.meter().recent().last().unwrap().status, Some(200), "told key by key");
    let singly = builder(&server).with_disable_bulk_delete(true).build().unwrap();
    assert!(matches!(singly.delete(&path("k")).await, Err(Error::PermissionDenied { .. })));
    assert_eq!(server.objects().len(), 1);
}

#[tokio::test]
async fn without_list_bucket_what_is_missing_is_forbidden() {
    let server = honest().await;
    let client = client(&server);
    put(&client, "k", "x").await.unwrap();
    server.set_rules(Rules::default().deny("s3:ListBucket"));
    assert!(client.list(None).try_collect::<Vec<_>>().await.is_err());
    get(&client, "k").await.unwrap();
    for missing in [get(&client, "no").await.err(), client.head(&path("no")).await.err()] {
        assert!(matches!(missing, Some(Error::PermissionDenied { .. })), "{missing:?}");
    }
    create(&client, "new", "x").await.unwrap();
}
