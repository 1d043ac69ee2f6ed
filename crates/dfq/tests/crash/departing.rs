//! Tasks that leave for another queue.

use super::*;

/// Takes what is there and ends it as moved.
fn take_and_move(queue: &Faulty, _: &[Receipt]) -> Result<()> {
    let (mut cursor, mut listed) = (Some(ListCursor::at(Place::Pending)), Vec::new());
    while let Some(from) = cursor.take().filter(|from| from.place() != Place::Completed) {
        let page = run(queue.list(Some(from)))?;
        listed.extend(page.tasks);
        cursor = page.next;
    }
    for taken in run(queue.claim_to_move(listed, LEASE)) {
        if let MoveClaim::Ours(delivery) = taken? {
            all(run(queue.moved(vec![(delivery.receipt, "elsewhere".into())])))?;
        }
    }
    Ok(())
}

#[test]
fn move_a_ready_one() {
    everything(&Verb { prepare: pushed, act: take_and_move, done: A, else_any_of: &[] });
}

/// It is published before its time, claimed, and ended.
#[test]
fn move_a_scheduled_one() {
    let scheduled = |_: &World, queue: &Faulty| {
        all(run(queue.push(vec![task("a").delay(Duration::from_secs(1))]))).unwrap();
        Vec::new()
    };
    stops_and_failures(&Verb { prepare: scheduled, act: take_and_move, done: A, else_any_of: &[] });
}
