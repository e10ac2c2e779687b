//! What every generated record says of itself, in a header: it goes wherever the record goes.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::support::record::Header;

/// The header's name.
pub const HEADER: &str = "origin";

/// What is to become of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Plain,
    /// Part of a transaction that is committed, if it can be.
    Upstream,
    /// Part of a transaction that is aborted: nobody may ever see it.
    Aborted,
    /// The target refuses it.
    Poison,
}

/// Who made a record, and where it was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub id: u64,
    pub topic: u8,
    pub partition: i32,
    pub client: u16,
    /// Counts the records of this client in this partition, in the order in which they were sent.
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

/// The checksum that a value ends its first line with: tells an altered value where the source record is gone.
pub fn checksum(id: u64, padding: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    (id, padding).hash(&mut hash);
    hash.finish()
}

/// Whether a generated value is as it was made.
pub fn value_is_whole(id: u64, value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    let Some(split) = value.iter().position(|byte| *byte == b'\n') else { return false };
    let (line, padding) = (&value[..split], &value[split + 1..]);
    std::str::from_utf8(line).is_ok_and(|line| line == first_line(id, padding))
}

/// The first line of a value.
pub fn first_line(id: u64, padding: &[u8]) -> String {
    format!("{id} {:016x}", checksum(id, padding))
}

/// One number for everything that must not change: key, value, headers.
pub fn content(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> u64 {
    let mut hash = DefaultHasher::new();
    (key, value, headers).hash(&mut hash);
    hash.finish()
}
