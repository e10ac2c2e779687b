//! The clients of a service and their weights.

use std::{sync::Arc, time::Duration};

use super::client::{Client, Counts};
use super::client_groups::{ClientGroup, ClientGroups, GroupSums, OverLimit, Unlisted, group_of};
use super::fair::{ClientQueue, FairQueue};
use super::{Cause, Scheduler, limits::Limits, names::Names};
use crate::allocator::{FairWeights, Grant};
use crate::policy::Policy;
use crate::reason::Quota;
use crate::units::Time;

/// The number of neighbouring indices that form a page.
///
/// Pages exist for more than some 1 000 clients: a snapshot copies a bounded number of pages and takes the others over
/// from the one before, so that with 100 000 clients it takes 0.35 ms instead of 24–28 ms. The counts of a forgotten
/// client stay with its page, so that no page that was copied earlier ever shows more than the next copy of it.
pub const PAGE: usize = 256;

/// All known clients, by name and by index. A client keeps its index while it is known.
#[derive(Debug, Default)]
pub struct Registry {
    slots: Vec<Option<Client>>,
    free: Vec<u32>,
    names: Names,
    pub(super) groups: ClientGroups,
    listed: usize,
    max_clients: usize,
    /// The number of clients so far that were registered when their first record came. A client that was forgotten and
    /// comes back counts again.
    pub newcomers: u64,
    idle: IdleClients,
    /// The counts of forgotten clients, by page.
    forgotten: Vec<Forgotten>,
}

/// Decisions on clients that are not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forgotten {
    pub counts: Counts,
    pub shadow: Counts,
}

impl Forgotten {
    /// Adds another set of counts.
    pub fn merge(&mut self, other: &Forgotten) {
        self.counts.merge(&other.counts);
        self.shadow.merge(&other.shadow);
    }
}

/// Unlisted clients that may be forgotten for a newcomer.
#[derive(Debug, Default)]
struct IdleClients {
    /// By a debt to their own limits and the time at which they were last seen: the one idle longest without a debt is
    /// last.
    candidates: Vec<(bool, Time, u32)>,
    next_search: Time,
}

impl Registry {
    /// A registry of the configured clients of a policy.
    pub(super) fn new(policy: &Policy, now: Time) -> Registry {
        let mut registry = Registry::default();
        registry.take_policy(policy, now, None);
        for client in registry.iter_mut() {
            client.queue.group = client.group;
        }
        registry
    }

    /// Changes to the tables and rules of another policy. A client that is not configured any more stays with its
    /// counts and its backlog, as an unlisted one; without any, it is forgotten when the cycle ends. A limit keeps its
    /// debt. `since_cycle` is that of newcomers.
    pub(super) fn take_policy(&mut self, policy: &Policy, now: Time, since_cycle: Option<u64>) {
        self.iter_mut().for_each(|client| client.configured = false);
        self.configure(policy, now, since_cycle);
        for client in self.slots.iter_mut().flatten() {
            client.take_effects(policy, now);
            if !client.configured && client.is_unused() {
                client.last_seen = Time::ZERO;
            }
        }
        self.groups.change(policy, now);
        for client in self.slots.iter_mut().flatten() {
            client.group = group_of(policy, &client.name, client.configured);
            self.groups.add(client.group, client.weight, client.configured);
            client.held |= self.groups.holds(client.group);
        }
    }

