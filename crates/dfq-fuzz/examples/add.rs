//! Adds inputs to a target's corpus, the smallest first, up to so many bytes: `add TARGET FOLDER BYTES`.

#![allow(clippy::unwrap_used, reason = "a tool of ours")]

use std::collections::BTreeSet;
use std::{env, fs};

use dfq_fuzz::{Target, corpus};

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [name, folder, bytes] = &args[..] else { panic!("usage: add TARGET FOLDER BYTES") };
    let target = Target::named(name).expect("a target");
    let mut left: usize = bytes.parse().unwrap();
    let mut text = fs::read_to_string(corpus::path(target)).unwrap();
    let known: BTreeSet<Vec<u8>> = corpus::read(&text).into_iter().collect();
    let files = fs::read_dir(folder).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
    let mut lines: Vec<String> =
        files.filter(|input| !known.contains(input)).map(|input| corpus::escape(&input)).collect();
    lines.sort_by_key(|line| (line.len(), line.clone()));
    let found = "# Found by coverage.\n";
    if !lines.is_empty() && !text.contains(found) {
        text.push_str(found);
    }
    for line in lines {
        if line.len() + 1 > left {
            break;
        }
        left -= line.len() + 1;
        text.push_str(&line);
        text.push('\n');
    }
    fs::write(corpus::path(target), text).unwrap();
}
