use super::*;
use crate::address::{Cloud, SqsAddress};
use crate::model::{Durability, Layout};

fn config(text: &str) -> Result<Config> {
    let doc = Document::parse(text)?;
    Ok(Config { file: Some(Sourced::default("/etc/dfq.toml".into())), doc, ..Config::default() })
}

/// The same with flags and environment.
fn told(text: &str, flags: Flags, environment: &[(&str, &str)]) -> Config {
    let lookup = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Config { flags, environment: Environment::of(lookup), ..config(text).unwrap() }
}

fn address(config: &Config, name: &str) -> String {
    config.resolve(name).unwrap().address.to_string()
}

fn path(config: &Config, name: &str) -> PathBuf {
    match config.resolve(name).unwrap().address {
        Address::Directory(path) => path,
        other => panic!("{other} is no directory"),
    }
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
    let other = Address::parse("ftp://host/x").unwrap().unwrap();
    assert_eq!(other.to_string(), "ftp://host/x");
    assert!(error(Address::parse("file://host/x")).contains("three slashes"));
    assert!(Address::parse("").is_err());
}

#[test]
fn addresses_of_buckets() {
    let bucket = |text: &str| match Address::parse(text).unwrap() {
        Some(Address::Bucket(address)) => address,
        other => panic!("{text}: {other:?}"),
    };
    for text in ["s3://b/a/c", "s3://b", "gs://b.c/x", "az://box/ü b/c%20d", "s3://b/a?b#c"] {
        let read = bucket(text);
        assert_eq!(read.to_string(), text);
        assert_eq!(bucket(&format!("{text}/")), read, "a slash at the end does not matter");
        assert_eq!(bucket(&format!("{text}//")), read);
    }
    let read = bucket("az://box/a/b");
    assert_eq!((read.cloud, &*read.bucket, &*read.prefix), (Cloud::Azure, "box", "a/b"));
    assert_eq!(bucket("s3://b").below("x").to_string(), "s3://b/x");
    assert_eq!(bucket("s3://b/a/").below("x").to_string(), "s3://b/a/x");
    for (text, why) in [
        ("s3://", "name is missing"),
        ("s3:///x", "name is missing"),
        ("s3://a b/x", "letters"),
        ("s3://b//x", "two slashes"),
        ("s3://b/a//x", "two slashes"),
        ("s3://b/../x", "leads nowhere"),
        ("s3://b/./x", "leads nowhere"),
        ("s3://b/a\nb", "control"),
        ("s3:/b/x", "write s3://b/x"),
        ("s3:b", "write s3://b"),
        ("https://b.s3.amazonaws.com/x", "s3://bucket/prefix"),
        ("sqs://", "is not a queue in SQS"),
        ("sqs://a/b", "is not a queue in SQS"),
    ] {
        assert!(
            error(Address::parse(text)).contains(why),
            "{text}: {}",
            error(Address::parse(text))
        );
    }
    assert!(Address::parse(&format!("s3://b/{}", "x".repeat(701))).is_err());
}

#[test]
fn addresses_of_sqs_and_memory() {
    let parsed = |text: &str| Address::parse(text).unwrap().unwrap();
    assert_eq!(parsed("sqs://jobs.fifo"), Address::Sqs(SqsAddress::Name("jobs.fifo".into())));
    for text in [
        "https://sqs.eu-central-1.amazonaws.com/123456789012/jobs",
        "http://127.0.0.1:4566/000000000000/jobs.fifo",
        "http://127.0.0.1:4566/queue/us-east-1/000000000000/jobs",
        "sqs://jobs",
        "memory://jobs",
    ] {
        assert_eq!(parsed(text).to_string(), text);
    }
}

#[test]
fn names_expand_to_the_seeds_paths() {
    let text = "root = 'data'\ncampaign = 'turbo ship'\n[queues.scrape]\n[queues.b]\naddress = 'b'";
    let config = config(text).unwrap();
    assert_eq!(path(&config, "scrape"), Path::new("/etc/data/queues/turbo%20ship/scrape"));
    assert_eq!(path(&config, "b"), Path::new("/etc/b"));
    assert_eq!(path(&config, "./b"), Path::new("./b"));
    let flags = Flags { campaign: Some("x".into()), ..Flags::default() };
    let other = Config { flags, ..config };
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
    assert!(error(config("[queues.'a/b']")).contains("taken for an address"));
    assert!(config("queues = 3").is_err());
    assert!(config("[queues]\nq = 3").is_err());
    assert!(config("root = ").is_err());
}

