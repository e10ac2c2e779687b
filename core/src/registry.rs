//! The clients of a service: who is known, what each weighs, what was decided for each.

mod names;

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use crate::allocator::{self, Credit, Fixed, Grant};
use crate::backlog::{Backlog, Group, Lane};
use crate::delays::DelayHistogram;
use crate::limit::OwnLimit;
use crate::policy::{ClientPolicy, Mode, Policy};
use crate::reason::ReasonCounts;
use crate::units::{Time, Weight};
use crate::window::{SLICES, SlidingCount};

use names::Names;

/// What was decided for a client, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counts {
    pub admitted: u64,
    /// Records that waited in a backlog, however they left it.
    pub delayed: u64,
    pub rejected: ReasonCounts,
}

impl Counts {
    /// Adds another set of counts.
    pub fn merge(&mut self, other: &Counts) {
        self.admitted += other.admitted;
        self.delayed += other.delayed;
        self.rejected.merge(&other.rejected);
    }
}

/// One known client.
///
/// In the order in which it stands in memory: what a decision in shape mode touches is in the first three cache lines, for with
/// very many clients it waits for memory more than for anything else.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Client {
    pub name: Arc<str>,
    /// First-time arrivals in this cycle.
    pub arrivals: u64,
    /// What waited when this cycle began.
    pub waiting: u64,
    /// Wants beyond this recall what it lent; `u64::MAX` if it lent nothing.
    recalled_above: u64,
    pub last_seen: Time,
    pub limit: Option<Box<OwnLimit>>,
    pub delays: Option<Box<DelayHistogram>>,
    pub lane: Lane,
    pub counts: Counts,
    /// Reject mode: what it was admitted lately.
    pub used: Used,
    pub grant: Grant,
    /// Its credit before this cycle's allocation: early ones of the same cycle start from it again.
    pub credit: Credit,
    /// Wants of the last full cycle.
    pub last_wants: u64,
    /// The cycle in which it came; `None`: it was there from the start.
    pub since_cycle: Option<u64>,
    weight: Weight,
    pub configured: bool,
    pub shadow: Counts,
}

/// What a client was admitted lately, by the window that counts (reject mode).
#[derive(Debug)]
pub enum Used {
    /// Shape mode: nobody asks.
    Uncounted,
    Sliding(Box<SlidingCount>),
    Fixed {
        cycle: u64,
        admitted: u64,
    },
}

impl Client {
    /// Its weight in thousandths if it is configured, else [`UNLISTED`].
    pub fn own_weight(&self) -> u64 {
        if self.configured { self.weight.thousandths() } else { UNLISTED }
    }

    /// What it wants in this cycle, so far.
    pub fn wants(&self) -> u64 {
        self.waiting.saturating_add(self.arrivals)
    }

    /// Whether nothing but time keeps the client known.
    fn may_be_forgotten(&self) -> bool {
        self.lane.records.is_empty() && !self.configured
    }

    /// It lent part of its share and now wants more than it was granted.
    pub fn recalls(&self) -> bool {
        self.wants() > self.recalled_above
    }

    /// The number of records that the client may send in reject mode, in the window in which its use is counted: its
    /// grant, and never less than its default share. A lender gets its share back at once, without waiting for the
    /// allocation that its recall causes; if borrowers have used it meanwhile, the service's window refuses the record.
    pub fn allowance(&self) -> u64 {
        self.grant.records.max(self.grant.default_share.floor())
    }

    /// Whether the client has used its grant and, without any doubt, its default share (reject mode). Its delayed
    /// records count as used: they go first, and a flood behind them would otherwise never be rejected.
    #[inline]
    pub fn has_used_its_allowance(&mut self, now: Time, cycle: u64) -> bool {
        let waiting = self.lane.records.len();
        self.used.count(now, cycle) + waiting >= self.grant.records
            && self.used.count_at_least(now, cycle) + waiting >= self.grant.default_share.floor()
    }

    fn lends(&self) -> bool {
        self.grant.exact < self.grant.default_share
    }

