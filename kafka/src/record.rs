//! Records as they come from a source and as they leave.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage};

mod packed;

use super::ffi::{self, HeaderList, RawHeader};
use watermaster_settings::client_id::{Fields, HeaderLookup};

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

/// The most headers of a record that is forwarded or kept. A record with more goes to the dead-letter topic as a stub.
pub const MAX_HEADERS: usize = 10_000;

/// Memory of a header beyond its name and value: librdkafka's struct, its allocation and its place in the list.
pub const HEADER_OVERHEAD: usize = 64;

/// Memory of a record beyond its contents: the core's node, the place in the engine's list, the allocation.
pub const RECORD_OVERHEAD: usize = 200;

/// Key, value and headers of a record.
#[derive(Clone, Copy)]
pub struct Contents<'r> {
    /// The key; null and empty differ.
    pub key: Option<&'r [u8]>,
    /// The value; null is a tombstone.
    pub value: Option<&'r [u8]>,
    /// The headers, in order.
    pub headers: Headers<'r>,
}

impl Contents<'_> {
    /// The memory that the record costs, in bytes: key + value + Σ (name + value + [`HEADER_OVERHEAD`]) +
    /// [`RECORD_OVERHEAD`].
    ///
    /// This is the only definition. `queue_bytes`, the bound of a round and the metrics count in it, and a record costs
    /// the same when it is read and after it has waited. A copy made by librdkafka takes about this much; a packed one
    /// takes less.
    pub fn cost(&self) -> usize {
        let header = |(name, value): RawHeader<'_>| name.len() + value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD;
        let headers: usize = self.headers.iter().map(header).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers + RECORD_OVERHEAD
    }
}

impl Fields for Contents<'_> {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        self.headers.lookup(name)
    }

    fn key(&self) -> Option<&[u8]> {
        self.key
    }

    fn value(&self) -> Option<&[u8]> {
        self.value
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

    /// Key, value and headers; `None` where the headers are more than [`MAX_HEADERS`], or where librdkafka cannot hand
    /// them over. Such a record is only good for [`into_stub`](Record::into_stub).
    pub fn contents(&self) -> Option<Contents<'_>> {
        let headers = ffi::headers_of(&self.message).ok()?;
        if headers.is_some_and(|headers| ffi::header_count(headers) > MAX_HEADERS) {
            return None;
        }
        Some(Contents { key: self.key(), value: self.value(), headers: Headers::native(headers) })
    }

    /// Copies the record, so that it pins no fetch.
    pub fn detach(&self) -> HeldRecord {
        let contents = self.contents().expect(UNREADABLE);
        self.held(Packed::new(contents.key, contents.value, contents.headers.iter()), false)
    }

    /// Keeps the key and drops value and headers, the list that librdkafka parsed included.
    pub fn into_stub(self) -> HeldRecord {
        self.held(Packed::new(self.key(), None, std::iter::empty()), true)
    }

    fn held(&self, packed: Packed, stub: bool) -> HeldRecord {
        HeldRecord {
            packed,
            offset: self.offset(),
            timestamp_ms: self.timestamp_ms().unwrap_or(NO_TIMESTAMP),
            partition: self.partition(),
            source: self.source,
            stub,
        }
    }
}

const UNREADABLE: &str = "a record whose headers cannot be read is a stub from the start";

/// What stands where a source keeps no timestamps; also on the wire.
pub(super) const NO_TIMESTAMP: i64 = -1;

/// A record that waits, in memory of its own. There may be millions of them.
#[derive(Debug, Clone)]
pub struct HeldRecord {
    packed: Packed,
    offset: i64,
    timestamp_ms: i64,
    partition: i32,
    source: SourceIndex,
    stub: bool,
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

    /// Key, value and headers.
    pub fn contents(&self) -> Contents<'_> {
        Contents { key: self.key(), value: self.value(), headers: Headers(Kept::Packed(self.packed.headers())) }
    }

    /// Whether only the key is left of the record.
    pub fn is_stub(&self) -> bool {
        self.stub
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
    }

    /// Key, value and headers.
    pub fn contents(&self) -> Contents<'_> {
        match self {
            Output::Fresh(record) => record.contents().expect(UNREADABLE),
            Output::Held(record) => record.contents(),
        }
    }

    /// Whether only the key is left of the record: see [`Record::into_stub`].
    pub fn is_stub(&self) -> bool {
        matches!(self, Output::Held(record) if record.stub)
    }

    /// The headers, to send them. A fresh record hands its list over, and librdkafka parses another one on demand.
    pub(super) fn take_headers(&mut self) -> Option<HeaderList> {
        match self {
            Output::Fresh(record) => HeaderList::take(&mut record.message),
            Output::Held(record) => {
                let headers = record.contents().headers;
                (headers.count() > 0).then(|| headers.to_list(|_| true))
            }
        }
    }

    /// Copies the headers whose names are to stay, in one pass, and drops a fresh record's own list.
    pub(super) fn copy_headers(&mut self, stays: impl Fn(&[u8]) -> bool) -> HeaderList {
        let list = self.contents().headers.to_list(stays);
        if let Output::Fresh(record) = self {
            drop(HeaderList::take(&mut record.message));
        }
        list
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
    /// The headers of any message; none where librdkafka cannot hand them over.
    pub(super) fn of(message: &'r BorrowedMessage<'_>) -> Headers<'r> {
        Headers::native(ffi::headers_of(message).ok().flatten())
    }

    fn native(headers: Option<&'r BorrowedHeaders>) -> Headers<'r> {
        Headers(headers.map_or(Kept::Packed(packed::Headers::NONE), Kept::Native))
    }

    /// Name and value of each header, in order.
    pub fn iter(self) -> impl Iterator<Item = RawHeader<'r>> + Clone {
        let (native, packed) = match self.0 {
            Kept::Native(headers) => (Some(headers), packed::Headers::NONE),
            Kept::Packed(headers) => (None, headers),
        };
        let count = native.map_or(0, ffi::header_count);
        let native = (0..count).map_while(move |index| native.and_then(|headers| ffi::header_at(headers, index)));
        native.chain(packed)
    }

    /// The number of headers.
    pub fn count(self) -> usize {
        match self.0 {
            Kept::Native(headers) => ffi::header_count(headers),
            Kept::Packed(headers) => headers.count(),
        }
    }

    /// A list for librdkafka of the headers whose names are to stay.
    fn to_list(self, stays: impl Fn(&[u8]) -> bool) -> HeaderList {
        let mut list = HeaderList::with_capacity(self.count());
        self.iter().filter(|(name, _)| stays(name)).for_each(|(name, value)| list.add(name, value));
        list
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
}
