//! Events that a consumer reports to the engine.

use watermaster_core::offset_map::{DecodeError, OffsetMap};

use crate::consumer_error::{FatalConsumerError, Outage, Reported};
use crate::record::Record;
use crate::topics::{SourceIndex, SourcePartition};

/// An event of a consumer.
#[derive(Debug)]
pub enum Event<'c> {
    /// Nothing for the caller to do.
    Idle,
    /// Partitions were assigned, and will be read from their `base` on.
    Assigned(Vec<Assignment>),
    /// Partitions were revoked. If they are `lost`, another member may own them already.
    Revoked { partitions: Vec<SourcePartition>, lost: bool },
    /// A record was read.
    Record(Record<'c>),
    /// A committed offset is another program's (`on_foreign_offset = "stop"`): the service has to stop.
    Refused(ForeignOffset),
    /// Records were deleted before they were read (`on_data_loss = "continue"`): reading goes on at `to`.
    Skipped { source: SourceIndex, partition: i32, from: i64, to: i64 },
    /// The next offset lies beyond the end (`on_data_loss = "continue"`): the topic was made anew, or truncated. Only
    /// another consumer goes on, from where it decides.
    Beyond { source: SourceIndex, partition: i32, offset: i64, high: i64 },
    /// No broker can be reached.
    Down(Outage),
    /// The connection to one broker broke: its partitions are not read until it is back or another broker leads them.
    BrokerLost(Reported),
    /// Brokers can be reached again.
    Up,
    /// The service has to stop.
    Fatal(FatalConsumerError),
}

impl From<FatalConsumerError> for Event<'_> {
    fn from(error: FatalConsumerError) -> Self {
        Event::Fatal(error)
    }
}

/// A committed offset with metadata that this program did not write for a start of its own.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", describe_foreign(.topic, *.partition, *.offset, .source))]
pub struct ForeignOffset {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub source: DecodeError,
}

fn describe_foreign(topic: &str, partition: i32, offset: i64, source: &DecodeError) -> String {
    match source {
        DecodeError::HandedOver(_) => format!(
            "{topic}/{partition} was handed over to the service's own consumers. `watermaster handover --from GROUP \
             --execute` takes it back. `watermaster run --accept-foreign-offsets` goes on at offset {offset}, and \
             repeats what they have done"
        ),
        _ => format!(
            "another program committed offset {offset} of {topic}/{partition}: {source}. `watermaster run \
             --accept-foreign-offsets` takes the committed offsets as they are, once; on_foreign_offset = \"replay\" \
             always does"
        ),
    }
}

/// An assigned partition.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub source: SourceIndex,
    pub partition: i32,
    /// The first offset that is read.
    pub base: i64,
    /// Offsets completed beyond `base`, and recent admissions.
    pub map: OffsetMap,
    /// The offset after the last (stable) record.
    pub high: i64,
    /// The number of records that were deleted before they were read.
    pub lost: u64,
    /// True if `base` is not an offset that Watermaster committed: commit it before the first record is read.
    pub commit_first: bool,
    /// True if a mirror copied the offset from another cluster, so that the map records nothing as completed.
    pub copied: bool,
}
