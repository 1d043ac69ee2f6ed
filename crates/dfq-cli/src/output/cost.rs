//! What a command asked of a store that charges by the request, told on stderr: stdout belongs to the
//! command's own answer, whatever it is piped into.

use dfq::meter::Counts;
use serde::Serialize;

use super::{Table, note, thousands};
use crate::context::Context;

/// The last line of stderr with `--cost --json`.
#[derive(Serialize)]
struct CostJson {
    cost: Cost,
}

#[derive(Serialize)]
struct Cost {
    /// By kind: how many were sent, how many of these were answered no, how many failed.
    requests: Counts,
    sent: u64,
    failed: u64,
    dollars: f64,
}

/// Says what was asked of the store, and what that costs.
pub(crate) fn cost(context: &Context) {
    let (requests, prices) = (context.meter.counts(), context.prices());
    let sent = requests.values().map(|count| count.sent).sum();
    let failed = requests.values().map(|count| count.failed).sum();
    let total = prices.dollars(&requests);
    if context.json {
        let cost = Cost { requests, sent, failed, dollars: total };
        if let Ok(line) = serde_json::to_string(&CostJson { cost }) {
            note!("{line}");
        }
        return;
    }
    if sent == 0 {
        note!("dfq: no request was sent to a store that charges for them");
        return;
    }
    let mut table = Table::new(&["REQUESTS", "SENT", "ANSWERED NO", "FAILED", "DOLLARS"]);
    let mut no = 0;
    for (kind, count) in &requests {
        no += count.no;
        let price = prices.per_million(*kind) * count.sent as f64 / 1e6;
        table.row([
            kind.word().to_uppercase(),
            thousands(count.sent),
            thousands(count.no),
            thousands(count.failed),
            dollars(price),
        ]);
    }
    let all = [thousands(sent), thousands(no), thousands(failed), dollars(total)];
    table.row(std::iter::once("all".to_owned()).chain(all));
    for line in table.lines(None) {
        note!("{line}");
    }
}

/// An amount of money, to four digits that mean something.
pub(crate) fn dollars(amount: f64) -> String {
    let places = match amount {
        0.0 => return "0".to_owned(),
        a if a >= 0.1 => 2,
        a if a >= 0.001 => 4,
        _ => 8,
    };
    format!("{amount:.places$}")
}
