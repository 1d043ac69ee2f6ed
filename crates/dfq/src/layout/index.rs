//! The names of an index.
//!
//! ```text
//! datapackage.json                     the columns (swapped)
//! manifest.json                        how much there is
//! inbox/<sh>/<key>.<ulid>.usv          one record, or a deletion
//! inbox/<sh>/%bundle.<ulid>.usv        many records of a shard, sorted by key
//! shards/<sh>.usv                      the compacted shard (swapped)
//! shards/<sh>.idx  <sh>.lock           where its blocks begin; who compacts it
//! shards/<sh>.seen                     records of other programs that were merged and had to stay (buckets)
//! aside/…                              what must not be merged, or was not ours
//! <key>.usv  inbox/<key>.usv  inbox/<sh>/<key>.usv   one record of another program
//! ```
//! `<key>` is encoded as ids are, `<sh>` the first byte of the key's SHA-256 in hex. No encoded key begins with `%bundle`,
//! because only hex digits follow a percent sign.

use sha2::{Digest, Sha256};

use super::{Shard, Swapped, VERSIONS, below, decode, encode, parse_version_name};

/// The most bytes of a compacted shard.
pub(crate) const LARGEST_SHARD: u64 = 1 << 30;

/// Records that are not compacted yet.
pub(crate) const INBOX: &str = "inbox";
/// Compacted records.
pub(crate) const SHARDS: &str = "shards";
/// What must not be merged, or was not ours.
pub(crate) const ASIDE: &str = "aside";
/// How much there is.
pub(crate) const MANIFEST: &str = "manifest.json";

const USV: &str = ".usv";
const BLOCKS: &str = ".idx";
const LOCK: &str = ".lock";
const SEEN: &str = ".seen";
const BUNDLE: &str = "%bundle";

/// How many characters a ulid has.
pub(crate) const ULID_CHARS: usize = 26;

/// The columns of an index.
pub(crate) fn index_schema() -> Swapped {
    Swapped::shown("datapackage.json".to_owned())
}

impl Shard {
    /// The shard of a key.
    pub(crate) fn of_key(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes())[0])
    }

    /// The shard of this number.
    pub(crate) fn numbered(number: u8) -> Self {
        Self(number)
    }

    /// Its two hex digits, as text.
    pub(crate) fn name(self) -> String {
        self.digits().into_iter().collect()
    }
}

/// All shards of an index.
pub(crate) fn all_shards() -> impl Iterator<Item = Shard> {
    (0..=u8::MAX).map(Shard)
}

/// A compacted shard.
pub(crate) fn index_shard(shard: Shard) -> Swapped {
    Swapped::shown(in_shards(shard, USV))
}

/// Where the blocks of a compacted shard begin.
pub(crate) fn shard_blocks(shard: Shard) -> String {
    in_shards(shard, BLOCKS)
}

/// Whether nothing rests on a file, so that it need not survive a power cut: the lock of a shard, and where its blocks
/// begin.
pub(crate) fn is_hint(path: &str) -> bool {
    matches!(parse_shards(path), Some((_, ShardFile::Blocks | ShardFile::Lock)))
}

/// Who compacts a shard.
pub(crate) fn shard_lock(shard: Shard) -> String {
    in_shards(shard, LOCK)
}

fn in_shards(shard: Shard, ending: &str) -> String {
    below(SHARDS, &format!("{}{ending}", shard.name()))
}

/// How the names of all records in the inbox begin, and those of one shard.
pub(crate) fn inbox_of(shard: Option<Shard>) -> String {
    match shard {
        None => below(INBOX, ""),
        Some(shard) => below(&below(INBOX, &shard.name()), ""),
    }
}

/// A name before all of a shard in the inbox and after all of those before it. Not the shard's own name: see
/// [`Names::before_shard`](super::Names::before_shard).
pub(crate) fn before_inbox_of(shard: Shard) -> Option<String> {
    let before = Shard(shard.0.checked_sub(1)?);
    Some(below(INBOX, &format!("{}~", before.name())))
}

fn in_inbox(shard: Shard, stem: &str, ulid: &str) -> String {
    format!("{}{stem}.{ulid}{USV}", inbox_of(Some(shard)))
}

fn encoded(key: &str) -> String {
    let mut stem = String::with_capacity(key.len());
    encode(&mut stem, key);
    stem
}

/// The file of one record.
pub(crate) fn inbox_file(key: &str, ulid: &str) -> String {
    in_inbox(Shard::of_key(key), &encoded(key), ulid)
}

/// A file of many records.
pub(crate) fn bundle_file(shard: Shard, ulid: &str) -> String {
    in_inbox(shard, BUNDLE, ulid)
}

/// How the names of a key's records begin. All ulids begin with a zero until the year 3084; and so the names of
/// `a.b` are not among those of `a`.
pub(crate) fn inbox_of_key(key: &str) -> String {
    format!("{}{}.0", inbox_of(Some(Shard::of_key(key))), encoded(key))
}

