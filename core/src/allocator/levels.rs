//! Two levels: the allocator runs over groups of clients, and then inside each group.
//!
//! 1. A group's default share is that of its weight among the groups and the clients that stand alone. ρ is the
//!    reservation of that share, in whole records.
//! 2. A group wants what its clients want together, each at least its part of ρ.
//! 3. The upper run grants each group whole records.
//! 4. The lower run shares them out among its clients; ρ records of them are never lent to siblings.
//!
//! An unused share goes to the clients of the same group first, and then to other groups. A group of one client is
//! that client: its grant is that of an allocation without groups, record for record.

use super::{AllocationParams, Allocator, Claim, Credit, Fixed, Grant, Reserved, Wants};
use super::{parts::Divisor, unrounded::fill_default_shares};
use crate::units::Ratio;

/// The most records that a group wants.
const MAX_WANTS: u128 = 1 << 63;

/// One group's claim, beside the claims of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupClaim {
    /// The weight among the groups and the clients that stand alone, 1 to 2³⁰; 0 for a group that takes no part.
    pub weight: u64,
    /// The credit that earlier allocations left.
    pub credit: Credit,
}

/// The claims of an allocation on two levels.
#[derive(Debug)]
pub struct LevelClaims<'c, G, N, M> {
    /// The weight of a client, at most 2³⁰, counts inside its group.
    pub clients: &'c [Claim],
    /// Tells the group of a client; without one it stands alone beside the groups.
    pub group_of: G,
    /// Tells the id of a client.
    pub name_of: N,
    pub groups: &'c [GroupClaim],
    /// Tells the name of a group, which differs from those of all other groups and clients. Names break ties.
    pub group_name_of: M,
}

/// Allocates on two levels, and keeps its buffers for the next time.
#[derive(Debug, Default)]
pub struct LevelAllocator {
    allocator: Allocator,
    /// The clients that stand alone, and behind them the groups.
    upper: Level,
    groups: Vec<Level>,
}

/// The claims of one run, and its results.
#[derive(Debug, Default)]
struct Level {
    /// The index of each claim, as the caller knows it.
    indices: Vec<usize>,
    claims: Vec<Claim>,
    grants: Vec<Grant>,
}

/// The share of a group before anything is lent.
#[derive(Debug, Clone, Copy)]
struct GroupShare {
    capacity: u64,
    /// The weight of the group, and of all groups and clients that stand alone.
    weight: u64,
    of: u128,
    /// The weight of its clients.
    inner: u128,
}

impl LevelAllocator {
    /// Shares the capacity out: `grants` gets one grant for each client, and `group_grants` one for each group, in
    /// their orders.
    ///
    /// No claims and no groups, no grants; otherwise the grants of groups and of clients that stand alone add up to the
    /// capacity exactly, and those of a group's clients to the group's.
    ///
    /// # Panics
    ///
    /// As [`Allocator::allocate`].
    pub fn allocate<'n, G, N, M>(
        &mut self, params: &AllocationParams, claims: &LevelClaims<'_, G, N, M>, grants: &mut Vec<Grant>,
        group_grants: &mut Vec<Grant>,
    ) where
        G: Fn(usize) -> Option<usize>,
        N: Fn(usize) -> &'n str + Copy,
        M: Fn(usize) -> &'n str + Copy,
    {
        let LevelClaims { clients, group_of, name_of, groups, group_name_of } = claims;
        group_grants.clear();
        if groups.is_empty() {
            return self.allocator.allocate(params, clients, *name_of, grants);
        }
        self.sort(clients, group_of, groups.len());
        let AllocationParams { capacity, reservation, lending } = *params;
        let alone = self.upper.claims.len();
        let of = weight_of(&self.upper.claims) + groups.iter().map(|group| u128::from(group.weight)).sum::<u128>();
        let share_of = |(index, group): (usize, &GroupClaim)| {
            let inner = weight_of(&self.groups[index].claims);
            (group.weight > 0).then_some((index, GroupShare { capacity, weight: group.weight, of, inner }))
        };
        let present: Vec<(usize, GroupShare)> = groups.iter().enumerate().filter_map(share_of).collect();
        for &(group, share) in &present {
            let (GroupClaim { weight, credit }, level) = (groups[group], &mut self.groups[group]);
            self.upper.claims.push(match level.claims[..] {
                [Claim { wants, credit, .. }] => Claim { weight, wants, credit },
                _ => Claim { weight, wants: level.wants(&share, reservation), credit },
            });
        }
        let upper_name = |claim: usize| match claim.checked_sub(alone) {
            None => name_of(self.upper.indices[claim]),
            Some(place) => match self.groups[present[place].0].indices[..] {
                [client] => name_of(client),
                _ => group_name_of(present[place].0),
            },
        };
        let mut upper_grants = std::mem::take(&mut self.upper.grants);
        self.allocator.allocate(params, &self.upper.claims, upper_name, &mut upper_grants);

        let none = |credit| Grant { records: 0, exact: Fixed::ZERO, default_share: Fixed::ZERO, credit };
        grants.clear();
        grants.resize(clients.len(), none(Credit::ZERO));
        group_grants.extend(groups.iter().map(|group| none(group.credit)));
        for (&client, &grant) in self.upper.indices.iter().zip(&upper_grants) {
            grants[client] = grant;
        }
        for (&(group, share), &grant) in present.iter().zip(&upper_grants[alone..]) {
            let level = &mut self.groups[group];
            group_grants[group] = grant;
            if let [client] = level.indices[..] {
                grants[client] = grant;
                group_grants[group].credit = groups[group].credit;
                continue;
            }
            let name_of = |claim: usize| name_of(level.indices[claim]);
            if grant.records > 0 {
                let reserved = Reserved::Records(share.reserved(reservation));
                self.allocator.share_out(grant.records, reserved, lending, &level.claims, name_of, &mut level.grants);
            } else {
                level.grants.clear();
                level.grants.extend(level.claims.iter().map(|claim| none(claim.credit)));
            }
            if !level.claims.is_empty() {
                let (divisor, undivided) = (share.of * share.inner, |weight| share.undivided(weight));
                fill_default_shares(divisor, undivided, &level.claims, &mut level.grants);
            }
            for (&client, &grant) in level.indices.iter().zip(&level.grants) {
                grants[client] = grant;
            }
        }
        self.upper.grants = upper_grants;
    }

    /// Sorts the claims by their groups.
    fn sort(&mut self, claims: &[Claim], group_of: impl Fn(usize) -> Option<usize>, groups: usize) {
        self.groups.resize_with(groups, Level::default);
        for level in self.groups.iter_mut().chain([&mut self.upper]) {
            level.indices.clear();
            level.claims.clear();
        }
        for (index, &claim) in claims.iter().enumerate() {
            let level = group_of(index).map_or(&mut self.upper, |group| &mut self.groups[group]);
            level.indices.push(index);
            level.claims.push(claim);
        }
    }
}

