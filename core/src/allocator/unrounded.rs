//! The exact grants, before rounding to whole records.

use std::cmp::Ordering;

use ruint::Uint;

use super::lending::Split;
use super::shares::Shares;
use super::{Claim, Fixed, Grant, default_share};

/// What each exact grant has below its last bit of 2⁻⁶⁴ records, over a denominator that all share.
#[derive(Debug, Default)]
pub(super) struct Remainders {
    /// The remainders one after the other, each of `width` limbs, least significant first.
    limbs: Vec<u64>,
    width: usize,
}

impl Remainders {
    /// Computes each client's exact grant; its records are those rounded down, its credit is still the old one.
    pub(super) fn grant(
        &mut self,
        capacity: u64,
        shares: &Shares,
        split: &Split,
        claims: &[Claim<'_>],
        grants: &mut Vec<Grant>,
    ) {
        self.limbs.clear();
        // No grant exceeds the capacity, which bounds every number below: 40 + 90 + 174 + 64 = 368 bits at most.
        let denominator = shares.per_record.bit_len() + split.denominator.bit_len();
        let bits = 64 - capacity.leading_zeros() as usize + denominator + 64;
        match bits {
            0..=128 => self.divide::<128, 2>(shares, split, claims, grants),
            129..=192 => self.divide::<192, 3>(shares, split, claims, grants),
            193..=256 => self.divide::<256, 4>(shares, split, claims, grants),
            _ => self.divide::<384, 6>(shares, split, claims, grants),
        }
        fill_default_shares(capacity, claims, grants);
    }

    fn divide<const BITS: usize, const LIMBS: usize>(
        &mut self,
        shares: &Shares,
        split: &Split,
        claims: &[Claim<'_>],
        grants: &mut Vec<Grant>,
    ) {
        self.width = LIMBS;
        let ratio = Uint::<BITS, LIMBS>::from(split.numerator);
        let per_one = Uint::<BITS, LIMBS>::from(split.denominator);
        let denominator = Uint::<BITS, LIMBS>::from(shares.per_record) * per_one;
        for claim in claims {
            let (kept, portion) = split.of(shares, claim);
            let numerator: Uint<BITS, LIMBS> = Uint::from(kept) * per_one + Uint::from(portion) * ratio;
            let (quotient, remainder) = (numerator << 64_usize).div_rem(denominator);
            let exact = Fixed::from_bits(quotient.to::<u128>());
            self.limbs.extend_from_slice(remainder.as_limbs());
            grants.push(Grant { records: exact.floor(), exact, default_share: Fixed::ZERO, credit: claim.credit });
        }
    }

    /// Compares what two claims have below their last bit.
    pub(super) fn cmp(&self, one: usize, other: usize) -> Ordering {
        let limbs = |claim: usize| self.limbs[claim * self.width..][..self.width].iter().rev();
        limbs(one).cmp(limbs(other))
    }
}

fn fill_default_shares(capacity: u64, claims: &[Claim<'_>], grants: &mut [Grant]) {
    let total: u128 = claims.iter().map(|claim| u128::from(claim.weight)).sum();
    // Weights repeat, divisions are slow.
    let (mut weight, mut share) = (0, Fixed::ZERO);
    for (claim, grant) in claims.iter().zip(grants) {
        if claim.weight != weight {
            weight = claim.weight;
            share = default_share(capacity, weight, total);
        }
        grant.default_share = share;
    }
}
