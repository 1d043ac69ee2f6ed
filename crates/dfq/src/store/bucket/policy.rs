//! The least that each role must be allowed in a bucket, in AWS's words.
//!
//! Invariant: a role can do its job with exactly these permissions, and with any one of them taken away
//! something of it fails. A test tries both.
//!
//! What is not there can only be told from what is forbidden by whoever may list, so every role may:
//! without `s3:ListBucket`, S3 answers 403 for both.

use serde_json::{Value, json};

use crate::address::{BucketAddress, Cloud};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DOCTOR, LEASE, PENDING, SCHEDULED, SETTINGS, TASK, TMP, WORKERS, outcome_dir};
use crate::model::{Outcome, Role};

/// The policy for a role on a queue, to be attached to whoever plays it.
pub fn policy(address: &BucketAddress, role: Role) -> Result<Value> {
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
    let (read, write, remove) = objects(role);
    for (sid, action, patterns) in [
        ("Read", "s3:GetObject", read),
        ("Write", "s3:PutObject", write),
        ("Remove", "s3:DeleteObject", remove),
    ] {
        if patterns.is_empty() {
            continue;
        }
        let resources: Vec<String> =
            patterns.iter().map(|pattern| format!("{bucket}/{below}{pattern}")).collect();
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
fn objects(role: Role) -> (Vec<String>, Vec<String>, Vec<String>) {
    let all = |folder: &str| format!("{folder}/*");
    let task = format!("{PENDING}/*/{TASK}");
    let [completed, failed] = [Outcome::Completed, Outcome::Failed].map(|it| all(outcome_dir(it)));
    match role {
        Role::Producer => (
            vec![
                SETTINGS.to_owned(),
                DOCTOR.to_owned(),
                task.clone(),
                all(SCHEDULED),
                completed,
                failed,
                all(TMP),
            ],
            vec![SETTINGS.to_owned(), task, all(SCHEDULED), all(TMP)],
            Vec::new(),
        ),
        Role::Worker => (
            vec!["*".to_owned()],
            vec![task, format!("{PENDING}/*/{LEASE}*"), completed, failed, all(WORKERS), all(TMP)],
            vec![all(PENDING), all(SCHEDULED)],
        ),
        Role::Viewer => (vec!["*".to_owned()], Vec::new(), Vec::new()),
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
