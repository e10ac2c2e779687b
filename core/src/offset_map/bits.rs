//! Reading and writing bits, most significant first, with Rice codes.

use crate::offset_runs::NUMBER_WIDTH_BITS;

/// Bits, packed into words; the last word is padded with zeros.
#[derive(Debug, Default)]
pub(super) struct BitWriter {
    words: Vec<u64>,
    pub bits: u64,
}

impl BitWriter {
    /// Appends the lowest `width` bits of `value`, at most 64; the others must be 0.
    pub fn push(&mut self, value: u64, width: u32) {
        if width == 0 {
            return;
        }
        let used = (self.bits % 64) as u32;
        let left = value << (64 - width);
        if used == 0 {
            self.words.push(left);
        } else {
            *self.words.last_mut().expect("a started word exists") |= left >> used;
            if used + width > 64 {
                self.words.push(left << (64 - used));
            }
        }
        self.bits += u64::from(width);
    }

    /// Appends a number below 2⁶³: its width, then its bits. The width is `wider` than needed, if that can be written.
    pub fn push_number(&mut self, value: u64, wider: u32) {
        debug_assert!(value >> 63 == 0, "{value} takes a width that is not written");
        let least = u64::BITS - value.leading_zeros();
        let width = if least + wider < u64::BITS { least + wider } else { least };
        self.push(u64::from(width), NUMBER_WIDTH_BITS);
        self.push(value, width);
    }

    /// Appends a value as Rice code: its high part in ones, a zero, its lowest `parameter` bits.
    pub fn push_rice(&mut self, value: u64, parameter: u32) {
        let mut ones = value >> parameter;
        while ones >= 63 {
            self.push(u64::MAX >> 1, 63);
            ones -= 63;
        }
        self.push(((1 << ones) - 1) << 1, ones as u32 + 1);
        self.push(value & ((1 << parameter) - 1), parameter);
    }

    /// Pads with zeros to whole symbols of `width` bits.
    pub fn pad(&mut self, width: u32) {
        let width = u64::from(width);
        self.push(0, (self.bits.next_multiple_of(width) - self.bits) as u32);
    }

    /// A reader of the bits written, from the start.
    pub fn reader(&self) -> BitReader<'_> {
        BitReader { written: self, position: 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads bits that a [`BitWriter`] wrote, or an attacker.
#[derive(Debug)]
pub(super) struct BitReader<'a> {
    written: &'a BitWriter,
    position: u64,
}

impl BitReader<'_> {
    pub fn left(&self) -> u64 {
        self.written.bits - self.position
    }

    /// The next `width` bits, at most 64.
    pub fn take(&mut self, width: u32) -> Result<u64, Malformed> {
        if u64::from(width) > self.left() {
            return Err(Malformed);
        }
        let word = |index: usize| self.written.words.get(index).copied().unwrap_or(0);
        let (index, used) = ((self.position / 64) as usize, self.position % 64);
        // The next 64 bits, zeros beyond the end.
        let window = (u128::from(word(index)) << 64 | u128::from(word(index + 1))) << used;
        self.position += u64::from(width);
        Ok(window.checked_shr(128 - width).unwrap_or(0) as u64)
    }

    /// Reads a number that [`BitWriter::push_number`] wrote, and the bits that it is wider than needed.
    pub fn take_number(&mut self) -> Result<(u64, u32), Malformed> {
        let width = self.take(NUMBER_WIDTH_BITS)? as u32;
        let value = self.take(width)?;
        Ok((value, width + value.leading_zeros() - u64::BITS))
    }

    /// Reads a value that [`BitWriter::push_rice`] wrote.
    pub fn take_rice(&mut self, parameter: u32) -> Result<u64, Malformed> {
        let mut high: u64 = 0;
        while self.take(1)? == 1 {
            high += 1;
        }
        let low = self.take(parameter)?;
        high.checked_mul(1 << parameter).map(|high| high | low).ok_or(Malformed)
    }
}
