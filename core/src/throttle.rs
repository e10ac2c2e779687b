//! One service's state machine: a record comes in, a verdict goes out.
//!
//! A throttle joins the [`scheduler`](crate::scheduler), which decides which record goes when, with the
//! [`ledger`](crate::ledger), which knows the partitions. It asks the ledger whether a completion fits in the offset map,
//! and the scheduler for the next record to send.
//!
//! Call order: any `handle_*`, then [`Throttle::poll_action`] until it returns `None`, then sleep until
//! [`Throttle::poll_timeout`] or the next event. No call blocks or reads a clock.
//!
//! In shadow mode (`enforce = false`) the scheduler decides on each record as always, but its decisions are only
//! counted, and every record is admitted. Delayed records of shadow mode stand in the scheduler and not in the ledger.

#[cfg(test)]
mod tests;
mod types;
mod views;

use std::sync::Arc;
use std::time::Duration;

use crate::delays::Histogram;
use crate::ledger::{Ledger, Location, Observed, PendingRejection, Reading};
use crate::offset_map::{OffsetMap, TooLarge};
use crate::policy::{Overflow, Policy};
use crate::reason::Reason;
use crate::scheduler::{Counts, Decision, QueuedRecord, Scheduler, Served};
use crate::slot::Slots;
use crate::units::Time;
use crate::window::SlidingCount;

pub use crate::ledger::{PartitionView, PauseReason};
pub use crate::reason::Rejection;
pub use crate::scheduler::Cause;
pub use crate::slot::Slot;
pub use types::{Action, Arrival, Sender, Verdict};

/// One service's state machine.
#[derive(Debug)]
pub struct Throttle {
    scheduler: Scheduler,
    ledger: Ledger,
    slots: Slots,
    /// Shadow mode: the admissions of the last cycle. (The scheduler's window counts those that it would have made.)
    shadow: Option<SlidingCount>,
    totals: Totals,
    /// The latest moment that any call named; an earlier one counts as this.
    latest: Time,
}

/// Sums over all clients and partitions.
#[derive(Debug, Default)]
struct Totals {
    /// Records without a known client.
    unregistered: Counts,
    unregistered_shadow: Counts,
    delays: Histogram,
    window_max: u64,
}

/// A step of [`Throttle::poll_action`].
enum Step {
    Act(Action),
    /// A record of shadow mode left its queue.
    Silent,
}

impl Throttle {
    /// A service that starts now. Until [`handle_wall_clock`](Throttle::handle_wall_clock) says otherwise, `now` is
    /// taken for the wall clock's nanoseconds since the Unix epoch.
    pub fn new(policy: Policy, now: Time) -> Throttle {
        Throttle {
            ledger: Ledger::new(&policy),
            slots: Slots::default(),
            shadow: (!policy.enforce).then(|| SlidingCount::new(policy.cycle)),
            totals: Totals::default(),
            latest: now,
            scheduler: Scheduler::new(policy, now),
        }
    }

    // ## Records

