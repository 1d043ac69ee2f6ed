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
