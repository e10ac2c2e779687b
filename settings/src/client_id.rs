//! Finds the client id of a record.
//!
//! The places in `client_from` are tried in order. A place that is absent or empty passes on to the next. A place that
//! holds something unusable ends the search and makes the record anonymous: a client with a broken id must not be taken
//! for the client that a later place names. For a JSON pointer, a value without a schema id in front that is not JSON
//! counts as absent: it is of another format, and may have its client in another place.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::{ClientFrom, SchemaFormat, Service, Source};
use crate::pattern::{MAX_SEARCHED_BYTES, Pattern};
pub use schema_id::{SCHEMA_ID_HEADER, SchemaId};

mod schema_id;

/// The longest client id, in bytes.
pub const MAX_CLIENT_BYTES: usize = 128;

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

/// The schemas by which values are written, as far as they are known.
pub trait Schemas {
    /// Finds the id at a path of fields in a value. `header` is the record's [`SCHEMA_ID_HEADER`]. A value without a
    /// schema, or with one of another format, has no id.
    fn find<'r>(
        &self, format: SchemaFormat, path: &[String], header: HeaderLookup<'r>, value: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema>;
}

/// The schema with this id has to be fetched before a record can be decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownSchema(pub SchemaId);

/// Stands in where no place needs a schema.
#[derive(Debug)]
pub struct NoSchemas;

impl Schemas for NoSchemas {
    fn find<'r>(
        &self, _: SchemaFormat, _: &[String], _: HeaderLookup<'r>, _: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema> {
        Ok(Ok(None))
    }
}

/// The sender of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity<'r> {
    /// A client id of 1 to [`MAX_CLIENT_BYTES`] bytes.
    Client(Cow<'r, str>),
    Anonymous(AnonymousReason),
    Unknown(UnknownSchema),
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
    #[error("it is longer than the {MAX_SEARCHED_BYTES} bytes that a pattern searches")]
    TooLongToSearch,
    #[error("the value at the JSON pointer is neither a string nor an integer")]
    NotAnId,
    #[error("a key on the JSON pointer's path occurs more than once")]
    DuplicateKey,
    #[error("the id of its group holds /")]
    SlashInGroup,
    #[error("it holds /, and the record names no group")]
    SlashInClient,
    #[error("the value is not JSON")]
    NotJson,
    #[error("the value is not JSON behind the id of its schema")]
    BrokenJson,
    #[error("the field is neither a string nor an integer nor an enum")]
    NotAField,
    #[error("a field on the path occurs more than once, or beside another one of its oneof")]
    RepeatedField,
    #[error("the value does not fit its schema")]
    BrokenValue,
    #[error("the header {SCHEMA_ID_HEADER} is no id of a schema")]
    BrokenSchemaId,
}

/// Finds the client id of a record that was read from `source`.
pub fn identify<'r>(
    from: &[ClientFrom], record: &'r impl Fields, source: &'r Source, schemas: &impl Schemas,
) -> Identity<'r> {
    let mut absent = AnonymousReason::Missing;
    for place in from {
        let found = match place {
            ClientFrom::Header(name) => from_header(record.header(name)),
            ClientFrom::Json(path) => from_json(path, record.value()),
            ClientFrom::Schema(format, path) => {
                match schemas.find(*format, path, record.header(SCHEMA_ID_HEADER), record.value()) {
                    Ok(found) => found,
                    Err(unknown) => return Identity::Unknown(unknown),
                }
            }
            ClientFrom::Key => from_bytes(record.key()),
            ClientFrom::HeaderPart(name, pattern) => match record.header(name) {
                HeaderLookup::Once(value) => from_part(pattern, value),
                other => from_header(other),
            },
            ClientFrom::KeyPart(pattern) => from_part(pattern, record.key()),
            ClientFrom::Topic => Ok(source.client.as_deref().map(Cow::Borrowed)),
        };
        match found.and_then(usable) {
            Ok(Some(client)) => return Identity::Client(client),
            Ok(None) => {}
            Err(AnonymousReason::NotJson) => absent = AnonymousReason::NotJson,
            Err(reason) => return Identity::Anonymous(reason),
        }
    }
    Identity::Anonymous(absent)
}

/// The sender of a record, by the rules of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedSender<'r> {
    /// A client of a record that names no group.
    Client(Cow<'r, str>),
    /// A client of a record that names the client's group, by the ids of both.
    InGroup {
        group: Cow<'r, str>,
        client: Cow<'r, str>,
    },
    /// The source does not allow the client with this id.
    NotAllowed(Cow<'r, str>),
    Anonymous(AnonymousReason),
    Unknown(UnknownSchema),
}

/// Finds the sender of a record that was read from `source`. The source allows clients by their ids alone, so a group
/// is looked for last. An id with `/` would be taken for a client of a group.
pub fn sender_of<'r>(
    service: &Service, record: &'r impl Fields, source: &'r Source, schemas: &impl Schemas,
) -> NamedSender<'r> {
    let client = match identify(&service.client_from, record, source, schemas) {
        Identity::Client(client) if !source.allows(&client) => return NamedSender::NotAllowed(client),
        Identity::Client(client) => client,
        Identity::Anonymous(why) => return NamedSender::Anonymous(why),
        Identity::Unknown(schema) => return NamedSender::Unknown(schema),
    };
    if service.group_from.is_empty() {
        return NamedSender::Client(client);
    }
    match identify(&service.group_from, record, source, schemas) {
        Identity::Client(group) if group.contains('/') => NamedSender::Anonymous(AnonymousReason::SlashInGroup),
        Identity::Client(group) => NamedSender::InGroup { group, client },
        Identity::Anonymous(AnonymousReason::Missing | AnonymousReason::NotJson) => match client.contains('/') {
            true => NamedSender::Anonymous(AnonymousReason::SlashInClient),
            false => NamedSender::Client(client),
        },
        Identity::Anonymous(why) => NamedSender::Anonymous(why),
        Identity::Unknown(schema) => NamedSender::Unknown(schema),
    }
}