#[test]
fn a_name_is_looked_up_by_flag_then_environment_then_file() {
    let plain = "[queues.a]\n[queues.b]\nprovider = 's3'\n";
    let text = &format!("bucket = 's3://box/dfq/'\n{plain}");
    let flag = |provider| Flags { provider: Some(provider), ..Flags::default() };
    let none = Flags::default;
    assert_eq!(address(&told(text, none(), &[]), "a"), "/etc/queues/default/a");
    let in_bucket = "s3://box/dfq/campaigns/default/queues";
    assert_eq!(address(&told(text, none(), &[]), "b"), format!("{in_bucket}/b"));
    let file = &format!("provider = 's3'\n{text}");
    assert_eq!(address(&told(file, none(), &[]), "a"), format!("{in_bucket}/a"));
    let set = [("DFQ_QUEUE_TYPE", "filesystem"), ("COCLI_QUEUE_TYPE", "sqs")];
    let told_both = told(file, none(), &set);
    assert_eq!(address(&told_both, "b"), "/etc/queues/default/b", "before the file");
    assert_eq!(address(&told(file, none(), &set[1..]), "a"), "sqs://default-a");
    assert_eq!(
        address(&told(file, none(), &[("DFQ_QUEUE_TYPE", "")]), "a"),
        format!("{in_bucket}/a")
    );
    let told_all = told(file, flag(Provider::Sqs), &set);
    assert_eq!(address(&told_all, "b"), "sqs://default-b", "before the environment");
    assert_eq!(address(&told_both, "gs://x/y"), "gs://x/y", "an address decides by itself");
    assert!(error(told_all.resolve("gs://x/y")).contains("leave out --provider sqs"));

    let homeless = told(plain, none(), &[("DFQ_QUEUE_TYPE", "s3")]);
    let missing = error(homeless.resolve("a"));
    assert!(missing.contains("DFQ_QUEUE_TYPE") && missing.contains("bucket = "), "{missing}");
    let wrong = told(plain, none(), &[("COCLI_QUEUE_TYPE", "sqss")]).resolve("a");
    assert!(
        error(wrong).contains("COCLI_QUEUE_TYPE: there is no provider 'sqss': did you mean 'sqs'?")
    );
    let file = "bucket = 's3://box'\n[queues.a]\nsync_every = '2m'\n";
    let synced = told(file, none(), &[("DFQ_QUEUE_TYPE", "synced")]).resolve("a").unwrap();
    assert!(synced.address.to_string().ends_with("queues/default/a"));
    assert_eq!(synced.hub.unwrap().to_string(), "s3://box/campaigns/default/queues/a");
    assert_eq!(synced.settings.synced.unwrap().period, Duration::from_secs(120));
    // A lease must outlive two passes.
    let short =
        told("bucket = 's3://box'\n[queues.a]\nprovider = 'synced'\nlease = '1m'\n", none(), &[]);
    assert!(error(short.resolve("a")).contains("too short"));
}

#[test]
fn queues_may_be_elsewhere() {
    let text = "campaign = 'turbo ship'\nbucket = 'gs://box'\nroot = '~/data'\n\
        [queues.a]\n[queues.b]\naddress = 's3://other/b'\n[queues.c]\nbucket = 's3://c/d'\n\
        [queues.d]\nsqs = 'other.fifo'\n[queues.e]\nsqs = 'https://sqs.x.y/123456789012/e'";
    let told = |word| told(text, Flags::default(), &[("DFQ_QUEUE_TYPE", word), ("HOME", "/h")]);
    let s3 = told("s3");
    assert_eq!(address(&s3, "a"), "gs://box/campaigns/turbo%20ship/queues/a");
    assert_eq!(address(&s3, "b"), "s3://other/b");
    assert_eq!(address(&s3, "c"), "s3://c/d/campaigns/turbo%20ship/queues/c");
    let sqs = told("sqs");
    assert!(error(sqs.resolve("a")).contains("below [queues.a]"), "a space in the campaign");
    assert_eq!(address(&sqs, "d"), "sqs://other.fifo");
    assert_eq!(address(&sqs, "e"), "https://sqs.x.y/123456789012/e");
    assert_eq!(address(&told("filesystem"), "a"), "/h/data/queues/turbo%20ship/a");
}

#[test]
fn sqs_is_told_where_tasks_go_that_are_given_up() {
    let text = "[sqs]\nendpoint = 'http://a'\nregion = 'x'\n[queues.a]\nprovider = 'sqs'\n\
        dead_letter = 'a-dead'\ngroup = 'domain'\n[queues.b]";
    let config = told(text, Flags::default(), &[]);
    let sqs = config.resolve("a").unwrap().sqs;
    assert_eq!((sqs.endpoint.as_deref(), sqs.region.as_deref()), (Some("http://a"), Some("x")));
    assert_eq!(
        (sqs.dead_letter.as_deref(), sqs.group.as_deref()),
        (Some("a-dead"), Some("domain"))
    );
    assert_eq!(config.resolve("b").unwrap().sqs.dead_letter, None);
    let set = [("AWS_ENDPOINT_URL_SQS", "http://b"), ("AWS_REGION", "y")];
    let sqs = told(text, Flags::default(), &set).resolve("sqs://other").unwrap().sqs;
    assert_eq!((sqs.endpoint, sqs.region), (None, None), "the environment goes before the file");
}

#[test]
fn s3_is_told_by_the_environment_before_the_file() {
    let text = "[s3]\nendpoint = 'http://a'\nregion = 'x'\nprofile = 'p'\npath_style = false";
    let file = told(text, Flags::default(), &[]).s3();
    let strings = |s3: &S3Options| [s3.endpoint.clone(), s3.region.clone(), s3.profile.clone()];
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(strings(&file), [some("http://a"), some("x"), some("p")]);
    assert_eq!(file.path_style, Some(false));
    // What the environment says is found there by everybody; the file must only keep out of the way.
    let set = [("AWS_ENDPOINT_URL", "http://b"), ("AWS_REGION", "y")];
    assert_eq!(strings(&told(text, Flags::default(), &set).s3()), [None, None, some("p")]);
}

