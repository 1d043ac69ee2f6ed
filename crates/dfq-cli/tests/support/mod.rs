//! A folder to work in, the command in it, and transcripts of what was said.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

pub(crate) mod bucket;
pub(crate) mod sqs;
pub(crate) mod synced;
pub(crate) mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A number of tasks or rounds: the first, or the second if the tests may take long (`./test --long`).
pub(crate) fn short_or_long(short: usize, long: usize) -> usize {
    if std::env::var_os("DFQ_TEST_LONG").is_some() { long } else { short }
}

/// A folder of its own, in which commands run, and what they find in their environment.
pub(crate) struct Desk {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) command: String,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
}

impl Desk {
    /// Where `./test` keeps such folders, in memory if it can; else on the disk.
    pub(crate) fn new() -> Self {
        match std::env::var_os("DFQ_TEST_DIR") {
            Some(folder) => Self::in_folder(Path::new(&folder)),
            None => Self::on_disk(),
        }
    }

    pub(crate) fn on_disk() -> Self {
        Self::in_folder(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Lets commands find this in their environment.
    pub(crate) fn with(mut self, variables: Vec<(&'static str, String)>) -> Self {
        self.variables = variables;
        self
    }

    /// And this as well.
    pub(crate) fn and(mut self, variables: Vec<(&'static str, String)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// A desk in another folder, such as a mount.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { folder: tempfile::tempdir_in(folder).unwrap(), variables: Vec::new() }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// Leaves the folder there, to be looked at.
    pub(crate) fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    pub(crate) fn write(&self, below: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(below).parent().unwrap()).unwrap();
        std::fs::write(self.path(below), content).unwrap();
    }

    pub(crate) fn read(&self, below: &str) -> String {
        std::fs::read_to_string(self.path(below)).unwrap()
    }

    /// The command, ready to be run: in this folder, with nothing of the caller's environment that
    /// could change what it says.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_dfq")), args)
    }

    /// The same with another program.
    pub(crate) fn program(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let ours = ["DFQ_", "COCLI_", "AWS_"].iter().any(|begin| text.starts_with(begin));
            if ours || ["NO_COLOR", "CLICOLOR_FORCE"].contains(&&*text) {
                command.env_remove(name);
            }
        }
        // Whoever runs the tests may have AWS credentials; no test is to find them.
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the command with nothing on stdin.
    pub(crate) fn dfq(&self, args: &[&str]) -> Said {
        self.dfq_with(args, "")
    }

    /// Runs the command with this on stdin.
    pub(crate) fn dfq_with(&self, args: &[&str], stdin: impl AsRef<[u8]>) -> Said {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = stdin.as_ref().to_vec();
        // In a thread: the command may stop reading, or wait for us to read what it says.
        let feeder = std::thread::spawn(move || pipe.write_all(&stdin));
        let output = child.wait_with_output().unwrap();
        let _ = feeder.join().unwrap();
        Said {
            command: format!("dfq {}", args.join(" ")),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            status: output.status.code(),
        }
    }

    /// Runs it, and it must end well; answers what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.dfq(args);
        assert_eq!(said.status, Some(0), "{said:?}");
        said.out
    }

    /// Starts it, to be looked at while it runs, and to be sent signals: none of them is ignored, though
    /// whoever runs the tests (`nohup`, a shell in the background) may ignore some.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        let plain = self.command(args);
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,TERM")
            .arg(plain.get_program())
            .args(plain.get_args());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// What was said, with all that differs from run to run replaced by its name.
    pub(crate) fn transcript(&self, said: &[Said]) -> String {
        let mut text = String::new();
        for said in said {
            text += &format!("$ {}\n", said.command);
            text += &said.out;
            for line in said.err.lines() {
                text += &format!("err: {line}\n");
            }
            if said.status != Some(0) {
                text +=
                    &format!("exit: {}\n", said.status.map_or("signal".into(), |s| s.to_string()));
            }
            text.push('\n');
        }
        let here = self.folder.path().canonicalize().unwrap();
        text.replace(&*here.to_string_lossy(), "[HERE]")
            .replace(&*self.folder.path().to_string_lossy(), "[HERE]")
    }
}

/// Patterns of what differs from run to run, for `insta::with_settings!`.
pub(crate) fn filters() -> Vec<(&'static str, &'static str)> {
    vec![
        (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "[UUID]"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[TIME]"),
        (r"\b0[0-9A-HJKMNP-TV-Z]{25}\b", "[ULID]"),
        (r"[A-Za-z0-9.-]+-\d+-[0-9a-f]{8}\b", "[WORKER]"),
        (r#""every_s":\d+"#, r#""every_s":[NUMBER]"#),
        (r"\b[0-9a-f]{32}\b", "[NONCE]"),
        (r"\b\d+(ms|s|m\d*s?|h\d*m?|d\d*h?) ago\b", "[AGO]"),
        (r"\bin \d+(ms|s|m\d*s?|h\d*m?|d\d*h?)\b", "in [TIME]"),
    ]
}

/// Checks a transcript against its snapshot. `INSTA_UPDATE=always` writes it anew.
#[macro_export]
macro_rules! assert_transcript {
    ($name:expr, $transcript:expr) => {
        insta::with_settings!({ filters => support::filters(), omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $transcript);
        })
    };
}

/// Lets a moment pass.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Waits until something is so; a test that waits in vain has failed.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
