use super::*;

fn config(text: &str) -> Result<Config> {
    let doc = Document::parse(text)?;
    Ok(Config { file: Some("/etc/dfq.toml".into()), doc, campaign: None })
}

fn path(config: &Config, name: &str) -> PathBuf {
    let Address::Directory(path) = config.resolve(name).unwrap().address;
    path
}

fn error(result: Result<impl std::fmt::Debug>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn addresses_are_told_from_names() {
    for text in ["./jobs", "/data/jobs", "a/b", ".", "..", "~", "jobs/", "file:///x y", "./ü b"] {
        assert!(Address::parse(text).unwrap().is_some(), "{text}");
    }
    assert_eq!(Address::parse("jobs").unwrap(), None);
    let file = Address::parse("file:///data/jobs").unwrap();
    assert_eq!(file, Some(Address::Directory("/data/jobs".into())));
    assert_eq!(Address::parse("s3://bucket/x").unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(error(Address::parse("file://host/x")).contains("three slashes"));
    assert!(Address::parse("").is_err());
}

#[test]
fn names_expand_to_the_seeds_paths() {
    let text = "root = 'data'\ncampaign = 'turbo ship'\n[queues.scrape]\n[queues.b]\naddress = 'b'";
    let config = config(text).unwrap();
    assert_eq!(path(&config, "scrape"), Path::new("/etc/data/queues/turbo%20ship/scrape"));
    assert_eq!(path(&config, "b"), Path::new("/etc/b"));
    assert_eq!(path(&config, "./b"), Path::new("./b"));
    let other = config.with_campaign(Some("x".into()));
    assert_eq!(path(&other, "scrape"), Path::new("/etc/data/queues/x/scrape"));
}

#[test]
fn a_campaign_cannot_leave_its_folder() {
    let config = config("campaign = '../../x'\n[queues.a]").unwrap();
    assert_eq!(path(&config, "a"), Path::new("/etc/queues/%2E.%2F..%2Fx/a"));
}

#[test]
fn settings_are_read_and_checked() {
    let text = "[queues.q]\nlease='5m'\nmax_attempts=3\ndurability='relaxed'\nlayout='flat'";
    let settings = config(text).unwrap().resolve("q").unwrap().settings;
    let expected = Settings {
        lease: Duration::from_secs(300),
        max_attempts: 3,
        durability: Durability::Relaxed,
        layout: Layout::Flat,
        ..Settings::default()
    };
    assert_eq!(settings, expected);
    assert!(error(config("[queues.q]\nlease = '5'")).contains("unit is missing"));
    assert!(error(config("[queues.q]\nlayout = 'round'")).contains("sharded or flat"));
    assert!(error(config("[queues.q]\nmax_attempts = 0")).contains("at least 1"));
}

#[test]
fn what_nobody_configured_is_an_error_with_the_nearest() {
    let config = config("[queues.scrape]\n[queues.enrich]").unwrap();
    let unknown = config.resolve("scarpe").unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("did you mean 'scrape'?"), "{unknown}");
    assert!(error(config.resolve("zzzzzz")).contains("enrich, scrape"));
    assert!(error(Config::default().resolve("jobs")).contains("./jobs"));
}

#[test]
fn a_wrong_key_is_an_error_with_the_nearest() {
    assert!(error(config("rot = 'x'")).contains("did you mean 'root'?"));
    let wrong = error(config("[queues.q]\nmax_attempt = 3"));
    assert!(wrong.contains("of queue 'q'") && wrong.contains("'max_attempts'"), "{wrong}");
    assert!(error(config("[queues.'a/b']")).contains("taken for a directory"));
    assert!(config("queues = 3").is_err());
    assert!(config("[queues]\nq = 3").is_err());
    assert!(config("root = ").is_err());
}

#[test]
fn lengths_of_time() {
    let seconds = |text: &str| parse_duration(text).unwrap().as_secs_f64();
    assert_eq!(seconds("90s"), 90.0);
    assert_eq!(seconds("3h50m"), 13_800.0);
    assert_eq!(seconds("1.5h"), 5400.0);
    assert_eq!(seconds("7d"), 604_800.0);
    assert_eq!(seconds("250ms"), 0.25);
    assert_eq!(seconds("0"), 0.0);
    for wrong in ["", "10", "-5s", "1y", "soon", "5 parsecs", "999999999999999999d"] {
        assert!(parse_duration(wrong).is_err(), "{wrong}");
    }
}
