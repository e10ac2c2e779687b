//! The groups of clients, and the weights that shares come from.
//!
//! Once any client or group is configured, each client is in a group or stands alone: in the one that its policy tells,
//! alone if it is configured, else in the group of unlisted clients, which is the first one. Without either, all
//! clients stand alone.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::client::{Client, Used};
use super::fair::{FairQueue, QueueOf};
use super::limits::Limits;
use crate::allocator::{self, ClientGroupPart, Credit, FairWeights, Fixed, Grant, GroupClaim};
use crate::policy::Policy;
use crate::units::{Time, Weight, nanos};

/// The group of a client.
pub(super) fn group_of(policy: &Policy, client: &str, is_configured: bool) -> QueueOf {
    policy.place(policy.group_of(client), is_configured).and_then(|group| u16::try_from(group).ok())
}

/// All groups, and the weight of the clients that stand alone.
#[derive(Debug, Default)]
pub(super) struct ClientGroups {
    pub(super) list: Vec<ClientGroup>,
    /// The weight of all clients that stand alone, in thousandths.
    alone: u128,
    /// The most that all unlisted clients weigh together.
    unlisted_weight: Weight,
}

#[derive(Debug, Default)]
pub struct ClientGroup {
    /// The group's name with `/` behind it, which no client's has; empty for the unlisted clients.
    pub name: Arc<str>,
    /// `None` for the unlisted clients: their weight depends on their number.
    weight: Option<Weight>,
    /// The group takes part also while it has no client: it is configured.
    is_configured: bool,
    /// The number of its clients, and their weights inside it, in thousandths.
    pub clients: u64,
    inner: u128,
    pub(super) unlisted: Unlisted,
    /// The limits of all its clients together.
    pub limits: Option<Box<Limits>>,
    /// The grant of all its clients together. In a group of instances, this instance's part of it, without a credit.
    pub grant: Grant,
    /// The weight in fair queueing that the last allocation gave it.
    fair_weight: Fixed,
    /// The weight that this instance of a group was handed out with the clients' parts, if any.
    part: Option<Fixed>,
    /// The credit before this cycle's allocation: early ones of the same cycle start from it again.
    credit: Credit,
}

/// The clients of a group that are not configured. However many of them come one after another, together they send as
/// many records within their shares as their part of the group's share. Each newcomer gets a share at once, and the
/// clients before it have often used theirs already.
#[derive(Debug, Default)]
pub(super) struct Unlisted {
    /// The weights of these clients inside the group, in thousandths.
    pub weight: u128,
    /// The most records that they may send within their shares.
    pub share: u64,
    /// The records that these clients sent within their shares (reject mode).
    pub used: Used,
    pub owed: Owed,
}

impl Unlisted {
    /// Returns whether these clients have used all of their shares without any doubt.
    pub fn has_used_its_share(&mut self, now: Time, cycle: u64) -> bool {
        self.used.count(now, cycle) >= self.share && self.used.count_at_least(now, cycle) >= self.share
    }

    /// The time from which on these clients have room within their shares, if nothing is admitted.
    pub fn share_opens(&mut self, now: Time, cycle: u64, cycle_end: Time) -> Time {
        if self.has_used_its_share(now, cycle) { self.used.below_at(now, self.share, cycle_end) } else { now }
    }
}

/// The records that a client, or all of a group that are not configured, are owed since a takeover of partitions.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The last takeover since which records went first, their number, and the longest time for which the partition of
    /// any of them had no owner.
    pub since: Time,
    pub taken: u64,
    wait: Duration,
}

impl Owed {
    /// Returns whether another record is owed: as many are as the share lets through in the longest of these times, and
    /// since the takeover; in a cycle at most.
    pub fn has_more(&mut self, now: Time, takeover: Time, share: u64, wait: Duration, cycle: Duration) -> bool {
        if self.since != takeover {
            *self = Owed { since: takeover, taken: 0, wait: Duration::ZERO };
        }
        self.wait = self.wait.max(wait);
        let time = (self.wait + now.since(takeover)).min(cycle);
        let owed = u128::from(share) * u128::from(nanos(time)) / u128::from(nanos(cycle).max(1));
        u128::from(self.taken) <= owed
    }
}

/// The sums of a group's clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupSums {
    /// The sums of the exact grants and of the default shares.
    total: Grant,
    /// The weights of the clients inside the group.
    pub weights: FairWeights,
}

