//! The permissions that docs/guarantees.md lists, granted with Kafka's own request.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::{rig::Rig, support::broker::Broker};

const CREATE_ACLS: i16 = 30;
/// The last version without tagged fields.
const VERSION: i16 = 1;
const ALLOW: u8 = 3;

/// The type of a resource, by Kafka's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Topic = 2,
    Group = 3,
    TransactionalId = 5,
}

/// An operation, by Kafka's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read = 3,
    Write = 4,
    Create = 5,
    Describe = 8,
}

/// An operation on a resource. A transactional id stands for all that begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    pub kind: Kind,
    pub name: String,
    pub operation: Operation,
}

/// Returns the permissions that the program needs for the service of a rig with the scope `group`.
pub fn required(rig: &Rig) -> Vec<Permission> {
    use Operation::{Create, Describe, Read, Write};
    let mut all = Vec::new();
    let mut add = |kind, name: &str, operations: &[Operation]| {
        let of = |&operation| Permission { kind, name: name.to_owned(), operation };
        all.extend(operations.iter().map(of));
    };
    for source in &rig.sources {
        add(Kind::Topic, source, &[Read, Describe]);
    }
    for output in [&rig.target, &rig.dead_letter] {
        add(Kind::Topic, output, &[Write, Describe]);
    }
    let group = format!("{}.kyc", rig.name);
    add(Kind::Group, &group, &[Read, Describe]);
    add(Kind::TransactionalId, &format!("{group}."), &[Write, Describe]);
    add(Kind::Topic, &format!("{group}.control"), &[Read, Write, Describe, Create]);
    all
}

/// Grants permissions to users.
pub fn grant(broker: &Broker, grants: &[(&str, &Permission)]) {
    let mut request = Vec::new();
    request.extend(CREATE_ACLS.to_be_bytes());
    request.extend(VERSION.to_be_bytes());
    request.extend(1_i32.to_be_bytes());
    text(&mut request, "grants");
    request.extend((grants.len() as i32).to_be_bytes());
    for (user, Permission { kind, name, operation }) in grants {
        let (literal, prefixed) = (3, 4);
        request.push(*kind as u8);
        text(&mut request, name);
        request.push(if *kind == Kind::TransactionalId { prefixed } else { literal });
        text(&mut request, &format!("User:{user}"));
        text(&mut request, "*");
        request.extend([*operation as u8, ALLOW]);
    }
    let reply = ask(&broker.bootstrap, &request).expect("the broker answers");
    // Correlation id, throttle time and number of results; then an error code and an empty text for each.
    let done = reply[12..].chunks(4).all(|result| result[..2] == [0, 0]);
    assert!(done && reply.len() == 12 + 4 * grants.len(), "{reply:?}");
}

fn text(request: &mut Vec<u8>, text: &str) {
    request.extend((text.len() as i16).to_be_bytes());
    request.extend(text.as_bytes());
}

fn ask(address: &str, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&(request.len() as i32).to_be_bytes())?;
    stream.write_all(request)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut reply = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}
