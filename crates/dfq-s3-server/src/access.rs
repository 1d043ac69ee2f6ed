//! Who may do what: the credentials that are accepted, and the actions that are denied. Signatures
//! are checked by `s3s` with the secret that is found here.

use std::sync::Arc;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

use crate::shared::{Shared, read};

/// One set of credentials that the server knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The access key.
    pub access_key: String,
    /// The secret that requests are signed with.
    pub secret_key: String,
    /// The session token that has to come along, of temporary credentials.
    pub session_token: Option<String>,
    /// Whether they have expired: known, and answered ExpiredToken.
    pub expired: bool,
}

impl Credential {
    /// Lasting credentials.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        let (access_key, secret_key) = (access_key.into(), secret_key.into());
        Self { access_key, secret_key, session_token: None, expired: false }
    }

    /// The same with a session token: temporary credentials.
    #[must_use]
    pub fn with_session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }
}

/// What is denied; everything else is allowed to whoever signs rightly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    denied: Vec<(String, String)>,
}

impl Rules {
    /// Denies an action, as a policy names it (`s3:PutObject`, `s3:ListBucket`), everywhere.
    #[must_use]
    pub fn deny(self, action: impl Into<String>) -> Self {
        self.deny_under(action, "")
    }

    /// Denies an action on keys that start with a prefix.
    #[must_use]
    pub fn deny_under(mut self, action: impl Into<String>, prefix: impl Into<String>) -> Self {
        self.denied.push((action.into(), prefix.into()));
        self
    }

    pub(crate) fn allow(&self, action: &str, key: &str) -> bool {
        !self.denied.iter().any(|(denied, prefix)| denied == action && key.starts_with(prefix))
    }
}

/// The actions that an operation needs, as S3 documents them. DeleteObjects is judged key by key.
fn actions(op: &str) -> &'static [&'static str] {
    match op {
        "GetObject" | "HeadObject" => &["s3:GetObject"],
        "PutObject" => &["s3:PutObject"],
        "CopyObject" => &["s3:GetObject", "s3:PutObject"],
        "DeleteObject" => &["s3:DeleteObject"],
        "ListObjectsV2" | "HeadBucket" => &["s3:ListBucket"],
        "CreateBucket" => &["s3:CreateBucket"],
        "ListBuckets" => &["s3:ListAllMyBuckets"],
        _ => &[],
    }
}

/// The server's door.
pub(crate) struct Guard(pub(crate) Arc<Shared>);

#[async_trait::async_trait]
impl S3Auth for Guard {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let known = read(&self.0.credentials);
        let Some(credential) = known.iter().find(|c| c.access_key == access_key) else {
            return Err(s3_error!(InvalidAccessKeyId));
        };
        if credential.expired {
            return Err(s3_error!(ExpiredToken, "The provided token has expired."));
        }
        Ok(SecretKey::from(credential.secret_key.as_str()))
    }
}

#[async_trait::async_trait]
impl S3Access for Guard {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(signer) = cx.credentials() else {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        };
        let token = cx.headers().get("x-amz-security-token").map(|value| value.as_bytes());
        let known = read(&self.0.credentials);
        // The secret alone does not tell: it may be the one of a session whose token was left out.
        let right = known.iter().any(|credential| {
            credential.access_key == signer.access_key
                && credential.session_token.as_deref().map(str::as_bytes) == token
        });
        if !right {
            return Err(s3_error!(InvalidToken, "The provided token is malformed or invalid."));
        }
        let rules = read(&self.0.rules);
        let key = cx.s3_path().get_object_key().unwrap_or_default();
        match actions(cx.s3_op().name()).iter().find(|action| !rules.allow(action, key)) {
            Some(action) => Err(s3_error!(AccessDenied, "not authorized to perform: {action}")),
            None => Ok(()),
        }
    }
}
