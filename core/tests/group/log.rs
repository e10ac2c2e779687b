//! The control log: one partition, compacted, with readers that are behind.

use std::collections::HashMap;

use watermaster_core::group::record::{Key, Record};

/// A record with its offset.
pub type Entry = (u64, Record);

/// The log with its whole history.
#[derive(Debug, Default)]
pub struct Log {
    records: Vec<Record>,
}

impl Log {
    /// Appends a record. Returns its offset.
    pub fn append(&mut self, record: Record) -> u64 {
        self.records.push(record);
        self.end() - 1
    }

    /// The offset of the next record.
    pub fn end(&self) -> u64 {
        self.records.len() as u64
    }

    /// All records with their offsets.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        (0..).zip(self.records.iter().cloned())
    }

    /// The records that a newcomer reads: the newest `fresh` ones, and of the older ones the last of each key.
    pub fn compacted(&self, fresh: u64) -> Vec<Entry> {
        compact(self.entries().collect(), self.end().saturating_sub(fresh))
    }
}

/// Removes entries below `fresh_from` that a later entry of the same key supersedes.
pub fn compact(entries: Vec<Entry>, fresh_from: u64) -> Vec<Entry> {
    let mut last: HashMap<(Key, bool), u64> = HashMap::new();
    for (offset, record) in &entries {
        last.insert(compaction_key(record), *offset);
    }
    let stays = |(offset, record): &Entry| *offset >= fresh_from || last[&compaction_key(record)] == *offset;
    entries.into_iter().filter(stays).collect()
}

fn compaction_key(record: &Record) -> (Key, bool) {
    (record.subject().clone(), record.is_of_post())
}