    /// Decides on a record that was read.
    pub fn handle_record(&mut self, now: Time, arrival: &Arrival<'_>) -> Verdict {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        let Some(observed) = self.ledger.observe(arrival.partition, arrival.offset) else {
            return Verdict::Skip;
        };
        if self.shadow.is_some() {
            return self.handle_in_shadow(now, arrival, observed);
        }
        match self.decide(now, arrival, observed, |ledger| ledger.has_room(arrival.partition, arrival.offset)) {
            Decision::Admit { client, in_window } => {
                self.scheduler.client_mut(client).count_admitted(Duration::ZERO);
                self.count_sent(now, arrival.partition, Duration::ZERO, in_window);
                self.ledger.complete_at_once(arrival.partition, arrival.offset);
                Verdict::Admit(Some(client))
            }
            Decision::Delay { client } => self.delay(now, arrival, client),
            Decision::Park { client, until } => {
                let verdict = self.delay(now, arrival, client);
                self.scheduler.park(client, until);
                verdict
            }
            Decision::Reject(rejection) => self.reject(arrival, rejection),
        }
    }

    /// Asks the scheduler for its decision. An admission completes at once, so it must fit in the offset map.
    #[inline(always)]
    fn decide(
        &mut self,
        now: Time,
        arrival: &Arrival<'_>,
        observed: Observed,
        fits: impl FnOnce(&Ledger) -> bool,
    ) -> Decision {
        match self.client_of(now, arrival.sender) {
            Ok(client) => {
                self.scheduler.note_arrival(now, client, observed.first_time);
                let ledger = &self.ledger;
                self.scheduler.decide(now, client, observed.catching_up, || fits(ledger))
            }
            Err(reason) => Decision::Reject(Rejection { reason, retry_after: Duration::ZERO, client: None }),
        }
    }

    #[inline]
    fn client_of(&mut self, now: Time, sender: Sender<'_>) -> Result<u32, Reason> {
        match sender {
            Sender::Client(name) => self.scheduler.client_of(now, name).map_err(|_full| Reason::TooManyClients),
            Sender::NotAllowed(_) => Err(Reason::UnknownClient),
            Sender::Anonymous => Err(Reason::Anonymous),
            Sender::Oversized => Err(Reason::Undeliverable),
        }
    }

    /// Shadow mode: counts the decision on a record, and admits it unless it can't be forwarded as it is.
    #[inline(never)]
    fn handle_in_shadow(&mut self, now: Time, arrival: &Arrival<'_>, observed: Observed) -> Verdict {
        let decision = self.decide(now, arrival, observed, |_| true);
        if arrival.sender == Sender::Oversized
            && let Decision::Reject(rejection) = decision
        {
            return self.reject(arrival, rejection);
        }
        let client = match decision {
            Decision::Admit { client, .. } => {
                self.scheduler.client_mut(client).shadow.admitted += 1;
                Some(client)
            }
            Decision::Delay { client } | Decision::Park { client, .. } => {
                let record = QueuedRecord { client, bytes: arrival.bytes, since: now };
                self.scheduler.enqueue(self.slots.take(), record);
                if let Decision::Park { until, .. } = decision {
                    self.scheduler.park(client, until);
                }
                self.scheduler.client_mut(client).shadow.delayed += 1;
                Some(client)
            }
            Decision::Reject(rejection) => {
                let counts = match rejection.client {
                    Some(client) => &mut self.scheduler.client_mut(client).shadow,
                    None => &mut self.totals.unregistered_shadow,
                };
                counts.rejected.add(rejection.reason);
                rejection.client
            }
        };
        self.count_sent_in_shadow(now, client, arrival.partition, Duration::ZERO);
        self.ledger.complete(arrival.partition, arrival.offset);
        Verdict::Admit(client)
    }

    #[inline(never)]
    fn delay(&mut self, now: Time, arrival: &Arrival<'_>, client: u32) -> Verdict {
        let slot = self.slots.take();
        let record = QueuedRecord { client, bytes: arrival.bytes, since: now };
        let evicts = self.scheduler.enqueue(slot, record);
        self.scheduler.client_mut(client).counts.delayed += 1;
        self.ledger.hold(slot, arrival.partition, arrival.offset);
        if !evicts {
            self.pause_at_bounds(client, arrival.partition);
        }
        Verdict::Delay(slot)
    }

    /// Rejects a record. If its completion does not fit in the offset map, it waits until it does.
    #[inline(never)]
    fn reject(&mut self, arrival: &Arrival<'_>, rejection: Rejection) -> Verdict {
        self.counts(rejection.client).rejected.add(rejection.reason);
        let (partition, offset) = (arrival.partition, arrival.offset);
        if self.ledger.has_room(partition, offset) {
            self.ledger.complete_at_once(partition, offset);
            return Verdict::Reject(rejection);
        }
        self.ledger.pause_if_map_is_nearly_full(partition);
        let name = match (rejection.client, arrival.sender) {
            (Some(client), _) => self.scheduler.client_name(client),
            (None, Sender::Client(name) | Sender::NotAllowed(name)) => Some(Arc::from(name)),
            (None, Sender::Anonymous | Sender::Oversized) => None,
        };
        let slot = self.slots.take();
        self.ledger.keep_rejection(partition, offset, PendingRejection { slot, bytes: arrival.bytes, rejection, name });
        Verdict::Delay(slot)
    }

    // ## Actions

    /// The next thing to do, or `None` until something happens or [`poll_timeout`](Throttle::poll_timeout) passes.
    ///
    /// A record completes with the action that names it, not before. So an owner whose round is full may stop asking,
    /// and records in excess of a bound are evicted over as many rounds as it takes.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        let now = self.not_before(now);
        loop {
            match self.ledger.next_reading() {
                Some(Reading::Pause(partition)) => return Some(Action::Pause { partition }),
                Some(Reading::Resume(partition)) => return Some(Action::Resume { partition }),
                None => {}
            }
            match self.next_step(now) {
                Some(Step::Act(action)) => return Some(action),
                Some(Step::Silent) => continue,
                None => {}
            }
            self.resume_partitions();
            if !self.ledger.has_next_reading() {
                return None;
            }
        }
    }

    #[inline]
    fn next_step(&mut self, now: Time) -> Option<Step> {
        if self.ledger.has_pending_rejections()
            && let Some(step) = self.settle_rejection()
        {
            return Some(step);
        }
        if self.shadow.is_some()
            && let Some(step) = self.release_oldest(now)
        {
            return Some(step);
        }
        if let Some(oldest) = self.scheduler.expired(now) {
            return Some(self.reject_delayed(oldest, Reason::Expired));
        }
        if let Some(step) = self.send_next(now) {
            return Some(step);
        }
        self.evict_next(now)
    }

    /// The time at which something happens without a call. To be called after [`poll_action`](Throttle::poll_action)
    /// returned `None`.
    pub fn poll_timeout(&mut self, now: Time) -> Time {
        let now = self.not_before(now);
        let makes_room = || self.scheduler.policy().overflow() == Overflow::DeadLetter;
        if self.ledger.has_next_reading() || self.ledger.has_pending_rejections() && makes_room() {
            return now;
        }
        self.scheduler.next_timeout(now)
    }

    #[inline]
    fn send_next(&mut self, now: Time) -> Option<Step> {
        while let Some((turn, head)) = self.scheduler.next_turn(now) {
            let slot = match self.select_record(head) {
                Ok(slot) => slot,
                Err(evicted) => return Some(evicted),
            };
            if let Some(served) = self.scheduler.serve(now, turn, slot) {
                return Some(self.send(now, slot, served));
            }
        }
        None
    }

    /// Picks the record to send when `slot` is next. If its completion does not fit in the offset map, then under
    /// `dead_letter` the partition's oldest record is evicted instead, an error, until it fits; under `pause` the
    /// oldest record is sent in its place. Only completing the oldest record never makes the map larger.
    #[inline]
    fn select_record(&mut self, slot: Slot) -> Result<Slot, Step> {
        let Some(Location { partition, offset }) = self.ledger.location(slot) else { return Ok(slot) };
        if self.ledger.has_room(partition, offset) {
            return Ok(slot);
        }
        match self.scheduler.policy().overflow() {
            Overflow::Pause => Ok(self.ledger.oldest(partition).unwrap_or(slot)),
            Overflow::DeadLetter => self.reject_oldest_of(partition).map_or(Ok(slot), Err),
        }
    }

    #[inline]
    fn send(&mut self, now: Time, slot: Slot, Served { record, in_window }: Served) -> Step {
        let waited = now.since(record.since);
        self.slots.release(slot);
        let Some(location) = self.ledger.release(slot) else {
            self.scheduler.client_mut(record.client).shadow.admitted += 1;
            return Step::Silent;
        };
        self.scheduler.client_mut(record.client).count_admitted(waited);
        self.count_sent(now, location.partition, waited, in_window);
        self.complete_admitted(slot, location, record, waited)
    }

    /// Shadow mode: sends the records that were delayed before it, in the order in which they were read. (The oldest
    /// record of all is the oldest one of its partition, so it fits in the offset map.)
    #[inline(never)]
    fn release_oldest(&mut self, now: Time) -> Option<Step> {
        let slot = self.scheduler.oldest()?;
        let location = self.ledger.release(slot)?;
        let record = self.scheduler.serve_unchecked(slot);
        let waited = now.since(record.since);
        self.slots.release(slot);
        self.count_sent_in_shadow(now, Some(record.client), location.partition, waited);
        Some(self.complete_admitted(slot, location, record, waited))
    }

    #[inline]
    fn complete_admitted(&mut self, slot: Slot, at: Location, record: QueuedRecord, waited: Duration) -> Step {
        let Location { partition, offset } = at;
        self.ledger.complete(partition, offset);
        let QueuedRecord { client, bytes, .. } = record;
        Step::Act(Action::Admit { slot, partition, offset, bytes, client, waited })
    }

    /// Completes a pending rejection that fits in the offset map. Under `dead_letter`, room is made for one.
    #[inline(never)]
    fn settle_rejection(&mut self) -> Option<Step> {
        if let Some((location, pending)) = self.ledger.take_rejection() {
            let PendingRejection { slot, bytes, rejection, name } = pending;
            return Some(self.complete_rejected(slot, location, bytes, rejection, name));
        }
        match self.scheduler.policy().overflow() {
            Overflow::Pause => None,
            Overflow::DeadLetter => self.ledger.next_rejecting().and_then(|number| self.reject_oldest_of(number)),
        }
    }

    /// Evicts the oldest record of the client that is furthest above a bound or, if that does not fit in the offset map,
    /// the oldest record of its partition.
    #[inline]
    fn evict_next(&mut self, now: Time) -> Option<Step> {
        let eviction = self.scheduler.next_eviction(now)?;
        let location = self.ledger.location(eviction.slot);
        let step = match location.filter(|at| !self.ledger.has_room(at.partition, at.offset)) {
            None => self.reject_delayed(eviction.slot, Reason::QueueFull),
            // A pending rejection at the head is completed by the next step.
            Some(full) => self.reject_oldest_of(full.partition).unwrap_or(Step::Silent),
        };
        self.scheduler.note_evicted(eviction);
        Some(step)
    }

    /// Evicts the record that holds a partition's committable offset back: its completion always fits in the offset map,
    /// and makes room in it. Returns `None` for a pending rejection, which completes by itself.
    fn reject_oldest_of(&mut self, partition: u32) -> Option<Step> {
        let oldest = self.ledger.oldest(partition)?;
        let pending = self.ledger.is_pending_rejection(oldest);
        (!pending).then(|| self.reject_delayed(oldest, Reason::QueueFull))
    }

    #[inline(never)]
    fn reject_delayed(&mut self, slot: Slot, reason: Reason) -> Step {
        let record = self.scheduler.remove(slot);
        self.slots.release(slot);
        let client = self.scheduler.client_mut(record.client);
        let Some(location) = self.ledger.release(slot) else {
            client.shadow.rejected.add(reason);
            return Step::Silent;
        };
        client.counts.rejected.add(reason);
        let name = Some(Arc::clone(&client.name));
        let rejection = Rejection { reason, retry_after: Duration::ZERO, client: Some(record.client) };
        self.complete_rejected(slot, location, record.bytes, rejection, name)
    }

    fn complete_rejected(
        &mut self,
        slot: Slot,
        at: Location,
        bytes: u32,
        rejection: Rejection,
        name: Option<Arc<str>>,
    ) -> Step {
        let Location { partition, offset } = at;
        self.ledger.complete(partition, offset);
        Step::Act(Action::Reject { slot, partition, offset, bytes, rejection, name })
    }

    // ## Pauses

    /// Under `pause`: pauses partitions whose records would exceed a bound of the backlogs, or of the offset map.
    fn pause_at_bounds(&mut self, client: u32, partition: u32) {
        let policy = self.scheduler.policy();
        let length = self.scheduler.lookup(client).map_or(0, |client| client.backlog().0);
        if length >= policy.queue_capacity {
            self.ledger.pause(partition, PauseReason::Queue { client });
        }
        if self.held().1 >= policy.queue_bytes {
            self.ledger.pause_all(PauseReason::Bytes);
        }
        self.ledger.pause_if_map_is_nearly_full(partition);
    }

    fn resume_partitions(&mut self) {
        let (_, bytes) = self.held();
        let (scheduler, policy) = (&self.scheduler, self.scheduler.policy());
        self.ledger.resume(|reason| match reason {
            PauseReason::Queue { client } => {
                scheduler.lookup(client).is_none_or(|client| client.backlog().0 <= policy.queue_capacity / 2)
            }
            PauseReason::Bytes => bytes <= policy.queue_bytes / 2,
            PauseReason::Map => false,
        });
    }

    /// The number of records that wait, pending rejections included, and their bytes.
    fn held(&self) -> (u64, u64) {
        let (delayed, rejected) = (self.scheduler.backlog(), self.ledger.pending_rejections());
        (delayed.0 + rejected.0, delayed.1 + rejected.1)
    }

    // ## Counts

    /// Counts an admission, but for its client.
    #[inline(always)]
    fn count_sent(&mut self, now: Time, partition: u32, waited: Duration, in_window: u64) {
        self.totals.delays.record(waited);
        self.totals.window_max = self.totals.window_max.max(in_window);
        self.ledger.count_admission(now, partition);
    }

    /// Counts an admission in shadow mode.
    fn count_sent_in_shadow(&mut self, now: Time, client: Option<u32>, partition: u32, waited: Duration) {
        match client {
            Some(client) => self.scheduler.client_mut(client).count_admitted(waited),
            None => self.totals.unregistered.admitted += 1,
        }
        let in_window = self.shadow.as_mut().map_or(0, |window| window.add(now, 1));
        self.count_sent(now, partition, waited, in_window);
    }

    fn counts(&mut self, client: Option<u32>) -> &mut Counts {
        match client {
            Some(client) => &mut self.scheduler.client_mut(client).counts,
            None => &mut self.totals.unregistered,
        }
    }

    // ## Events

    /// The time of a call, which never goes back: a window that is counted at one moment and charged at an earlier one
    /// would admit records twice.
    #[inline]
    fn not_before(&mut self, now: Time) -> Time {
        if now < self.latest {
            return self.latest;
        }
        self.latest = now;
        now
    }

    /// Notes that time passed: a cycle may have ended, an early allocation may be due.
    pub fn handle_timeout(&mut self, now: Time) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        self.scheduler.allocate_if_due(now);
    }

    /// Notes that the wall clock shows `wall_ms`, milliseconds since the Unix epoch. To be called before a partition is
    /// assigned and before a commit.
    ///
    /// Recent admissions travel between owners by the wall clock: its time at the commit less their age by the owner's own
    /// clock. So a wall clock that was wrong when the process started, or a process that was suspended, does not make
    /// them look older than they are. Only a step of the wall clock between a commit and the takeover does.
    pub fn handle_wall_clock(&mut self, now: Time, wall_ms: i64) {
        self.ledger.set_wall_clock(now, wall_ms);
    }

    /// Changes to another policy, which is allocated by at once ([`Cause::Reload`]); another cycle length begins a cycle.
    ///
    /// Records that were admitted still count: after a change no window, as long as the shortest cycle in force in it,
    /// holds more than the largest capacity in force in it (a longer cycle remembers no more than the shorter one did).
    /// Delayed records keep their place: from shape into reject mode they go as records that are catching up do, into
    /// shadow mode they go at once, in order, with the next [`poll_action`](Throttle::poll_action). Records that exceed a
    /// lowered bound of the backlogs are evicted by [`poll_action`](Throttle::poll_action), too.
    ///
    /// `commit_interval` and `map_budget` must be the same, as offset maps that were written must still fit.
    pub fn handle_policy(&mut self, now: Time, policy: Policy) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        let (enforce, cycle) = (policy.enforce, policy.cycle);
        self.ledger.change(now, &policy);
        if cycle != self.scheduler.policy().cycle
            && let Some(window) = &mut self.shadow
        {
            *window = window.over(now, cycle);
        }
        self.scheduler.change(now, policy);
        if !enforce && self.shadow.is_none() {
            self.shadow = Some(self.scheduler.window().clone());
        } else if enforce && let Some(window) = self.shadow.take() {
            self.drop_shadow_records();
            *self.scheduler.window() = window;
        }
        self.scheduler.find_surplus(now);
    }

    /// Removes the delayed records of shadow mode, which were all admitted long ago.
    fn drop_shadow_records(&mut self) {
        let shadow: Vec<Slot> = self.scheduler.iter().filter(|&slot| self.ledger.location(slot).is_none()).collect();
        for slot in shadow {
            self.scheduler.remove(slot);
            self.slots.release(slot);
        }
    }

    /// Notes that a partition was assigned, with the offset map of its last commit. `high` is its high watermark now.
    pub fn handle_assigned(&mut self, now: Time, partition: u32, base: i64, map: &OffsetMap, high: i64) {
        let now = self.not_before(now);
        self.scheduler.advance_cycle(now);
        let (scheduler, shadow) = (&mut self.scheduler, &mut self.shadow);
        self.ledger.assign(now, partition, base, map, high, |when, admitted| {
            scheduler.window().add_at(now, when, admitted);
            if let Some(window) = shadow {
                window.add_at(now, when, admitted);
            }
        });
    }

    /// Notes that a partition was revoked: its delayed records are dropped, as its next owner reads them again. Returns
    /// their slots, which are free now. Admissions still count.
    pub fn handle_revoked(&mut self, partition: u32) -> Vec<Slot> {
        let (slots, rejections) = self.ledger.revoke(partition);
        for &slot in &slots {
            if !rejections.iter().any(|rejection| rejection.slot == slot) {
                self.scheduler.remove(slot);
            }
            self.slots.release(slot);
        }
        slots
    }

    /// Notes that a partition was not fetched for longer than a cycle: its records up to `high` are catching up.
    pub fn handle_fetch_gap(&mut self, partition: u32, high: i64) {
        self.ledger.note_fetch_gap(partition, high);
    }

    /// Notes that the log of a partition was read up to (excluding) this offset: skipped offsets are holes.
    pub fn handle_end(&mut self, partition: u32, offset: i64) {
        self.ledger.observe_end(partition, offset);
    }

    /// Notes that an admitted record turned out to be undeliverable, before its round was committed.
    pub fn handle_undeliverable(&mut self, client: Option<&str>) {
        let counts = self.counts(client.and_then(|name| self.scheduler.find(name)));
        counts.admitted = counts.admitted.saturating_sub(1);
        counts.rejected.add(Reason::Undeliverable);
    }

    /// Notes that a decision was not carried out, because its partition was revoked before its round was committed: the
    /// next owner decides and counts again. Its charges stay.
    pub fn handle_undone(&mut self, client: Option<&str>, rejected: Option<Reason>) {
        let counts = self.counts(client.and_then(|name| self.scheduler.find(name)));
        match rejected {
            Some(reason) => counts.rejected.remove(reason),
            None => counts.admitted = counts.admitted.saturating_sub(1),
        }
    }

    // ## Commits

    /// Partitions in which a record completed since their last commit.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        self.ledger.touched()
    }

    /// Makes a partition one to commit, even if no record completed in it.
    pub fn touch(&mut self, partition: u32) {
        self.ledger.set_touched(partition, true);
    }

    /// The committable offset and its offset map. All records that were decided on count as completed, so the round
    /// that commits this must hold all outputs of decisions that were not committed before.
    ///
    /// # Errors
    /// The map does not fit in its budget: a defect, as no record completes that does not fit.
    pub fn commit_of(&mut self, now: Time, partition: u32) -> Result<(i64, String), TooLarge> {
        self.commit_without(now, partition, &[])
    }

    /// The committable offset and its offset map, as if these offsets were not completed yet: those of the last
    /// decisions, which a later round commits.
    ///
    /// # Errors
    /// The map does not fit in its budget. It did when these decisions were made, unless holes were read behind them.
    pub fn commit_without(&mut self, now: Time, partition: u32, offsets: &[i64]) -> Result<(i64, String), TooLarge> {
        let now = self.not_before(now);
        self.ledger.commit(now, partition, offsets)
    }

    /// Notes that the commit of a partition was acknowledged.
    pub fn handle_committed(&mut self, partition: u32) {
        self.ledger.set_touched(partition, false);
    }
}
