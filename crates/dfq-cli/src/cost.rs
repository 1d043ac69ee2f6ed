//! What a look costs, said before it is taken.

use anyhow::Result;
use dfq::Queue;
use dfq::meter::{Prices, RequestKind};
use dfq::queue::{Detail, Place, Stats};

use crate::context::Context;
use crate::output;
use crate::select::Selection;

/// What costs more than this is said first: a cent.
const WORTH_SAYING: f64 = 0.01;

/// Requests that a task takes which is looked into: the task, its lease, its records.
const READS: u64 = 4;

/// What so many listings and reads cost, in dollars.
pub(crate) fn dollars(prices: &Prices, listings: u64, reads: u64) -> f64 {
    let list = prices.per_million(RequestKind::List) * listings as f64;
    let get = prices.per_million(RequestKind::Get) * reads as f64;
    (list + get) / 1e6
}

/// Says what a listing of these tasks is about to cost, if that is more than a cent.
pub(crate) async fn say_first(
    context: &Context,
    queue: &dyn Queue,
    selection: &Selection,
) -> Result<()> {
    // So few cannot cost as much.
    if selection.limit.is_some_and(|limit| limit < 1000) && selection.picks_nothing() {
        return Ok(());
    }
    let advice = "; --limit or --state asks for fewer tasks";
    say(context, queue, |stats| tasks_read(stats, selection), advice).await
}

/// The same for a search through all tasks in these places.
pub(crate) async fn say_first_of(
    context: &Context,
    queue: &dyn Queue,
    places: &[Place],
) -> Result<()> {
    let tasks = |stats: &Stats| places.iter().map(|place| tasks_in(stats, *place)).sum();
    say(context, queue, tasks, "").await
}

async fn say(
    context: &Context,
    queue: &dyn Queue,
    tasks: impl Fn(&Stats) -> u64,
    advice: &str,
) -> Result<()> {
    if !queue.capabilities().remote || !queue.capabilities().inspect || context.quiet {
        return Ok(());
    }
    let stats = queue.stats(Detail::Counts).await?;
    let reads = tasks(&stats) * READS;
    let dollars = dollars(&context.prices(), stats.exact_requests, reads);
    if dollars > WORTH_SAYING {
        crate::output::note!(
            "dfq: this takes about {} requests (${}){advice}",
            output::thousands(reads + stats.exact_requests),
            output::dollars(dollars)
        );
    }
    Ok(())
}

fn tasks_in(stats: &Stats, place: Place) -> u64 {
    match place {
        Place::Pending => stats.pending,
        Place::Scheduled => stats.scheduled,
        Place::Completed => stats.completed,
        Place::Failed => stats.failed,
    }
}

fn tasks_read(stats: &Stats, selection: &Selection) -> u64 {
    let places = [Place::Pending, Place::Scheduled, Place::Completed, Place::Failed];
    let wanted = places.into_iter().filter(|place| selection.wants(*place));
    let read = |place| match (place, selection.looks) {
        // By the listing, but for those that have a lease.
        (Place::Pending, Some(looks)) => stats.exact_reads.min(looks as u64),
        _ => tasks_in(stats, place),
    };
    let all = wanted.map(read).sum::<u64>();
    match selection.limit {
        Some(limit) if selection.picks_nothing() => all.min(limit as u64),
        _ => all,
    }
}
