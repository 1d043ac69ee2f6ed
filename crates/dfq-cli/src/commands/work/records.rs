//! `dfq work --index`: what commands print, put into an index before their tasks are done.
//!
//! Invariant: a task is completed only after all its records were put, so a record may be put twice, and never not at all.
//! (Of two that two attempts put under one key, the later one counts.) What is wrong with a record is a failure of its
//! attempt. What is wrong with the index is never counted against a task.

use std::time::Duration;

use dfq::index::{Index, Record};
use dfq::worker::{Job, TaskResult};
use dfq::{Error, ErrorKind};
use serde_json::{Map, Value};

use super::WorkContext;
use super::once::stopped;

/// The most that one task's records may take, as JSON.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// How long to wait for an index that does not answer: from the first, doubling, to the second.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// After so long, and so many tries, the worker stops.
const WAITED_FOR: (Duration, u32) = (Duration::from_secs(600), 10);

/// Where records go.
pub(super) struct Records {
    index: Index,
    /// The member that is the key.
    key: String,
}

impl Records {
    pub(super) fn new(index: Index, key: String) -> Self {
        Self { index, key }
    }

    /// Puts what a command printed; what becomes of the task then.
    pub(super) async fn put_output(
        &self,
        context: &WorkContext,
        job: &Job,
        output: &[u8],
    ) -> TaskResult {
        match read(output) {
            Ok(objects) => self.put(context, job, objects).await,
            Err(why) => TaskResult::Retry { error: why, delay: None },
        }
    }

    /// Puts records; what becomes of their task then.
    pub(super) async fn put(
        &self,
        context: &WorkContext,
        job: &Job,
        objects: Vec<Map<String, Value>>,
    ) -> TaskResult {
        let records = objects.into_iter().map(|object| Record::from_fields(object, &self.key));
        let records = match records.collect::<dfq::Result<Vec<Record>>>() {
            Ok(records) => records,
            Err(error) => return refused(&error),
        };
        let (began, mut wait) = (context.env.monotonic(), WAIT.0);
        for tries in 1.. {
            let put = self.index.put(records.clone());
            let put = tokio::select! {
                biased;
                () = job.cancelled() => return stopped(),
                put = put => put,
            };
            let Some(error) = first_error(put) else { break };
            if error.kind() == ErrorKind::Invalid {
                return refused(&error);
            }
            let waited = context.env.monotonic().saturating_sub(began);
            let is_over = waited >= WAITED_FOR.0 && tries >= WAITED_FOR.1;
            if error.kind() != ErrorKind::Unavailable || is_over {
                let why = format!("nothing can be put into {}: {error}", self.index.address());
                context.halt.now(&why);
                return TaskResult::Release { reason: Some(why), delay: None };
            }
            if tries == 1 {
                tracing::warn!(%error, "a record cannot be put now; trying again");
            }
            tokio::select! {
                () = job.cancelled() => return stopped(),
                () = context.env.clock().sleep(wait) => wait = (wait * 2).min(WAIT.1),
            }
        }
        TaskResult::Ack
    }
}

/// What keeps records from being put: of several reasons, one about the index rather than one about a record.
fn first_error(answers: Vec<dfq::Result<()>>) -> Option<Error> {
    let mut errors: Vec<Error> = answers.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() == ErrorKind::Invalid);
    errors.into_iter().next()
}

fn refused(error: &Error) -> TaskResult {
    let error = format!("the command's record cannot be put into the index: {error}");
    TaskResult::Retry { error, delay: None }
}

/// The objects in what a command printed: one after the other, or in lists. An error says what is wrong.
fn read(output: &[u8]) -> Result<Vec<Map<String, Value>>, String> {
    if output.len() > MOST_BYTES {
        let most = crate::output::bytes(MOST_BYTES as u64);
        return Err(format!("the command printed more than {most}, too much for records"));
    }
    if output.trim_ascii().is_empty() {
        return Err("the command printed no record; with --index it prints JSON objects, or [] if there is nothing to \
                    be put"
            .to_owned());
    }
    let mut objects = Vec::new();
    let mut values = serde_json::Deserializer::from_slice(output).into_iter::<Value>();
    loop {
        // Where the next value begins, for the message.
        let at = values.byte_offset();
        let nonsense = |why: &str| {
            let rest = String::from_utf8_lossy(&output[at..]);
            let line = rest.trim_start().lines().next().unwrap_or_default();
            let said = crate::output::cut(&crate::output::printable(line), 200);
            Err(format!("the command printed '{said}', which is not a record ({why})"))
        };
        match values.next() {
            None => return Ok(objects),
            Some(Ok(Value::Object(object))) => objects.push(object),
            Some(Ok(Value::Array(list))) => {
                for value in list {
                    let Value::Object(object) = value else {
                        return nonsense("a list of something else than JSON objects");
                    };
                    objects.push(object);
                }
            }
            Some(Ok(_)) => return nonsense("not a JSON object"),
            Some(Err(error)) => return nonsense(&error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_objects_however_they_are_laid_out() {
        for (output, count) in [
            (r#"{"a":1}"#, 1),
            ("{\n  \"a\": 1\n}\n", 1),
            ("{\"a\":1}\n\n{\"a\":2}\r\n", 2),
            ("[]", 0),
            ("[{\"a\":1},{\"a\":2}]\n{}", 3),
        ] {
            assert_eq!(read(output.as_bytes()).map(|it| it.len()), Ok(count), "{output}");
        }
        for (output, why) in [
            (" \n", "printed no record"),
            ("done\n", "'done'"),
            ("{\"a\":1}\nok {\n", "'ok {'"),
            ("{\"a\":", "EOF"),
            ("[1]", "a list of something else"),
            ("12", "not a JSON object"),
            ("\u{1b}[2J", "not a record"),
        ] {
            let error = read(output.as_bytes()).unwrap_err();
            assert!(error.contains(why) && !error.contains('\u{1b}'), "{output}: {error}");
        }
        assert!(read(b"{\"a\":\"\xff\"}").is_err(), "not UTF-8");
        assert!(read(&vec![b' '; MOST_BYTES + 1]).unwrap_err().contains("16 MiB"));
    }
}
