//! Dependencies point one way: a module of the library uses only those that stand before it in this list.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up. What stands on one line may use each other.
const LAYERS: [&[&str]; 14] = [
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
    &["config"],
    &["transfer", "worker"],
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

/// The modules that a source names, without those in comments and in its tests.
fn used(text: &str) -> Vec<String> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code: String = lines.collect::<Vec<_>>().join("\n");
    assert!(!code.contains("crate::{"), "write one `use` for each module");
    let word = |part: &str| part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    code.split("crate::").skip(1).map(word).collect()
}

#[test]
fn dependencies_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    sources(&root, &mut files);
    assert!(files.len() > 100, "the sources were not found");
    for file in files {
        let below = file.strip_prefix(&root).unwrap();
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        for used in used(&fs::read_to_string(&file).unwrap()) {
            let is_module = root.join(&used).is_dir() || root.join(format!("{used}.rs")).is_file();
            if is_module && layer(&used) > layer(module) {
                wrong.push(format!("{} uses {used}", below.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "against the order of layers: {wrong:#?}");
}
