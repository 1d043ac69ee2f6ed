//! What a server may lie about. Each lie was seen on a server in the wild; all are off by default.

use std::time::{Duration, SystemTime};

/// The lies a server tells. They hold from the next request on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lies {
    /// Conditions are ignored: every PUT and DELETE answers success and takes effect (Garage, rclone).
    pub ignore_conditions: bool,
    /// `If-Match` is ignored on PUT and DELETE; `If-None-Match` is honoured.
    pub ignore_if_match: bool,
    /// `If-Match` is ignored on DELETE only (MinIO, RustFS, Ceph 16.2).
    pub ignore_if_match_on_delete: bool,
    /// Conditions are checked, and this much later the write is done without looking again (s3s-fs).
    pub not_atomic: Option<Duration>,
    /// A quoted ETag in `If-Match` never matches; an unquoted one does (Ceph 16.2).
    pub refuse_quoted_etags: bool,
    /// An ETag in `If-Match` never matches, in whatever form (DigitalOcean Spaces).
    pub refuse_etags: bool,
    /// A conditional PUT is answered 501 NotImplemented (Backblaze B2).
    pub refuse_conditional_put: bool,
    /// `LastModified` in listings has whole seconds (SeaweedFS).
    pub whole_seconds: bool,
    /// A listing that starts after `a` leaves out all below `a/`, as if it were one thing (SeaweedFS).
    pub keep_folders: bool,
    /// Milliseconds that the server's clock is ahead, or behind if negative, in `Date` and in the
    /// modification times of what is written from now on. Signatures are still checked by the true
    /// time, so that an offset of more than a quarter of an hour can be tried.
    pub clock_offset_ms: i64,
}

impl Lies {
    /// The names that [`Lies::tell`] knows.
    pub const NAMES: [&'static str; 9] = [
        "ignore-conditions",
        "ignore-if-match",
        "ignore-if-match-on-delete",
        "not-atomic",
        "refuse-quoted-etags",
        "refuse-etags",
        "refuse-conditional-put",
        "whole-seconds",
        "keep-folders",
    ];

    /// Turns one lie on by its name; false if there is none of that name. `not-atomic` waits 2 ms
    /// between the check and the write.
    #[must_use]
    pub fn tell(&mut self, name: &str) -> bool {
        match name {
            "ignore-conditions" => self.ignore_conditions = true,
            "ignore-if-match" => self.ignore_if_match = true,
            "ignore-if-match-on-delete" => self.ignore_if_match_on_delete = true,
            "not-atomic" => self.not_atomic = Some(Duration::from_millis(2)),
            "refuse-quoted-etags" => self.refuse_quoted_etags = true,
            "refuse-etags" => self.refuse_etags = true,
            "refuse-conditional-put" => self.refuse_conditional_put = true,
            "whole-seconds" => self.whole_seconds = true,
            "keep-folders" => self.keep_folders = true,
            _ => return false,
        }
        true
    }

    /// The server's clock.
    pub(crate) fn now(&self) -> SystemTime {
        let offset = Duration::from_millis(self.clock_offset_ms.unsigned_abs());
        let now = SystemTime::now();
        if self.clock_offset_ms < 0 { now - offset } else { now + offset }
    }
}
