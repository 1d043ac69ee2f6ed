//! `dfq index`, as typed: what it says, in a folder and in a bucket.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use support::bucket::TestBucket;
use support::{Desk, Said};

/// What a person does with an index who does not know where it is.
fn play(desk: &Desk, index: &str) -> String {
    let mut said: Vec<Said> = Vec::new();
    let mut dfq = |verb: &str, args: &[&str], stdin: &str| {
        said.push(desk.dfq_with(&[&["index", verb, index], args].concat(), stdin));
    };
    dfq("get", &["example.com"], "");
    dfq("scan", &[], "");
    let first =
        ["--key-field", "domain", "domain=example.com", "employees:=12", "name=Example, Inc."];
    dfq("put", &first, "");
    dfq("put", &[r#"{"domain":"example.org"}"#, r#"{"domain":"späte räte/2","score":0.5}"#], "");
    dfq(
        "put",
        &[],
        "{\"domain\":\"example.com\",\"employees\":14}\n{\"domain\":\"a\",\"tags\":[\"x\"]}\n",
    );
    dfq("put", &["--json", "domain=a.b"], "");
    dfq("put", &["--quiet", "domain=quiet", "name="], "");
    dfq("get", &["example.com", "nobody", "späte räte/2"], "");
    dfq("get", &["example.com", "nobody", "--json"], "");
    dfq("get", &["-"], "a\n\na.b\n");
    dfq("stats", &[], "");
    dfq("scan", &[], "");
    dfq("compact", &[], "");
    dfq("compact", &["--all"], "");
    dfq("delete", &["example.org", "nobody"], "");
    dfq("delete", &["-", "--json"], "a.b\n");
    dfq("get", &["example.org"], "");
    // By its own time, an older record does not count.
    dfq("put", &["domain=example.com", "name=old", "updated_at=2020-01-01T00:00:00Z"], "");
    dfq("get", &["example.com"], "");
    dfq("compact", &["--json"], "");
    dfq("compact", &["--json", "--all"], "");
    dfq("scan", &["-o", "csv"], "");
    dfq("scan", &["--where", "employees=14", "-o", "csv"], "");
    dfq("scan", &["--where", "name=", "--where", "score=0.5", "--json"], "");
    dfq("scan", &["--prefix", "ex"], "");
    dfq("scan", &["--limit", "2"], "");
    dfq("init", &["--columns", "seen:datetime,score:float"], "");
    dfq("put", &["domain=when", "seen=2026-11-19T08:30:00Z"], "");
    dfq("put", &["domain=when", "seen=soon"], "");
    dfq("stats", &["--json"], "");
    let transcript = desk.transcript(&said).replace(index, "INDEX");
    // A folder keeps what was superseded for a while, and says so.
    let is_old = |line: &&str| !line.starts_with("superseded");
    let kept: Vec<&str> = transcript.lines().filter(is_old).collect();
    let text = kept
        .join("\n")
        .replace("'[HERE]/companies'", "'INDEX'")
        .replace("[HERE]/companies", "INDEX");
    let (before, after) = text.rsplit_once(",\"old_files\":").unwrap();
    format!("{before}{}\n", &after[after.find('}').unwrap()..])
}

#[test]
fn a_session_in_a_folder_and_in_a_bucket() {
    let desk = Desk::new();
    let in_folder = play(&desk, "./companies");
    let bucket = TestBucket::start();
    let in_bucket = play(&bucket.desk(), &bucket.address("companies"));
    assert_eq!(steady(&in_folder), steady(&in_bucket));
    assert_transcript!("index_session", in_folder);
}

/// Without what differs between two runs: times, ages, ulids; and what a folder writes anew to be sure that it is durable.
fn steady(transcript: &str) -> String {
    let is_ulid = |word: &str| word.len() == 26 && word.starts_with("0");
    let is_time = |word: &str| word.len() > 18 && word.starts_with("20") && word.contains('T');
    let mut out = String::new();
    for line in transcript.lines() {
        let line = match line.split_once("\"bytes_written\":") {
            Some((before, _)) => before,
            None if line.starts_with("compacted") => "compacted",
            None => line,
        };
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || ":-.".contains(letter);
        for word in line.split_inclusive(|letter| !is_part(letter)) {
            let bare = word.trim_end_matches(|letter| !is_part(letter));
            out += if is_ulid(bare) || is_time(bare) { "[X]" } else { word };
        }
        out.push('\n');
    }
    out
}

/// One bad line costs only itself.
#[test]
fn bad_lines() {
    let desk = Desk::new();
    let mut lines = b"{\"key\":\"one\",\"n\":1}\n\n{oops\n[1]\n{\"n\":2}\n{\"key\":[1]}\n".to_vec();
    lines.extend(b"\"\xff\"\n{\"key\":\"two\",\"n\":\"many\"}\n{\"key\":\"\"}\n");
    lines.extend(format!("{{\"key\":\"{}\"}}\n", "x".repeat(300)).bytes());
    lines.extend(b"{\"key\":\"a\\u001fb\"}\n{\"key\":\"three\",\"_x\":1}\n{\"key\":\"four\",\"updated_at\":\"soon\"}\n");
    lines.extend(b"{\"key\":\"five\",\"updated_at\":\"3026-01-01T00:00:00Z\"}\n");
    lines.extend(format!("{{\"key\":\"big\",\"t\":\"{}\"}}\n", "x".repeat(1 << 20)).bytes());
    lines.extend(format!("{{\"key\":\"huge\",\"t\":\"{}\"}}\n", "x".repeat(9 << 20)).bytes());
    lines.extend(b"{\"key\":\"last\",\"t\":\"a\\u001fb\\n\\u0000\\u0010\\u001e\\r\"}");
    desk.write("lines.jsonl", &lines);
    for bundle in [&[][..], &["--bundle"]] {
        let index = if bundle.is_empty() { "./each" } else { "./bundled" };
        let put = ["index", "put", index, "--json", "--jsonl", "lines.jsonl"];
        let said = desk.dfq(&[&put[..], bundle].concat());
        assert_eq!(said.status, Some(2), "{}", said.err);
        let numbers: Vec<u64> = said
            .out
            .lines()
            .filter_map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["line"].as_u64()
            })
            .collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert!(said.out.ends_with("{\"put\":2,\"refused\":14}\n"), "{}", said.out);
        let found = desk.ok(&["index", "get", index, "one", "last"]);
        let last = r#"{"key":"last","t":"a\u001fb\n\u0000\u0010\u001e\r"}"#;
        assert_eq!(found, format!("{{\"key\":\"one\",\"n\":1}}\n{last}\n"));
        desk.ok(&["index", "compact", index]);
        assert_eq!(desk.ok(&["index", "get", index, "one", "last"]), found);
    }
    let said = [
        desk.dfq(&["index", "put", "./each", "--jsonl", "lines.jsonl"]),
        desk.dfq_with(&["index", "put", "./none"], "{\"domain\":\"a\"}\n"),
        desk.dfq_with(
            &["index", "put", "./none"],
            "{\"domain\":\"a\"}\n{\"domain\":\"b\"}\n".repeat(20),
        ),
        desk.dfq_with(&["index", "put", "./none"], ""),
        desk.dfq_with(&["index", "put", "./none", "--json"], ""),
    ];
    assert_transcript!("index_bad_lines", desk.transcript(&said));
    assert!(!desk.path("none").exists(), "bad input makes no index");
}

