//! Forged offset maps: any contents, with a valid checksum. Written from `docs/design/offset-map.md` without the crate's own
//! code, so that both do not share a mistake.

const NARROW: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The alphabet that encodes bits as characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    Wide,
    Narrow,
}

impl Alphabet {
    /// The character that names the alphabet.
    pub fn mark(self) -> char {
        match self {
            Alphabet::Wide => 'c',
            Alphabet::Narrow => 'b',
        }
    }

    /// Number of bits in a character.
    pub fn symbol_bits(self) -> usize {
        match self {
            Alphabet::Wide => 15,
            Alphabet::Narrow => 6,
        }
    }

    /// Number of characters of the checksum.
    pub fn check_symbols(self) -> usize {
        32usize.div_ceil(self.symbol_bits())
    }

    /// Returns the character of a symbol.
    pub fn character(self, symbol: u16) -> char {
        let point = match self {
            Alphabet::Narrow => u16::from(NARROW[usize::from(symbol)]),
            Alphabet::Wide => match symbol {
                0..6_592 => 0x3400 + symbol,
                6_592..27_584 => 0x4E00 + (symbol - 6_592),
                _ => 0xE000 + (symbol - 27_584),
            },
        };
        char::from_u32(u32::from(point)).expect("no symbol is a surrogate")
    }

    fn symbol(self, character: char) -> Option<u16> {
        match (self, character as u32) {
            (Alphabet::Narrow, _) => {
                NARROW.iter().position(|symbol| char::from(*symbol) == character).map(|at| at as u16)
            }
            (Alphabet::Wide, point @ 0x3400..0x4DC0) => Some((point - 0x3400) as u16),
            (Alphabet::Wide, point @ 0x4E00..0xA000) => Some((point - 0x4E00) as u16 + 6_592),
            (Alphabet::Wide, point @ 0xE000..0xF440) => Some((point - 0xE000) as u16 + 27_584),
            (Alphabet::Wide, _) => None,
        }
    }
}

/// Builds a map of these bits for the offset `base`.
pub fn map(alphabet: Alphabet, base: i64, bits: &[bool]) -> String {
    seal('1', alphabet, base, &text(alphabet, bits))
}

/// Adds prefix and valid checksum to any body.
pub fn seal(version: char, alphabet: Alphabet, base: i64, body: &str) -> String {
    let mark = alphabet.mark();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&base.to_be_bytes());
    hasher.update(&[version as u8, mark as u8]);
    hasher.update(body.as_bytes());
    let check = text(alphabet, &bits_of(&[(u64::from(hasher.finalize()), 32)]));
    format!("wm{version}{mark}{check}{body}")
}

/// Returns alphabet and bits of a map, padding included; `None` if the text does not have this form.
pub fn unseal(map: &str) -> Option<(Alphabet, Vec<bool>)> {
    let rest = map.strip_prefix("wm1")?;
    let alphabet = [Alphabet::Wide, Alphabet::Narrow].into_iter().find(|alphabet| rest.starts_with(alphabet.mark()))?;
    let mut bits = Vec::new();
    for character in rest.chars().skip(1 + alphabet.check_symbols()) {
        push(&mut bits, u64::from(alphabet.symbol(character)?), alphabet.symbol_bits());
    }
    Some((alphabet, bits))
}

/// Returns the bits of the values, each in its width.
pub fn bits_of(values: &[(u64, usize)]) -> Vec<bool> {
    let mut bits = Vec::new();
    values.iter().for_each(|(value, width)| push(&mut bits, *value, *width));
    bits
}

fn push(bits: &mut Vec<bool>, value: u64, width: usize) {
    bits.extend((0..width).rev().map(|at| value >> at & 1 == 1));
}

fn text(alphabet: Alphabet, bits: &[bool]) -> String {
    let width = alphabet.symbol_bits();
    let symbol = |chunk: &[bool]| {
        let value = chunk.iter().fold(0, |symbol, bit| symbol << 1 | u16::from(*bit));
        alphabet.character(value << (width - chunk.len()))
    };
    bits.chunks(width).map(symbol).collect()
}
