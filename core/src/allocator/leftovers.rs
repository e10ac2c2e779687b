//! Whole records: what rounding down left over goes to the largest fraction + credit, at most one record each.

use std::cmp::Ordering;

use super::unrounded::Remainders;
use super::{Claim, Grant};

/// Somebody who may get a left-over record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Fraction + credit, in 2⁻⁶⁴ records. Credits are whole numbers of those, so that nothing but the grant's own
    /// remainder is below it, and comparing that when the keys are equal is exact.
    key: i128,
    claim: u32,
}

/// Hands out the records that rounding down left over, and settles the credits.
pub(super) fn hand_out(
    capacity: u64,
    claims: &[Claim<'_>],
    remainders: &Remainders,
    candidates: &mut Vec<Candidate>,
    grants: &mut [Grant],
) {
    // Less than one record of each claim was rounded away: there are fewer left over than claims.
    let left = capacity - grants.iter().map(|grant| grant.records).sum::<u64>();
    if let Some(last) = (left as usize).checked_sub(1) {
        candidates.clear();
        candidates.extend(claims.iter().zip(&*grants).enumerate().map(|(index, (claim, grant))| Candidate {
            key: claim.credit.plus_fraction(grant.exact),
            claim: index as u32,
        }));
        candidates.select_nth_unstable_by(last, |one, other| before(claims, remainders, one, other));
        for candidate in &candidates[..=last] {
            grants[candidate.claim as usize].records += 1;
        }
    }
    for grant in grants {
        grant.credit = grant.credit.after(grant.exact, grant.records);
    }
}

fn before(claims: &[Claim<'_>], remainders: &Remainders, one: &Candidate, other: &Candidate) -> Ordering {
    let (a, b) = (one.claim as usize, other.claim as usize);
    other.key.cmp(&one.key).then_with(|| remainders.cmp(b, a)).then_with(|| claims[a].name.cmp(claims[b].name))
}
