//! The exact grants, before rounding to whole records.

use std::cmp::Ordering;

use bnum::cast::As;

use super::parts::{Divisor, Wide};
use super::{Claim, Fixed, Grant, lending::Split, shares::DefaultShares};

/// The part of each exact grant below its last bit of 2⁻⁶⁴ records, over a common denominator.
#[derive(Debug, Default)]
pub(super) struct Remainders {
    /// `width` limbs of each, most significant first.
    limbs: Vec<u64>,
    width: usize,
}

impl Remainders {
    /// Computes each client's exact grant; its records are those rounded down, its credit is still the old one.
    pub(super) fn grant(
        &mut self, shares: &DefaultShares<u128>, split: &Split<u128>, claims: &[Claim], grants: &mut Vec<Grant>,
    ) {
        let denominator = Divisor::new(shares.per_record * split.denominator);
        self.clear(denominator.limbs());
        grants.extend(claims.iter().map(|claim| {
            let (kept, portion) = split.of(shares, claim);
            let (exact, remainder) = denominator.divide(kept * split.denominator + portion * split.numerator);
            self.limbs.push((remainder >> 64) as u64);
            if self.width > 1 {
                self.limbs.push(remainder as u64);
            }
            unsettled(Fixed::from_bits(exact), claim)
        }));
    }

    /// Computes the grants with numbers of any size.
    pub(super) fn grant_wide(
        &mut self, shares: &DefaultShares<Wide>, split: &Split<Wide>, claims: &[Claim], grants: &mut Vec<Grant>,
    ) {
        self.clear(Wide::BITS as usize / 64);
        let denominator = shares.per_record * split.denominator;
        grants.extend(claims.iter().map(|claim| {
            let (kept, portion) = split.of(shares, claim);
            let numerator = (kept * split.denominator + portion * split.numerator) << 64_u32;
            let (quotient, remainder) = (numerator / denominator, numerator % denominator);
            self.limbs.extend((0..Wide::BITS / 64).rev().map(|limb| (remainder >> (64 * limb)).as_::<u64>()));
            unsettled(Fixed::from_bits(quotient.as_()), claim)
        }));
    }

    fn clear(&mut self, width: usize) {
        self.limbs.clear();
        self.width = width;
    }

    /// The most significant limb of a claim's remainder.
    pub(super) fn top(&self, claim: usize) -> u64 {
        self.limbs[claim * self.width]
    }

    /// Compares the remainders of two claims with equal most significant limbs.
    pub(super) fn cmp_below_top(&self, one: usize, other: usize) -> Ordering {
        if self.width == 1 {
            return Ordering::Equal;
        }
        let limbs = |claim: usize| &self.limbs[claim * self.width..][1..self.width];
        limbs(one).cmp(limbs(other))
    }
}

fn unsettled(exact: Fixed, claim: &Claim) -> Grant {
    Grant { records: exact.floor(), exact, default_share: Fixed::ZERO, credit: claim.credit }
}

/// Completes the grants with the default shares. That of a weight is its `undivided` share ÷ `divisor`.
pub(super) fn fill_default_shares(
    divisor: u128, undivided: impl Fn(u64) -> u128, claims: &[Claim], grants: &mut [Grant],
) {
    let divisor = Divisor::new(divisor);
    // Weights repeat, divisions are slow.
    let (mut weight, mut share) = (0, Fixed::ZERO);
    for (claim, grant) in claims.iter().zip(grants) {
        if claim.weight != weight {
            weight = claim.weight;
            share = Fixed::from_bits(divisor.divide(undivided(weight)).0);
        }
        grant.default_share = share;
    }
}
