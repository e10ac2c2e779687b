//! The payloads of delayed records.

use watermaster_core::{chunks::Chunks, slot::Slot};

use watermaster_kafka::record::Output;

/// The most delayed records that may keep the fetches alive with which they came.
const MAX_BORROWED: usize = 1024;

/// Payloads by the slot that the core gave them.
#[derive(Default)]
pub(super) struct DelayedRecords<'c> {
    slots: Chunks<Option<Output<'c>>>,
    count: usize,
    /// Slots of recent records, which still borrow from their fetches: many a record is delayed only for a moment.
    borrowed_slots: Vec<u32>,
}

impl<'c> DelayedRecords<'c> {
    pub(super) fn insert(&mut self, slot: Slot, output: Output<'c>) {
        let index = slot.0 as usize;
        let vacant = self.slots.get(index).is_none_or(Option::is_none);
        self.slots.set(index, Some(output));
        self.count += usize::from(vacant);
        self.borrowed_slots.push(slot.0);
        if self.borrowed_slots.len() >= MAX_BORROWED {
            self.detach();
        }
    }

    /// Takes the record that an action of the core names.
    pub(super) fn take(&mut self, slot: Slot) -> Output<'c> {
        self.remove(slot).expect("the core names slots that it was given")
    }

    /// Empties a slot. Once all slots are empty, no record borrows: records that were delayed for a moment are never
    /// copied.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Output<'c>> {
        let output = self.slots[slot.0 as usize].take()?;
        self.count -= 1;
        if self.count == 0 {
            self.borrowed_slots.clear();
        }
        Some(output)
    }

    /// Copies the records that still borrow from their fetches. (A slot may be empty by now, or have another record.)
    pub(super) fn detach(&mut self) {
        for slot in self.borrowed_slots.drain(..) {
            let output = &mut self.slots[slot as usize];
            if let Some(Output::Fresh(record)) = output {
                *output = Some(Output::Held(record.detach()));
            }
        }
    }
}