#[test]
fn wrong_uses() {
    let desk = Desk::new();
    desk.ok(&["push", "-q", "./jobs", "id=a"]);
    desk.ok(&["index", "put", "-q", "./there", "key=a"]);
    desk.write("file", "");
    let said = [
        desk.dfq(&["index"]),
        desk.dfq(&["index", "putt", "./there"]),
        desk.dfq(&["index", "put", "./there", "word"]),
        desk.dfq(&["index", "put", "./there", "a=1", "{}"]),
        desk.dfq(&["index", "put", "./there", "--jsonl", "nowhere"]),
        desk.dfq(&["index", "put", "./there", "--jsonl", "."]),
        desk.dfq(&["index", "put", "./there", "--jsonl", "file", "key=a"]),
        desk.on_terminal(&["index", "put", "./there"], ""),
        desk.dfq(&["index", "put", "./jobs", "key=a"]),
        desk.dfq(&["index", "get", "./jobs", "a"]),
        desk.dfq(&["push", "./there", "id=a"]),
        desk.dfq(&["init", "./there"]),
        desk.dfq(&["stats", "./there"]),
        desk.dfq(&["work", "./there", "--", "true"]),
        desk.dfq(&["work", "./jobs", "--index", "./jobs", "--", "true"]),
        desk.dfq(&["work", "./jobs", "--key-field", "x", "--", "true"]),
        desk.dfq(&["index", "put", "file", "key=a"]),
        desk.dfq(&["index", "put", "./file", "key=a"]),
        desk.dfq(&["index", "put", "./file/below", "key=a"]),
        desk.dfq(&["index", "put", "sqs://jobs", "key=a"]),
        desk.dfq(&["index", "put", "memory://x", "key=a"]),
        desk.dfq(&["index", "get", "./there"]),
        desk.dfq(&["index", "get", "./there", "", "a\nb"]),
        desk.dfq(&["index", "delete", "./there", "", "a"]),
        desk.dfq(&["index", "scan", "./there", "--where", "=x"]),
        desk.dfq(&["index", "scan", "./there", "--where", "kye=x"]),
        desk.dfq(&["index", "scan", "./there", "--json", "-o", "csv"]),
        desk.dfq(&["index", "compact", "./there", "--workers", "0"]),
        desk.dfq(&["index", "compact", "./there", "--every", "0s"]),
        desk.dfq(&["index", "init", "./there"]),
        desk.dfq(&["index", "init", "./there", "--columns", "a:text"]),
        desk.dfq(&["index", "init", "./there", "--columns", "a,a:integer"]),
        desk.dfq(&["index", "init", "./there", "--columns", ":integer"]),
        desk.dfq(&["index", "init", "./there", "--columns", "_x"]),
        desk.dfq(&["index", "init", "./new", "--columns", "key,name"]),
        desk.dfq(&["index", "init", "./there", "--key-field", "other", "--columns", "a"]),
    ];
    assert_transcript!("index_wrong_uses", desk.transcript(&said));
    assert!(!desk.path("new").exists());
    assert_eq!(desk.ok(&["index", "scan", "./there"]), "", "'a' was deleted");
}

