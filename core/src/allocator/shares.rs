//! Default shares, floors and gaps as integers.
//!
//! With weights wᵢ that sum to W and a reservation ρ/M in lowest terms, everything that the formulas add up is a
//! multiple of 1/(W·M) records: that is one *part* here. Common factors are taken out first, which is what keeps
//! everyday numbers small.

use ruint::Uint;

use super::{Claim, MAX_WEIGHT, Terms, Wants};
use crate::units::Ratio;

/// A number of parts.
///
/// The largest one is the sum of all wants: 2²⁰ claims × 2⁶⁴ records × 2⁹⁰ parts per record = 2¹⁷⁴.
pub(super) type Parts = Uint<192, 3>;

/// How many parts make what.
#[derive(Debug)]
pub(super) struct Shares {
    /// The greatest common divisor of the weights.
    weight_unit: u64,
    /// Parts in a record: at most 2⁷⁰ (Σ weights) × 10⁶ < 2⁹⁰.
    pub(super) per_record: Parts,
    /// The default share, in parts, for each unit of weight.
    default_per_weight: Parts,
    /// The part of it that is never lent.
    reserved_per_weight: Parts,
}

/// Where a client stands before anything is lent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Its default share.
    pub(super) default: Parts,
    /// What it keeps whatever others want: the larger of its wants and its reservation.
    pub(super) floor: Parts,
}

impl Shares {
    pub(super) fn new(terms: &Terms, claims: &[Claim<'_>]) -> Shares {
        let (weight_unit, total) = add_up_weights(claims);
        let total = total / u128::from(weight_unit);
        let common = gcd(total, u128::from(terms.capacity));
        let capacity = Parts::from(u128::from(terms.capacity) / common);
        let (reserved, whole) = lowest_terms(terms.reservation);
        Shares {
            weight_unit,
            per_record: Parts::from(total / common) * whole,
            default_per_weight: capacity * whole,
            reserved_per_weight: capacity * reserved,
        }
    }

    /// A claim's weight in lowest terms.
    pub(super) fn weight(&self, claim: &Claim<'_>) -> u64 {
        if self.weight_unit == 1 { claim.weight } else { claim.weight / self.weight_unit }
    }

    pub(super) fn standing(&self, claim: &Claim<'_>) -> Standing {
        let weight = Parts::from(self.weight(claim));
        let default = self.default_per_weight * weight;
        let floor = match claim.wants {
            Wants::Records(wants) => (self.per_record * Parts::from(wants)).max(self.reserved_per_weight * weight),
            Wants::DefaultShare => default,
        };
        Standing { default, floor }
    }

    /// How much more than its default share a client of this (lowest) weight wants, when it does.
    pub(super) fn over(&self, wants: u64, weight: u64) -> Parts {
        self.per_record * Parts::from(wants) - self.default_per_weight * Parts::from(weight)
    }
}

/// The greatest common divisor of the weights, and their sum.
fn add_up_weights(claims: &[Claim<'_>]) -> (u64, u128) {
    let mut unit = 0;
    let mut total = 0;
    for claim in claims {
        assert!(
            (1..=MAX_WEIGHT).contains(&claim.weight),
            "weight {} of {:?} is out of range",
            claim.weight,
            claim.name
        );
        total += u128::from(claim.weight);
        if claim.weight != unit && unit != 1 {
            unit = gcd(u128::from(unit), u128::from(claim.weight)) as u64;
        }
    }
    (unit, total)
}

/// The reservation as a fraction in lowest terms: numerator, denominator.
fn lowest_terms(reservation: Ratio) -> (Parts, Parts) {
    let reserved = u128::from(reservation.millionths());
    let whole = u128::from(Ratio::ONE.millionths());
    let common = gcd(whole, reserved);
    (Parts::from(reserved / common), Parts::from(whole / common))
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
