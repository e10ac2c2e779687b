//! Key, value and headers of a record in one piece of memory.
//!
//! A million records wait in as many allocations: librdkafka's header list alone takes three, and 200 bytes, for one header.

use rdkafka::message::{BorrowedHeaders, Headers as _};

use super::super::ffi::{self, HeaderList};

/// Key, value and headers, one behind the other.
#[derive(Debug, Clone)]
pub struct Packed {
    bytes: Box<[u8]>,
    key: Length,
    value: Length,
}

/// A length; null is none. (Kafka's are 31 bits.)
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
    /// A copy. The headers are part of it only if a copy of what can be seen of them is all of them: see
    /// [`ffi::whole_header_at`].
    pub fn new(key: Option<&[u8]>, value: Option<&[u8]>, headers: Option<&BorrowedHeaders>) -> Packed {
        let (key_length, value_length) = (Length::of(key), Length::of(value));
        let headers = headers.and_then(whole).unwrap_or_default();
        let size = |(name, value): &(&[u8], &[u8])| 8 + name.len() + value.len();
        let mut bytes =
            Vec::with_capacity(key_length.bytes() + value_length.bytes() + headers.iter().map(size).sum::<usize>());
        bytes.extend(key.unwrap_or_default());
        bytes.extend(value.unwrap_or_default());
        for (name, value) in headers {
            bytes.extend(Length::of(Some(name)).0.to_le_bytes());
            bytes.extend(Length::of(Some(value)).0.to_le_bytes());
            bytes.extend(name);
            bytes.extend(value);
        }
        Packed { bytes: bytes.into_boxed_slice(), key: key_length, value: value_length }
    }

    /// The key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        (self.key != Length::NULL).then(|| &self.bytes[..self.key.bytes()])
    }

    /// The value; null and empty differ.
    pub fn value(&self) -> Option<&[u8]> {
        (self.value != Length::NULL).then(|| &self.bytes[self.key.bytes()..][..self.value.bytes()])
    }

    /// The headers, if they are part of it.
    pub fn headers(&self) -> Headers<'_> {
        Headers(&self.bytes[self.key.bytes() + self.value.bytes()..])
    }

    /// Whether any headers are part of it.
    pub fn has_headers(&self) -> bool {
        !self.headers().0.is_empty()
    }

    /// The headers for librdkafka, if there are any.
    pub fn to_native(&self) -> Option<HeaderList> {
        let headers = self.headers();
        if headers.0.is_empty() {
            return None;
        }
        let mut native = HeaderList::with_capacity(headers.count());
        headers.for_each(|(name, value)| native.add(name, value));
        Some(native)
    }
}

/// Names and values, if all of them can be seen.
fn whole(headers: &BorrowedHeaders) -> Option<Vec<(&[u8], &[u8])>> {
    (0..headers.count()).map(|index| ffi::whole_header_at(headers, index)).collect()
}

/// Name and value of each, in order.
#[derive(Clone, Copy)]
pub struct Headers<'r>(&'r [u8]);

impl Headers<'_> {
    pub const NONE: Self = Headers(&[]);
}

impl<'r> Iterator for Headers<'r> {
    type Item = (&'r [u8], &'r [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at(u32::from_le_bytes(*name) as usize);
        let (value, rest) = rest.split_at(u32::from_le_bytes(*value) as usize);
        self.0 = rest;
        Some((name, value))
    }
}
