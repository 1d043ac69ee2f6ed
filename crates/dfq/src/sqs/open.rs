//! Getting at a queue: where it is, with whose credentials, and what it says about itself.
//!
//! Region, endpoint and credentials come from where every AWS tool takes them (`aws-config`), unless
//! the options say otherwise. Nothing of the credentials is ever printed.

use std::time::Duration;

use aws_config::meta::region::RegionProviderChain;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_sdk_sqs::types::QueueAttributeName;
use jiff::Timestamp;

use super::Core;
use super::bury::{DeadLetters, Policy};
use super::client::{Client, Patience};
use super::receive::lease_seconds;
use super::send::MAX_BATCH_BYTES;
use crate::address::SqsAddress;
use crate::error::{Error, ErrorKind, Result};
use crate::meter::RequestKind;
use crate::model::Settings;
use crate::options::{OpenOptions, SqsOptions};

/// How long a queue that we make keeps its messages: as long as SQS can, 14 days.
const RETENTION_SECONDS: u32 = 14 * 24 * 3600;

/// What a new queue is to be like.
pub(super) struct Wanted<'a> {
    settings: &'a Settings,
    /// Where messages go that were received too often.
    dead_letters: Option<&'a str>,
}

pub(super) async fn open(address: SqsAddress, open: OpenOptions) -> Result<Core> {
    let options = open.sqs.clone();
    if let Some(settings) = &open.create {
        settings.check()?;
        lease_seconds(settings.lease)?;
    }
    let name = address.name().to_owned();
    let fifo = name.ends_with(".fifo");
    let config = config(&address, &options).await?;
    let client = |sdk| Client {
        sdk,
        env: open.env.clone(),
        meter: open.meter.clone(),
        address: address.to_string(),
    };
    let main = client(aws_sdk_sqs::Client::from_conf(config.clone()));
    // Connections belong to the runtime that made them. Heartbeats come from a thread of their own, and
    // must not wait for one that a handler keeps busy.
    let heart = client(aws_sdk_sqs::Client::from_conf(config));

    let named = match &options.dead_letter {
        None => None,
        Some(text) => {
            let dead = SqsAddress::parse(text)?;
            if dead.name() == name || dead.name().ends_with(".fifo") != fifo {
                return Err(Error::invalid(format!(
                    "{dead} cannot be the dead-letter queue of {address}: it must be another queue, and \
                     both or neither of them FIFO"
                )));
            }
            let wanted =
                open.create.as_ref().map(|settings| Wanted { settings, dead_letters: None });
            Some(main.find(&dead, wanted).await?)
        }
    };
    let wanted =
        open.create.as_ref().map(|settings| Wanted { settings, dead_letters: named.as_deref() });
    let url = main.find(&address, wanted).await?;
    let attributes = main.attributes(&url).await?;
    let policy = attributes.get(&QueueAttributeName::RedrivePolicy).and_then(|text| policy(text));
    let dead = DeadLetters { named, policy, ..DeadLetters::default() };
    let mut settings = settings(&attributes, &dead, &open)?;
    settings.backoff = options.backoff.unwrap_or(settings.backoff);
    settings.check()?;
    let made_up = || format!("{}-{:08x}", open.env.host(), open.env.next_u64() as u32);
    let limit = number(&attributes, &QueueAttributeName::MaximumMessageSize);
    Ok(Core {
        worker_id: open.worker_id.clone().unwrap_or_else(made_up),
        address: address.to_string(),
        message_limit: limit.and_then(|limit| limit.try_into().ok()).unwrap_or(MAX_BATCH_BYTES),
        batch_limit: MAX_BATCH_BYTES.into(),
        strict: false.into(),
        group_member: options.group,
        env: open.env.clone(),
        client: main,
        heart,
        settings,
        url,
        fifo,
        dead,
        origin: format!("{:016x}", open.env.next_u64()),
        held: Default::default(),
        settled: Default::default(),
        ahead: Default::default(),
        silence: Default::default(),
        arrived: Default::default(),
        unreadable: Default::default(),
    })
}

pub(super) async fn config(
    address: &SqsAddress,
    options: &SqsOptions,
) -> Result<aws_sdk_sqs::Config> {
    let (url_endpoint, url_region) = address.endpoint_and_region();
    let endpoint = options.endpoint.clone().or(url_endpoint);
    let region = options.region.clone().or(url_region).map(Region::new);
    let mut loader =
        aws_config::defaults(BehaviorVersion::latest()).http_client(crate::tls::aws_http_client());
    loader = match (region, &endpoint) {
        (Some(region), _) => loader.region(region),
        // A server of one's own has no regions to speak of, and none to ask for one.
        (None, Some(_)) => loader.region(
            RegionProviderChain::first_try(
                aws_config::environment::EnvironmentVariableRegionProvider::new(),
            )
            .or_else(Region::new("us-east-1")),
        ),
        (None, None) => loader,
    };
    if let Some(endpoint) = endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some((key, secret)) = &options.credentials {
        loader = loader.credentials_provider(Credentials::new(key, secret, None, None, "dfq"));
    }
    let shared = loader.load().await;
    if shared.region().is_none() {
        let message =
            format!("{address}: no AWS region is known; set AWS_REGION or name the region");
        return Err(Error::invalid(message));
    }
    let config = aws_sdk_sqs::config::Builder::from(&shared)
        // We try again and give up ourselves: see `client`.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    Ok(config.build())
}

#[allow(clippy::disallowed_types, reason = "the type of the SDK")]
type Attributes = std::collections::HashMap<QueueAttributeName, String>;

fn number(attributes: &Attributes, name: &QueueAttributeName) -> Option<u64> {
    attributes.get(name)?.parse().ok()
}

