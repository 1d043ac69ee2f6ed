//! `dfq queues`: what is configured, and what is there.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use dfq::address::{Address, SqsAddress};
use dfq::config::{Provider, Target};
use dfq::sqs::Sqs;
use dfq::{ErrorKind, OpenOptions};
use serde::Serialize;

use crate::context::{Context, whole};
use crate::exit::{Answer, invalid};
use crate::output::{self, Table};

/// List the queues that are configured, and those that are there
///
/// Looks at every queue of dfq.toml, and for others in the campaign's folder, in its part of the bucket, or
/// where names mean queues of SQS among those that begin with the campaign's name. THERE is yes, no (the
/// first push makes it), or why that cannot be told; a queue that is there without a name in dfq.toml has
/// to be opened by its address.
#[derive(Args, Debug)]
pub(crate) struct Queues {}

#[derive(Serialize)]
struct Row {
    queue: String,
    configured: bool,
    address: String,
    there: bool,
    /// Why it cannot be told whether it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

impl Queues {
    pub(crate) async fn run(self, context: &Context) -> Result<Answer> {
        let mut rows = Vec::new();
        for name in context.config.names() {
            rows.push(row_of(context, name).await);
        }
        rows.extend(others(context, &rows).await?);
        if rows.is_empty() {
            let hint =
                "there is no dfq.toml here that names any, and none in the campaign's folder";
            return Err(invalid(format!("there are no queues: {hint}")));
        }
        if context.json {
            rows.iter().try_for_each(output::json_line)?;
            return Ok(Answer::Yes);
        }
        let mut table = Table::new(&["QUEUE", "THERE", "CONFIGURED", "ADDRESS"]);
        for row in rows {
            let word = |yes| if yes { "yes" } else { "no" }.to_owned();
            let there = row.trouble.map_or_else(|| word(row.there), |why| format!("? ({why})"));
            table.row([row.queue, there, word(row.configured), row.address]);
        }
        table.print()?;
        Ok(Answer::Yes)
    }
}

/// A queue of the file.
async fn row_of(context: &Context, name: &str) -> Row {
    let row = |address: String, there, trouble| Row {
        queue: name.to_owned(),
        configured: true,
        address,
        there,
        trouble,
    };
    let target = match context.target(name) {
        Ok(target) => target,
        Err(error) => return row("-".to_owned(), false, Some(format!("{error:#}"))),
    };
    let address = whole(&target.address);
    match dfq::open(&target.address, context.access(&target, OpenOptions::existing())).await {
        Ok(_) => row(address, true, None),
        Err(error) if error.kind() == ErrorKind::NotFound => row(address, false, None),
        Err(error) => row(address, false, Some(error.to_string())),
    }
}

/// Queues of the campaign that are there and have no name in the file.
async fn others(context: &Context, known: &[Row]) -> Result<Vec<Row>> {
    let mut found = BTreeMap::new();
    for provider in [Provider::Filesystem, Provider::S3] {
        let Some(campaign) = context.config.campaign_address(provider) else { continue };
        let existing = context.access_s3(OpenOptions::existing());
        // Where nothing can be listed there is nothing to add; its queues have said why.
        let Ok(names) = dfq::queues_below(&campaign, &existing).await else { continue };
        for (name, address) in names {
            let address = whole(&address);
            if known.iter().all(|row| row.address != address) {
                found.insert(address, name);
            }
        }
    }
    for name in others_in_sqs(context).await {
        let address = Address::Sqs(SqsAddress::Name(name.clone())).to_string();
        if known.iter().all(|row| row.address != address) {
            found.insert(address, name);
        }
    }
    let row =
        |(address, queue)| Row { queue, configured: false, address, there: true, trouble: None };
    Ok(found.into_iter().map(row).collect())
}

/// Queues of SQS that belong to the campaign by their names, less those that others' dead letters go to.
/// Nobody is asked unless a name means a queue there.
async fn others_in_sqs(context: &Context) -> Vec<String> {
    let targets = context.config.names().filter_map(|name| context.target(name).ok());
    let in_sqs: Vec<_> = targets.filter(|it| matches!(it.address, Address::Sqs(_))).collect();
    let Some(target) = in_sqs.first() else { return Vec::new() };
    let options = context.access(target, OpenOptions::existing());
    let prefix = format!("{}-", context.config.campaign());
    // Where nothing can be listed there is nothing to add; its queues have said why.
    let names = Sqs::names(&prefix, &options).await.unwrap_or_default();
    let dead_letters = |it: &Target| SqsAddress::parse(it.sqs.dead_letter.as_deref()?).ok();
    let dead: Vec<SqsAddress> = in_sqs.iter().filter_map(dead_letters).collect();
    names.into_iter().filter(|name| dead.iter().all(|dead| dead.name() != name)).collect()
}
