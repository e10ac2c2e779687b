//! One client: its counts, its grant, and what it used of it.

use std::{sync::Arc, time::Duration};

use super::fair::{ClientQueue, FairQueue, QueueOf};
use super::falling_part::FallingPart;
use super::{client_groups::Owed, limits::Limits};
use crate::allocator::{Claim, Credit, FairWeights, Grant, Wants};
use crate::delays::ClientDelays;
use crate::policy::{Mode, Policy, Window};
use crate::reason::ReasonCounts;
use crate::units::{Ratio, Time, Weight};
use crate::window::{SLICES, SlidingCount};

/// Decisions on a client's records since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counts {
    pub admitted: u64,
    /// Records that waited in a backlog, however they left it.
    pub delayed: u64,
    pub rejected: ReasonCounts,
    /// The delays of records that were admitted after one commit interval or later.
    pub delays: ClientDelays,
}

impl Counts {
    /// Counts the admission of a record that left a backlog.
    #[inline]
    pub(crate) fn admit_late(&mut self, waited: Duration, commit_interval: Duration) {
        self.admitted += 1;
        self.note_delay(waited, commit_interval);
    }

    /// Counts the wait of an admitted record, unless it is shorter than one commit interval: such a record goes with
    /// the round of those that were admitted at once.
    #[inline]
    pub(crate) fn note_delay(&mut self, waited: Duration, commit_interval: Duration) {
        if waited >= commit_interval {
            self.delays.record(waited);
        }
    }

    pub fn merge(&mut self, other: &Counts) {
        self.admitted += other.admitted;
        self.delayed += other.delayed;
        self.rejected.merge(&other.rejected);
        self.delays.merge(&other.delays);
    }
}

/// One known client.
///
/// The order of the fields is their order in memory: a decision in shape mode touches only the first three cache lines.
/// With very many clients a decision waits for memory more than for anything else.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Client {
    pub name: Arc<str>,
    /// First-time arrivals in this cycle.
    pub arrivals: u64,
    /// Records that were delayed when this cycle began.
    pub waiting: u64,
    /// Wants beyond this number recall the share that the client or its group lent; `u64::MAX` if neither lent any.
    recalled_above: u64,
    pub last_seen: Time,
    /// The own limits, if there are any.
    pub limits: Option<Box<Limits>>,
    pub(crate) queue: ClientQueue,
    /// Decisions that were carried out.
    pub counts: Counts,
    /// Recent admissions (reject mode).
    pub used: Used,
    pub grant: Grant,
    /// The whole records of the default share. In a group, those that may come to this instance (reject mode).
    pub(super) share: u64,
    /// The part of the grant of the group that falls after records went elsewhere (reject mode).
    pub(super) falling_part: FallingPart,
    /// The credit before this cycle's allocation: early ones of the same cycle start from it again.
    pub credit: Credit,
    /// Wants of the last full cycle.
    pub last_wants: u64,
    /// Admissions in the last full cycle, and those before this cycle.
    pub last_admitted: u64,
    admitted_before: u64,
    /// The cycle in which the client came; `None` if it was known from the start.
    pub since_cycle: Option<u64>,
    /// The weight inside the client's group, or among the groups and all clients that stand alone.
    pub(super) weight: Weight,
    pub(super) group: QueueOf,
    pub configured: bool,
    /// Nothing is admitted: the client, or its group, is held.
    pub held: bool,
    /// The longest wait of the client's records; `None` for that of the service.
    pub(super) max_delay: Option<Duration>,
    /// Delayed records that were read before this time expire.
    pub(super) expires_before: Time,
    /// The records that the client usually sends in a cycle within its default share (reject mode).
    pub(super) usual: u64,
    pub(super) owed: Owed,
    /// The time between two records of the client's default share, in nanoseconds.
    pub(super) owed_step: u64,
    /// Decisions in shadow mode, which were not carried out.
    pub shadow: Counts,
}

