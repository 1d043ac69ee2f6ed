//! Floors: one line of JSON for each id, sorted by id, so that one can be looked up without reading all.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Time, is_generation};
use crate::model::{Generation, TaskId};

const HEAD: &str = "{\"floors\":[\n";
const TAIL: &str = "]}\n";

/// What a purge has forgotten of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) id: TaskId,
    /// All its lives up to this one.
    pub(crate) generation: Generation,
    /// `fence_before` of that life, or of an earlier one if that is greater.
    pub(crate) fence: u64,
    /// When it was forgotten, on the store's clock.
    pub(crate) at: Timestamp,
    /// In a queue that is merged with another place: which pushes were forgotten, as [`format::push_mark`] tells
    /// them, the latest first.
    ///
    /// [`format::push_mark`]: super::push_mark
    pub(crate) pushes: Vec<String>,
}

impl Floor {
    /// What two purges have forgotten.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        let (last, first) = match self.generation >= other.generation {
            true => (self.pushes, other.pushes),
            false => (other.pushes, self.pushes),
        };
        Self {
            generation: self.generation.max(other.generation),
            fence: self.fence.max(other.fence),
            at: self.at.max(other.at),
            pushes: together(last, first),
            id: self.id,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    generation: Generation,
    #[serde(default, skip_serializing_if = "super::is_zero")]
    fence: u64,
    at: Time,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pushes: Vec<String>,
}

/// The most pushes that a floor names, the latest first. Of an id that was done more often the first are unknown: a node
/// that comes back with one of those does it again.
const MOST_PUSHES: usize = 64;

/// Anything longer was not written by this program.
const LONGEST_MARK: usize = 16;

fn together(mut pushes: Vec<String>, others: Vec<String>) -> Vec<String> {
    for push in others {
        if !pushes.contains(&push) {
            pushes.push(push);
        }
    }
    pushes.retain(|push| push.len() <= LONGEST_MARK);
    pushes.truncate(MOST_PUSHES);
    pushes
}

/// The longest line: an id takes at most 200 bytes in a name, and six times that in JSON; then there are pushes.
pub(crate) const LONGEST_FLOOR: usize = 4096;

/// A file of floors, which must be sorted by id and name each once.
pub(crate) fn encode_floors<'a>(floors: impl IntoIterator<Item = &'a Floor>) -> Vec<u8> {
    let mut text = HEAD.as_bytes().to_vec();
    for (at, floor) in floors.into_iter().enumerate() {
        if at > 0 {
            text.extend(b",\n");
        }
        let Floor { id, generation, fence, at, pushes } = floor;
        let (id, at) = (id.as_str().to_owned(), Time(*at));
        let pushes = pushes.iter().take(MOST_PUSHES).cloned().collect();
        let line = Line { id, generation: *generation, fence: *fence, at, pushes };
        text.extend(serde_json::to_vec(&line).unwrap_or_default());
    }
    text.push(b'\n');
    text.extend(TAIL.as_bytes());
    text
}

/// What one line of such a file says; nothing, if it is not of a floor.
pub(crate) fn decode_floor(line: &[u8]) -> Option<Floor> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b",").unwrap_or(line);
    let Line { id, generation, fence, at, pushes } = serde_json::from_slice(line).ok()?;
    if !is_generation(generation) {
        return None;
    }
    Some(Floor {
        id: TaskId::new(id).ok()?,
        generation,
        fence,
        at: at.0,
        pushes: together(pushes, Vec::new()),
    })
}

/// All that such a file says; nothing, if it is not one.
pub(crate) fn decode_floors(file: &[u8]) -> Option<Vec<Floor>> {
    let lines = file.strip_prefix(HEAD.as_bytes())?.strip_suffix(TAIL.as_bytes())?;
    let lines = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| *line != b"\n");
    lines.map(decode_floor).collect()
}
