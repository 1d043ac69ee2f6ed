use super::*;

fn entry(mark: &str, told: Told) -> Entry {
    Entry { mark: mark.to_owned(), told }
}

fn silent() -> Told {
    Told::Unknown("timed out".to_owned())
}

#[test]
fn one_winner_whose_content_is_there() {
    let entries = [entry("a", Told::Lost), entry("b", Told::Won), entry("c", silent())];
    assert_eq!(judge(&entries, Some(b"b")), Round::Exact);
    assert!(matches!(judge(&entries, Some(b"a")), Round::Wrong(1, _)));
    assert!(matches!(judge(&entries, None), Round::Wrong(1, _)));
}

#[test]
fn two_winners_are_one_too_many() {
    let entries = [entry("a", Told::Won), entry("b", Told::Won), entry("c", Told::Lost)];
    let Round::Wrong(2, why) = judge(&entries, Some(b"b")) else { panic!("two won") };
    assert_eq!(why, "2 of 3 clients were told that it is theirs");
}

#[test]
fn a_lost_answer_is_no_loss() {
    let entries = [entry("a", Told::Lost), entry("b", silent())];
    assert_eq!(judge(&entries, Some(b"b")), Round::Exact);
    // Tried again by the client itself, which then found its own.
    assert_eq!(judge(&entries, Some(b"a")), Round::Exact);
    assert_eq!(judge(&entries, None), Round::Undecided("timed out".to_owned()));
    assert_eq!(judge(&[entry("a", silent())], None), Round::Undecided("timed out".to_owned()));
}

#[test]
fn nobody_won_and_everybody_answered() {
    let entries = [entry("a", Told::Lost), entry("b", Told::Lost)];
    assert!(matches!(judge(&entries, Some(b"before")), Round::Wrong(0, _)));
    assert!(matches!(judge(&entries, None), Round::Wrong(0, _)));
}