fn policy(text: &str) -> Option<Policy> {
    let policy: serde_json::Value = serde_json::from_str(text).ok()?;
    let after = &policy["maxReceiveCount"];
    // A number, or one in quotes.
    let after = after.as_u64().or_else(|| after.as_str()?.parse().ok())?;
    let arn = policy["deadLetterTargetArn"].as_str()?.to_owned();
    Some(Policy { arn, after: after.try_into().ok()? })
}

/// What the queue says; what it cannot say, from the options.
fn settings(attributes: &Attributes, dead: &DeadLetters, open: &OpenOptions) -> Result<Settings> {
    let mut settings = open.create.clone().unwrap_or_default();
    let visibility = number(attributes, &QueueAttributeName::VisibilityTimeout);
    // A queue whose messages are not hidden from anybody cannot mean that for its workers.
    let visibility = visibility.filter(|seconds| *seconds > 0).unwrap_or(30);
    settings.lease = Duration::from_secs(visibility);
    if let Some(policy) = &dead.policy {
        settings.max_attempts = policy.after;
        settings.max_lost = policy.after;
    }
    settings.max_attempts = open.max_attempts.unwrap_or(settings.max_attempts);
    let created = number(attributes, &QueueAttributeName::CreatedTimestamp);
    settings.created_at = created
        .and_then(|seconds| i64::try_from(seconds).ok())
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    Ok(settings)
}

impl Client {
    /// The URL of a queue, which is made first if it is wanted and not there.
    pub(super) async fn find(
        &self,
        address: &SqsAddress,
        wanted: Option<Wanted<'_>>,
    ) -> Result<String> {
        let SqsAddress::Name(name) = address else { return Ok(address.to_string()) };
        match self.url_of(name, None).await {
            Err(error) if error.kind() == ErrorKind::NotFound => match wanted {
                Some(wanted) => self.create(name, wanted).await,
                None => {
                    let message =
                        format!("there is no queue '{name}' in SQS; make it with 'dfq init'");
                    Err(Error::not_found(message))
                }
            },
            url => url,
        }
    }

    async fn url_of(&self, name: &str, account: Option<&str>) -> Result<String> {
        let call = || {
            let get = self.sdk.get_queue_url().queue_name(name);
            get.set_queue_owner_aws_account_id(account.map(str::to_owned)).send()
        };
        let found = self.call(RequestKind::Manage, "find", Patience::ORDINARY, call).await?;
        let nothing = || Error::not_found(format!("SQS gave no URL for queue '{name}'"));
        found.said.queue_url.ok_or_else(nothing)
    }

    /// The URL of a queue by its ARN, `arn:aws:sqs:<region>:<account>:<name>`.
    pub(super) async fn url_of_arn(&self, arn: &str) -> Result<String> {
        match arn.split(':').collect::<Vec<_>>()[..] {
            [_, _, "sqs", _, account, name] => self.url_of(name, Some(account)).await,
            _ => Err(Error::invalid(format!("'{arn}' is not the ARN of a queue"))),
        }
    }

    async fn create(&self, name: &str, wanted: Wanted<'_>) -> Result<String> {
        let lease = lease_seconds(wanted.settings.lease)?;
        let mut attributes = Attributes::from([
            (QueueAttributeName::VisibilityTimeout, lease.to_string()),
            (QueueAttributeName::MessageRetentionPeriod, RETENTION_SECONDS.to_string()),
        ]);
        if name.ends_with(".fifo") {
            attributes.insert(QueueAttributeName::FifoQueue, "true".to_owned());
        }
        if let Some(url) = wanted.dead_letters {
            let dead = self.attributes(url).await?;
            let nothing = || Error::invalid("the dead-letter queue does not tell its ARN");
            let arn = dead.get(&QueueAttributeName::QueueArn).ok_or_else(nothing)?;
            let after = wanted.settings.max_attempts;
            let policy =
                serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": after });
            attributes.insert(QueueAttributeName::RedrivePolicy, policy.to_string());
        }
        let call = || {
            let create = self.sdk.create_queue().queue_name(name);
            create.set_attributes(Some(attributes.clone())).send()
        };
        match self.call(RequestKind::Manage, "make", Patience::ORDINARY, call).await {
            Ok(made) => made.said.queue_url.ok_or_else(|| Error::not_found("SQS gave no URL")),
            // Somebody else was faster: their settings count.
            Err(refused) if matches!(&*refused.code, "QueueNameExists" | "QueueAlreadyExists") => {
                self.url_of(name, None).await
            }
            Err(refused) => Err(refused.into()),
        }
    }

    pub(super) async fn attributes(&self, url: &str) -> Result<Attributes> {
        let all = QueueAttributeName::All;
        let call =
            || self.sdk.get_queue_attributes().queue_url(url).attribute_names(all.clone()).send();
        let answer = self.call(RequestKind::Manage, "look at", Patience::ORDINARY, call).await?;
        Ok(answer.said.attributes.unwrap_or_default())
    }
}

/// How many messages there are, roughly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) visible: u64,
    pub(super) hidden: u64,
    pub(super) delayed: u64,
}

impl Counts {
    pub(super) fn any(&self) -> bool {
        self.visible + self.hidden + self.delayed > 0
    }
}

impl Core {
    pub(super) async fn counts(&self, url: &str) -> Result<Counts> {
        let attributes = self.client.attributes(url).await?;
        let count = |name| number(&attributes, &name).unwrap_or(0);
        Ok(Counts {
            visible: count(QueueAttributeName::ApproximateNumberOfMessages),
            hidden: count(QueueAttributeName::ApproximateNumberOfMessagesNotVisible),
            delayed: count(QueueAttributeName::ApproximateNumberOfMessagesDelayed),
        })
    }
}
