//! Which client has a name.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// The table of names.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: HashTable<Entry>,
    /// Keyed anew in each process: ids come from outside.
    hasher: DefaultHashBuilder,
}

/// A client's place in the table. The name's start stands here too: with very many clients, to look at the name itself is to wait
/// for memory once more. So is to hash it again when the table grows, for all of them at once: a long name's hash stands here
/// with its start.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Entry {
    index: u32,
    /// Of the whole name, at most 255.
    length: u8,
    /// Of a short name all, with zeros behind; of a longer one the hash and as much as there is room for.
    start: [u8; Entry::START],
}

impl Names {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Who has this name; `is` tells it of those who have a long one that begins so.
    pub(super) fn find(&self, name: &str, is: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = self.hash(name);
        let wanted = Entry::new(name, hash, 0);
        let named = |entry: &Entry| {
            entry.length == wanted.length
                && entry.start == wanted.start
                && (name.len() <= Entry::START || is(entry.index))
        };
        self.table.find(hash, named).map(|entry| entry.index)
    }

    /// Gives a name that nobody has.
    pub(super) fn insert(&mut self, name: &str, index: u32) {
        let hash = self.hash(name);
        let hasher = &self.hasher;
        self.table.insert_unique(hash, Entry::new(name, hash, index), |entry| entry.hash(hasher));
    }

    /// Takes it away again.
    pub(super) fn remove(&mut self, name: &str, index: u32) {
        if let Ok(entry) = self.table.find_entry(self.hash(name), |entry| entry.index == index) {
            entry.remove();
        }
    }

    fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name.as_bytes())
    }
}

impl Entry {
    /// So that two entries fill a cache line.
    const START: usize = 27;
    /// The bytes of a hash.
    const HASH: usize = size_of::<u64>();

    fn new(name: &str, hash: u64, index: u32) -> Entry {
        let (name, mut start) = (name.as_bytes(), [0; Entry::START]);
        if name.len() <= Entry::START {
            start[..name.len()].copy_from_slice(name);
        } else {
            start[..Entry::HASH].copy_from_slice(&hash.to_ne_bytes());
            start[Entry::HASH..].copy_from_slice(&name[..Entry::START - Entry::HASH]);
        }
        Entry { index, length: u8::try_from(name.len()).unwrap_or(u8::MAX), start }
    }

    /// The hash of the name that it was made of.
    fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        let length = usize::from(self.length);
        if length <= Entry::START {
            return hasher.hash_one(&self.start[..length]);
        }
        let (hash, _) = self.start.split_first_chunk().expect("a long name's entry begins with its hash");
        u64::from_ne_bytes(*hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short and long ones, some of which begin alike.
    fn name(number: u32) -> String {
        if number.is_multiple_of(2) {
            format!("{number}")
        } else {
            format!("a-name-too-long-to-stand-in-an-entry-{number}")
        }
    }

    #[test]
    fn names_are_found_however_long_they_are_and_however_large_the_table_grew() {
        let mut names = Names::default();
        let find = |names: &Names, number: u32| names.find(&name(number), |index| index == number);
        for number in 0..5_000 {
            assert_eq!(find(&names, number), None);
            names.insert(&name(number), number);
        }
        for number in (0..5_000).step_by(3) {
            names.remove(&name(number), number);
        }
        for number in 0..5_000 {
            assert_eq!(find(&names, number), (number % 3 != 0).then_some(number));
        }
        assert_eq!(names.len(), 5_000 - 1_667);
    }
}
