//! The server as a process: it says where it is, takes its flags, and ends when it is told to.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, RetryConfig};
use serde_json::Value;

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dfq-s3-server"));
    command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn start(flags: &[&str]) -> (Child, BufReader<ChildStdout>, Value) {
    let mut child = command(flags).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, serde_json::from_str(&line).unwrap())
}

fn client(ready: &Value) -> AmazonS3 {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let text = |name: &str| ready[name].as_str().unwrap().to_owned();
    let options = ClientOptions::new().with_allow_http(true).with_no_system_certificates(true);
    AmazonS3Builder::new()
        .with_endpoint(text("endpoint"))
        .with_bucket_name(text("bucket"))
        .with_access_key_id(text("access_key"))
        .with_secret_access_key(text("secret_key"))
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_client_options(options)
        .build()
        .unwrap()
}

async fn create(client: &AmazonS3) -> Result<(), Error> {
    let mode = PutMode::Create.into();
    client.put_opts(&"k".into(), "x".into(), mode).await.map(|_| ())
}

#[tokio::test]
async fn serves_until_its_input_ends_and_says_what_it_counted() {
    let (mut child, mut out, ready) = start(&["--bucket", "jobs", "--access-key", "me"]);
    assert_eq!((&ready["bucket"], &ready["access_key"]), (&"jobs".into(), &"me".into()));
    let client = client(&ready);
    create(&client).await.unwrap();
    create(&client).await.unwrap_err();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let counts: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(counts["requests"]["PutObject"], serde_json::json!({ "200": 1, "412": 1 }));
}

#[tokio::test]
async fn ends_on_a_signal() {
    let (mut child, _out, ready) = start(&[]);
    create(&client(&ready)).await.unwrap();
    let kill = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(kill.success() && child.wait().unwrap().success());
}

#[tokio::test]
async fn takes_faults_lies_and_denials() {
    let (mut child, _out, ready) = start(&[
        "--fault=conflict=1",
        "--seed=3",
        "--latency=5ms",
        "--jitter=1ms",
        "--list-lag=1s",
        "--lie=whole-seconds",
        "--lie=refuse-quoted-etags",
        "--clock-offset=-1h",
        "--deny=s3:ListBucket",
        "--deny=s3:PutObject=secret/",
    ]);
    let client = client(&ready);
    let error = create(&client).await.unwrap_err();
    assert!(format!("{error:?}").contains("ConditionalRequestConflict"), "{error:?}");
    let missing = client.get(&"no".into()).await;
    assert!(matches!(missing, Err(Error::PermissionDenied { .. })), "{missing:?}");
    client.put(&"open/k".into(), "x".into()).await.unwrap();
    client.put(&"secret/k".into(), "x".into()).await.unwrap_err();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn refuses_flags_it_does_not_know() {
    let complaints = [
        ("--fault=lose=1", "lose-answer"),
        ("--fault=error=2", "from 0 to 1"),
        ("--lie=white", "whole-seconds"),
        ("--latency=5", "unit"),
    ];
    for (flag, complaint) in complaints {
        let output: Output = command(&[flag]).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(complaint), "{flag}: {said}");
    }
}
