//! Symbols as text.

use super::MapBudget;

/// The characters in which a map's bits are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// 15 bits in one character of three bytes.
    Wide,
    /// 6 bits in one ASCII character.
    Narrow,
}

/// The ranges of wide symbols: first code point and length. All are in the basic plane, so each is one UTF-16 unit,
/// and none is a surrogate, a control or composed of others, so no Unicode normalisation changes them: ideographs
/// (extension A, unified), then private use, which Unicode promises never to decompose. (Hangul syllables decompose,
/// compatibility ideographs change.)
const WIDE: [(u16, u16); 3] = [(0x3400, 6_592), (0x4E00, 20_992), (0xE000, 5_184)];
/// Base 64 as in URLs.
const NARROW: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Alphabet {
    /// The alphabet that fits most bits into a budget.
    pub fn of(budget: MapBudget) -> Alphabet {
        match budget {
            MapBudget::Chars(_) => Alphabet::Wide,
            MapBudget::Bytes(_) => Alphabet::Narrow,
        }
    }

    /// The character after the version that tells the alphabet.
    pub const fn mark(self) -> char {
        match self {
            Alphabet::Wide => 'c',
            Alphabet::Narrow => 'b',
        }
    }

    /// The alphabet with this mark.
    pub fn marked(mark: u8) -> Option<Alphabet> {
        [Alphabet::Wide, Alphabet::Narrow].into_iter().find(|alphabet| alphabet.mark() as u32 == u32::from(mark))
    }

    /// Bits in each symbol.
    pub const fn symbol_bits(self) -> u32 {
        match self {
            Alphabet::Wide => 15,
            Alphabet::Narrow => 6,
        }
    }

    /// Symbols that hold a checksum of 32 bits.
    pub const fn checksum_symbols(self) -> usize {
        32u32.div_ceil(self.symbol_bits()) as usize
    }

    /// The character of a symbol below 2^[`symbol_bits`](Self::symbol_bits).
    pub fn character(self, symbol: u16) -> char {
        match self {
            Alphabet::Narrow => char::from(NARROW[usize::from(symbol)]),
            Alphabet::Wide => {
                let mut rest = symbol;
                for (first, count) in WIDE {
                    if rest < count {
                        return char::from_u32(u32::from(first + rest)).expect("no range holds surrogates");
                    }
                    rest -= count;
                }
                unreachable!("{symbol} has more than 15 bits")
            }
        }
    }

    /// The symbol of a character, if it is one.
    pub fn symbol(self, character: char) -> Option<u16> {
        match self {
            Alphabet::Narrow => Some(match character {
                'A'..='Z' => character as u16 - 'A' as u16,
                'a'..='z' => character as u16 - 'a' as u16 + 26,
                '0'..='9' => character as u16 - '0' as u16 + 52,
                '-' => 62,
                '_' => 63,
                _ => return None,
            }),
            Alphabet::Wide => {
                let point = u16::try_from(u32::from(character)).ok()?;
                let mut below = 0;
                for (first, count) in WIDE {
                    if (first..first + count).contains(&point) {
                        return Some(below + (point - first));
                    }
                    below += count;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_its_own_character() {
        for alphabet in [Alphabet::Wide, Alphabet::Narrow] {
            for symbol in 0..1 << alphabet.symbol_bits() {
                assert_eq!(alphabet.symbol(alphabet.character(symbol)), Some(symbol));
            }
            let symbols = (0..=u32::from(char::MAX)).filter_map(char::from_u32).filter_map(|c| alphabet.symbol(c));
            assert_eq!(symbols.count(), 1 << alphabet.symbol_bits());
        }
    }

    #[test]
    fn wide_characters_are_one_utf16_unit_and_three_bytes() {
        for symbol in 0..1 << 15 {
            let character = Alphabet::Wide.character(symbol);
            assert_eq!((character.len_utf16(), character.len_utf8()), (1, 3));
            assert!(!character.is_control());
        }
    }
}
