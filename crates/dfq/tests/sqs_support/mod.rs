//! Servers that speak SQS's protocol and that we did not write, started by the tests themselves.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod proxy;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use dfq::address::SqsAddress;
use dfq::meter::Meter;
use dfq::options::SqsOptions;
use dfq::sqs::Sqs;
use dfq::{Env, OpenOptions, Queue, Settings};

/// Starts a server of `servers/` that ends with this process; nothing if it cannot be installed. One that
/// is installed and does not start is no reason to skip it.
fn start(name: &str) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../servers").join(name);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let installed = Command::new(&script).arg("install").output().unwrap();
    if !installed.status.success() {
        let why = String::from_utf8_lossy(&installed.stderr);
        let _ = writeln!(std::io::stderr(), "SKIPPED: no {name} to test SQS with: {}", why.trim());
        return None;
    }
    let up = Command::new(&script).arg("up").arg(&dir).output().unwrap();
    assert!(up.status.success(), "{name}: {}", String::from_utf8_lossy(&up.stderr));
    // Somebody has to stop it when this process has come to its end, whichever that is.
    let watch = r#"(while kill -0 "$1"; do sleep 1; done; "$2" down "$3"; rm -rf "$3") &"#;
    Command::new("sh")
        .args(["-c", watch, "watch", &std::process::id().to_string()])
        .args([script.as_os_str(), dir.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    Some(String::from_utf8(up.stdout).unwrap().trim().to_owned())
}

/// The endpoint of ministack: of the one that runs for all tests, or of one of our own.
pub(crate) fn ministack() -> Option<&'static str> {
    static ENDPOINT: OnceLock<Option<String>> = OnceLock::new();
    let running = || std::env::var("DFQ_TEST_MINISTACK").ok();
    ENDPOINT.get_or_init(|| running().or_else(|| start("ministack"))).as_deref()
}

/// The endpoint of fauxqs, if it is to be tested too.
pub(crate) fn fauxqs() -> Option<&'static str> {
    static ENDPOINT: OnceLock<Option<String>> = OnceLock::new();
    let wanted = || std::env::var_os("DFQ_TEST_FAUXQS").and_then(|_| start("fauxqs"));
    ENDPOINT.get_or_init(wanted).as_deref()
}

/// A queue of its own on a server, with a dead-letter queue beside it.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) endpoint: String,
    pub(crate) name: String,
    pub(crate) dead_letter: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) meter: Meter,
}

impl Site {
    pub(crate) fn new(endpoint: &str, suffix: &str) -> Self {
        let nonce = Env::system().nonce();
        Self {
            endpoint: endpoint.to_owned(),
            name: format!("q-{nonce}{suffix}"),
            dead_letter: Some(format!("dead-{nonce}{suffix}")),
            group: None,
            meter: Meter::default(),
        }
    }

    pub(crate) fn options(&self) -> SqsOptions {
        SqsOptions {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".into()),
            credentials: Some(("testkey".into(), "testsecret".into())),
            dead_letter: self.dead_letter.clone(),
            group: self.group.clone(),
            backoff: None,
        }
    }

    pub(crate) async fn open(&self, create: Option<Settings>) -> dfq::Result<Arc<dyn Queue>> {
        let open = OpenOptions { create, meter: self.meter.clone(), ..OpenOptions::default() };
        Sqs::open(SqsAddress::parse(&self.name)?, OpenOptions { sqs: self.options(), ..open }).await
    }

    pub(crate) async fn queue(&self, settings: &Settings) -> Arc<dyn Queue> {
        self.open(Some(settings.clone())).await.unwrap()
    }

    /// The dead-letter queue as a queue.
    pub(crate) async fn dead_letters(&self) -> Arc<dyn Queue> {
        let name = self.dead_letter.clone().unwrap();
        Self { name, dead_letter: None, ..self.clone() }.open(None).await.unwrap()
    }

    /// The same server by its bare client, for what dfq itself would never do.
    pub(crate) async fn bare(&self) -> (aws_sdk_sqs::Client, String) {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let shared = aws_config::defaults(aws_config::BehaviorVersion::latest())
            .http_client(http)
            .region("us-east-1")
            .endpoint_url(&self.endpoint)
            .credentials_provider(aws_credential_types::Credentials::new(
                "k", "s", None, None, "test",
            ))
            .load()
            .await;
        let client = aws_sdk_sqs::Client::new(&shared);
        let url = client.get_queue_url().queue_name(&self.name).send().await.unwrap();
        (client, url.queue_url.unwrap())
    }
}
