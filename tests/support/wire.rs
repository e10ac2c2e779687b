//! Requests of Kafka's protocol that rdkafka does not offer, in versions without tagged fields.

use std::io::{Read as _, Result, Write as _};
use std::net::TcpStream;

/// A request.
pub struct Request(Vec<u8>);

impl Request {
    /// Begins the request with this key and version; `client` is the client id.
    pub fn new(key: i16, version: i16, client: &str) -> Request {
        let mut request = Request(Vec::new());
        request.bytes(&key.to_be_bytes()).bytes(&version.to_be_bytes());
        // The correlation id.
        request.bytes(&1_i32.to_be_bytes()).text(client);
        request
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Request {
        self.0.extend(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Request {
        let length = i16::try_from(text.len()).expect("a short text");
        self.bytes(&length.to_be_bytes()).bytes(text.as_bytes())
    }

    /// Sends the request, and returns the reply from its correlation id on.
    pub fn ask(&self, mut stream: TcpStream) -> Result<Vec<u8>> {
        stream.write_all(&(self.0.len() as i32).to_be_bytes())?;
        stream.write_all(&self.0)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut reply = vec![0; i32::from_be_bytes(length) as usize];
        stream.read_exact(&mut reply)?;
        Ok(reply)
    }
}
