//! The trace file: when each record came, from which client, in which partition, and how large it was.
//!
//! ```text
//! WMTRACE1 | block … block | footer | length and checksum of the footer | WMTRACE1
//! block  = crc32 | time of the first record | columns: Δt, client, partition, bytes, retried
//! footer = JSON: Contents
//! ```
//!
//! A block holds up to [`BLOCK_RECORDS`] records by column. Numbers are varints (LEB128), so a record takes about five
//! bytes. Times are milliseconds since 1970 and never fall. Names stand in the footer only. Every byte is covered by a
//! checksum, and an error names the damaged part.
//!
//! - `block`: the columns; `writer`, [`reader`]: the file; [`csv`]: a trace from text
//!
//! The module knows no Kafka and no clock.

mod block;
pub mod csv;
pub mod reader;
mod writer;

#[cfg(test)]
mod tests;

use std::io;

use serde::{Deserialize, Serialize};
use watermaster_api::rfc3339;

pub use reader::TraceReader;
pub use writer::TraceWriter;

/// The first and the last bytes of a trace. The last character is the version of the format.
const MAGIC: &[u8; 8] = b"WMTRACE1";
/// The most records of a block.
pub const BLOCK_RECORDS: usize = 65_536;
/// The bytes of a checksum.
const CHECKSUM_BYTES: usize = 4;

/// The client of a record that names none.
pub const ANONYMOUS: u32 = 0;
/// The client of a record with more headers than are read.
pub const OVERSIZED: u32 = 1;
/// The number of the first client that has a name.
pub const FIRST_CLIENT: u32 = 2;

/// A record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceRecord {
    /// Milliseconds since 1970: the largest timestamp of its partition so far.
    pub at_ms: u64,
    /// [`ANONYMOUS`], [`OVERSIZED`], or [`FIRST_CLIENT`] and the index of the client's name.
    pub client: u32,
    /// The index into [`Contents::partitions`].
    pub partition: u32,
    /// The memory that the record costs while it is delayed.
    pub bytes: u32,
    /// The record had been rejected before: its header `throttle-attempt` is above 1.
    pub retried: bool,
}

/// The footer of a trace: names, and facts about the whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Contents {
    /// The service that the records were read for; empty if the trace was not read from Kafka.
    pub service: String,
    /// The names of clients are hashes of their ids.
    pub hashed_ids: bool,
    pub clients: Vec<String>,
    pub partitions: Vec<TracedPartition>,
    pub retried: u64,
    pub blocks: Vec<BlockFacts>,
    /// Milliseconds since 1970; zero if there is no record.
    pub first_ms: u64,
    pub last_ms: u64,
}

/// A source partition of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TracedPartition {
    pub topic: String,
    pub number: i32,
    pub first_offset: i64,
    pub records: u64,
    /// Offsets between the first and the last record that had no record: removed ones, or markers of transactions.
    pub gaps: u64,
    /// Records with a timestamp more than a second below an earlier one of the partition.
    pub late: u64,
    /// Timestamps are those of the broker (`LogAppendTime`), not of the producers.
    pub append_time: bool,
}

/// The size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockFacts {
    /// All bytes of the block, its checksum included.
    pub bytes: u64,
    pub records: u32,
}

impl Contents {
    /// Returns the number of all records.
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.records)).sum()
    }

    /// Sums up a fact of all partitions.
    pub fn sum(&self, fact: fn(&TracedPartition) -> u64) -> u64 {
        self.partitions.iter().map(fact).sum()
    }

    /// Says for people how much the trace holds, and of which time.
    pub fn extent(&self) -> String {
        let (records, clients, partitions) = (self.records(), self.clients.len(), self.partitions.len());
        let (from, to) = (rfc3339(self.first_ms), rfc3339(self.last_ms));
        format!("{records} records of {clients} clients in {partitions} partitions, {from} to {to}")
    }

    /// Returns the name of a client; `None` for records without one.
    pub fn name(&self, client: u32) -> Option<&str> {
        let index = client.checked_sub(FIRST_CLIENT)?;
        self.clients.get(index as usize).map(String::as_str)
    }
}

/// Returns the name that a trace has for a client: its id, or a hash that no two of a million ids are likely to share.
/// An id that can be guessed can be checked against its hash.
pub fn named(id: &str, hashed: bool) -> String {
    if !hashed {
        return id.to_owned();
    }
    openssl::sha::sha256(id.as_bytes())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum TracePart {
    #[strum(to_string = "the header")]
    Header,
    /// Counted from 1.
    #[strum(to_string = "block {0}")]
    Block(usize),
    #[strum(to_string = "the footer")]
    Footer,
}

/// A trace can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file does not end as a trace does: it was cut off, or it is no trace")]
    NoTrace,
    #[error("the trace is in version {0} of the format; this program reads version 1")]
    Version(char),
    #[error("{0} is damaged")]
    Damaged(TracePart),
    #[error("line {line}: {problem}; expected: ms,client,partition,bytes")]
    Csv { line: usize, problem: &'static str },
}