/// The result of trying one place: an id, nothing, or the reason why the content can't be an id.
pub type Found<'r> = Result<Option<Cow<'r, str>>, AnonymousReason>;

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

fn from_part<'r>(pattern: &Pattern, bytes: Option<&'r [u8]>) -> Found<'r> {
    match bytes {
        Some(bytes) if bytes.len() > MAX_SEARCHED_BYTES => Err(AnonymousReason::TooLongToSearch),
        bytes => from_bytes(bytes.and_then(|bytes| pattern.find(bytes))),
    }
}

fn from_json<'r>(path: &[String], value: Option<&'r [u8]>) -> Found<'r> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    // The serializers for JSON Schema write an id in front of the text, or in a header.
    let (text, broken) = match SchemaId::split(value) {
        Some((_, text)) => (text, AnonymousReason::BrokenJson),
        None => (value, AnonymousReason::NotJson),
    };
    // The whole text, since serde_json does not look inside the strings that it skips.
    let text = std::str::from_utf8(text).map_err(|_| broken)?;
    match walk::<false>(path, text) {
        // serde_json hands an integer beyond 64 bits over as a float. A second walk finds its digits.
        Err(Some(AnonymousReason::NotAnId)) => walk::<true>(path, text),
        found => found,
    }
    .map_err(|fault| fault.unwrap_or(broken))
}

/// Walks the path through the JSON text without building a tree. Values beside the path are checked and skipped. Fails
/// without a reason if the text is not JSON.
fn walk<'r, const INTEGER: bool>(
    path: &[String], text: &'r str,
) -> Result<Option<Cow<'r, str>>, Option<AnonymousReason>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut fault = None;
    let found = JsonWalk::<INTEGER> { path, fault: &mut fault }.deserialize(&mut deserializer);
    let found = found.and_then(|found| deserializer.end().map(|()| found));
    found.map_err(|_| fault)
}

/// Deserializes to the string or the integer at `path`, or with `INTEGER` only to an integer, of any length; to `None`
/// if the path leads nowhere.
///
/// Recursion is at most as deep as the path, of which serde_json takes 128 levels. Skipped values need no stack.
struct JsonWalk<'p, const INTEGER: bool> {
    path: &'p [String],
    /// Set before failing on a text that is well-formed.
    fault: &'p mut Option<AnonymousReason>,
}

impl<const INTEGER: bool> JsonWalk<'_, INTEGER> {
    fn fail<E: serde::de::Error>(self, reason: AnonymousReason) -> E {
        *self.fault = Some(reason);
        E::custom("refused")
    }

    /// Takes a value that has nothing below it.
    fn leaf<'de, E: serde::de::Error>(self) -> Result<Option<Cow<'de, str>>, E> {
        if self.path.is_empty() { Err(self.fail(AnonymousReason::NotAnId)) } else { Ok(None) }
    }
}

impl<'de, const INTEGER: bool> DeserializeSeed<'de> for JsonWalk<'_, INTEGER> {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if INTEGER && self.path.is_empty() {
            let text = <&RawValue>::deserialize(deserializer)?.get();
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
            return if is_integer { Ok(Some(Cow::Borrowed(text))) } else { self.leaf() };
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de, const INTEGER: bool> Visitor<'de> for JsonWalk<'_, INTEGER> {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(self.path.is_empty().then_some(Cow::Borrowed(text)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if !self.path.is_empty() {
            return Ok(None);
        }
        // Checked before the copy, since the sender chooses the length.
        if text.len() > MAX_CLIENT_BYTES {
            return Err(self.fail(AnonymousReason::TooLong));
        }
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Self::Value, E> {
        self.leaf()
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(self.path.is_empty().then(|| Cow::Owned(number.to_string())))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.path.is_empty().then(|| Cow::Owned(number.to_string())))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Self::Value, E> {
        self.leaf()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
        self.leaf()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, path)) = self.path.split_first() else {
            return Err(self.fail(AnonymousReason::NotAnId));
        };
        let (mut seen, mut found) = (false, None);
        while let Some(on_path) = map.next_key_seed(KeySeed(wanted))? {
            if !on_path {
                map.next_value::<IgnoredAny>()?;
            } else if seen {
                return Err(self.fail(AnonymousReason::DuplicateKey));
            } else {
                seen = true;
                found = map.next_value_seed(JsonWalk::<INTEGER> { path, fault: &mut *self.fault })?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, path)) = self.path.split_first() else {
            return Err(self.fail(AnonymousReason::NotAnId));
        };
        let wanted = array_index(wanted);
        let mut found = None;
        for index in 0_usize.. {
            let more = if wanted == Some(index) {
                let element = array.next_element_seed(JsonWalk::<INTEGER> { path, fault: &mut *self.fault })?;
                element.map(|element| found = element).is_some()
            } else {
                array.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }
}

/// Parses an array index as RFC 6901 writes it: digits without leading zeros.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (token == "0" || !token.starts_with('0'))).then(|| token.parse().ok()).flatten()
}

/// Deserializes a key to `true` if it is equal to this one.
struct KeySeed<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

#[cfg(test)]
mod tests;
