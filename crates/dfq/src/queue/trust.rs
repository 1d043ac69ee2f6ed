//! Whether the store may be trusted with tasks: what the doctor found out is believed, and a new
//! queue's first file is a trial by itself.
//!
//! Invariant: nothing is pushed to or claimed from a store that is known to be unsafe, unless the
//! caller said that this may be. A store that nobody has examined is not held to be unsafe.

use tokio::sync::OnceCell;

use super::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format;
use crate::layout;
use crate::model::Verdict;
use crate::store::{Created, Tree};

/// The provider whose creates are the kernel's.
const FILESYSTEM: &str = "filesystem";

/// What a process has made of the doctor's verdict.
pub(super) struct Trust {
    allow_unsafe: bool,
    /// Set once the store was found to be trusted. A refusal is not kept, so that a better verdict is
    /// heeded by those who wait for one.
    checked: OnceCell<()>,
}

impl Trust {
    pub(super) fn new(allow_unsafe: bool) -> Self {
        Self { allow_unsafe, checked: OnceCell::new() }
    }
}

impl<T: Tree> Core<T> {
    /// Before the first push or poll of a process: one read.
    pub(super) async fn check_trusted(&self) -> Result<()> {
        if self.trust.allow_unsafe {
            return Ok(());
        }
        self.trust.checked.get_or_try_init(|| check_doctor_verdict(&self.tree)).await.copied()
    }
}

/// An error if the store is known to be unsafe.
pub(super) async fn check_doctor_verdict<T: Tree>(tree: &T) -> Result<()> {
    let address = &tree.properties().address;
    let stored = match tree.read(layout::DOCTOR).await {
        Ok(stored) => stored,
        // Who may not read it has not been warned.
        Err(error) if error.kind() == ErrorKind::Denied => None,
        Err(error) => return Err(error),
    };
    let Some(stored) = stored else { return Ok(()) };
    match format::decode_diagnosis(&stored.bytes) {
        Ok(found) if found.verdict == Verdict::Refused => {
            let cause = found.cause.as_deref().unwrap_or("it does not say why");
            Err(unsafe_store(address, &format!("`dfq doctor` refused it: {cause}")))
        }
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!("{address}/{}: {error}; it is ignored", layout::DOCTOR);
            Ok(())
        }
    }
}

fn unsafe_store(address: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Unsafe,
        format!(
            "'{address}' is not safe for a queue ({why}); use another store, or say --allow-unsafe \
             if tasks may be done twice"
        ),
    )
}

/// Creates what has just been created once more. A store that says again that it was not there ignores
/// conditions; nothing is left behind there.
pub(super) async fn try_condition<T: Tree>(tree: &T, path: &str, bytes: &[u8]) -> Result<()> {
    let properties = tree.properties();
    if properties.provider == FILESYSTEM || tree.create(path, bytes).await? == Created::Exists {
        return Ok(());
    }
    tree.remove_file(path).await?;
    Err(unsafe_store(
        &properties.address,
        &format!("it ignores conditions: it said twice that it had created '{path}'"),
    ))
}
