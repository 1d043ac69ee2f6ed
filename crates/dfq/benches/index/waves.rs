//! Compaction of waves of records, beside DuckDB and a plain merge of the same bytes.
//!
//! Each wave is put into the inbox in bundles, as `dfq index put --bundle` does. From there its rows are gathered for the
//! others. That is not timed. What is timed is, for us, to open the index and merge the whole inbox as `dfq index
//! compact --all` does; for DuckDB, to merge a Parquet file of the wave, in the fastest of the ways of `with_duckdb.py`; for the
//! floor, to read a sorted file of the wave and one of all earlier ones and to write both as one. All end with their bytes
//! on the disk. They take turns within each wave, so that whatever else the machine does slows all of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use dfq::OpenOptions;
use dfq::index::{CompactOptions, Index, ScanOptions};
use tokio::runtime::Runtime;

use super::merge::{gather, merge};
use super::records;
use super::support::Targets;

pub(crate) fn run(dir: &Path, runtime: &Runtime, waves: usize, each: usize, targets: &mut Targets) {
    let mut duck = Duck::start(&dir.join("duckdb"));
    let (at, floor) = (dir.join("index"), dir.join("floor.usv"));
    runtime.block_on(Index::create(&at, OpenOptions::existing(), "key")).unwrap();
    println!(
        "compaction of {} records in {waves} waves, of which 30 % are known keys",
        waves * each
    );
    println!("wave   dfq, s  floor, s  DuckDB, s  floor/dfq  DuckDB/dfq   DuckDB by");
    for wave in 0..waves {
        let companies = records::wave(wave, each);
        runtime.block_on(async {
            let index = Index::open(&at, OpenOptions::existing()).await.unwrap();
            records::put(&index, &companies, u32::try_from(wave).unwrap()).await;
        });
        let rows = dir.join("wave.usv");
        gather(&at, &rows);
        let ours = seconds(|| runtime.block_on(compact(&at)));
        let bare = seconds(|| merge(&floor, &rows));
        let theirs = duck.as_mut().map(|duck| duck.merge(&rows));
        let Some((way, theirs)) = theirs else {
            println!("{:>4} {ours:>8.3} {bare:>9.3} {:>21.2}", wave + 1, bare / ours);
            continue;
        };
        let ratio = theirs / ours;
        let missed =
            || format!("wave {}: compaction takes {ours:.2} s, DuckDB {theirs:.2} s", wave + 1);
        let mark = targets.expect(wave == 0 || ratio > 1.0, missed);
        println!(
            "{:>4} {ours:>8.3} {bare:>9.3} {theirs:>10.3} {:>10.2} {ratio:>11.2}   {way}{mark}",
            wave + 1,
            bare / ours
        );
    }
    let holds = runtime.block_on(holds(&at));
    match duck {
        None => println!("DuckDB is not here: DFQ_TEST_PYTHON names a Python that has it"),
        Some(duck) => duck.check(holds),
    }
    let rows = std::fs::read(&floor).unwrap().iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(rows as u64, holds[0], "the floor has merged the same");
}

async fn compact(at: &Path) {
    let index = Index::open(at, OpenOptions::existing()).await.unwrap();
    let all = CompactOptions { all: true, ..CompactOptions::default() };
    let report = index.compact(all).await.unwrap();
    assert!(report.failed.is_empty() && report.lost + report.locked == 0, "{report:?}");
}

/// How many records there are, and the sum of a field.
async fn holds(at: &Path) -> [u64; 2] {
    let index = Index::open(at, OpenOptions::existing()).await.unwrap();
    let mut scan = index.scan(ScanOptions::default());
    let mut holds = [0, 0];
    loop {
        let batch = scan.next_batch().await.unwrap();
        if batch.is_empty() {
            return holds;
        }
        holds[0] += batch.len() as u64;
        holds[1] += batch.iter().filter_map(|it| it.fields["employees"].as_u64()).sum::<u64>();
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    // Nothing is written back meanwhile for what others left behind.
    rustix::fs::sync();
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// `with_duckdb.py`, if there is a Python for it.
struct Duck {
    process: Child,
    says: BufReader<ChildStdout>,
    told: ChildStdin,
}

impl Duck {
    fn start(dir: &Path) -> Option<Self> {
        let python = std::env::var_os("DFQ_TEST_PYTHON")?;
        std::fs::create_dir(dir).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/index/with_duckdb.py");
        let mut command = Command::new(python);
        command.arg(script).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        let told = process.stdin.take().unwrap();
        Some(Self { process, says, told })
    }

    /// The fastest way of this wave, and its seconds.
    fn merge(&mut self, wave: &Path) -> (String, f64) {
        writeln!(self.told, "{}", wave.display()).unwrap();
        let took: BTreeMap<String, f64> = self.said();
        took.into_iter().min_by(|(_, one), (_, other)| one.total_cmp(other)).unwrap()
    }

    /// All ways have led to the same records.
    fn check(mut self, holds: [u64; 2]) {
        drop(self.told);
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        let theirs: BTreeMap<String, [u64; 2]> = serde_json::from_str(&line).unwrap();
        assert!(theirs.values().all(|theirs| *theirs == holds), "{theirs:?}, we have {holds:?}");
        assert!(self.process.wait().unwrap().success());
    }

    fn said<T: serde::de::DeserializeOwned>(&mut self) -> T {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        serde_json::from_str(&line).expect("the script says what it took")
    }
}
