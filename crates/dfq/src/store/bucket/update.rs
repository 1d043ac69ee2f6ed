//! Writing an object only if it is still as it was read: by its ETag, in whatever form the server takes it.
//!
//! Servers differ: some refuse an ETag in the quotes in which they sent it, some have none, some know no such
//! condition. Who cannot have the condition writes without it.

use std::sync::atomic::{AtomicBool, Ordering};

use object_store::{GetOptions, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};

use super::client::{Client, modified};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Change, Stored, Updated};

/// How often an object that others write too is read again before it is written.
const ROUNDS: u32 = 12;

/// How an ETag is sent.
#[derive(Clone, Copy)]
enum Form {
    AsReceived,
    Bare,
    Not,
}

impl Form {
    fn of(self, tag: &str) -> Option<String> {
        match self {
            Self::AsReceived => Some(tag.to_owned()),
            Self::Bare => Some(tag.trim_start_matches("W/").trim_matches('"').to_owned()),
            Self::Not => None,
        }
    }

    fn next(self) -> Self {
        match self {
            Self::AsReceived => Self::Bare,
            _ => Self::Not,
        }
    }
}

impl Client {
    /// See [`crate::store::Tree::update`].
    pub(super) async fn update(&self, path: &str, change: &Change<'_>) -> Result<Updated> {
        let (mut form, mut refused, mut tried) = (Form::AsReceived, None, None);
        for _ in 0..ROUNDS {
            let Some((meta, bytes)) = self.read_version(path).await? else {
                return Ok(Updated::Missing);
            };
            let seen = Stored { bytes: bytes.to_vec(), modified: modified(&meta) };
            if tried.as_ref() == Some(&seen.bytes) {
                return Ok(Updated::Written(seen.bytes)); // only the answer was lost
            }
            if refused.is_some() && refused == meta.e_tag {
                form = form.next(); // it has not changed: the server does not take it so
            }
            let Some(bytes) = change(&seen) else { return Ok(Updated::Left(seen)) };
            let tag = meta.e_tag.as_deref().and_then(|tag| form.of(tag));
            let version = tag.map(|tag| UpdateVersion { e_tag: Some(tag), version: meta.version });
            match self.put_if(path, &bytes, version).await {
                Ok(true) => return Ok(Updated::Written(bytes)),
                Ok(false) => (refused, tried) = (meta.e_tag, Some(bytes)),
                Err(error) if error.kind() == ErrorKind::Unsupported => form = Form::Not,
                Err(error) => return Err(error),
            }
        }
        let message = format!("'{path}' in {} does not stay as it is", self.address);
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Writes an object, if it is still this version where one is given; whether it was written, as far as
    /// the answer says.
    async fn put_if(
        &self,
        path: &str,
        bytes: &[u8],
        version: Option<UpdateVersion>,
    ) -> Result<bool> {
        let key = self.key(path)?;
        let payload = PutPayload::from(bytes.to_vec());
        let mode = version.map_or(PutMode::Overwrite, PutMode::Update);
        let put = || async {
            match self.store.put_opts(&key, payload.clone(), mode.clone().into()).await {
                Ok(_) => Ok(true),
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. }
                    | object_store::Error::NotFound { .. },
                ) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.retry("write", path, put).await
    }

    /// See [`crate::store::Tree::take_away`]. What is written tells it from anything that may come to be
    /// there, so a removal whose answer was lost is repeated only while it is there; and none is sent so
    /// late that others have done it.
    pub(super) async fn take_away(&self, path: &str, change: &Change<'_>) -> Result<bool> {
        let deadline = self.removal_deadline();
        let Updated::Written(bytes) = self.update(path, change).await? else { return Ok(false) };
        let key = self.key(path)?;
        let sent = AtomicBool::new(false);
        let remove = || async {
            let gone = |answer: object_store::Result<()>| match answer {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(true),
                Err(error) => Err(error),
            };
            if sent.swap(true, Ordering::Relaxed) {
                let there = match self.store.get_opts(&key, GetOptions::default()).await {
                    Ok(there) => there.bytes().await?,
                    Err(error) => return gone(Err(error)),
                };
                if there != bytes {
                    return Ok(true);
                }
            }
            if self.is_past(deadline) {
                return Ok(false);
            }
            gone(self.store.delete(&key).await)
        };
        self.retry("remove", path, remove).await
    }
}
