//! Credentials that end while a worker is at work, and those that take their place. The worker is a
//! process of its own, because credentials come from its environment.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dfq::options::S3Options;
use dfq::worker::{Job, Worker};
use dfq_s3_server::Credential;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::world::*;

/// Everything that is logged on this thread, or in this process, of every level and by every library.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    /// On this thread, as long as the guard is kept.
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut text = self.0.lock().unwrap();
        attributes.record(&mut Line(&mut text));
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Line(&mut self.0.lock().unwrap()));
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = self.0.lock().unwrap();
        let _ = write!(text, "{} {}:", event.metadata().level(), event.metadata().target());
        event.record(&mut Line(&mut text));
        text.push('\n');
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

const ENDPOINT: &str = "DFQ_TRAPS_WORKER";

/// Two heartbeats may come late before it runs out; each task sees one.
const LENIENT: Duration = Duration::from_secs(18);

/// The worker's process: two tasks of nine seconds each.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_a_process_of_its_own() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let options = S3Options { endpoint: Some(endpoint), ..S3Options::default() };
    let work = async {
        let queue = open("dfq-test", options, LENIENT).await?;
        let handler = |_: Job| async {
            pause(9_000).await;
            Ok::<(), dfq::Error>(())
        };
        Worker::new(queue, handler).limit(2).run().await
    };
    let report = work.await;
    println!("{}\nreport: {report:?}", log.text());
}

fn command(world: &World) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "credentials::a_worker_in_a_process_of_its_own", "--nocapture"])
        .env(ENDPOINT, world.server.endpoint())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_REGION", "us-east-1")
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .env_remove("AWS_PROFILE")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Like what STS hands out.
fn session(n: u32) -> Credential {
    Credential::new(format!("KEY{n}"), format!("s3cret-number-{n}"))
        .with_session_token(format!("t0ken-number-{n}"))
}

