//! What the number of records costs: the peak memory of an import, a scan and a compaction, each in a process of its own,
//! and the bytes that a lookup reads, counted by the system.
//!
//! An index of so many records is imported. Then a tenth of them are put again in bundles, all are scanned, records are
//! looked up, the inbox is compacted, and records are looked up once more.

use std::path::Path;
use std::process::Command;

use dfq::OpenOptions;
use dfq::index::{CompactOptions, Index, ScanOptions};
use tokio::runtime::Runtime;

use super::records;
use super::support::{Targets, peak_memory_kb};

/// A lookup reads less than this.
const MOST_READ: u64 = 64 << 10;

/// How many MB more ten times as many records may take.
const MOST_GROWTH: f64 = 16.0;

/// Lookups of which the bytes are counted.
const LOOKUPS: usize = 500;

const VERBS: [&str; 3] = ["import", "scan", "compact"];

pub(crate) fn run(dir: &Path, runtime: &Runtime, most: usize, targets: &mut Targets) {
    println!("\n            peak memory, MB            read by a lookup, KB: mean, most");
    println!("records     import    scan compact     with an inbox       compacted");
    let _ = peaks(&dir.join("1"), runtime, 1000, targets);
    let few = peaks(&dir.join("2"), runtime, most / 10, targets);
    let many = peaks(&dir.join("3"), runtime, most, targets);
    for ((verb, few), many) in VERBS.iter().zip(few).zip(many) {
        let growth = many - few;
        let missed = || format!("{verb}: ten times as many records take {growth:.1} MB more");
        targets.expect(growth <= MOST_GROWTH, missed);
    }
}

/// The peak memory of each verb, in MB.
fn peaks(dir: &Path, runtime: &Runtime, count: usize, targets: &mut Targets) -> [f64; 3] {
    let import = peak(VERBS[0], dir, count);
    let again: Vec<u32> = records::companies(0..count).into_iter().step_by(10).collect();
    runtime.block_on(async {
        let index = Index::open(dir, OpenOptions::existing()).await.unwrap();
        records::put(&index, &again, 1).await;
    });
    let scan = peak(VERBS[1], dir, count);
    let waiting = runtime.block_on(read_by_lookups(dir, count));
    let compact = peak(VERBS[2], dir, count);
    let compacted = runtime.block_on(read_by_lookups(dir, count));
    let kb = |bytes: f64| bytes / 1024.0;
    let shown = |(mean, most): (f64, u64)| format!("{:.1}, {:.1}", kb(mean), kb(most as f64));
    let (_, read) = compacted;
    let missed = || format!("a lookup among {count} records reads {read} bytes");
    let mark = targets.expect(read < MOST_READ, missed);
    println!(
        "{count:<9} {import:>8.1} {scan:>7.1} {compact:>7.1} {:>17} {:>15}{mark}",
        shown(waiting),
        shown(compacted)
    );
    [import, scan, compact]
}

fn peak(verb: &str, dir: &Path, count: usize) -> f64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.arg(format!("--{verb}")).arg(dir).arg(count.to_string()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap() / 1024.0
}

/// The other side of it: does as it is told, and says how much memory that took.
pub(crate) fn as_told(verb: &str, dir: &Path, count: usize) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        if verb == "--import" {
            let index = Index::create(dir, OpenOptions::existing(), "key").await.unwrap();
            return records::import(&index, count).await;
        }
        let index = Index::open(dir, OpenOptions::existing()).await.unwrap();
        if verb == "--compact" {
            let all = CompactOptions { all: true, ..CompactOptions::default() };
            return drop(index.compact(all).await.unwrap());
        }
        let mut scan = index.scan(ScanOptions::default());
        while !scan.next_batch().await.unwrap().is_empty() {}
    });
    println!("{}", peak_memory_kb());
}

/// How many bytes lookups read, in the mean and at the most.
async fn read_by_lookups(dir: &Path, count: usize) -> (f64, u64) {
    let index = Index::open(dir, OpenOptions::existing()).await.unwrap();
    let (mut sum, mut most) = (0, 0);
    for n in 0..LOOKUPS {
        let company = u32::try_from(n * (count / LOOKUPS).max(1) % count).unwrap();
        let key = records::key(company);
        // To ask how much was read is to read, too.
        let (before, asked) = (bytes_read(), bytes_read());
        assert!(index.get(&key).await.unwrap().is_some());
        let read = (bytes_read() - asked).saturating_sub(asked - before);
        sum += read;
        most = most.max(read);
    }
    (sum as f64 / LOOKUPS as f64, most)
}

/// What this process has read so far, from wherever.
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}
