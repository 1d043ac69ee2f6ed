use proptest::prelude::*;

use super::super::row::{Stamp, begin, trim};
use super::super::ulid::{Ulid, time_text};
use super::*;

const DAY: u64 = 24 * 3600 * 1000;

fn row(key: &str, millis: u64, ulid: u64, value: Option<&str>) -> Vec<u8> {
    let time = jiff::Timestamp::from_millisecond(millis as i64).unwrap();
    let mut id = Ulid::parse("00000000000000000000000000").unwrap();
    for _ in 0..ulid {
        id = id.next();
    }
    let stamp = Stamp { updated_at: time_text(time).unwrap(), ulid: id };
    let mut row = begin(key, &stamp, value.is_none());
    if let Some(value) = value {
        row.push(usv::FIELD);
        usv::escape(&mut row, value);
    }
    trim(&mut row);
    row
}

fn schema() -> Schema {
    let mut schema = Schema::new("key").unwrap();
    schema.add(&[super::super::Column::new("v", super::super::Kind::String)]).unwrap();
    schema
}

fn merge(base: &[u8], news: &[Vec<u8>], forget: Option<u64>, part: usize) -> Result<Merged> {
    let schema = schema();
    let mut rows = Rows::default();
    for row in news {
        rows.add(&schema, row);
    }
    let mut merger = Merger::new(&schema, rows, forget, 0);
    for part in base.chunks(part.max(1)) {
        merger.feed(part)?;
    }
    merger.finish()
}

fn any_row() -> impl Strategy<Value = Vec<u8>> {
    ("[a-c]{1,2}", 0..4_u64, 0..4_u64, prop::option::of("[x\u{1f}\n]{0,2}"))
        .prop_map(|(key, millis, ulid, value)| row(&key, millis, ulid, value.as_deref()))
}

proptest! {
    /// However rows are spread over merges, and however often each is merged, the bytes are the same.
    #[test]
    fn any_order_and_repetition_give_the_same_bytes(
        rows in prop::collection::vec(any_row(), 0..12),
        cut in any::<prop::sample::Index>(),
        part in 1..50_usize,
    ) {
        let whole = merge(b"", &rows, None, part).unwrap();
        let cut = cut.index(rows.len() + 1);
        let first = merge(b"", &rows[cut..], None, part).unwrap();
        let second = merge(&first.bytes, &rows[..cut], None, part).unwrap();
        prop_assert_eq!(&second.bytes, &whole.bytes);
        prop_assert_eq!(second.changed, second.bytes != first.bytes);
        let again = merge(&whole.bytes, &rows, None, part).unwrap();
        prop_assert!(!again.changed);
        prop_assert_eq!(again.bytes, whole.bytes);
        prop_assert_eq!(again.counts, whole.counts);
    }

    /// The merge agrees with the plainest way to say what it does.
    #[test]
    fn the_latest_row_of_each_key_is_left(rows in prop::collection::vec(any_row(), 0..12)) {
        let schema = schema();
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for row in &rows {
            let there = expected.entry(usv::key_of(row).to_vec()).or_insert_with(|| row.clone());
            if schema.compare(row, there).is_gt() {
                there.clone_from(row);
            }
        }
        let merged = merge(b"", &rows, None, 1).unwrap();
        let mut left: Vec<Vec<u8>> = usv::rows(&merged.bytes).map(<[u8]>::to_vec).collect();
        for row in &left {
            prop_assert_eq!(usv::width(row), 5);
        }
        left.iter_mut().for_each(trim);
        let deletions = left.iter().filter(|row| schema.is_deletion(row)).count();
        prop_assert_eq!(merged.counts.deletions, deletions as u64);
        prop_assert_eq!(merged.counts.records, (left.len() - deletions) as u64);
        prop_assert_eq!(left, expected.into_values().collect::<Vec<_>>());
    }

    #[test]
    fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 1..80)) {
        prop_assert!(merge(&bytes, &[], None, 7).is_err());
    }
}

#[test]
fn a_deletion_beats_a_late_older_record_until_it_is_forgotten() {
    let (deletion, older) = (row("a", 2, 0, None), row("a", 1, 0, Some("old")));
    let shard = merge(b"", &[deletion], None, 9).unwrap();
    assert_eq!(shard.counts, Counts { records: 0, deletions: 1 });
    let late = merge(&shard.bytes, &[older], None, 9).unwrap();
    assert_eq!((late.changed, &late.bytes), (false, &shard.bytes));
    // By its ulid, which here is of the year 1970; not by its time, which may be anything.
    let forgotten = merge(&shard.bytes, &[], Some(DAY), 9).unwrap();
    assert_eq!((forgotten.changed, forgotten.bytes.len()), (true, 0));
    let kept = merge(&shard.bytes, &[], Some(0), 9).unwrap();
    assert!(!kept.changed);
}

#[test]
fn a_shard_that_was_not_written_by_us_says_where() {
    let (a, b) = (row("a", 1, 0, Some("1")), row("b", 1, 0, Some("1")));
    let text = |rows: &[&[u8]]| rows.join(&usv::END);
    for (bytes, why) in [
        (text(&[&b, &a, b""]), "row 2: the rows are not sorted"),
        (text(&[&a, &a, b""]), "row 2: the rows are not sorted"),
        (text(&[&a, &b]), "cut short"),
        (text(&[&a, b"", b""]), "row 2: it has no key"),
        (text(&[&a, b"b\x1f2026\x1fX", b""]), "row 2: _updated_at or _ulid"),
    ] {
        let error = merge(&bytes, &[], None, 1000).err().unwrap();
        assert!(error.to_string().contains(why), "{error} instead of {why}");
    }
}