#[test]
fn names() {
    let desk = Desk::new();
    desk.write(
        "dfq.toml",
        "provider = 'sqs'\nbucket = 's3://box/dfq'\n[queues.scrape]\nprovider = 'filesystem'\n\
         [indexes.domains]\nprovider = 'filesystem'\nkey = 'domain'\n\
         [indexes.people]\naddress = './people'\n[indexes.nowhere]\n",
    );
    let said = [
        desk.dfq(&["index", "put", "domains", "domain=a"]),
        desk.dfq(&["index", "put", "domains", "--campaign", "autumn", "domain=b"]),
        desk.dfq(&["index", "put", "domains", "--provider", "s3", "domain=c"]),
        desk.dfq(&["index", "scan", "domains", "--where", "domain=b"]),
        desk.dfq(&[
            "index",
            "init",
            "people",
            "--key-field",
            "email",
            "--columns",
            "born:datetime",
        ]),
        desk.dfq(&["index", "put", "people", "email=a@example.com", "born=2001-02-03T00:00:00Z"]),
        desk.dfq(&["index", "get", "domain", "a"]),
        desk.dfq(&["index", "get", "else", "a"]),
        desk.dfq(&["index", "get", "scrape", "a"]),
        desk.dfq(&["push", "domains", "id=a"]),
        desk.dfq(&["index", "get", "nowhere", "a"]),
    ];
    assert_transcript!("index_names", desk.transcript(&said));
    assert!(desk.path("indexes/domains/datapackage.json").exists());
    assert!(desk.path("people/datapackage.json").exists());
    for (text, why) in [
        ("[indexes.a]\nadress = 'x'", "did you mean 'address'?"),
        ("[indexes.a]\nprovider = 'synced'", "an index lives in a folder or in a bucket"),
        ("[indexes.a]\naddress = 'sqs://x'", "an index lives in a folder or in a bucket"),
        ("[indexes.a]\naddress = './x'\nbucket = 's3://b'", "leave out 'bucket'"),
        ("[indexes.a]\nkey = ''", "key is empty"),
        ("[indexes.'a/b']", "cannot be an index's name"),
        ("[indexs.a]", "did you mean 'indexes'?"),
        ("provider = 's3'\n[indexes.a]", "but none is named"),
    ] {
        desk.write("wrong.toml", text);
        let said = desk.dfq(&["--config", "wrong.toml", "index", "get", "a", "x"]);
        assert_eq!(said.status, Some(2), "{said:?}");
        assert!(said.err.contains(why), "{said:?}");
    }
}

