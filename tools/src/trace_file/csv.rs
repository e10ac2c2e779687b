//! A trace from text: lines of `ms,client,partition,bytes`.

use std::collections::HashMap;

use super::{ANONYMOUS, Contents, TraceError, TraceRecord, TraceWriter, TracedPartition};

/// The line that may stand first.
const TITLES: &str = "ms,client,partition,bytes";

/// Turns lines into the bytes of a trace. Lines may be in any order of time. A client id may hold commas; an empty one
/// is anonymous. A partition is any text: the records of a partition are read in order.
pub fn parse(text: &str) -> Result<Vec<u8>, TraceError> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || index == 0 && line.replace(' ', "") == TITLES {
            continue;
        }
        rows.push(row(line).map_err(|problem| TraceError::Csv { line: index + 1, problem })?);
    }
    rows.sort_by_key(|row| row.at_ms);
    let (mut numbers, mut partitions) = (HashMap::new(), Vec::new());
    for row in &rows {
        numbers.entry(row.partition).or_insert_with(|| {
            partitions.push(TracedPartition { topic: row.partition.to_owned(), ..TracedPartition::default() });
            partitions.len() as u32 - 1
        });
    }
    let mut writer = TraceWriter::new(Vec::new(), Contents { partitions, ..Contents::default() })?;
    for Row { at_ms, client, partition, bytes } in rows {
        let client = if client.is_empty() { ANONYMOUS } else { writer.client(client) };
        writer.push(TraceRecord { at_ms, client, partition: numbers[partition], bytes, retried: false })?;
    }
    Ok(writer.finish()?.0)
}

struct Row<'t> {
    at_ms: u64,
    client: &'t str,
    partition: &'t str,
    bytes: u32,
}

fn row(line: &str) -> Result<Row<'_>, &'static str> {
    let (at_ms, rest) = line.split_once(',').ok_or("it has no comma")?;
    let (rest, bytes) = rest.rsplit_once(',').ok_or("it has one comma")?;
    let (client, partition) = rest.rsplit_once(',').ok_or("it has two commas")?;
    Ok(Row {
        at_ms: at_ms.trim().parse().map_err(|_| "the first column is no whole number of milliseconds")?,
        client: client.trim(),
        partition: partition.trim(),
        bytes: bytes.trim().parse().map_err(|_| "the last column is no size in bytes")?,
    })
}
