//! The payloads of delayed records.

use watermaster_core::{chunks::Chunks, slot::Slot};

use watermaster_kafka::record::Record;

/// The most delayed records that may keep the fetches alive with which they came.
const MAX_BORROWED: usize = 1024;

/// Payloads by the slot that the core gave them.
#[derive(Default)]
pub(super) struct DelayedRecords<'c> {
    slots: Chunks<Option<Record<'c>>>,
    count: usize,
    /// Slots of recent records, which still borrow from their fetches: many a record is delayed only for a moment.
    borrowed_slots: Vec<u32>,
}

impl<'c> DelayedRecords<'c> {
    pub(super) fn insert(&mut self, slot: Slot, record: Record<'c>) {
        let index = slot.0 as usize;
        let vacant = self.slots.get(index).is_none_or(Option::is_none);
        self.slots.set(index, Some(record));
        self.count += usize::from(vacant);
        self.borrowed_slots.push(slot.0);
        if self.borrowed_slots.len() >= MAX_BORROWED {
            self.detach();
        }
    }

    /// Takes the record that an action of the core names.
    pub(super) fn take(&mut self, slot: Slot) -> Record<'c> {
        self.remove(slot).expect("the core names slots that it was given")
    }

    /// Empties a slot. Once all slots are empty, no record borrows: records that were delayed for a moment are never
    /// copied.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Record<'c>> {
        let record = self.slots[slot.0 as usize].take()?;
        self.count -= 1;
        if self.count == 0 {
            self.borrowed_slots.clear();
        }
        Some(record)
    }

    /// Copies the records that still borrow from their fetches. (A slot may be empty by now, or have another record.)
    pub(super) fn detach(&mut self) {
        for slot in self.borrowed_slots.drain(..) {
            if let Some(record) = &mut self.slots[slot as usize] {
                record.detach();
            }
        }
    }
}
