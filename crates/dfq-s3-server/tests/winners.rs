//! Thirty-two clients, each with a connection of its own, race for one key. The honest server has one
//! winner in every round; the liars must be found out, or this race proves nothing.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real servers and clients run in real time")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{client, create, honest, put, update};
use dfq_s3_server::{Faults, Lies, Server};
use futures::future::join_all;
use object_store::Error;
use object_store::aws::AmazonS3;
use tokio::sync::Barrier;

const CLIENTS: usize = 32;
const ROUNDS: usize = 200;

fn clients(server: &Server) -> Vec<Arc<AmazonS3>> {
    (0..CLIENTS).map(|_| Arc::new(client(server))).collect()
}

/// All clients at once; who won, and that every loser was told so.
async fn round(clients: &[Arc<AmazonS3>], key: &str, etag: Option<&str>) -> Vec<String> {
    let barrier = Arc::new(Barrier::new(clients.len()));
    let racers = clients.iter().enumerate().map(|(n, client)| {
        let (client, barrier) = (client.clone(), barrier.clone());
        let (key, etag) = (key.to_owned(), etag.map(str::to_owned));
        tokio::spawn(async move {
            barrier.wait().await;
            let body = format!("racer {n}");
            let result = match etag {
                None => create(&client, &key, &body).await,
                Some(etag) => update(&client, &key, &body, &etag).await,
            };
            match result {
                Ok(_) => Some(body),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
    });
    join_all(racers).await.into_iter().filter_map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_server_has_one_winner_in_every_round() {
    let server = honest().await;
    let clients = clients(&server);
    for n in 0..ROUNDS {
        let key = format!("k{n}");
        let created = round(&clients, &key, None).await;
        assert_eq!(created.len(), 1, "round {n}: {created:?}");
        assert_eq!(server.objects()[&key], created[0]);
    }
    let counts = server.meter().counts();
    let lost = (ROUNDS * (CLIENTS - 1)) as u64;
    assert_eq!((counts.ok("PutObject"), counts.status(412)), (ROUNDS as u64, lost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_server_has_one_winner_of_every_swap() {
    let server = honest().await;
    let clients = clients(&server);
    for n in 0..ROUNDS {
        let etag = put(&clients[0], "k", &format!("start {n}")).await.unwrap().e_tag.unwrap();
        let swapped = round(&clients, "k", Some(&etag)).await;
        assert_eq!(swapped.len(), 1, "round {n}: {swapped:?}");
        assert_eq!(server.objects()["k"], swapped[0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_do_not_make_it_less_atomic() {
    let server = honest().await;
    let jitter = Duration::from_millis(5);
    server.set_faults(Faults { seed: 1, jitter, ..Faults::default() });
    let clients = clients(&server);
    for n in 0..20 {
        assert_eq!(round(&clients, &format!("k{n}"), None).await.len(), 1, "round {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_finds_out_the_server_that_is_not_atomic() {
    let server = honest().await;
    server.set_lies(Lies { not_atomic: Some(Duration::from_millis(2)), ..Lies::default() });
    let clients = clients(&server);
    // One at a time it looks honest.
    create(&clients[0], "alone", "x").await.unwrap();
    create(&clients[1], "alone", "y").await.unwrap_err();
    let mut doubled = 0;
    for n in 0..20 {
        doubled += usize::from(round(&clients, &format!("k{n}"), None).await.len() > 1);
    }
    assert!(doubled > 0, "no round had two winners");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_finds_out_the_server_that_ignores_conditions() {
    let server = honest().await;
    server.set_lies(Lies { ignore_conditions: true, ..Lies::default() });
    let clients = clients(&server);
    for n in 0..5 {
        assert_eq!(round(&clients, &format!("k{n}"), None).await.len(), CLIENTS);
    }
    assert_eq!(round(&clients, "k0", Some("\"nonsense\"")).await.len(), CLIENTS);
}
