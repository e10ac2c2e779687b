//! Default shares, floors and gaps as integers.
//!
//! With weights wᵢ that sum to W and a reservation ρ/M in lowest terms, everything that the formulas add up is a
//! multiple of 1/(W·M) records: that is one *part* here. Common factors are taken out first, which is what keeps
//! everyday numbers small. With a reservation in whole records, it is a multiple of 1/W records.

use super::parts::{PartCount, Wide, gcd};
use super::{Claim, Reserved, Wants};
use crate::units::Ratio;

/// The numbers of parts in a record and in a default share.
#[derive(Debug)]
pub(super) struct DefaultShares<P> {
    /// The greatest common divisor of the weights.
    weight_unit: u64,
    /// Parts in a record: at most 2⁷⁰ (Σ weights) × 10⁶ < 2⁹⁰.
    pub(super) per_record: P,
    /// The default share, in parts, for each unit of weight.
    default_per_weight: P,
    /// The part of it that is never lent.
    reserved_per_weight: P,
}

/// The position of a client before anything is lent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing<P> {
    pub(super) default: P,
    /// The part that the client keeps in any case: the larger of its wants and its reservation.
    pub(super) floor: P,
}

/// Sums over all claims.
#[derive(Debug)]
pub(super) struct ClaimSums {
    /// The greatest common divisor of the weights.
    weight_unit: u64,
    pub(super) weight: u128,
    wants: u128,
}

impl ClaimSums {
    pub(super) fn new(claims: &[Claim]) -> ClaimSums {
        let mut sums = ClaimSums { weight_unit: 0, weight: 0, wants: 0 };
        for claim in claims {
            sums.weight += u128::from(claim.weight);
            // Most weights are those of the one before.
            if claim.weight != sums.weight_unit && sums.weight_unit != 1 {
                sums.weight_unit = gcd(u128::from(sums.weight_unit), u128::from(claim.weight)) as u64;
            }
            if let Wants::Records(wants) = claim.wants {
                sums.wants += u128::from(wants);
            }
        }
        sums
    }
}

impl DefaultShares<u128> {
    pub(super) fn new(capacity: u64, reserved: Reserved, sums: &ClaimSums) -> DefaultShares<u128> {
        let total = sums.weight / u128::from(sums.weight_unit);
        let common = gcd(total, u128::from(capacity));
        let (common, reserved, whole) = match reserved {
            Reserved::Part(ratio) => {
                let [reserved, whole] = [ratio, Ratio::ONE].map(|ratio| u128::from(ratio.millionths()));
                let lowest = gcd(whole, reserved);
                (common, u128::from(capacity) / common * (reserved / lowest), whole / lowest)
            }
            Reserved::Records(records) => {
                let common = gcd(common, u128::from(records));
                (common, u128::from(records) / common, 1)
            }
        };
        let capacity = u128::from(capacity) / common;
        DefaultShares {
            weight_unit: sums.weight_unit,
            per_record: total / common * whole,
            default_per_weight: capacity * whole,
            reserved_per_weight: reserved,
        }
    }

    /// Returns whether no number of this allocation needs more than 128 bits.
    pub(super) fn are_narrow(&self, capacity: u64, sums: &ClaimSums) -> bool {
        let bits = |number: u128| 128 - number.leading_zeros();
        let (capacity, per_record) = (bits(capacity.into()), bits(self.per_record));
        // Parts: all wants together, or all shares. The ratio that lending leaves is made of those, or of weights.
        let parts = per_record + capacity.max(bits(sums.wants)) + 1;
        let ratio = parts.max(bits(sums.weight));
        // The numbers that are divided in the end: no grant exceeds the capacity.
        capacity + per_record + ratio <= 128
    }

    pub(super) fn widened(&self) -> DefaultShares<Wide> {
        DefaultShares {
            weight_unit: self.weight_unit,
            per_record: self.per_record.widened(),
            default_per_weight: self.default_per_weight.widened(),
            reserved_per_weight: self.reserved_per_weight.widened(),
        }
    }
}

impl<P: PartCount> DefaultShares<P> {
    /// A claim's weight in lowest terms.
    pub(super) fn weight(&self, claim: &Claim) -> u64 {
        // Equal weights are one unit each.
        if claim.weight == self.weight_unit { 1 } else { claim.weight / self.weight_unit }
    }

    pub(super) fn standing(&self, claim: &Claim) -> Standing<P> {
        let weight = P::of(u128::from(self.weight(claim)));
        let default = self.default_per_weight * weight;
        let floor = match claim.wants {
            Wants::Records(wants) => {
                (self.per_record * P::of(u128::from(wants))).max(self.reserved_per_weight * weight)
            }
            Wants::DefaultShare => default,
        };
        Standing { default, floor }
    }

    /// The wants of a borrower with this (lowest) weight beyond its default share.
    pub(super) fn over(&self, wants: u64, weight: u64) -> P {
        self.per_record * P::of(u128::from(wants)) - self.default_per_weight * P::of(u128::from(weight))
    }
}
