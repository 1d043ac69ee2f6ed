//! A queue on a folder whose system calls a test can make fail. Here, so that it is compiled once and not again
//! in every test that uses it, which takes most of the time to build them.

use std::path::Path;
use std::sync::Arc;

use crate::clock::{Env, SkippingClock};
use crate::error::{Error, ErrorKind, Result};
use crate::options::OpenOptions;
use crate::queue::{Queue, TreeQueue};
use crate::store::fs::fault::FaultSys;
use crate::store::fs::{Filesystem, RealSys};

/// A folder whose system calls can be made to fail.
pub type FaultyFolder = Filesystem<FaultSys<RealSys>>;

/// A queue on such a folder.
pub type FaultyQueue = TreeQueue<FaultyFolder>;

/// The folder at this path, whose files are as old as the clock says.
pub fn faulty_folder(path: &Path, clock: &SkippingClock, env: Env) -> Result<FaultyFolder> {
    let sys = FaultSys::new(RealSys).with_clock(clock.clone());
    let failed =
        |error| Error::new(ErrorKind::Unavailable, format!("cannot open the folder: {error}"));
    let root = RealSys::open_root(path).map_err(failed)?;
    Ok(Filesystem::with(sys, root, path.display().to_string(), env, false))
}

/// Opens the queue there, or makes it.
pub async fn open_faulty(folder: FaultyFolder, options: OpenOptions) -> Result<FaultyQueue> {
    TreeQueue::open(folder, options).await
}

/// The queue, whatever it is on.
pub fn any_queue(queue: Arc<FaultyQueue>) -> Arc<dyn Queue> {
    queue
}
