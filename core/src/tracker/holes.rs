//! Holes that do not count as completed yet.

use hashbrown::HashMap;

/// For offsets that holes follow, how many do. There are no more entries than records that wait (and gaps that a map
/// left).
#[derive(Debug, Clone, Default)]
pub(super) struct Holes {
    after: HashMap<u64, u64>,
    /// The offset that got its entry last: the log may skip more offsets after it.
    last: u64,
}

impl Holes {
    /// Returns whether there is no hole.
    pub fn is_empty(&self) -> bool {
        self.after.is_empty()
    }

    /// The offsets `from..to` are holes; they come in ascending order.
    pub fn add(&mut self, from: u64, to: u64) {
        match self.after.get_mut(&self.last) {
            Some(count) if self.last + 1 + *count == from => *count += to - from,
            _ => {
                self.last = from - 1;
                self.after.insert(self.last, to - from);
            }
        }
    }

    /// The number of holes after `offset`.
    pub fn after(&self, offset: u64) -> u64 {
        if self.after.is_empty() {
            return 0;
        }
        self.after.get(&offset).copied().unwrap_or(0)
    }

    /// Removes the holes after `offset`, and returns their number.
    pub fn take(&mut self, offset: u64) -> u64 {
        if self.after.is_empty() {
            return 0;
        }
        self.after.remove(&offset).unwrap_or(0)
    }
}
