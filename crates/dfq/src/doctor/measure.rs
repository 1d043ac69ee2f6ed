//! How fast the store is: each operation for a moment, at several numbers of clients at once.

use std::time::Duration;

use serde::Serialize;

use super::subject::{Kind, Subject};
use crate::clock::Env;
use crate::error::Result;
use crate::layout;
use crate::store::Tree;

/// An operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Creates a file that survives a power cut.
    DurableCreate,
    /// Creates a file.
    Create,
    /// Replaces a file.
    Replace,
    /// Reads a file.
    Read,
    /// Lists a folder of a few names.
    List,
}

impl Operation {
    /// In a few words.
    pub fn name(self) -> &'static str {
        match self {
            Self::DurableCreate => "durable create",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Read => "read",
            Self::List => "list",
        }
    }
}

/// How an operation went.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Which operation.
    pub operation: Operation,
    /// How many did it at once.
    pub clients: usize,
    /// How many were done in all.
    pub count: usize,
    /// Half took no longer.
    pub median_ms: f64,
    /// 95 of 100 took no longer.
    pub p95_ms: f64,
    /// All clients together.
    pub per_second: f64,
}

/// How many do the same at once.
const CLIENTS: [usize; 3] = [1, 8, 32];
/// No operation is measured for longer, once it was done a few times.
const MOMENT: Duration = Duration::from_millis(300);
const AT_LEAST: usize = 3;
const AT_MOST: usize = 300;
/// As large as an ordinary task.
const CONTENT: [u8; 300] = [b'x'; 300];

/// Measures one operation.
async fn one<T: Tree>(
    subject: &Subject<T>,
    env: &Env,
    scratch: &str,
    operation: Operation,
    clients: usize,
) -> Result<Speed> {
    let folder =
        layout::below(scratch, &format!("{}-{clients}", operation.name().replace(' ', "-")));
    let sample = layout::below(scratch, "sample");
    let began = env.monotonic();
    let parts = subject.together(clients, |subject, client| {
        let (env, folder, sample) = (env.clone(), folder.clone(), sample.clone());
        async move {
            let tree = subject.tree();
            let mut took = Vec::new();
            while took.len() < AT_LEAST
                || (took.len() < AT_MOST && env.monotonic() - began < MOMENT)
            {
                let path = layout::below(&folder, &format!("{client}-{}", took.len()));
                let before = env.monotonic();
                match operation {
                    Operation::DurableCreate | Operation::Create => {
                        let durable = operation == Operation::DurableCreate;
                        let file = [(path, CONTENT.to_vec())];
                        let done = tree.create_all(&file, durable).await;
                        done.into_iter().collect::<Result<Vec<_>>>()?;
                    }
                    Operation::Replace => {
                        tree.replace(&layout::below(&folder, &client.to_string()), &CONTENT)
                            .await?;
                    }
                    Operation::Read => drop(tree.read(&layout::below(&sample, "0")).await?),
                    Operation::List => drop(tree.list_folder(&sample, None, 100).await?),
                }
                took.push(env.monotonic() - before);
            }
            Ok::<_, crate::Error>(took)
        }
    });
    let parts = parts.await;
    let elapsed = (env.monotonic() - began).as_secs_f64();
    let mut took: Vec<Duration> = Vec::new();
    for part in parts {
        took.extend(part?);
    }
    took.sort_unstable();
    let percentile = |percent: usize| {
        let at = (took.len() * percent).div_ceil(100).saturating_sub(1);
        took.get(at).copied().unwrap_or_default().as_micros() as f64 / 1000.0
    };
    Ok(Speed {
        operation,
        clients,
        count: took.len(),
        median_ms: percentile(50),
        p95_ms: percentile(95),
        per_second: if elapsed > 0.0 { took.len() as f64 / elapsed } else { 0.0 },
    })
}

/// The operations of a store: in a bucket every create is durable.
fn operations(kind: &Kind, creates: bool) -> &'static [Operation] {
    use Operation::{Create, DurableCreate, List, Read, Replace};
    match kind {
        _ if !creates => &[Replace, Read, List],
        Kind::Bucket(_) => &[Create, Replace, Read, List],
        _ => &[DurableCreate, Create, Replace, Read, List],
    }
}

/// What is to be measured, one thing after the other.
pub(super) fn plan<T: Tree>(subject: &Subject<T>, creates: bool) -> Vec<(Operation, usize)> {
    let operations = operations(subject.kind(), creates).iter();
    operations.flat_map(|operation| CLIENTS.map(|clients| (*operation, clients))).collect()
}

/// Lays out what is read and listed.
pub(super) async fn prepare<T: Tree>(subject: &Subject<T>, scratch: &str) -> Result<()> {
    let folder = layout::below(&layout::below(scratch, "measure"), "sample");
    let written = subject.together(10, |subject, number| {
        let path = layout::below(&folder, &number.to_string());
        async move { subject.tree().replace(&path, &CONTENT).await }
    });
    written.await.into_iter().collect()
}

/// Measures one thing of the plan.
pub(super) async fn measure<T: Tree>(
    subject: &Subject<T>,
    env: &Env,
    scratch: &str,
    (operation, clients): (Operation, usize),
) -> Result<Speed> {
    one(subject, env, &layout::below(scratch, "measure"), operation, clients).await
}
