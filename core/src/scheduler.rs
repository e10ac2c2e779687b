//! The order and the pace of records: the clients of a service, their backlogs and grants, and the gates on the
//! service.
//!
//! The scheduler knows no partitions and no offsets: a delayed record is a [`Slot`] in its client's queue. Nor does it
//! know whether its decisions are carried out; in shadow mode they are not, and the [`throttle`](crate::throttle)
//! counts them apart.
//!
//! - `decision`: the decision on a record that was read
//! - `grounds`: the quota and the rule behind a rejection
//! - `registry`, `client`, `client_groups`: the known clients and their groups, with weights, grants and counts
//! - `backlog`, `fair`: the delayed records, and the order in which clients are served
//! - `gates`: the gates on the service. `spacing`: its pace. `lent_room`: what borrowers leave. `bucket`: its bucket
//! - `limits`: the limits of a client or a group of clients
//! - `cycles`: cycles and allocations. `falling_part`: a client's part of its grant after records went elsewhere
//! - `bounds`: the choice of the record to evict if the backlogs are too large, by a heap for very many clients
//! - `forecast`: the grants that another policy would give
//! - `names`: only for more than some 1 000 clients

mod backlog;
mod bounds;
mod bucket;
mod client;
mod client_groups;
mod cycles;
mod decision;
mod expiry;
mod fair;
mod falling_part;
mod forecast;
mod gates;
mod grounds;
mod lent_room;
mod limits;
mod mean_limit;
mod names;
mod registry;
mod spacing;

use std::time::Duration;

use crate::allocator::{ClientGroupPart, Credit, FairWeights, Grant, Part};
use crate::ledger::TopicWait;
use crate::policy::{Mode, Policy, Scope};
use crate::slot::Slot;
use crate::units::{Time, nanos};
use backlog::Backlog;
pub(crate) use backlog::QueuedRecord;
use bounds::Bounds;
pub use bucket::LeakyBucket;
pub use client::{Client, Counts, Used};
pub use client_groups::ClientGroup;
use client_groups::OverLimit;
pub use cycles::Cause;
use cycles::Cycles;
pub(crate) use decision::Decision;
pub use forecast::grants;
use gates::Gates;
pub use gates::{GroupPart, Growth, OpenRoom};
pub use limits::Limits;
pub use registry::{Forgotten, PAGE, Registry};
pub(crate) use spacing::least_limit;

/// The clients of a service and their delayed records.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) policy: Policy,
    pub(crate) clients: Registry,
    pub(crate) backlog: Backlog,
    pub(crate) gates: Gates,
    pub(crate) cycles: Cycles,
    bounds: Bounds,
    /// Delayed records may expire: the service or a client has a longest wait, or a rule expires some.
    may_expire: bool,
    /// Clients that may have records to expire, by a rule.
    expiring: Vec<u32>,
    /// No record that goes first expires before this time.
    first_expires: Time,
    /// Expired records are left until this time, and overdue ones: the offset map has no room for them.
    expire_after: Time,
    overdue_after: Time,
    /// The last time at which partitions were taken over: clients are owed what they could not send meanwhile.
    pub(crate) takeover: Time,
}

/// The outcome of a client's turn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClientTurn {
    /// The record left its queue to be sent; the window holds `in_window` records with it.
    Served { record: QueuedRecord, in_window: u64 },
    /// No record goes in this turn.
    Blocked,
    /// Reject mode: a record that goes first exceeds its client's own limit until this time.
    OverLimit { until: Time },
}

impl Scheduler {
    pub fn new(policy: Policy, now: Time) -> Scheduler {
        let mut scheduler = Scheduler {
            clients: Registry::new(&policy, now),
            backlog: Backlog::default(),
            gates: Gates::new(&policy),
            cycles: Cycles::new(now, policy.cycle),
            bounds: Bounds::default(),
            may_expire: policy.max_delay.is_some(),
            expiring: Vec::new(),
            first_expires: Time::NEVER,
            expire_after: Time::ZERO,
            overdue_after: Time::ZERO,
            takeover: Time::ZERO,
            policy,
        };
        match scheduler.policy.scope {
            Scope::Instance => scheduler.allocate(Cause::Cycle),
            Scope::Group => scheduler.take_parts(now, |_| None, |_| None),
        }
        scheduler
    }

