use super::*;

fn template(command: &[&str]) -> anyhow::Result<Template> {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    Template::new(&command, false)
}

fn filled(args: &[&str], task: &str) -> Result<Vec<String>> {
    let command: Vec<&str> = std::iter::once("cmd").chain(args.iter().copied()).collect();
    template(&command).unwrap().fill(task)
}

#[test]
fn fields_are_filled_in_and_other_braces_stay() {
    let task =
        r#"{"url": "http://x/?a=b c", "n": 12345678901234567890123, "a": {"b": [1, {"c": null}]}}"#;
    let args =
        ["{.url}", "--n={.n}", "{.a.b.0}{.a.b.1.c}", "{", "}", "{x}", "${HOME}", "{.}", "a{}b"];
    let expected = [
        "http://x/?a=b c",
        "--n=12345678901234567890123",
        "1null",
        "{",
        "}",
        "{x}",
        "${HOME}",
        "{.}",
    ];
    let got = filled(&args, task).unwrap();
    assert_eq!(got[..8], expected);
    assert_eq!(got[8], format!("a{task}b"));
}

#[test]
fn json_in_an_argument_is_left_alone() {
    for literal in [r#"{"a": {"b": 1}}"#, "{{.x", "awk{print $1}", r#"{ .x }"#, r#"{.a":1}"#] {
        assert_eq!(filled(&[literal], "{}").unwrap(), [literal]);
    }
}

#[test]
fn a_member_that_is_not_there_is_an_error_of_its_own_kind() {
    let error = filled(&["{.nope}"], r#"{"a": 1}"#).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(filled(&["{.a}"], "[1]").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(filled(&["{.1}"], "[1, \"two\"]").unwrap(), ["two"]);
}

#[test]
fn a_value_does_not_pass_for_an_option() {
    let task = r#"{"x": "--exec=rm", "n": -5}"#;
    assert_eq!(filled(&["{.x}"], task).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(filled(&["{.n}"], task).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(filled(&["--file={.x}"], task).unwrap(), ["--file=--exec=rm"]);
    assert_eq!(filled(&["--", "{.x}"], task).unwrap(), ["--", "--exec=rm"]);
    let task = r#"{"x": "-", "y": "--y"}"#;
    assert!(filled(&["-{.x}", "{.y}"], task).is_err(), "nor for the end of options");
    let command: Vec<String> = ["cmd", "{.n}"].map(str::to_owned).into();
    let allowed = Template::new(&command, true).unwrap();
    assert_eq!(allowed.fill(r#"{"n": -5}"#).unwrap(), ["-5"]);
}

#[test]
fn a_value_never_becomes_code() {
    for command in [
        &["sh", "-c", "echo {.x}"][..],
        &["/bin/bash", "-ec", "echo {}"],
        &["env", "bash", "-c", "{.x}"],
        &["python3.12", "-c", "print({.x})"],
        &["perl", "-ne", "{.x}"],
        &["awk", "{.x}"],
        &["bash", "-ce", "echo {.x}"],
        &["bash", "-c", "--", "echo {.x}"],
        &["bash", "-c", "-x", "echo {.x}"],
        &["node", "--eval", "f({.x})"],
        &["node", "--eval=f({.x})"],
        &["gawk", "-v", "a=1", "{.x}"],
        &["env", "-S", "echo {.x}"],
        &["perl", "-e{.x}"],
        &["nice", "php8.2", "-r", "{.x}"],
    ] {
        assert!(template(command).is_err(), "{command:?}");
    }
    for command in [
        &["sh", "-c", "echo \"$1\"", "_", "{.x}"][..],
        &["sh", "script.sh", "{.x}"],
        &["python3", "enrich.py", "{.x}"],
        &["awk", "-v", "x={.x}", "{print $1}", "{.file}"],
        &["awk", "-f", "prog.awk", "{.file}"],
        &["env", "A={.x}", "cmd"],
        &["awk", "{print $1}", "{.file}"],
        &["curl", "-c", "{.jar}"],
    ] {
        assert!(template(command).is_ok(), "{command:?}");
    }
    assert!(template(&["{.x}"]).is_err());
    assert!(template(&[]).is_err());
}

#[test]
fn a_nul_is_refused() {
    assert_eq!(filled(&["{.x}"], r#"{"x": "a\u0000b"}"#).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn every_script_of_a_command_is_looked_at() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for command in [
        &["perl", "-e", "1;", "-e", "print '{.v}'"][..],
        &["perl", "-we", "1;", "-e{.v}"],
        &["node", "-p", "1", "--eval={.v}"],
    ] {
        assert!(Template::new(&words(command), false).is_err(), "{command:?}");
    }
    assert!(Template::new(&words(&["perl", "-e", "1;", "-e", "2;", "{.v}"]), false).is_ok());
}