impl Client {
    /// A client that is not configured, in the group of its queue and without a grant.
    pub(super) fn new(name: &str, queue: ClientQueue, since_cycle: Option<u64>, policy: &Policy, now: Time) -> Client {
        let group = queue.group;
        Client {
            name: Arc::from(name),
            recalled_above: u64::MAX,
            last_seen: now,
            queue,
            used: Used::new(policy),
            since_cycle,
            group,
            ..Client::default()
        }
    }

    /// Returns whether no record of the client ever came: it was only named, perhaps by a typing error.
    pub(super) fn is_unused(&self) -> bool {
        let Client { counts, shadow, arrivals, waiting, last_wants, .. } = self;
        *counts == Counts::default() && *shadow == Counts::default() && arrivals + waiting + last_wants == 0
    }

    /// Takes the values that rules decide for the client, if any rule stands beside the tables.
    pub(super) fn take_effects(&mut self, policy: &Policy, now: Time) {
        let Some(effects) = policy.effects_on(&self.name) else {
            if !self.configured {
                (self.weight, self.limits) = (Weight::ONE, None);
            }
            (self.held, self.max_delay, self.queue.has_own_delay) = (false, None, false);
            return;
        };
        (self.weight, self.held, self.max_delay) = (effects.weight, effects.hold, effects.max_delay);
        self.queue.has_own_delay = self.max_delay.is_some();
        Limits::change(&mut self.limits, now, &effects.limits, effects.hold);
        if let Some(before) = effects.expire_before_ms {
            let ago = policy.rules_at_ms.saturating_sub(before).unsigned_abs();
            self.expires_before = now - Duration::from_millis(ago);
        }
    }

    /// The records that the client wants to send in this cycle, so far; none while it is held.
    pub fn wants(&self) -> u64 {
        if self.held { 0 } else { self.waiting.saturating_add(self.arrivals) }
    }

    /// Admissions in this cycle, so far.
    pub fn admitted_in_cycle(&self) -> u64 {
        self.counts.admitted.saturating_sub(self.admitted_before)
    }

    /// The index of the client's group among [all](super::Registry::groups); `None` if it stands alone.
    pub fn group(&self) -> Option<usize> {
        self.group.map(usize::from)
    }

    /// The number of delayed records and their bytes.
    pub fn backlog(&self) -> (u64, u64) {
        (self.queue.records.len(), self.queue.bytes)
    }

    /// Returns whether the client may be forgotten once it was idle for long enough.
    pub(super) fn may_be_forgotten(&self) -> bool {
        self.queue.records.is_empty() && !self.configured
    }

    /// Returns whether records that the client sent may still count against its own limits.
    pub(super) fn has_debt(&mut self, now: Time) -> bool {
        let idle = now.since(self.last_seen);
        self.limits.as_deref_mut().is_some_and(|limits| limits.has_debt(now, idle))
    }

    /// Returns whether the client lent part of its share and now wants more than it was granted.
    pub(super) fn recalls(&self) -> bool {
        self.waiting.saturating_add(self.arrivals) > self.recalled_above
    }

    /// The number of records that the client may send in reject mode, in the window in which its use is counted: its
    /// grant, and never less than its default share. A lender gets its share back at once, without waiting for the
    /// allocation that its recall causes; if borrowers have used it meanwhile, the record waits for the window.
    pub fn allowance(&self) -> u64 {
        self.grant.records.max(self.share)
    }

    /// Returns whether the client has used its grant and, without any doubt, its default share (reject mode). Delayed
    /// records that are not charged yet count as used: they go first, and a flood behind them would otherwise never be
    /// rejected.
    #[inline]
    pub(super) fn has_used_its_allowance(&mut self, now: Time, cycle: u64) -> bool {
        self.used.count(now, cycle) + self.queue.others() >= self.grant.records && self.has_used_its_share(now, cycle)
    }

