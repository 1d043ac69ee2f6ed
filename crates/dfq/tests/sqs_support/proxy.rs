//! A server between us and the real one, where answers get lost, requests are refused,
//! and answers are made up.

#![allow(clippy::disallowed_methods, reason = "real servers and clients run in real time")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// What becomes of a request.
pub(crate) enum Act {
    /// It is passed on, and so is its answer.
    Pass,
    /// It is carried out, but nobody hears of it.
    LoseAnswer,
    /// It is refused with this status and error code.
    Refuse(u16, &'static str),
    /// It is not passed on. This JSON is the answer.
    Answer(&'static str),
}

/// Starts a proxy to `endpoint` that asks `judge` about every request, by the name of its operation and
/// its body. Answers its own endpoint.
pub(crate) fn between(
    endpoint: &str,
    judge: impl Fn(&str, &str) -> Act + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let upstream = endpoint.trim_start_matches("http://").to_owned();
    let judge = Arc::new(judge);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (upstream, judge) = (upstream.clone(), Arc::clone(&judge));
            std::thread::spawn(move || serve(client, &upstream, &*judge));
        }
    });
    address
}

/// One request for each connection, so that nobody has to tell where an answer ends.
fn serve(mut client: TcpStream, upstream: &str, judge: &dyn Fn(&str, &str) -> Act) -> Option<()> {
    let (head, body) = read_request(&mut client)?;
    let operation = header(&head, "x-amz-target")?.rsplit('.').next()?.to_owned();
    let act = judge(&operation, &body);
    let own = match act {
        Act::Refuse(status, code) => {
            let error = format!("com.amazonaws.sqs#{code}");
            Some((status, format!("{{\"__type\":\"{error}\",\"message\":\"because\"}}")))
        }
        Act::Answer(json) => Some((200, json.to_owned())),
        Act::Pass | Act::LoseAnswer => None,
    };
    if let Some((status, body)) = own {
        let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/x-amz-json-1.0\r\n");
        let answer =
            format!("{head}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        return client.write_all(answer.as_bytes()).ok();
    }
    let mut server = TcpStream::connect(upstream).ok()?;
    let (first, rest) = head.split_once("\r\n")?;
    let kept: Vec<&str> =
        rest.lines().filter(|line| !line.to_lowercase().starts_with("connection:")).collect();
    let head = format!("{first}\r\nconnection: close\r\n{}\r\n\r\n", kept.join("\r\n"));
    server.write_all(head.as_bytes()).ok()?;
    server.write_all(body.as_bytes()).ok()?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).ok()?;
    match act {
        Act::LoseAnswer => None,
        _ => client.write_all(&answer).ok(),
    }
}

fn read_request(client: &mut TcpStream) -> Option<(String, String)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65536]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length: usize = header(head, "content-length")?.parse().ok()?;
            if bytes.len() - (head.len() + 4) >= length {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        match client.read(&mut chunk).ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
