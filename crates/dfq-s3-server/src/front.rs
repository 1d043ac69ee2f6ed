//! HTTP in front of the operations: where a request is counted, delayed, lost, and answered in the
//! server's stead. A request is executed on a task of its own, so one whose client has hung up still
//! takes effect, as it does on a real server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{DATE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::service::S3Service;
use s3s::{Body, StdError};

use crate::faults::{Fault, Plan};
use crate::meter::Record;
use crate::request::RequestInfo;
use crate::service::ListAge;
use crate::shared::{Shared, read};

/// The largest body of a request.
const MAX_BODY: usize = 256 * 1024 * 1024;

/// How long the first half of a cut body has to leave the machine before the connection closes.
const FLUSH: Duration = Duration::from_millis(10);

/// The connection closes without an answer.
#[derive(Debug)]
pub(crate) struct Lost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was closed on purpose")
    }
}

impl std::error::Error for Lost {}

/// Takes one request; an error closes its connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    service: S3Service,
    request: Request<Incoming>,
) -> Result<Response<Body>, Lost> {
    let (parts, body) = request.into_parts();
    // Read to its end first: an answer in the middle of a body would look like a lost connection.
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|_| Lost)?.to_bytes();
    let mut info = RequestInfo::new(&parts.method, &parts.uri, &parts.headers);
    let plan = shared.plan(&mut info);
    tokio::spawn(handle(shared, service, parts, body, info, plan)).await.map_err(|_| Lost)?
}

async fn handle(
    shared: Arc<Shared>,
    service: S3Service,
    parts: Parts,
    body: Bytes,
    request: RequestInfo,
    plan: Plan,
) -> Result<Response<Body>, Lost> {
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    let mut answer = perform(&service, parts, body, plan).await;
    if let Ok(response) = &mut answer
        && let Some(date) = date(&shared)
    {
        response.headers_mut().insert(DATE, date);
    }
    let status = answer.as_ref().ok().map(|response| response.status().as_u16());
    shared.meter.record(Record { request, fault: plan.fault, status });
    answer
}

async fn perform(
    service: &S3Service,
    parts: Parts,
    body: Bytes,
    plan: Plan,
) -> Result<Response<Body>, Lost> {
    match plan.fault {
        Some(Fault::LoseRequest) => return Err(Lost),
        Some(Fault::Conflict) => return Ok(conflict()),
        Some(Fault::Error) => return Ok(internal_error()),
        Some(Fault::SlowDown) => return Ok(slow_down()),
        _ => {}
    }
    let mut request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(ListAge(plan.list_age));
    let response = service.call(request).await.map_err(|_| Lost)?;
    match plan.fault {
        Some(Fault::LoseAnswer) => Err(Lost),
        Some(Fault::ConflictExecuted) => Ok(conflict()),
        Some(Fault::PreconditionExecuted) => Ok(precondition_failed()),
        Some(Fault::ErrorExecuted) => Ok(internal_error()),
        Some(Fault::SlowDownExecuted) => Ok(slow_down()),
        Some(Fault::CutBody) => cut(response, FLUSH).await,
        Some(Fault::StallBody(stall)) => cut(response, stall.max(FLUSH)).await,
        Some(Fault::DelayAnswer(delay)) => {
            tokio::time::sleep(delay).await;
            Ok(response)
        }
        _ => Ok(response),
    }
}

fn conflict() -> Response<Body> {
    let why = "A conflicting operation occurred. If using PutObject you can retry the request.";
    error(StatusCode::CONFLICT, "ConditionalRequestConflict", why)
}

fn precondition_failed() -> Response<Body> {
    let why = "At least one of the pre-conditions you specified did not hold.";
    error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", why)
}

fn internal_error() -> Response<Body> {
    let why = "We encountered an internal error. Please try again.";
    error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", why)
}

fn slow_down() -> Response<Body> {
    let why = "Please reduce your request rate.";
    error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", why)
}

fn error(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    let mut response = Response::new(Body::from(xml));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/xml"));
    response
}

/// Promises the whole body, sends half of it, and closes a while later. An error has nothing worth
/// cutting.
async fn cut(response: Response<Body>, after: Duration) -> Result<Response<Body>, Lost> {
    if !response.status().is_success() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let whole = BodyExt::collect(body).await.map_err(|_| Lost)?.to_bytes();
    let half = whole.slice(..whole.len() / 2);
    let end = stream::once(async move {
        tokio::time::sleep(after).await;
        Err::<_, StdError>(Box::new(Lost))
    });
    let frames = stream::iter([Ok(Frame::data(half))]).chain(end);
    Ok(Response::from_parts(parts, Body::http_body_unsync(StreamBody::new(frames))))
}

/// The server's own clock, which may be wrong on purpose.
fn date(shared: &Shared) -> Option<HeaderValue> {
    let mut text = Vec::new();
    let now = Timestamp::from(read(&shared.lies).now());
    now.format(TimestampFormat::HttpDate, &mut text).ok()?;
    HeaderValue::from_bytes(&text).ok()
}
