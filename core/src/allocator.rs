//! The exact allocator: the records that each client may send in the next cycle.
//! `docs/design/algorithm.md` is its prose.
//!
//! One allocation has four steps, each a file of its own:
//!
//! 1. [`shares`]: every default share, floor and gap becomes an integer, by one common unit;
//! 2. [`lending`]: lent records meet wants beyond the default shares, which leaves one ratio for all clients;
//! 3. [`unrounded`]: each client's exact grant, down to 2⁻⁶⁴ records and the remainder below that;
//! 4. [`leftovers`]: whole records, the left-over ones by largest fraction + credit.
//!
//! No step uses floating point or depends on the order of the claims. [`levels`] runs it over groups of clients, and
//! then inside each of them.

mod fixed;
mod leftovers;
mod lending;
mod levels;
mod parts;
mod shares;
mod unrounded;

use crate::policy::Lending;
use crate::units::{MAX_CAPACITY, Ratio};

pub use fixed::{Credit, Fixed};
pub use levels::{GroupClaim, LevelAllocator, LevelClaims, default_share_in};
use parts::Divisor;

/// The most claims of one allocation.
pub const MAX_CLAIMS: usize = 1 << 20;
/// The largest weight of a claim.
pub const MAX_WEIGHT: u64 = 1 << 50;

/// The capacity to share out, and the rules for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationParams {
    /// Records to grant in all, 1 to [`MAX_CAPACITY`].
    pub capacity: u64,
    /// The part of its default share that a client never lends.
    pub reservation: Ratio,
    /// The rule by which lent records are shared among the clients that want more than their share.
    pub lending: Lending,
}

/// The records that are never lent, by weight.
#[derive(Debug, Clone, Copy)]
enum Reserved {
    /// A part of each default share.
    Part(Ratio),
    /// A number of records of all claims together.
    Records(u64),
}

/// One client's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The weight relative to the other claims, in any common unit, 1 to [`MAX_WEIGHT`].
    pub weight: u64,
    pub wants: Wants,
    /// The credit that earlier allocations left.
    pub credit: Credit,
}

/// The wants of a client in the next cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wants {
    /// A number of records.
    Records(u64),
    /// Exactly its default share, whole records or not: a newcomer's claim.
    DefaultShare,
}

/// The records that one client may send in the next cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    /// Whole records; over all claims they add up to the capacity.
    pub records: u64,
    /// The grant before rounding.
    pub exact: Fixed,
    /// Capacity × weight ÷ Σ weights.
    pub default_share: Fixed,
    /// The credit to hand to the next allocation: the one that came in + `exact` − `records`.
    pub credit: Credit,
}

impl Grant {
    fn borrows(&self) -> bool {
        self.exact > self.default_share
    }
}

/// The weights of fair queueing among clients and groups that stand in one queue.
///
/// A lender weighs as much as its default share, which it may claim at any moment. The borrowers weigh as much as their
/// default shares together, each in proportion to its grant. So all weights add up to the capacity: a lender that
/// returns is served at the rate of its share at once, and what lenders leave is divided as the allocation says.
///
/// Under `max_min` a borrower weighs at least as much as its default share: one that weighs less is granted all it
/// wants, so it takes no more than that, and waits less.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FairWeights {
    /// `None` for the parts of whole weights.
    lending: Option<Lending>,
    /// The sums of the borrowers' default shares and grants.
    shares: Fixed,
    grants: Fixed,
    /// The shares' sum ÷ the grants' sum, in units of 2⁻⁶⁴. It is at most 1: a borrower's grant exceeds its share.
    ratio: u128,
}

impl FairWeights {
    /// Makes the weights of a queue in which no grant is counted yet.
    pub(crate) fn new(lending: Lending) -> FairWeights {
        FairWeights { lending: Some(lending), ..FairWeights::default() }
    }

    /// Makes the weights of a member of a group of instances: the grants are parts of weights that were found for the
    /// group.
    pub(crate) fn of_parts() -> FairWeights {
        FairWeights::default()
    }

    /// Counts a grant of the queue. All are counted, then [`settle`](FairWeights::settle) is called, then weights are
    /// asked for.
    pub(crate) fn count(&mut self, grant: &Grant) {
        if grant.borrows() {
            (self.shares, self.grants) = (self.shares + grant.default_share, self.grants + grant.exact);
        }
    }

    /// Finds the ratio of the sums.
    pub(crate) fn settle(&mut self) {
        let [shares, grants] = [self.shares, self.grants].map(Fixed::to_bits);
        let up = shares.leading_zeros().min(64);
        self.ratio = ((shares << up) / (grants >> (64 - up)).max(1)).min(1 << 64);
    }

    pub(crate) fn weight(&self, grant: &Grant) -> Fixed {
        let Some(lending) = self.lending.filter(|_| grant.borrows()) else {
            return grant.exact.max(grant.default_share);
        };
        let of_fraction = (u128::from(grant.exact.fraction()) * self.ratio) >> 64;
        let weight = Fixed::from_bits(u128::from(grant.exact.floor()) * self.ratio + of_fraction);
        match lending {
            Lending::Proportional => weight,
            Lending::MaxMin => weight.max(grant.default_share),
        }
    }

    /// Returns whether a weight is the same under any other grants of the queue.
    pub(crate) fn is_constant(former: &Grant, grant: &Grant) -> bool {
        !former.borrows() && !grant.borrows() && former.default_share == grant.default_share
    }
}

