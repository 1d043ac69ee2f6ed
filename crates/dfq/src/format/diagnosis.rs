//! `doctor.json`.

use crate::error::{Error, Result};
use crate::model::Diagnosis;

pub(crate) fn decode_diagnosis(bytes: &[u8]) -> Result<Diagnosis> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::damaged(format!("the doctor's verdict cannot be read: {error}")))
}

pub(crate) fn encode_diagnosis(diagnosis: &Diagnosis) -> Vec<u8> {
    // A struct of texts and a time always has a JSON form.
    let mut bytes = serde_json::to_vec_pretty(diagnosis).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
