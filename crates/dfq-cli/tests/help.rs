//! The help of every command, and what is said to those who mistype.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::Desk;

/// The names of all commands, as the help itself lists them: of all, or of those below one.
fn commands(desk: &Desk, above: &[&str]) -> Vec<String> {
    let help = desk.ok(&[above, &["-h"]].concat());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = listed.take_while(|line| !line.is_empty());
    let name = |line: &str| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned);
    lines.filter_map(name).filter(|name| !name.is_empty() && name != "help").collect()
}

#[test]
fn help() {
    let desk = Desk::new();
    let below_index = commands(&desk, &["index"]);
    let commands = commands(&desk, &[]);
    assert!(commands.len() >= 30, "{commands:?}");
    assert_transcript!("help", desk.transcript(&[desk.dfq(&["--help"]), desk.dfq(&[])]));
    for command in commands {
        let said = desk.dfq(&["help", &command]);
        assert_eq!(said.status, Some(0));
        assert_transcript!(format!("help_{command}"), desk.transcript(&[said]));
    }
    assert!(below_index.len() >= 7, "{below_index:?}");
    let said: Vec<_> = below_index.iter().map(|verb| desk.dfq(&["help", "index", verb])).collect();
    assert!(said.iter().all(|said| said.status == Some(0)));
    assert_transcript!("help_index_verbs", desk.transcript(&said));
}

#[test]
fn mistyped() {
    let desk = Desk::new();
    let said = [
        desk.dfq(&["psuh", "./jobs"]),
        desk.dfq(&["push", "./jobs", "--agian", "a=1"]),
        desk.dfq(&["ls", "./jobs", "--state", "redy"]),
        desk.dfq(&["ls"]),
        desk.dfq(&["init", "./jobs", "--layout", "round"]),
        desk.dfq(&["stats", "./nowhere"]),
    ];
    assert_transcript!("mistyped", desk.transcript(&said));
}

#[test]
fn help_on_a_terminal_fits_and_has_colour() {
    let desk = Desk::new();
    let said = desk.on_terminal(&["help", "work"], "");
    assert!(said.out.contains("\u{1b}["), "{said:?}");
    let mut plain = String::new();
    let mut rest = said.out.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain += before;
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain += rest;
    assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
}
