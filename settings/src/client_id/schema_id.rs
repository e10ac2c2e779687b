//! The id by which a value names its schema in a registry.

use std::fmt;

/// The header in which serializers of Confluent's 8.0 and later can name the schema of a value:
/// <https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format>.
pub const SCHEMA_ID_HEADER: &str = "__value_schema_id";

/// The id of a schema: a number that one registry gave, or a GUID, which is the same in all registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchemaId {
    Number(u32),
    Guid(u128),
}

impl SchemaId {
    /// Splits bytes into the id in front and the rest. `None` if there is no id: neither the byte 0 and a number in
    /// four bytes, nor the byte 1 and a GUID in sixteen.
    ///
    /// The bytes come from a producer. No text begins with one of the two bytes, but a value in another format may.
    pub fn split(bytes: &[u8]) -> Option<(SchemaId, &[u8])> {
        match bytes.split_first()? {
            (0, rest) => {
                let (number, rest) = rest.split_first_chunk()?;
                Some((SchemaId::Number(u32::from_be_bytes(*number)), rest))
            }
            (1, rest) => {
                let (guid, rest) = rest.split_first_chunk()?;
                Some((SchemaId::Guid(u128::from_be_bytes(*guid)), rest))
            }
            _ => None,
        }
    }
}

impl fmt::Display for SchemaId {
    /// Writes a GUID in groups of 8, 4, 4, 4 and 12 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchemaId::Number(number) => number.fmt(formatter),
            SchemaId::Guid(guid) => {
                let digits = format!("{guid:032x}");
                let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
                write!(formatter, "{a}-{b}-{c}-{d}-{e}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_number_or_a_guid() {
        assert_eq!(SchemaId::split(&[0, 1, 2, 3, 4, 9]), Some((SchemaId::Number(0x0102_0304), &[9][..])));
        assert_eq!(SchemaId::split(&[0, 0, 0, 0, 7]), Some((SchemaId::Number(7), &[][..])));
        let guid = b"\x01\x89\x79\x17\x62\x23\x36\x41\x86\x9f\x0c\xff\x9a\xeb\x34\x5e\x41rest";
        let (id, rest) = SchemaId::split(guid).unwrap();
        assert_eq!((&*id.to_string(), rest), ("89791762-2336-4186-9f0c-ff9aeb345e41", &b"rest"[..]));
        for other in [&b""[..], &[0], &[0, 0, 0, 7], &guid[..16], &[2, 0, 0, 0, 7], b"{\"id\": 7}"] {
            assert_eq!(SchemaId::split(other), None, "{other:?}");
        }
    }
}
