use proptest::prelude::*;

use super::*;

fn key(id: &str, generation: u32) -> TaskKey {
    TaskKey::new(TaskId::new(id).unwrap(), generation)
}

#[test]
fn plain_ids_are_their_own_names() {
    assert_eq!(stem(&key("acme.com", 1)), "acme.com");
    assert_eq!(stem(&key("acme.com", 2)), "acme.com@2");
}

#[test]
fn odd_ids_stay_in_their_folder() {
    for (id, name) in [
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("a/b", "a%2Fb"),
        ("a@2", "a%402"),
        ("%41", "%2541"),
        ("a b\n", "a%20b%0A"),
        ("\0", "%00"),
        ("ä", "%C3%A4"),
    ] {
        assert_eq!(stem(&key(id, 1)), name);
        assert_eq!(parse_stem(name), Some(key(id, 1)));
    }
}

#[test]
fn names_that_we_could_not_have_built_are_not_ours() {
    for name in
        ["", "%2e.", "a@1", "a@02", "a@", "a b", "%zz", "%C3", "%41", ".nfs0001", "a@2@3", "+"]
    {
        assert_eq!(parse_canonical_stem(name), None, "{name}");
    }
}

#[test]
fn other_programs_names_are_kept_as_they_are() {
    let foreign = parse_stem("plumbers in Phoenix, 33.1%").unwrap();
    assert_eq!(foreign.id().as_str(), "plumbers in Phoenix, 33.1%");
    assert_eq!(stem(&foreign), "plumbers in Phoenix, 33.1%");
    assert_eq!(parse_stem(".nfs0001"), None);
}

#[test]
fn a_folder_in_the_wrong_shard_is_foreign() {
    let id = key("abc", 1);
    let home = Names(Layout::Sharded).shard(&id);
    assert_eq!(home, Shard(0xba)); // sha256("abc") = ba7816bf…
    assert_eq!(Names(Layout::Sharded).parse_task_dir(home, "abc"), Some(id));
    assert_eq!(Names(Layout::Sharded).parse_task_dir(home, "ABC"), None);
}

#[test]
fn paths_of_both_layouts() {
    let key = key("abc", 2);
    assert_eq!(Names(Layout::Sharded).task_dir(&key), "pending/ba/abc@2");
    assert_eq!(Names(Layout::Flat).task_dir(&key), "pending/abc@2");
    let path = Names(Layout::Sharded).record_path(Outcome::Completed, &key);
    assert_eq!(path, "completed/ba/abc@2.json");
    assert_eq!(worker_path("host a-1"), "workers/host%20a-1.json");
}

#[test]
fn lease_names() {
    for n in [1, 2, 10, 1_000_000_000] {
        assert_eq!(parse_lease_name(&lease_name(n)), Some(n));
    }
    for name in
        ["lease.1.json", "lease.02.json", "lease..json", "lease", "task.json", "lease.2.json~"]
    {
        assert_eq!(parse_lease_name(name), None, "{name}");
    }
}

#[test]
fn a_shard_begins_after_what_is_no_folder() {
    assert_eq!(Names(Layout::Flat).before_shard(7), None);
    assert_eq!(Names(Layout::Sharded).before_shard(0), None);
    for number in 1..256 {
        let before = Names(Layout::Sharded).before_shard(number).unwrap();
        let [last, this] = [number - 1, number].map(|number| format!("{number:02x}"));
        assert!(format!("{last}/\u{10ffff}") < before && before < format!("{this}/"), "{before}");
        // Nor does a server that compares the names of folders leave this one out.
        assert!(last < before && before < this, "{before}");
    }
    assert_eq!(Names(Layout::Sharded).before_shard(256), None);
}

#[test]
fn shard_names() {
    assert_eq!(Shard::parse("0a"), Some(Shard(10)));
    for name in ["0A", "a", "abc", "+1", "zz"] {
        assert_eq!(Shard::parse(name), None);
    }
}

#[test]
fn due_times_round_up_and_keep_their_precision() {
    let now: Timestamp = "2026-11-15T19:29:30.25Z".parse().unwrap();
    let name = |secs| Due::after(now, Duration::from_secs(secs)).unwrap().name();
    assert_eq!(name(5), "20261115T192936Z");
    assert_eq!(name(29), "20261115T1930Z");
    assert_eq!(name(3600), "20261115T2030Z");
    assert_eq!(Due::after(now, Duration::MAX), None);
    for name in ["20261115T1930Z", "20261115T193001Z"] {
        assert_eq!(Due::parse(name).unwrap().name(), name);
    }
    for name in
        ["20261115T193000Z", "20261315T1930Z", "2026-11-15", "20261115T1930", "x", ".snapshot"]
    {
        assert_eq!(Due::parse(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn every_id_survives_its_name(id in "\\PC{1,40}|[\\x00-\\x7f]{1,60}", generation in 1_u32..5) {
        prop_assume!(TaskId::new(id.clone()).is_ok());
        let key = key(&id, generation);
        let name = stem(&key);
        prop_assert!(!name.contains('/') && !name.starts_with('.') && name.is_ascii());
        prop_assert_eq!(name.split('@').next().unwrap().len(), encoded_len(&id));
        prop_assert_eq!(parse_canonical_stem(&name), Some(key));
    }

    #[test]
    fn no_name_makes_the_parser_stumble(name in "\\PC{0,40}") {
        if let Some(key) = parse_stem(&name) {
            prop_assert_eq!(&stem(&key), &name);
        }
        let _ = (Due::parse(&name), parse_lease_name(&name), Shard::parse(&name));
    }
}

/// Paths are joined here and nowhere else. A new name is added here, where it can be parsed too.
#[test]
fn no_other_module_joins_a_path() {
    // Addresses and URLs.
    let elsewhere = ["address", "config", "config.rs", "sqs", "raw.rs", "policy.rs", "client.rs"];
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let exempt = name.starts_with("layout") || name.contains("test");
            let is_url = path.ends_with("bucket/s3.rs");
            if exempt || is_url || elsewhere.contains(&&*name) || name == "conformance" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            for (number, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
                let text = line.split_once("format!(\"").map_or("", |(_, text)| text);
                // A slash at the end is a prefix, of whatever lies below.
                let joins = text.contains("/{") || (text.contains("}/") && !text.contains("/\""));
                let is_no_name = text.starts_with(['/', '<']) || text.contains("://");
                if joins && !is_no_name {
                    found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "use `layout` for these:\n{}", found.join("\n"));
}
