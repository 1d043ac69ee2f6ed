//! What a check finds, and what it mends.

use dfq::index::{CheckOptions, CheckReport, Index};

use super::cases::{compact, put, record};
use super::places::Place;

pub(crate) async fn check(index: &Index, repair: bool) -> CheckReport {
    index.check(CheckOptions { repair, ..CheckOptions::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_found_where_all_is_well() {
    for place in Place::all().await {
        let index = place.index().await;
        assert_eq!(check(&index, true).await, CheckReport::default());
        put(&index, vec![record("a", 1), record("b", 2)]).await;
        compact(&index).await;
        index.delete(vec!["a".to_owned()]).await.remove(0).unwrap();
        compact(&index).await;
        put(&index, vec![record("c", 2)]).await;
        let report = check(&index, false).await;
        assert_eq!(report.findings, vec![]);
        assert_eq!((report.shards, report.records, report.deletions), (2, 1, 1));
        assert_eq!((report.inbox_files, report.aside_files), (1, 0));
        assert!(report.bytes > 100);
    }
}
