//! A narrow line to a server: all that is sent up shares it, a piece at a time and in turn.
//!
//! Kept true: pieces pass one after the other, whoever they belong to, so many uploads at once make each of them
//! slow and none of them faster. What passes is told to the test, which lets time go by accordingly: the line is as
//! slow as the test says on the test's own clock, however fast or slow the machine is. Answers come back at once.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};

/// What passes at a time, and how long that takes on the machine's clock at the least: others are to have
/// time for an answer before the test's clock has moved on by much.
const PIECE: usize = 16 * 1024;
const PIECE_TAKES: Duration = Duration::from_millis(2);

type OnPiece = dyn Fn(usize) + Send + Sync;

/// A line to a server. Dropping it ends it.
pub struct Link {
    address: SocketAddr,
    line: Arc<Line>,
    accepting: JoinHandle<Infallible>,
}

struct Line {
    server: SocketAddr,
    on_piece: Box<OnPiece>,
    /// Whoever holds this sends.
    turn: Mutex<()>,
    /// How many bytes it carries before it is cut.
    left: AtomicU64,
    cut: watch::Sender<bool>,
    /// How many bytes it carries before it is held up, and whether it is.
    before_hold: AtomicU64,
    held: watch::Sender<bool>,
}

impl Link {
    /// A line to the server at this endpoint. `on_piece` is told how many bytes have passed.
    ///
    /// # Errors
    /// If the endpoint is not an address, or no port is free.
    pub async fn start(
        endpoint: &str,
        on_piece: impl Fn(usize) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let server = endpoint.trim_start_matches("http://").parse().map_err(io::Error::other)?;
        let socket = TcpSocket::new_v4()?;
        // What waits in front of the line is small, or a client would believe that all of it is sent.
        socket.set_recv_buffer_size(PIECE as u32)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(1024)?;
        let (left, turn) = (AtomicU64::new(u64::MAX), Mutex::new(()));
        let (on_piece, cut) = (Box::new(on_piece), watch::Sender::new(false));
        let (before_hold, held) = (AtomicU64::new(u64::MAX), watch::Sender::new(false));
        let line = Arc::new(Line { server, on_piece, turn, left, cut, before_hold, held });
        let (address, shared) = (listener.local_addr()?, Arc::clone(&line));
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                if let Ok((client, _)) = listener.accept().await {
                    let line = Arc::clone(&shared);
                    connections.spawn(async move { line.connect(client).await });
                }
            }
        });
        Ok(Self { address, line, accepting })
    }

    /// Where clients send their requests: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Cuts it once so many more bytes have passed. Then every connection ends, and so does every new one.
    pub fn cut_after(&self, bytes: u64) {
        self.line.left.store(bytes, Ordering::SeqCst);
    }

    /// Lets nothing pass once so many more bytes have passed, until [`Link::go_on`].
    pub fn hold_after(&self, bytes: u64) {
        self.line.held.send_replace(true);
        self.line.before_hold.store(bytes, Ordering::SeqCst);
    }

    /// Lets all pass again.
    pub fn go_on(&self) {
        self.line.before_hold.store(u64::MAX, Ordering::SeqCst);
        self.line.held.send_replace(false);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Line {
    async fn connect(&self, client: TcpStream) {
        let mut cut = self.cut.subscribe();
        let exchange = async {
            let server = TcpStream::connect(self.server).await?;
            // Whichever ends first ends the other: each client sends all of a request before it hears the end.
            tokio::select! {
                up = self.up(&client, &server) => up,
                down = down(&server, &client) => down,
            }
        };
        tokio::select! {
            biased;
            _ = cut.wait_for(|cut| *cut) => {}
            _ = exchange => {}
        }
    }

    async fn up(&self, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            client.readable().await?;
            let turn = self.turn.lock().await;
            let size = match client.try_read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(size) => size,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let left = self.left.load(Ordering::SeqCst);
            if left < size as u64 {
                self.cut.send_replace(true);
                return Ok(());
            }
            if left < u64::MAX {
                self.left.store(left - size as u64, Ordering::SeqCst);
            }
            match self.before_hold.load(Ordering::SeqCst) {
                u64::MAX => {}
                left if left < size as u64 => {
                    let _ = self.held.subscribe().wait_for(|held| !held).await;
                }
                left => self.before_hold.store(left - size as u64, Ordering::SeqCst),
            }
            // A small piece takes as much less.
            tokio::time::sleep(PIECE_TAKES.mul_f64(size as f64 / PIECE as f64)).await;
            (self.on_piece)(size);
            // It has passed. A server that takes nothing more of this upload does not keep the others waiting.
            drop(turn);
            write(server, &piece[..size]).await?;
        }
    }
}

async fn down(server: &TcpStream, client: &TcpStream) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        server.readable().await?;
        match server.try_read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(size) => write(client, &piece[..size]).await?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(size) => bytes = &bytes[size..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
