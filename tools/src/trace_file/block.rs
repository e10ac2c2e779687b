//! The columns of a block.

use super::{Contents, FIRST_CLIENT, TraceRecord};

/// Takes a varint off the front; `None` if it does not end or is too large.
#[inline]
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = postcard::take_from_bytes(bytes).ok()?;
    *bytes = rest;
    Some(number)
}

/// Encodes records, which are in order of time.
pub(super) fn encode(records: &[TraceRecord]) -> Vec<u8> {
    let first = records.first().map_or(0, |record| record.at_ms);
    let before = [first].into_iter().chain(records.iter().map(|record| record.at_ms));
    let steps = records.iter().zip(before).map(|(record, before)| record.at_ms - before);
    let columns: [fn(&TraceRecord) -> u32; 3] =
        [|record| record.client, |record| record.partition, |record| record.bytes];
    let columns = columns.iter().flat_map(|column| records.iter().map(move |record| u64::from(column(record))));
    let mut bytes = Vec::with_capacity(6 * records.len());
    for number in [first].into_iter().chain(steps).chain(columns) {
        bytes = postcard::to_extend(&number, bytes).expect("memory takes each number");
    }
    // One bit for each record, and none if no record was retried.
    if records.iter().any(|record| record.retried) {
        let bit = |byte: u8, record: &TraceRecord| byte << 1 | u8::from(record.retried);
        bytes.extend(records.chunks(8).map(|chunk| chunk.iter().rev().fold(0, bit)));
    }
    bytes
}

/// Decodes a block of this many records into `records`; `None` if it is malformed, or names what `contents` lacks.
pub(super) fn decode(
    mut bytes: &[u8], count: usize, contents: &Contents, records: &mut Vec<TraceRecord>,
) -> Option<()> {
    records.clear();
    // A record takes at least four bytes.
    if count > bytes.len() {
        return None;
    }
    let mut at_ms = take(&mut bytes)?;
    for _ in 0..count {
        at_ms = at_ms.checked_add(take(&mut bytes)?)?;
        records.push(TraceRecord { at_ms, ..TraceRecord::default() });
    }
    let clients = FIRST_CLIENT as u64 + contents.clients.len() as u64;
    let partitions = contents.partitions.len() as u64;
    for record in records.iter_mut() {
        record.client = take(&mut bytes).filter(|client| *client < clients)? as u32;
    }
    for record in records.iter_mut() {
        record.partition = take(&mut bytes).filter(|partition| *partition < partitions)? as u32;
    }
    for record in records.iter_mut() {
        record.bytes = u32::try_from(take(&mut bytes)?).ok()?;
    }
    if bytes.is_empty() {
        return Some(());
    }
    if bytes.len() != count.div_ceil(8) {
        return None;
    }
    for (chunk, byte) in records.chunks_mut(8).zip(bytes) {
        for (at, record) in chunk.iter_mut().enumerate() {
            record.retried = byte >> at & 1 == 1;
        }
    }
    Some(())
}
