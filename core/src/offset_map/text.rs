//! Bits as text: characters that stand for symbols of some bits.

use std::iter;

use super::{MapBudget, bits::BitWriter};

/// The characters in which a map's bits are written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Alphabet {
    /// The character after the version that tells the alphabet.
    pub mark: char,
    pub symbol_bits: u32,
    /// The characters of the symbols, ascending by symbol: ranges of a first code point and a length.
    ranges: &'static [(u16, u16)],
}

/// 15 bits in one character of three bytes. All characters are in the basic plane, so each is one UTF-16 unit, and none
/// is a surrogate, a control or composed of others, so no Unicode normalisation changes them: ideographs (extension A,
/// unified), then private use, which Unicode promises never to decompose. (Hangul syllables decompose, compatibility
/// ideographs change.)
static WIDE: Alphabet =
    Alphabet { mark: 'c', symbol_bits: 15, ranges: &[(0x3400, 6_592), (0x4E00, 20_992), (0xE000, 5_184)] };

/// 6 bits in one ASCII character: base 64 as in URLs.
static NARROW: Alphabet = Alphabet {
    mark: 'b',
    symbol_bits: 6,
    ranges: &[(b'A' as u16, 26), (b'a' as u16, 26), (b'0' as u16, 10), (b'-' as u16, 1), (b'_' as u16, 1)],
};

impl Alphabet {
    /// The alphabet that fits most bits into a budget.
    pub fn of(budget: MapBudget) -> &'static Alphabet {
        match budget {
            MapBudget::Chars(_) => &WIDE,
            MapBudget::Bytes(_) => &NARROW,
        }
    }

    pub fn marked(mark: u8) -> Option<&'static Alphabet> {
        [&WIDE, &NARROW].into_iter().find(|alphabet| alphabet.mark == char::from(mark))
    }

    /// Symbols that hold a checksum of 32 bits.
    pub fn checksum_symbols(&self) -> usize {
        u32::BITS.div_ceil(self.symbol_bits) as usize
    }

    /// The text for these bits, padded with zeros to whole symbols.
    pub fn write(&self, mut bits: BitWriter) -> String {
        bits.pad(self.symbol_bits);
        let mut reader = bits.reader();
        let symbols = iter::from_fn(|| reader.take(self.symbol_bits).ok());
        symbols.map(|symbol| self.character(symbol as u16)).collect()
    }

    /// The bits of a text, padding included, if all its characters are symbols.
    pub fn read(&self, text: &str) -> Option<BitWriter> {
        let mut bits = BitWriter::default();
        for character in text.chars() {
            bits.push(u64::from(self.symbol(character)?), self.symbol_bits);
        }
        Some(bits)
    }

    /// The character of a symbol below 2^[`symbol_bits`](Self::symbol_bits).
    fn character(&self, symbol: u16) -> char {
        let mut rest = symbol;
        for (first, count) in self.ranges {
            if rest < *count {
                return char::from_u32(u32::from(first + rest)).expect("no range holds surrogates");
            }
            rest -= count;
        }
        unreachable!("{symbol} has more than {} bits", self.symbol_bits)
    }

    /// The symbol of a character, if it is one.
    fn symbol(&self, character: char) -> Option<u16> {
        let point = u16::try_from(u32::from(character)).ok()?;
        let mut below = 0;
        for (first, count) in self.ranges {
            if (*first..first + count).contains(&point) {
                return Some(below + (point - first));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_its_own_character() {
        for alphabet in [&WIDE, &NARROW] {
            for symbol in 0..1 << alphabet.symbol_bits {
                assert_eq!(alphabet.symbol(alphabet.character(symbol)), Some(symbol));
            }
            let symbols = (0..=u32::from(char::MAX)).filter_map(char::from_u32).filter_map(|c| alphabet.symbol(c));
            assert_eq!(symbols.count(), 1 << alphabet.symbol_bits);
        }
    }

    #[test]
    fn wide_characters_are_one_utf16_unit_and_three_bytes() {
        for symbol in 0..1 << 15 {
            let character = WIDE.character(symbol);
            assert_eq!((character.len_utf16(), character.len_utf8()), (1, 3));
            assert!(!character.is_control());
        }
    }
}
