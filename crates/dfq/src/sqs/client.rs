//! Requests to SQS, tried again where that is safe, with errors that say what to do.
//!
//! Invariant: every request leaves through [`Client::call`], where it is counted and where it is given
//! up in time: the SDK's own retries are off. A request about messages that somebody holds ends before
//! their lease does, so nothing that we sent is still on its way when others may have them.

use std::fmt::Display;
use std::time::Duration;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use futures::StreamExt;
use futures::future::BoxFuture;

use crate::clock::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::{Meter, RequestKind};

/// How often a request is tried, and how long to wait before the second time; then doubling.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// How long one request may take before it counts as lost.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How many entries a batch request takes.
pub(super) const BATCH: usize = 10;

/// How many requests of one verb are under way at once.
pub(super) const PIPELINE: usize = 8;

/// A way to SQS.
pub(super) struct Client {
    pub(super) sdk: aws_sdk_sqs::Client,
    pub(super) env: Env,
    pub(super) meter: Meter,
    /// The queue, for messages to people.
    pub(super) address: String,
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    /// The server's name for it, such as `QueueDoesNotExist`; empty if it did not say.
    pub(super) code: String,
    pub(super) error: Error,
    /// It may be different the next time.
    passing: bool,
    /// No answer came at some time, so an earlier try may have been carried out.
    pub(super) unclear: bool,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// One try.
    pub(super) each: Duration,
    /// All of them: this monotonic time.
    pub(super) until: Duration,
}

impl Patience {
    pub(super) const ORDINARY: Self = Self { each: REQUEST_TIMEOUT, until: Duration::MAX };

    /// As long as a lease holds.
    pub(super) fn until(until: Duration) -> Self {
        Self { until, ..Self::ORDINARY }
    }
}

/// What was answered.
pub(super) struct Answer<R> {
    pub(super) said: R,
    /// Not to the first try, and an earlier one may have been carried out.
    pub(super) unclear: bool,
}

impl Client {
    /// Tries until it is done or refused, or has been tried often or long enough.
    pub(super) async fn call<R, E, F>(
        &self,
        kind: RequestKind,
        what: &str,
        patience: Patience,
        mut request: impl FnMut() -> F,
    ) -> Result<Answer<R>, Refused>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
        F: Future<Output = Result<R, SdkError<E>>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut unclear = false;
        for tried in 1.. {
            let left = patience.until.saturating_sub(self.env.monotonic());
            if left.is_zero() {
                return Err(Refused { unclear, ..self.silence(what, &"there was no time left") });
            }
            self.meter.sent(kind);
            let answer = tokio::select! {
                biased;
                answer = request() => Some(answer),
                () = self.env.clock().sleep(patience.each.min(left)) => None,
            };
            let mut refused = match answer {
                Some(Ok(said)) => return Ok(Answer { said, unclear }),
                Some(Err(error)) => self.explain(what, &error),
                None => self.silence(what, &"it took too long"),
            };
            self.meter.failed(kind);
            unclear |= refused.unclear;
            refused.unclear = unclear;
            let wait = pause.mul_f64(0.5 + self.env.fraction());
            let late = self.env.monotonic().saturating_add(wait) >= patience.until;
            if !refused.passing || tried >= TRIES || late {
                return Err(refused);
            }
            // Jitter, so that those who were refused together do not come back together.
            self.env.clock().sleep(wait).await;
            pause *= 2;
        }
        unreachable!("the last try returns")
    }

    fn silence(&self, what: &str, why: &dyn Display) -> Refused {
        let message = format!("cannot {what} {}: no answer ({why})", self.address);
        Refused {
            code: String::new(),
            error: Error::new(ErrorKind::Unavailable, message),
            passing: true,
            unclear: true,
        }
    }

    fn explain<E>(&self, what: &str, error: &SdkError<E>) -> Refused
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let failure = format!("cannot {what} {}", self.address);
        let last = root_cause(error);
        let refused = |kind, why: String| Refused {
            code: String::new(),
            error: Error::new(kind, format!("{failure}: {why}")),
            passing: false,
            unclear: false,
        };
        match error {
            SdkError::ServiceError(said) => {
                let status = said.raw().status().as_u16();
                let meta = said.err().meta();
                let code = bare(meta.code().unwrap_or_default());
                let (kind, passing) = judge(status, &code);
                let why = in_words(&code, meta.message().unwrap_or_default(), status);
                let unclear = status >= 500;
                Refused { passing, unclear, code, ..refused(kind, why) }
            }
            SdkError::ConstructionFailure(_) => refused(ErrorKind::Invalid, last),
            // Before anything left: there is nobody to sign the request.
            SdkError::DispatchFailure(_) if is_about_credentials(error) => {
                refused(ErrorKind::Denied, format!("there are no AWS credentials to use ({last})"))
            }
            _ => self.silence(what, &last),
        }
    }
}

/// What an entry of a batch was refused for.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) code: String,
    pub(super) message: String,
    /// Ours to correct; otherwise the server's, and it may be different the next time.
    pub(super) sender_fault: bool,
}

