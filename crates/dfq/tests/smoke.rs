use dfq::*;
#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let q = open(dir.path().join("q"), OpenOptions::create()).await.unwrap();
    let r = q
        .push(vec![
            NewTask::from_json(r#"{"id":"a b/c","x":1}"#).unwrap(),
            NewTask::from_json("[1,2]").unwrap(),
        ])
        .await;
    println!("{r:?}");
    let p = q.poll(PollRequest::new(5)).await.unwrap();
    println!("{p:?}");
    let out = std::process::Command::new("find").arg(dir.path()).output().unwrap();
    println!("{}", String::from_utf8_lossy(&out.stdout));
    let rs: Vec<_> = p.deliveries.iter().map(|d| d.receipt.clone()).collect();
    println!("{:?}", q.heartbeat(rs.clone()).await);
    println!("{:?}", q.ack(rs.clone()).await);
    println!("{:?}", q.ack(rs).await);
    println!("{:?}", q.poll(PollRequest::new(5)).await.unwrap());
    let out = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("find {0} ; tail -n 9 $(find {0} -name '*.json')", dir.path().display()))
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&out.stdout));
    println!("{:?}", q.stats(Default::default()).await);
}
