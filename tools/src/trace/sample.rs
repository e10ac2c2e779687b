//! The facts of a record that a trace keeps: its client, as the service finds it, its size, and whether it was sent
//! before.

use std::io::Write;

use watermaster_kafka::{headers, record::Record, redrive};
use watermaster_settings::client_id::{HeaderLookup, NamedSender, NoSchemas, sender_of};
use watermaster_settings::{Service, Source};

use crate::trace_file::{ANONYMOUS, OVERSIZED, TraceRecord, TraceWriter};

/// Returns the facts of a record, whose client gets a number in the trace. Its time and partition are not set.
pub fn sample<W: Write>(
    record: Record<'_>, service: &Service, source: &Source, writer: &mut TraceWriter<W>,
) -> TraceRecord {
    let size = |cost: usize| u32::try_from(cost).unwrap_or(u32::MAX);
    let Some(contents) = record.contents() else {
        return TraceRecord { client: OVERSIZED, bytes: size(record.into_stub().cost()), ..TraceRecord::default() };
    };
    let client = if redrive::is_redriven(&contents, record.origin, service, source) {
        writer.client(&service.redrive_client)
    } else {
        match sender_of(service, &contents, source, &NoSchemas) {
            NamedSender::Client(name) | NamedSender::NotAllowed(name) => writer.client(&name),
            // The service that a simulation is about tells whether the group counts as one client.
            NamedSender::InGroup { group, client } => writer.client(&format!("{group}/{client}")),
            NamedSender::Anonymous(_) | NamedSender::Unknown(_) => ANONYMOUS,
        }
    };
    // The number of the attempt that was rejected, from 1: a record that has it was sent again.
    let attempt = contents.headers.lookup(headers::ATTEMPT);
    let retried = matches!(attempt, HeaderLookup::Once(Some(attempt)) if is_positive(attempt));
    TraceRecord { client, bytes: size(contents.cost()), retried, ..TraceRecord::default() }
}

fn is_positive(text: &[u8]) -> bool {
    std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()).is_some_and(|number| number > 0)
}
