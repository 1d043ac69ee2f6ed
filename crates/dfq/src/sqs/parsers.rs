//! What reads messages, for those who fuzz it.

use aws_sdk_sqs::types::Message;

use super::body::{self, Body, ESCAPE, Ticket};
use super::foreign;
use crate::error::Result;
use crate::model::{Payload, Receipt, TaskMeta};

/// A task file as the body of a message, and how its escapes are spelled.
pub fn sqs_body(file: Vec<u8>, strictly: bool) -> Result<(String, Option<&'static str>)> {
    let body = Body::new(file, strictly)?;
    Ok((body.text, body.escape.map(|spelling| spelling.name())))
}

/// Reads the body of a message that we sent.
pub fn decode_sqs_body(text: &str, escape: Option<&str>) -> Result<(Payload, TaskMeta)> {
    body::decode(text, escape)
}

/// A word that SQS takes.
pub fn sqs_word(text: &str) -> String {
    body::word(text)
}

/// Takes a receipt of SQS apart and puts it together again.
pub fn rewrite_sqs_receipt(receipt: &Receipt) -> Option<Receipt> {
    Ticket::of(receipt).map(|ticket| ticket.receipt(receipt.key().clone(), receipt.attempt()))
}

/// What was read of a message that anybody may have sent: the task, and whether another program sent it.
pub fn read_sqs_message(
    body: &str,
    message_id: &str,
    escape: Option<&str>,
) -> Result<(Payload, TaskMeta, bool)> {
    let message = Message::builder().body(body).message_id(message_id);
    let attributes = escape.and_then(foreign::text_value).map(|value| (ESCAPE.to_owned(), value));
    let message = message.set_message_attributes(Some(attributes.into_iter().collect())).build();
    let content = foreign::read(&message)?;
    Ok((content.payload, content.meta, content.foreign.is_some()))
}
