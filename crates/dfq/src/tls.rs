//! TLS for all who speak it: rustls, with ring for its cryptography (decision 2).
//!
//! Both HTTP clients below us could bring a library of their own. One is enough, and this one is built in seconds.

#[cfg(feature = "aws")]
pub(crate) use self::aws::{aws_http_client, aws_providers};

/// Sees to it that other clients find the same library. A program that has chosen another keeps it.
#[cfg(feature = "bucket")]
pub(crate) fn provide() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(feature = "aws")]
mod aws {
    use aws_config::provider_config::ProviderConfig;
    use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
    use aws_smithy_runtime_api::client::http::SharedHttpClient;

    /// What the AWS crates send their requests with.
    pub(crate) fn aws_http_client() -> SharedHttpClient {
        let ring = Provider::Rustls(CryptoMode::Ring);
        aws_smithy_http_client::Builder::new().tls_provider(ring).build_https()
    }

    /// How what the AWS crates find out over the network, such as from the machine's own service, is asked for.
    pub(crate) fn aws_providers() -> ProviderConfig {
        ProviderConfig::without_region().with_http_client(aws_http_client())
    }
}
