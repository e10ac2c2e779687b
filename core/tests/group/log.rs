//! The control log: one partition, compacted, with readers that are behind.

use std::collections::HashMap;

use watermaster_core::group::record::{Key, Record};
use watermaster_core::units::Time;

/// A record with its offset.
pub type Entry = (u64, Record);

/// The log with its whole history.
#[derive(Debug, Default)]
pub struct Log {
    records: Vec<(Time, Record)>,
    /// The last offset of each key: a post's or a bound's.
    last: HashMap<(Key, bool), u64>,
}

impl Log {
    /// Appends a record. Returns its offset.
    pub fn append(&mut self, now: Time, record: Record) -> u64 {
        let offset = self.end();
        self.last.insert((record.subject().clone(), record.is_of_post()), offset);
        self.records.push((now, record));
        offset
    }

    /// The offset of the next record.
    pub fn end(&self) -> u64 {
        self.records.len() as u64
    }

    /// The record at an offset, and the time at which it was appended.
    pub fn get(&self, offset: u64) -> Option<&(Time, Record)> {
        self.records.get(offset as usize)
    }

    /// All records with their offsets.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..).zip(self.records.iter().map(|(_, record)| record.clone()))
    }

    /// Returns whether compaction keeps the record at an offset: no later one has its key.
    pub fn is_kept(&self, offset: u64) -> bool {
        let (_, record) = &self.records[offset as usize];
        self.last[&(record.subject().clone(), record.is_of_post())] == offset
    }

    /// The offsets that a newcomer reads: the newest `fresh` ones, and of the older ones the last of each key.
    pub fn compacted(&self, fresh: u64) -> Vec<u64> {
        let from = self.end().saturating_sub(fresh);
        let mut offsets: Vec<u64> = self.last.values().copied().filter(|&offset| offset < from).collect();
        offsets.sort_unstable();
        offsets.extend(from..self.end());
        offsets
    }
}
