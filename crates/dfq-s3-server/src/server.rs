//! A running server: its socket, its settings, its end. Dropping it ends it, so a test that fails
//! leaves nothing running.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::access::{Credential, Guard, Rules};
use crate::faults::{Dice, Fault, Faults};
use crate::front;
use crate::lies::Lies;
use crate::meter::Meter;
use crate::request::RequestInfo;
use crate::service::Service;
use crate::shared::{Script, Shared, read, write};
use crate::store::Object;

/// How a server starts; all but the address can be changed while it runs.
#[derive(Clone)]
pub struct Options {
    /// The port, or 0 for any that is free.
    pub port: u16,
    /// A bucket that exists from the start.
    pub bucket: String,
    /// The credentials that are accepted.
    pub credential: Credential,
    /// What goes wrong.
    pub faults: Faults,
    /// What is lied about.
    pub lies: Lies,
    /// What is denied.
    pub rules: Rules,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            bucket: "dfq-test".to_owned(),
            credential: Credential::new("test-access-key", "test-secret-key"),
            faults: Faults::default(),
            lies: Lies::default(),
            rules: Rules::default(),
        }
    }
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    bucket: String,
    credential: Credential,
    accepting: JoinHandle<Infallible>,
}

impl Server {
    /// Starts on 127.0.0.1; it answers as soon as this returns.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        // A bucket of that name cannot exist yet.
        let _ = shared.store.create_bucket(&options.bucket, options.lies.now());
        let mut builder = S3ServiceBuilder::new(Service(shared.clone()));
        builder.set_auth(Guard(shared.clone()));
        builder.set_access(Guard(shared.clone()));
        let accepting = tokio::spawn(accept(listener, shared.clone(), builder.build()));
        let (bucket, credential) = (options.bucket, options.credential);
        let server = Self { shared, address, bucket, credential, accepting };
        server.set_credentials(vec![server.credential.clone()]);
        server.set_faults(options.faults);
        server.set_lies(options.lies);
        server.set_rules(options.rules);
        Ok(server)
    }

    /// Where it answers: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The access key it started with.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.credential.access_key
    }

    /// The secret key it started with.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        &self.credential.secret_key
    }

    /// The bucket it started with.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What has been asked and answered so far.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.shared.meter
    }

    /// What goes wrong from the next request on; chance starts again at the seed.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.direct(|director| director.dice = Dice::new(faults));
    }

    /// Faults exactly the requests that the test chooses. Whatever `choose` returns goes before what
    /// chance would have done. Numbers in [`RequestInfo::nth`] start again at 1.
    pub fn on(&self, choose: impl Fn(&RequestInfo) -> Option<Fault> + Send + 'static) {
        self.shared.direct(|director| director.script = Some(Script::new(Box::new(choose))));
    }

    /// Forgets the script of [`Server::on`].
    pub fn off(&self) {
        self.shared.direct(|director| director.script = None);
    }

    /// What is lied about from the next request on.
    pub fn set_lies(&self, lies: Lies) {
        write(&self.shared.lies, lies);
    }

    /// What is denied from the next request on.
    pub fn set_rules(&self, rules: Rules) {
        write(&self.shared.rules, rules);
    }

    /// The credentials that are known from the next request on.
    pub fn set_credentials(&self, credentials: Vec<Credential>) {
        write(&self.shared.credentials, credentials);
    }

    /// Lets all credentials known now expire: whoever uses them is told ExpiredToken.
    pub fn expire_credentials(&self) {
        let mut credentials = read(&self.shared.credentials).clone();
        for credential in &mut credentials {
            credential.expired = true;
        }
        self.set_credentials(credentials);
    }

    /// All objects of the bucket it started with.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.shared.store.snapshot(&self.bucket)
    }

    /// Puts an object into the bucket it started with, under whatever name.
    pub fn put(&self, key: &str, content: &[u8]) {
        let object = Object::new(Bytes::copy_from_slice(content));
        let _ = self.shared.store.put(&self.bucket, key, object, &[], SystemTime::now);
    }

    /// Closes the socket and every connection. Requests that are being executed may still finish.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Takes connections for ever; aborting it drops the set, which aborts them all.
async fn accept(listener: TcpListener, shared: Arc<Shared>, service: S3Service) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Errors of accept are those of one connection, or of a lack that passes.
            taken = listener.accept() => match taken {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, shared.clone(), service.clone()));
                }
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>, service: S3Service) {
    // Small answers must not wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| front::answer(shared.clone(), service.clone(), request));
    // An error here is a client that hung up, or one we hung up on.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}
