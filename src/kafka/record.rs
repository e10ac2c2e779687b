//! Records as they come from a source and as they leave.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _};

mod packed;

use super::ffi::{self, HeaderList};
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

use packed::Packed;

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
        Headers::native(self.message.headers())
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.message.key_len() + self.message.payload_len() + self.headers().size()
    }

    /// A copy that pins nothing.
    pub fn detach(&self) -> HeldRecord {
        let headers = self.message.headers();
        let packed = Packed::new(self.key(), self.value(), headers);
        HeldRecord {
            source: self.source,
            partition: self.partition(),
            offset: self.offset(),
            timestamp_ms: self.timestamp_ms().unwrap_or(NO_TIMESTAMP),
            native: headers.filter(|_| !packed.has_headers()).map(HeaderList::copy_of),
            packed,
        }
    }
}

/// What stands where a source keeps no timestamps; also on the wire.
pub(super) const NO_TIMESTAMP: i64 = -1;

/// A record that waits, in memory of its own. There may be millions of them.
#[derive(Debug, Clone)]
pub struct HeldRecord {
    packed: Packed,
    /// The headers, if they can't be packed.
    native: Option<HeaderList>,
    offset: i64,
    timestamp_ms: i64,
    partition: i32,
    source: SourceIndex,
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
        self.packed.key()
    }

    /// Its value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.packed.value()
    }

    /// Milliseconds since 1970, where the source keeps timestamps.
    pub fn timestamp_ms(&self) -> Option<i64> {
        (self.timestamp_ms != NO_TIMESTAMP).then_some(self.timestamp_ms)
    }

    /// Its headers, in order.
    pub fn headers(&self) -> Headers<'_> {
        match &self.native {
            Some(headers) => Headers::native(Some(headers.as_borrowed())),
            None => Headers(Kept::Packed(self.packed.headers())),
        }
    }

    /// Bytes of key, value and headers.
    pub fn size(&self) -> usize {
        self.key().map_or(0, <[u8]>::len) + self.value().map_or(0, <[u8]>::len) + self.headers().size()
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

    /// Its headers, to send them. Those of a fresh record are handed over; librdkafka makes them again when they are asked for.
    pub(super) fn take_headers(&mut self) -> Option<HeaderList> {
        match self {
            Output::Fresh(record) => HeaderList::take(&mut record.message),
            Output::Held(record) => match &record.native {
                Some(headers) => Some(headers.clone()),
                None => record.packed.to_native(),
            },
        }
    }
}

/// The headers of a record: names and values are any bytes, names may repeat, values may be null.
#[derive(Clone, Copy)]
pub struct Headers<'r>(Kept<'r>);

/// How headers are kept.
#[derive(Clone, Copy)]
enum Kept<'r> {
    Native(&'r BorrowedHeaders),
    Packed(packed::Headers<'r>),
}

impl<'r> Headers<'r> {
    /// Those of any message.
    pub(super) fn of(message: &'r BorrowedMessage<'_>) -> Headers<'r> {
        Headers::native(message.headers())
    }

    fn native(headers: Option<&'r BorrowedHeaders>) -> Headers<'r> {
        Headers(headers.map_or(Kept::Packed(packed::Headers::NONE), Kept::Native))
    }

    /// Name and value of each, in order. A name is cut at a NUL here, but not on its way out.
    pub fn iter(self) -> impl Iterator<Item = (&'r [u8], Option<&'r [u8]>)> {
        let (native, packed) = match self.0 {
            Kept::Native(headers) => (Some(headers), packed::Headers::NONE),
            Kept::Packed(headers) => (None, headers),
        };
        let count = native.map_or(0, |headers| headers.count());
        let native = (0..count).map_while(move |index| native.and_then(|headers| ffi::header_at(headers, index)));
        native.chain(packed.map(|(name, value)| (name, Some(value))))
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
