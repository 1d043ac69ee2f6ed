use dfq::queue::Stats;
use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use super::super::snapshot::{Failure, Lease, Snapshot};
use super::*;

fn snapshot(name: &str, many: usize) -> Snapshot {
    let now = Timestamp::UNIX_EPOCH;
    let id = |n: usize| format!("tâche\u{1b}[2J-日本-{n}");
    let lease = |n| Lease { id: id(n), worker_id: "w".into(), since: None, until: now };
    let failure = |n| Failure { id: id(n), at: Some(now), error: "boom\r\nagain".into() };
    Snapshot::made_up(
        name,
        Stats { pending: 7, paused: true, ..Stats::default() },
        (0..many).map(lease).collect(),
        (0..many).map(failure).collect(),
    )
}

#[test]
fn it_fits_any_screen_and_obeys_nobody() {
    for many in [0, 1, 50] {
        let snapshots = [snapshot("a", many), snapshot("b\u{7}", many)];
        for width in [0, 1, 2, 10, 80, 300] {
            for height in [0, 1, 2, 5, 11, 24, 200] {
                for snapshots in [&snapshots[..0], &snapshots[..1], &snapshots[..]] {
                    let lines = lines(snapshots, width, height);
                    assert!(lines.len() <= height, "{width}x{height}");
                    for line in lines {
                        assert!(line.width() <= width, "{width}x{height}: {line}");
                        assert!(!line.contains(char::is_control), "{line:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_part_has_its_share() {
    let lines = lines(&[snapshot("a", 50)], 80, 24);
    for part in ["LEASED", "FAILED", "PAUSED"] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
}

#[test]
fn how_the_merge_goes_stands_below_the_counts() {
    let mut snapshot = snapshot("./a", 1);
    snapshot.merge = vec!["merged 3s ago: 1 up, 2 down".into(), "./a: now that fails".into()];
    let lines = lines(&[snapshot], 80, 24);
    let at = lines.iter().position(|line| line.starts_with("merged 3s ago")).unwrap();
    assert!(lines[at - 1].contains("completed"), "{lines:#?}");
    assert!(lines[at + 1].contains("now that fails"), "{lines:#?}");
}
