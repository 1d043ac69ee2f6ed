//! What polls may cost: the same, however much is there that cannot be claimed.
//!
//! Invariant: a process pays for what has changed since its last poll, or was there when it came. A poll that finds
//! nothing new costs no more than so many calls. The figures are what our plans take, and half as much again.

use std::collections::BTreeMap;

use super::Rule;
use super::facts::Facts;
use super::walk::Born;

/// All of them.
pub(super) const ALL: [Rule; 1] = [("polls stay within their cost", polls_are_cheap)];

/// Calls: to come, for each poll, and for each change of the queue.
struct Budget(u64, u64, u64);

/// A poll on a disk looks at each shard, and every second at each task that somebody has.
const ON_DISK: Budget = Budget(200, 35, 40);
const IN_BUCKET: Budget = Budget(60, 9, 20);

fn polls_are_cheap(facts: &Facts, _: &[Born]) -> Vec<String> {
    let Budget(to_come, a_poll, a_change) = if facts.in_bucket { IN_BUCKET } else { ON_DISK };
    let (mut spent, mut looked) = (BTreeMap::new(), BTreeMap::new());
    // A process that is refused something tries it again and again.
    for poll in facts.polls.iter().filter(|poll| facts.sound(poll.pid)) {
        let process = (poll.pid, poll.queue);
        let since = looked.insert(process, poll.asked).unwrap_or_default();
        let of_it = facts.changes.iter().filter(|(_, queue)| *queue == poll.queue);
        let new = of_it.filter(|(at, _)| (since..=poll.told).contains(at)).count() as u64;
        let (calls, polls, changes) = spent.entry(process).or_insert((0, 0, 0));
        *calls += poll.calls;
        *polls += 1;
        *changes += new;
    }
    let dear = spent.into_iter().filter(|(_, (calls, polls, changes))| {
        *calls > to_come + a_poll * polls + a_change * changes
    });
    let show = |((pid, queue), (calls, polls, changes))| {
        format!(
            "{pid} made {calls} calls in {polls} polls of queue {queue}, with {changes} changes"
        )
    };
    dear.map(show).collect()
}
