//! What all commands share: the configuration, the clock, and how queues are opened.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Result;
use dfq::address::Address;
use dfq::config::{Config, Environment, Flags, Provider, Target};
use dfq::meter::{Meter, Prices};
use dfq::model::Shared;
use rustix::fs::Mode;

use dfq::{Env, ErrorKind, OpenOptions, Queue, Settings};

use crate::args::Global;
use crate::exit::invalid;

mod index;

/// How long queues may take at the end to do what they have put off.
const CLOSED_WITHIN: Duration = Duration::from_secs(15);

/// What all commands share.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) env: Env,
    /// Counts what is asked of stores that charge by the request, whichever queue it is for.
    pub(crate) meter: Meter,
    /// A FIFO queue of SQS was asked for, whose requests cost more.
    fifo: AtomicBool,
    /// Every queue that was opened, to be closed at the end.
    opened: Mutex<Vec<Arc<dyn Queue>>>,
    /// Print JSON lines instead of tables and sentences.
    pub(crate) json: bool,
    /// Print no more than was asked for.
    pub(crate) quiet: bool,
    /// Say more than that.
    pub(crate) verbose: bool,
}

impl Context {
    pub(crate) fn new(global: &Global, env: Env) -> Result<Self> {
        start_log(global.verbose);
        let flags = Flags {
            config: global.config.clone(),
            campaign: global.campaign.clone(),
            provider: global.provider.as_deref().map(Provider::parse).transpose()?,
        };
        let here = std::env::current_dir().unwrap_or_default();
        Ok(Self {
            config: Config::load(&here, flags, Environment::system())?,
            env,
            meter: Meter::default(),
            fifo: AtomicBool::new(false),
            opened: Mutex::default(),
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
        let target = self.target(queue)?;
        match dfq::open(&target.address, self.access(&target, options)).await {
            Ok(opened) => Ok(self.keep(opened)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.refuse_index(&target.address).await?;
                let hint = "the first `dfq push` makes it, or `dfq init`";
                // That a folder is missing means no more than that.
                let what = match &target.address {
                    Address::Directory(path) => {
                        format!("there is no queue at '{}'", path.display())
                    }
                    // Says itself what to do: a push can make a queue by its name, not by its URL.
                    Address::Sqs(_) => return Err(error.into()),
                    _ => error.to_string(),
                };
                Err(dfq::Error::new(error.kind(), format!("{what}; {hint}")).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a queue, and makes it first if it is not there; says so when it does.
    pub(crate) async fn open_or_create(
        &self,
        queue: &str,
        allow_unsafe: bool,
    ) -> Result<Arc<dyn Queue>> {
        let settings = |target: &Target| target.settings.clone();
        Ok(self.open_or_create_with(queue, allow_unsafe, settings).await?.0)
    }

    /// The same with settings of one's own; answers whether it was made.
    pub(crate) async fn open_or_create_with(
        &self,
        queue: &str,
        allow_unsafe: bool,
        settings: impl FnOnce(&Target) -> Settings,
    ) -> Result<(Arc<dyn Queue>, bool)> {
        let target = self.target(queue)?;
        let options = OpenOptions { allow_unsafe, ..OpenOptions::existing() };
        match dfq::open(&target.address, self.access(&target, options)).await {
            Ok(opened) => Ok((self.keep(opened), false)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok((self.create(&target, settings(&target), allow_unsafe).await?, true))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a queue; if somebody else was faster, it is theirs that is opened.
    pub(crate) async fn create(
        &self,
        target: &Target,
        settings: Settings,
        allow_unsafe: bool,
    ) -> Result<Arc<dyn Queue>> {
        let address = &target.address;
        // Before a folder appears that nobody can use.
        settings.check()?;
        self.refuse_index(address).await?;
        match address {
            Address::Directory(path) => {
                // The folders above it are not the group's business.
                if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
                    let _ = dfq::store::fs::make_durably(above);
                }
                join_group(&settings);
            }
            Address::Other { scheme, .. } if scheme == "memory" => {
                return Err(invalid(format!(
                    "{address} would end with this command; it is for programs that use the library"
                )));
            }
            Address::Bucket(_) | Address::Sqs(_) | Address::Other { .. } => {}
        }
        let made_at = settings.created_at.or_else(|| Some(self.env.clock().wall()));
        let settings = Settings { created_at: made_at, ..settings };
        let shared = settings.shared;
        let create = Some(settings.clone());
        let options = OpenOptions { create, allow_unsafe, ..OpenOptions::default() };
        let opened = self.keep(dfq::open(address, self.access(target, options)).await?);
        if let (Address::Directory(path), Shared::Group) = (address, shared) {
            share_with_group(path)?;
        }
        // Of several who make it at once, one does.
        let ours = matches!(address, Address::Sqs(_)) || *opened.settings() == settings;
        if !self.quiet && ours {
            crate::output::note!("dfq: made the queue {}", whole(address));
        }
        Ok(opened)
    }

    /// What a queue's name or address stands for.
    pub(crate) fn target(&self, queue: &str) -> Result<Target> {
        let mut target = self.config.resolve(queue)?;
        if let Address::Sqs(queue) = &target.address
            && queue.name().ends_with(".fifo")
        {
            self.fifo.store(true, Ordering::Relaxed);
        }
        look_at_folder(&mut target.address, "queue")?;
        Ok(target)
    }

    fn keep(&self, opened: Arc<dyn Queue>) -> Arc<dyn Queue> {
        join_group(opened.settings());
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&opened));
        opened
    }

    /// Has everything done that queues have put off. A store that does not answer keeps nobody from ending.
    pub(crate) async fn close(&self) {
        let opened =
            std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::select! {
            _ = futures::future::join_all(opened.iter().map(|queue| queue.close())) => {}
            () = self.env.clock().sleep(CLOSED_WITHIN) => {
                tracing::warn!("the store does not answer; not waiting for it");
            }
        }
    }

    /// What requests cost. Those to SQS at the higher price, if any of the queues is FIFO.
    pub(crate) fn prices(&self) -> Prices {
        let prices = self.config.prices();
        match self.fifo.load(Ordering::Relaxed) {
            true => Prices { sqs: prices.sqs_fifo, ..prices },
            false => prices,
        }
    }

    /// What a queue is opened with: how to get at it, and who counts.
    pub(crate) fn access(&self, target: &Target, options: OpenOptions) -> OpenOptions {
        OpenOptions { sqs: target.sqs.clone(), ..self.access_s3(options) }
    }

    /// The same for what is in a bucket, and is no queue yet.
    pub(crate) fn access_s3(&self, options: OpenOptions) -> OpenOptions {
        let (env, meter) = (self.env.clone(), self.meter.clone());
        OpenOptions { env, meter, s3: self.config.s3(), ..options }
    }
}

/// Puts the home folder in the place of `~`; an error if a file is where a folder should be.
fn look_at_folder(address: &mut Address, what: &str) -> Result<()> {
    let Address::Directory(path) = address else { return Ok(()) };
    if let (Ok(below), Some(home)) = (path.strip_prefix("~"), std::env::home_dir()) {
        *path = home.join(below);
    }
    let is_folder = match std::fs::metadata(&path) {
        Ok(there) => there.is_dir(),
        Err(error) => error.kind() != std::io::ErrorKind::NotADirectory,
    };
    if !is_folder {
        let path = path.display();
        return Err(invalid(format!("'{path}' is no {what}: there is a file in its place")));
    }
    Ok(())
}

/// An address as others would write it, wherever they are.
pub(crate) fn whole(address: &Address) -> String {
    match address {
        Address::Directory(path) => absolute(path).display().to_string(),
        elsewhere => elsewhere.to_string(),
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

/// Where log lines go. They may speak of ids, keys and answers in which anything can be: so each line is
/// made printable here, in one place.
struct LogLine;

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let printable = crate::output::printable(text);
        std::io::stderr().write_all(format!("{printable}\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Warnings of the library go to stderr; `-v` shows more, `DFQ_LOG` decides in detail. Only our own
/// words: what the crates below us say of their requests may hold tokens.
fn start_log(verbose: u8) {
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets, filter_fn};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let wanted = std::env::var("DFQ_LOG").ok().and_then(|wanted| wanted.parse::<Targets>().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(level));
    // The library, and the command.
    let ours =
        filter_fn(|event| matches!(event.target().split("::").next(), Some("dfq" | "dfq_cli")));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| LogLine)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .with_filter(filter.and(ours));
    let _ = tracing_subscriber::registry().with(lines).try_init();
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
