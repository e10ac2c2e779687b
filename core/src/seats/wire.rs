//! The control log's records as Kafka keys and values.
//!
//! A key is `s/<seat>` for a state and `l/<seat>` for loads: compaction keeps the last of each. A value is one byte for
//! the version of this format, then the record in postcard's format. A tombstone has no value.

use std::sync::Arc;

use super::state::SeatRecord;

/// The version of the format.
pub const VERSION: u8 = 1;

/// A record that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeatWireError {
    /// The key has another form.
    #[error("the key is not s/<seat> or l/<seat>")]
    Key,
    /// The record was written by another version of the program.
    #[error("format {found} is not known here (this program reads format {VERSION}); all instances need one version")]
    Version {
        /// The version of the record.
        found: u8,
    },
    /// The value is damaged, or is about another seat than the key.
    #[error("the value is damaged")]
    Value,
}

/// The key and the value of a record; no value for a tombstone.
///
/// # Panics
/// Never: memory takes any record.
pub fn encode(record: &SeatRecord) -> (String, Option<Vec<u8>>) {
    let (kind, seat, value) = match record {
        SeatRecord::State(state) => ('s', &state.seat, Some(postcard::to_extend(state, vec![VERSION]))),
        SeatRecord::Loads(loads) => ('l', &loads.seat, Some(postcard::to_extend(loads, vec![VERSION]))),
        SeatRecord::Tombstone(seat) => ('s', seat, None),
        SeatRecord::LoadsTombstone(seat) => ('l', seat, None),
    };
    (format!("{kind}/{seat}"), value.map(|value| value.expect("a vector takes any record")))
}

/// Reads a record.
///
/// # Errors
/// The record is none of this format.
pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<SeatRecord, SeatWireError> {
    let (kind, seat) = std::str::from_utf8(key).ok().and_then(|key| key.split_once('/')).ok_or(SeatWireError::Key)?;
    let of_state = match kind {
        "s" => true,
        "l" => false,
        _ => return Err(SeatWireError::Key),
    };
    let seat: Arc<str> = Arc::from(seat);
    let rest = match value.map(<[u8]>::split_first) {
        None if of_state => return Ok(SeatRecord::Tombstone(seat)),
        None => return Ok(SeatRecord::LoadsTombstone(seat)),
        Some(Some((&VERSION, rest))) => rest,
        Some(Some((&found, _))) => return Err(SeatWireError::Version { found }),
        Some(None) => return Err(SeatWireError::Value),
    };
    let record = match of_state {
        true => postcard::from_bytes(rest).map(SeatRecord::State),
        false => postcard::from_bytes(rest).map(SeatRecord::Loads),
    };
    let record = record.map_err(|_| SeatWireError::Value)?;
    let about = match &record {
        SeatRecord::State(state) => &state.seat,
        SeatRecord::Loads(loads) => &loads.seat,
        SeatRecord::Tombstone(seat) | SeatRecord::LoadsTombstone(seat) => seat,
    };
    if *about == seat { Ok(record) } else { Err(SeatWireError::Value) }
}
