//! Where a queue in SQS is: a name, or a URL as SQS gives them.

use std::fmt;

use crate::error::{Error, Result};

/// The longest name of a queue.
const MAX_NAME: usize = 80;

/// A queue in SQS.
///
/// ```
/// use dfq::address::SqsAddress;
/// let by_name = SqsAddress::parse("sqs://jobs.fifo")?;
/// assert_eq!(by_name, SqsAddress::Name("jobs.fifo".into()));
/// assert_eq!(by_name.to_string(), "sqs://jobs.fifo");
/// let by_url = SqsAddress::parse("https://sqs.eu-north-1.amazonaws.com/123456789012/jobs")?;
/// assert_eq!(by_url.name(), "jobs");
/// assert!(SqsAddress::parse("sqs://two/parts").is_err());
/// # Ok::<(), dfq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqsAddress {
    /// Of the account and region at hand.
    Name(String),
    /// Wherever it is.
    Url(String),
}

impl SqsAddress {
    /// `sqs://name`, a queue's URL, or a bare name.
    pub fn parse(text: &str) -> Result<Self> {
        let url = text.starts_with("https://") || text.starts_with("http://");
        let address = match text.strip_prefix("sqs://") {
            None if url => Self::Url(text.trim_end_matches('/').to_owned()),
            None => Self::Name(text.to_owned()),
            Some(name) => Self::Name(name.trim_end_matches('/').to_owned()),
        };
        let name = address.name();
        let stem = name.strip_suffix(".fifo").unwrap_or(name);
        let letters = stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if stem.is_empty() || name.len() > MAX_NAME || !letters {
            return Err(Error::invalid(format!(
                "'{}' is not a queue in SQS: write sqs://NAME (letters, digits, '-' and '_', at most \
                 {MAX_NAME}, '.fifo' at the end if it is one) or the queue's URL",
                text.escape_debug()
            )));
        }
        Ok(address)
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Url(url) => {
                let path = url.split_once("://").map_or("", |(_, rest)| rest);
                path.split_once('/').map_or("", |(_, path)| path.rsplit('/').next().unwrap_or(""))
            }
        }
    }

    /// Endpoint and region, as far as a URL tells them.
    pub(crate) fn endpoint_and_region(&self) -> (Option<String>, Option<String>) {
        let Self::Url(url) = self else { return (None, None) };
        let Some((scheme, rest)) = url.split_once("://") else { return (None, None) };
        let host = rest.split('/').next().unwrap_or_default();
        let endpoint = format!("{scheme}://{host}");
        let parts: Vec<&str> = host.split('.').collect();
        let region = |region: &str| Some(region.to_owned());
        match parts[..] {
            ["sqs", at, "amazonaws", ..] => (None, region(at)),
            [_, "sqs", at, "vpce", "amazonaws", ..] => (Some(endpoint), region(at)),
            _ => (Some(endpoint), None),
        }
    }
}

impl fmt::Display for SqsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "sqs://{name}"),
            Self::Url(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_to_ask() {
        let parts = |url: &str| {
            let (endpoint, region) = SqsAddress::parse(url).unwrap().endpoint_and_region();
            (endpoint.unwrap_or_default(), region.unwrap_or_default())
        };
        let (aws, own) = ("https://sqs.eu-north-1.amazonaws.com/1/q", "http://127.0.0.1:4566/1/q");
        assert_eq!(parts(aws), (String::new(), "eu-north-1".into()));
        assert_eq!(parts(own), ("http://127.0.0.1:4566".into(), String::new()));
        assert_eq!(parts("sqs://q"), Default::default());
        let vpc = "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com/1/q";
        assert_eq!(
            parts(vpc),
            ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com".into(), "eu-west-1".into())
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let long = format!("sqs://{}", "x".repeat(81));
        for text in
            ["", "sqs://", "sqs://.fifo", "sqs://a b", "https://host", "http://h/", "a.b", &long]
        {
            assert!(SqsAddress::parse(text).is_err(), "{text}");
        }
    }
}