    /// Counts an admission.
    #[inline]
    pub fn count_admitted(&mut self, waited: Duration) {
        self.counts.admitted += 1;
        if let Some(delays) = &mut self.delays {
            if waited.is_zero() { delays.record_none() } else { delays.record(waited) }
        }
    }

    /// Grants what an allocation gave. The weight in fair queueing is the larger of grant and default share, unrounded.
    pub fn take_grant(&mut self, grant: Grant, backlog: &Backlog) {
        let weight = |grant: &Grant| grant.exact.max(grant.default_share);
        // Only a borrower's changes from cycle to cycle.
        if weight(&grant) != weight(&self.grant) {
            self.lane.set_weight(weight(&grant), backlog);
        }
        self.set_grant(grant);
    }

    fn set_grant(&mut self, grant: Grant) {
        self.grant = grant;
        self.recalled_above = if self.lends() { self.grant.records } else { u64::MAX };
    }
}

/// All known clients; names find them, indices stay while they are known.
#[derive(Debug)]
pub struct Registry {
    slots: Vec<Option<Client>>,
    free: Vec<u32>,
    names: Names,
    /// Of the configured clients, in thousandths.
    listed_weight: u64,
    listed: u64,
    unlisted_weight: Weight,
    /// What all unlisted clients are granted together, where any client is configured.
    unlisted_granted: Fixed,
    max_clients: usize,
    /// Unlisted clients that may be forgotten for a newcomer, by when they were last seen: the one idle longest is
    /// last.
    idle: Vec<(Time, u32)>,
    /// When idle clients are looked for again.
    next_look: Time,
    /// By page: see [`Registry::page`].
    forgotten: Vec<Forgotten>,
}

/// What was decided for clients that are not known any more.
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

/// The own weight of whoever is not configured: what it weighs depends on how many those are.
const UNLISTED: u64 = 0;

/// So many neighbouring indices are a page.
pub const PAGE: usize = 256;

/// The registry has no place for another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Up to this many records of a client in a window are counted by their exact times (32 KiB for a client that sends so
/// many).
const EXACT_USE: usize = 2_048;

/// Clients beyond this many get no histogram of their own: a bound on memory, not on service.
const WITH_DELAYS: usize = 1_000;

impl Registry {
    /// The configured clients of a policy.
    pub fn new(policy: &Policy, now: Time) -> Registry {
        let mut registry = Registry {
            slots: Vec::new(),
            free: Vec::new(),
            names: Names::default(),
            listed_weight: 0,
            listed: 0,
            unlisted_weight: policy.unlisted_weight,
            unlisted_granted: Fixed::ZERO,
            max_clients: policy.max_clients,
            idle: Vec::new(),
            next_look: now,
            forgotten: Vec::new(),
        };
        registry.configure(policy, now, None, HashMap::new());
        registry
    }

    /// The configured clients of another policy. Who is not configured any more is as any other; what was decided for it, and
    /// what waits, stays. A limit that is the same goes on as it was.
    pub fn change(&mut self, old: &Policy, policy: &Policy, now: Time, cycle: u64) {
        let mut limits: HashMap<Arc<str>, Box<OwnLimit>> = HashMap::new();
        for client in self.iter_mut() {
            limits.extend(client.limit.take().map(|limit| (Arc::clone(&client.name), limit)));
            (client.configured, client.weight) = (false, Weight::ONE);
            client.used.change(policy, now, cycle);
        }
        let before: HashMap<&str, &ClientPolicy> = old.clients.iter().map(|client| (&*client.name, client)).collect();
        for wanted in &policy.clients {
            if before.get(&*wanted.name).is_none_or(|before| before.limit != wanted.limit) {
                limits.remove(&*wanted.name);
            }
        }
        self.configure(policy, now, Some(cycle), limits);
    }

