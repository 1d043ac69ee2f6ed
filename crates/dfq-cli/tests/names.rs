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