    /// Returns whether the client has used a part of its grant that is still falling, too.
    pub(super) fn has_used_its_falling_part(&mut self, now: Time, policy: &Policy, cycle: u64) -> bool {
        self.used.count(now, cycle) + self.queue.others() >= self.falling_part.records(now, policy.cycle)
    }

    /// Returns whether the client has used its default share without any doubt: its next record is borrowed. Nearly
    /// always the plain count, which is never lower than the certain one, says no.
    #[inline]
    pub(super) fn has_used_its_share(&mut self, now: Time, cycle: u64) -> bool {
        let (others, share) = (self.queue.others(), self.share);
        self.used.count(now, cycle) + others >= share && self.used.count_at_least(now, cycle) + others >= share
    }

    /// The group of a client that is not configured.
    #[inline]
    pub(super) fn unlisted_in(&self) -> QueueOf {
        self.group.filter(|_| !self.configured)
    }

    /// The time at which the client's next record that it is owed goes, if records go evenly at its default share since
    /// the takeover. Among clients that are owed records, the earliest goes next: those that sent little are done with
    /// when a flood has had as large a part of its share.
    pub(super) fn owed_at(&self) -> Time {
        let before = self.owed.taken.saturating_sub(self.queue.owed);
        self.owed.since + Duration::from_nanos(self.owed_step.saturating_mul(before))
    }

    /// Finds what the client usually sends within its share: its wants of the cycle that ends, or a mean that forgets a
    /// larger one over some cycles, and at least its reservation.
    pub(super) fn find_usual(&mut self, reservation: Ratio) {
        let share = self.grant.default_share.floor();
        let wants = self.last_wants.min(share);
        let reserved = u128::from(share) * u128::from(reservation.millionths()) / u128::from(Ratio::ONE.millionths());
        self.usual = ((7 * u128::from(self.usual) + 3 * u128::from(wants)) / 10) as u64;
        self.usual = self.usual.max(wants).max(reserved as u64).min(share);
    }

    pub(super) fn end_cycle(&mut self) {
        self.last_wants = self.wants();
        self.last_admitted = self.admitted_in_cycle();
        self.admitted_before = self.counts.admitted;
        self.arrivals = 0;
        self.waiting = self.queue.records.len();
    }

    /// The claim for an allocation. The wants are the last full cycle's if it is the regular allocation of a cycle's
    /// end, else the larger of those and this cycle's so far. A client that was not there for a full cycle claims its
    /// default share. In mode shape, so does one that wants more than in the last cycle: fair queueing hands on what it
    /// leaves of its share. A borrower with a small grant would weigh too little meanwhile.
    pub(super) fn claim(&self, cycle: u64, at_cycle_end: bool, mode: Mode) -> Claim {
        let newcomer = self.since_cycle.map_or(cycle == 0, |since| since + 1 >= cycle);
        let wants = match (newcomer, at_cycle_end) {
            _ if self.held => Wants::Records(0),
            (true, _) => Wants::DefaultShare,
            (false, true) => Wants::Records(self.last_wants),
            (false, false) => {
                let (last, now) = (self.last_wants, self.wants());
                let least = if mode == Mode::Shape && now > last { self.share } else { 0 };
                Wants::Records(last.max(now).max(least))
            }
        };
        Claim { weight: self.weight.thousandths(), wants, credit: self.credit }
    }

    /// Takes the result of an allocation as client `index`, with the weights of the queue that the client stands in.
    pub(super) fn take_grant(
        &mut self, index: u32, grant: &Grant, group_lends: bool, weights: &FairWeights, fair: &mut FairQueue,
    ) {
        if !FairWeights::is_constant(&self.grant, grant) {
            fair.set_weight(index, &mut self.queue, weights.weight(grant));
        }
        self.set_grant(*grant, group_lends);
    }