impl Level {
    /// The wants of a group. A newcomer in it wants its default share, rounded up, which its claim says from now on.
    fn wants(&mut self, share: &GroupShare, reservation: Ratio) -> Wants {
        if !self.claims.is_empty() && self.claims.iter().all(|claim| claim.wants == Wants::DefaultShare) {
            self.claims.iter_mut().for_each(|claim| claim.wants = Wants::Records(share.of_newcomer(claim.weight)));
            return Wants::DefaultShare;
        }
        let reserved = u128::from(share.reserved(reservation));
        let (mut sum, mut less) = (0_u128, 0_u128);
        for claim in &mut self.claims {
            let wants = match claim.wants {
                Wants::Records(wants) => wants,
                Wants::DefaultShare => share.of_newcomer(claim.weight),
            };
            claim.wants = Wants::Records(wants);
            if u128::from(wants) * share.inner >= reserved * u128::from(claim.weight) {
                sum += u128::from(wants);
            } else {
                less += u128::from(claim.weight);
            }
        }
        let kept = (reserved * less).div_ceil(share.inner.max(1));
        Wants::Records((sum + kept).min(MAX_WANTS) as u64)
    }
}

impl GroupShare {
    /// The whole records of the default share that are never lent.
    fn reserved(&self, reservation: Ratio) -> u64 {
        let records = u128::from(self.capacity) * u128::from(self.weight) * u128::from(reservation.millionths());
        (records / (self.of * u128::from(Ratio::ONE.millionths()))) as u64
    }

    /// A client's default share times the weights that divide it.
    fn undivided(&self, weight: u64) -> u128 {
        u128::from(self.capacity) * u128::from(self.weight) * u128::from(weight)
    }

    fn of_newcomer(&self, weight: u64) -> u64 {
        self.undivided(weight).div_ceil(self.of * self.inner) as u64
    }
}

/// The default share of a client in a group, in O(1): `capacity` × `group_weight` ÷ `total_weight` × `weight` ÷
/// `inner`. The weights are those of the group, of all groups and of clients that stand alone, of the client in its
/// group, and of all clients of the group; single ones are at most 2³⁰.
///
/// # Panics
///
/// If `total_weight` or `inner` is 0.
pub fn default_share_in(capacity: u64, group_weight: u64, total_weight: u128, weight: u64, inner: u128) -> Fixed {
    let share = GroupShare { capacity, weight: group_weight, of: total_weight, inner };
    Fixed::from_bits(Divisor::new(total_weight * inner).divide(share.undivided(weight)).0)
}

fn weight_of(claims: &[Claim]) -> u128 {
    claims.iter().map(|claim| u128::from(claim.weight)).sum()
}
