//! Writes a trace.

use std::collections::HashMap;
use std::io::Write;

use super::{ANONYMOUS, BLOCK_RECORDS, BlockFacts, Contents, FIRST_CLIENT, MAGIC, OVERSIZED, TraceError};
use super::{TraceRecord, TracedPartition, block, named};

/// Writes records in order of time. Nothing can be read of the file before [`finish`](TraceWriter::finish).
pub struct TraceWriter<W: Write> {
    output: W,
    contents: Contents,
    numbers: HashMap<String, u32>,
    records: Vec<TraceRecord>,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace. `contents` states its service, its partitions, and whether it gets hashes in place of ids.
    pub fn new(mut output: W, contents: Contents) -> Result<TraceWriter<W>, TraceError> {
        output.write_all(MAGIC)?;
        Ok(TraceWriter { output, contents, numbers: HashMap::new(), records: Vec::new() })
    }

    /// Returns the number of the client with this id, a new one if it is the first of its records.
    pub fn client(&mut self, id: &str) -> u32 {
        if let Some(number) = self.numbers.get(id) {
            return *number;
        }
        let number = FIRST_CLIENT + self.contents.clients.len() as u32;
        self.contents.clients.push(named(id, self.contents.hashed_ids));
        self.numbers.insert(id.to_owned(), number);
        number
    }

    /// Gives access to the facts about a partition.
    pub fn partition(&mut self, index: u32) -> &mut TracedPartition {
        &mut self.contents.partitions[index as usize]
    }

    /// Adds a record. A time below that of the record before counts as that one's.
    pub fn push(&mut self, mut record: TraceRecord) -> Result<(), TraceError> {
        debug_assert!(matches!(record.client, ANONYMOUS | OVERSIZED) || self.contents.name(record.client).is_some());
        let contents = &mut self.contents;
        if contents.blocks.is_empty() && self.records.is_empty() {
            contents.first_ms = record.at_ms;
        }
        record.at_ms = record.at_ms.max(contents.last_ms);
        contents.last_ms = record.at_ms;
        contents.retried += u64::from(record.retried);
        contents.partitions[record.partition as usize].records += 1;
        self.records.push(record);
        if self.records.len() == BLOCK_RECORDS { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<(), TraceError> {
        let bytes = block::encode(&self.records);
        let checksum = crc32fast::hash(&bytes).to_le_bytes();
        self.output.write_all(&checksum)?;
        self.output.write_all(&bytes)?;
        let facts = BlockFacts { bytes: (checksum.len() + bytes.len()) as u64, records: self.records.len() as u32 };
        self.contents.blocks.push(facts);
        self.records.clear();
        Ok(())
    }

    /// Writes the last records and the footer. Returns the output, and the footer for people.
    pub fn finish(mut self) -> Result<(W, Contents), TraceError> {
        if !self.records.is_empty() {
            self.end_block()?;
        }
        let footer = serde_json::to_vec(&self.contents).map_err(std::io::Error::from)?;
        let length = u32::try_from(footer.len()).map_err(std::io::Error::other)?;
        self.output.write_all(&footer)?;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&crc32fast::hash(&footer).to_le_bytes())?;
        self.output.write_all(MAGIC)?;
        self.output.flush()?;
        Ok((self.output, self.contents))
    }
}