    /// Configures the clients of a policy, where none is configured so far.
    fn configure(&mut self, policy: &Policy, now: Time, since_cycle: Option<u64>) {
        (self.listed, self.max_clients) = (policy.clients.len(), policy.max_clients);
        // This reserves address space, not memory: 100 000 clients that moved to a larger vector took 26 ms within one
        // decision. If it fails, they move when they have to.
        let _ = self.slots.try_reserve_exact(self.most().saturating_sub(self.slots.len()));
        for wanted in &policy.clients {
            let index = match self.find(&wanted.name) {
                Some(index) => index,
                None => self.insert(&wanted.name, since_cycle, policy, now),
            };
            let client = self.get_mut(index);
            (client.configured, client.weight) = (true, wanted.weight);
            Limits::change(&mut client.limits, now, &wanted.limits, false);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of known clients.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    #[inline]
    pub fn find(&self, name: &str) -> Option<u32> {
        self.names.find(name, |index| *self.get(index).name == *name)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Client {
        self.slots[index as usize].as_ref().expect("an index in use names a known client")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Client {
        self.slots[index as usize].as_mut().expect("an index in use names a known client")
    }

    /// A client, unless it was forgotten.
    pub fn lookup(&self, index: u32) -> Option<&Client> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// The name of a client, unless it was forgotten.
    pub fn name_of(&self, index: u32) -> Option<Arc<str>> {
        self.lookup(index).map(|client| Arc::clone(&client.name))
    }

    /// All clients with their indices, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// All clients, in the order of [`iter`](Registry::iter).
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.slots.iter_mut().filter_map(Option::as_mut)
    }

    /// All clients with their indices, in the order of [`iter`](Registry::iter).
    pub(super) fn iter_mut_indexed(&mut self) -> impl Iterator<Item = (u32, &mut Client)> {
        (0u32..).zip(&mut self.slots).filter_map(|(index, slot)| Some((index, slot.as_mut()?)))
    }

    pub fn pages(&self) -> usize {
        self.slots.len().div_ceil(PAGE)
    }

    /// The clients of a page, and the counts of clients that were forgotten out of it: their sum never falls.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page(&self, page: usize) -> (impl Iterator<Item = &Client>, Forgotten) {
        let slots = &self.slots[page * PAGE..self.slots.len().min((page + 1) * PAGE)];
        (slots.iter().flatten(), self.forgotten.get(page).copied().unwrap_or_default())
    }

    fn most(&self) -> usize {
        self.max_clients.max(self.listed)
    }

    /// Grants their default shares to the clients of another policy that have no grant, and weighs all groups, which
    /// may stand at other places than before. A record that is charged to a flow without a weight puts it behind all
    /// others.
    pub(super) fn grant_defaults(&mut self, capacity: u64, fair: &mut FairQueue) {
        self.groups.weigh(capacity, fair);
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            if let Some(client) = slot.as_mut().filter(|client| client.grant == Grant::default()) {
                let grant = self.groups.default_grant(capacity, client);
                client.take_grant(index, &grant, false, &FairWeights::of_parts(), fair);
            }
        }
    }

    /// Forgets the unlisted clients without a backlog that were not seen for this long, once their own limits would
    /// let as much through as those of a newcomer. All others are passed to `kept`: a second walk over 100 000 clients
    /// would take milliseconds.
    pub(super) fn forget_idle(&mut self, now: Time, timeout: Duration, mut kept: impl FnMut(u32, &mut Client)) {
        for index in 0..self.slots.len() {
            let idle = |client: &mut Client| {
                let idle = client.last_seen <= now - timeout && client.may_be_forgotten() && !client.has_debt(now);
                if !idle {
                    kept(index as u32, client);
                }
                idle
            };
            if let Some(client) = self.slots[index].take_if(idle) {
                self.vacate(index, &client);
            }
        }
    }

    /// Frees the slot of a client that was taken out of it.
    fn vacate(&mut self, index: usize, client: &Client) {
        self.groups.remove(client.group, client.weight);
        self.names.remove(&client.name, index as u32);
        self.free.push(index as u32);
        let page = index / PAGE;
        if self.forgotten.len() <= page {
            self.forgotten.resize(page + 1, Forgotten::default());
        }
        self.forgotten[page].merge(&Forgotten { counts: client.counts, shadow: client.shadow });
    }

    /// Forgets the unlisted client that has been idle longest, if one has been idle for two cycles. Those with a debt
    /// to their own limits go last, because they would have none when they come back.
    ///
    /// A search over very many clients takes long, so candidates are kept from one search to the next, and searches
    /// that find none are as far apart as early allocations. Clients that became idle since were seen later than every
    /// candidate.
    fn forget_for_newcomer(&mut self, now: Time, cycle: Duration) -> bool {
        loop {
            while let Some((has_debt, seen, index)) = self.idle.candidates.pop() {
                if has_debt && now >= self.idle.next_search {
                    // Others may be idle without a debt by now.
                    self.idle.candidates.clear();
                    break;
                }
                let still_idle = |client: &mut Client| client.last_seen == seen && client.may_be_forgotten();
                if let Some(client) = self.slots[index as usize].take_if(still_idle) {
                    self.vacate(index as usize, &client);
                    return true;
                }
            }
            if now < self.idle.next_search {
                return false;
            }
            self.idle.next_search = now + (cycle / 100).max(Duration::from_micros(2 * self.len() as u64));
            self.find_idle(now, now - cycle * 2);
            if self.idle.candidates.is_empty() {
                return false;
            }
        }
    }

    /// Finds the clients idle longest that were not seen since `before`.
    fn find_idle(&mut self, now: Time, before: Time) {
        let clients = self.iter_mut_indexed();
        let candidates = clients.filter(|(_, client)| client.last_seen <= before && client.may_be_forgotten());
        let candidates = candidates.map(|(index, client)| (client.has_debt(now), client.last_seen, index));
        let mut idle: Vec<_> = candidates.collect();
        let most = self.len() / 16 + 1;
        if idle.len() > most {
            idle.select_nth_unstable(most);
            idle.truncate(most);
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        self.idle.candidates = idle;
    }

    /// Hands out the grants of an allocation, in the order of [`iter`](Registry::iter), and those of the groups, if the
    /// allocation was here. No grant is counted in `weights` yet.
    pub(super) fn take_grants(
        &mut self, capacity: u64, weights: FairWeights, grants: &[Grant], of_groups: Option<&[Grant]>,
        fair: &mut FairQueue,
    ) {
        let groups = self.groups.list.len();
        fair.extend(groups);
        let mut sums = vec![GroupSums::new(weights); groups];
        let mut alone = weights;
        // Without groups, the clients need not be looked at.
        if groups == 0 {
            grants.iter().for_each(|grant| alone.count(grant));
        } else {
            for (client, grant) in self.slots.iter().flatten().zip(grants) {
                match client.group {
                    Some(group) => sums[usize::from(group)].count(grant),
                    None => alone.count(grant),
                }
            }
        }
        sums.iter_mut().for_each(|sums| sums.weights.settle());
        self.groups.take_grants(capacity, of_groups, &sums, &mut alone, fair);
        let lends = |grant: &Grant| grant.exact < grant.default_share;
        let mut grants = grants.iter();
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            let Some(client) = slot else { continue };
            let Some(grant) = grants.next() else { break };
            let (group_lends, weights) = match client.group.map(usize::from) {
                Some(group) => (of_groups.is_some_and(|grants| lends(&grants[group])), &sums[group].weights),
                None => (false, &alone),
            };
            client.take_grant(index, grant, group_lends, weights, fair);
        }
    }

    /// The groups, if any client or group is configured: that of the unlisted clients, and the configured ones.
    pub fn groups(&self) -> &[ClientGroup] {
        &self.groups.list
    }

    pub fn group_of(&self, client: &Client) -> Option<&ClientGroup> {
        client.group.map(|group| &self.groups.list[usize::from(group)])
    }

    /// Charges a record of a client to its own limit and to that of its group, if both have room.
    #[inline]
    pub(super) fn take_limits(&mut self, now: Time, index: u32) -> Result<&mut Client, OverLimit> {
        let client = self.slots[index as usize].as_mut().expect("an index in use names a known client");
        if client.queue.group.is_some() || client.limits.is_some() {
            let group = client.queue.group();
            take_both(now, self.groups.limits(group), client.limits.as_deref_mut(), group)?;
        }
        Ok(client)
    }

    /// Charges a record within its client's share to the client, and to its group (reject mode).
    pub(super) fn charge_within_share(&mut self, index: u32, now: Time, cycle: u64) {
        self.get_mut(index).used.charge(now, cycle);
        if let Some(unlisted) = self.unlisted_of(index) {
            unlisted.used.charge(now, cycle);
        }
    }

    /// The clients of a client's group that are not configured, if it is one of them.
    pub(super) fn unlisted_of(&mut self, index: u32) -> Option<&mut Unlisted> {
        let group = self.get(index).unlisted_in();
        self.groups.unlisted(group)
    }

    /// Returns whether a client has a limit of its own or by its group, or is held.
    pub(super) fn is_limited(&self, index: u32) -> bool {
        let client = self.get(index);
        client.limits.is_some() || self.group_of(client).is_some_and(|group| group.limits.is_some())
    }

    /// The limits of a client's group, and its own.
    fn limits_of(&mut self, index: u32) -> [Option<&mut Limits>; 2] {
        let client = self.slots[index as usize].as_mut().expect("an index in use names a known client");
        [self.groups.limits(client.queue.group()), client.limits.as_deref_mut()]
    }

    /// The time at which the own limit of a client and that of its group have room.
    pub(super) fn limits_open_at(&mut self, now: Time, index: u32) -> Time {
        self.limits_of(index).into_iter().flatten().map(|limits| limits.next_room(now)).fold(now, Time::max)
    }

    /// The quota of the limit that has no room for a client's next record, and whether it is one of the client's group,
    /// which is asked first.
    pub(super) fn exhausted_limit(&mut self, now: Time, index: u32) -> Option<(Quota, bool)> {
        let [of_group, own] = self.limits_of(index).map(|limits| limits.and_then(|limits| limits.exhausted(now)));
        of_group.map(|quota| (quota, true)).or(own.map(|quota| (quota, false)))
    }

    /// Inserts a client that is not configured; its group does not count it yet.
    fn insert(&mut self, name: &str, since_cycle: Option<u64>, policy: &Policy, now: Time) -> u32 {
        let group = group_of(policy, name, false);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2³² clients")
        });
        let queue = ClientQueue::new(group, since_cycle.is_some());
        let mut client = Client::new(name, queue, since_cycle, policy, now);
        client.take_effects(policy, now);
        client.held |= self.groups.holds(client.group);
        self.slots[index as usize] = Some(client);
        self.names.insert(name, index);
        index
    }
}

