//! Fractions of a record.

use std::fmt;

const ONE: f64 = 18_446_744_073_709_551_616.0;

/// A number of records, not necessarily whole, in units of 2⁻⁶⁴ records and rounded down to them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fixed(u128);

impl Fixed {
    pub const ZERO: Fixed = Fixed(0);

    /// A number from units of 2⁻⁶⁴ records.
    pub const fn from_bits(bits: u128) -> Fixed {
        Fixed(bits)
    }

    /// The number in units of 2⁻⁶⁴ records.
    pub const fn to_bits(self) -> u128 {
        self.0
    }

    /// The whole records in it.
    pub const fn floor(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The part above the whole records, in units of 2⁻⁶⁴ records.
    pub const fn fraction(self) -> u64 {
        self.0 as u64
    }

    /// The nearest float: for people and metrics, not for decisions.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / ONE
    }
}

impl std::ops::Add for Fixed {
    type Output = Fixed;
    /// Saturates.
    fn add(self, other: Fixed) -> Fixed {
        Fixed(self.0.saturating_add(other.0))
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({} + {}/2^64)", self.floor(), self.fraction())
    }
}

/// The records that past allocations owe a client (or, below zero, gave it too much), in units of 2⁻⁶⁴ records.
///
/// Credits decide which clients get the left-over records and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Credit(i128);

impl Credit {
    pub const ZERO: Credit = Credit(0);

    /// The most that is owed either way, 2⁶² records: far beyond what allocations lead to, and with room above it.
    const LIMIT: i128 = 1 << 126;

    /// A credit from units of 2⁻⁶⁴ records, at most 2¹²⁶ of them either way.
    pub fn from_bits(bits: i128) -> Credit {
        Credit(bits.clamp(-Self::LIMIT, Self::LIMIT))
    }

    /// The credit in units of 2⁻⁶⁴ records.
    pub const fn to_bits(self) -> i128 {
        self.0
    }

    /// This credit once `exact` was due and `records` were granted.
    pub(super) fn after(self, exact: Fixed, records: u64) -> Credit {
        // Both are below 2^104 (a capacity in fixed point), so that their difference fits.
        let owed = exact.0 as i128 - (i128::from(records) << 64);
        Credit::from_bits(self.0 + owed)
    }
}
