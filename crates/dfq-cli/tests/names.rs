//! Queues by name, from `dfq.toml`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::Desk;

#[test]
fn names_and_campaigns() {
    let desk = Desk::new();
    desk.write(
        "dfq.toml",
        "campaign = 'spring'\n[queues.scrape]\nlease = '5m'\n[queues.enrich]\naddress = './rich'\n",
    );
    desk.write("below/deep/here", "");
    let mut from_below = desk.command(&["push", "scrape", "id=b"]);
    from_below.current_dir(desk.path("below/deep"));
    assert!(from_below.status().unwrap().success(), "the nearest dfq.toml above counts");
    let said = [
        desk.dfq(&["push", "scrape", "id=a"]),
        desk.dfq(&["push", "enrich", "id=a"]),
        desk.dfq(&["push", "--campaign", "autumn 2026", "scrape", "id=a"]),
        desk.dfq(&["push", "scarpe", "id=a"]),
        desk.dfq(&["push", "something", "id=a"]),
        desk.dfq(&["push", "s3://bucket/x", "id=a"]),
        desk.dfq(&["push", "file://host/x", "id=a"]),
        desk.dfq(&["push", "--config", "nowhere.toml", "scrape", "id=a"]),
    ];
    assert_transcript!("names", desk.transcript(&said));
    for queue in ["queues/spring/scrape", "rich", "queues/autumn%202026/scrape"] {
        assert!(desk.path(queue).join("queue.json").exists(), "{queue}");
    }
    assert!(desk.read("queues/spring/scrape/queue.json").contains("300.0"));
}

#[test]
fn a_wrong_file_is_an_error_with_the_nearest_right_key() {
    let said: Vec<_> = [
        "campain = 'x'",
        "[queues.q]\nleese = '5m'",
        "[queues.q]\nlease = 5",
        "[queues.q]\nlease = '5'",
        "[queues.q]\nlayout = 'deep'",
        "[queues.q",
    ]
    .iter()
    .map(|text| {
        let desk = Desk::new();
        desk.write("dfq.toml", text);
        let said = desk.dfq(&["push", "q", "id=a"]);
        desk.transcript(&[said])
    })
    .collect();
    assert_transcript!("names_wrong_file", said.concat());
}

#[test]
fn configuration_says_where_it_came_from() {
    let desk = Desk::new();
    desk.write(
        "dfq.toml",
        "bucket = 's3://box/dfq'\n[prices]\nput = 5.5\n[queues.scrape]\nlease = '5m'\n\
         [queues.enrich]\naddress = './rich'\n[queues.notify]\nprovider = 'sqs'\n\
         [indexes.domains]\nkey = 'domain'\n[indexes.people]\naddress = './people'\n\
         [indexes.shared]\nprovider = 's3'\n",
    );
    let with = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = desk.command(args);
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        let told: Vec<String> =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        support::Said {
            command: format!("{}dfq {}", told.concat(), args.join(" ")),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            status: output.status.code(),
        }
    };
    let secret = [
        ("DFQ_QUEUE_TYPE", "s3"),
        ("DFQ_CAMPAIGN", "spring"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
    ];
    let said = [
        with(&["config"], &[]),
        with(&["config", "--campaign", "autumn"], &secret),
        with(&["config", "--json"], &secret[..2]),
        with(&["config"], &[("COCLI_QUEUE_TYPE", "filesytem")]),
        with(&["config"], &[("DFQ_QUEUE_TYPE", "synced")]),
        with(&["push", "--provider", "s4", "scrape", "id=a"], &[]),
        with(&["push", "--provider", "s3", "./jobs", "id=a"], &[]),
        with(&["push", "--provider", "s3", "enrich", "id=a"], &[]),
    ];
    let transcript = desk.transcript(&said);
    assert!(!transcript.replace("AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "").contains("AKIAEXAMPLE"));
    assert!(!transcript.replace("AWS_SECRET_ACCESS_KEY=hush", "").contains("hush"));
    assert_transcript!("config", narrow(&transcript));
}

#[test]
fn queues_that_are_configured_and_queues_that_are_there() {
    let desk = Desk::new();
    let none = desk.dfq(&["queues"]);
    desk.write(
        "dfq.toml",
        "[queues.scrape]\n[queues.enrich]\naddress = './rich'\n[queues.later]\n",
    );
    desk.ok(&["push", "scrape", "id=a"]);
    desk.ok(&["push", "./rich", "id=a"]);
    desk.ok(&["push", "./queues/default/two%20words", "id=a"]);
    desk.ok(&["push", "./queues/other/elsewhere", "id=a"]);
    desk.write("queues/default/notes/today.txt", "no queue");
    let said = [
        none,
        desk.dfq(&["queues"]),
        desk.dfq(&["queues", "--json"]),
        desk.dfq(&["queues", "--campaign", "other"]),
        desk.dfq(&["queues", "--provider", "s3"]),
    ];
    assert_transcript!("queues", narrow(&desk.transcript(&said)));
}

/// Tables without their padding: how wide a path is depends on where the tests run.
fn narrow(transcript: &str) -> String {
    let mut text = transcript.to_owned();
    while text.contains("   ") {
        text = text.replace("   ", "  ");
    }
    text
}
