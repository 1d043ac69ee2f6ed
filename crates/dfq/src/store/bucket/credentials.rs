//! AWS credentials that come and go: asked for again before they expire, and when the store will not
//! have them any more. So a worker outlives them without a restart. Nothing of them is ever printed.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_credential_types::provider::ProvideCredentials;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use crate::clock::Env;

/// Renewed so long before they expire: a request must not outlive them. Those that are good for long are
/// renewed sooner, for who gives them may be out of order for a while.
const RENEW_BEFORE_SECONDS: (i64, i64) = (60, 300);

/// How soon they are asked for again, if that failed while the old ones are still good.
const ASK_AGAIN_SECONDS: i64 = 10;

pub(super) struct Renewing {
    env: Env,
    profile: Option<String>,
    region: Option<Region>,
    /// Locked while asking, so that many requests at once ask once.
    known: tokio::sync::Mutex<Option<Known>>,
}

struct Known {
    credential: Arc<AwsCredential>,
    /// The wall-clock time in seconds since 1970; some never expire.
    expires: Option<i64>,
    /// When to ask again, on the same clock.
    renew_at: i64,
}

impl fmt::Debug for Renewing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewing(…)")
    }
}

impl Renewing {
    pub(super) fn new(env: Env, profile: Option<String>, region: Option<Region>) -> Self {
        Self { env, profile, region, known: Default::default() }
    }

    /// Asks for credentials. From the beginning each time: a chain that was asked before keeps what it
    /// read, also of a file that has changed.
    async fn ask(&self) -> object_store::Result<Known> {
        let mut chain = DefaultCredentialsChain::builder();
        if let Some(profile) = &self.profile {
            chain = chain.profile_name(profile);
        }
        if let Some(region) = &self.region {
            chain = chain.region(region.clone());
        }
        let found = chain.build().await.provide_credentials().await.map_err(|error| {
            object_store::Error::Unauthenticated { path: String::new(), source: error.into() }
        })?;
        let expires = found.expiry().and_then(|at| {
            let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_secs()).ok()
        });
        let credential = AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        };
        let now = self.env.clock().wall().as_second();
        let renew_at = expires.map_or(i64::MAX, |expires| {
            let (soon, sooner) = RENEW_BEFORE_SECONDS;
            if expires - now > 3 * sooner { expires - sooner } else { expires - soon }
        });
        Ok(Known { credential: Arc::new(credential), expires, renew_at })
    }

    /// The store will not have the credentials with this key. Answers whether there are others now.
    pub(super) async fn renew(&self, refused: &str) -> bool {
        let mut known = self.known.lock().await;
        let is_refused = |known: &Known| known.credential.key_id == refused;
        if known.as_ref().is_none_or(is_refused)
            && let Ok(found) = self.ask().await
        {
            *known = Some(found);
        }
        known.as_ref().is_some_and(|known| !is_refused(known))
    }
}

#[async_trait]
impl CredentialProvider for Renewing {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let now = self.env.clock().wall().as_second();
        let mut known = self.known.lock().await;
        if let Some(known) = &*known
            && now < known.renew_at
        {
            return Ok(Arc::clone(&known.credential));
        }
        let still_valid = |known: &Known| known.expires.is_none_or(|expires| now < expires);
        match (self.ask().await, &mut *known) {
            (Ok(found), known) => Ok(Arc::clone(&known.insert(found).credential)),
            // Whoever gives them does not answer just now. What we have is good for a while.
            (Err(error), Some(known)) if still_valid(known) => {
                tracing::warn!(%error, "the credentials could not be renewed yet; trying again");
                known.renew_at = now + ASK_AGAIN_SECONDS;
                Ok(Arc::clone(&known.credential))
            }
            (Err(error), _) => Err(error),
        }
    }
}