    /// Sets the grant. What the client lent, or its group, is recalled by wants beyond it.
    pub(super) fn set_grant(&mut self, grant: Grant, group_lends: bool) {
        let lends = !self.held && (group_lends || grant.exact < grant.default_share);
        self.recalled_above = if lends { grant.records } else { u64::MAX };
        self.share = grant.default_share.floor();
        self.grant = grant;
    }
}

/// Recent admissions of a client, in the window that counts (reject mode).
#[derive(Debug, Default)]
pub enum Used {
    /// Shape mode counts none.
    #[default]
    Uncounted,
    /// Any window of one cycle.
    Sliding(Box<SlidingCount>),
    /// Each cycle by itself.
    Fixed { cycle: u64, admitted: u64 },
}

/// Up to this many records of a client in a window are counted by their exact times (32 KiB for a client that sends as
/// many).
const EXACT_USE: usize = 2_048;

impl Used {
    pub(super) fn new(policy: &Policy) -> Used {
        match (policy.mode, policy.window) {
            (Mode::Shape, _) => Used::Uncounted,
            (Mode::Reject, Window::Sliding) => {
                // Exact times say little if a single slice may hold more records than they are kept for.
                let exact = if policy.capacity / SLICES <= EXACT_USE as u64 { EXACT_USE } else { 0 };
                Used::Sliding(Box::new(SlidingCount::exact_up_to(exact, policy.cycle)))
            }
            (Mode::Reject, Window::Fixed) => Used::Fixed { cycle: 0, admitted: 0 },
        }
    }

    /// Changes to the window of another policy. Admissions without known times count from now on.
    pub(super) fn change(&mut self, policy: &Policy, now: Time, cycle: u64) {
        let recent = self.count(now, cycle);
        *self = match (Used::new(policy), &mut *self) {
            (Used::Sliding(empty), Used::Sliding(window)) => Used::Sliding(Box::new(window.moved_to(now, *empty))),
            (Used::Sliding(mut window), _) => {
                window.add(now, recent);
                Used::Sliding(window)
            }
            (Used::Fixed { .. }, _) => Used::Fixed { cycle, admitted: recent },
            (Used::Uncounted, _) => Used::Uncounted,
        };
    }

    /// The records that count against the grant now.
    #[inline]
    pub fn count(&mut self, now: Time, cycle: u64) -> u64 {
        match self {
            Used::Sliding(window) => window.count(now),
            Used::Fixed { cycle: counted, admitted } if *counted == cycle => *admitted,
            Used::Uncounted | Used::Fixed { .. } => 0,
        }
    }

    /// The part of [`count`](Used::count) that is certain: a window of slices may count up to half a percent too much.
    #[cold]
    pub(super) fn count_at_least(&mut self, now: Time, cycle: u64) -> u64 {
        match self {
            Used::Sliding(window) => window.count_at_least(now),
            Used::Uncounted | Used::Fixed { .. } => self.count(now, cycle),
        }
    }

    /// Counts a record that is admitted, or waits for the window: by its arrival, since a wait must not use up more.
    #[inline]
    pub(super) fn charge(&mut self, now: Time, in_cycle: u64) {
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

    /// Takes a record back that was charged at this time and did not go. A record of an earlier cycle than the running
    /// one, which began at `cycle_start`, does not count any more.
    pub(super) fn refund(&mut self, now: Time, since: Time, cycle_start: Time) {
        match self {
            Used::Uncounted => {}
            Used::Sliding(window) => window.remove_at(now, since),
            Used::Fixed { admitted, .. } if since >= cycle_start => *admitted = admitted.saturating_sub(1),
            Used::Fixed { .. } => {}
        }
    }

    /// The time from which on less than `limit` counts if nothing is added.
    pub(super) fn below_at(&mut self, now: Time, limit: u64, cycle_end: Time) -> Time {
        match self {
            // Only another grant helps.
            _ if limit == 0 => cycle_end,
            Used::Sliding(window) => window.below_at(now, limit),
            Used::Fixed { .. } => cycle_end,
            Used::Uncounted => now,
        }
    }
}
