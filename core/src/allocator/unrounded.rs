//! The exact grants, before rounding to whole records.

use std::cmp::Ordering;

use ruint::Uint;

use super::parts::{Divisor, Wide};
use super::{Claim, Fixed, Grant, default_share, lending::Split, shares::Shares};

/// The part of each exact grant below its last bit of 2⁻⁶⁴ records, over a common denominator.
#[derive(Debug, Default)]
pub(super) struct Remainders {
    /// The most significant limb of each.
    top: Vec<u64>,
    /// The other limbs of each, `width` of them, least significant first.
    limbs: Vec<u64>,
    width: usize,
}

impl Remainders {
    /// Computes each client's exact grant; its records are those rounded down, its credit is still the old one.
    pub(super) fn grant(
        &mut self, shares: &Shares<u128>, split: &Split<u128>, claims: &[Claim], grants: &mut Vec<Grant>,
    ) {
        let denominator = Divisor::new(shares.per_record * split.denominator);
        self.clear(denominator.limbs());
        for claim in claims {
            let (kept, portion) = split.of(shares, claim);
            let (exact, remainder) = denominator.divide(kept * split.denominator + portion * split.numerator);
            self.top.push((remainder >> 64) as u64);
            if self.width > 0 {
                self.limbs.push(remainder as u64);
            }
            grants.push(unsettled(Fixed::from_bits(exact), claim));
        }
    }

    /// Computes the grants with numbers of any size.
    pub(super) fn grant_wide(
        &mut self, capacity: u64, shares: &Shares<Wide>, split: &Split<Wide>, claims: &[Claim], grants: &mut Vec<Grant>,
    ) {
        // No grant exceeds the capacity, which bounds every number below: 40 + 90 + 174 + 64 = 368 bits at most.
        let denominator = shares.per_record.bit_len() + split.denominator.bit_len();
        let bits = 64 - capacity.leading_zeros() as usize + denominator + 64;
        match bits {
            0..=256 => self.divide::<256, 4>(shares, split, claims, grants),
            _ => self.divide::<384, 6>(shares, split, claims, grants),
        }
    }

    fn divide<const BITS: usize, const LIMBS: usize>(
        &mut self, shares: &Shares<Wide>, split: &Split<Wide>, claims: &[Claim], grants: &mut Vec<Grant>,
    ) {
        self.clear(LIMBS);
        let ratio = Uint::<BITS, LIMBS>::from(split.numerator);
        let per_one = Uint::<BITS, LIMBS>::from(split.denominator);
        let denominator = Uint::<BITS, LIMBS>::from(shares.per_record) * per_one;
        for claim in claims {
            let (kept, portion) = split.of(shares, claim);
            let numerator: Uint<BITS, LIMBS> = Uint::from(kept) * per_one + Uint::from(portion) * ratio;
            let (quotient, remainder) = (numerator << 64_usize).div_rem(denominator);
            let (top, others) = remainder.as_limbs().split_last().expect("a number has limbs");
            self.top.push(*top);
            self.limbs.extend_from_slice(others);
            grants.push(unsettled(Fixed::from_bits(quotient.to::<u128>()), claim));
        }
    }

    fn clear(&mut self, limbs: usize) {
        self.top.clear();
        self.limbs.clear();
        self.width = limbs - 1;
    }

    /// The most significant limb of a claim's remainder.
    pub(super) fn top(&self, claim: usize) -> u64 {
        self.top[claim]
    }

    /// Compares the remainders of two claims with equal most significant limbs.
    pub(super) fn cmp_below_top(&self, one: usize, other: usize) -> Ordering {
        if self.width == 0 {
            return Ordering::Equal;
        }
        let limbs = |claim: usize| self.limbs[claim * self.width..][..self.width].iter().rev();
        limbs(one).cmp(limbs(other))
    }
}

fn unsettled(exact: Fixed, claim: &Claim) -> Grant {
    Grant { records: exact.floor(), exact, default_share: Fixed::ZERO, credit: claim.credit }
}

/// Completes the grants with the default shares.
pub(super) fn fill_default_shares(capacity: u64, total_weight: u128, claims: &[Claim], grants: &mut [Grant]) {
    // Weights repeat, divisions are slow.
    let (mut weight, mut share) = (0, Fixed::ZERO);
    for (claim, grant) in claims.iter().zip(grants) {
        if claim.weight != weight {
            weight = claim.weight;
            share = default_share(capacity, weight, total_weight);
        }
        grant.default_share = share;
    }
}
