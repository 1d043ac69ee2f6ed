//! Requests and replies, as they travel.
//!
//! Invariant: a request is whole in itself. It can be carried out at any time, any number of times, without the
//! process that sent it.

use std::ops::{Bound, Range};
use std::sync::Arc;

use dfq::meter::RequestKind;
use dfq::store::objects::{Got, Head, Listed, Version};

use crate::seam::Call;

/// On what condition something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Only {
    /// On none.
    Always,
    /// `If-None-Match: *`
    IfAbsent,
    /// `If-Match` with this ETag.
    IfMatch(String),
}

/// What a process asks of the server.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Get {
        name: String,
        range: Option<Range<u64>>,
    },
    Head {
        name: String,
    },
    Put {
        name: String,
        bytes: Arc<[u8]>,
        only: Only,
    },
    /// One name or up to a thousand.
    Delete {
        names: Vec<String>,
    },
    List(Asked),
}

/// A page of a listing that is asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) prefix: String,
    /// Whether names are cut off at the next slash.
    pub(super) folders: bool,
    /// Where it begins, or goes on.
    pub(super) from: Bound<String>,
    pub(super) limit: usize,
}

/// A page of a listing.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) files: Vec<Listed>,
    pub(super) folders: Vec<String>,
    /// Where to go on, if there is more.
    pub(super) next: Option<Bound<String>>,
}

/// What the server answers.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Got(Got),
    Head(Head),
    /// 404
    Missing,
    /// 416: the range begins behind the end.
    BehindEnd,
    Written(Version),
    /// 412: the condition does not hold.
    NotSo,
    Removed,
    Page(Page),
    /// 403, 409, 500 or 503, with the server's word for it.
    Refused(u16, &'static str),
}

impl Request {
    pub(super) fn kind(&self) -> RequestKind {
        match self {
            Self::Get { .. } => RequestKind::Get,
            Self::Head { .. } => RequestKind::Head,
            Self::Put { .. } => RequestKind::Put,
            Self::Delete { .. } => RequestKind::Delete,
            Self::List(_) => RequestKind::List,
        }
    }

    /// Bytes that it carries.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Put { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }

    pub(super) fn is_conditional(&self) -> bool {
        matches!(self, Self::Put { only: Only::IfAbsent | Only::IfMatch(_), .. })
    }

    /// How a history tells it.
    pub(super) fn call(&self) -> Call {
        let verb = match self {
            Self::Get { .. } => "get",
            Self::Head { .. } => "head",
            Self::Put { only: Only::Always, .. } => "put",
            Self::Put { only: Only::IfAbsent, .. } => "create",
            Self::Put { only: Only::IfMatch(_), .. } => "swap",
            Self::Delete { .. } => "delete",
            Self::List(_) => "list",
        };
        let path = match self {
            Self::Get { name, .. } | Self::Head { name } | Self::Put { name, .. } => name.clone(),
            Self::Delete { names } => names.join(" "),
            Self::List(asked) => match &asked.from {
                Bound::Excluded(after) => format!("{} after {after}", asked.prefix),
                _ => asked.prefix.clone(),
            },
        };
        let changes = matches!(self, Self::Put { .. } | Self::Delete { .. });
        Call { verb, path, changes }
    }
}

impl Reply {
    /// Whether it is a plain no: nothing there, or a condition that does not hold.
    pub(super) fn is_no(&self) -> bool {
        matches!(self, Self::Missing | Self::NotSo | Self::BehindEnd)
    }

    /// How a history tells it.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Got(got) => format!("{} bytes {}", got.bytes.len(), got.head.version.tag()),
            Self::Head(head) => format!("{} bytes {}", head.size, head.version.tag()),
            Self::Missing => "404".to_owned(),
            Self::BehindEnd => "416".to_owned(),
            Self::Written(version) => format!("written {}", version.tag()),
            Self::NotSo => "412".to_owned(),
            Self::Removed => "removed".to_owned(),
            Self::Page(page) => {
                let more = if page.next.is_some() { " and more" } else { "" };
                format!("{} names, {} folders{more}", page.files.len(), page.folders.len())
            }
            Self::Refused(status, code) => format!("{status} {code}"),
        }
    }
}
