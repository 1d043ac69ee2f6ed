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

/// Processes that begin together make the same folder, and none takes it for something else.
#[test]
fn a_folder_is_made_by_many_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..300 {
        let path = dir.path().join(format!("{round}")).join("queue");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| make_folders(&path, &mut |_| Ok(())).unwrap());
            }
        });
    }
}
