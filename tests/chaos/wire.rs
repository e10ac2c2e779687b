//! The FindCoordinator request of Kafka's protocol, which rdkafka does not offer.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::wire::Request;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const FIND_COORDINATOR: i16 = 10;
/// The version that has the type of the key, but no tagged fields.
const VERSION: i16 = 2;

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinator {
    Group = 0,
    Transaction = 1,
}

/// Asks the broker on this port for the id of the broker that coordinates `key`.
pub fn find_coordinator(port: u16, kind: Coordinator, key: &str) -> Option<i32> {
    parse(&ask(port, kind, key)?)
}

/// Tells whether the broker on this port answers.
pub fn answers(port: u16) -> bool {
    ask(port, Coordinator::Group, "anything").is_some()
}

fn ask(port: u16, kind: Coordinator, key: &str) -> Option<Vec<u8>> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), REQUEST_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
    let mut request = Request::new(FIND_COORDINATOR, VERSION, "chaos");
    request.text(key).bytes(&[kind as u8]).ask(stream).ok()
}

/// Reads the node id from a reply: correlation id, throttle time, error, error text, node id.
fn parse(reply: &[u8]) -> Option<i32> {
    let short = |at: usize| Some(i16::from_be_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    if short(8)? != 0 {
        return None;
    }
    // A null text has the length -1.
    let text = usize::try_from(short(10)?).unwrap_or(0);
    let node = 12 + text;
    Some(i32::from_be_bytes(reply.get(node..node + 4)?.try_into().ok()?))
}
