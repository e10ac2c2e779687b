//! The text that travels in a commit's metadata.

/// Room for one partition's map in the commit metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapBudget {
    /// The broker counts UTF-16 units (Apache Kafka): 15 bits fit in each.
    Chars(usize),
    /// The broker counts bytes: 6 bits fit in each.
    Bytes(usize),
}

/// Stand-in until the tracker's map is merged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Map {}

/// Stand-in until the tracker's map is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no metadata of ours")]
pub struct DecodeError;

/// Stand-in until the tracker's map is merged.
pub fn decode(_offset: i64, bytes: &[u8]) -> Result<Map, DecodeError> {
    if bytes.starts_with(b"wm") { Ok(Map {}) } else { Err(DecodeError) }
}