impl GroupSums {
    pub(super) fn new(weights: FairWeights) -> GroupSums {
        GroupSums { total: Grant::default(), weights }
    }

    pub(super) fn count(&mut self, grant: &Grant) {
        self.total.exact = self.total.exact + grant.exact;
        self.total.default_share = self.total.default_share + grant.default_share;
        self.weights.count(grant);
    }
}

/// A limit that refused a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverLimit {
    pub until: Time,
    /// The group of which it is the limit; `None` for the client's own.
    pub group: Option<usize>,
}

impl ClientGroups {
    /// Changes to the groups of another policy, without clients. A group that was there before keeps its credit, its
    /// grant and its limit's debt.
    pub(super) fn change(&mut self, policy: &Policy, now: Time) {
        let former = std::mem::take(&mut self.list).into_iter().map(|group| (Arc::clone(&group.name), group));
        let mut former: HashMap<Arc<str>, ClientGroup> = former.collect();
        let configured = policy.groups.len() - policy.made_groups;
        let group = |(index, name): (usize, Arc<str>)| {
            let wanted = index.checked_sub(1).map(|index| &policy.groups[index]);
            let unlisted = || Unlisted { used: Used::new(policy), ..Unlisted::default() };
            let new = || ClientGroup { unlisted: unlisted(), ..ClientGroup::default() };
            let mut group = former.remove(&name).unwrap_or_else(new);
            (group.name, group.weight, group.is_configured) =
                (name, wanted.map(|wanted| wanted.weight), index <= configured);
            (group.clients, group.inner, group.unlisted.weight) = (0, 0, 0);
            let (limits, hold) = wanted.map_or((&[][..], false), |wanted| (&wanted.limits, wanted.hold));
            Limits::change(&mut group.limits, now, limits, hold);
            group
        };
        self.list = policy.group_names().enumerate().map(group).collect();
        (self.alone, self.unlisted_weight) = (0, policy.unlisted_weight);
    }

    /// Adds a client of this weight.
    pub(super) fn add(&mut self, group: QueueOf, weight: Weight, is_configured: bool) {
        let thousandths = u128::from(weight.thousandths());
        let Some(group) = group else { return self.alone += thousandths };
        let group = &mut self.list[usize::from(group)];
        group.clients += 1;
        group.inner += thousandths;
        group.unlisted.weight += if is_configured { 0 } else { thousandths };
    }

    /// Takes a client of this weight away, which is not configured.
    pub(super) fn remove(&mut self, group: QueueOf, weight: Weight) {
        let thousandths = u128::from(weight.thousandths());
        let Some(group) = group else { return self.alone -= thousandths };
        let group = &mut self.list[usize::from(group)];
        group.clients -= 1;
        group.inner -= thousandths;
        group.unlisted.weight -= thousandths;
    }

    fn weight(&self, group: &ClientGroup) -> u64 {
        match group.weight {
            Some(_) if group.clients == 0 && !group.is_configured => 0,
            Some(weight) => weight.thousandths(),
            None => (Weight::ONE.thousandths() * group.clients).min(self.unlisted_weight.thousandths()),
        }
    }

    fn total_weight(&self) -> u128 {
        self.alone + self.list.iter().map(|group| u128::from(self.weight(group))).sum::<u128>()
    }

    /// Finds the records that the clients of a group that are not configured may send within their shares.
    fn find_unlisted_share(&mut self, index: usize, capacity: u64, total: u128) {
        let group = &self.list[index];
        let weight = u64::try_from(group.unlisted.weight).unwrap_or(u64::MAX);
        let share = match weight {
            0 => Fixed::ZERO,
            weight => allocator::default_share_in(capacity, self.weight(group), total, weight, group.inner),
        };
        self.list[index].unlisted.share = share.floor();
    }

    /// The clients of a group that are not configured.
    #[inline]
    pub(super) fn unlisted(&mut self, group: QueueOf) -> Option<&mut Unlisted> {
        Some(&mut self.list[usize::from(group?)].unlisted)
    }

    /// Returns whether the clients of a group that are not configured have used all of their shares (reject mode).
    #[inline]
    pub(super) fn have_used_their_share(&mut self, group: QueueOf, now: Time, cycle: u64) -> bool {
        self.unlisted(group).is_some_and(|all| all.has_used_its_share(now, cycle))
    }

