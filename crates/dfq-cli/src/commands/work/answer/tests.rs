use super::*;

/// The name of an unknown member was repeated as it was: any length, with its control characters.
#[test]
fn a_complaint_does_not_repeat_what_a_terminal_would_obey() {
    let line = format!("{{\"\\u001b[2J{}\":true}}\n", "x".repeat(100_000));
    let why = read(line.as_bytes(), "a", &mut false).map(|_| ()).unwrap_err();
    assert!(why.contains("unknown field") && !why.contains(char::is_control), "{why:?}");
    assert!(why.len() < 1000, "{}", why.len());
}
