//! `queue.json`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Time, time, timestamp};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    Backoff, Durability, FEATURES, FORMAT_VERSION, Layout, SYNCED, Settings, Shared, Synced,
};

#[derive(Serialize, Deserialize)]
struct SettingsDoc {
    format: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requires: Vec<String>,
    #[serde(default)]
    layout: LayoutDoc,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lost: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_base_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_max_seconds: Option<f64>,
    #[serde(default)]
    durability: DurabilityDoc,
    #[serde(default, skip_serializing_if = "SharedDoc::is_umask")]
    shared: SharedDoc,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sync_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sync_hub: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Time>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LayoutDoc {
    #[default]
    Sharded,
    Flat,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DurabilityDoc {
    #[default]
    Durable,
    Relaxed,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SharedDoc {
    #[default]
    Umask,
    Group,
}

impl SharedDoc {
    fn is_umask(&self) -> bool {
        *self == Self::Umask
    }
}

/// The content of `queue.json`.
pub(crate) fn encode_settings(settings: &Settings) -> Vec<u8> {
    let synced = settings.synced.as_ref();
    let doc = SettingsDoc {
        format: settings.format,
        requires: synced.iter().map(|_| SYNCED.to_owned()).collect(),
        queue_id: synced.map(|synced| synced.queue_id.clone()),
        sync_seconds: synced.map(|synced| synced.period.as_secs_f64()),
        sync_hub: synced.is_some_and(|synced| synced.hub),
        layout: match settings.layout {
            Layout::Sharded => LayoutDoc::Sharded,
            Layout::Flat => LayoutDoc::Flat,
        },
        lease_seconds: Some(settings.lease.as_secs_f64()),
        max_attempts: Some(settings.max_attempts),
        max_lost: Some(settings.max_lost),
        backoff_base_seconds: Some(settings.backoff.base.as_secs_f64()),
        backoff_max_seconds: Some(settings.backoff.max.as_secs_f64()),
        durability: match settings.durability {
            Durability::Durable => DurabilityDoc::Durable,
            Durability::Relaxed => DurabilityDoc::Relaxed,
        },
        shared: match settings.shared {
            Shared::Umask => SharedDoc::Umask,
            Shared::Group => SharedDoc::Group,
        },
        created_at: time(settings.created_at),
    };
    let mut out = serde_json::to_vec_pretty(&doc).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Whether this version may use a queue with this `queue.json`: it must know its format, and every feature that
/// the queue requires. Nothing else in the file is looked at, since the format decides what that means.
pub(crate) fn check_compatible(bytes: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
        #[serde(default)]
        requires: serde_json::Value,
    }
    let version: Version = serde_json::from_slice(bytes).map_err(damaged)?;
    let refuse = |why: String| Err(Error::new(ErrorKind::Incompatible, why + "; upgrade dfq"));
    if !(1..=FORMAT_VERSION).contains(&version.format) {
        return refuse(format!(
            "the queue has format {}, this version of dfq knows 1 to {FORMAT_VERSION}",
            version.format
        ));
    }
    let required = match &version.requires {
        serde_json::Value::Null => &[][..],
        serde_json::Value::Array(features) => features,
        other => std::slice::from_ref(other),
    };
    let is_known =
        |feature: &serde_json::Value| feature.as_str().is_some_and(|it| FEATURES.contains(&it));
    match required.iter().find(|feature| !is_known(feature)) {
        Some(unknown) => {
            refuse(format!("the queue requires {unknown}, which this version of dfq does not know"))
        }
        None => Ok(()),
    }
}

fn damaged(error: serde_json::Error) -> Error {
    Error::damaged(format!("queue.json cannot be read: {error}"))
}

/// Reads `queue.json`. What this version must not use is refused before anything else in it is looked at.
pub(crate) fn decode_settings(bytes: &[u8]) -> Result<Settings> {
    check_compatible(bytes)?;
    let doc: SettingsDoc = serde_json::from_slice(bytes).map_err(damaged)?;
    let defaults = Settings::default();
    let seconds = |value: Option<f64>, default, name: &str| match value {
        None => Ok(default),
        Some(value) => Duration::try_from_secs_f64(value)
            .map_err(|_| Error::damaged(format!("queue.json: {name} is {value}"))),
    };
    let settings = Settings {
        format: doc.format,
        layout: match doc.layout {
            LayoutDoc::Sharded => Layout::Sharded,
            LayoutDoc::Flat => Layout::Flat,
        },
        lease: seconds(doc.lease_seconds, defaults.lease, "lease_seconds")?,
        max_attempts: doc.max_attempts.unwrap_or(defaults.max_attempts),
        max_lost: doc.max_lost.unwrap_or(defaults.max_lost),
        backoff: Backoff {
            base: seconds(doc.backoff_base_seconds, defaults.backoff.base, "backoff_base_seconds")?,
            max: seconds(doc.backoff_max_seconds, defaults.backoff.max, "backoff_max_seconds")?,
        },
        durability: match doc.durability {
            DurabilityDoc::Durable => Durability::Durable,
            DurabilityDoc::Relaxed => Durability::Relaxed,
        },
        shared: match doc.shared {
            SharedDoc::Umask => Shared::Umask,
            SharedDoc::Group => Shared::Group,
        },
        synced: match doc.requires.iter().any(|feature| feature == SYNCED) {
            false => None,
            true => Some(Synced {
                queue_id: doc.queue_id.unwrap_or_default(),
                period: seconds(doc.sync_seconds, Duration::from_secs(60), "sync_seconds")?,
                hub: doc.sync_hub,
            }),
        },
        created_at: timestamp(doc.created_at),
    };
    settings.check().map_err(|e| Error::damaged(format!("queue.json: {e}")))?;
    Ok(settings)
}
