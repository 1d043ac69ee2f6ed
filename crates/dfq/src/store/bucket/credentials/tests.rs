//! Whoever gives credentials fails, or falls silent.

#![allow(clippy::disallowed_methods, reason = "requests that come together")]

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::clock::{ManualClock, SeededChance};

const HOUR: Duration = Duration::from_secs(3600);

/// What the giver does when asked.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Gives,
    Fails,
    Hangs,
}

struct World {
    clock: ManualClock,
    env: Env,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<AtomicU32>,
}

impl World {
    fn new() -> (Self, Arc<Renewing>) {
        let clock = ManualClock::default();
        let env = Env::new(Arc::new(clock.clone()), Arc::new(SeededChance::new(1)));
        let (mood, asked) = (Arc::new(Mutex::new(Mood::Gives)), Arc::new(AtomicU32::new(0)));
        let world = Self { clock, env: env.clone(), mood: Arc::clone(&mood), asked: asked.clone() };
        let (time, at) = (env.clone(), mood);
        let giver = move || -> BoxFuture<'static, Result<Found, String>> {
            let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
            let expires = Some(time.clock().wall().as_second() + 3600);
            match *lock(&at) {
                Mood::Gives => Box::pin(async move {
                    let (key_id, secret_key) = (format!("KEY{number}"), "s".to_owned());
                    let credential = AwsCredential { key_id, secret_key, token: None };
                    Ok(Found { credential, expires })
                }),
                Mood::Fails => Box::pin(async { Err("the giver is ill".to_owned()) }),
                Mood::Hangs => Box::pin(std::future::pending()),
            }
        };
        (world, Arc::new(Renewing::from(env, giver)))
    }

    fn turns(&self, mood: Mood) {
        *lock(&self.mood) = mood;
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn key(renewing: &Renewing) -> object_store::Result<String> {
    renewing.get_credential().await.map(|credential| credential.key_id.clone())
}

#[tokio::test]
async fn what_is_still_good_is_handed_out_while_the_giver_fails_less_and_less_often_asked() {
    let (world, renewing) = World::new();
    assert_eq!(key(&renewing).await.unwrap(), "KEY1");
    world.turns(Mood::Fails);
    world.clock.advance(HOUR - Duration::from_secs(300));
    let mut asked_at = Vec::new();
    for _ in 0..299 {
        let before = world.asked();
        assert_eq!(key(&renewing).await.unwrap(), "KEY1");
        if world.asked() > before {
            asked_at.push(world.env.monotonic());
        }
        world.clock.advance(Duration::from_secs(1));
    }
    let pauses: Vec<_> = asked_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() < 10, "{pauses:?}");
    assert!(pauses.last().unwrap() > &(pauses[0] * 2), "{pauses:?}");
    // It recovers, and nothing was ever refused.
    world.turns(Mood::Gives);
    world.clock.advance(ASK_AGAIN.1 * 2);
    assert_ne!(key(&renewing).await.unwrap(), "KEY1");
}

#[tokio::test]
async fn a_giver_that_never_answers_holds_up_nobody_while_the_old_ones_are_good() {
    let (world, renewing) = World::new();
    key(&renewing).await.unwrap();
    world.turns(Mood::Hangs);
    world.clock.advance(HOUR - Duration::from_secs(200));
    let first = tokio::spawn({
        let renewing = Arc::clone(&renewing);
        async move { key(&renewing).await }
    });
    while world.asked() < 2 {
        tokio::task::yield_now().await;
    }
    // Time stands still, so who waited for anything would wait for ever.
    for _ in 0..10 {
        assert_eq!(key(&renewing).await.unwrap(), "KEY1");
    }
    assert_eq!(world.asked(), 2, "one asks for all");
    while !first.is_finished() {
        world.clock.advance(WORTH_WAITING);
        tokio::task::yield_now().await;
    }
    assert_eq!(first.await.unwrap().unwrap(), "KEY1");
}

#[tokio::test]
async fn once_they_have_expired_the_error_names_the_giver() {
    for (mood, why) in [(Mood::Fails, "the giver is ill"), (Mood::Hangs, "no answer within 10 s")] {
        let (world, renewing) = World::new();
        key(&renewing).await.unwrap();
        world.turns(mood);
        world.clock.advance(HOUR);
        let asking = tokio::spawn({
            let renewing = Arc::clone(&renewing);
            async move { key(&renewing).await }
        });
        while !asking.is_finished() {
            world.clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
        let error = asking.await.unwrap().unwrap_err();
        assert!(with_causes(&error).contains(why), "{error}");
        let asked = world.asked();
        assert!(key(&renewing).await.is_err());
        assert_eq!(world.asked(), asked, "not asked again at once");
        world.turns(Mood::Gives);
        world.clock.advance(ASK_AGAIN.1 * 2);
        assert!(key(&renewing).await.unwrap().starts_with("KEY"));
    }
}

#[tokio::test]
async fn refused_ones_are_replaced_and_a_giver_that_fails_is_named() {
    let (world, renewing) = World::new();
    key(&renewing).await.unwrap();
    assert!(renewing.renew("KEY1").await.unwrap());
    assert!(renewing.renew("KEY1").await.unwrap(), "there are others already");
    assert_eq!(world.asked(), 2);
    world.turns(Mood::Fails);
    assert!(renewing.renew("KEY2").await.unwrap_err().to_string().contains("is ill"));
    assert_eq!(key(&renewing).await.unwrap(), "KEY2", "what there is may do for other requests");
}
