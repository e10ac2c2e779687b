//! Cycles, and the allocations at their ends and within them.

use std::time::Duration;

use strum::VariantNames;

use super::{Scheduler, fair::QueueOf};
use crate::allocator::{AllocationParams, Claim, FairWeights, Grant, GroupClaim, LevelAllocator, LevelClaims};
use crate::policy::{Mode, Scope};
use crate::units::{Time, nanos};

/// The reason for which the allocator ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Cause {
    Cycle,
    NewClient,
    Recall,
    /// Another policy.
    Reload,
    /// Other parts of the group's capacity.
    Group,
    /// Another capacity.
    Capacity,
    /// Other rules.
    Rules,
}

/// The running cycle, and the allocations so far.
#[derive(Debug, Default)]
pub(crate) struct Cycles {
    pub(crate) number: u64,
    pub(super) start: Time,
    /// The start of the next cycle.
    pub(super) end: Time,
    /// The next allocation before the end of the cycle, and the last one.
    early: Option<(Time, Cause)>,
    last_early: Option<Time>,
    pub(crate) allocations: [u64; Cause::VARIANTS.len()],
    /// The records that all clients together usually send in a cycle within their shares (reject mode).
    pub(super) usual: u64,
    allocator: LevelAllocator,
    /// The claims of all clients; these vectors are buffers between allocations.
    claims: Vec<Claim>,
    /// The index and the group of each claim's client.
    claimants: Vec<(u32, QueueOf)>,
    group_claims: Vec<GroupClaim>,
    grants: Vec<Grant>,
    group_grants: Vec<Grant>,
}

impl Cycles {
    pub(super) fn new(now: Time, cycle: Duration) -> Cycles {
        Cycles { start: now, end: now + cycle, ..Cycles::default() }
    }

    pub(super) fn next_allocation(&self) -> Time {
        self.early.map_or(self.end, |(due, _)| due.min(self.end))
    }
}

impl Scheduler {
    #[inline]
    pub fn advance_cycle(&mut self, now: Time) {
        if now >= self.cycles.end {
            self.end_cycles(now);
        }
    }

    /// Ends every cycle that is over, and allocates for the running one: the grants of cycles that passed meanwhile
    /// could not have been used.
    #[cold]
    fn end_cycles(&mut self, now: Time) {
        let Scheduler { policy, clients, cycles, .. } = self;
        let cycle = nanos(policy.cycle);
        let ended = nanos(now.since(cycles.start)) / cycle;
        cycles.number += ended;
        cycles.start = cycles.start + Duration::from_nanos(ended * cycle);
        cycles.end = cycles.start + policy.cycle;
        cycles.early = None;
        cycles.usual = 0;
        cycles.claimants.clear();
        cycles.claims.clear();
        // Idle clients are forgotten before the allocation, as their grants would be lost for a cycle. The same walk
        // ends the others' cycle and collects their claims: with very many clients each walk waits for memory.
        clients.forget_idle(now, policy.client_idle_timeout, |index, client| {
            for _ in 0..ended.min(2) {
                client.end_cycle();
            }
            if policy.mode == Mode::Reject {
                client.find_usual(policy.reservation);
                cycles.usual += client.usual;
            }
            client.credit = client.grant.credit;
            cycles.claimants.push((index, client.group));
            cycles.claims.push(client.claim(cycles.number, true, policy.mode));
        });
        clients.groups.begin_cycle();
        self.allocate_claims(Cause::Cycle);
        let clients = &self.clients;
        self.backlog.forget_blocked(clients.len(), |client| clients.lookup(client).and_then(|one| one.queue.blocked));
    }

    /// Begins a cycle of another length than `old`. Recent wants are scaled to it.
    pub(super) fn begin_cycle(&mut self, now: Time, old: Duration) {
        let (old, new) = (u128::from(nanos(old)), u128::from(nanos(self.policy.cycle)));
        for client in self.clients.iter_mut() {
            let wants = u128::from(client.last_wants.max(client.wants()));
            client.end_cycle();
            client.last_wants = u64::try_from((wants * new).div_ceil(old)).unwrap_or(u64::MAX);
        }
        self.cycles.number += 1;
        (self.cycles.start, self.cycles.end) = (now, now + self.policy.cycle);
        self.cycles.early = None;
    }

    /// Requests an allocation within the cycle. There is at most one per max(cycle / 100, clients × 2 µs), so that a
    /// flood of fresh ids or recalls does not become a flood of allocations.
    #[cold]
    pub(super) fn request_allocation(&mut self, now: Time, cause: Cause) {
        if self.cycles.early.is_none() {
            let apart = (self.policy.cycle / 100).max(Duration::from_micros(2 * self.clients.len() as u64));
            let due = self.cycles.last_early.map_or(now, |last| now.max(last + apart));
            self.cycles.early = Some((due, cause));
        }
    }

    pub fn allocate_if_due(&mut self, now: Time) {
        if let Some((_, cause)) = self.cycles.early.take_if(|(due, _)| *due <= now) {
            self.cycles.last_early = Some(now);
            self.allocate(cause);
        }
    }

    /// Runs the allocator within a cycle.
    pub(super) fn allocate(&mut self, cause: Cause) {
        let Scheduler { policy, clients, cycles, .. } = self;
        cycles.claimants.clear();
        cycles.claims.clear();
        for (index, client) in clients.iter() {
            cycles.claimants.push((index, client.group));
            cycles.claims.push(client.claim(cycles.number, cause == Cause::Cycle, policy.mode));
        }
        self.allocate_claims(cause);
    }

    fn allocate_claims(&mut self, cause: Cause) {
        self.bounds.excess_is_known = false;
        // In a group, all members together allocate, and hand out the parts.
        if self.policy.scope == Scope::Group {
            return;
        }
        let Scheduler { policy, clients, cycles, backlog, .. } = self;
        let params =
            AllocationParams { capacity: policy.capacity, reservation: policy.reservation, lending: policy.lending };
        cycles.group_claims.clear();
        cycles.group_claims.extend(clients.groups.claims());
        let claims = LevelClaims {
            clients: &cycles.claims,
            group_of: |claim: usize| cycles.claimants[claim].1.map(usize::from),
            name_of: |claim: usize| &*clients.get(cycles.claimants[claim].0).name,
            groups: &cycles.group_claims,
            group_name_of: |group: usize| &*clients.groups()[group].name,
        };
        cycles.allocator.allocate(&params, &claims, &mut cycles.grants, &mut cycles.group_grants);
        let (weights, of_groups) = (FairWeights::new(policy.lending), Some(&cycles.group_grants[..]));
        clients.take_grants(policy.capacity, weights, &cycles.grants, of_groups, &mut backlog.fair);
        cycles.allocations[cause as usize] += 1;
    }
}
