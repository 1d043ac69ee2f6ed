//! `dfq iam-policy`: the least that somebody must be allowed in a bucket, or in SQS.

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::address::{Address, SqsAddress};
use dfq::model::Role;
use dfq::sqs;
use dfq::store::bucket::{self, Dialect};

use crate::context::Context;
use crate::exit::{Answer, unsupported};
use crate::output;

/// Print the least policy with which a role can do its job, for AWS or Ceph
///
/// A producer makes the queue and pushes; a worker claims, finishes and gives back, as `dfq work` does; a
/// viewer looks (ls, show, stats, top, explain, export); a supervisor merges a folder with the hub of a synced queue, which
/// it makes if it is not there (`dfq supervise`). Operators, who cancel, retry, pause, repair and
/// remove what is old, need s3:GetObject, s3:PutObject and s3:DeleteObject on all of the prefix.
///
/// In SQS a viewer can only count (stats, wait, queues). The dead-letter queue is the one that dfq.toml
/// names; where a queue only has a redrive policy, SQS itself moves what fails for good. A name is allowed
/// in every region and account that the role is used in, a queue's URL in its own alone. Queues that are
/// encrypted with a key of one's own need that key's permissions too.
#[derive(Args, Debug)]
pub(crate) struct IamPolicy {
    /// The queue, in a bucket of S3 or in SQS
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// Who it is for
    #[arg(long, value_enum)]
    role: RoleName,
    /// For a Ceph gateway, which reads a policy otherwise than AWS
    #[arg(long)]
    ceph: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    Producer,
    Worker,
    Viewer,
    Supervisor,
}

impl IamPolicy {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let role = match self.role {
            RoleName::Producer => Role::Producer,
            RoleName::Worker => Role::Worker,
            RoleName::Viewer => Role::Viewer,
            RoleName::Supervisor => Role::Supervisor,
        };
        let dialect = if self.ceph { Dialect::Ceph } else { Dialect::Aws };
        let mut target = context.target(&self.queue)?;
        // The folder needs no policy; what is merged with it does.
        if let Some(hub) = target.hub.take() {
            if role == Role::Worker {
                return Err(unsupported(
                    "a worker of a synced queue uses the folder alone; it is the supervisor that needs a policy".to_owned(),
                ));
            }
            target.address = hub;
        }
        let policy = match &target.address {
            Address::Bucket(address) => bucket::policy(address, role, dialect)?,
            Address::Sqs(_) if self.ceph => {
                return Err(unsupported("a Ceph gateway has buckets, and no SQS".to_owned()));
            }
            Address::Sqs(_) if role == Role::Supervisor => {
                return Err(unsupported(
                    "a queue in SQS cannot be the hub of a synced one".to_owned(),
                ));
            }
            Address::Sqs(address) => {
                let dead_letter = target.sqs.dead_letter.as_deref().map(SqsAddress::parse);
                sqs::policy(address, dead_letter.transpose()?.as_ref(), role)
            }
            elsewhere => {
                return Err(unsupported(format!(
                    "{elsewhere} is not on AWS: who may use it is not decided by a policy there"
                )));
            }
        };
        match context.json {
            true => output::json_line(&policy)?,
            false => output::line(&serde_json::to_string_pretty(&policy)?)?,
        }
        Ok(Answer::Yes)
    }
}