/// How the names of a shard's bundles begin.
pub(crate) fn bundles_of(shard: Shard) -> String {
    format!("{}{BUNDLE}.", inbox_of(Some(shard)))
}

/// What a name in the inbox stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InboxName {
    /// One record of ours.
    Record {
        /// Whose.
        key: String,
        /// Its ulid.
        ulid: String,
    },
    /// Many records of ours.
    Bundle {
        /// The ulid of the file.
        ulid: String,
    },
    /// One record of another program (`<key>.usv`), which may replace it at any time.
    Seed {
        /// Whose it is by its name.
        key: String,
    },
}

/// What a path below the index's root stands for in the inbox, and in which shard it is; `None` if it is
/// somebody else's.
pub(crate) fn parse_inbox(path: &str) -> Option<(Shard, InboxName)> {
    let rest = path.strip_prefix(INBOX)?.strip_prefix('/')?;
    let (shard, name) = rest.split_once('/')?;
    let (shard, stem) = (Shard::parse(shard)?, name.strip_suffix(USV)?);
    let ours = stem.rsplit_once('.').filter(|(_, ulid)| is_ulid(ulid));
    match ours {
        Some((BUNDLE, ulid)) => Some((shard, InboxName::Bundle { ulid: ulid.to_owned() })),
        Some((key, ulid)) if decode(key).is_some_and(|key| Shard::of_key(&key) == shard) => {
            let (key, ulid) = (decode(key)?, ulid.to_owned());
            Some((shard, InboxName::Record { key, ulid }))
        }
        _ => Some((shard, InboxName::Seed { key: seed_key(stem)? })),
    }
}

fn seed_key(stem: &str) -> Option<String> {
    let key = decode(stem).unwrap_or_else(|| stem.to_owned());
    (!key.is_empty() && !key.starts_with('.') && !stem.starts_with(BUNDLE)).then_some(key)
}

/// The two folders in which another program may keep records of all shards.
pub(crate) fn flat_inboxes() -> [String; 2] {
    [String::new(), below(INBOX, "")]
}

/// What a path stands for right in one of the [`flat_inboxes`].
pub(crate) fn parse_flat(path: &str) -> Option<(Shard, InboxName)> {
    let name = path.strip_prefix(&below(INBOX, "")).unwrap_or(path);
    let key = seed_key(name.strip_suffix(USV).filter(|stem| !stem.contains('/'))?)?;
    Some((Shard::of_key(&key), InboxName::Seed { key }))
}

/// All names that another program may give the record of a key.
pub(crate) fn seeds_of_key(key: &str) -> Vec<String> {
    let mut stems = vec![encoded(key)];
    if !key.contains('/') && stems[0] != key {
        stems.push(key.to_owned());
    }
    let [root, inbox] = flat_inboxes();
    let shard = inbox_of(Some(Shard::of_key(key)));
    let names = |folder: String| stems.iter().map(move |stem| format!("{folder}{stem}{USV}"));
    [root, inbox, shard].into_iter().flat_map(names).collect()
}

/// Records of other programs that were merged into a shard and had to stay where they are.
pub(crate) fn shard_seen(shard: Shard) -> String {
    in_shards(shard, SEEN)
}

/// What a file beside the shards is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardFile {
    /// A shard.
    Rows,
    /// Its block index.
    Blocks,
    /// Its lock.
    Lock,
    /// What was seen of other programs' records.
    Seen,
}

/// What a path among the shards stands for; `None` if it is somebody else's.
pub(crate) fn parse_shards(path: &str) -> Option<(Shard, ShardFile)> {
    let name = path.strip_prefix(SHARDS)?.strip_prefix('/')?;
    let (shard, ending) = name.split_at_checked(2)?;
    let kind = match ending {
        USV => ShardFile::Rows,
        BLOCKS => ShardFile::Blocks,
        LOCK => ShardFile::Lock,
        SEEN => ShardFile::Seen,
        _ => return None,
    };
    Some((Shard::parse(shard)?, kind))
}

/// Whether a path among the versions that a directory keeps is one of an index.
pub(crate) fn is_version_of_index(path: &str) -> bool {
    let rest = path.strip_prefix(VERSIONS).and_then(|rest| rest.strip_prefix('/'));
    let Some((name, number)) = rest.and_then(|rest| rest.rsplit_once('/')) else { return false };
    let known =
        name == index_schema().as_str() || matches!(parse_shards(name), Some((_, ShardFile::Rows)));
    known && parse_version_name(number).is_some()
}

fn is_ulid(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b.is_ascii_uppercase() && !b"ILOU".contains(&b));
    text.len() == ULID_CHARS && text.starts_with('0') && text.bytes().all(is_digit)
}

/// Where a file of the inbox goes that must not be merged.
pub(crate) fn aside_of(path: &str) -> String {
    below(ASIDE, path)
}
