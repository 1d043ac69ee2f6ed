//! Two FUSE mounts of one bucket (`s3fs`): each looks like a filesystem, and together they are none.
//! The bucket itself is safe; the mounts are not.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dfq_s3_server::{Options, Server};
use support::Desk;

/// A mount that ends with the test.
struct Mount(PathBuf);

impl Mount {
    /// Mounts a bucket; why not, if it cannot be.
    fn make(desk: &Desk, server: &Server, name: &str) -> Result<Self, String> {
        let (at, keys) = (desk.path(name), desk.path("keys"));
        std::fs::create_dir(&at).unwrap();
        desk.write("keys", format!("{}:{}", server.access_key(), server.secret_key()));
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
        let options = format!(
            "passwd_file={},url={},use_path_request_style,listobjectsv2",
            keys.display(),
            server.endpoint()
        );
        let mut mount = Command::new("s3fs");
        mount.arg(server.bucket()).arg(&at).args(["-o", &options]);
        let output = mount.output().map_err(|error| format!("s3fs cannot be started: {error}"))?;
        let mounted = Self(at.clone());
        // It answers before it has mounted; and it may find out only later that it cannot.
        for _ in 0..100 {
            if is_mounted(&at) {
                return Ok(mounted);
            }
            support::pause();
        }
        Err(format!("s3fs cannot mount: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_mounts_of_one_bucket_are_refused() {
    let server = Server::start(Options::default()).await.unwrap();
    let desk = Desk::new();
    let mounts = tokio::task::block_in_place(|| {
        ["one", "two"].map(|name| Mount::make(&desk, &server, name))
    });
    if let Some(why) = mounts.iter().find_map(|mount| mount.as_ref().err()) {
        println!("SKIPPED: no bucket can be mounted here: {why}");
        return;
    }
    let said = tokio::task::block_in_place(|| {
        desk.dfq(&["doctor", "--peer", "./one", "./two", "--rounds", "30", "-q"])
    });
    assert_eq!(said.status, Some(13), "{said:?}");
    // Each mount has its own winner.
    assert!(said.out.starts_with("refused: O_EXCL is not atomic: up to 2 of 32 "), "{said:?}");
    let remembered = desk.read("two/doctor.json");
    assert!(remembered.contains("refused"), "{remembered}");
}
