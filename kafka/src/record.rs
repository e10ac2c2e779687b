//! Records: fetched from a source, held in a backlog, and sent.

use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, Timestamp};

mod packed;

use watermaster_settings::client_id::{Fields, HeaderLookup};

use crate::ffi::{self, HeaderList, RawHeader};
use crate::topics::{SourceIndex, SourcePartition};
use packed::{Packed, Pairs};

/// The most headers of a record that is forwarded or kept. A record with more goes to the dead-letter topic as a stub.
pub const MAX_HEADERS: usize = 10_000;

/// Memory of a header beyond its name and value: librdkafka's struct, its allocation and its slot in the list.
pub const HEADER_OVERHEAD: usize = 64;

/// Memory of a record beyond its contents: the core's node, the slot in the engine's list, the allocation.
pub const RECORD_OVERHEAD: usize = 200;

/// The timestamp, also on the wire, of a record from a source that keeps none.
pub const NO_TIMESTAMP: i64 = -1;

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
        let headers: usize = self.headers.map(header).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers + RECORD_OVERHEAD
    }

    /// Returns all headers but the last.
    pub(crate) fn first_headers(&self) -> std::iter::Take<Headers<'_>> {
        self.headers.take(self.headers.count().saturating_sub(1))
    }

    fn pack<'r>(&self, headers: impl Iterator<Item = RawHeader<'r>> + Clone) -> Packed {
        let headers = headers.map(|(name, value)| (Some(name), value));
        Packed::new(std::iter::once((self.key, self.value)).chain(headers))
    }
}

impl Fields for Contents<'_> {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        self.headers.lookup(name.as_bytes())
    }

    fn key(&self) -> Option<&[u8]> {
        self.key
    }

    fn value(&self) -> Option<&[u8]> {
        self.value
    }
}

/// The origin of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub source: SourceIndex,
    /// The partition of the source.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
    /// Milliseconds since 1970, or [`NO_TIMESTAMP`].
    pub timestamp_ms: i64,
    /// True if the timestamp is the broker's, not the producer's.
    pub append_time: bool,
}

impl Origin {
    /// Returns the timestamp, if the record has one.
    pub fn written_ms(self) -> Option<i64> {
        (self.timestamp_ms != NO_TIMESTAMP).then_some(self.timestamp_ms)
    }

    /// Returns the source and its partition.
    pub fn address(self) -> SourcePartition {
        (self.source, self.partition)
    }
}

/// A record of a source. There may be millions of them in a backlog.
#[derive(Debug)]
pub struct Record<'c> {
    pub origin: Origin,
    body: Body<'c>,
}

#[derive(Debug)]
enum Body<'c> {
    /// Pins the memory of its fetch.
    Fetched(BorrowedMessage<'c>),
    /// A copy in memory of its own.
    Held(Packed),
    /// The key alone.
    Stub(Packed),
}

