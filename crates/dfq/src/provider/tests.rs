use super::*;

fn refused(address: &str) -> Error {
    let address: Address = address.parse().unwrap();
    of(&address).err().unwrap_or_else(|| panic!("{address} has a provider"))
}

#[test]
fn a_scheme_that_nobody_knows_is_answered_with_those_that_are_known() {
    for (address, scheme) in
        [("ftp://host/x", "cannot use ftp://"), ("S3://b/x", "cannot use S3://")]
    {
        let error = refused(address);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(scheme), "{error}");
        assert!(error.to_string().contains("s3://"), "{error}");
    }
}

#[test]
fn what_was_left_out_of_the_build_says_which_feature_brings_it() {
    let features =
        [("s3://b/q", "s3"), ("gs://b/q", "gcs"), ("az://b/q", "azure"), ("sqs://jobs", "sqs")];
    for (address, feature) in features {
        let error = refusal(&address.parse().unwrap());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("feature '{feature}'")), "{error}");
    }
}

#[tokio::test]
async fn what_needs_no_feature_opens() {
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions::create;
    let queue = open(&Address::from(dir.path()), options()).await.unwrap();
    assert_eq!(queue.address(), dir.path().to_str().unwrap());
    let memory = open(&"memory://provider".parse().unwrap(), options()).await.unwrap();
    assert_eq!(memory.address(), "memory://provider");
    let nameless = open(&"memory://".parse().unwrap(), options()).await.err().unwrap();
    assert_eq!(nameless.kind(), ErrorKind::Invalid);
    assert!(nameless.to_string().contains("needs a name"), "{nameless}");
    let below = queues_below(&"memory://provider".parse().unwrap(), &options()).await;
    assert_eq!(below.unwrap_err().kind(), ErrorKind::Unsupported);
}
