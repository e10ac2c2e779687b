//! Key, value and headers of a record in one piece of memory.
//!
//! A million waiting records take a million allocations. librdkafka's header list alone takes three of them, and 200
//! bytes, for one header.

/// A name or key and its value; null and empty differ.
type Pair<'r> = (Option<&'r [u8]>, Option<&'r [u8]>);

/// The length that stands for null. (Kafka's lengths have 31 bits.)
const NULL: u32 = u32::MAX;

/// Pairs in one allocation, each as two lengths and the bytes: key and value, then name and value of each header.
#[derive(Debug)]
pub struct Packed(Box<[u8]>);

impl Packed {
    pub fn new<'r>(pairs: impl Iterator<Item = Pair<'r>> + Clone) -> Packed {
        let size = |(name, value): Pair<'_>| 8 + name.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
        let mut bytes = Vec::with_capacity(pairs.clone().map(size).sum());
        for (name, value) in pairs {
            bytes.extend(length(name).to_le_bytes());
            bytes.extend(length(value).to_le_bytes());
            bytes.extend(name.unwrap_or_default());
            bytes.extend(value.unwrap_or_default());
        }
        Packed(bytes.into_boxed_slice())
    }

    pub fn pairs(&self) -> Pairs<'_> {
        Pairs(&self.0)
    }
}

fn length(bytes: Option<&[u8]>) -> u32 {
    bytes.map_or(NULL, |bytes| u32::try_from(bytes.len()).expect("Kafka's lengths have 31 bits"))
}

/// An iterator over pairs, in order.
#[derive(Clone, Copy, Default)]
pub struct Pairs<'r>(&'r [u8]);

impl<'r> Iterator for Pairs<'r> {
    type Item = Pair<'r>;

    fn next(&mut self) -> Option<Pair<'r>> {
        let (name, rest) = self.0.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let (name, rest) = split(rest, *name);
        let (value, rest) = split(rest, *value);
        self.0 = rest;
        Some((name, value))
    }
}

fn split(bytes: &[u8], length: [u8; 4]) -> (Option<&[u8]>, &[u8]) {
    match u32::from_le_bytes(length) {
        NULL => (None, bytes),
        length => {
            let (part, rest) = bytes.split_at(length as usize);
            (Some(part), rest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_pairs_are_unchanged() {
        let pairs: [Pair<'_>; 7] = [
            (None, Some(b"v")),
            (Some(b"a"), Some(b"1")),
            (Some(b"a"), None),
            (Some(b""), Some(b"")),
            (Some(b"x\0y"), None),
            (None, None),
            (Some(b"\xff"), Some(b"\0")),
        ];
        for count in 0..=pairs.len() {
            let packed = Packed::new(pairs[..count].iter().copied());
            assert!(packed.pairs().eq(pairs[..count].iter().copied()), "{count} pairs");
        }
    }
}
