//! The partitions of a service, by their number in the core.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use watermaster_core::units::Time;

use watermaster_kafka::consumer::SourcePartition;
use watermaster_kafka::record::SourceIndex;

/// Every partition that was ever assigned. Numbers are given once, in order, and stay.
#[derive(Default)]
pub(super) struct Places {
    list: Vec<Place>,
    numbers: HashMap<SourcePartition, u32>,
    /// What was found last: records come in runs of one partition.
    last: Cell<Option<(SourcePartition, u32)>>,
}

/// A partition that was ever assigned.
pub(super) struct Place {
    pub(super) source: SourceIndex,
    pub(super) partition: i32,
    pub(super) assigned: bool,
    /// The high watermark when it came.
    pub(super) high: i64,
    /// When a record of it was read, or it came.
    pub(super) read_at: Time,
}

impl Places {
    /// The number of a partition, a new one if it never came before.
    pub(super) fn number(&mut self, at: SourcePartition) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(at).or_insert(next);
        if number == next {
            let (source, partition) = at;
            self.list.push(Place { source, partition, assigned: false, high: 0, read_at: Time::ZERO });
        }
        number
    }

    /// The number of a partition that came before.
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

    /// Where a number's partition is.
    pub(super) fn address(&self, number: u32) -> SourcePartition {
        let place = &self[number];
        (place.source, place.partition)
    }

    /// All of them with their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Place)> {
        (0u32..).zip(&self.list)
    }

    /// All assigned ones with their numbers.
    pub(super) fn assigned(&self) -> impl Iterator<Item = (u32, SourcePartition)> + '_ {
        let assigned = self.all().filter(|(_, place)| place.assigned);
        assigned.map(|(number, place)| (number, (place.source, place.partition)))
    }
}

impl Index<u32> for Places {
    type Output = Place;

    fn index(&self, number: u32) -> &Place {
        &self.list[number as usize]
    }
}

impl IndexMut<u32> for Places {
    fn index_mut(&mut self, number: u32) -> &mut Place {
        &mut self.list[number as usize]
    }
}