    /// Changes to another policy, and allocates by it. A cycle of another length begins now.
    /// [`find_surplus`](Scheduler::find_surplus) follows, once no record remains that does not count under it.
    pub fn change(&mut self, now: Time, policy: Policy) {
        let old = std::mem::replace(&mut self.policy, policy);
        self.clients.iter_mut().for_each(|client| client.used.change(&self.policy, now, self.cycles.number));
        for group in &mut self.clients.groups.list {
            group.unlisted.used.change(&self.policy, now, self.cycles.number);
        }
        self.clients.take_policy(&self.policy, now, Some(self.cycles.number));
        if old.cycle != self.policy.cycle {
            self.begin_cycle(now, old.cycle);
        }
        self.gates.change(now, &old, &self.policy);
        if (old.mode, self.policy.mode) == (Mode::Reject, Mode::Shape) {
            // Records that go first are not paced: those of a whole cycle may wait, and would go at once.
            for (index, client) in self.clients.iter_mut_indexed() {
                self.backlog.wait_in_turn(index, &mut client.queue);
            }
        }
        self.allocate_anew(Cause::Reload);
    }

    /// Changes to the weights, limits, groups and delays of a policy that differs in no more than those and the
    /// capacity.
    pub fn change_rules(&mut self, now: Time, policy: Policy) {
        let capacity = policy.capacity;
        self.policy = Policy { capacity: self.policy.capacity, ..policy };
        self.clients.take_policy(&self.policy, now, Some(self.cycles.number));
        self.change_capacity(now, capacity);
        self.allocate_anew(Cause::Rules);
    }

    /// Allocates by another policy, and puts each client in the queue that it belongs to now, with virtual times on the
    /// scale of its new weight: those of a time when all weights were smaller would starve the clients that were served
    /// then. Clients that are blocked for their own limit may try again. In a group of instances, the next parts come
    /// later.
    fn allocate_anew(&mut self, cause: Cause) {
        self.allocate(cause);
        if self.policy.scope == Scope::Group {
            self.clients.grant_defaults(self.policy.capacity, &mut self.backlog.fair);
        }
        let Scheduler { clients, backlog, .. } = self;
        backlog.fair.extend(clients.groups().len());
        backlog.fair.clear();
        backlog.blocked.clear();
        for (index, client) in clients.iter_mut_indexed() {
            backlog.fair.change_group(&mut client.queue, client.group);
            client.queue.blocked = None;
            backlog.fair.enter(index, &client.queue);
        }
        self.find_expiring();
    }

    /// Changes the capacity only: no record is evicted, no client is blocked or not, and the tags stay.
    pub fn change_capacity(&mut self, now: Time, capacity: u64) {
        if capacity != self.policy.capacity {
            self.policy.capacity = capacity;
            self.gates.change_capacity(now, &self.policy);
            self.request_allocation(now, Cause::Capacity);
        }
    }

    /// Hands out the clients' parts at this instance. A client without a part sends to no instance yet: its first
    /// records find its default share.
    pub fn take_parts(
        &mut self, now: Time, part_of: impl Fn(&str) -> Option<Part>,
        part_of_group: impl Fn(&str) -> Option<ClientGroupPart>,
    ) {
        let parts: Vec<Option<Part>> = self.clients.iter().map(|(_, client)| part_of(&client.name)).collect();
        let grant = |(client, part): (&Client, &Option<Part>)| match *part {
            // At least the share, so that no part counts as lent: the group recalls, not its members.
            Some(Part { weight, records, default_share, .. }) => {
                Grant { records, exact: weight.max(default_share), default_share, credit: Credit::default() }
            }
            None => self.clients.groups.default_grant(self.policy.capacity, client),
        };
        let clients = self.clients.iter().map(|(_, client)| client);
        let grants: Vec<Grant> = clients.zip(&parts).map(grant).collect();
        if self.clients.iter().zip(&grants).any(|((_, client), grant)| client.grant != *grant) {
            self.cycles.allocations[Cause::Group as usize] += 1;
        }
        self.clients.groups.take_parts(now, part_of_group);
        self.clients.take_grants(self.policy.capacity, FairWeights::of_parts(), &grants, None, &mut self.backlog.fair);
        for ((index, client), part) in self.clients.iter_mut_indexed().zip(parts) {
            let whole = part.map_or(0, |part| part.whole_records);
            client.falling_part.change(now, self.policy.cycle, client.grant.records, whole);
            client.share = client.share.max(part.map_or(0, |part| part.least_share));
            let Some(limits) = client.limits.as_deref_mut() else { continue };
            if let Some(part) = part {
                limits.take_part(now, part.ratio);
            }
            if client.queue.blocked.is_some() {
                self.backlog.wake_earlier(now, index, &mut client.queue, limits.next_room(now));
            }
        }
        // Groups with a limit of which a larger part is here now are blocked for less long, as clients are: they were
        // blocked for as long as the former part takes for a record, which may be hours.
        self.backlog.first_after = self.backlog.first_after.min(now);
        for group in 0..self.clients.groups().len() {
            if let Some(limits) = self.clients.groups.limits(Some(group)) {
                self.backlog.wake_group_earlier(now, group, limits.next_room(now));
            }
        }
        self.bounds.excess_is_known = false;
    }

