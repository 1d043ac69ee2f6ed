//! Names in the tree, addresses, and the configuration that leads to them.
//!
//! Names parse back to what they were built from, and none leads out of its folder.

use std::path::Component;
use std::time::Duration;

use dfq::address::Address;
use dfq::conformance::parsers as p;
use dfq::model::{Layout, MAX_ENCODED_ID_BYTES};
use dfq::{Outcome, Receipt, TaskId, TaskKey};
use jiff::{SignedDuration, Timestamp};

use super::text;

/// Words of names and addresses.
pub(crate) const WORDS: &[&str] = &[
    "lease.json",
    "lease.",
    ".json",
    "task.json",
    "ca/",
    "00/",
    "ff/",
    "@",
    "@2",
    "@1000000000",
    "@01",
    "%",
    "%2F",
    "%2f",
    "%41",
    "%00",
    "..",
    ".",
    "/",
    "//",
    "20261115T1930Z",
    "20261115T193045Z",
    "T",
    "Z",
    "000000",
    "://",
    "s3://",
    "gs://",
    "az://",
    "sqs://",
    "file:///",
    "https://",
    "memory://",
    "123456789012",
    ".fifo",
    "~",
    "~/",
    "/1/",
    "-",
    "ä",
];

/// Words of `dfq.toml`.
pub(crate) const CONFIG: &[&str] = &[
    "root = ",
    "campaign = ",
    "provider = ",
    "bucket = ",
    "[s3]\n",
    "[sqs]\n",
    "[prices]\n",
    "[queues.a]\n",
    "lease = ",
    "max_attempts = ",
    "backoff = ",
    "backoff_max = ",
    "address = ",
    "sqs = ",
    "dead_letter = ",
    "group = ",
    "layout = ",
    "\"sqs\"",
    "\"s3\"",
    "\"filesystem\"",
    "\"s3://b/p\"",
    "\"10m\"",
    "\"-5s\"",
    "\"99999999999h\"",
    "\"flat\"",
    "\"..\"",
    "\"\"",
    "put = ",
    "1e308",
    "nan",
    "inf",
    "-1",
    "99999999999",
    "'''",
    "\"\"\"",
    "[[[[",
    "{a={a={",
    "a.a.a.a = 1",
];

const LAYOUTS: [Layout; 2] = [Layout::Sharded, Layout::Flat];

fn stays_inside(path: &str) {
    let odd = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    assert!(!path.split('/').any(odd), "'{path}' leads elsewhere");
}

/// All names of a task parse back to it.
fn names_of(key: &TaskKey) {
    let stem = p::stem(key);
    stays_inside(&stem);
    assert!(!stem.contains('/') && !stem.starts_with('.'), "{stem}");
    assert!(stem.len() <= MAX_ENCODED_ID_BYTES + "@1000000000".len());
    assert_eq!(p::parse_stem(&stem).as_ref(), Some(key));
    for layout in LAYOUTS {
        let dir = p::task_dir(layout, key);
        stays_inside(&dir);
        let found = p::parse_task_path(layout, dir.strip_prefix("pending/").unwrap());
        let record = p::record_path(layout, Outcome::Failed, key);
        stays_inside(&record);
        let recorded = p::parse_record_path(layout, record.strip_prefix("failed/").unwrap());
        // What another program has named is only ever found in flat trees.
        if layout == Layout::Flat || p::parse_canonical_stem(&stem).is_some() {
            assert_eq!((found.as_ref(), recorded.as_ref()), (Some(key), Some(key)));
        }
    }
}