    fn find_unlisted_shares(&mut self, capacity: u64) {
        let total = self.total_weight();
        (0..self.list.len()).for_each(|index| self.find_unlisted_share(index, capacity, total));
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = GroupClaim> + '_ {
        self.list.iter().map(|group| GroupClaim { weight: self.weight(group), credit: group.credit })
    }

    /// Begins a cycle: its allocations start from the credits that the last one left.
    pub(super) fn begin_cycle(&mut self) {
        self.list.iter_mut().for_each(|group| group.credit = group.grant.credit);
    }

    /// The grant of a client until it is allocated another one: its default share.
    pub(super) fn default_grant(&self, capacity: u64, client: &Client) -> Grant {
        let (weight, total) = (client.weight.thousandths(), self.total_weight());
        let share = match client.group().map(|group| &self.list[group]) {
            None => allocator::default_share(capacity, weight, total),
            Some(group) => allocator::default_share_in(capacity, self.weight(group), total, weight, group.inner),
        };
        Grant { records: share.floor(), exact: share, default_share: share, credit: Credit::default() }
    }

    /// Takes the grants of an allocation, if there was one, and the sums of each group's clients. Groups and clients
    /// that stand alone are in one queue, of which `weights` has counted the clients.
    pub(super) fn take_grants(
        &mut self, capacity: u64, grants: Option<&[Grant]>, sums: &[GroupSums], weights: &mut FairWeights,
        fair: &mut FairQueue,
    ) {
        self.find_unlisted_shares(capacity);
        sums.iter().for_each(|sums| weights.count(&sums.total));
        weights.settle();
        for (index, (group, sums)) in self.list.iter_mut().zip(sums).enumerate() {
            let total = sums.total;
            group.grant = match grants {
                Some(grants) => grants[index],
                None => Grant { records: total.exact.floor(), credit: group.grant.credit, ..total },
            };
            group.fair_weight = group.part.unwrap_or_else(|| weights.weight(&total));
            fair.set_group_weight(index, group.fair_weight);
        }
    }

    /// Gives each group its weight in fair queueing: that of its grant or, if it has none yet, of its default share.
    pub(super) fn weigh(&mut self, capacity: u64, fair: &mut FairQueue) {
        self.find_unlisted_shares(capacity);
        fair.extend(self.list.len());
        // Groups that a rule makes have no weight before their first client.
        let total = self.total_weight().max(1);
        for (index, group) in self.list.iter().enumerate() {
            let weight = match group.grant == Grant::default() {
                true => allocator::default_share(capacity, self.weight(group), total),
                false => group.fair_weight,
            };
            fair.set_group_weight(index, weight);
        }
    }

    /// Counts the share of a newcomer as granted, until the next allocation.
    pub(super) fn grant_newcomer(&mut self, capacity: u64, group: QueueOf, share: Fixed, fair: &mut FairQueue) {
        let Some(index) = group.map(usize::from) else { return };
        let total = self.total_weight();
        self.find_unlisted_share(index, capacity, total);
        let whole = allocator::default_share(capacity, self.weight(&self.list[index]), total);
        let group = &mut self.list[index];
        (group.grant.exact, group.grant.default_share) = (group.grant.exact + share, whole);
        group.fair_weight = group.part.unwrap_or_else(|| group.fair_weight.max(whole));
        fair.set_group_weight(index, group.fair_weight);
    }

    /// Takes over each group's part: of its limits, and of its weight from the next grants on.
    pub(super) fn take_parts(&mut self, now: Time, part_of: impl Fn(&str) -> Option<ClientGroupPart>) {
        for group in &mut self.list {
            let part = part_of(&group.name);
            group.part = part.and_then(|part| part.weight);
            if let Some((limits, part)) = group.limits.as_mut().zip(part) {
                limits.take_part(now, part.ratio);
            }
        }
    }

    /// Returns whether nothing of a group's clients is admitted. A group of another policy is not known yet.
    pub(super) fn holds(&self, group: QueueOf) -> bool {
        let limits = group.and_then(|group| self.list.get(usize::from(group))?.limits.as_deref());
        limits.is_some_and(|limits| limits.held)
    }

    #[inline]
    pub(super) fn limits(&mut self, group: Option<usize>) -> Option<&mut Limits> {
        self.list[group?].limits.as_deref_mut()
    }
}
