//! Records as they come from a source and as they leave.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, OwnedHeaders};

use super::ffi;
use crate::client_id::{Fields, HeaderLookup};

/// Which source of its service a record or partition belongs to: an index into `Service.sources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceIndex(pub u16);

impl SourceIndex {
    /// As an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A record just read. It pins the fetch that it came with: keep it for a round at most, [`detach`](Record::detach) what waits longer.
#[derive(Debug)]
pub struct Record<'c> {
    pub(super) message: BorrowedMessage<'c>,
    pub(super) source: SourceIndex,
}

impl Record<'_> {
    /// Which source it came from.
    pub fn source(&self) -> SourceIndex {
        self.source
    }

    /// Its source partition.
    pub fn partition(&self) -> i32 {
        self.message.partition()
    }

    /// Its offset in the source partition.
    pub fn offset(&self) -> i64 {
        self.message.offset()
    }

    /// Its key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        self.message.key()
    }

    /// Its value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.message.payload()
    }

    /// Milliseconds since 1970, where the source keeps timestamps.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.message.timestamp().to_millis()
    }

    /// Its headers, in order.
    pub fn headers(&self) -> Headers<'_> {
        Headers(self.message.headers())
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.message.key_len() + self.message.payload_len() + self.headers().size()
    }

    /// A copy that pins nothing.
    pub fn detach(&self) -> HeldRecord {
        let (key, value) = (self.key(), self.value());
        HeldRecord {
            source: self.source,
            partition: self.partition(),
            offset: self.offset(),
            timestamp_ms: self.timestamp_ms(),
            bytes: [key.unwrap_or_default(), value.unwrap_or_default()].concat().into_boxed_slice(),
            key: key.map(<[u8]>::len),
            tombstone: value.is_none(),
            headers: self.message.headers().map(BorrowedHeaders::detach),
        }
    }
}

/// A record that waits, in memory of its own.
#[derive(Debug, Clone)]
pub struct HeldRecord {
    source: SourceIndex,
    partition: i32,
    offset: i64,
    timestamp_ms: Option<i64>,
    /// Key, then value.
    bytes: Box<[u8]>,
    /// The length of the key; `None` for a null key.
    key: Option<usize>,
    tombstone: bool,
    headers: Option<OwnedHeaders>,
}

impl HeldRecord {
    /// Which source it came from.
    pub fn source(&self) -> SourceIndex {
        self.source
    }

    /// Its source partition.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Its offset in the source partition.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Its key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.map(|length| &self.bytes[..length])
    }

    /// Its value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        (!self.tombstone).then(|| &self.bytes[self.key.unwrap_or(0)..])
    }

    /// Milliseconds since 1970, where the source keeps timestamps.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.timestamp_ms
    }

    /// Its headers, in order.
    pub fn headers(&self) -> Headers<'_> {
        Headers(self.headers.as_ref().map(OwnedHeaders::as_borrowed))
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.headers().size()
    }
}

/// A record on its way out: one that never waited, or one that did.
#[derive(Debug)]
pub enum Output<'c> {
    Fresh(Record<'c>),
    Held(HeldRecord),
}

/// Each accessor is that of the record inside.
macro_rules! either {
    ($($name:ident: $type:ty),* $(,)?) => {
        $(#[doc = concat!("See [`Record::", stringify!($name), "`].")]
        pub fn $name(&self) -> $type {
            match self {
                Output::Fresh(record) => record.$name(),
                Output::Held(record) => record.$name(),
            }
        })*
    };
}

impl Output<'_> {
    either! {
        source: SourceIndex,
        partition: i32,
        offset: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp_ms: Option<i64>,
        headers: Headers<'_>,
        size: usize,
    }
}

/// The headers of a record: names and values are any bytes, names may repeat, values may be null.
#[derive(Clone, Copy)]
pub struct Headers<'r>(Option<&'r BorrowedHeaders>);

impl<'r> Headers<'r> {
    /// Those of any message.
    pub(super) fn of(message: &'r BorrowedMessage<'_>) -> Headers<'r> {
        Headers(message.headers())
    }

    /// Name and value of each, in order. A name is cut at a NUL here, but not on its way out.
    pub fn iter(self) -> impl Iterator<Item = (&'r [u8], Option<&'r [u8]>)> {
        let count = self.0.map_or(0, |headers| headers.count());
        (0..count).map_while(move |index| self.0.and_then(|headers| ffi::header_at(headers, index)))
    }

    /// The header of this name, unless it is absent or repeated.
    pub fn lookup(self, name: &str) -> HeaderLookup<'r> {
        let mut found = HeaderLookup::Absent;
        for (other, value) in self.iter() {
            if other == name.as_bytes() {
                if !matches!(found, HeaderLookup::Absent) {
                    return HeaderLookup::Repeated;
                }
                found = HeaderLookup::Once(value);
            }
        }
        found
    }

    /// A copy to send.
    pub(super) fn to_owned(self) -> Option<OwnedHeaders> {
        self.0.map(BorrowedHeaders::detach)
    }

    /// Bytes of names and values.
    fn size(self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len)).sum()
    }
}

impl Fields for Record<'_> {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        self.headers().lookup(name)
    }

    fn key(&self) -> Option<&[u8]> {
        Record::key(self)
    }

    fn value(&self) -> Option<&[u8]> {
        Record::value(self)
    }
}