    /// Makes the clients of a policy the configured ones; nobody is so far. Newcomers came in this cycle, or were there from
    /// the start; `limits` go on, all others begin.
    fn configure(
        &mut self,
        policy: &Policy,
        now: Time,
        since_cycle: Option<u64>,
        mut limits: HashMap<Arc<str>, Box<OwnLimit>>,
    ) {
        self.listed_weight = policy.clients.iter().map(|client| client.weight.thousandths()).sum();
        self.listed = policy.clients.len() as u64;
        (self.unlisted_weight, self.max_clients) = (policy.unlisted_weight, policy.max_clients);
        // Address space, not memory: moving so many clients to a larger place, once they are there, is a long pause. Where
        // there is none to be had they move when it has to be.
        let _ = self.slots.try_reserve_exact(self.most().saturating_sub(self.slots.len()));
        for wanted in &policy.clients {
            let begun = || wanted.limit.as_ref().map(|limit| Box::new(OwnLimit::new(limit, now)));
            let limit = limits.remove(&*wanted.name).or_else(begun);
            match self.find(&wanted.name) {
                Some(index) => {
                    let client = self.get_mut(index);
                    (client.configured, client.weight, client.limit) = (true, wanted.weight, limit);
                }
                None => {
                    self.insert(&wanted.name, wanted.weight, limit, true, since_cycle, policy, now);
                }
            }
        }
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of a known client.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.names.find(name, |index| *self.get(index).name == *name)
    }

    /// A known client.
    #[inline]
    pub fn get(&self, index: u32) -> &Client {
        self.slots[index as usize].as_ref().expect("an index in use names a known client")
    }

