//! `dfq completions` and `dfq man`: made from the arguments, and read by those whom they are for.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::process::{Command, Stdio};

use support::Desk;

#[test]
fn completions_for_every_shell() {
    let desk = Desk::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = desk.ok(&["completions", shell]);
        assert!(script.contains("max-attempts") && script.contains("unlock"), "{shell}");
    }
    let said = [desk.dfq(&["completions", "tcsh"]), desk.dfq(&["completions"])];
    assert_transcript!("completions", desk.transcript(&said));
}

#[test]
fn bash_reads_its_script() {
    let desk = Desk::new();
    desk.write("dfq.bash", desk.ok(&["completions", "bash"]));
    let words = "source ./dfq.bash && COMP_WORDS=(dfq unl) COMP_CWORD=1 && _dfq dfq unl dfq && \
                 echo ${COMPREPLY[@]}";
    let bash = Command::new("bash").args(["-c", words]).current_dir(desk.path(".")).output();
    let Ok(bash) = bash else { return }; // no bash here
    assert_eq!(String::from_utf8_lossy(&bash.stdout).trim(), "unlock", "{bash:?}");
}

#[test]
fn a_manual_page_for_each_command() {
    let desk = Desk::new();
    let said = desk.dfq(&["man", "--dir", "man pages"]);
    assert_eq!(said.status, Some(0), "{said:?}");
    let mut pages: Vec<String> = std::fs::read_dir(desk.path("man pages"))
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    insta::assert_snapshot!("pages", pages.join("\n"));
    for page in &pages {
        let text = desk.read(&format!("man pages/{page}"));
        assert!(text.contains(".SH \"EXIT STATUS\""), "{page}");
        assert!(text.contains("this kind of queue cannot do that"), "{page}");
        let name = page.trim_end_matches(".1");
        assert!(text.contains(&name.replace('-', "\\-")), "{page} does not name itself");
    }
    desk.write("file", "");
    let said = [desk.dfq(&["man", "--dir", "file"]), desk.dfq(&["man", "--dir", "file/below"])];
    assert_transcript!("man_refuses", desk.transcript(&said));
}

#[test]
fn groff_finds_nothing_wrong() {
    let desk = Desk::new();
    let page = desk.ok(&["man"]);
    assert!(!page.contains("EXTRA"));
    let args = ["-man", "-Tutf8", "-wall"];
    let groff = Command::new("groff")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut groff) = groff else { return }; // no groff here
    std::io::Write::write_all(&mut groff.stdin.take().unwrap(), page.as_bytes()).unwrap();
    let said = groff.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
}

#[test]
fn whoever_reads_may_go_away() {
    let desk = Desk::new();
    for args in [&["completions", "bash"][..], &["man"]] {
        let mut child = desk.start(args);
        drop(child.stdout.take());
        let said = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    }
}
