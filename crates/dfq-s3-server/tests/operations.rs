//! Every operation, as `object_store` and as requests put together by hand see it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{builder, chain, client, create, get, honest, path, put, raw, raw_with_body, update};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::S3CopyIfNotExists;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, integration};

#[tokio::test]
async fn passes_the_suite_of_object_store() {
    let server = honest().await;
    let copy = S3CopyIfNotExists::Header("if-none-match".to_owned(), "*".to_owned());
    let client = builder(&server).with_copy_if_not_exists(copy).build().unwrap();
    integration::put_get_delete_list(&client).await;
    integration::get_opts(&client).await;
    integration::list_uses_directories_correctly(&client).await;
    integration::list_with_delimiter(&client).await;
    integration::list_paginated(&client, &client).await;
    integration::put_opts(&client, true).await;
    integration::list_with_offset_exclusivity(&client).await;
    integration::rename_and_copy(&client).await;
    integration::copy_if_not_exists(&client).await;
    integration::copy_rename_nonexistent_object(&client).await;
}

#[tokio::test]
async fn writes_reads_and_deletes() {
    let server = honest().await;
    let client = client(&server);
    let written = put(&client, "a/b", "hello").await.unwrap();
    assert_eq!(written.e_tag.as_deref(), Some("\"5d41402abc4b2a76b9719d911017c592\""));
    assert_eq!(get(&client, "a/b").await.unwrap(), "hello");
    assert_eq!(server.objects()["a/b"], "hello");

    let head = client.head(&path("a/b")).await.unwrap();
    assert_eq!((head.size, head.e_tag), (5, written.e_tag));
    assert_eq!(head.last_modified.timestamp_subsec_millis(), 0, "a header has whole seconds");

    client.copy(&path("a/b"), &path("c")).await.unwrap();
    assert_eq!(get(&client, "c").await.unwrap(), "hello");
    client.delete(&path("c")).await.unwrap();
    assert!(matches!(get(&client, "c").await, Err(Error::NotFound { .. })));
    assert!(matches!(client.head(&path("c")).await, Err(Error::NotFound { .. })));
    client.delete(&path("c")).await.unwrap();
}

#[tokio::test]
async fn ranges() {
    let server = honest().await;
    let client = client(&server);
    put(&client, "k", "0123456789").await.unwrap();
    assert_eq!(client.get_range(&path("k"), 2..5).await.unwrap(), "234");
    for (range, wanted) in [(GetRange::Suffix(3), "789"), (GetRange::Offset(7), "789")] {
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let bytes = client.get_opts(&path("k"), options).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes, wanted);
    }
    let beyond = raw(&server, "GET", "/dfq-test/k", &[("range", "bytes=10-12")]).await;
    assert_eq!(beyond.status, 416);
}

#[tokio::test]
async fn conditional_writes() {
    let server = honest().await;
    let client = client(&server);
    let first = create(&client, "k", "one").await.unwrap().e_tag.unwrap();
    let again = create(&client, "k", "two").await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    assert_eq!(server.objects()["k"], "one");

    let second = update(&client, "k", "two", &first).await.unwrap().e_tag.unwrap();
    assert!(matches!(update(&client, "k", "3", &first).await, Err(Error::Precondition { .. })));
    let unquoted = second.trim_matches('"');
    update(&client, "k", "three", unquoted).await.unwrap();
    assert_eq!(server.objects()["k"], "three");

    // As S3, a missing object is a 404; `object_store` makes a failed precondition of it.
    assert!(matches!(update(&client, "no", "x", &first).await, Err(Error::Precondition { .. })));
    assert_eq!(server.meter().counts().status(404), 1);
    assert_eq!(server.meter().counts().status(412), 2);
    let odd = [("if-none-match", "\"abc\"")];
    assert_eq!(raw(&server, "PUT", "/dfq-test/k", &odd).await.status, 501);
}

#[tokio::test]
async fn conditional_delete() {
    let server = honest().await;
    let client = client(&server);
    let etag = put(&client, "k", "one").await.unwrap().e_tag.unwrap();
    let wrong = raw(&server, "DELETE", "/dfq-test/k", &[("if-match", "\"0\"")]).await;
    assert_eq!((wrong.status, server.objects().len()), (412, 1));
    let right = raw(&server, "DELETE", "/dfq-test/k", &[("if-match", &etag)]).await;
    assert_eq!((right.status, server.objects().len()), (204, 0));
}

#[tokio::test]
async fn bulk_delete() {
    let server = honest().await;
    let client = client(&server);
    for n in 0..5 {
        put(&client, &format!("k{n}"), "x").await.unwrap();
    }
    let keys = (0..4).map(|n| Ok(path(&format!("k{n}"))));
    let done: Vec<_> =
        client.delete_stream(stream::iter(keys).boxed()).try_collect().await.unwrap();
    assert_eq!(done.len(), 4);
    assert_eq!(server.meter().count("DeleteObjects"), 1);
    assert_eq!(server.objects().into_keys().collect::<Vec<_>>(), ["k4"]);
}

#[tokio::test]
async fn a_single_delete_of_object_store_is_a_bulk_one_unless_told_otherwise() {
    let server = honest().await;
    client(&server).delete(&path("k")).await.unwrap();
    let singly = builder(&server).with_disable_bulk_delete(true).build().unwrap();
    singly.delete(&path("k")).await.unwrap();
    let counts = server.meter().counts();
    assert_eq!((counts.count("DeleteObjects"), counts.count("DeleteObject")), (1, 1));
}

