//! The gates on the service: the window over a cycle, which the promise rests on, and in shape mode the leaky bucket,
//! which paces the admissions.

use super::bucket::LeakyBucket;
use super::lent_room::{self, LentRoom};
use super::mean_limit::MeanLimit;
use super::spacing::Spacing;
use crate::policy::{Mode, Policy, Scope};
use crate::units::Time;
use crate::window::{EXACT_RECORDS, SlidingCount};

/// The gates on the service. Both are checked before either is charged.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) window: SlidingCount,
    pub(super) bucket: LeakyBucket,
    /// This instance's part of the group's capacity; without a group, all of it. If the capacity has changed within the
    /// window, the limit is the mean of the capacities that were in force over it.
    part: GroupPart,
    /// The limit is found anew after this time.
    fresh_until: Time,
    /// The last time at which there was a limit again, after a while without one.
    pub(super) limited_since: Time,
    capacities: MeanLimit,
    pub(super) spacing: Spacing,
    lent_room: LentRoom,
    /// The pace is found anew from this time on.
    paced_until: Time,
    pub(crate) admitted: u64,
    /// Nothing is admitted once there are as many admissions: the lower one of the part's and the next.
    admitted_limit: u64,
    /// The admissions with which the service has as many open records as it may have.
    full_at: u64,
}

/// The growth of a limit: members that have too much give it back as their windows empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// The limit at the end. A limit that is no lower does not grow.
    pub to: u64,
    /// The end of the growth. Later, no more is expected.
    pub until: Time,
}

impl Growth {
    /// A limit that stays as it is.
    pub const NONE: Growth = Growth { to: 0, until: Time::ZERO };
}

/// The part of a group's capacity that a member may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPart {
    /// The most records that its window may hold.
    pub limit: u64,
    /// Nothing is admitted after this time.
    pub until: Time,
    /// Nothing is admitted once [`admitted`](crate::throttle::Throttle::admitted) has reached this number.
    pub admitted: u64,
    /// The records per cycle that go while the window allows it.
    pub pace: u64,
    /// The expected growth of the limit.
    pub growth: Growth,
    /// Reject mode: false if records without room wait instead, because the limit will rise soon.
    pub rejects: bool,
}

impl GroupPart {
    pub const NONE: GroupPart =
        GroupPart { limit: 0, until: Time::ZERO, admitted: 0, pace: 0, growth: Growth::NONE, rejects: false };

    /// Returns the part of an instance by itself: a whole capacity, without an end.
    fn whole(capacity: u64) -> GroupPart {
        let (limit, pace, until, admitted) = (capacity, capacity, Time::NEVER, u64::MAX);
        GroupPart { limit, until, admitted, pace, growth: Growth::NONE, rejects: true }
    }
}

/// The room that a service has for more open records: those that were admitted, and that its own consumer group has not
/// committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRoom {
    /// The number of [admissions](crate::throttle::Throttle::admitted) of this instance that the count of the open
    /// records contains.
    pub admitted: u64,
    /// The records that all instances together may admit beyond those.
    pub records: u64,
}

/// In reject mode, records within shares may add up to the whole capacity and wait for no more than a cycle, so they
/// must not wait for the rest of a slice in each cycle: an exact window, of up to 1 MiB.
const MAX_EXACT_RECORDS: u64 = 1 << 16;

/// The number of records that the window of a service counts by their exact times.
fn exact_records(policy: &Policy) -> usize {
    let exact = match policy.mode {
        Mode::Reject if policy.capacity <= MAX_EXACT_RECORDS => policy.capacity as usize,
        _ => EXACT_RECORDS,
    };
    exact.max(EXACT_RECORDS)
}

/// An empty window for the admissions of a service.
fn window_of(policy: &Policy) -> SlidingCount {
    SlidingCount::exact_up_to(exact_records(policy), policy.window_length())
}

impl Gates {
    pub(super) fn new(policy: &Policy) -> Gates {
        let part = match policy.scope {
            Scope::Instance => GroupPart::whole(policy.capacity),
            Scope::Group => GroupPart { until: Time::ZERO, ..GroupPart::whole(0) },
        };
        Gates {
            window: window_of(policy),
            bucket: LeakyBucket::of_service(policy, part.limit),
            part,
            fresh_until: part.until,
            limited_since: Time::ZERO,
            capacities: MeanLimit::new(policy.cycle, part.limit),
            spacing: Spacing::new(policy),
            lent_room: LentRoom::default(),
            paced_until: Time::ZERO,
            admitted: 0,
            admitted_limit: u64::MAX,
            full_at: u64::MAX,
        }
    }