    /// A known client.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut Client {
        self.slots[index as usize].as_mut().expect("an index in use names a known client")
    }

    /// A client, unless it was forgotten.
    pub fn lookup(&self, index: u32) -> Option<&Client> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// All clients with their indices, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// All clients, in the order of [`iter`](Registry::iter).
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.slots.iter_mut().filter_map(Option::as_mut)
    }

    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.slots.len().div_ceil(PAGE)
    }

    /// The clients of a page, and what was decided for those that were forgotten while they stood in it. Whatever becomes of a
    /// client, the sum over its page never falls: a page that was looked at earlier shows what was true then, all of it.
    ///
    /// # Panics
    /// If there are not so many pages.
    pub fn page(&self, page: usize) -> (impl Iterator<Item = &Client>, Forgotten) {
        let slots = &self.slots[page * PAGE..self.slots.len().min((page + 1) * PAGE)];
        (slots.iter().flatten(), self.forgotten.get(page).copied().unwrap_or_default())
    }

    /// What was decided for all who were forgotten.
    pub fn forgotten(&self) -> Forgotten {
        let mut sum = Forgotten::default();
        self.forgotten.iter().for_each(|page| sum.merge(page));
        sum
    }

    fn most(&self) -> usize {
        self.max_clients.max(self.listed as usize)
    }

    /// Makes a newcomer known: it gets its default share at once. If the registry is full, the unlisted client that has
    /// been idle longest makes room.
    ///
    /// # Errors
    /// The registry is full of configured clients and of those that were active in the last two cycles.
    pub fn register(
        &mut self,
        name: &str,
        cycle: u64,
        policy: &Policy,
        backlog: &mut Backlog,
        now: Time,
    ) -> Result<u32, Full> {
        if self.len() >= self.most() && !self.forget_for_newcomer(now, policy.cycle) {
            return Err(Full);
        }
        let index = self.insert(name, Weight::ONE, None, false, Some(cycle), policy, now);
        let share = allocator::default_share(policy.capacity, self.relative_weight(UNLISTED), self.total_weight());
        let client = self.get_mut(index);
        let (records, credit) = (share.floor(), Credit::default());
        client.lane.set_weight(share, backlog);
        client.set_grant(Grant { records, exact: share, default_share: share, credit });
        self.unlisted_granted = self.unlisted_granted + share;
        self.weigh_group(share, backlog);
        Ok(index)
    }

    /// Forgets who is not configured, has nothing waiting and was not heard of since `before`. All others are `kept`: one walk
    /// for both, as with very many clients it is long.
    pub fn forget_idle(&mut self, before: Time, mut kept: impl FnMut(u32, &mut Client)) {
        for index in 0..self.slots.len() {
            let idle = |client: &mut Client| {
                let idle = client.last_seen <= before && client.may_be_forgotten();
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

    /// A client left its slot.
    fn vacate(&mut self, index: usize, client: &Client) {
        self.names.remove(&client.name, index as u32);
        self.free.push(index as u32);
        if self.forgotten.len() <= index / PAGE {
            self.forgotten.resize(index / PAGE + 1, Forgotten::default());
        }
        self.forgotten[index / PAGE].merge(&Forgotten { counts: client.counts, shadow: client.shadow });
    }

    /// Forgets the unlisted client that has been idle longest, if one has been idle for two cycles.
    ///
    /// To look at all clients takes long where there are very many, so candidates are kept from one look to the next,
    /// and looks that find none are as far apart as early allocations. Whichever client became idle since was seen
    /// later than every candidate.
    fn forget_for_newcomer(&mut self, now: Time, cycle: Duration) -> bool {
        loop {
            while let Some((seen, index)) = self.idle.pop() {
                let still_idle = |client: &mut Client| client.last_seen == seen && client.may_be_forgotten();
                if let Some(client) = self.slots[index as usize].take_if(still_idle) {
                    self.vacate(index as usize, &client);
                    return true;
                }
            }
            if now < self.next_look {
                return false;
            }
            self.next_look = now + (cycle / 100).max(Duration::from_micros(2 * self.len() as u64));
            self.find_idle(now - cycle * 2);
            if self.idle.is_empty() {
                return false;
            }
        }
    }

    /// Finds the clients idle longest that were not seen since `before`.
    fn find_idle(&mut self, before: Time) {
        let mut idle = std::mem::take(&mut self.idle);
        let candidates = self.iter().filter(|(_, client)| client.last_seen <= before && client.may_be_forgotten());
        idle.extend(candidates.map(|(index, client)| (client.last_seen, index)));
        let most = self.len() / 16 + 1;
        if idle.len() > most {
            idle.select_nth_unstable(most);
            idle.truncate(most);
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        self.idle = idle;
    }

    /// A client's [`own_weight`](Client::own_weight) on the scale of [`total_weight`](Registry::total_weight): thousandths × the
    /// number of unlisted clients, so that the dilution of those, min(1, unlisted_weight / k) each, stays a whole number.
    pub fn relative_weight(&self, own: u64) -> u64 {
        let unlisted = self.unlisted().max(1);
        match (own, self.listed) {
            (UNLISTED, 0) => Weight::ONE.thousandths() * unlisted,
            (UNLISTED, _) => self.unlisted_weight.thousandths().min(Weight::ONE.thousandths() * unlisted),
            (own, _) => own * unlisted,
        }
    }

    /// The queue of a client.
    pub fn group(&self, configured: bool) -> Group {
        if configured || self.listed == 0 { Group::Main } else { Group::Unlisted }
    }

    /// Hands out what an allocation granted, in the order of [`iter`](Registry::iter).
    pub fn take_grants(&mut self, grants: &[Grant], backlog: &mut Backlog) {
        for (client, &grant) in self.iter_mut().zip(grants) {
            client.take_grant(grant, backlog);
        }
        if self.listed == 0 {
            return;
        }
        let (mut granted, mut share) = (Fixed::ZERO, Fixed::ZERO);
        for (_, grant) in self.iter_mut().zip(grants).filter(|(client, _)| !client.configured) {
            granted = granted + grant.exact;
            share = grant.default_share;
        }
        self.unlisted_granted = granted;
        self.weigh_group(share, backlog);
    }

    /// The weight of all unlisted clients together is the larger of what they are granted and of their default shares,
    /// as that of a single client is. All of them have the same default share.
    fn weigh_group(&self, share: Fixed, backlog: &mut Backlog) {
        if self.listed > 0 {
            let shares = Fixed::from_bits(share.to_bits() * u128::from(self.unlisted()));
            backlog.set_group_weight(self.unlisted_granted.max(shares));
        }
    }

    /// The sum of all weights.
    pub fn total_weight(&self) -> u128 {
        let unlisted = self.unlisted();
        u128::from(self.listed_weight) * u128::from(unlisted.max(1))
            + u128::from(unlisted) * u128::from(self.relative_weight(UNLISTED))
    }

    fn unlisted(&self) -> u64 {
        self.len() as u64 - self.listed
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &mut self,
        name: &str,
        weight: Weight,
        limit: Option<Box<OwnLimit>>,
        configured: bool,
        since_cycle: Option<u64>,
        policy: &Policy,
        now: Time,
    ) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2³² clients")
        });
        let lane = match since_cycle {
            Some(_) => Lane::of_newcomer(self.group(configured)),
            None => Lane::default(),
        };
        self.slots[index as usize] = Some(Client {
            name: Arc::from(name),
            arrivals: 0,
            waiting: 0,
            recalled_above: u64::MAX,
            last_seen: now,
            limit,
            delays: ((index as usize) < WITH_DELAYS).then(Box::default),
            lane,
            counts: Counts::default(),
            used: Used::new(policy),
            grant: Grant { records: 0, exact: Fixed::ZERO, default_share: Fixed::ZERO, credit: Credit::default() },
            credit: Credit::default(),
            last_wants: 0,
            since_cycle,
            weight,
            configured,
            shadow: Counts::default(),
        });
        self.names.insert(name, index);
        index
    }
}

