//! The least of HTTP: one GET with a short answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use openssl::ssl::{SslConnector, SslMethod};
use serde_json::Value;

use super::TokenError;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Returns the JSON that is at `url`. Errors name it without its query, which may hold a secret.
pub(super) fn get(url: &str, headers: &[(&str, &str)]) -> Result<Value, TokenError> {
    let shown = url.split('?').next().unwrap_or_default();
    ask(url, headers).map_err(|error| TokenError::Answer { url: shown.to_owned(), problem: error.to_string() })
}

fn ask(url: &str, headers: &[(&str, &str)]) -> Result<Value, Box<dyn Error>> {
    let (scheme, rest) = url.split_once("://").ok_or("is no URL")?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let port = if scheme == "https" { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, text)) if !text.ends_with(']') => (host, text.parse()?),
        _ => (authority, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = connect(host, port)?;
    let mut request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n");
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
    Ok(serde_json::from_str(body)?)
}

fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut error = std::io::Error::other("no address is known for the host");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
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
