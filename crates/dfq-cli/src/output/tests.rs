use super::*;

#[test]
fn lengths_in_two_units() {
    let of = |ms| duration(Duration::from_millis(ms));
    let got = [of(0), of(250), of(1999), of(59_000), of(60_000), of(61_000), of(13_800_000)];
    assert_eq!(got, ["0ms", "250ms", "1s", "59s", "1m", "1m1s", "3h50m"]);
    assert_eq!(of(7 * 86_400_000), "7d");
}

#[test]
fn bytes_in_the_largest_unit() {
    let said = [0, 1023, 1024, 12 * 1024 - 1, 3_500_000, u64::MAX].map(bytes);
    assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "12 KiB", "3.3 MiB", "16777216 TiB"]);
}

#[test]
fn numbers_with_commas() {
    assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([count(1, "task"), count(0, "task")], ["1 task", "0 tasks"]);
}

#[test]
fn nothing_that_a_terminal_would_obey() {
    assert_eq!(printable("a\u{1b}[2Jb\nc\u{9b}"), "a␣[2Jb␣c␣");
    assert_eq!(printable("exe\u{202e}gpj"), "exe␣gpj");
}

#[test]
fn words_for_a_shell() {
    assert_eq!(shell("./päivä-1"), "./päivä-1");
    assert_eq!(["", "a b", "it's"].map(shell), ["''", "'a b'", r"'it'\''s'"]);
}

#[test]
fn tables_line_up_whatever_the_script() {
    let mut table = Table::new(&["ID", "STATE"]);
    table.row(["日本".to_owned(), "ready".to_owned()]);
    table.row(["x".to_owned(), "a longer state".to_owned()]);
    assert_eq!(table.lines(None), ["ID    STATE", "日本  ready", "x     a longer state"]);
    assert_eq!(table.lines(Some(10))[2], "x     a l…");
}

/// Accents take no column, so a text of them was never cut, and to measure it took time by the square of its length.
#[test]
fn a_text_of_accents_is_cut_at_once() {
    let accents = "\u{301}".repeat(1 << 19);
    assert_eq!(cut(&format!("e{accents}"), 20).chars().count(), 161);
    assert_eq!(cut(&format!("{accents}{}", "x".repeat(300)), 20).chars().count(), 161);
    assert_eq!(cut("e\u{301}te\u{301}", 3), "e\u{301}te\u{301}");
}
