//! `dfq iam-policy`: the least that somebody must be allowed in a bucket.

use anyhow::Result;
use clap::{Args, ValueEnum};
use dfq::config::Address;
use dfq::store::bucket::{Role, policy};

use crate::context::Context;
use crate::exit::{Answer, unsupported};
use crate::output;

/// Print the least AWS policy with which a role can do its job
///
/// A producer makes the queue and pushes; a worker claims, finishes and gives back, as `dfq work` does; a
/// viewer looks (ls, show, stats, top, explain, export). Operators, who cancel, retry, pause, repair and
/// remove what is old, need s3:GetObject, s3:PutObject and s3:DeleteObject on all of the prefix.
#[derive(Args, Debug)]
pub(crate) struct IamPolicy {
    /// The queue, in a bucket of S3
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// Who it is for
    #[arg(long, value_enum)]
    role: RoleName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    Producer,
    Worker,
    Viewer,
}

impl IamPolicy {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let role = match self.role {
            RoleName::Producer => Role::Producer,
            RoleName::Worker => Role::Worker,
            RoleName::Viewer => Role::Viewer,
        };
        let policy = match context.target(&self.queue)?.address {
            Address::Bucket(address) => policy(&address, role)?,
            elsewhere => {
                return Err(unsupported(format!(
                    "{elsewhere} is no bucket: who may use it is not decided by a policy for S3"
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
