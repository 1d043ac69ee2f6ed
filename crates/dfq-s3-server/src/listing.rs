//! Listings as S3 words them: what is asked becomes a query of the store, a page of the store an
//! answer. A continuation token says exactly where the page ended, and means nothing to a client.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::store::{self, Page, Position, Query};

/// The most keys and common prefixes on one page.
const MAX_KEYS: usize = 1000;

/// What `encoding-type=url` leaves as it is.
const KEPT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// What a listing asks the store for.
pub(crate) fn query(
    input: &ListObjectsV2Input,
    age: Duration,
    keep_folders: bool,
) -> S3Result<Query<'_>> {
    let max = match input.max_keys {
        None => MAX_KEYS,
        Some(max) => usize::try_from(max)
            .map_err(|_| s3_error!(InvalidArgument, "max-keys must not be negative"))?
            .min(MAX_KEYS),
    };
    let after = match (&input.continuation_token, &input.start_after) {
        (Some(token), _) => position(token).ok_or_else(|| {
            s3_error!(InvalidArgument, "The continuation token is not one of ours")
        })?,
        (None, Some(key)) if keep_folders => Position::AfterKey(format!("{key}/\u{10ffff}")),
        (None, Some(key)) => Position::AfterKey(key.clone()),
        (None, None) => Position::Start,
    };
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let delimiter = input.delimiter.as_deref().unwrap_or_default();
    Ok(Query { prefix, delimiter, after, max, age })
}

/// The answer.
pub(crate) fn output(
    input: &ListObjectsV2Input,
    page: Page,
    modified: impl Fn(&store::Object) -> Timestamp,
) -> ListObjectsV2Output {
    let url = input.encoding_type.as_ref().is_some_and(|e| e.as_str() == EncodingType::URL);
    let encode = |text: String| match url {
        true => utf8_percent_encode(&text, KEPT).to_string(),
        false => text,
    };
    let key_count = page.objects.len() + page.prefixes.len();
    let contents: Vec<Object> = page
        .objects
        .into_iter()
        .map(|(key, object)| Object {
            key: Some(encode(key)),
            e_tag: Some(ETag::Strong(object.etag.clone())),
            last_modified: Some(modified(&object)),
            size: i64::try_from(object.body.len()).ok(),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Default::default()
        })
        .collect();
    let prefixes: Vec<CommonPrefix> = page
        .prefixes
        .into_iter()
        .map(|prefix| CommonPrefix { prefix: Some(encode(prefix)) })
        .collect();
    ListObjectsV2Output {
        name: Some(input.bucket.clone()),
        prefix: Some(encode(input.prefix.clone().unwrap_or_default())),
        delimiter: input.delimiter.clone().map(encode),
        max_keys: Some(input.max_keys.unwrap_or(MAX_KEYS as i32)),
        key_count: i32::try_from(key_count).ok(),
        is_truncated: Some(page.next.is_some()),
        continuation_token: input.continuation_token.clone(),
        next_continuation_token: page.next.as_ref().map(token),
        start_after: input.start_after.clone().map(encode),
        encoding_type: input.encoding_type.clone(),
        contents: Some(contents),
        common_prefixes: Some(prefixes),
        ..Default::default()
    }
}

/// In hex, so that no client has to escape it and none is tempted to read it.
fn token(position: &Position) -> String {
    let (kind, text) = match position {
        Position::Start => ('s', ""),
        Position::AfterKey(key) => ('k', key.as_str()),
        Position::AfterPrefix(prefix) => ('p', prefix.as_str()),
    };
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}{hex}")
}

fn position(token: &str) -> Option<Position> {
    let (kind, hex) = token.split_at_checked(1)?;
    let bytes: Option<Vec<u8>> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect();
    let text = String::from_utf8(bytes?).ok()?;
    match kind {
        "s" => Some(Position::Start),
        "k" => Some(Position::AfterKey(text)),
        "p" => Some(Position::AfterPrefix(text)),
        _ => None,
    }
}
