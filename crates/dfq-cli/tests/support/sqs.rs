//! SQS on ministack, a server that we did not write, and a desk whose commands can use it.

#[path = "../../../dfq/tests/sqs_support/proxy.rs"]
pub(crate) mod proxy;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::Desk;

/// The endpoint of the server that runs for all tests, or of one that ends with this process; nothing, and
/// a loud word, if it cannot be installed.
pub(crate) fn ministack() -> Option<&'static str> {
    static ENDPOINT: OnceLock<Option<String>> = OnceLock::new();
    let running = || std::env::var("DFQ_TEST_MINISTACK").ok();
    ENDPOINT.get_or_init(|| running().or_else(start)).as_deref()
}

fn start() -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../servers/ministack");
    let own = std::process::id().to_string();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ministack-{own}"));
    let installed = Command::new(&script).arg("install").output().unwrap();
    if !installed.status.success() {
        let why = String::from_utf8_lossy(&installed.stderr);
        let _ = writeln!(std::io::stderr(), "SKIPPED: no ministack to test SQS with: {why}");
        return None;
    }
    let up = Command::new(script).arg("up").arg(dir).env("DFQ_SERVER_OWNER", own).output().unwrap();
    assert!(up.status.success(), "ministack: {}", String::from_utf8_lossy(&up.stderr));
    Some(String::from_utf8(up.stdout).unwrap().trim().to_owned())
}

/// What commands must find in their environment to reach SQS there.
pub(crate) fn variables(endpoint: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT_URL_SQS", endpoint.to_owned()),
        ("AWS_ACCESS_KEY_ID", "testkey".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "testsecret".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
}

/// A desk from which SQS can be reached.
pub(crate) fn desk(endpoint: &str) -> Desk {
    Desk::new().with(variables(endpoint))
}
