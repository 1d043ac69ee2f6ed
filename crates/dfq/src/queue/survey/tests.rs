use super::super::sieve::{AHEAD, staggered};
use super::*;
use crate::model::{TaskId, TaskKey};

const NOW: Duration = Duration::from_secs(100);

fn survey() -> Survey {
    Survey { shards: [Visit::Due; 256], own: (64, 128), ..Survey::default() }
}

fn candidate(name: &str) -> Candidate {
    Candidate::new(TaskKey::new(TaskId::new(name).unwrap(), 1))
}

#[test]
fn parts_cover_all_shards_once() {
    for count in 1..=256 {
        let parts: Vec<_> = (0..count).map(|rank| part(rank, count)).collect();
        assert_eq!(parts[0].0, 0);
        assert_eq!(parts[count - 1].1, 256);
        assert!(parts.windows(2).all(|two| two[0].1 == two[1].0), "{count}");
    }
    assert!((0..1000).all(|rank| part(rank, 1000).1 <= 256), "more workers than shards");
}

#[test]
fn own_shards_come_first() {
    let mut survey = survey();
    let leg = survey.next_leg(7, NOW).unwrap();
    assert_eq!((leg.first, leg.stop, leg.stealing), (64, 128, false));
    assert_eq!(survey.low_water(NOW), LOW_WATER);
    survey.shards[64..128].fill(Visit::Done);
    let leg = survey.next_leg(100, NOW).unwrap();
    assert_eq!((leg.first, leg.stop, leg.stealing), (128, 256, true));
    assert_eq!(survey.low_water(NOW), 1, "what is stolen does not keep");
    survey.shards.fill(Visit::Done);
    assert!(survey.next_leg(0, NOW).is_none() && !survey.in_round());
}

#[test]
fn a_contested_shard_is_left_alone_for_a_while() {
    let mut survey = survey();
    survey.shards.fill(Visit::Done);
    survey.is_contested(Shard::FIRST, NOW + GIVE_WAY);
    assert_eq!((survey.next_leg(200, NOW), survey.in_round()), (None, true));
    let leg = survey.next_leg(200, NOW + GIVE_WAY).unwrap();
    assert_eq!((leg.first, leg.stealing), (0, true));
}

#[test]
fn where_there_is_little_a_round_begins_with_the_first_shard() {
    let survey = Survey { from_the_first: true, ..survey() };
    let leg = survey.next_leg(200, NOW).unwrap();
    assert_eq!((leg.first, leg.stop), (0, 256));
}

#[test]
fn thieves_begin_near_the_end_of_another_part() {
    for count in [2, 3, 8, 100, 256] {
        for rank in [0, count / 2, count - 1] {
            let survey = Survey { own: part(rank, count), ..survey() };
            for chance in 0..256 {
                let place = survey.near_an_end(chance) % 256;
                assert!(count < 3 || !survey.is_own(place), "{rank} of {count}: {place}");
            }
        }
    }
    let whole = Survey { own: (0, 256), ..survey() };
    assert!(whole.near_an_end(255) % 256 >= 128, "alone, it is a place like any other");
}

/// As many claims as are made at once should meet somebody no more than once.
#[test]
fn one_of_a_shard_is_tried_ahead() {
    for size in [1, 5, 40, 200] {
        let shard = |name| (0..size).map(|n| candidate(&format!("{name:02}-{n}"))).collect();
        let order = staggered((0..20).map(shard).collect());
        assert_eq!(order.len(), 20 * size);
        for name in 0..20 {
            let of_shard = |it: &Candidate| it.key.to_string().starts_with(&format!("{name:02}-"));
            let places: Vec<usize> = (0..order.len()).filter(|n| of_shard(&order[*n])).collect();
            let lead = places.get(1).map_or(AHEAD, |second| second - places[0]);
            assert!(name * size < AHEAD || lead >= AHEAD / 2, "{name} of {size}: {lead}");
            assert!(lead <= 2 * AHEAD, "{name} of {size}: {lead}, and it is no news any more");
        }
    }
}
