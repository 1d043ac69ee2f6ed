//! Every target over its corpus, and over mutations of it that are always the same.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use dfq_fuzz::mutate::Mutator;
use dfq_fuzz::{TARGETS, Target, corpus};

/// How many mutations are tried: `DFQ_FUZZ_MUTATIONS`, or these.
const MUTATIONS: u64 = 3_000;

/// Inputs get no longer.
const LONGEST: usize = 4096;

fn inputs(target: Target) -> Vec<Vec<u8>> {
    corpus::read(&fs::read_to_string(corpus::path(target)).unwrap())
}

fn check(target: Target, input: &[u8], what: &str) {
    let run = || target.check(input);
    if let Err(panic) = catch_unwind(run) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
        fs::write(&kept, input).unwrap();
        println!("{} fails on {what}; the input lies in {}", target.name, kept.display());
        std::panic::resume_unwind(panic);
    }
}

fn fuzz(name: &str) {
    let target = Target::named(name).unwrap();
    let inputs = inputs(target);
    assert!(inputs.len() > 3, "{name} has hardly a corpus");
    for input in &inputs {
        check(target, input, &corpus::escape(input));
    }
    let mutations = std::env::var("DFQ_FUZZ_MUTATIONS").ok().and_then(|n| n.parse().ok());
    // A whole queue takes longer than a parser.
    let fewer = if name == "queue" { 10 } else { 1 };
    let mut mutator = Mutator::new(20_261_118, target.words, LONGEST);
    for number in 0..mutations.unwrap_or(MUTATIONS) / fewer {
        check(target, &mutator.next(&inputs), &format!("mutation {number}"));
    }
}

macro_rules! targets {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })+

        #[test]
        fn every_target_has_a_test_and_nothing_else_has_a_corpus() {
            let mut tested = vec![$(stringify!($name)),+];
            let mut targets: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            let entries = fs::read_dir(corpus::path(TARGETS[0]).parent().unwrap()).unwrap();
            let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
            let mut files: Vec<_> = entries.map(|file| name(file.unwrap())).collect();
            tested.sort_unstable();
            targets.sort_unstable();
            files.sort_unstable();
            assert_eq!(tested, targets);
            let expected: Vec<_> = targets.iter().map(|name| format!("{name}.txt")).collect();
            assert_eq!(files, expected);
        }
    };
}

#[test]
fn inputs_survive_the_corpus() {
    let all: Vec<u8> = (0..=255).collect();
    let odd: [&[u8]; 5] = [&all, b"# x\\n\n", "ä\u{301}\u{ffff}".as_bytes(), b"\\", b"\xc3("];
    for input in odd {
        assert_eq!(corpus::read(&corpus::escape(input)), [vec![], input.to_vec()]);
    }
    for target in TARGETS {
        for input in inputs(target).iter().skip(1) {
            assert_eq!(&corpus::read(&corpus::escape(input))[1], input);
        }
    }
}

targets! {
    task record lease settings floors worker marks doctor receipt names due address config
    sqs_body sqs_foreign listing answer template arguments shown queue
}
