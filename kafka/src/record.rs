//! Records read from a source, held in a backlog, and sent.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage};

mod packed;

use watermaster_settings::client_id::{Fields, HeaderLookup};

use crate::ffi::{self, HeaderList, RawHeader};
use packed::{Packed, PackedHeaders};

/// The source of a record or partition: an index into `Service.sources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceIndex(pub u16);

impl SourceIndex {
    /// Converts it to `usize`.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The most headers of a record that is forwarded or kept. A record with more goes to the dead-letter topic as a stub.
pub const MAX_HEADERS: usize = 10_000;

/// Memory of a header beyond its name and value: librdkafka's struct, its allocation and its slot in the list.
pub const HEADER_OVERHEAD: usize = 64;

/// Memory of a record beyond its contents: the core's node, the slot in the engine's list, the allocation.
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
    /// Returns the memory cost of the record in bytes: key + value + Σ (name + value + [`HEADER_OVERHEAD`]) +
    /// [`RECORD_OVERHEAD`].
    ///
    /// `queue_bytes`, the bound of a round and the metrics all use this definition, and a record costs the same when
    /// it is read and after it has waited. A copy made by librdkafka takes about this much; a packed one takes less.
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

/// A record just read. It pins the memory of its fetch: keep it for a round at most, and [`detach`](Record::detach)
/// it if it waits longer.
#[derive(Debug)]
pub struct Record<'c> {
    pub(super) message: BorrowedMessage<'c>,
    pub(super) source: SourceIndex,
}

impl Record<'_> {
    /// Returns the record's source.
    pub fn source(&self) -> SourceIndex {
        self.source
    }

    /// Returns the record's partition of the source.
    pub fn partition(&self) -> i32 {
        self.message.partition()
    }

    /// Returns the record's offset in the source partition.
    pub fn offset(&self) -> i64 {
        self.message.offset()
    }

    /// Returns the key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        self.message.key()
    }

    /// Returns the value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.message.payload()
    }

    /// Returns milliseconds since 1970, where the source keeps timestamps.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.message.timestamp().to_millis()
    }

    /// Returns key, value and headers; `None` if there are more than [`MAX_HEADERS`] headers, or librdkafka cannot
    /// hand them over. Such a record can only be turned [`into_stub`](Record::into_stub).
    pub fn contents(&self) -> Option<Contents<'_>> {
        let headers = ffi::headers_of(&self.message).ok()?;
        if headers.is_some_and(|headers| ffi::header_count(headers) > MAX_HEADERS) {
            return None;
        }
        Some(Contents { key: self.key(), value: self.value(), headers: Headers::native(headers) })
    }

    /// Copies the record, so that it does not pin its fetch.
    pub fn detach(&self) -> HeldRecord {
        let contents = self.contents().expect(UNREADABLE);
        self.held(Packed::new(contents.key, contents.value, contents.headers.iter()), false)
    }

    /// Keeps the key; drops value and headers, including the list that librdkafka parsed.
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

const UNREADABLE: &str = "a record with unreadable headers is a stub from the start";

/// The timestamp, also on the wire, of a record from a source that keeps none.
pub(super) const NO_TIMESTAMP: i64 = -1;

/// A record that waits, in memory of its own. There may be millions of such records.
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
    /// Returns the record's source.
    pub fn source(&self) -> SourceIndex {
        self.source
    }

    /// Returns the record's partition of the source.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Returns the record's offset in the source partition.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Returns the key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        self.packed.key()
    }

    /// Returns the value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        self.packed.value()
    }

    /// Returns milliseconds since 1970, where the source keeps timestamps.
    pub fn timestamp_ms(&self) -> Option<i64> {
        (self.timestamp_ms != NO_TIMESTAMP).then_some(self.timestamp_ms)
    }

    /// Returns key, value and headers.
    pub fn contents(&self) -> Contents<'_> {
        Contents {
            key: self.key(),
            value: self.value(),
            headers: Headers(StoredHeaders::Packed(self.packed.headers())),
        }
    }

    /// Returns true if only the key is left of the record.
    pub fn is_stub(&self) -> bool {
        self.stub
    }
}

/// A record to send, read just now or held before.
#[derive(Debug)]
pub enum Output<'c> {
    Fresh(Record<'c>),
    Held(HeldRecord),
}

/// Defines accessors that delegate to the record inside.
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

    /// Returns key, value and headers.
    pub fn contents(&self) -> Contents<'_> {
        match self {
            Output::Fresh(record) => record.contents().expect(UNREADABLE),
            Output::Held(record) => record.contents(),
        }
    }

    /// Returns true if only the key is left of the record: see [`Record::into_stub`].
    pub fn is_stub(&self) -> bool {
        matches!(self, Output::Held(record) if record.stub)
    }

    /// Returns the headers to send. A fresh record hands its list over, and librdkafka parses another one on demand.
    pub(super) fn take_headers(&mut self) -> Option<HeaderList> {
        match self {
            Output::Fresh(record) => HeaderList::take(&mut record.message),
            Output::Held(record) => {
                let headers = record.contents().headers;
                (headers.count() > 0).then(|| headers.to_list(|_| true))
            }
        }
    }

    /// Copies the headers that `keep` selects by name, in one pass, and drops a fresh record's list.
    pub(super) fn copy_headers(&mut self, keep: impl Fn(&[u8]) -> bool) -> HeaderList {
        let list = self.contents().headers.to_list(keep);
        if let Output::Fresh(record) = self {
            drop(HeaderList::take(&mut record.message));
        }
        list
    }
}

/// The headers of a record: names and values are any bytes, names may repeat, values may be null.
#[derive(Clone, Copy)]
pub struct Headers<'r>(StoredHeaders<'r>);

/// The two forms in which headers are stored.
#[derive(Clone, Copy)]
enum StoredHeaders<'r> {
    Native(&'r BorrowedHeaders),
    Packed(PackedHeaders<'r>),
}

impl<'r> Headers<'r> {
    /// Returns the headers of any message; none if librdkafka cannot hand them over.
    #[cfg(any(test, feature = "tools"))]
    pub(super) fn of(message: &'r BorrowedMessage<'_>) -> Headers<'r> {
        Headers::native(ffi::headers_of(message).ok().flatten())
    }

    fn native(headers: Option<&'r BorrowedHeaders>) -> Headers<'r> {
        Headers(headers.map_or(StoredHeaders::Packed(PackedHeaders::NONE), StoredHeaders::Native))
    }

    /// Returns name and value of each header, in order.
    pub fn iter(self) -> impl Iterator<Item = RawHeader<'r>> + Clone {
        let (native, packed) = match self.0 {
            StoredHeaders::Native(headers) => (Some(headers), PackedHeaders::NONE),
            StoredHeaders::Packed(headers) => (None, headers),
        };
        let count = native.map_or(0, ffi::header_count);
        let native = (0..count).map_while(move |index| native.and_then(|headers| ffi::header_at(headers, index)));
        native.chain(packed)
    }

    /// Returns the number of headers.
    pub fn count(self) -> usize {
        match self.0 {
            StoredHeaders::Native(headers) => ffi::header_count(headers),
            StoredHeaders::Packed(headers) => headers.count(),
        }
    }

    /// Makes a list for librdkafka of the headers that `keep` selects by name.
    fn to_list(self, keep: impl Fn(&[u8]) -> bool) -> HeaderList {
        let mut list = HeaderList::with_capacity(self.count());
        self.iter().filter(|(name, _)| keep(name)).for_each(|(name, value)| list.add(name, value));
        list
    }

    /// Looks up the header of this name.
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