/// What is wrong with an index, or with a part of it.
#[test]
fn trouble() {
    let desk = Desk::new();
    desk.ok(&["index", "put", "-q", "./i", "key=a", "n:=1"]);
    let inbox = desk.path("i/inbox/ca");
    let file = std::fs::read_dir(&inbox).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    desk.write("i/shards/ca.lock", r#"{"worker_id":"w","created_at":"2999-01-01T00:00:00Z","expires_at":"2999-01-01T00:00:00Z"}"#);
    let locked = desk.dfq(&["index", "compact", "./i"]);
    std::fs::remove_file(desk.path("i/shards/ca.lock")).unwrap();
    let unreadable =
        [desk.dfq(&["index", "compact", "./i"]), desk.dfq(&["index", "compact", "./i", "--json"])];
    std::fs::write(&file, &whole).unwrap();
    let merged = desk.dfq(&["index", "compact", "./i"]);
    let schema = desk.path("i/versions/datapackage.json/1");
    let mut newest = (1..9).map(|n| desk.path(&format!("i/versions/datapackage.json/{n}")));
    let newest = newest.rfind(|path| path.exists()).unwrap_or(schema);
    let text = std::fs::read_to_string(&newest).unwrap();
    std::fs::write(&newest, text.replace("\"dfq_index\": 1", "\"dfq_index\": 2")).unwrap();
    let newer = desk.dfq(&["index", "get", "./i", "a"]);
    std::fs::write(&newest, "{").unwrap();
    let damaged =
        [desk.dfq(&["index", "get", "./i", "a"]), desk.dfq(&["index", "put", "./i", "key=b"])];
    let said: Vec<Said> =
        [locked].into_iter().chain(unreadable).chain([merged, newer]).chain(damaged).collect();
    assert_transcript!("index_trouble", desk.transcript(&said));
}

#[test]
fn what_requests_cost_is_told() {
    let bucket = TestBucket::start();
    let (desk, index) = (bucket.desk(), bucket.address("i"));
    desk.ok(&["index", "put", "-q", &index, "key=a", "n:=1"]);
    let cost = |args: &[&str]| {
        let said = desk.dfq(&[&["index", "--cost", "--quiet"], args].concat());
        assert_eq!(said.status, Some(0), "{said:?}");
        said.err
    };
    for args in [&["put", &index, "key=b", "n:=2"][..], &["get", &index, "a"], &["compact", &index]]
    {
        let said = cost(args);
        assert!(said.contains("DOLLARS") && said.contains("GET"), "{said}");
    }
}

#[test]
fn check_finds_and_repairs() {
    let desk = Desk::new();
    desk.ok(&["index", "put", "-q", "./i", "key=a", "n:=1"]);
    desk.ok(&["index", "put", "-q", "./i", "key=b", "n:=2"]);
    let in_order = [
        desk.dfq(&["index", "check", "./i"]),
        desk.dfq(&["index", "compact", "-q", "./i"]),
        desk.dfq(&["index", "check", "./i"]),
        desk.dfq(&["index", "check", "./i", "--json"]),
    ];
    // Somebody edits a shard, as editors do: a new file under the plain name, with a row at its end that is none.
    let edited = desk.read("i/shards/ca.usv") + "and a row by hand\n";
    std::fs::remove_file(desk.path("i/shards/ca.usv")).unwrap();
    desk.write("i/shards/ca.usv", &edited);
    desk.write("i/inbox/ca/notes.txt", "not ours");
    let found = [
        desk.dfq(&["index", "check", "./i"]),
        desk.dfq(&["index", "check", "./i", "--repair", "--json"]),
        desk.dfq(&["index", "check", "./i"]),
        desk.dfq(&["index", "scan", "./i"]),
    ];
    let said: Vec<Said> = in_order.into_iter().chain(found).collect();
    assert_transcript!("index_check", desk.transcript(&said));
    // What was written by hand is not lost.
    let aside = walk(&desk.path("i/aside"));
    assert!(aside.iter().any(|bytes| *bytes == edited.as_bytes()), "{aside:?}");
}

fn walk(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(std::fs::read(&path).unwrap()),
        }
    }
    found
}