    /// Returns whether a record that waited for an owner of its partition, or that came while such ones wait to go
    /// first, is within its client's default share of that time, and counts it so.
    #[cold]
    fn is_owed(&mut self, now: Time, index: u32, wait: TopicWait) -> bool {
        let [age, unowned] = [wait.age_ms, wait.unowned_ms].map(|ms| Duration::from_millis(ms.into()));
        let cycle = self.policy.cycle;
        let client = self.clients.get(index);
        if age > cycle + cycle / 8 || self.clients.is_limited(index) || client.queue.has_others() {
            return false;
        }
        // Not that of this instance: a client without demand here so far has no part of it.
        let share = self.clients.groups.default_grant(self.policy.capacity, client).records;
        let (takeover, unowned) = (self.takeover, unowned.min(cycle));
        let client = self.clients.get_mut(index);
        client.owed_step = nanos(cycle) / share.max(1);
        if !client.owed.has_more(now, takeover, share, unowned, cycle) {
            return false;
        }
        // Clients that are not configured are owed one share together.
        if let Some(all) = self.clients.unlisted_of(index) {
            if !all.owed.has_more(now, takeover, all.share, unowned, cycle) {
                return false;
            }
            all.owed.taken += 1;
        }
        self.clients.get_mut(index).owed.taken += 1;
        true
    }

    // ## A record that was read

    /// The index of the client with this name, which is registered if it is new; `None` if the registry is full.
    #[inline]
    pub fn client_of(&mut self, now: Time, name: &str) -> Option<u32> {
        self.clients.find(name).or_else(|| self.register(now, name))
    }

    /// Notes that a record of a client was read, as a want if it is the first time.
    #[inline]
    pub fn note_arrival(&mut self, now: Time, client: u32, first_time: bool) {
        let client = self.clients.get_mut(client);
        client.last_seen = now;
        if first_time {
            client.arrivals += 1;
            if client.recalls() {
                self.request_allocation(now, Cause::Recall);
            }
        }
    }

    // ## Delayed records

    /// Delays a record. If it is `kept`, no record of its client is evicted.
    #[inline]
    pub fn enqueue(&mut self, slot: Slot, mut record: QueuedRecord, kept: bool) {
        let client = self.clients.get_mut(record.client);
        if client.queue.has_own_delay
            && let Some(delay) = client.max_delay
        {
            record.delays = self.backlog.list_of(delay);
            self.may_expire = true;
        }
        let queue = &mut client.queue;
        self.backlog.push(slot, record, queue);
        if kept {
            self.backlog.keep(queue);
        }
        let length = queue.records.len();
        if record.first {
            self.first_expires = self.first_expires.min(self.deadline(slot));
        }
        self.note_growth(record.client, length);
    }

    /// Blocks a client, or its group, for a limit that refused a record in the client's turn.
    #[cold]
    fn block(&mut self, client: u32, limit: OverLimit) {
        let queue = &mut self.clients.get_mut(client).queue;
        match limit.group {
            Some(group) if queue.group() == Some(group) => self.backlog.block_group(group, limit.until),
            _ => self.backlog.block(client, queue, limit.until),
        }
    }

    /// The client that is served next, and its first record; `None` if no record may go now.
    #[inline]
    pub fn next_turn(&mut self, now: Time) -> Option<(u32, Slot)> {
        while let Some(client) = self.backlog.next_blocked(now) {
            if self.clients.lookup(client).is_some() {
                self.backlog.unblock(now, client, &mut self.clients.get_mut(client).queue);
            }
        }
        if !self.backlog.first.is_empty() && self.backlog.first_after <= now {
            return self.gates.window_is_open(now).then(|| self.next_first()).flatten();
        }
        let client = self.next_client()?;
        self.gates.spacing.note_look(now);
        if !self.gates.are_open(now) {
            return None;
        }
        let head = self.clients.get(client).queue.records.head();
        Some((client, head.expect("a client with a tag has a first record")))
    }

