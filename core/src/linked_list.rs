//! Doubly linked lists through the entries of a table: an entry leaves its list in O(1) wherever it stands, without an
//! allocation.

use crate::{chunks::Chunks, slot::Slot};

const NONE: u32 = u32::MAX;

/// The neighbours of an entry in one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    before: u32,
    after: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { before: NONE, after: NONE }
    }
}

/// A list of slots. `links` tells each method where the entries of the table keep the links of this list.
#[derive(Debug, Clone, Copy)]
pub struct LinkedList {
    head: u32,
    tail: u32,
    len: u64,
}

impl Default for LinkedList {
    fn default() -> LinkedList {
        LinkedList { head: NONE, tail: NONE, len: 0 }
    }
}

impl LinkedList {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn head(&self) -> Option<Slot> {
        (self.head != NONE).then_some(Slot(self.head))
    }

    /// Appends a slot. Returns the links for the caller to store in its entry.
    pub(crate) fn push<T>(&mut self, table: &mut Chunks<T>, links: impl Fn(&mut T) -> &mut Links, slot: Slot) -> Links {
        self.insert(table, links, slot, |_| true)
    }

    /// Inserts a slot behind the last entry that `comes_before` accepts. Returns the links for the caller to store in
    /// its entry. Takes a step for each entry behind the slot.
    pub(crate) fn insert<T>(
        &mut self, table: &mut Chunks<T>, links: impl Fn(&mut T) -> &mut Links, slot: Slot,
        comes_before: impl Fn(&T) -> bool,
    ) -> Links {
        let (mut before, mut after) = (self.tail, NONE);
        while before != NONE && !comes_before(&table[before as usize]) {
            (before, after) = (links(&mut table[before as usize]).before, before);
        }
        match before {
            NONE => self.head = slot.0,
            before => links(&mut table[before as usize]).after = slot.0,
        }
        match after {
            NONE => self.tail = slot.0,
            after => links(&mut table[after as usize]).before = slot.0,
        }
        self.len += 1;
        Links { before, after }
    }

    /// Removes the entry that has these links.
    pub(crate) fn remove<T>(&mut self, table: &mut Chunks<T>, links: impl Fn(&mut T) -> &mut Links, removed: Links) {
        let Links { before, after } = removed;
        match before {
            NONE => self.head = after,
            before => links(&mut table[before as usize]).after = after,
        }
        match after {
            NONE => self.tail = before,
            after => links(&mut table[after as usize]).before = before,
        }
        self.len -= 1;
    }

    /// Iterates over the slots from head to tail.
    pub(crate) fn iter<'a, T>(
        &self, table: &'a Chunks<T>, links: impl Fn(&T) -> &Links + 'a,
    ) -> impl Iterator<Item = Slot> + 'a {
        std::iter::successors(self.head(), move |slot| {
            let after = links(&table[slot.index()]).after;
            (after != NONE).then_some(Slot(after))
        })
    }
}
