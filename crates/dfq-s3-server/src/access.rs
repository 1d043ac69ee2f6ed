//! Who may do what: the credentials that are accepted, and the actions that are denied. Signatures
//! are checked by `s3s` with the secret that is found here.

use std::sync::Arc;

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

use crate::request::RequestInfo;
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

/// What is denied; everything else is allowed to whoever signs rightly, unless only some things are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    denied: Vec<(String, String)>,
    /// Actions, and patterns of keys (of prefixes, for a listing) in which `*` stands for any text.
    allowed: Option<Vec<(String, String)>>,
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

    /// Allows these actions on keys that look so, as the statements of a policy do, and nothing else.
    #[must_use]
    pub fn only(allowed: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { allowed: Some(allowed.into_iter().collect()), ..Self::default() }
    }

    /// Whether an action is allowed on a key. Of a listing, the key is the prefix that is asked for.
    pub(crate) fn allow(&self, action: &str, key: &str) -> bool {
        let fits = |(allowed, pattern): &(String, String)| allowed == action && like(key, pattern);
        let denied = |(denied, prefix): &(String, String)| {
            denied == action && key.starts_with(prefix.as_str())
        };
        self.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(fits))
            && !self.denied.iter().any(denied)
    }
}

/// Whether a text fits a pattern in which `*` stands for any text, slashes too.
fn like(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| like(&rest[at..], after))
        }),
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
        let key = RequestInfo::new(cx.method(), cx.uri(), cx.headers()).key;
        match actions(cx.s3_op().name()).iter().find(|action| !rules.allow(action, &key)) {
            Some(action) => {
                self.0.meter.is_denied();
                Err(s3_error!(AccessDenied, "not authorized to perform: {action}"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_policy() {
        for (text, pattern, fits) in [
            ("a/b", "a/b", true),
            ("a/b", "a/*", true),
            ("a/", "a/*", true),
            ("a/b/c/task.json", "a/*/task.json", true),
            ("a/b/lease.json", "a/*/task.json", false),
            ("b/a/b", "a/*", false),
            ("a", "a/*", false),
            ("anything", "*", true),
            ("", "*", true),
        ] {
            assert_eq!(like(text, pattern), fits, "{text} {pattern}");
        }
        let rules = Rules::only([("s3:GetObject".to_owned(), "a/*".to_owned())]);
        assert!(rules.allow("s3:GetObject", "a/b"));
        assert!(!rules.allow("s3:GetObject", "b"));
        assert!(!rules.allow("s3:PutObject", "a/b"));
        assert!(!rules.deny("s3:GetObject").allow("s3:GetObject", "a/b"));
    }
}
