//! The S3 operations over the store: what is asked, what is lied about, what is answered. Only here
//! do conditions of a request become conditions of a write.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures::TryStreamExt;
use hyper::header::{HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use s3s::dto::*;
use s3s::{Body, S3, S3Error, S3Request, S3Response, S3Result, s3_error};

use crate::access::Rules;
use crate::lies::Lies;
use crate::listing;
use crate::shared::{Shared, read};
use crate::store::{self, Condition, Refusal};

/// How far behind a listing is; it travels with the request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListAge(pub(crate) Duration);

pub(crate) struct Service(pub(crate) Arc<Shared>);

fn refused(refusal: Refusal) -> S3Error {
    match refusal {
        Refusal::NoSuchBucket => s3_error!(NoSuchBucket, "The specified bucket does not exist"),
        Refusal::NoSuchKey => s3_error!(NoSuchKey, "The specified key does not exist."),
        Refusal::BucketExists => s3_error!(BucketAlreadyOwnedByYou),
        Refusal::Failed => s3_error!(
            PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold"
        ),
    }
}

fn etag(object: &store::Object) -> ETag {
    ETag::Strong(object.etag.clone())
}

fn holds(condition: &ETagCondition, object: &store::Object) -> bool {
    condition.as_etag().is_none_or(|etag| etag.value() == object.etag)
}

/// `Last-Modified` and the dates of conditions have whole seconds.
fn seconds(object: &store::Object) -> Timestamp {
    let since = object.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

/// The conditions of a read, in the order HTTP gives them.
struct ReadConditions<'a> {
    if_match: Option<&'a ETagCondition>,
    if_none_match: Option<&'a ETagCondition>,
    if_modified_since: Option<&'a Timestamp>,
    if_unmodified_since: Option<&'a Timestamp>,
}

impl ReadConditions<'_> {
    fn check(&self, object: &store::Object) -> S3Result<()> {
        let modified = seconds(object);
        let met = match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) => holds(condition, object),
            (None, Some(date)) => modified <= *date,
            (None, None) => true,
        };
        if !met {
            return Err(refused(Refusal::Failed));
        }
        let changed = match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) => !holds(condition, object),
            (None, Some(date)) => modified > *date,
            (None, None) => true,
        };
        if changed { Ok(()) } else { Err(s3_error!(NotModified)) }
    }
}

/// The conditions of a write, less those that are lied about.
fn write_conditions(headers: &HeaderMap, lies: &Lies, delete: bool) -> S3Result<Vec<Condition>> {
    let header = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (if_match, if_none_match) = (header(IF_MATCH), header(IF_NONE_MATCH));
    if lies.ignore_conditions {
        return Ok(Vec::new());
    }
    if lies.refuse_conditional_put && !delete && (if_match.is_some() || if_none_match.is_some()) {
        return Err(s3_error!(NotImplemented, "conditional PUT is not implemented"));
    }
    let mut conditions = Vec::new();
    match if_none_match {
        None => {}
        Some("*") => conditions.push(Condition::Absent),
        // As S3: on a write there is no other.
        Some(_) => return Err(s3_error!(NotImplemented, "If-None-Match can only be *")),
    }
    let ignored = lies.ignore_if_match || (delete && lies.ignore_if_match_on_delete);
    match if_match.filter(|_| !ignored) {
        None => {}
        Some("*") => conditions.push(Condition::Present),
        Some(_) if lies.refuse_etags => {
            return Err(s3_error!(PreconditionFailed, "no ETag ever matches here"));
        }
        // With its quotes left on it equals no ETag in the store, as on Ceph.
        Some(text) if lies.refuse_quoted_etags => conditions.push(Condition::Etag(text.to_owned())),
        Some(text) => conditions.push(Condition::Etag(text.trim_matches('"').to_owned())),
    }
    Ok(conditions)
}

impl Service {
    fn lies(&self) -> Lies {
        read(&self.0.lies).clone()
    }

    fn rules(&self) -> Rules {
        read(&self.0.rules).clone()
    }

    /// Reads. Whoever may not list may not learn that a key is missing either.
    fn find(&self, bucket: &str, key: &str) -> S3Result<Arc<store::Object>> {
        self.0.store.get(bucket, key).map_err(|refusal| match refusal {
            Refusal::NoSuchKey if !self.rules().allow("s3:ListBucket", key) => {
                self.0.meter.is_denied();
                s3_error!(AccessDenied, "Access Denied")
            }
            other => refused(other),
        })
    }

