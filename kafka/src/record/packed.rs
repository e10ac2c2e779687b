//! Key, value and headers of a record in one piece of memory.
//!
//! A million waiting records take a million allocations. librdkafka's header list alone takes three of them, and 200
//! bytes, for one header.

use crate::ffi::RawHeader;

/// Key, value and headers in one allocation.
#[derive(Debug, Clone)]
pub struct Packed {
    bytes: Box<[u8]>,
    key: Length,
    value: Length,
}

/// A length, or null. (Kafka's lengths have 31 bits.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Length(u32);

impl Length {
    const NULL: Length = Length(u32::MAX);

    fn of(bytes: Option<&[u8]>) -> Length {
        bytes.map_or(Length::NULL, |bytes| Length(u32::try_from(bytes.len()).expect("Kafka's lengths have 31 bits")))
    }

    fn bytes(self) -> usize {
        if self == Length::NULL { 0 } else { self.0 as usize }
    }
}

impl Packed {
    /// Copies key, value and headers.
    pub fn new<'r>(
        key: Option<&[u8]>, value: Option<&[u8]>, headers: impl Iterator<Item = RawHeader<'r>> + Clone,
    ) -> Packed {
        let (key_length, value_length) = (Length::of(key), Length::of(value));
        let size = |(name, value): RawHeader<'_>| 8 + name.len() + value.map_or(0, <[u8]>::len);
        let header_bytes: usize = headers.clone().map(size).sum();
        let mut bytes = Vec::with_capacity(key_length.bytes() + value_length.bytes() + header_bytes);
        bytes.extend(key.unwrap_or_default());
        bytes.extend(value.unwrap_or_default());
        for (name, value) in headers {
            bytes.extend(Length::of(Some(name)).0.to_le_bytes());
            bytes.extend(Length::of(value).0.to_le_bytes());
            bytes.extend(name);
            bytes.extend(value.unwrap_or_default());
        }
        Packed { bytes: bytes.into_boxed_slice(), key: key_length, value: value_length }
    }

    /// Returns the key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        (self.key != Length::NULL).then(|| &self.bytes[..self.key.bytes()])
    }

    /// Returns the value; null and empty differ.
    pub fn value(&self) -> Option<&[u8]> {
        (self.value != Length::NULL).then(|| &self.bytes[self.key.bytes()..][..self.value.bytes()])
    }

    /// Returns the headers, in order.
    pub fn headers(&self) -> PackedHeaders<'_> {
        PackedHeaders(&self.bytes[self.key.bytes() + self.value.bytes()..])
    }
}

/// An iterator over name and value of each header, in order.
#[derive(Clone, Copy)]
pub struct PackedHeaders<'r>(&'r [u8]);

impl PackedHeaders<'_> {
    pub const NONE: Self = PackedHeaders(&[]);
}

impl<'r> Iterator for PackedHeaders<'r> {
    type Item = RawHeader<'r>;

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let value = Length(u32::from_le_bytes(*value));
        let (name, rest) = rest.split_at(u32::from_le_bytes(*name) as usize);
        let (bytes, rest) = rest.split_at(value.bytes());
        self.0 = rest;
        Some((name, (value != Length::NULL).then_some(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_record_is_unchanged() {
        let headers: [RawHeader<'_>; 5] =
            [(b"a", Some(b"1")), (b"a", None), (b"", Some(b"")), (b"x\0y", None), (b"\xff", Some(b"\0"))];
        for (key, value) in [(None, None), (Some(&b""[..]), None), (None, Some(&b""[..])), (Some(b"k"), Some(b"v"))] {
            let packed = Packed::new(key, value, headers.into_iter());
            assert_eq!((packed.key(), packed.value()), (key, value));
            assert!(packed.headers().eq(headers));
        }
        assert_eq!(Packed::new(None, None, std::iter::empty()).headers().count(), 0);
    }
}
