//! The partitions of a service, by their number in the core.

use std::{cell::Cell, collections::HashMap};

use watermaster_core::units::Time;

use super::sources::Sources;
use watermaster_kafka::{consumer::SourcePartition, topics::SourceIndex};

/// Every partition that was ever assigned. Numbers are given once, in order, and stay.
pub(super) struct Partitions {
    pub(super) sources: Sources,
    list: Vec<PartitionEntry>,
    numbers: HashMap<SourcePartition, u32>,
    /// The last partition that was found: records come in runs of one partition.
    last: Cell<Option<(SourcePartition, u32)>>,
}

pub(super) struct PartitionEntry {
    pub(super) source: SourceIndex,
    pub(super) partition: i32,
    pub(super) assigned: bool,
    /// The high watermark at the assignment.
    pub(super) high: i64,
    /// The time of the assignment, or of the last record that was read.
    pub(super) read_at: Time,
}

impl Partitions {
    pub(super) fn new(sources: Sources) -> Partitions {
        Partitions { sources, list: Vec::new(), numbers: HashMap::new(), last: Cell::default() }
    }

    /// Returns the number of a partition, a new one if it was never assigned before.
    pub(super) fn number(&mut self, at: SourcePartition) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(at).or_insert(next);
        if number == next {
            let (source, partition) = at;
            self.list.push(PartitionEntry { source, partition, assigned: false, high: 0, read_at: Time::ZERO });
        }
        number
    }

    /// Returns the number of a partition that was assigned before.
    pub(super) fn find(&self, at: SourcePartition) -> Option<u32> {
        match self.last.get() {
            Some((last, number)) if last == at => Some(number),
            _ => {
                let number = *self.numbers.get(&at)?;
                self.last.set(Some((at, number)));
                Some(number)
            }
        }
    }

    pub(super) fn entry(&mut self, number: u32) -> &mut PartitionEntry {
        &mut self.list[number as usize]
    }

    pub(super) fn address(&self, number: u32) -> SourcePartition {
        let entry = &self.list[number as usize];
        (entry.source, entry.partition)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &PartitionEntry)> {
        (0u32..).zip(&self.list)
    }

    pub(super) fn assigned(&self) -> impl Iterator<Item = (u32, SourcePartition)> + '_ {
        let assigned = self.all().filter(|(_, entry)| entry.assigned);
        assigned.map(|(number, entry)| (number, (entry.source, entry.partition)))
    }
}