impl Scheduler {
    /// Adds a newcomer, which gets its default share at once. If the registry is full, the unlisted client that has
    /// been idle longest makes room; returns `None` if the registry is full of configured clients and of those that
    /// were active in the last two cycles.
    #[cold]
    pub(super) fn register(&mut self, now: Time, name: &str) -> Option<u32> {
        let Scheduler { policy, clients, backlog, cycles, .. } = self;
        if clients.len() >= clients.most() && !clients.forget_for_newcomer(now, policy.cycle) {
            return None;
        }
        clients.newcomers += 1;
        let index = clients.insert(name, Some(cycles.number), policy, now);
        let client = clients.slots[index as usize].as_mut().expect("it was just inserted");
        clients.groups.add(client.group, client.weight, false);
        let grant = clients.groups.default_grant(policy.capacity, client);
        backlog.fair.set_weight(index, &mut client.queue, grant.exact);
        client.set_grant(grant, false);
        clients.groups.grant_newcomer(policy.capacity, client.group, grant.exact, &mut backlog.fair);
        self.request_allocation(now, Cause::NewClient);
        Some(index)
    }
}

/// Charges a record to the limit of a group and to a client's own, if both have room.
#[inline(never)]
fn take_both(
    now: Time, mut of_group: Option<&mut Limits>, own: Option<&mut Limits>, group: Option<usize>,
) -> Result<(), OverLimit> {
    if let Some(limits) = &mut of_group
        && !limits.has_room(now)
    {
        return Err(OverLimit { until: limits.next_room(now), group });
    }
    own.map_or(Ok(()), |own| own.take(now)).map_err(|until| OverLimit { until, group: None })?;
    of_group.into_iter().for_each(|limits| limits.charge(now));
    Ok(())
}