impl Entry {
    pub(super) fn new(failed: &aws_sdk_sqs::types::BatchResultErrorEntry) -> Self {
        Self {
            at: failed.id().parse().unwrap_or(usize::MAX),
            code: bare(failed.code()),
            message: failed.message().unwrap_or_default().to_owned(),
            sender_fault: failed.sender_fault(),
        }
    }
}

impl Client {
    /// Carries out a batch of at most [`BATCH`] entries, with one answer for each. `request` takes the
    /// numbers of the entries to ask for, and answers those that were refused.
    pub(super) async fn batch<F>(
        &self,
        what: &str,
        entries: usize,
        patience: Patience,
        request: impl Fn(Vec<usize>) -> F,
    ) -> Vec<Result<(), Refused>>
    where
        F: Future<Output = Result<Answer<Vec<Entry>>, Refused>>,
    {
        let mut answers: Vec<Result<(), Refused>> = vec![Ok(()); entries];
        let mut open: Vec<usize> = (0..entries).collect();
        let mut pause = FIRST_PAUSE;
        let mut unclear = false;
        for tried in 1..=TRIES {
            let refused = match request(open.clone()).await {
                Ok(answer) => {
                    unclear |= answer.unclear;
                    answer.said
                }
                // Tried often enough already.
                Err(refused) => {
                    let refused = Refused { unclear: unclear | refused.unclear, ..refused };
                    open.into_iter().for_each(|at| answers[at] = Err(refused.clone()));
                    break;
                }
            };
            let mut again = Vec::new();
            for entry in refused {
                let Some(answer) = answers.get_mut(entry.at) else { continue };
                let (kind, passing) =
                    judge(if entry.sender_fault { 400 } else { 500 }, &entry.code);
                let why = in_words(&entry.code, &entry.message, 0);
                let error = Error::new(kind, format!("cannot {what} {}: {why}", self.address));
                if passing {
                    again.push(entry.at);
                }
                *answer = Err(Refused { code: entry.code, error, passing, unclear });
            }
            let wait = pause.mul_f64(0.5 + self.env.fraction());
            let late = self.env.monotonic().saturating_add(wait) >= patience.until;
            if again.is_empty() || tried == TRIES || late {
                break;
            }
            self.env.clock().sleep(wait).await;
            pause *= 2;
            unclear = true;
            again.iter().for_each(|at| answers[*at] = Ok(()));
            open = again;
        }
        answers
    }
}

/// The answers of several requests, in order, with no more than `at_once` of them under way.
pub(super) async fn pipelined<T>(calls: Vec<BoxFuture<'_, Vec<T>>>, at_once: usize) -> Vec<T> {
    futures::stream::iter(calls).buffered(at_once).concat().await
}

/// What an answer of the server means, and whether it may pass.
fn judge(status: u16, code: &str) -> (ErrorKind, bool) {
    match code {
        "QueueDoesNotExist" | "NonExistentQueue" => (ErrorKind::NotFound, false),
        "ReceiptHandleIsInvalid" | "MessageNotInflight" => (ErrorKind::ClaimLost, false),
        "AccessDenied"
        | "AccessDeniedException"
        | "InvalidClientTokenId"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "SignatureDoesNotMatch"
        | "InvalidSecurity"
        | "UnrecognizedClientException"
        | "MissingAuthenticationToken"
        | "KmsAccessDenied"
        | "KmsDisabled"
        | "KmsOptInRequired"
        | "OptInRequired"
        | "InvalidAddress" => (ErrorKind::Denied, false),
        "OverLimit" => (ErrorKind::Unavailable, false),
        "RequestThrottled"
        | "ThrottlingException"
        | "Throttling"
        | "KmsThrottled"
        | "RequestTimeout"
        | "RequestExpired" => (ErrorKind::Unavailable, true),
        "UnsupportedOperation" => (ErrorKind::Unsupported, false),
        _ => match status {
            401 | 403 => (ErrorKind::Denied, false),
            408 | 429 | 500.. => (ErrorKind::Unavailable, true),
            _ => (ErrorKind::Invalid, false),
        },
    }
}

/// The server's words, with ours where they help.
fn in_words(code: &str, message: &str, status: u16) -> String {
    match code {
        "QueueDoesNotExist" | "NonExistentQueue" => "there is no such queue".to_owned(),
        "OverLimit" => {
            "as many messages are in flight as SQS allows (120,000, or 20,000 in a FIFO queue)"
                .to_owned()
        }
        "" if message.is_empty() => format!("the server answered {status}"),
        "" => message.to_owned(),
        code if message.is_empty() => code.to_owned(),
        code => format!("{} ({code})", message.trim_end_matches('.')),
    }
}

/// A code without the name of the service in front.
fn bare(code: &str) -> String {
    code.rsplit(['.', '#']).next().unwrap_or(code).to_owned()
}

/// The last of a chain of errors says what happened; those before it only where.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn is_about_credentials(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(here) = cause {
        if here.is::<aws_credential_types::provider::error::CredentialsError>() {
            return true;
        }
        cause = here.source();
    }
    false
}
