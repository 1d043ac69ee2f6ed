//! What files say, as far as it matters for the promises.
//!
//! Invariant: it reads what any tool can read. It shares no code with the library, which is to be checked.

use serde_json::Value;

/// The parts of a task's, a lease's or a record's file that matter here.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) n: Option<i64>,
    pub(super) push_id: String,
    pub(super) lease_id: String,
    pub(super) moved: bool,
    pub(super) forgotten: bool,
    pub(super) cancelled: bool,
    pub(super) id: String,
    pub(super) reason: String,
    pub(super) has_bytes: bool,
    pub(super) travelled: bool,
    pub(super) lost: usize,
}

/// Reads such a file; nothing if it is not one.
pub(super) fn parse(bytes: &[u8]) -> Option<Parsed> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let ours = &value["_dfq"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(Parsed {
        n: value["n"].as_i64(),
        push_id: text(&ours["push_id"]),
        lease_id: text(if ours.is_null() { &value["lease_id"] } else { &ours["lease_id"] }),
        moved: !ours["moved_to"].is_null(),
        forgotten: ours["forgotten"].as_bool().unwrap_or(false),
        cancelled: ours["cancelled"].as_bool().unwrap_or(false),
        id: text(&ours["id"]),
        reason: text(&ours["reason"]),
        has_bytes: !ours["damaged_text"].is_null() || !ours["damaged_hex"].is_null(),
        travelled: !ours["moves"].is_null() || !ours["lost_before"].is_null(),
        lost: ours["attempts"]
            .as_array()
            .map_or(0, |all| all.iter().filter(|it| it["state"].is_null()).count()),
    })
}
