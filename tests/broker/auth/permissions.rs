//! The permissions that docs/guarantees.md lists, granted with Kafka's own request.

use std::net::TcpStream;

use crate::{rig::Rig, support::broker::Broker, support::wire::Request};

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
    add(Kind::Topic, &format!("{group}.seats"), &[Read, Write, Describe, Create]);
    all
}

/// Grants the documented permissions to a user.
pub fn grant_required(broker: &Broker, user: &str, rig: &Rig) {
    grant(broker, &required(rig).iter().map(|permission| (user, permission)).collect::<Vec<_>>());
}

/// Grants permissions to users.
pub fn grant(broker: &Broker, grants: &[(&str, &Permission)]) {
    let mut request = Request::new(CREATE_ACLS, VERSION, "grants");
    request.bytes(&(grants.len() as i32).to_be_bytes());
    for (user, Permission { kind, name, operation }) in grants {
        let (literal, prefixed) = (3, 4);
        let pattern = if *kind == Kind::TransactionalId { prefixed } else { literal };
        request.bytes(&[*kind as u8]).text(name).bytes(&[pattern]);
        request.text(&format!("User:{user}")).text("*").bytes(&[*operation as u8, ALLOW]);
    }
    let stream = TcpStream::connect(&broker.bootstrap).expect("the broker listens");
    let reply = request.ask(stream).expect("the broker answers");
    // Correlation id, throttle time and number of results; then an error code and an empty text for each.
    let done = reply[12..].chunks(4).all(|result| result[..2] == [0, 0]);
    assert!(done && reply.len() == 12 + 4 * grants.len(), "{reply:?}");
}
