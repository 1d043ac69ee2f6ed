//! AWS credentials that come and go: asked for again before they expire, and when the store will not
//! have them any more. So a worker outlives them without a restart. Nothing of them is ever printed.
//!
//! Invariants:
//! - Credentials that are still good are handed out, whatever becomes of whoever gives them.
//! - Nobody waits for whoever gives them for longer than [`ANSWERED_WITHIN`].

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use crate::clock::{Env, lock};

/// Renewed so long before they expire: a request must not outlive them. Those that are good for long are
/// renewed sooner, for who gives them may be out of order for a while.
const RENEW_BEFORE_SECONDS: (i64, i64) = (60, 300);

/// How soon they are asked for again if that failed: after the first, doubling, up to the second, more or less.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// How long whoever gives them may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// How long a request waits for new ones that could do with the old ones.
const WORTH_WAITING: Duration = Duration::from_secs(1);

/// Whoever gives credentials did not.
#[derive(Clone, Debug)]
pub(super) struct NotGiven(String);

impl fmt::Display for NotGiven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there are no AWS credentials now, because asking for new ones failed: {}",
            self.0
        )
    }
}

impl std::error::Error for NotGiven {}

impl From<NotGiven> for object_store::Error {
    fn from(error: NotGiven) -> Self {
        Self::Generic { store: "S3", source: Box::new(error) }
    }
}

/// Credentials, and when they expire, in seconds since 1970 on the wall clock; some never do.
pub(super) struct Found {
    pub(super) credential: AwsCredential,
    pub(super) expires: Option<i64>,
}

/// Whoever gives credentials, asked anew each time.
type Giver = dyn Fn() -> BoxFuture<'static, Result<Found, String>> + Send + Sync;

pub(super) struct Renewing(Arc<Inner>);

struct Inner {
    env: Env,
    giver: Box<Giver>,
    state: Mutex<State>,
    /// Locked while asking, so that many requests at once ask once.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// How often in a row asking has failed, why the last time, and until when on the monotonic clock nobody
    /// asks again.
    failures: u32,
    error: Option<NotGiven>,
    rests_until: Duration,
}

#[derive(Clone)]
struct Known {
    credential: Arc<AwsCredential>,
    expires: Option<i64>,
    /// When to ask again, on the wall clock.
    renew_at: i64,
}

impl fmt::Debug for Renewing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewing(…)")
    }
}

/// An error and what is behind it, in one line.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(here) = cause {
        text = format!("{text}: {here}");
        cause = here.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Renewing {
    pub(super) fn from(
        env: Env,
        giver: impl Fn() -> BoxFuture<'static, Result<Found, String>> + Send + Sync + 'static,
    ) -> Self {
        let (state, asking) = (Mutex::default(), Arc::default());
        Self(Arc::new(Inner { env, giver: Box::new(giver), state, asking }))
    }

    /// The store will not have the credentials with this key. Answers whether there are others now.
    pub(super) async fn renew(&self, refused: &str) -> Result<bool, NotGiven> {
        let inner = &self.0;
        let _asking = inner.asking.lock().await;
        let others = |known: &Known| known.credential.key_id != refused;
        if inner.known().as_ref().is_some_and(others) {
            return Ok(true);
        }
        inner.ask().await?;
        Ok(inner.known().as_ref().is_some_and(others))
    }
}

impl Inner {
    fn known(&self) -> Option<Known> {
        lock(&self.state).known.clone()
    }

    /// What is known, if it is good for now.
    fn valid(&self) -> Option<Known> {
        let now = self.now();
        self.known().filter(|known| known.expires.is_none_or(|expires| now < expires))
    }

    fn now(&self) -> i64 {
        self.env.clock().wall().as_second()
    }

    /// Whether to ask again now.
    fn is_due(&self, known: &Known) -> bool {
        self.now() >= known.renew_at && self.env.monotonic() >= lock(&self.state).rests_until
    }

    /// Asks, unless that failed a short while ago. Only by who has locked `asking`.
    async fn ask(&self) -> Result<(), NotGiven> {
        {
            let state = lock(&self.state);
            if let Some(error) = &state.error
                && self.env.monotonic() < state.rests_until
            {
                return Err(error.clone());
            }
        }
        let answer = tokio::select! {
            biased;
            answer = (self.giver)() => answer,
            () = self.env.clock().sleep(ANSWERED_WITHIN) => {
                Err(format!("no answer within {} s", ANSWERED_WITHIN.as_secs()))
            }
        };
        let (now, spread) = (self.now(), 0.75 + 0.5 * self.env.fraction());
        let answer = answer.and_then(|found| match found.expires {
            Some(expires) if expires <= now => Err("those given have expired".to_owned()),
            _ => Ok(found),
        });
        let mut state = lock(&self.state);
        match answer {
            Ok(Found { credential, expires }) => {
                let renew_at = expires.map_or(i64::MAX, |expires| {
                    let (soon, sooner) = RENEW_BEFORE_SECONDS;
                    if expires - now > 3 * sooner { expires - sooner } else { expires - soon }
                });
                let credential = Arc::new(credential);
                *state = State {
                    known: Some(Known { credential, expires, renew_at }),
                    // Who gives out what ends soon has no better for now.
                    rests_until: match renew_at <= now {
                        true => self.env.monotonic() + ASK_AGAIN.0,
                        false => Duration::ZERO,
                    },
                    ..State::default()
                };
                Ok(())
            }
            Err(why) => {
                let pause = ASK_AGAIN.0.saturating_mul(1 << state.failures.min(8));
                let pause = pause.min(ASK_AGAIN.1).mul_f64(spread);
                state.failures = state.failures.saturating_add(1);
                state.rests_until = self.env.monotonic() + pause;
                // That there were never any is told by who wanted them.
                if state.known.is_some() {
                    tracing::warn!("no AWS credentials were given, asking again later: {why}");
                }
                let error = NotGiven(why);
                state.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Asks in the background, unless somebody does already. A request that can do with what is known waits for
    /// it only a little.
    async fn ask_aside(self: &Arc<Self>) {
        let Ok(asking) = Arc::clone(&self.asking).try_lock_owned() else { return };
        let inner = Arc::clone(self);
        let asked = self.env.spawn(async move {
            let _ = inner.ask().await;
            drop(asking);
        });
        tokio::select! {
            biased;
            _ = asked => {}
            () = self.env.clock().sleep(WORTH_WAITING) => {}
        }
    }
}

#[async_trait]
impl CredentialProvider for Renewing {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let inner = &self.0;
        if let Some(known) = inner.valid() {
            if inner.is_due(&known) {
                inner.ask_aside().await;
            }
            return Ok(inner.valid().unwrap_or(known).credential);
        }
        let _asking = inner.asking.lock().await;
        if inner.valid().is_none() {
            inner.ask().await?;
        }
        let known = inner.valid().ok_or_else(|| NotGiven("those given have expired".to_owned()))?;
        Ok(known.credential)
    }
}

#[cfg(test)]
mod tests;
