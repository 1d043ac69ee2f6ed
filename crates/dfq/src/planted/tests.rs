use std::collections::BTreeSet;
use std::path::Path;

use super::*;

#[test]
fn names_are_unique_and_parse_back() {
    let names: BTreeSet<&str> = Planted::ALL.iter().map(|bug| bug.name()).collect();
    assert_eq!(names.len(), Planted::ALL.len());
    for bug in Planted::ALL {
        assert_eq!(bug.name().parse::<Planted>(), Ok(*bug));
        assert_eq!(bug.to_string(), bug.name());
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(bug.name().chars().all(plain), "{bug}");
        assert!(!bug.rule().is_empty());
    }
    assert!("".parse::<Planted>().is_err());
    assert!("DeleteThenCreate".parse::<Planted>().is_err());
}

/// The name is the variant's, in lower case with hyphens.
#[test]
fn names_are_those_of_the_variants() {
    for bug in Planted::ALL {
        assert_eq!(bug.name().replace('-', ""), format!("{bug:?}").to_lowercase());
    }
}

#[test]
fn nothing_is_planted_but_what_was_asked_for_here() {
    let planted = || Planted::ALL.iter().copied().filter(|bug| is(*bug)).collect::<Vec<_>>();
    assert_eq!(planted(), []);
    for bug in Planted::ALL {
        plant(Some(*bug));
        assert_eq!(planted(), [*bug]);
    }
    let elsewhere = std::thread::scope(|scope| scope.spawn(planted).join().unwrap());
    assert_eq!(elsewhere, []);
    plant(None);
    assert_eq!(planted(), []);
}

/// All sources below a folder, one after the other, but for those of this module.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("planted") {
            all += &sources(&path);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("planted.rs") {
            all += &std::fs::read_to_string(&path).unwrap();
        }
    }
    all
}

#[test]
fn every_bug_has_a_place_where_it_is_planted() {
    let code = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric()).collect::<String>();
    let used: BTreeSet<String> = code.split("Planted::").skip(1).map(word).collect();
    for bug in Planted::ALL {
        assert!(used.contains(&format!("{bug:?}")), "{bug} is planted nowhere");
    }
}
