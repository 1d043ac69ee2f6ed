//! The least that each role must be allowed in SQS, in AWS's words.
//!
//! Invariant, as in a bucket: a role can do its job with exactly these permissions, and with any one of
//! them taken away something of it fails. A test tries both.

use serde_json::{Value, json};

use crate::address::SqsAddress;
use crate::model::Role;

/// The policy for a role on a queue and on the dead-letter queue that the configuration names, to be
/// attached to whoever plays it.
///
/// ```
/// use dfq::address::SqsAddress;
/// use dfq::model::Role;
/// use dfq::sqs::policy;
/// let queue = SqsAddress::parse("https://sqs.eu-north-1.amazonaws.com/123456789012/jobs")?;
/// let policy = policy(&queue, None, Role::Viewer);
/// assert_eq!(policy["Statement"][0]["Resource"], "arn:aws:sqs:eu-north-1:123456789012:jobs");
/// # Ok::<(), dfq::Error>(())
/// ```
pub fn policy(queue: &SqsAddress, dead_letter: Option<&SqsAddress>, role: Role) -> Value {
    let mut statements = vec![statement("Queue", queue, on_queue(queue, role))];
    if let Some(dead) = dead_letter {
        statements.push(statement("DeadLetters", dead, on_dead_letters(queue, dead, role)));
    }
    statements
        .retain(|statement| statement["Action"].as_array().is_some_and(|all| !all.is_empty()));
    json!({ "Version": "2012-10-17", "Statement": statements })
}

/// Only a queue that is named has to be looked up, and only such a one can be made.
fn by_name(address: &SqsAddress) -> bool {
    matches!(address, SqsAddress::Name(_))
}

fn on_queue(queue: &SqsAddress, role: Role) -> Vec<&'static str> {
    let mut actions = vec!["GetQueueAttributes"];
    if by_name(queue) {
        actions.insert(0, "GetQueueUrl");
    }
    match role {
        Role::Producer if by_name(queue) => actions.extend(["CreateQueue", "SendMessage"]),
        Role::Producer => actions.push("SendMessage"),
        Role::Worker => {
            actions.extend(["ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"]);
        }
        // Nobody merges with a queue in SQS.
        Role::Viewer | Role::Supervisor => {}
    }
    actions
}

fn on_dead_letters(queue: &SqsAddress, dead: &SqsAddress, role: Role) -> Vec<&'static str> {
    let mut actions = Vec::new();
    if by_name(dead) {
        actions.push("GetQueueUrl");
    }
    match role {
        Role::Producer => {
            // A new queue is told the ARN of where SQS is to put what was received too often.
            if by_name(queue) {
                actions.push("GetQueueAttributes");
            }
            if by_name(dead) {
                actions.push("CreateQueue");
            }
        }
        Role::Worker => actions.extend(["GetQueueAttributes", "SendMessage"]),
        Role::Viewer | Role::Supervisor => actions.push("GetQueueAttributes"),
    }
    actions
}

fn statement(sid: &str, address: &SqsAddress, actions: Vec<&str>) -> Value {
    let actions: Vec<String> = actions.iter().map(|action| format!("sqs:{action}")).collect();
    json!({ "Sid": sid, "Effect": "Allow", "Action": actions, "Resource": arn(address) })
}

/// The queue in AWS's words. A bare name says neither region nor account: it means whichever the role
/// is used in.
fn arn(address: &SqsAddress) -> String {
    let (_, region) = address.endpoint_and_region();
    let account = match address {
        SqsAddress::Name(_) => None,
        SqsAddress::Url(url) => url.rsplit('/').nth(1).filter(|part| is_account(part)),
    };
    let (region, account) = (region.as_deref().unwrap_or("*"), account.unwrap_or("*"));
    format!("arn:aws:sqs:{region}:{account}:{}", address.name())
}

fn is_account(part: &str) -> bool {
    part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(policy: &Value, statement: usize) -> String {
        let actions = policy["Statement"][statement]["Action"].as_array().unwrap();
        let word = |action: &Value| action.as_str().unwrap().trim_start_matches("sqs:").to_owned();
        actions.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_name_is_looked_up_and_a_url_is_not() {
        let parse = |text: &str| SqsAddress::parse(text).unwrap();
        let (name, dead) = (parse("sqs://jobs"), parse("dead"));
        let producer = policy(&name, Some(&dead), Role::Producer);
        assert_eq!(actions(&producer, 0), "GetQueueUrl GetQueueAttributes CreateQueue SendMessage");
        assert_eq!(actions(&producer, 1), "GetQueueUrl GetQueueAttributes CreateQueue");
        assert_eq!(producer["Statement"][0]["Resource"], "arn:aws:sqs:*:*:jobs");
        assert_eq!(producer["Statement"][1]["Resource"], "arn:aws:sqs:*:*:dead");

        let url = parse("https://sqs.eu-north-1.amazonaws.com/123456789012/jobs.fifo");
        let dead = parse("https://sqs.eu-north-1.amazonaws.com/123456789012/dead.fifo");
        let producer = policy(&url, Some(&dead), Role::Producer);
        assert_eq!(actions(&producer, 0), "GetQueueAttributes SendMessage");
        assert_eq!(producer["Statement"].as_array().unwrap().len(), 1, "nothing to do elsewhere");
        let arn = "arn:aws:sqs:eu-north-1:123456789012:jobs.fifo";
        assert_eq!(producer["Statement"][0]["Resource"], arn);
        let own = policy(&parse("http://127.0.0.1:4566/queue/jobs"), None, Role::Viewer);
        assert_eq!(own["Statement"][0]["Resource"], "arn:aws:sqs:*:*:jobs");
    }
}
