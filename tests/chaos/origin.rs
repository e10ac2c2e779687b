//! The identity of a generated record, in a header that stays with the record.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::support::record::Header;

/// The name of the header.
pub const HEADER: &str = "origin";

/// The expected fate of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Plain,
    /// Part of a transaction that is committed, if possible.
    Upstream,
    /// Part of a transaction that is aborted: no reader may ever see the record.
    Aborted,
    /// The target refuses it.
    Poison,
}

/// Identity, client and source position of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub id: u64,
    pub topic: u8,
    pub partition: i32,
    pub client: u16,
    /// Number of the record among those of its client in its partition, in the order of sending.
    pub sequence: u64,
    pub fate: Fate,
}

impl Origin {
    pub fn to_text(self) -> String {
        let Origin { id, topic, partition, client, sequence, fate } = self;
        let fate = match fate {
            Fate::Plain => 'p',
            Fate::Upstream => 'u',
            Fate::Aborted => 'a',
            Fate::Poison => 'x',
        };
        format!("{id}/{topic}/{partition}/{client}/{sequence}/{fate}")
    }

    pub fn parse(text: &[u8]) -> Option<Origin> {
        let mut parts = std::str::from_utf8(text).ok()?.split('/');
        let mut next = || parts.next();
        let origin = Origin {
            id: next()?.parse().ok()?,
            topic: next()?.parse().ok()?,
            partition: next()?.parse().ok()?,
            client: next()?.parse().ok()?,
            sequence: next()?.parse().ok()?,
            fate: match next()? {
                "p" => Fate::Plain,
                "u" => Fate::Upstream,
                "a" => Fate::Aborted,
                "x" => Fate::Poison,
                _ => return None,
            },
        };
        next().is_none().then_some(origin)
    }
}

/// Returns the checksum at the end of a value's first line. It detects an altered value even if the source record is
/// gone.
pub fn checksum(id: u64, padding: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    (id, padding).hash(&mut hash);
    hash.finish()
}

/// Tells whether a generated value is unchanged.
pub fn value_is_whole(id: u64, value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    let Some(split) = value.iter().position(|byte| *byte == b'\n') else { return false };
    let (line, padding) = (&value[..split], &value[split + 1..]);
    std::str::from_utf8(line).is_ok_and(|line| line == first_line(id, padding))
}

/// Returns the first line of a value.
pub fn first_line(id: u64, padding: &[u8]) -> String {
    format!("{id} {:016x}", checksum(id, padding))
}

/// Hashes all parts of a record that must not change: key, value and headers.
pub fn content(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> u64 {
    let mut hash = DefaultHasher::new();
    (key, value, headers).hash(&mut hash);
    hash.finish()
}
