//! Whole records: those left over by rounding down go to the largest fraction + credit, at most one to each claim.

use std::cmp::Ordering;

use super::{Claim, Grant, unrounded::Remainders};

/// A claim that may get a left-over record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Fraction + credit, in 2⁻⁶⁴ records. Credits are whole numbers of those, so that nothing but the grant's own
    /// remainder is below it, and comparing that when the keys are equal is exact.
    key: i128,
    /// The most significant limb of that remainder.
    below: u64,
    claim: u32,
}

/// Hands out the records that rounding down left over, and settles the credits.
pub(super) fn hand_out<'n>(
    capacity: u64, claims: &[Claim], name_of: impl Fn(usize) -> &'n str, remainders: &Remainders,
    candidates: &mut Vec<Candidate>, grants: &mut [Grant],
) {
    // Less than one record of each claim was rounded away: there are fewer left over than claims.
    let left = (capacity - grants.iter().map(|grant| grant.records).sum::<u64>()) as usize;
    if left > 0 {
        candidates.clear();
        candidates.extend(claims.iter().zip(&*grants).enumerate().map(|(index, (claim, grant))| Candidate {
            key: claim.credit.to_bits() + i128::from(grant.exact.fraction()),
            below: remainders.top(index),
            claim: index as u32,
        }));
        move_first(candidates, left, &name_of, remainders);
        for candidate in &candidates[..left] {
            grants[candidate.claim as usize].records += 1;
        }
    }
    for grant in grants {
        grant.credit = grant.credit.after(grant.exact, grant.records);
    }
}

/// Moves the first `count` candidates to the front. Names are compared only among those that tie for the last place:
/// with many claims that are alike, each look at a name waits for memory.
fn move_first<'n>(
    candidates: &mut [Candidate], count: usize, name_of: &impl Fn(usize) -> &'n str, remainders: &Remainders,
) {
    let before = |one: &Candidate, other: &Candidate| {
        (other.key.cmp(&one.key))
            .then_with(|| other.below.cmp(&one.below))
            .then_with(|| remainders.cmp_below_top(other.claim as usize, one.claim as usize))
    };
    let (first, &mut last, rest) = candidates.select_nth_unstable_by(count - 1, before);
    // Those that tie with the last one: to the end of what is before it, and to the beginning of what is behind it.
    let clear = partition(first, |one| before(one, &last) == Ordering::Less);
    let tied = partition(rest, |one| before(one, &last) == Ordering::Equal);
    let tied = &mut candidates[clear..count + tied];
    if tied.len() > count - clear {
        tied.select_nth_unstable_by(count - clear - 1, |one, other| {
            name_of(one.claim as usize).cmp(name_of(other.claim as usize))
        });
    }
}

/// Moves the candidates for which `holds` is true to the front, and returns their number.
fn partition(candidates: &mut [Candidate], holds: impl Fn(&Candidate) -> bool) -> usize {
    let mut held = 0;
    for index in 0..candidates.len() {
        if holds(&candidates[index]) {
            candidates.swap(held, index);
            held += 1;
        }
    }
    held
}