impl Used {
    fn new(policy: &Policy) -> Used {
        match (policy.mode, policy.window) {
            (Mode::Shape, _) => Used::Uncounted,
            (Mode::Reject, crate::policy::Window::Sliding) => {
                // Where a slice holds more records than that, times of some of them say little.
                let exact = if policy.capacity / SLICES <= EXACT_USE as u64 { EXACT_USE } else { 0 };
                Used::Sliding(Box::new(SlidingCount::exact_up_to(exact, policy.cycle)))
            }
            (Mode::Reject, crate::policy::Window::Fixed) => Used::Fixed { cycle: 0, admitted: 0 },
        }
    }

    /// Counts as another policy wants it. Where it is not known when something was admitted, it counts from now on.
    fn change(&mut self, policy: &Policy, now: Time, cycle: u64) {
        let lately = self.count(now, cycle);
        *self = match (Used::new(policy), &mut *self) {
            (Used::Sliding(_), Used::Sliding(window)) => Used::Sliding(Box::new(window.over(now, policy.cycle))),
            (Used::Sliding(mut window), _) => {
                window.add(now, lately);
                Used::Sliding(window)
            }
            (Used::Fixed { .. }, _) => Used::Fixed { cycle, admitted: lately },
            (Used::Uncounted, _) => Used::Uncounted,
        };
    }

    /// What counts against the grant now.
    #[inline]
    pub fn count(&mut self, now: Time, cycle: u64) -> u64 {
        match self {
            Used::Uncounted => 0,
            Used::Sliding(window) => window.count(now),
            Used::Fixed { cycle: of, admitted } => {
                if *of == cycle {
                    *admitted
                } else {
                    0
                }
            }
        }
    }

    /// The part of [`count`](Used::count) that is certain: a window of slices may count up to half a percent too much.
    #[cold]
    pub fn count_at_least(&mut self, now: Time, cycle: u64) -> u64 {
        match self {
            Used::Sliding(window) => window.count_at_least(now),
            Used::Uncounted | Used::Fixed { .. } => self.count(now, cycle),
        }
    }

    /// Counts one more.
    #[inline]
    pub fn charge(&mut self, now: Time, in_cycle: u64) {
        match self {
            Used::Uncounted => {}
            Used::Sliding(window) => {
                window.add(now, 1);
            }
            Used::Fixed { cycle, admitted } => {
                if *cycle != in_cycle {
                    (*cycle, *admitted) = (in_cycle, 0);
                }
                *admitted += 1;
            }
        }
    }

    /// When less than `limit` counts if nothing is added; `edge` is where the next cycle begins.
    pub fn below_at(&mut self, now: Time, limit: u64, edge: Time) -> Time {
        match self {
            // Nothing helps but another grant.
            _ if limit == 0 => edge,
            Used::Sliding(window) => window.below_at(now, limit),
            Used::Fixed { .. } => edge,
            Used::Uncounted => now,
        }
    }
}
