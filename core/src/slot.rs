//! Slots: the names of delayed records.
//!
//! The [`scheduler`](crate::scheduler) and the [`ledger`](crate::ledger) each keep a table by slot, so that one number
//! joins a record's place in its client's queue with its offset.

/// The name of a delayed record until an action names it; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Hands out slots; the one released last is taken first.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    free: Vec<Slot>,
    /// All slots below this number were handed out at least once.
    next: u32,
}

impl Slots {
    pub(crate) fn take(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            let slot = Slot(self.next);
            self.next = self.next.checked_add(1).expect("fewer than 2³² delayed records");
            slot
        })
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        self.free.push(slot);
    }
}
