//! `dfq-s3-server`: the same server as a process of its own, for races of many processes. It prints
//! one line of JSON when it is ready, another with its counts when it ends, and ends with its
//! standard input, so that it does not outlive whoever started it.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use dfq_s3_server::{Counts, Credential, Faults, Lies, Options, Rules, Server};
use tokio::signal::unix::{SignalKind, signal};

/// A small S3 server in memory for tests: atomic when honest, faulty and lying on request.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The port on 127.0.0.1; 0 takes any that is free
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A bucket that exists from the start
    #[arg(long, default_value = "dfq-test")]
    bucket: String,
    /// The access key that is accepted
    #[arg(long, default_value = "test-access-key")]
    access_key: String,
    /// The secret that requests must be signed with
    #[arg(long, default_value = "test-secret-key")]
    secret_key: String,
    /// A session token that has to come along
    #[arg(long)]
    session_token: Option<String>,
    /// A fault and its probability per request: lose-request, lose-answer, conflict,
    /// conflict-executed, error, error-executed, slow-down, slow-down-executed, cut-body; may be
    /// repeated
    #[arg(long = "fault", value_name = "NAME=RATE", value_parser = rate)]
    faults: Vec<(String, f64)>,
    /// Where all chance starts
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How much longer every request takes, as 20ms or 1.5s
    #[arg(long, value_parser = duration, default_value = "0ms")]
    latency: Duration,
    /// How much longer it may take at random on top of that
    #[arg(long, value_parser = duration, default_value = "0ms")]
    jitter: Duration,
    /// How far behind a listing may be, at random
    #[arg(long, value_parser = duration, default_value = "0ms")]
    list_lag: Duration,
    /// A lie: ignore-conditions, ignore-if-match, ignore-if-match-on-delete, not-atomic,
    /// refuse-quoted-etags, refuse-etags, refuse-conditional-put, whole-seconds; may be repeated
    #[arg(long = "lie", value_name = "NAME")]
    lies: Vec<String>,
    /// How far the clock is ahead, or behind, as 90s or -1h
    #[arg(long, value_parser = offset, default_value = "0s", allow_hyphen_values = true)]
    clock_offset: i64,
    /// An action that is denied, as s3:ListBucket, or s3:PutObject=PREFIX; may be repeated
    #[arg(long = "deny", value_name = "ACTION[=PREFIX]")]
    denied: Vec<String>,
}

fn rate(text: &str) -> Result<(String, f64)> {
    let (name, rate) = text.split_once('=').context("say NAME=RATE, as lose-answer=0.05")?;
    let rate: f64 = rate.parse().with_context(|| format!("{rate} is not a rate"))?;
    ensure!((0.0..=1.0).contains(&rate), "a rate is from 0 to 1");
    let names = Faults::NAMES.join(", ");
    ensure!(Faults::NAMES.contains(&name), "no fault is named {name}; there are {names}");
    Ok((name.to_owned(), rate))
}

fn duration(text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().context("say a number and a unit, as 20ms or 1.5s")?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => anyhow::bail!("the unit is ms, s, m or h, not '{unit}'"),
    };
    Duration::try_from_secs_f64(seconds).context("that is too long")
}

/// Signed milliseconds.
fn offset(text: &str) -> Result<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    Ok(sign * i64::try_from(duration(text)?.as_millis())?)
}

fn options(args: Args) -> Result<Options> {
    let Args { seed, latency, jitter, list_lag, .. } = args;
    let mut faults = Faults { seed, latency, jitter, list_lag, ..Faults::default() };
    for (name, rate) in &args.faults {
        ensure!(faults.set(name, *rate), "no fault is named {name}");
    }
    let mut lies = Lies { clock_offset_ms: args.clock_offset, ..Lies::default() };
    for name in &args.lies {
        let names = Lies::NAMES.join(", ");
        ensure!(lies.tell(name), "no lie is named {name}; there are {names}");
    }
    let rules = args.denied.iter().fold(Rules::default(), |rules, text| {
        let (action, prefix) = text.split_once('=').unwrap_or((text, ""));
        rules.deny_under(action, prefix)
    });
    let mut credential = Credential::new(args.access_key, args.secret_key);
    credential.session_token = args.session_token;
    Ok(Options { port: args.port, bucket: args.bucket, credential, faults, lies, rules })
}

/// One line of JSON, at once, whoever reads it.
fn print(line: &serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn summary(counts: &Counts) -> serde_json::Value {
    serde_json::json!({ "requests": counts.by_op, "faults": counts.faults })
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options(Args::parse())?;
    let session_token = options.credential.session_token.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let server = Server::start(options).await.context("cannot listen on 127.0.0.1")?;
    print(&serde_json::json!({
        "endpoint": server.endpoint(),
        "bucket": server.bucket(),
        "access_key": server.access_key(),
        "secret_key": server.secret_key(),
        "session_token": session_token,
    }))?;
    // A thread of its own: reading standard input cannot be given up, and must not hold up the end.
    let (closed, mut closing) = tokio::sync::mpsc::channel::<()>(1);
    #[allow(clippy::disallowed_methods, reason = "a server of tests, in real time")]
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(closed);
    });
    tokio::select! {
        _ = closing.recv() => {}
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    let counts = server.meter().counts();
    server.stop().await;
    // Whoever started it may have gone, and with it the other end of the pipe.
    let _ = print(&summary(&counts));
    Ok(())
}