    /// The client with the earliest record of those that go first, and that record.
    fn next_first(&mut self) -> Option<(u32, Slot)> {
        let Scheduler { clients, backlog, .. } = self;
        backlog.next_first(|backlog, index| {
            let client = clients.lookup(index).filter(|client| client.queue.first > 0)?;
            let slot = client.queue.records.head()?;
            let record = backlog.get(slot);
            Some((if record.owed { client.owed_at() } else { record.since }, slot))
        })
    }

    /// Sends a record in the turn of a client; usually one of its own. If the own limit of the record's client refuses
    /// it, the client that has its turn is blocked. A record that goes first is to be rejected then; in shape mode, all
    /// of its client wait in their turn instead.
    #[inline]
    pub fn serve(&mut self, now: Time, turn: u32, slot: Slot) -> ClientTurn {
        let QueuedRecord { client: index, first, .. } = *self.backlog.get(slot);
        let client = match self.clients.take_limits(now, index) {
            Ok(client) => client,
            Err(_) if first && self.policy.mode == Mode::Shape => {
                self.backlog.wait_in_turn(index, &mut self.clients.get_mut(index).queue);
                return ClientTurn::Blocked;
            }
            Err(limit) if first => return ClientTurn::OverLimit { until: limit.until },
            Err(limit) => {
                if self.backlog.first.is_empty() || self.backlog.first_after > now {
                    // A record of another client may leave its queue by itself, also while that client is held.
                    let retry = if index == turn { Time::NEVER } else { now + self.policy.commit_interval };
                    self.block(turn, OverLimit { until: limit.until.min(retry), ..limit });
                } else {
                    // The limit or hold may end earlier, with its rule.
                    self.backlog.first_after = limit.until.min(now + self.policy.commit_interval);
                }
                return ClientTurn::Blocked;
            }
        };
        let record = self.backlog.serve(slot, &mut client.queue);
        // Shape mode counts no use: not even looking spares a decision a cache line.
        if !first {
            if self.policy.mode == Mode::Reject {
                client.used.charge(now, self.cycles.number);
            }
            self.gates.bucket.charge(now);
        }
        ClientTurn::Served { record, in_window: self.gates.charge_window(now) }
    }

    /// Sends a record without asking or charging the gates.
    pub fn serve_unchecked(&mut self, slot: Slot) -> QueuedRecord {
        let client = self.clients.get_mut(self.backlog.get(slot).client);
        self.backlog.serve(slot, &mut client.queue)
    }

    /// Removes a record that is not sent.
    pub fn remove(&mut self, now: Time, slot: Slot) -> QueuedRecord {
        let client = self.clients.get_mut(self.backlog.get(slot).client);
        let record = self.backlog.remove(slot, &mut client.queue);
        if record.first && !record.owed {
            client.used.refund(now, record.since, self.cycles.start);
            if let Some(unlisted) = self.clients.unlisted_of(record.client) {
                unlisted.used.refund(now, record.since, self.cycles.start);
            }
        }
        record
    }

    #[inline]
    fn next_client(&mut self) -> Option<u32> {
        let clients = &self.clients;
        self.backlog.fair.next_client(|client| clients.lookup(client).and_then(|client| client.queue.eligible_tag()))
    }

    /// The time at which something happens without a call.
    pub fn next_timeout(&mut self, now: Time) -> Time {
        if self.exceeds_bounds() {
            return now;
        }
        let mut next = self.cycles.next_allocation();
        if self.may_expire {
            let deadline = if self.expiring.is_empty() { self.next_deadline() } else { now };
            next = next.min(deadline.max(self.expire_after));
        }
        if let Some(until) = self.backlog.blocked_until() {
            next = next.min(until);
        }
        if let Some(first) = self.backlog.first.head() {
            next = next.min(self.gates.window_opens(now).max(self.backlog.first_after));
            if self.gates.has_limit(now) {
                next = next.min(self.overdue_at(first).max(self.overdue_after));
            }
        }
        if (self.backlog.first.is_empty() || self.backlog.first_after > now) && self.next_client().is_some() {
            next = next.min(self.gates.open_at(now));
        }
        if let Some(due) = self.bounds.surplus.due() {
            next = next.min(due);
        }
        next.max(now)
    }
}

#[cfg(test)]
mod tests;
