//! What benchmarks share: targets, medians, and what a directory lies on.

use std::path::Path;

/// What kind of filesystem a directory is on.
pub(crate) fn filesystem(dir: &Path) -> String {
    let magic = rustix::fs::statfs(dir).unwrap().f_type as u32;
    let known = [
        (0xEF53, "ext4"),
        (0x0102_1994, "tmpfs"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x2FC1_2FC1, "zfs"),
        (0x794C_7630, "overlay"),
        (0x6969, "nfs"),
    ];
    let name = known.iter().find(|(number, _)| *number == magic);
    name.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned())
}

/// The targets that were missed.
#[derive(Default)]
pub(crate) struct Targets(Vec<String>);

impl Targets {
    /// Notes whether a target was met, and answers a mark for the table.
    pub(crate) fn expect(&mut self, met: bool, what: impl FnOnce() -> String) -> &'static str {
        if met {
            return "";
        }
        self.0.push(what());
        "  <-"
    }

    pub(crate) fn missed(&self) -> &[String] {
        &self.0
    }
}

/// The most memory that this process has had, in kilobytes.
pub(crate) fn peak_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}
