//! Reads bytes that a producer chose: each call checks the length, and none allocates.

use watermaster_settings::client_id::AnonymousReason;

/// The first byte of a value that names its schema by an id.
const MAGIC: u8 = 0;

/// Splits a value into the id of its schema and the rest. `None` if the value is not in the registry's wire format: the
/// byte 0, then the id in four bytes, big-endian.
pub fn split(value: &[u8]) -> Option<(u32, &[u8])> {
    let (header, body) = value.split_first_chunk::<5>()?;
    let [MAGIC, id @ ..] = *header else { return None };
    Some((u32::from_be_bytes(id), body))
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
    fn a_value_names_its_schema_in_five_bytes() {
        assert_eq!(split(&[0, 1, 2, 3, 4, 9]), Some((0x0102_0304, &[9][..])));
        assert_eq!(split(&[0, 0, 0, 0, 7]), Some((7, &[][..])));
        for other in [&b""[..], &[0, 0, 0, 7], &[1, 0, 0, 0, 7], b"{\"id\": 7}"] {
            assert_eq!(split(other), None, "{other:?}");
        }
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
