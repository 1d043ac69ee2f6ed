//! How the window changes, who waits, and who is let in.

use futures::FutureExt;

use super::*;

const LARGE: u64 = 100_000;

/// As many as are let in at once, up to a hundred.
fn let_in(uplink: &Uplink) -> Vec<Upload> {
    std::iter::from_fn(|| uplink.enter(LARGE).now_or_never()?.ok()).take(100).collect()
}

#[test]
fn nobody_waits_until_one_times_out() {
    assert_eq!(let_in(&Uplink::default()).len(), 100);
}

/// Those that were sent together count once, however many of them time out.
#[test]
fn half_as_many_are_sent_after_a_timeout() {
    let uplink = Uplink::default();
    for expected in [100, 50, 25, 12, 6, 3, 1, 1] {
        let all = let_in(&uplink);
        assert_eq!(all.len(), expected);
        for upload in all {
            upload.timed_out();
        }
    }
}

/// Few were under way: that they time out says that half of those are enough, not half of what was allowed.
#[test]
fn what_was_sent_is_halved_and_not_what_might_have_been() {
    let uplink = Uplink::default();
    for upload in let_in(&uplink).into_iter().take(64) {
        upload.timed_out();
    }
    let mut all = let_in(&uplink);
    all.truncate(4);
    for upload in all {
        upload.timed_out();
    }
    assert_eq!(let_in(&uplink).len(), 2);
}

#[test]
fn one_more_is_sent_when_as_many_came_through() {
    let mut window = Window { limit: Some(2), ..Window::default() };
    for expected in [2, 3, 3, 3, 4, 4, 4, 4, 5] {
        window.widen();
        assert_eq!(window.limit, Some(expected));
    }
    for _ in 0..WIDEST * WIDEST {
        window.widen();
    }
    assert_eq!(window.limit, None, "the limit goes again");
}

/// An upload from before the limit was changed tells nothing of the new limit.
#[test]
fn a_late_timeout_does_not_count_again() {
    let mut window = Window::default();
    window.narrow(0, 64);
    window.narrow(0, 40);
    assert_eq!(window.limit, Some(32));
    window.narrow(1, 32);
    assert_eq!(window.limit, Some(16));
}

#[tokio::test]
async fn who_waits_is_let_in_when_another_ends() {
    let uplink = Uplink::default();
    uplink.enter(LARGE).await.unwrap().timed_out();
    let first = uplink.enter(LARGE).await.unwrap();
    let mut second = std::pin::pin!(uplink.enter(LARGE));
    assert!(second.as_mut().now_or_never().is_none());
    // It ends without any answer: its caller has dropped it.
    drop(first);
    let second = second.await.unwrap();
    let mut others = [(); 2].map(|()| Box::pin(uplink.enter(LARGE)));
    assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
    // Now two may be sent, and both that wait are woken.
    second.passed();
    let both = futures::future::join_all(others).await;
    assert!(both.iter().all(Result::is_ok));
}

/// Nothing comes through any more. Those that wait are told, and whoever comes later may try.
#[tokio::test]
async fn a_dead_line_is_told_to_all_that_wait() {
    for passes in [false, true] {
        let uplink = Uplink::default();
        let mut four = let_in(&uplink);
        four.truncate(4);
        for upload in four {
            upload.timed_out();
        }
        let [first, second] =
            [(); 2].map(|()| uplink.enter(LARGE).now_or_never().unwrap().unwrap());
        let mut waiting = [(); 3].map(|()| Box::pin(uplink.enter(LARGE)));
        assert!(waiting.iter_mut().all(|it| it.now_or_never().is_none()));
        if passes {
            first.passed();
            let let_in = waiting[0].as_mut().now_or_never();
            second.timed_out();
            assert!(let_in.is_some_and(|it| it.is_ok()), "one has made room");
            assert!(waiting[1].as_mut().now_or_never().is_some_and(|it| it.is_ok()));
            continue;
        }
        second.timed_out();
        drop(first);
        let told = futures::future::join_all(waiting).await;
        assert!(told.iter().all(Result::is_err), "{told:?}");
        assert_eq!(let_in(&uplink).len(), 1);
    }
}

/// What times out was given too little time: the next has twice as much, until all is well again.
#[test]
fn a_line_is_taken_for_slower_after_a_timeout() {
    let uplink = Uplink::default();
    for slower in [1, 2, 4, 8, 16, 16] {
        let upload = uplink.enter(LARGE).now_or_never().unwrap().unwrap();
        assert_eq!(uplink.shared_with(LARGE), slower * LARGE);
        upload.timed_out();
    }
    for _ in 0..WIDEST * WIDEST {
        uplink.enter(LARGE).now_or_never().unwrap().unwrap().passed();
    }
    assert_eq!(uplink.shared_with(LARGE), LARGE);
}

#[test]
fn what_is_small_never_waits() {
    let uplink = Uplink::default();
    uplink.enter(LARGE).now_or_never().unwrap().unwrap().timed_out();
    let all = let_in(&uplink);
    assert_eq!(all.len(), 1);
    assert!(uplink.enter(500).now_or_never().is_some());
    assert_eq!(uplink.shared_with(500), 1000, "twice as slow");
}

/// Each gets its share of the line, but none more than there is to send.
#[test]
fn a_line_is_shared_evenly() {
    let uplink = Uplink::default();
    assert_eq!(uplink.shared_with(LARGE), LARGE);
    let small: Vec<_> = (0..9).filter_map(|_| uplink.enter(LARGE).now_or_never()).collect();
    let large = uplink.enter(50 * LARGE).now_or_never();
    assert_eq!(uplink.shared_with(LARGE), 10 * LARGE);
    assert_eq!(uplink.shared_with(50 * LARGE), 59 * LARGE);
    drop((small, large));
    assert_eq!(uplink.shared_with(LARGE), LARGE);
}