    async fn write(
        &self,
        bucket: &str,
        key: &str,
        object: store::Object,
        headers: &HeaderMap,
    ) -> S3Result<Arc<store::Object>> {
        let lies = self.lies();
        let conditions = write_conditions(headers, &lies, false)?;
        let now = || lies.now();
        let store = &self.0.store;
        if let Some(pause) = lies.not_atomic.filter(|_| !conditions.is_empty()) {
            store.check(bucket, key, &conditions).map_err(refused)?;
            tokio::time::sleep(pause).await;
            return store.put(bucket, key, object, &[], now).map_err(refused);
        }
        store.put(bucket, key, object, &conditions, now).map_err(refused)
    }
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let name = &req.input.bucket;
        self.0.store.create_bucket(name, self.lies().now()).map_err(refused)?;
        let location = Some(format!("/{name}"));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    async fn head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.0.store.has_bucket(&req.input.bucket).map_err(refused)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn list_buckets(
        &self,
        _: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self.0.store.buckets().into_iter().map(|(name, created)| Bucket {
            name: Some(name),
            creation_date: Some(Timestamp::from(created)),
            ..Default::default()
        });
        let buckets = Some(buckets.collect());
        Ok(S3Response::new(ListBucketsOutput { buckets, ..Default::default() }))
    }

    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        let chunks = match input.body {
            Some(body) => body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?,
            None => Vec::new(),
        };
        let mut object = store::Object::new(chunks.concat().into());
        object.content_type = input.content_type;
        object.metadata = input.metadata;
        let object = self.write(&input.bucket, &input.key, object, &req.headers).await?;
        let e_tag = Some(etag(&object));
        Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
    }

    async fn copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented, "only <bucket>/<key> can be copied"));
        };
        let source = self.find(bucket, key)?;
        let matches = input.copy_source_if_match.as_ref().is_none_or(|c| holds(c, &source));
        let differs = input.copy_source_if_none_match.as_ref().is_none_or(|c| !holds(c, &source));
        if !matches || !differs {
            return Err(refused(Refusal::Failed));
        }
        let mut object = store::Object::new(source.body.clone());
        object.content_type = source.content_type.clone();
        object.metadata = source.metadata.clone();
        let object = self.write(&input.bucket, &input.key, object, &req.headers).await?;
        let result = CopyObjectResult {
            e_tag: Some(etag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            ..Default::default()
        };
        let copy_object_result = Some(result);
        Ok(S3Response::new(CopyObjectOutput { copy_object_result, ..Default::default() }))
    }

    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let object = self.find(&input.bucket, &input.key)?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&object)?;
        let full = object.body.len();
        let (body, content_range) = match input.range {
            None => (object.body.clone(), None),
            Some(range) => {
                let range = range.check(full as u64)?;
                let name = format!("bytes {}-{}/{full}", range.start, range.end - 1);
                // Both ends lie within the body, so they fit.
                (object.body.slice(range.start as usize..range.end as usize), Some(name))
            }
        };
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(body.len()).ok(),
            body: Some(StreamingBlob::from(Body::from(body))),
            content_range,
            content_type: object.content_type.clone(),
            e_tag: Some(etag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            metadata: object.metadata.clone(),
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        let object = self.find(&input.bucket, &input.key)?;
        let conditions = ReadConditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&object)?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(object.body.len()).ok(),
            content_type: object.content_type.clone(),
            e_tag: Some(etag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            metadata: object.metadata.clone(),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let conditions = write_conditions(&req.headers, &self.lies(), true)?;
        let (bucket, key) = (&req.input.bucket, &req.input.key);
        self.0.store.delete(bucket, key, &conditions).map_err(refused)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let (bucket, delete) = (req.input.bucket, req.input.delete);
        self.0.store.has_bucket(&bucket).map_err(refused)?;
        if delete.objects.len() > 1000 {
            return Err(s3_error!(MalformedXML, "at most 1000 keys at once"));
        }
        let (rules, lies) = (self.rules(), self.lies());
        let heeded =
            !(lies.ignore_conditions || lies.ignore_if_match || lies.ignore_if_match_on_delete);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for object in delete.objects {
            let condition = object.e_tag.filter(|_| heeded);
            let condition = condition.map(|etag| Condition::Etag(etag.into_value()));
            let done = if rules.allow("s3:DeleteObject", &object.key) {
                let conditions = condition.as_slice();
                self.0.store.delete(&bucket, &object.key, conditions).map_err(refused)
            } else {
                self.0.meter.is_denied();
                Err(s3_error!(AccessDenied, "Access Denied"))
            };
            let key = Some(object.key);
            match done {
                Ok(()) => deleted.push(DeletedObject { key, ..Default::default() }),
                Err(error) => errors.push(Error {
                    key,
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    ..Default::default()
                }),
            }
        }
        let quiet = delete.quiet.unwrap_or(false);
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: (!quiet).then_some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            ..Default::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let age = req.extensions.get::<ListAge>().copied().unwrap_or_default().0;
        let (whole_seconds, keep_folders) = (self.lies().whole_seconds, self.lies().keep_folders);
        let query = listing::query(&req.input, age, keep_folders)?;
        let page = self.0.store.list(&req.input.bucket, &query).map_err(refused)?;
        Ok(S3Response::new(listing::output(&req.input, page, |object| {
            if whole_seconds { seconds(object) } else { Timestamp::from(object.modified) }
        })))
    }
}
