//! Reads bytes that a producer chose: each call checks the length, and none allocates.

use watermaster_settings::client_id::{AnonymousReason, HeaderLookup, SchemaId};

/// A value that names its schema.
#[derive(Debug, Clone, Copy)]
pub struct Named<'r> {
    pub id: SchemaId,
    /// The way to the message of a Protobuf value in its file. `None` if it is in front of the body.
    pub message: Option<&'r [u8]>,
    pub body: &'r [u8],
}

/// Finds the id of a value's schema: in the header for it, else in front of the value. `None` if it is in neither.
///
/// A header that is there counts alone, as for the deserializers of Confluent. The bytes in front of such a value
/// belong to the value, and may look like an id.
pub fn named<'r>(header: HeaderLookup<'r>, value: Option<&'r [u8]>) -> Result<Option<Named<'r>>, AnonymousReason> {
    let Some(value) = value else { return Ok(None) };
    match header {
        HeaderLookup::Once(Some(header)) => {
            let (id, message) = SchemaId::split(header).ok_or(AnonymousReason::BrokenSchemaId)?;
            Ok(Some(Named { id, message: Some(message), body: value }))
        }
        HeaderLookup::Absent | HeaderLookup::Once(None) => {
            Ok(SchemaId::split(value).map(|(id, body)| Named { id, message: None, body }))
        }
        HeaderLookup::Repeated => Err(AnonymousReason::RepeatedHeader),
    }
}

/// The bytes that are left of a value.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'r>(pub &'r [u8]);

type Read<T> = Result<T, AnonymousReason>;

const BROKEN: AnonymousReason = AnonymousReason::BrokenValue;

impl<'r> Bytes<'r> {
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.0.split_first().ok_or(BROKEN)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn take(&mut self, length: u64) -> Read<&'r [u8]> {
        let length = usize::try_from(length).map_err(|_| BROKEN)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(BROKEN)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads an integer of up to 64 bits, seven bits a byte, least significant first. Bits beyond the 64th are refused.
    pub fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(BROKEN);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(BROKEN)
    }

    /// Reads a signed integer in the form that keeps small negative numbers short.
    pub fn zigzag(&mut self) -> Read<i64> {
        Ok(from_zigzag(self.varint()?))
    }
}

/// Returns the signed integer of a number in which the lowest bit is the sign.
pub fn from_zigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_counts_before_the_bytes_in_front() {
        let value = &b"\0\0\0\0\x08rest"[..];
        let of = |header, value| named(header, value).map(|named| named.map(|it| (it.id, it.message, it.body)));
        let in_front = Ok(Some((SchemaId::Number(8), None, &b"rest"[..])));
        assert_eq!(of(HeaderLookup::Absent, Some(value)), in_front);
        assert_eq!(of(HeaderLookup::Once(None), Some(value)), in_front);
        let in_header = |message| Ok(Some((SchemaId::Number(7), Some(message), value)));
        assert_eq!(of(HeaderLookup::Once(Some(b"\0\0\0\0\x07")), Some(value)), in_header(&b""[..]));
        assert_eq!(of(HeaderLookup::Once(Some(b"\0\0\0\0\x07\0")), Some(value)), in_header(&b"\0"[..]));
        for broken in [&b""[..], b"7", b"\0\0\0\x07", b"\x01\0\0\0\x07"] {
            let found = of(HeaderLookup::Once(Some(broken)), Some(value));
            assert_eq!(found, Err(AnonymousReason::BrokenSchemaId), "{broken:?}");
        }
        assert_eq!(of(HeaderLookup::Repeated, Some(value)), Err(AnonymousReason::RepeatedHeader));
        assert_eq!(of(HeaderLookup::Once(Some(b"7")), None), Ok(None), "a tombstone has no schema");
        assert_eq!(of(HeaderLookup::Absent, Some(b"{}")), Ok(None));
    }

    #[test]
    fn varints_have_64_bits() {
        let read = |bytes: &[u8]| Bytes(bytes).varint();
        assert_eq!(read(&[0x96, 1]), Ok(150));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Ok(u64::MAX));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), Err(BROKEN));
        assert_eq!(read(&[0x80; 11]), Err(BROKEN));
        assert_eq!(read(&[0x80]), Err(BROKEN));
        for (number, signed) in [(0, 0), (1, -1), (2, 1), (u64::MAX, i64::MIN), (u64::MAX - 1, i64::MAX)] {
            assert_eq!(from_zigzag(number), signed);
        }
    }
}
