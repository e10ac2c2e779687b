//! Cycles, wants, and when the allocator runs.

use std::time::Duration;

use super::Throttle;
use crate::allocator::{Allocator, Ask, Grant, Terms, Wants};
use crate::registry::Client;
use crate::units::{Time, nanos};

/// Why the allocator ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Cycle,
    NewClient,
    Recall,
    /// Another policy.
    Reload,
}

impl Cause {
    /// The names of all causes, in the order of the enum.
    pub const NAMES: [&'static str; 4] = ["cycle", "new_client", "recall", "reload"];
}

/// Where the cycle stands and whether an early allocation is due.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) cycle: u64,
    start: Time,
    /// Where the next one begins: looked at for each record.
    edge: Time,
    early: Option<(Time, Cause)>,
    last_early: Option<Time>,
    pub(super) allocations: [u64; Cause::NAMES.len()],
    allocator: Allocator,
    // Kept for the next time.
    claims: Claims,
    grants: Vec<Grant>,
}

/// What all clients claim, and who claims it.
#[derive(Debug, Default)]
struct Claims {
    who: Vec<u32>,
    asks: Vec<Ask>,
}

impl Share {
    pub(super) fn new(now: Time, cycle: Duration) -> Share {
        Share {
            cycle: 0,
            start: now,
            edge: now + cycle,
            early: None,
            last_early: None,
            allocations: [0; Cause::NAMES.len()],
            allocator: Allocator::new(),
            claims: Claims::default(),
            grants: Vec::new(),
        }
    }
}

impl Throttle {
    /// Time passed: a cycle may have ended, an early allocation may be due.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.not_before(now);
        self.roll(now);
        if let Some((due, cause)) = self.share.early
            && due <= now
        {
            self.share.early = None;
            self.share.last_early = Some(now);
            self.allocate(cause);
        }
    }

    /// The next edge of a cycle or early allocation.
    pub(super) fn next_allocation(&self) -> Time {
        let edge = self.next_edge();
        self.share.early.map_or(edge, |(due, _)| due.min(edge))
    }

    /// Where the next cycle begins.
    pub(super) fn next_edge(&self) -> Time {
        self.share.edge
    }

    /// Ends every cycle whose edge has passed. Only the last edge allocates: nobody could have used what the ones
    /// before it would have granted.
    #[inline]
    pub(super) fn roll(&mut self, now: Time) {
        if now >= self.share.edge {
            self.end_cycles(now);
        }
    }

    #[cold]
    fn end_cycles(&mut self, now: Time) {
        let cycle = nanos(self.policy.cycle);
        let ended = nanos(now.since(self.share.start)) / cycle;
        self.share.cycle += ended;
        self.share.start = self.share.start + Duration::from_nanos(ended * cycle);
        self.share.edge = self.share.start + self.policy.cycle;
        self.share.early = None;
        let share = &mut self.share;
        share.claims.clear();
        // Before the allocation, not after: what is granted to the forgotten would be nobody's for a cycle.
        self.registry.forget_idle(now - self.policy.client_idle_timeout, |index, client| {
            for _ in 0..ended.min(2) {
                end_cycle(client);
            }
            client.credit = client.grant.credit;
            share.claims.push(index, client, share.cycle, Cause::Cycle);
        });
        self.allocate_claims(Cause::Cycle);
    }

    /// The cycle has another length from now on: a new one begins. What was wanted lately is taken to be wanted at the same
    /// rate.
    pub(super) fn begin_cycle(&mut self, now: Time, old: Duration) {
        let (old, new) = (u128::from(nanos(old)), u128::from(nanos(self.policy.cycle)));
        for client in self.registry.iter_mut() {
            let wants = u128::from(client.last_wants.max(client.wants()));
            end_cycle(client);
            client.last_wants = u64::try_from((wants * new).div_ceil(old)).unwrap_or(u64::MAX);
        }
        self.share.cycle += 1;
        (self.share.start, self.share.edge) = (now, now + self.policy.cycle);
        self.share.early = None;
    }

    /// Asks for an early allocation. They coalesce: at most one per max(cycle / 100, N · 2 µs), so that a flood of
    /// fresh ids or recalls can't turn into a flood of allocations.
    pub(super) fn allocate_early(&mut self, now: Time, cause: Cause) {
        if self.share.early.is_none() {
            let apart = (self.policy.cycle / 100).max(Duration::from_micros(2 * self.registry.len() as u64));
            let due = self.share.last_early.map_or(now, |last| now.max(last + apart));
            self.share.early = Some((due, cause));
        }
    }

    /// Runs the allocator within a cycle: on the larger of the last full cycle's wants and this cycle's so far. At an edge
    /// it is on those of the cycle that ends.
    pub(super) fn allocate(&mut self, cause: Cause) {
        let share = &mut self.share;
        share.claims.clear();
        for (index, client) in self.registry.iter() {
            share.claims.push(index, client, share.cycle, cause);
        }
        self.allocate_claims(cause);
    }

    /// Runs the allocator on the claims of all clients. Who collects them walks over all clients, as this does, which with very
    /// many is to wait for memory: so an edge collects them while it ends everybody's cycle.
    fn allocate_claims(&mut self, cause: Cause) {
        let terms = Terms {
            capacity: self.policy.capacity,
            reservation: self.policy.reservation,
            lending: self.policy.lending,
        };
        let (share, registry) = (&mut self.share, &self.registry);
        let Claims { who, asks } = &mut share.claims;
        // Only now it is known how many there are.
        asks.iter_mut().for_each(|ask| ask.weight = registry.relative_weight(ask.weight));
        let name_of = |ask: usize| &*registry.get(who[ask]).name;
        share.allocator.allocate_asks(&terms, asks, name_of, &mut share.grants);
        self.registry.take_grants(&self.share.grants, &mut self.backlog);
        self.excess.forget();
        self.share.allocations[cause as usize] += 1;
    }
}

impl Claims {
    fn clear(&mut self) {
        self.who.clear();
        self.asks.clear();
    }

    /// What a client claims, with its own weight.
    fn push(&mut self, index: u32, client: &Client, cycle: u64, cause: Cause) {
        self.who.push(index);
        self.asks.push(Ask {
            weight: client.own_weight(),
            wants: claimed(client, cycle, cause),
            credit: client.credit,
        });
    }
}

fn end_cycle(client: &mut Client) {
    client.last_wants = client.wants();
    client.arrivals = 0;
    client.waiting = client.lane.records.len();
}

/// Until a client has been there for a full cycle it claims its default share.
fn claimed(client: &Client, cycle: u64, cause: Cause) -> Wants {
    let newcomer = client.since_cycle.map_or(cycle == 0, |since| since + 1 >= cycle);
    if newcomer {
        Wants::DefaultShare
    } else if cause == Cause::Cycle {
        Wants::Records(client.last_wants)
    } else {
        Wants::Records(client.last_wants.max(client.wants()))
    }
}