pub(crate) fn names(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(id) = TaskId::new(text) {
        for generation in [1, 2, 1_000_000_000] {
            let key = TaskKey::new(id.clone(), generation);
            names_of(&key);
            let path = p::scheduled_path(Timestamp::UNIX_EPOCH, &key).unwrap();
            stays_inside(&path);
            assert_eq!(p::parse_scheduled_path(&path), Some((Timestamp::UNIX_EPOCH, key)));
        }
    }
    if let Some(key) = p::parse_stem(text) {
        assert_eq!(p::stem(&key), text);
        names_of(&key);
    }
    for layout in LAYOUTS {
        if let Some(key) = p::parse_task_path(layout, text) {
            assert_eq!(p::task_dir(layout, &key), format!("pending/{text}"));
        }
        if let Some(key) = p::parse_record_path(layout, text) {
            let path = p::record_path(layout, Outcome::Completed, &key);
            assert_eq!(path, format!("completed/{text}"));
        }
    }
    if let Some(attempt) = p::parse_lease_name(text) {
        assert!(attempt >= 1);
        assert_eq!(p::lease_name(attempt), text);
    }
    if let Some(worker) = p::parse_worker_name(text) {
        assert_eq!(p::worker_path(&worker), format!("workers/{text}"));
    }
    if let Some(shard) = p::parse_shard(text) {
        assert_eq!(format!("{shard:02x}"), text);
    }
    if let Some(version) = p::parse_version_name(text) {
        assert!(version >= 1);
        assert_eq!(version.to_string(), text);
    }
    if let Some(segment) = p::decode_segment(text) {
        assert_eq!(p::encode_segment(&segment), text);
    }
    if !text.is_empty() {
        let segment = p::encode_segment(text);
        stays_inside(&segment);
        assert_eq!(p::decode_segment(&segment).as_deref(), Some(text));
    }
}

pub(crate) fn receipt(input: &[u8]) {
    let Some(Ok(receipt)) = text(input).map(str::parse::<Receipt>) else { return };
    assert!(receipt.attempt() >= 1);
    let printed = receipt.to_string();
    assert_eq!(printed.parse::<Receipt>().unwrap(), receipt);
    names_of(receipt.key());
    if let Some(ticket) = p::rewrite_sqs_receipt(&receipt) {
        assert_eq!(p::rewrite_sqs_receipt(&ticket), Some(ticket.clone()));
        assert_eq!(ticket.to_string().parse::<Receipt>().unwrap(), ticket);
    }
}

pub(crate) fn due(input: &[u8]) {
    if let Some(text) = text(input) {
        if let Some(at) = p::parse_due(text) {
            assert_eq!(p::due_after(at, Duration::ZERO), Some((text.to_owned(), at)));
        }
        if let Some((at, key)) = p::parse_scheduled_path(text) {
            assert_eq!(p::scheduled_path(at, &key).as_deref(), Some(text));
        }
    }
    // Any time, and any delay.
    let number = |at: usize| input.get(at..at + 8)?.try_into().ok().map(i64::from_le_bytes);
    let (Some(second), Some(delay)) = (number(0), number(8)) else { return };
    let (most, nanos) = (i64::MAX / 10_000_000, i32::from(input[0]) * 1_000_000);
    let Ok(now) = Timestamp::new(second % 400_000_000_000, nanos) else { return };
    let delay = Duration::from_secs(delay.unsigned_abs() % most.unsigned_abs());
    let Some((name, at)) = p::due_after(now, delay) else { return };
    assert_eq!(p::parse_due(&name), Some(at), "{name}");
    let late = at.duration_since(now) - SignedDuration::try_from(delay).unwrap();
    assert!(late >= SignedDuration::ZERO && late < SignedDuration::from_secs(60), "{late}");
}

fn survives_printing(address: &Address) {
    let printed = address.to_string();
    assert_eq!(&printed.parse::<Address>().unwrap(), address, "printed as '{printed}'");
    if let Address::Bucket(bucket) = address {
        assert!(!bucket.bucket.contains('/') && !bucket.bucket.is_empty());
        if !bucket.prefix.is_empty() {
            stays_inside(&bucket.prefix);
        }
    }
}

pub(crate) fn address(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(Some(address)) = Address::parse(text) {
        survives_printing(&address);
    }
    if let Ok(address) = text.parse::<Address>() {
        survives_printing(&address);
    }
}

pub(crate) fn config(input: &[u8]) {
    let Some(Ok(config)) = text(input).map(p::config) else { return };
    let folder = config.campaign_address(dfq::config::Provider::Filesystem);
    for name in config.names() {
        // A name may still lack a bucket, which is an error.
        let Ok(target) = config.resolve(name) else { continue };
        target.settings.check().unwrap();
        survives_printing(&target.address);
        if let (Address::Directory(queue), Some(Address::Directory(folder))) =
            (&target.address, &folder)
            && let Ok(below) = queue.strip_prefix(folder)
            && let [Component::Normal(only)] = below.components().collect::<Vec<_>>()[..]
            && only == p::encode_segment(name).as_str()
        {
            assert_eq!(p::decode_segment(only.to_str().unwrap()).as_deref(), Some(name));
        }
    }
    assert!(config.resolve("a name that nobody has configured").is_err());
    let _ = (config.prices(), config.s3(), config.provider());
}
