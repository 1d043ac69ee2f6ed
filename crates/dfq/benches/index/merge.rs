//! The floor: two sorted files of the same rows are read and merged, and one is written.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use memchr::memchr;

fn key(row: &[u8]) -> &[u8] {
    &row[..memchr(0x1f, row).unwrap()]
}

/// The first row, with its end, and what comes after it.
fn first(rows: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr(b'\n', rows).map(|end| rows.split_at(end + 1))
}

/// Merges `wave` into the file `to`. Of two rows of a key, that of the wave counts.
pub(crate) fn merge(to: &Path, wave: &Path) {
    let old = fs::read(to).unwrap_or_default();
    let new = fs::read(wave).unwrap();
    let mut out = Vec::with_capacity(old.len() + new.len());
    let (mut old, mut new) = (&*old, &*new);
    loop {
        match (first(old), first(new)) {
            (Some((row, rest)), Some((newer, _))) if key(row) < key(newer) => {
                out.extend(row);
                old = rest;
            }
            (was, Some((row, rest))) => {
                if let Some((_, after)) = was.filter(|(was, _)| key(was) == key(row)) {
                    old = after;
                }
                out.extend(row);
                new = rest;
            }
            (_, None) => {
                out.extend(old);
                break;
            }
        }
    }
    let next = to.with_extension("next");
    let mut file = File::create(&next).unwrap();
    file.write_all(&out).unwrap();
    file.sync_all().unwrap();
    fs::rename(&next, to).unwrap();
    File::open(to.parent().unwrap()).unwrap().sync_all().unwrap();
}

/// Writes all rows that wait in an index's inbox into one sorted file.
pub(crate) fn gather(index: &Path, to: &Path) {
    let mut bytes = Vec::new();
    for shard in fs::read_dir(index.join("inbox")).unwrap() {
        for file in fs::read_dir(shard.unwrap().path()).unwrap() {
            bytes.extend(fs::read(file.unwrap().path()).unwrap());
        }
    }
    let mut rows: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    rows.sort_unstable_by_key(|row| key(row));
    fs::write(to, rows.concat()).unwrap();
}
