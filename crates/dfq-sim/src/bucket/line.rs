//! The way between one process and the server.
//!
//! Invariant: once a request has been sent it travels by itself, as work of the network. Whether its process waits
//! for the answer, has given up, or was killed makes no difference to what the server does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::Env;
use dfq::meter::{Counts, RequestKind};
use futures::channel::oneshot;
use futures::future::{Either, select};
use jiff::Timestamp;

use super::request::{Reply, Request};
use super::server::Server;
use super::weather::{Course, Done, Fate, Weather};
use super::{Luck, Tap, lock};

/// How long an answer may take, and how slow a line may be, in bytes a second: the real client's numbers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const SLOWEST_LINE: u64 = 64 * 1024;

/// No answer came, for so long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence(pub(super) Duration);

/// What the answers told of the server's clock, and this process's monotonic time then.
type Told = Option<(Timestamp, Duration)>;

#[derive(Debug)]
pub(super) struct Line {
    pub(super) server: Arc<Server>,
    pub(super) env: Env,
    weather: Arc<Mutex<Weather>>,
    tap: Arc<dyn Tap>,
    requests: Mutex<Counts>,
    told: Mutex<Told>,
}

impl Line {
    pub(super) fn new(
        server: Arc<Server>,
        env: Env,
        weather: Arc<Mutex<Weather>>,
        tap: Arc<dyn Tap>,
    ) -> Self {
        let (requests, told) = (Mutex::new(BTreeMap::new()), Mutex::default());
        Self { server, env, weather, tap, requests, told }
    }

    pub(super) fn requests(&self) -> Counts {
        lock(&self.requests).clone()
    }

    pub(super) fn told(&self) -> Told {
        *lock(&self.told)
    }

    /// Sends a request and waits for its answer, but not for ever.
    pub(super) async fn ask(&self, request: Request) -> Result<Reply, Silence> {
        self.unless_dead().await;
        let (kind, call) = (request.kind(), request.call());
        let patience = ANSWERED_WITHIN + Duration::from_secs(request.length() / SLOWEST_LINE);
        let mut fate = lock(&self.weather).fate(&request, patience, &self.server.network);
        lock(&self.requests).entry(kind).or_default().sent += 1;
        match self.tap.sent(&call) {
            Luck::AsDrawn => {}
            Luck::Lost => fate.course = Course::Lost,
            Luck::AnswerLost => fate.course = Course::AnswerLost,
            Luck::Late(after) => fate.there = after,
        }
        let (answer, answered) = oneshot::channel();
        let journey = Journey {
            server: Arc::clone(&self.server),
            weather: Arc::clone(&self.weather),
            tap: Arc::clone(&self.tap),
            request,
        };
        let under_way = self.server.on_the_way();
        let travel = async move {
            journey.travel(fate, answer).await;
            drop(under_way);
        };
        // It goes on without us.
        drop(self.server.network.spawn(travel));
        let reply = match select(answered, self.env.clock().sleep(patience)).await {
            Either::Left((Ok(reply), _)) => Ok(reply),
            Either::Left((Err(_), rest)) => {
                rest.await;
                Err(Silence(patience))
            }
            Either::Right(_) => Err(Silence(patience)),
        };
        self.unless_dead().await;
        let reply = reply.map(|(reply, date)| {
            *lock(&self.told) = Some((date, self.env.monotonic()));
            reply
        });
        self.note(kind, &reply);
        match &reply {
            Ok(reply) => self.tap.answered(&call, &reply.words()),
            Err(_) => self.tap.answered(&call, "silence"),
        }
        reply
    }

    fn note(&self, kind: RequestKind, reply: &Result<Reply, Silence>) {
        let mut requests = lock(&self.requests);
        let count = requests.entry(kind).or_default();
        match reply {
            Ok(Reply::Refused(..)) | Err(_) => count.failed += 1,
            Ok(reply) if reply.is_no() => count.no += 1,
            Ok(_) => {}
        }
    }

    /// A dead process does nothing more, and so never comes back from here.
    async fn unless_dead(&self) {
        if self.tap.is_dead() {
            std::future::pending::<()>().await;
        }
    }
}

/// A request on its way.
struct Journey {
    server: Arc<Server>,
    weather: Arc<Mutex<Weather>>,
    tap: Arc<dyn Tap>,
    request: Request,
}

impl Journey {
    async fn travel(&self, fate: Fate, answer: oneshot::Sender<(Reply, Timestamp)>) {
        self.pass(fate.there).await;
        if matches!(fate.course, Course::Lost) || (fate.cut_short && self.tap.is_dead()) {
            return;
        }
        let reply = match fate.course {
            Course::Lost => return,
            Course::Plain => self.arrive(),
            Course::AnswerLost => {
                self.arrive();
                return;
            }
            Course::Doubled(pause) => {
                self.arrive();
                self.pass(pause).await;
                self.arrive()
            }
            Course::Refused(.., Done::Before) => self.refused_after(fate, self.arrive()),
            Course::Refused((status, code), _) => Reply::Refused(status, code),
            Course::InParts { at, pause, whole } => self.in_parts(at, pause, whole).await,
        };
        let date = self.server.date();
        self.pass(fate.back).await;
        // Nobody may be there any more.
        let _ = answer.send((reply, date));
        if let Course::Refused(.., Done::After(delay)) = fate.course {
            self.pass(delay).await;
            self.arrive();
        }
    }

    async fn pass(&self, time: Duration) {
        if !time.is_zero() {
            self.server.network.clock().sleep(time).await;
        }
    }

    /// The request is at the server.
    fn arrive(&self) -> Reply {
        let kind = self.request.kind();
        let denied = |name: &str| lock(&self.weather).denies(kind, name);
        let forbidden = Reply::Refused(403, "AccessDenied");
        let name = match &self.request {
            // The others are removed all the same.
            Request::Delete { names } => {
                let (refused, names): (Vec<_>, Vec<_>) =
                    names.iter().cloned().partition(|name| denied(name));
                let reply = self.server.carry_out(&Request::Delete { names });
                return if refused.is_empty() { reply } else { forbidden };
            }
            Request::List(asked) => &asked.prefix,
            Request::Get { name, .. } | Request::Head { name } | Request::Put { name, .. } => name,
        };
        if denied(name) { forbidden } else { self.server.carry_out(&self.request) }
    }

    /// The answer of a server that failed after it had done it. What it refuses in any case, it still refuses.
    fn refused_after(&self, fate: Fate, reply: Reply) -> Reply {
        match (fate.course, reply) {
            (_, Reply::Refused(403, code)) => Reply::Refused(403, code),
            (Course::Refused((status, code), _), _) => Reply::Refused(status, code),
            (_, reply) => reply,
        }
    }

    /// Removes the first of many names, and after a while the others, or not.
    async fn in_parts(&self, at: f64, pause: Duration, whole: bool) -> Reply {
        let Request::Delete { names } = &self.request else { return self.arrive() };
        let (first, rest) = names.split_at((names.len() as f64 * at) as usize);
        let part = |names: &[String]| Self {
            server: Arc::clone(&self.server),
            weather: Arc::clone(&self.weather),
            tap: Arc::clone(&self.tap),
            request: Request::Delete { names: names.to_vec() },
        };
        let reply = part(first).arrive();
        self.pass(pause).await;
        match reply {
            Reply::Removed if !whole => Reply::Refused(500, "InternalError"),
            Reply::Removed => part(rest).arrive(),
            refused => {
                part(rest).arrive();
                refused
            }
        }
    }
}
