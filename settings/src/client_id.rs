//! Finds the client id of a record.
//!
//! The places in `client_from` are tried in order. A place that is absent or empty passes on to the next. A place that
//! holds something unusable ends the search and makes the record anonymous: a client with a broken id must not be taken
//! for the client that a later place names.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{ClientFrom, Source};

/// The longest client id, in bytes.
pub const MAX_CLIENT_BYTES: usize = 128;
/// The longest path that is followed, which bounds the work: each step reads the value that it leads to again.
const MAX_PATH: usize = 128;

/// The parts of a record that may hold a client id.
pub trait Fields {
    /// Looks for the header of this name.
    fn header(&self, name: &str) -> HeaderLookup<'_>;
    /// Returns the record's key.
    fn key(&self) -> Option<&[u8]>;
    /// Returns the record's value.
    fn value(&self) -> Option<&[u8]>;
}

/// The result of looking for a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLookup<'r> {
    Absent,
    Once(Option<&'r [u8]>),
    Repeated,
}

/// The sender of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity<'r> {
    /// A client id of 1 to [`MAX_CLIENT_BYTES`] bytes.
    Client(Cow<'r, str>),
    Anonymous(AnonymousReason),
}

/// The reason why a record has no client id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnonymousReason {
    #[error("nothing in client_from yields one")]
    Missing,
    #[error("it is not UTF-8")]
    NotUtf8,
    #[error("it is longer than {MAX_CLIENT_BYTES} bytes")]
    TooLong,
    #[error("the header occurs more than once")]
    RepeatedHeader,
    #[error("the value at the JSON pointer is not a string")]
    NotAString,
    #[error("a key on the JSON pointer's path occurs more than once")]
    DuplicateKey,
    #[error("the value is not JSON")]
    BrokenJson,
}

/// Finds the client id of a record that was read from `source`.
pub fn identify<'r>(from: &[ClientFrom], record: &'r impl Fields, source: &'r Source) -> Identity<'r> {
    for place in from {
        let found = match place {
            ClientFrom::Header(name) => from_header(record.header(name)),
            ClientFrom::Json(path) => from_json(path, record.value()),
            ClientFrom::Key => from_bytes(record.key()),
            ClientFrom::Topic => Ok(source.client.as_deref().map(Cow::Borrowed)),
        };
        match found.and_then(usable) {
            Ok(Some(client)) => return Identity::Client(client),
            Ok(None) => {}
            Err(reason) => return Identity::Anonymous(reason),
        }
    }
    Identity::Anonymous(AnonymousReason::Missing)
}

/// The result of trying one place: an id, nothing, or the reason why the content can't be an id.
type Found<'r> = Result<Option<Cow<'r, str>>, AnonymousReason>;

fn usable(name: Option<Cow<'_, str>>) -> Found<'_> {
    match name {
        Some(name) if name.is_empty() => Ok(None),
        Some(name) if name.len() > MAX_CLIENT_BYTES => Err(AnonymousReason::TooLong),
        name => Ok(name),
    }
}

fn from_header(header: HeaderLookup<'_>) -> Found<'_> {
    match header {
        HeaderLookup::Absent => Ok(None),
        HeaderLookup::Once(value) => from_bytes(value),
        HeaderLookup::Repeated => Err(AnonymousReason::RepeatedHeader),
    }
}

fn from_bytes(bytes: Option<&[u8]>) -> Found<'_> {
    let Some(bytes) = bytes else { return Ok(None) };
    if bytes.len() > MAX_CLIENT_BYTES {
        return Err(AnonymousReason::TooLong);
    }
    std::str::from_utf8(bytes).map(|name| Some(Cow::Borrowed(name))).map_err(|_| AnonymousReason::NotUtf8)
}

/// Follows the path through the JSON text without building a tree. Values beside the path are checked and skipped.
fn from_json<'r>(path: &[String], value: Option<&'r [u8]>) -> Found<'r> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    if path.len() > MAX_PATH {
        return Err(AnonymousReason::BrokenJson);
    }
    // The whole text, since serde_json does not look inside the strings that it skips.
    let text = std::str::from_utf8(value).map_err(|_| AnonymousReason::BrokenJson)?;
    let mut at = text.trim_start_matches([' ', '\t', '\r', '\n']);
    for token in path {
        if !at.starts_with(['{', '[']) {
            return parse(at, PhantomData::<IgnoredAny>).map(|_| None);
        }
        let Some(child) = parse(at, Child(token))?? else { return Ok(None) };
        at = child.get();
    }
    if !at.starts_with('"') {
        return parse(at, PhantomData::<IgnoredAny>).and(Err(AnonymousReason::NotAString));
    }
    parse(at, PhantomData::<Text<'_>>).map(|name| Some(name.0))
}

/// Parses the whole text.
fn parse<'de, S: DeserializeSeed<'de>>(text: &'de str, seed: S) -> Result<S::Value, AnonymousReason> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|_| AnonymousReason::BrokenJson)
}

/// A string, which is copied only if it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Finds the member of an object, or the element of an array, that a token of a JSON pointer names.
struct Child<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Child<'_> {
    type Value = Result<Option<&'de RawValue>, AnonymousReason>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Child<'_> {
    type Value = Result<Option<&'de RawValue>, AnonymousReason>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = Ok(None);
        while let Some(Text(key)) = object.next_key()? {
            let value = object.next_value()?;
            if key == self.0 {
                found = if matches!(found, Ok(None)) { Ok(Some(value)) } else { Err(AnonymousReason::DuplicateKey) };
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let wanted = array_index(self.0);
        let (mut found, mut index) = (None, 0);
        while let Some(value) = array.next_element()? {
            found = if wanted == Some(index) { Some(value) } else { found };
            index += 1;
        }
        Ok(Ok(found))
    }
}

/// Parses an array index as RFC 6901 writes it: digits without leading zeros.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (token == "0" || !token.starts_with('0'))).then(|| token.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