#[test]
fn every_value_says_where_it_came_from() {
    let text =
        "bucket = 's3://box'\n[prices]\nput = 6\n[s3]\nregion = 'x'\n[queues.a]\nlease = '5m'";
    let flags = Flags { campaign: Some("c".into()), ..Flags::default() };
    let set = [
        ("DFQ_QUEUE_TYPE", "s3"),
        ("AWS_ENDPOINT_URL_S3", "http://b"),
        ("AWS_ACCESS_KEY_ID", "AKIASECRET"),
    ];
    let rows = told(text, flags, &set).effective().unwrap();
    assert!(!format!("{rows:?}").contains("AKIASECRET"));
    let row = |key: &str| {
        let row = rows.iter().find(|row| row.key == key).unwrap();
        format!("{} from {}", row.value.as_deref().unwrap_or("-"), row.origin)
    };
    assert_eq!(row("campaign"), "c from the flag --campaign");
    assert_eq!(row("provider"), "s3 from the environment, DFQ_QUEUE_TYPE");
    assert_eq!(row("s3.endpoint"), "http://b from the environment, AWS_ENDPOINT_URL_S3");
    assert_eq!(row("s3.region"), "x from dfq.toml, s3.region");
    assert_eq!(row("s3.profile"), "- from default");
    assert_eq!(row("prices.put"), "6 from dfq.toml, prices.put");
    assert_eq!(row("prices.get"), "0.4 from default");
    assert_eq!(row("queues.a.lease"), "300s from dfq.toml, queues.a.lease");
    assert_eq!(row("queues.a.max_attempts"), "5 from default");
    let made = "s3://box/campaigns/c/queues/a from bucket, campaign and name";
    assert_eq!(row("queues.a.address"), made);
}

#[test]
fn a_file_that_contradicts_itself_is_an_error() {
    for (text, why) in [
        ("bucket = './x'", "s3://bucket/prefix"),
        ("provider = 'file'", "there is no provider 'file'"),
        ("[prices]\nput = -1", "price of put"),
        ("[prices]\npost = 1", "did you mean 'put'?"),
        ("[s3]\nendpont = 'x'", "did you mean 'endpoint'?"),
        ("[queues.a]\naddress = './a'\nprovider = 's3'", "leave out 'provider'"),
        ("[queues.a]\nsqs = 'a b'", "is not a queue in SQS"),
        ("[queues.a]\nsqs = 's3://a'", "name or its URL"),
        ("[queues.a]\ndead_letter = 'a b'", "is not a queue in SQS"),
        ("[sqs]\nregoin = 'x'", "did you mean 'region'?"),
    ] {
        assert!(error(config(text)).contains(why), "{text}: {}", error(config(text)));
    }
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

#[test]
fn indexes_are_the_same_for_all_campaigns() {
    let text = "root = '/data'\nbucket = 's3://box/dfq'\ncampaign = 'spring'\n[queues.scrape]\n\
                [indexes.'two words']\nkey = 'domain'\n[indexes.far]\nprovider = 's3'\n\
                [indexes.own]\nprovider = 's3'\nbucket = 's3://other'\n[indexes.here]\naddress = './x'";
    let place = |config: &Config, name: &str| match config.index(name) {
        Ok(target) => target.address.to_string(),
        Err(error) => error.to_string(),
    };
    let plain = told(text, Flags::default(), &[]);
    assert_eq!(place(&plain, "two words"), "/data/indexes/two%20words");
    assert_eq!(plain.index("two words").unwrap().key.as_deref(), Some("domain"));
    let campaign = Flags { campaign: Some("autumn".into()), ..Flags::default() };
    assert_eq!(place(&told(text, campaign, &[]), "two words"), "/data/indexes/two%20words");
    assert_eq!(place(&plain, "far"), "s3://box/dfq/indexes/far");
    assert_eq!(place(&plain, "own"), "s3://other/indexes/own");
    assert!(place(&plain, "here").ends_with('x'), "{}", place(&plain, "here"));
    assert_eq!(place(&plain, "s3://box/i"), "s3://box/i");
    // What an index says of itself goes before what is said of queues.
    for word in ["sqs", "synced"] {
        let elsewhere = told(text, Flags::default(), &[("DFQ_QUEUE_TYPE", word)]);
        assert_eq!(place(&elsewhere, "far"), "s3://box/dfq/indexes/far");
        assert!(place(&elsewhere, "two words").contains("folder or in a bucket"));
    }
    for (name, why) in
        [("fra", "did you mean 'far'?"), ("scrape", "that is a queue"), ("sqs://x", "folder or")]
    {
        assert!(place(&plain, name).contains(why), "{}", place(&plain, name));
    }
    assert!(plain.resolve("far").unwrap_err().to_string().contains("that is an index"));
}
