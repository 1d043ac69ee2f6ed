//! What all commands share: the configuration, the clock, and how queues are opened.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use dfq::config::{Address, Config, Target};
use dfq::model::Shared;
use rustix::fs::Mode;

use dfq::{Env, ErrorKind, OpenOptions, Queue, Settings};

use crate::args::Global;
use crate::exit::invalid;

/// What all commands share.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) env: Env,
    /// Print JSON lines instead of tables and sentences.
    pub(crate) json: bool,
    /// Print no more than was asked for.
    pub(crate) quiet: bool,
    /// Say more than that.
    pub(crate) verbose: bool,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Result<Self> {
        start_log(global.verbose);
        let config = match &global.config {
            Some(file) => Config::read(file)?,
            None => Config::find(&std::env::current_dir().unwrap_or_default())?,
        };
        Ok(Self {
            config: config.with_campaign(global.campaign.clone()),
            env: Env::system(),
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
        })
    }

    /// Opens a queue that must be there.
    pub(crate) async fn open(&self, queue: &str) -> Result<Arc<dyn Queue>> {
        self.open_with(queue, OpenOptions::existing()).await
    }

    /// The same with options.
    pub(crate) async fn open_with(
        &self,
        queue: &str,
        options: OpenOptions,
    ) -> Result<Arc<dyn Queue>> {
        let path = self.path(queue)?.1;
        match dfq::open(&path, options).await {
            Ok(opened) => {
                join_group(opened.settings());
                Ok(opened)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let hint = "the first `dfq push` makes it, or `dfq init`";
                Err(dfq::Error::new(error.kind(), format!("{error}; {hint}")).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a queue, and makes it first if it is not there; says so when it does.
    pub(crate) async fn open_or_create(&self, queue: &str) -> Result<Arc<dyn Queue>> {
        let (target, path) = self.path(queue)?;
        match dfq::open(&path, OpenOptions::existing()).await {
            Ok(opened) => {
                join_group(opened.settings());
                Ok(opened)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.create(&path, target.settings).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a queue; if somebody else was faster, it is theirs that is opened.
    pub(crate) async fn create(&self, path: &Path, settings: Settings) -> Result<Arc<dyn Queue>> {
        // Before a folder appears that nobody can use.
        settings.check()?;
        // The folders above it are not the group's business.
        if let Some(above) = path.parent() {
            let _ = std::fs::create_dir_all(above);
        }
        join_group(&settings);
        let shared = settings.shared;
        let options = OpenOptions { create: Some(settings), ..OpenOptions::default() };
        let opened = dfq::open(path, options).await?;
        if shared == Shared::Group {
            share_with_group(path)?;
        }
        if !self.quiet {
            crate::output::note!("dfq: made the queue {}", absolute(path).display());
        }
        Ok(opened)
    }

    /// What a queue's name or address stands for, and the directory that this is.
    pub(crate) fn path(&self, queue: &str) -> Result<(Target, PathBuf)> {
        let target = self.config.resolve(queue)?;
        let Address::Directory(path) = &target.address;
        let path = match (path.strip_prefix("~"), std::env::home_dir()) {
            (Ok(below), Some(home)) => home.join(below),
            _ => path.clone(),
        };
        let is_folder = match std::fs::metadata(&path) {
            Ok(there) => there.is_dir(),
            Err(error) => error.kind() != std::io::ErrorKind::NotADirectory,
        };
        if !is_folder {
            let path = path.display();
            return Err(invalid(format!("'{path}' is no queue: there is a file in its place")));
        }
        Ok((target, path))
    }
}

/// The path as others would write it, though nothing may be there yet.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

/// Everything made in a queue that a group shares must be writable by the group.
fn join_group(settings: &Settings) {
    if settings.shared == Shared::Group {
        let own = rustix::process::umask(Mode::from_bits_retain(GROUP_UMASK));
        // The first answer counts: later ones are what we have set ourselves.
        let _ = OWN_UMASK.set(own.bits());
    }
}

const GROUP_UMASK: u32 = 0o002;
static OWN_UMASK: OnceLock<u32> = OnceLock::new();

/// The umask that this process was started with, if it has another now: what commands are to have.
pub(crate) fn own_umask() -> Option<u32> {
    OWN_UMASK.get().copied().filter(|own| *own != GROUP_UMASK)
}

/// New folders inherit the group of a folder with the set-group-id bit.
fn share_with_group(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o2775))?;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Warnings of the library go to stderr; `-v` shows more, `DFQ_LOG` decides in detail.
fn start_log(verbose: u8) {
    use tracing_subscriber::filter::{EnvFilter, LevelFilter};
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = EnvFilter::builder().with_default_directive(level.into());
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter.with_env_var("DFQ_LOG").from_env_lossy())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .try_init();
}

/// Asks before many tasks are touched. Answers whether to go on; without a terminal to ask on, `yes`
/// must have been said.
pub(crate) fn confirm(yes: bool, question: &str) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(invalid(format!("{question} Say --yes to go on, or --dry-run to look first")));
    }
    let _ = write!(std::io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}
