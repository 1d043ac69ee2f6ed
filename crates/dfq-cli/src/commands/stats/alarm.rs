//! `--fail-if`: a condition on what was counted, as `failed>0` or `oldest>1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dfq::queue::Stats;
use jiff::Timestamp;

use crate::output;

/// What to compare.
const METRICS: [&str; 10] = [
    "pending",
    "ready",
    "leased",
    "stale",
    "backoff",
    "damaged",
    "scheduled",
    "completed",
    "failed",
    "oldest",
];

/// One condition.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    text: String,
    metric: &'static str,
    relation: Relation,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    More,
    AtLeast,
    Less,
    AtMost,
    Is,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    Count(u64),
    Age(Duration),
}

impl FromStr for Alarm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{why}; write METRIC OP VALUE, as 'failed>0', 'pending >= 1000' or 'oldest>1h'")
        };
        let at = text.find(['>', '<', '=']).ok_or_else(|| wrong("there is none of > >= < <= ="))?;
        let (name, rest) = text.split_at(at);
        let (relation, value) = [
            (">=", Relation::AtLeast),
            ("<=", Relation::AtMost),
            ("==", Relation::Is),
            (">", Relation::More),
            ("<", Relation::Less),
            ("=", Relation::Is),
        ]
        .into_iter()
        .find_map(|(sign, relation)| Some((relation, rest.strip_prefix(sign)?)))
        .ok_or_else(|| wrong("there is none of > >= < <= ="))?;
        let (name, value) = (name.trim(), value.trim());
        let Some(metric) = METRICS.into_iter().find(|metric| *metric == name) else {
            let known = METRICS.join(", ");
            return Err(wrong(&format!("'{name}' is no metric; there are {known}")));
        };
        let bound = if metric == "oldest" {
            Bound::Age(crate::args::duration(value)?)
        } else {
            let number = value.parse();
            Bound::Count(number.map_err(|_| wrong(&format!("'{value}' is no whole number")))?)
        };
        Ok(Self { text: text.trim().to_owned(), metric, relation, bound })
    }
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Alarm {
    pub(super) fn metric(&self) -> &'static str {
        self.metric
    }

    /// Whether names alone tell.
    pub(super) fn is_cheap(&self) -> bool {
        matches!(self.metric, "pending" | "scheduled" | "completed" | "failed")
    }

    /// The value, if the condition holds.
    pub(super) fn holds(&self, counted: &Stats, now: Timestamp) -> Option<String> {
        let states = counted.states.unwrap_or_default();
        match self.bound {
            Bound::Age(bound) => {
                let age = age(states.oldest?, now);
                self.relation.holds(&age, &bound).then(|| output::duration(age))
            }
            Bound::Count(bound) => {
                let count = match self.metric {
                    "pending" => counted.pending,
                    "ready" => states.ready,
                    "leased" => states.leased,
                    "stale" => states.stale,
                    "backoff" => states.backoff,
                    "damaged" => states.damaged,
                    "scheduled" => counted.scheduled,
                    "completed" => counted.completed,
                    _ => counted.failed,
                };
                self.relation.holds(&count, &bound).then(|| output::thousands(count))
            }
        }
    }
}

impl Relation {
    fn holds<T: Ord>(self, value: &T, bound: &T) -> bool {
        match self {
            Self::More => value > bound,
            Self::AtLeast => value >= bound,
            Self::Less => value < bound,
            Self::AtMost => value <= bound,
            Self::Is => value == bound,
        }
    }
}

/// How old; a time to come is no age at all.
pub(super) fn age(at: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(at).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use dfq::queue::PendingStates;

    use super::*;

    #[test]
    fn conditions_hold_or_not() {
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(10_000);
        let hour_old = Some(now - Duration::from_secs(3600));
        let states = PendingStates { ready: 3, stale: 1, oldest: hour_old, ..Default::default() };
        let counted = Stats { pending: 4, failed: 2, states: Some(states), ..Default::default() };
        let holds = |text: &str| text.parse::<Alarm>().unwrap().holds(&counted, now).is_some();
        for yes in ["pending=4", "pending == 4", "ready>=3", "stale<2", "failed > 1", "oldest>59m"]
        {
            assert!(holds(yes), "{yes}");
        }
        for no in ["pending>4", "ready<3", "failed<=1", "oldest>1h", "completed>0", "oldest<1h"] {
            assert!(!holds(no), "{no}");
        }
        assert!(!{
            let none = Stats { states: Some(PendingStates::default()), ..Default::default() };
            "oldest<1h".parse::<Alarm>().unwrap().holds(&none, now).is_some()
        });
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in
            ["", "pending", "pending>", ">1", "tasks>1", "oldest>5", "failed>1h", "failed>-1"]
        {
            assert!(wrong.parse::<Alarm>().is_err(), "{wrong}");
        }
    }
}