impl<'c> Record<'c> {
    pub(super) fn new(message: BorrowedMessage<'c>, source: SourceIndex) -> Record<'c> {
        let (partition, offset, timestamp) = (message.partition(), message.offset(), message.timestamp());
        let timestamp_ms = timestamp.to_millis().unwrap_or(NO_TIMESTAMP);
        let append_time = matches!(timestamp, Timestamp::LogAppendTime(_));
        let origin = Origin { source, partition, offset, timestamp_ms, append_time };
        Record { origin, body: Body::Fetched(message) }
    }

    /// Returns a record with a copy of these contents.
    #[cfg(test)]
    pub(crate) fn held<'r>(
        origin: Origin, key: Option<&'r [u8]>, value: Option<&'r [u8]>,
        headers: impl Iterator<Item = RawHeader<'r>> + Clone,
    ) -> Record<'static> {
        let contents = Contents { key, value, headers: Headers::of_list(None) };
        Record { origin, body: Body::Held(contents.pack(headers)) }
    }

    /// Returns the key; null and empty differ.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Fetched(message) => message.key(),
            Body::Held(packed) | Body::Stub(packed) => packed.pairs().next()?.0,
        }
    }

    /// Returns the value; null is a tombstone.
    pub fn value(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Fetched(message) => message.payload(),
            Body::Held(packed) | Body::Stub(packed) => packed.pairs().next()?.1,
        }
    }

    /// Returns key, value and headers; `None` if there are more than [`MAX_HEADERS`] headers, or librdkafka cannot
    /// hand them over. Such a record can only be turned [`into_stub`](Record::into_stub).
    pub fn contents(&self) -> Option<Contents<'_>> {
        let headers = match &self.body {
            Body::Fetched(message) => {
                let headers = Headers::of_list(ffi::headers_of(message).ok()?);
                if matches!(headers.0, Stored::Native { end, .. } if end > MAX_HEADERS) {
                    return None;
                }
                headers
            }
            Body::Held(packed) | Body::Stub(packed) => {
                let mut pairs = packed.pairs();
                pairs.next();
                Headers(Stored::Packed(pairs))
            }
        };
        Some(Contents { key: self.key(), value: self.value(), headers })
    }

    fn readable(&self) -> Contents<'_> {
        self.contents().expect("a record with unreadable headers is a stub from the start")
    }

    /// Returns the memory [`cost`](Contents::cost) of a record with readable headers.
    pub fn cost(&self) -> usize {
        self.readable().cost()
    }

    pub(super) fn headers(&self) -> Headers<'_> {
        self.readable().headers
    }

    /// Copies the record, so that it does not pin its fetch: for records that are kept for longer than a round.
    pub fn detach(&mut self) {
        if let Body::Fetched(_) = self.body {
            let contents = self.readable();
            self.body = Body::Held(contents.pack(contents.headers));
        }
    }

    /// Copies the record without its last header.
    pub fn without_last_header(self) -> Record<'c> {
        let contents = self.readable();
        Record { origin: self.origin, body: Body::Held(contents.pack(contents.first_headers())) }
    }

    /// Keeps the key; drops value and headers, including the list that librdkafka parsed.
    pub fn into_stub(self) -> Record<'c> {
        let key_alone = Contents { key: self.key(), value: None, headers: Headers::of_list(None) };
        Record { origin: self.origin, body: Body::Stub(key_alone.pack(key_alone.headers)) }
    }

    /// Returns true if only the key is left of the record: see [`into_stub`](Record::into_stub).
    pub fn is_stub(&self) -> bool {
        matches!(self.body, Body::Stub(_))
    }

    /// Returns the headers to send. A fetched record hands its list over, and librdkafka parses another one on demand.
    pub(super) fn take_headers(&mut self) -> Option<HeaderList> {
        match &mut self.body {
            Body::Fetched(message) => HeaderList::take(message),
            Body::Held(_) | Body::Stub(_) => {
                let headers = self.headers();
                (headers.count() > 0).then(|| headers.to_list(|_| true))
            }
        }
    }

    /// Copies the headers that `keep` selects by name, in one pass, and drops a fetched record's list.
    pub(super) fn copy_headers(&mut self, keep: impl Fn(&[u8]) -> bool) -> HeaderList {
        let list = self.headers().to_list(keep);
        if let Body::Fetched(message) = &mut self.body {
            drop(HeaderList::take(message));
        }
        list
    }
}

/// The headers of a record that are left to iterate over: names and values are any bytes, names may repeat, values may
/// be null.
#[derive(Clone, Copy)]
pub struct Headers<'r>(Stored<'r>);

#[derive(Clone, Copy)]
enum Stored<'r> {
    Native { list: &'r BorrowedHeaders, next: usize, end: usize },
    Packed(Pairs<'r>),
}

impl<'r> Iterator for Headers<'r> {
    type Item = RawHeader<'r>;

    fn next(&mut self) -> Option<RawHeader<'r>> {
        match &mut self.0 {
            Stored::Native { list, next, end } => {
                // A call of librdkafka that finds no header costs as much as one that finds one.
                if next == end {
                    return None;
                }
                let header = ffi::header_at(list, *next)?;
                *next += 1;
                Some(header)
            }
            Stored::Packed(pairs) => pairs.next().map(|(name, value)| (name.unwrap_or_default(), value)),
        }
    }
}

impl<'r> Headers<'r> {
    /// Returns the headers of any message; none if librdkafka cannot hand them over.
    pub(super) fn of(message: &'r BorrowedMessage<'_>) -> Headers<'r> {
        Headers::of_list(ffi::headers_of(message).ok().flatten())
    }

    fn of_list(list: Option<&'r BorrowedHeaders>) -> Headers<'r> {
        let native = |list| Stored::Native { list, next: 0, end: list.count() };
        Headers(list.map_or(Stored::Packed(Pairs::default()), native))
    }

    /// Returns the last header, without a look at the others if they are librdkafka's.
    pub(crate) fn last_one(self) -> Option<RawHeader<'r>> {
        match &self.0 {
            Stored::Native { list, end, .. } => ffi::header_at(list, end.checked_sub(1)?),
            Stored::Packed(_) => self.last(),
        }
    }

    /// Makes a list for librdkafka of the headers that `keep` selects by name.
    fn to_list(self, keep: impl Fn(&[u8]) -> bool) -> HeaderList {
        let mut list = HeaderList::with_capacity(self.count());
        self.filter(|(name, _)| keep(name)).for_each(|(name, value)| list.add(name, value));
        list
    }

    /// Looks up the header of this name.
    pub fn lookup(self, name: &[u8]) -> HeaderLookup<'r> {
        let mut named = self.filter(|(other, _)| *other == name);
        match (named.next(), named.next()) {
            (None, _) => HeaderLookup::Absent,
            (Some((_, value)), None) => HeaderLookup::Once(value),
            (Some(_), Some(_)) => HeaderLookup::Repeated,
        }
    }
}
