use super::make_folders;

#[test]
fn every_folder_above_a_new_queue_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let mut synced = Vec::new();
    let mut sync = |folder: &std::path::Path| {
        synced.push(folder.to_owned());
        Ok(())
    };
    make_folders(&dir.path().join("a/b/q"), &mut sync).unwrap();
    make_folders(&dir.path().join("a/b/q"), &mut sync).unwrap();
    assert_eq!(synced, ["", "a", "a/b"].map(|below| dir.path().join(below)));
}

/// Processes that begin together make the same folder, and none takes it for something else. With two looks at
/// the folder instead of one, this fails in about four of five runs.
#[test]
fn a_folder_is_made_by_many_at_once() {
    const RACERS: usize = 4;
    let (dir, start) = (tempfile::tempdir().unwrap(), std::sync::Barrier::new(RACERS));
    // Errors are collected: a racer that stopped early would leave the others waiting.
    let race = || {
        let rounds = (0..3000).map(|round| dir.path().join(round.to_string()));
        let made = rounds.map(|path| {
            start.wait();
            make_folders(&path, &mut |_| Ok(()))
        });
        made.filter_map(Result::err).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        for racer in (0..RACERS).map(|_| scope.spawn(race)).collect::<Vec<_>>() {
            assert!(racer.join().unwrap().is_empty());
        }
    });
}
