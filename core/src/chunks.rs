//! A row of places that grows without moving what stands in it.
//!
//! A vector that grows copies all that it holds: with some 100 000 delayed records everything waits for that, for many
//! milliseconds.

use std::ops::{Index, IndexMut};

/// So many places are allocated at once.
const CHUNK: usize = 4096;

/// A vector in chunks. It only grows.
#[derive(Debug)]
pub struct Chunks<T> {
    /// Whole ones, so that an index into one needs no check.
    chunks: Vec<Box<[T; CHUNK]>>,
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Chunks<T> {
        Chunks { chunks: Vec::new(), len: 0 }
    }
}

impl<T: Default> Chunks<T> {
    /// How many places there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts one at the end.
    pub fn push(&mut self, value: T) {
        if self.len.is_multiple_of(CHUNK) {
            self.grow();
        }
        self.chunks[self.len / CHUNK][self.len % CHUNK] = value;
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let vacant: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
        let Ok(chunk) = vacant.try_into() else { unreachable!("as many were made as a chunk holds") };
        self.chunks.push(chunk);
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stays_where_it_was_put() {
        let mut places = Chunks::default();
        assert!(places.is_empty());
        places.push(0);
        let first: *const usize = &places[0];
        (1..3 * CHUNK + 1).for_each(|number| places.push(number));
        places[CHUNK] += 7;
        assert!((0..places.len()).all(|index| places[index] == index + if index == CHUNK { 7 } else { 0 }));
        assert_eq!((places.len(), first), (3 * CHUNK + 1, &raw const places[0]));
    }
}