fn write_whole(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn profile(credential: &Credential) -> String {
    let token = credential.session_token.as_deref().unwrap();
    format!(
        "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\naws_session_token = {token}\n",
        credential.access_key, credential.secret_key
    )
}

/// What a `credential_process` prints.
fn printed(credential: &Credential, lasting: Duration) -> String {
    let expires = jiff::Timestamp::now() + lasting;
    serde_json::json!({
        "Version": 1,
        "AccessKeyId": credential.access_key,
        "SecretAccessKey": credential.secret_key,
        "SessionToken": credential.session_token,
        "Expiration": expires.to_string(),
    })
    .to_string()
}

async fn two_tasks(world: &World) {
    let queue = world.open(LENIENT).await.unwrap();
    let task = |id: &str| dfq::NewTask::from_json(&format!(r#"{{"id": "{id}"}}"#)).unwrap();
    assert!(queue.push(vec![task("x"), task("y")]).await.iter().all(Result::is_ok));
}

/// Both tasks were done, by one process and at the first attempt, and nothing secret was said.
fn assert_done(world: &World, output: &Output) {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    for secret in ["s3cret-number", "t0ken-number"] {
        let line = text.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "a secret in the log: {line:?}");
    }
    let telling = |line: &&str| ["WARN", "ERROR", "report"].iter().any(|w| line.starts_with(w));
    let said: Vec<&str> = text.lines().filter(telling).collect();
    let done = "report: Ok(Report { completed: 2, retried: 0";
    assert!(text.contains(done), "{}", said.join("\n"));
    assert_eq!(world.keys("completed/").len(), 2);
    for (key, record) in world.server.objects() {
        if key.contains("completed/") {
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            assert_eq!(record["_dfq"]["attempts"].as_array().unwrap().len(), 1, "{record}");
        }
    }
}

/// The server knows these, and knew those.
fn rotate(world: &World, from: u32, to: u32) {
    let expired = Credential { expired: true, ..session(from) };
    world.server.set_credentials(vec![expired, session(to)]);
}

async fn started(world: &World) {
    for _ in 0..300 {
        if world.keys("pending/").iter().any(|key| key.contains("lease")) {
            return pause(1_000).await;
        }
        pause(100).await;
    }
    panic!("the worker does not start");
}

/// A file that something else renews, and that says nothing of when.
#[tokio::test]
async fn a_credentials_file_that_changes() {
    let world = World::new().await;
    two_tasks(&world).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    write_whole(&file, &profile(&session(1)));
    world.server.set_credentials(vec![session(1)]);
    let mut command = command(&world);
    command.env("AWS_SHARED_CREDENTIALS_FILE", &file).env("AWS_CONFIG_FILE", "/dev/null");
    let worker = tokio::spawn(async move { command.output().await.unwrap() });
    started(&world).await;
    write_whole(&file, &profile(&session(2)));
    rotate(&world, 1, 2);
    let output = worker.await.unwrap();
    assert!(world.server.meter().counts().status(400) > 0, "the old ones were refused");
    assert_done(&world, &output);
}

/// The same, but the server forgets the old key altogether, and the file comes after a heartbeat was
/// refused.
#[tokio::test]
async fn a_credentials_file_that_changes_late() {
    let world = World::new().await;
    two_tasks(&world).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    write_whole(&file, &profile(&session(1)));
    world.server.set_credentials(vec![session(1)]);
    let mut command = command(&world);
    command.env("AWS_SHARED_CREDENTIALS_FILE", &file).env("AWS_CONFIG_FILE", "/dev/null");
    let worker = tokio::spawn(async move { command.output().await.unwrap() });
    started(&world).await;
    world.server.set_credentials(vec![session(2)]);
    for waits in 0.. {
        if world.server.meter().counts().status(403) > 0 {
            break;
        }
        assert!(waits < 1200, "no heartbeat comes");
        pause(50).await;
    }
    write_whole(&file, &profile(&session(2)));
    assert_done(&world, &worker.await.unwrap());
}

/// How long the first credentials are good for. They are renewed a minute before their end, which leaves a
/// slow machine five seconds to start its worker with them.
const GOOD_FOR: Duration = Duration::from_secs(65);

/// Waits until a request comes with the second credentials.
async fn renewed(world: &World) {
    let seen = Arc::new(AtomicBool::new(false));
    let (sees, second) = (Arc::clone(&seen), session(2).access_key);
    world.server.on(move |request| {
        sees.fetch_or(request.access_key.as_ref() == Some(&second), Ordering::SeqCst);
        None
    });
    while !seen.load(Ordering::SeqCst) {
        pause(100).await;
    }
}

/// A program that is asked again before what it said expires.
#[tokio::test]
async fn a_credential_process_that_is_asked_again() {
    let world = World::new().await;
    two_tasks(&world).await;
    let dir = tempfile::tempdir().unwrap();
    let (said, asked) = (dir.path().join("said.json"), dir.path().join("asked"));
    let config = dir.path().join("config");
    let script = dir.path().join("script");
    let lines = format!("echo >> {}\ncat {}\n", asked.display(), said.display());
    std::fs::write(&script, lines).unwrap();
    let process = format!("[default]\ncredential_process = /bin/sh {}\n", script.display());
    std::fs::write(&config, process).unwrap();
    write_whole(&said, &printed(&session(1), GOOD_FOR));
    world.server.set_credentials(vec![session(1), session(2)]);
    let mut command = command(&world);
    command.env("AWS_CONFIG_FILE", &config).env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    let worker = tokio::spawn(async move { command.output().await.unwrap() });
    started(&world).await;
    write_whole(&said, &printed(&session(2), Duration::from_secs(3600)));
    renewed(&world).await;
    rotate(&world, 1, 2);
    let output = worker.await.unwrap();
    assert_done(&world, &output);
    assert_eq!(world.server.meter().counts().status(400), 0, "they were renewed in time");
    let times = std::fs::read_to_string(&asked).unwrap().lines().count();
    assert!((2..10).contains(&times), "asked {times} times");
}

/// What the endpoint of a container answers.
fn handed_out(credential: &Credential, lasting: Duration) -> String {
    let expires = jiff::Timestamp::now() + lasting;
    serde_json::json!({
        "AccessKeyId": credential.access_key,
        "SecretAccessKey": credential.secret_key,
        "Token": credential.session_token,
        "Expiration": expires.to_string(),
    })
    .to_string()
}

/// An endpoint as ECS, Fargate and EKS put it beside a container: whoever shows the token is told what
/// `says` holds. Answers its address; how often it was asked is counted.
async fn endpoint(token: &'static str, says: Arc<Mutex<String>>, asked: Arc<Mutex<u32>>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/v2/credentials/role", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut lines, mut writer) = stream.into_split();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && lines.read_buf(&mut head).await.unwrap_or(0) > 0 {
            }
            let head = String::from_utf8_lossy(&head).to_lowercase();
            let known = head.starts_with("get /v2/credentials/role ")
                && head.contains(&format!("authorization: {token}\r\n"));
            *asked.lock().unwrap() += u32::from(known);
            let (status, body) = match known {
                true => ("200 OK", says.lock().unwrap().clone()),
                false => ("403 Forbidden", String::new()),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{body}"
            );
            let _ = writer.write_all(answer.as_bytes()).await;
        }
    });
    address
}

/// The role of a container, whose credentials end while a task is worked on: they are asked for again in
/// time, and nothing is refused.
#[tokio::test]
async fn a_container_that_is_given_new_credentials() {
    let world = World::new().await;
    two_tasks(&world).await;
    let says = Arc::new(Mutex::new(handed_out(&session(1), GOOD_FOR)));
    let asked = Arc::default();
    let address = endpoint("t0ken-number-0", Arc::clone(&says), Arc::clone(&asked)).await;
    world.server.set_credentials(vec![session(1), session(2)]);
    let mut command = command(&world);
    command.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", address);
    command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN", "t0ken-number-0");
    let worker = tokio::spawn(async move { command.output().await.unwrap() });
    started(&world).await;
    *says.lock().unwrap() = handed_out(&session(2), Duration::from_secs(3600));
    renewed(&world).await;
    rotate(&world, 1, 2);
    let output = worker.await.unwrap();
    assert_done(&world, &output);
    assert_eq!(world.server.meter().counts().status(400), 0, "they were renewed in time");
    let times = *asked.lock().unwrap();
    assert!((2..20).contains(&times), "asked {times} times");
}