    /// Forgets the admissions so far.
    pub(crate) fn begin_window(&mut self, policy: &Policy) {
        self.window = window_of(policy);
        self.paced_until = Time::ZERO;
    }

    pub(crate) fn set_window(&mut self, policy: &Policy, window: SlidingCount) {
        self.window = window;
        self.window.keep_times(exact_records(policy));
        self.paced_until = Time::ZERO;
    }

    /// Changes to another policy, perhaps with another length of the cycle.
    pub(super) fn change(&mut self, now: Time, old: &Policy, policy: &Policy) {
        if (old.cycle, old.mode) != (policy.cycle, policy.mode) {
            self.window = self.window.moved_to(now, window_of(policy));
        }
        self.window.keep_times(exact_records(policy));
        self.spacing.change(policy);
        if policy.scope == Scope::Instance && (old.capacity, old.cycle) != (policy.capacity, policy.cycle) {
            (self.part, self.fresh_until) = (GroupPart::whole(policy.capacity), Time::NEVER);
            self.admitted_limit = self.full_at;
            self.capacities = MeanLimit::new(policy.cycle, policy.capacity);
        }
        self.set_pace(now, policy, self.part.pace);
    }

    /// Changes to another capacity of the same cycle. The window may hold the mean of the capacities that were in force
    /// over it: to hold fewer than the new one at once would stop the service for up to a cycle when the capacity
    /// falls, and would let a burst through when it rises.
    pub(super) fn change_capacity(&mut self, now: Time, policy: &Policy) {
        self.window.keep_times(exact_records(policy));
        if policy.scope == Scope::Instance {
            self.capacities.change(now, policy.capacity);
            self.set_pace(now, policy, policy.capacity);
            self.refresh(now);
        }
    }

    /// Finds the limit of this moment. Returns whether there is one.
    #[cold]
    fn refresh(&mut self, now: Time) -> bool {
        if self.has_limit(now) {
            (self.part.limit, self.fresh_until) = self.capacities.mean(now);
        }
        self.has_limit(now)
    }

    /// Sets the part of the group's capacity that a member of a group may use.
    pub(crate) fn set_part(&mut self, now: Time, policy: &Policy, part: GroupPart) {
        if !self.has_limit(now) {
            self.limited_since = now;
        }
        let is_same = (self.part.limit, self.part.pace) == (part.limit, part.pace);
        (self.part, self.fresh_until) = (part, part.until);
        self.admitted_limit = self.full_at.min(part.admitted);
        if !is_same {
            self.set_pace(now, policy, part.pace);
        }
    }

    /// Sets the room for open records; `None` for no bound. A member of a group takes its part of it, as it has one of
    /// the capacity, rounded up: without a record no member would ever go on.
    pub(crate) fn set_open_room(&mut self, now: Time, policy: &Policy, room: Option<OpenRoom>) {
        let had_limit = self.has_limit(now);
        let part = |records: u64| match policy.scope {
            Scope::Instance => records,
            Scope::Group => {
                let part = u128::from(records) * u128::from(self.part.limit.min(policy.capacity));
                part.div_ceil(u128::from(policy.capacity)) as u64
            }
        };
        self.full_at = room.map_or(u64::MAX, |room| room.admitted.saturating_add(part(room.records)));
        self.admitted_limit = self.full_at.min(self.part.admitted);
        if !had_limit && self.has_limit(now) {
            self.limited_since = now;
        }
    }

    /// Charges an admission to the window. Returns the number of records in it.
    #[inline]
    pub(super) fn charge_window(&mut self, now: Time) -> u64 {
        self.admitted += 1;
        self.window.add_counted(now, 1)
    }

    /// The number of admissions in the window that ends now. In a group it may contain some that a crashed member was
    /// free to make, beside all others: there are never more than the limit.
    pub(crate) fn count(&mut self, now: Time, policy: &Policy) -> u64 {
        let is_bounded = policy.scope == Scope::Group && self.has_limit(now);
        let most = if is_bounded { self.part.limit } else { u64::MAX };
        self.window.count(now).min(most)
    }