#[tokio::test]
async fn listings_page_group_and_start_after() {
    let server = honest().await;
    let client = client(&server);
    let keys = ["a/1", "a/2", "b", "c/1", "c/2/x", "d", "z z+%", "é/ü"];
    for key in keys {
        put(&client, key, key).await.unwrap();
    }
    let all: Vec<_> = client.list(None).map_ok(|o| o.location).try_collect().await.unwrap();
    assert_eq!(all, keys.map(path));

    for max in 1..=keys.len() {
        let mut token = None;
        let mut seen = Vec::new();
        loop {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                max_keys: Some(max),
                page_token: token.take(),
                ..PaginatedListOptions::default()
            };
            let page = client.list_paginated(None, options).await.unwrap();
            let (objects, prefixes) = (page.result.objects, page.result.common_prefixes);
            assert!(objects.len() + prefixes.len() <= max);
            seen.extend(objects.into_iter().map(|o| o.location.to_string()));
            seen.extend(prefixes.into_iter().map(|p| format!("{p}/")));
            token = page.page_token;
            if token.is_none() {
                break;
            }
        }
        seen.sort();
        assert_eq!(seen, ["a/", "b", "c/", "d", "z z+%", "é/"], "{max} a page");
    }

    let after = client.list_with_offset(None, &path("c/1")).map_ok(|o| o.location.to_string());
    let after: Vec<_> = after.try_collect().await.unwrap();
    assert_eq!(after, ["c/2/x", "d", "z z+%", "é/ü"].map(str::to_owned).to_vec());
    let bad = raw(&server, "GET", "/dfq-test?list-type=2&continuation-token=zz", &[]).await;
    assert_eq!(bad.status, 400);
}

#[tokio::test]
async fn a_thousand_keys_a_page_with_etag_size_and_milliseconds() {
    let server = honest().await;
    let client = client(&server);
    let puts = (0..1001).map(|n| {
        let client = &client;
        async move { put(client, &format!("k{n:04}"), "x").await.unwrap() }
    });
    stream::iter(puts).buffer_unordered(16).collect::<Vec<_>>().await;
    server.meter().reset();
    let all: Vec<_> = client.list(None).try_collect().await.unwrap();
    assert_eq!(all.len(), 1001);
    assert_eq!(server.meter().count("ListObjectsV2"), 2);
    assert!(all.iter().all(|o| o.size == 1 && o.e_tag.as_ref().unwrap().starts_with('"')));
    let millis = |o: &object_store::ObjectMeta| o.last_modified.timestamp_subsec_millis();
    assert!(all.iter().any(|o| millis(o) % 1000 != 0));

    let page = raw(&server, "GET", "/dfq-test?list-type=2&max-keys=2&prefix=k", &[]).await;
    assert!(page.body.contains("<KeyCount>2</KeyCount>"), "{}", page.body);
    assert!(page.body.contains("<IsTruncated>true</IsTruncated>"));
    assert!(page.headers.contains_key("date"));
}

#[tokio::test]
async fn buckets() {
    let server = honest().await;
    assert_eq!(raw(&server, "HEAD", "/other", &[]).await.status, 404);
    assert_eq!(raw(&server, "PUT", "/other", &[]).await.status, 200);
    assert_eq!(raw(&server, "PUT", "/other", &[]).await.status, 409);
    assert_eq!(raw(&server, "HEAD", "/other", &[]).await.status, 200);
    let listed = raw(&server, "GET", "/", &[]).await.body;
    assert!(listed.contains("<Name>other</Name>") && listed.contains("<Name>dfq-test</Name>"));
    assert_eq!(raw_with_body(&server, "PUT", "/other/k", &[], "x").await.status, 200);
    assert!(server.objects().is_empty(), "another bucket");

    let nowhere = builder(&server).with_bucket_name("nowhere").build().unwrap();
    let error = put(&nowhere, "k", "x").await.unwrap_err();
    assert!(chain(&error).contains("NoSuchBucket"), "{}", chain(&error));
    let error = nowhere.list(None).try_collect::<Vec<_>>().await.unwrap_err();
    assert!(chain(&error).contains("NoSuchBucket"), "{}", chain(&error));
}

#[tokio::test]
async fn counts_what_is_asked_and_answered() {
    let server = honest().await;
    let client = client(&server);
    put(&client, "k", "x").await.unwrap();
    create(&client, "k", "x").await.unwrap_err();
    get(&client, "k").await.unwrap();
    let counts = server.meter().counts();
    assert_eq!((counts.count("PutObject"), counts.ok("PutObject"), counts.total()), (2, 1, 3));
    assert_eq!((counts.status(412), counts.status(200)), (1, 2));
    let recent = server.meter().recent();
    assert_eq!(recent[1].request.if_none_match.as_deref(), Some("*"));
    assert_eq!((recent[1].request.key.as_str(), recent[1].status), ("k", Some(412)));
    server.meter().reset();
    assert_eq!(server.meter().counts().total(), 0);
    server.stop().await;
    assert!(get(&client, "k").await.is_err(), "it has stopped");
}
