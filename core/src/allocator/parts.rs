//! The integers of an allocation: 128 bits where all numbers fit, as they do with everyday settings; 384 bits where
//! weights, wants or the capacity are extreme.

use std::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};
use std::{fmt::Debug, iter::Sum};

use bnum::cast::As;

/// The largest number of parts is the sum of all wants, 2²⁰ claims × 2⁶⁴ records × 2⁹⁰ parts per record = 2¹⁷⁴. No
/// grant exceeds the capacity, which bounds products: 40 + 90 + 174 + 64 = 368 bits at most.
pub(super) type Wide = bnum::Uint<48>;

/// A number of parts.
pub(super) trait PartCount:
    Copy
    + Ord
    + Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
    + AddAssign
    + SubAssign
    + Sum
{
    const ZERO: Self;

    /// From a number that is known to fit.
    fn of(number: u128) -> Self;
    fn widened(self) -> Wide;
}

impl PartCount for u128 {
    const ZERO: u128 = 0;

    fn of(number: u128) -> u128 {
        number
    }

    fn widened(self) -> Wide {
        self.as_()
    }
}

impl PartCount for Wide {
    const ZERO: Wide = Wide::MIN;

    fn of(number: u128) -> Wide {
        number.as_()
    }

    fn widened(self) -> Wide {
        self
    }
}

/// The greatest common divisor; of 0 and another number that one.
pub(super) fn gcd<P: PartCount>(mut a: P, mut b: P) -> P {
    while b != P::ZERO {
        (a, b) = (b, a % b);
    }
    a
}

/// A divisor that is prepared for many divisions: Möller and Granlund, *Improved division by invariant integers*
/// (2011), algorithm 4 for a divisor of one limb, and 5 and 6 for one of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Divisor {
    /// The number with its highest bit moved up to bit 127.
    shifted: u128,
    shift: u32,
    /// ⌊(2¹⁹² − 1) / shifted⌋ − 2⁶⁴.
    reciprocal: u64,
}

impl Divisor {
    /// # Panics
    ///
    /// If it is 0.
    pub(super) fn new(divisor: u128) -> Divisor {
        let shift = divisor.leading_zeros();
        let shifted = divisor << shift;
        let (high, low) = ((shifted >> 64) as u64, shifted as u64);
        // That of the higher limb, less as much as the lower one makes the divisor larger.
        let mut reciprocal = (u128::MAX / u128::from(high)) as u64;
        let mut rest = high.wrapping_mul(reciprocal).wrapping_add(low);
        if rest < low {
            reciprocal -= 1;
            if rest >= high {
                (reciprocal, rest) = (reciprocal - 1, rest - high);
            }
            rest = rest.wrapping_sub(high);
        }
        let product = u128::from(reciprocal) * u128::from(low);
        let (rest, overflows) = rest.overflowing_add((product >> 64) as u64);
        if overflows {
            reciprocal -= 1;
            reciprocal -= u64::from(u128::from(rest) << 64 | u128::from(product as u64) >= shifted);
        }
        Divisor { shifted, shift, reciprocal }
    }

    /// The number of limbs of the remainder, most significant first.
    pub(super) fn limbs(&self) -> usize {
        if self.shift < 64 { 2 } else { 1 }
    }

    /// The quotient, in units of 2⁻⁶⁴ and rounded down to them, and what is left: comparable with that of another
    /// number divided by the same. The quotient's whole part must be below 2⁶⁴.
    pub(super) fn divide(&self, number: u128) -> (u128, u128) {
        // Shifted, the number is less than 2⁶⁴ times the divisor: a limb more than that has.
        if self.shift >= 64 {
            let number = number << (self.shift - 64);
            let (whole, rest) = self.limb_by_one((number >> 64) as u64, number as u64);
            let (fraction, rest) = self.limb_by_one(rest, 0);
            return (u128::from(whole) << 64 | u128::from(fraction), u128::from(rest) << 64);
        }
        let (whole, rest) = self.limb_by_two(number >> (64 - self.shift), (number << self.shift) as u64);
        let (fraction, rest) = self.limb_by_two(rest, 0);
        (u128::from(whole) << 64 | u128::from(fraction), rest)
    }

    /// Divides `high` · 2⁶⁴ + `low` by a divisor of one limb, which is more than `high`: one limb of a quotient, and
    /// the rest.
    fn limb_by_one(&self, high: u64, low: u64) -> (u64, u64) {
        let divisor = (self.shifted >> 64) as u64;
        debug_assert!(high < divisor, "the quotient has one limb");
        let estimate = u128::from(self.reciprocal) * u128::from(high) + (u128::from(high) << 64 | u128::from(low));
        let mut quotient = ((estimate >> 64) as u64).wrapping_add(1);
        let mut rest = low.wrapping_sub(quotient.wrapping_mul(divisor));
        if rest > estimate as u64 {
            (quotient, rest) = (quotient.wrapping_sub(1), rest.wrapping_add(divisor));
        }
        if rest >= divisor {
            (quotient, rest) = (quotient.wrapping_add(1), rest - divisor);
        }
        (quotient, rest)
    }

    /// Divides by a divisor of two limbs in the same way.
    fn limb_by_two(&self, high: u128, low: u64) -> (u64, u128) {
        debug_assert!(high < self.shifted, "the quotient has one limb");
        let estimate = u128::from(self.reciprocal) * (high >> 64) + high;
        let guess = (estimate >> 64) as u64;
        let upper = (high as u64).wrapping_sub(guess.wrapping_mul((self.shifted >> 64) as u64));
        let lower = u128::from(self.shifted as u64) * u128::from(guess);
        let rest = (u128::from(upper) << 64 | u128::from(low)).wrapping_sub(lower).wrapping_sub(self.shifted);
        let (mut quotient, mut rest) = (guess.wrapping_add(1), rest);
        if (rest >> 64) as u64 >= estimate as u64 {
            (quotient, rest) = (quotient.wrapping_sub(1), rest.wrapping_add(self.shifted));
        }
        if rest >= self.shifted {
            (quotient, rest) = (quotient.wrapping_add(1), rest - self.shifted);
        }
        (quotient, rest)
    }
}

#[cfg(test)]
mod tests;