    /// Charges admissions to the window that others made, at an earlier moment.
    pub(crate) fn charge_earlier(&mut self, now: Time, at: Time, count: u64) {
        self.window.add_at(now, at, count);
        self.paced_until = Time::ZERO;
    }

    /// Returns whether records may be rejected for lack of capacity.
    pub(super) fn may_reject(&self, now: Time) -> bool {
        self.part.rejects && self.has_limit(now)
    }

    fn set_pace(&mut self, now: Time, policy: &Policy, pace: u64) {
        self.part.pace = pace;
        self.bucket.change(now, LeakyBucket::of_service(policy, pace));
        self.paced_until = Time::ZERO;
    }

    /// Returns whether there is a limit now. Without one nothing is decided for lack of capacity.
    #[inline]
    pub(super) fn has_limit(&self, now: Time) -> bool {
        now <= self.part.until && self.admitted < self.admitted_limit
    }

    #[inline]
    pub(super) fn window_is_open(&mut self, now: Time) -> bool {
        (now <= self.fresh_until || self.refresh(now))
            && self.window.count(now) < self.part.limit
            && self.admitted < self.admitted_limit
    }

    #[inline(always)]
    pub(super) fn are_open(&mut self, now: Time) -> bool {
        if now >= self.paced_until {
            self.find_pace(now);
        }
        self.window_is_open(now) && self.bucket.has_room(now)
    }

    /// Finds the pace until the next record leaves the window, or for one slice.
    #[cold]
    #[inline(never)]
    pub(super) fn find_pace(&mut self, now: Time) {
        if now > self.fresh_until {
            self.refresh(now);
        }
        let next = self.window.next_change(now);
        let mut forecast = self.capacities.forecast(now);
        let (limit, time) = (self.part.limit, self.part.growth.until.nanos_since(now));
        let growth = if time > 0 { u128::from(self.part.growth.to.saturating_sub(limit)) } else { 0 };
        let grown = |nanos: u64| limit + (growth * u128::from(nanos.min(time)) / u128::from(time.max(1))) as u64;
        let limit_in = |nanos| forecast(nanos).unwrap_or_else(|| grown(nanos));
        let count = self.window.count(now);
        self.spacing.pace(now, &mut self.bucket, count, self.window.departures(now), limit_in);
        self.paced_until = next;
    }

    /// The time at which both gates are open if nothing is admitted until then, or the time before which they are not
    /// but after which the pace may be higher. The owner is late if it comes back later.
    pub(super) fn open_at(&mut self, now: Time) -> Time {
        if now >= self.paced_until {
            self.find_pace(now);
        }
        let bucket = match self.bucket.next_room(now) {
            room if room > self.paced_until => room.min(self.paced_until.max(self.bucket.first_room(now))),
            room => room,
        };
        self.spacing.promised = bucket.max(self.window_opens(now));
        self.spacing.promised
    }

    /// The time at which the window has room for another record, or the limit changes.
    pub(super) fn window_opens(&mut self, now: Time) -> Time {
        if self.window_is_open(now) {
            return now;
        }
        if !self.has_limit(now) {
            // The next part opens it.
            return Time::NEVER;
        }
        let limit_changes = Time::from_nanos(self.fresh_until.as_nanos().saturating_add(1));
        self.window_open_at(now).min(limit_changes)
    }

    /// Returns whether the window has room for a record that is borrowed, if the other clients usually send so many
    /// records in a cycle.
    pub(super) fn has_room_beside(&mut self, now: Time, others: u64) -> bool {
        self.window_is_open(now) && self.lent_room.leaves_some(now, self.part.limit, others, &mut self.window)
    }

    /// The time at which the window has room for a borrowed record beside the records that wait for it, if the limit
    /// stays.
    pub(super) fn lends_at(&mut self, now: Time, waiting: u64, others: u64) -> Time {
        if !self.has_limit(now) {
            return Time::NEVER;
        }
        let open = lent_room::opens_at(now, self.part.limit.saturating_sub(waiting), others, &mut self.window);
        // The room is found anew with the next departure only, and records that wait go with the next action.
        open.max(self.window.next_change(now))
    }

    /// The time at which the window has room for another record, if the limit stays.
    pub(super) fn window_open_at(&mut self, now: Time) -> Time {
        if !self.has_limit(now) {
            return Time::NEVER;
        }
        self.window.below_at(now, self.part.limit)
    }
}