/// The part of one client's grant that one member of a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Shape mode: the client's weight in the fair queueing of this member.
    pub weight: Fixed,
    /// Reject mode: the client's grant at this member, in whole records.
    pub records: u64,
    /// The client's whole grant, in records.
    pub whole_records: u64,
    /// The client's default share at this member.
    pub default_share: Fixed,
    /// The client's default share of the whole capacity.
    pub whole_share: Fixed,
    /// Reject mode: the records of its default share that a client within its share may send here at least. Its records
    /// may come to a member that had little demand of it, and the next split takes a moment.
    pub least_share: u64,
    /// The part of the client's demand that is here; without demand, a quarter of an even part.
    pub ratio: Ratio,
}

/// The part of a group of clients that one member of a group of instances has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientGroupPart {
    /// The part of the clients' demand that is here; without demand, a quarter of an even part.
    pub ratio: Ratio,
    /// Shape mode: the weight of the clients with demand, all together, in the fair queueing of this member. It is not
    /// the sum over all clients that the member knows: those without demand weigh nothing.
    pub weight: Option<Fixed>,
}

/// Allocates, and keeps its buffers for the next time.
#[derive(Debug, Default)]
pub struct Allocator {
    borrowers: Vec<lending::Borrower>,
    remainders: unrounded::Remainders,
    candidates: Vec<leftovers::Candidate>,
}

impl Allocator {
    /// Shares the capacity out: `grants` is emptied, then gets one grant for each claim, in the order of the claims.
    /// `name_of` tells the id of the client of a claim, unique among the claims: names break ties.
    ///
    /// No claims, no grants; otherwise the granted records add up to the capacity exactly.
    ///
    /// # Panics
    ///
    /// If the capacity, a weight or the number of claims is outside its range; the arithmetic is proven inside it only.
    pub fn allocate<'n>(
        &mut self, params: &AllocationParams, claims: &[Claim], name_of: impl Fn(usize) -> &'n str + Copy,
        grants: &mut Vec<Grant>,
    ) {
        let reserved = Reserved::Part(params.reservation);
        self.share_out(params.capacity, reserved, params.lending, claims, name_of, grants);
    }

    fn share_out<'n>(
        &mut self, capacity: u64, reserved: Reserved, lending: Lending, claims: &[Claim],
        name_of: impl Fn(usize) -> &'n str + Copy, grants: &mut Vec<Grant>,
    ) {
        grants.clear();
        if claims.is_empty() {
            return;
        }
        assert!((1..=MAX_CAPACITY).contains(&capacity), "capacity {capacity} is out of range");
        assert!(claims.len() <= MAX_CLAIMS, "{} claims are too many", claims.len());
        let wrong = claims.iter().position(|claim| !(1..=MAX_WEIGHT).contains(&claim.weight));
        assert!(wrong.is_none(), "the weight of {:?} is out of range", wrong.map(name_of));

        let sums = shares::ClaimSums::new(claims);
        let shares = shares::DefaultShares::new(capacity, reserved, &sums);
        if shares.are_narrow(capacity, &sums) {
            let split = lending::Split::new(lending, &shares, claims, &mut self.borrowers);
            self.remainders.grant(&shares, &split, claims, grants);
        } else {
            let shares = shares.widened();
            let split = lending::Split::new(lending, &shares, claims, &mut self.borrowers);
            self.remainders.grant_wide(&shares, &split, claims, grants);
        }
        let undivided = |weight: u64| u128::from(capacity) * u128::from(weight);
        unrounded::fill_default_shares(sums.weight, undivided, claims, grants);
        leftovers::hand_out(capacity, claims, name_of, &self.remainders, &mut self.candidates, grants);
    }
}

/// The default share of one client: `capacity` × `weight` ÷ `total_weight`, in O(1).
///
/// # Panics
///
/// If `total_weight` is 0.
pub fn default_share(capacity: u64, weight: u64, total_weight: u128) -> Fixed {
    // The share is at most the capacity, so that it fits a `Fixed`.
    Fixed::from_bits(Divisor::new(total_weight).divide(u128::from(capacity) * u128::from(weight)).0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The grants of one queue: default shares and, beyond or below each, the exact grants.
    fn grants() -> impl Strategy<Value = Vec<Grant>> {
        let fixed = || (24_u32..124, any::<u128>()).prop_map(|(shift, bits)| Fixed::from_bits(bits >> shift));
        let grant = |(default_share, exact)| Grant { default_share, exact, ..Grant::default() };
        prop::collection::vec((fixed(), fixed()).prop_map(grant), 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Lenders weigh their default shares, and the borrowers together as much as theirs, in proportion to grants.
        #[test]
        fn fair_weights_add_up_to_the_default_shares(grants in grants()) {
            let mut weights = FairWeights::new(Lending::Proportional);
            grants.iter().for_each(|grant| weights.count(grant));
            weights.settle();
            let weighed: u128 = grants.iter().map(|grant| weights.weight(grant).to_bits()).sum();
            let shares: u128 = grants.iter().map(|grant| grant.default_share.to_bits()).sum();
            let rounding = 2 * grants.len() as u128 + (weights.grants.to_bits() >> 62);
            prop_assert!(weighed.abs_diff(shares) <= rounding, "{weighed} of {shares}, {grants:?}");
            for lender in grants.iter().filter(|grant| !grant.borrows()) {
                prop_assert_eq!(weights.weight(lender), lender.default_share);
            }
        }
    }
}
