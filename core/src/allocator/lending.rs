//! Lending: clients that want less than their default share lend to those that want more.
//!
//! Once the surplus and the deficit of all are known, one ratio is enough to compute every client's grant:
//! grant = kept + portion × ratio, where [`Split::of`] tells the part that a client keeps and its portion.

use std::cmp::Ordering;

use super::parts::{PartCount, gcd};
use super::{Claim, Wants, shares::DefaultShares};
use crate::policy::Lending;

/// The outcome of lending, the same for all clients.
#[derive(Debug)]
pub(super) struct Split<P> {
    rule: Rule,
    /// The ratio, in lowest terms.
    pub(super) numerator: P,
    pub(super) denominator: P,
}

/// The rule that tells the portions that the ratio applies to.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// There is enough: borrowers get all they want, and lenders get back their gap × ratio.
    WantsMet,
    /// There is too little: a borrower gets its default share and its wants beyond that × ratio.
    InProportion,
    /// There is too little: a borrower gets its default share and weight × ratio, but never more than it wants.
    /// `met` is the claim with the most wants per weight that is met in full.
    Level { met: Option<Borrower> },
}

/// A client that wants more than its default share, with its weight in lowest terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Borrower {
    wants: u64,
    weight: u64,
}

impl<P: PartCount> Split<P> {
    /// Decides the ratio; `borrowers` is a buffer.
    pub(super) fn new(
        lending: Lending, shares: &DefaultShares<P>, claims: &[Claim], borrowers: &mut Vec<Borrower>,
    ) -> Split<P> {
        let (surplus, deficit) = totals(shares, claims);
        if deficit <= surplus {
            return Split::reduced(Rule::WantsMet, surplus - deficit, surplus);
        }
        match lending {
            Lending::Proportional => Split::reduced(Rule::InProportion, surplus, deficit),
            Lending::MaxMin => {
                collect_borrowers(shares, claims, borrowers);
                fill_progressively(shares, borrowers, surplus)
            }
        }
    }

    /// The part that a client keeps in any case, and its portion that the ratio applies to.
    pub(super) fn of(&self, shares: &DefaultShares<P>, claim: &Claim) -> (P, P) {
        let standing = shares.standing(claim);
        let lends = standing.floor < standing.default;
        let borrows = standing.floor > standing.default;
        let (kept, portion) = match self.rule {
            Rule::WantsMet if lends => (standing.floor, standing.default - standing.floor),
            Rule::InProportion if borrows => (standing.default, standing.floor - standing.default),
            Rule::Level { met } if borrows && !is_met(shares, claim, met) => {
                (standing.default, P::of(u128::from(shares.weight(claim))))
            }
            _ => (standing.floor, P::ZERO),
        };
        // Portion × ratio is at most the capacity, which bounds the portion; a ratio of 0 bounds nothing.
        if self.numerator == P::ZERO { (kept, P::ZERO) } else { (kept, portion) }
    }

    fn reduced(rule: Rule, numerator: P, denominator: P) -> Split<P> {
        if numerator == P::ZERO {
            return Split { rule, numerator, denominator: P::of(1) };
        }
        let common = gcd(numerator, denominator);
        Split { rule, numerator: numerator / common, denominator: denominator / common }
    }
}

/// The sum of the positive gaps, and of the negative ones.
fn totals<P: PartCount>(shares: &DefaultShares<P>, claims: &[Claim]) -> (P, P) {
    let (mut surplus, mut deficit) = (P::ZERO, P::ZERO);
    for claim in claims {
        let standing = shares.standing(claim);
        if standing.floor < standing.default {
            surplus += standing.default - standing.floor;
        } else {
            deficit += standing.floor - standing.default;
        }
    }
    (surplus, deficit)
}

fn collect_borrowers<P: PartCount>(shares: &DefaultShares<P>, claims: &[Claim], borrowers: &mut Vec<Borrower>) {
    borrowers.clear();
    for claim in claims {
        let standing = shares.standing(claim);
        if let Wants::Records(wants) = claim.wants
            && standing.floor > standing.default
        {
            borrowers.push(Borrower { wants, weight: shares.weight(claim) });
        }
    }
}

/// Raises all loans together, in proportion to weight, until the surplus is gone.
///
/// Borrowers that want less per weight are met first, so it is enough to find the last one that is met: a binary search
/// that partitions the borrowers as it halves them, O(N) in all.
fn fill_progressively<P: PartCount>(shares: &DefaultShares<P>, borrowers: &mut [Borrower], surplus: P) -> Split<P> {
    let mut left = surplus;
    let mut weight: u128 = borrowers.iter().map(|borrower| u128::from(borrower.weight)).sum();
    let mut met = None;
    let mut undecided = borrowers;
    while !undecided.is_empty() {
        let middle = undecided.len() / 2;
        undecided.select_nth_unstable_by(middle, Borrower::by_level);
        let (lower, upper) = undecided.split_at_mut(middle + 1);
        let last = lower[middle];
        let lower_over: P = lower.iter().map(|borrower| shares.over(borrower.wants, borrower.weight)).sum();
        let upper_weight = weight - lower.iter().map(|borrower| u128::from(borrower.weight)).sum::<u128>();
        if lower_over <= left && is_affordable(shares, last, upper_weight, left - lower_over) {
            left -= lower_over;
            weight = upper_weight;
            met = Some(last);
            undecided = upper;
        } else {
            undecided = &mut lower[..middle];
        }
    }
    // Some borrower is not met, as the deficit is larger than the surplus: its weight is left.
    Split::reduced(Rule::Level { met }, left, P::of(weight))
}

/// Returns whether `left` is enough to lend as much per weight to all others (of `weight` together) as meets `last`.
fn is_affordable<P: PartCount>(shares: &DefaultShares<P>, last: Borrower, weight: u128, left: P) -> bool {
    // 2^154 parts × 2^70, and 2^130 × 2^50.
    let over = shares.over(last.wants, last.weight).widened();
    over * weight.widened() <= left.widened() * u128::from(last.weight).widened()
}

/// Returns whether a claim above its default share is met in full, when `met` is the last one that is.
fn is_met<P: PartCount>(shares: &DefaultShares<P>, claim: &Claim, met: Option<Borrower>) -> bool {
    match (claim.wants, met) {
        (Wants::Records(wants), Some(met)) => {
            Borrower { wants, weight: shares.weight(claim) }.by_level(&met) != Ordering::Greater
        }
        // A newcomer wants its default share and is no borrower.
        _ => false,
    }
}

impl Borrower {
    /// By wants per weight, which orders what is wanted beyond the default share per weight too: the default share
    /// for each unit of weight is the same for all.
    fn by_level(&self, other: &Borrower) -> Ordering {
        let mine = u128::from(self.wants) * u128::from(other.weight);
        mine.cmp(&(u128::from(other.wants) * u128::from(self.weight)))
    }
}
