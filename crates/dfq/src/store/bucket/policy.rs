//! The least that each role must be allowed in a bucket, in AWS's words.
//!
//! Invariant: a role can do its job with exactly these permissions, and with any one of them taken away
//! something of it fails. A test tries both.
//!
//! What is not there can only be told from what is forbidden by whoever may list, so every role may:
//! without `s3:ListBucket`, S3 answers 403 for both. Under a condition on `s3:prefix`, AWS goes by the key that is
//! asked for (said by others who tried; not tried by us).
//!
//! Ceph reads a policy otherwise, at least up to version 16:
//! - For what is missing it has no prefix, and so no permission. A second statement allows it where there is neither a
//!   prefix nor, as in every listing of Ceph's, a number of keys. Besides, it tells whether a key elsewhere in the bucket
//!   is missing. On AWS it would allow to list a whole bucket, but for one more condition: that the request
//!   has no `aws:PrincipalArn`. So it is there only if it is asked for.
//! - A `*` ends at the first letter that fits, so `pending/*/task.json` fits no task below a shard. It takes one
//!   `*` for each folder.
//! - A request that names what to remove, be it one object, must be allowed for the bucket itself, and then for each object.

use serde_json::{Map, Value, json};

use crate::address::{BucketAddress, Cloud};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{
    DOCTOR, FLOORS, LEASE, PENDING, SCHEDULED, SETTINGS, TASK, TMP, WORKERS, outcome_dir,
};
use crate::model::{Outcome, Role};

/// Whose understanding of policies is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// AWS.
    Aws,
    /// A Ceph gateway.
    Ceph,
}

/// The policy for a role on a queue, to be attached to whoever plays it.
pub fn policy(address: &BucketAddress, role: Role, dialect: Dialect) -> Result<Value> {
    if address.cloud != Cloud::S3 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{address} is not on AWS, and AWS's policies mean nothing there"),
        ));
    }
    let bucket = format!("arn:aws:s3:::{}", address.bucket);
    let below = match address.prefix.as_str() {
        "" => String::new(),
        prefix => format!("{}/", literal(prefix)),
    };
    let mut list = json!({
        "Sid": "List",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": bucket,
    });
    if !below.is_empty() {
        list["Condition"] = json!({ "StringLike": { "s3:prefix": format!("{below}*") } });
    }
    let mut statements = vec![list];
    if !below.is_empty() && dialect == Dialect::Ceph {
        let absent = ["aws:PrincipalArn", "s3:prefix", "s3:max-keys"];
        let absent: Map<String, Value> =
            absent.iter().map(|key| ((*key).to_owned(), json!("true"))).collect();
        statements.push(json!({
            "Sid": "Missing",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket,
            "Condition": { "Null": absent },
        }));
    }
    let (read, write, remove) = objects(role, dialect);
    for (sid, action, patterns) in [
        ("Read", "s3:GetObject", read),
        ("Write", "s3:PutObject", write),
        ("Remove", "s3:DeleteObject", remove),
    ] {
        if patterns.is_empty() {
            continue;
        }
        let mut resources: Vec<String> =
            patterns.iter().map(|pattern| format!("{bucket}/{below}{pattern}")).collect();
        if sid == "Remove" && dialect == Dialect::Ceph {
            resources.insert(0, bucket.clone());
        }
        statements.push(json!({
            "Sid": sid,
            "Effect": "Allow",
            "Action": action,
            "Resource": resources,
        }));
    }
    Ok(json!({ "Version": "2012-10-17", "Statement": statements }))
}

/// What a role reads, writes and removes, as patterns of names in the tree.
fn objects(role: Role, dialect: Dialect) -> (Vec<String>, Vec<String>, Vec<String>) {
    let all = |folder: &str| format!("{folder}/*");
    let in_task = |name: String| match dialect {
        Dialect::Aws => vec![format!("{PENDING}/*/{name}")],
        Dialect::Ceph => vec![format!("{PENDING}/*/{name}"), format!("{PENDING}/*/*/{name}")],
    };
    let task = in_task(TASK.to_owned());
    let lease = in_task(format!("{LEASE}*"));
    let [completed, failed] = [Outcome::Completed, Outcome::Failed].map(|it| all(outcome_dir(it)));
    match role {
        Role::Producer => {
            let both = [SETTINGS.to_owned(), all(SCHEDULED), all(TMP)];
            // Only the hub of a synced queue has floors.
            let only_read = [DOCTOR.to_owned(), completed, failed, all(FLOORS)];
            ([&both[..], &task, &only_read].concat(), [&both[..], &task].concat(), Vec::new())
        }
        Role::Worker => {
            let others = [completed, failed, all(WORKERS), all(TMP)];
            (
                vec!["*".to_owned()],
                [&task[..], &lease, &others].concat(),
                vec![all(PENDING), all(SCHEDULED)],
            )
        }
        Role::Viewer => (vec!["*".to_owned()], Vec::new(), Vec::new()),
        Role::Supervisor => {
            let places = [all(PENDING), all(SCHEDULED), completed.clone(), failed.clone()];
            let others = [SETTINGS.to_owned(), all(FLOORS), all(WORKERS)];
            let written = [&task[..], &lease, &places[1..], &others];
            (vec!["*".to_owned()], written.concat(), places.to_vec())
        }
    }
}

/// A text in which a policy is to see no pattern and no variable.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '*' | '?' | '$' => out.extend(['$', '{', letter, '}']),
            letter => out.push(letter),
        }
    }
    out
}