#[test]
fn import_reads_a_file() {
    let desk = Desk::new();
    let mut lines: String =
        (0..2000).map(|n| format!("{{\"key\":\"k{n}\",\"n\":{n}}}\n")).collect();
    lines += "{oops\n{\"key\":\"k1\",\"n\":\"many\"}\n{\"key\":\"k0\",\"n\":-1}\n{\"n\":1}\n";
    desk.write("lines.jsonl", &lines);
    let said = [
        desk.dfq(&["index", "import", "./i", "nowhere"]),
        desk.dfq_with(&["index", "import", "./none", "-"], "{oops\n"),
        desk.dfq_with(&["index", "import", "./none", "-"], ""),
        desk.dfq(&["index", "import", "./i", "lines.jsonl"]),
        desk.dfq(&["index", "get", "./i", "k0", "k1", "k1999"]),
        desk.dfq(&["index", "import", "./i", "lines.jsonl", "--json"]),
        desk.dfq(&["index", "import", "./i", "lines.jsonl", "--scratch", "nowhere"]),
        desk.dfq(&["index", "check", "./i"]),
    ];
    assert_transcript!("index_import", desk.transcript(&said));
    assert!(!desk.path("none").exists());
    assert_eq!(desk.ok(&["index", "scan", "./i"]).lines().count(), 2000);
}

/// An index that another program made: 4 columns, records ended by U+001E and a newline, no datapackage.json.
#[test]
fn an_index_of_another_program() {
    let desk = Desk::new();
    let row = |key: &str, name: &str, at: &str| {
        format!("{key}\u{1f}{name}\u{1f}2020{at}\u{1f}{at}\u{1e}\n")
    };
    // The shard of "example.com" by its SHA-256 is a3.
    desk.write("theirs/shards/a3.usv", row("example.com", "Example", "-01-01T00:00:00Z"));
    desk.write("theirs/inbox/new.example.usv", row("new.example", "New", "-01-02T00:00:00Z"));
    let said = [
        desk.dfq(&["index", "scan", "./theirs"]),
        desk.dfq(&["index", "put", "./theirs", "key=a"]),
        desk.dfq(&["index", "compact", "./theirs"]),
        desk.dfq(&["index", "init", "./theirs", "--columns", "domain,name"]),
        desk.dfq(&[
            "index",
            "init",
            "./theirs",
            "--columns",
            "domain,name,updated_at:datetime,note",
        ]),
        desk.dfq(&[
            "index",
            "put",
            "./theirs",
            "domain=example.com",
            "name=Newer",
            "updated_at=2021-01-01T00:00:00Z",
        ]),
        desk.dfq(&["index", "put", "./theirs", "domain=example.com", "employees:=3"]),
        desk.dfq(&["index", "delete", "./theirs", "example.com"]),
        desk.dfq(&["index", "get", "./theirs", "example.com", "new.example"]),
        desk.dfq(&["index", "compact", "./theirs", "--all"]),
        desk.dfq(&["index", "scan", "./theirs", "-o", "csv"]),
    ];
    assert_transcript!("index_theirs", desk.transcript(&said));
    assert_eq!(
        desk.read("theirs/shards/a3.usv"),
        "example.com\u{1f}Newer\u{1f}2021-01-01T00:00:00Z\u{1f}\u{1e}\n"
    );
}

/// On a terminal: a live line that goes away, and nothing that a terminal would obey.
#[test]
fn on_a_terminal() {
    let desk = Desk::new();
    desk.write("lines.jsonl", "{\"key\":\"a\",\"t\":\"x\\u001b[2J\\u202e\"}\n{\"key\":\"b\"}\n");
    let put = desk.on_terminal(&["index", "put", "./i", "--jsonl", "lines.jsonl"], "");
    assert!(put.out.contains("dfq: 2 records put"), "{put:?}");
    let import = desk.on_terminal(&["index", "import", "./i", "lines.jsonl"], "");
    assert!(import.out.contains("dfq: 2 records imported"), "{import:?}");
    let compact = desk.on_terminal(&["index", "compact", "./i"], "");
    assert!(compact.out.contains("2 records from 2 files merged into 2 shards"), "{compact:?}");
    let check = desk.on_terminal(&["index", "check", "./i"], "");
    assert!(check.out.contains("in order: 2 records"), "{check:?}");
    for format in ["json", "csv", "usv"] {
        let scan = desk.on_terminal(&["index", "scan", "./i", "-o", format], "");
        assert_eq!((scan.status, scan.out.contains("\u{1b}[2J")), (Some(0), false), "{scan:?}");
    }
}
