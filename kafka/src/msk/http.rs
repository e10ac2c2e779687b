//! The least of HTTP: one request with a short answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use openssl::ssl::{SslConnector, SslMethod};
use serde_json::Value;

use super::MskError;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Returns the JSON that is at `url`.
pub(super) fn get(url: &str, headers: &[(&str, &str)]) -> Result<Value, MskError> {
    parse(url, &request("GET", url, headers, TIMEOUT)?)
}

pub(super) fn parse(url: &str, answer: &str) -> Result<Value, MskError> {
    serde_json::from_str(answer).map_err(|error| problem(url, &error))
}

/// Returns the body of an answer. Each step, such as the connection, may take as long as `timeout`.
pub(super) fn request(
    method: &str, url: &str, headers: &[(&str, &str)], timeout: Duration,
) -> Result<String, MskError> {
    ask(method, url, headers, timeout).map_err(|error| problem(url, &*error))
}

/// Names the URL without its query, which may hold a secret.
fn problem(url: &str, error: &dyn Error) -> MskError {
    let shown = url.split('?').next().unwrap_or_default();
    MskError::Answer { url: shown.to_owned(), problem: error.to_string() }
}

fn ask(method: &str, url: &str, headers: &[(&str, &str)], timeout: Duration) -> Result<String, Box<dyn Error>> {
    let (scheme, rest) = url.split_once("://").ok_or("is no URL")?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let port = if scheme == "https" { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, text)) if !text.ends_with(']') => (host, text.parse()?),
        _ => (authority, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = connect(host, port, timeout)?;
    // A server may reject a PUT without a length.
    let length = if method == "PUT" { "Content-Length: 0\r\n" } else { "" };
    let mut request = format!("{method} {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n{length}");
    headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    request += "\r\n";
    let answer = if scheme == "https" {
        let connector = SslConnector::builder(SslMethod::tls_client())?.build();
        exchange(connector.connect(host, stream)?, &request)?
    } else {
        exchange(stream, &request)?
    };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("gives no HTTP answer")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("answers {status}: {}", body.trim()).into());
    }
    Ok(body.to_owned())
}

fn connect(host: &str, port: u16, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut error = std::io::Error::other("no address is known for the host");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

fn exchange(mut stream: impl Read + Write, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
