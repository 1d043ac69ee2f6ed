//! What the sources of the library must look like.
//!
//! Dependencies point one way: a module uses only those that stand before it in this list. And what clippy cannot
//! see of chance: nothing happens by luck that no seed decides.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up. What stands on one line may use each other.
const LAYERS: [&[&str]; 16] = [
    // Rules that a simulation leaves out: asked for anywhere, and knows nothing.
    &["planted"],
    &["error"],
    &["clock", "tls"],
    // A value must be able to check and print itself, so `model` calls pure functions of the other two.
    &["model", "layout", "format"],
    &["meter"],
    &["address"],
    &["options"],
    &["store"],
    &["doctor"],
    &["queue"],
    &["sqs"],
    &["provider"],
    &["index"],
    &["config"],
    &["synced", "transfer", "worker"],
    &["conformance"],
];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("'{module}' has no layer yet: give it one in {}", file!()))
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, into);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            into.push(path);
        }
    }
}

/// All sources of the library but their tests: the path below `src`, and the text.
fn library() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 100, "the sources were not found");
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        (file.strip_prefix(&root).unwrap().to_owned(), text)
    };
    files.into_iter().map(read).collect()
}

/// A source without its comments and its tests.
fn code(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The modules that a source names.
fn used(text: &str) -> Vec<String> {
    let code = code(text);
    assert!(!code.contains("crate::{"), "write one `use` for each module");
    let word = |part: &str| part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    code.split("crate::").skip(1).map(word).collect()
}

#[test]
fn dependencies_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for (below, text) in library() {
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        for used in used(&text) {
            let is_module = root.join(&used).is_dir() || root.join(format!("{used}.rs")).is_file();
            if is_module && layer(&used) > layer(module) {
                wrong.push(format!("{} uses {used}", below.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "against the order of layers: {wrong:#?}");
}

/// Without `biased` tokio draws lots which branch is asked first.
#[test]
fn no_select_draws_lots() {
    let (mut selects, mut wrong) = (0, Vec::new());
    for (below, text) in library() {
        for rest in code(&text).split("select!").skip(1) {
            selects += 1;
            if !rest.trim_start().trim_start_matches(['{', '(']).trim_start().starts_with("biased;")
            {
                wrong.push(below.display().to_string());
            }
        }
    }
    assert!(selects > 10, "no `select!` was found");
    assert!(wrong.is_empty(), "`select!` without `biased;`: {wrong:#?}");
}

/// A simulation runs many processes in one.
#[test]
fn only_env_knows_who_we_are() {
    for (below, text) in library() {
        let asks = code(&text).contains("process::id()");
        assert!(!asks || below.ends_with("clock/host.rs"), "{}: use `Env::host`", below.display());
    }
}
