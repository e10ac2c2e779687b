//! Cycles, and the allocations at their ends and within them.

use std::time::Duration;

use strum::VariantNames;

use super::fair::{FairQueue, QueueOf};
use super::registry::Registry;
use crate::allocator::{AllocationParams, Claim, FairWeights, Grant, GroupClaim, LevelAllocator, LevelClaims};
use crate::policy::{Mode, Policy, Scope};
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

    /// Ends every cycle that is over, and allocates for the running one: the grants of cycles that passed meanwhile
    /// could not have been used.
    pub(super) fn end_cycles(&mut self, now: Time, policy: &Policy, clients: &mut Registry, fair: &mut FairQueue) {
        let cycle = nanos(policy.cycle);
        let ended = nanos(now.since(self.start)) / cycle;
        self.number += ended;
        self.start = self.start + Duration::from_nanos(ended * cycle);
        self.end = self.start + policy.cycle;
        self.early = None;
        self.clear_claims();
        // Idle clients are forgotten before the allocation, as their grants would be lost for a cycle. The same walk
        // ends the others' cycle and collects their claims: with very many clients each walk waits for memory.
        let (claimants, claims, number) = (&mut self.claimants, &mut self.claims, self.number);
        self.usual = 0;
        let usual = &mut self.usual;
        clients.forget_idle(now, policy.client_idle_timeout, |index, client| {
            for _ in 0..ended.min(2) {
                client.end_cycle();
            }
            if policy.mode == Mode::Reject {
                client.find_usual(policy.reservation);
                *usual += client.usual;
            }
            client.credit = client.grant.credit;
            claimants.push((index, client.group));
            claims.push(client.claim(number, true, policy.mode));
        });
        clients.groups.begin_cycle();
        self.allocate_claims(policy, clients, fair, Cause::Cycle);
    }

    /// Begins a cycle of another length than `old`. Recent wants are scaled to it.
    pub(super) fn begin_cycle(&mut self, now: Time, old: Duration, cycle: Duration, clients: &mut Registry) {
        let (old, new) = (u128::from(nanos(old)), u128::from(nanos(cycle)));
        for client in clients.iter_mut() {
            let wants = u128::from(client.last_wants.max(client.wants()));
            client.end_cycle();
            client.last_wants = u64::try_from((wants * new).div_ceil(old)).unwrap_or(u64::MAX);
        }
        self.number += 1;
        (self.start, self.end) = (now, now + cycle);
        self.early = None;
    }

    /// Requests an allocation within the cycle. There is at most one per max(cycle / 100, clients × 2 µs), so that a
    /// flood of fresh ids or recalls does not become a flood of allocations.
    #[cold]
    pub(super) fn request(&mut self, now: Time, cause: Cause, cycle: Duration, clients: usize) {
        if self.early.is_none() {
            let apart = (cycle / 100).max(Duration::from_micros(2 * clients as u64));
            let due = self.last_early.map_or(now, |last| now.max(last + apart));
            self.early = Some((due, cause));
        }
    }

    /// Takes the request for an early allocation, if it is due.
    pub(super) fn take_request(&mut self, now: Time) -> Option<Cause> {
        let (_, cause) = self.early.take_if(|(due, _)| *due <= now)?;
        self.last_early = Some(now);
        Some(cause)
    }

    pub(super) fn next_allocation(&self) -> Time {
        self.early.map_or(self.end, |(due, _)| due.min(self.end))
    }

    /// Runs the allocator within a cycle.
    pub(super) fn allocate(&mut self, policy: &Policy, clients: &mut Registry, fair: &mut FairQueue, cause: Cause) {
        self.clear_claims();
        for (index, client) in clients.iter() {
            self.claimants.push((index, client.group));
            self.claims.push(client.claim(self.number, cause == Cause::Cycle, policy.mode));
        }
        self.allocate_claims(policy, clients, fair, cause);
    }

    fn allocate_claims(&mut self, policy: &Policy, clients: &mut Registry, fair: &mut FairQueue, cause: Cause) {
        // In a group, all members together allocate, and hand out the parts.
        if policy.scope == Scope::Group {
            return;
        }
        let params =
            AllocationParams { capacity: policy.capacity, reservation: policy.reservation, lending: policy.lending };
        self.group_claims.clear();
        self.group_claims.extend(clients.groups.claims());
        let claims = LevelClaims {
            clients: &self.claims,
            group_of: |claim: usize| self.claimants[claim].1.map(usize::from),
            name_of: |claim: usize| &*clients.get(self.claimants[claim].0).name,
            groups: &self.group_claims,
            group_name_of: |group: usize| &*clients.groups()[group].name,
        };
        self.allocator.allocate(&params, &claims, &mut self.grants, &mut self.group_grants);
        clients.take_grants(
            policy.capacity,
            FairWeights::new(policy.lending),
            &self.grants,
            Some(&self.group_grants),
            fair,
        );
        self.allocations[cause as usize] += 1;
    }

    fn clear_claims(&mut self) {
        self.claimants.clear();
        self.claims.clear();
    }
}
