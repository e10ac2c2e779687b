//! The facts of a record that a trace keeps: its client, as the service finds it, its size, and whether it was sent
//! before.

use std::borrow::Cow;

use watermaster_kafka::{record::Record, redrive};
use watermaster_settings::client_id::{HeaderLookup, NamedSender, NoSchemas, sender_of};
use watermaster_settings::{Service, Source};

/// The header with the number of the attempt that was rejected, from 1: a record that has it was sent again.
const ATTEMPT_HEADER: &str = "throttle-attempt";

/// The sender of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sampled<'r> {
    Client(Cow<'r, str>),
    Anonymous,
    Oversized,
}

/// The facts of a record that a trace keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample<'r> {
    pub sender: Sampled<'r>,
    /// The memory that the record costs while it is delayed.
    pub bytes: u32,
    pub retried: bool,
}

/// Hands the facts about a record to `take`.
pub fn sample<T>(record: Record<'_>, service: &Service, source: &Source, take: impl FnOnce(Sample<'_>) -> T) -> T {
    let size = |cost: usize| u32::try_from(cost).unwrap_or(u32::MAX);
    let Some(contents) = record.contents() else {
        let bytes = size(record.into_stub().cost());
        return take(Sample { sender: Sampled::Oversized, bytes, retried: false });
    };
    let sender = if redrive::is_redriven(&contents, record.origin, service, source) {
        Sampled::Client(Cow::Borrowed(&service.redrive_client))
    } else {
        match sender_of(service, &contents, source, &NoSchemas) {
            NamedSender::Client(name) | NamedSender::NotAllowed(name) => Sampled::Client(name),
            // The service that a simulation is about tells whether the group counts as one client.
            NamedSender::InGroup { group, client } => Sampled::Client(Cow::Owned(format!("{group}/{client}"))),
            NamedSender::Anonymous(_) | NamedSender::Unknown(_) => Sampled::Anonymous,
        }
    };
    let attempt = contents.headers.lookup(ATTEMPT_HEADER);
    let retried = matches!(attempt, HeaderLookup::Once(Some(attempt)) if is_positive(attempt));
    take(Sample { sender, bytes: size(contents.cost()), retried })
}

fn is_positive(text: &[u8]) -> bool {
    std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()).is_some_and(|number| number > 0)
}
