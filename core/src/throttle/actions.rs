//! Actions: delayed records that are sent or rejected, and partitions that are paused.

use std::{sync::Arc, time::Duration};

use super::{Action, PauseReason, Rejection, Slot, Throttle};
use crate::ledger::{Location, PendingRejection, Reading};
use crate::scheduler::{ClientTurn, QueuedRecord};
use crate::{policy::Overflow, reason::Reason, units::Time};

/// Clients with partitions of their own keep records beyond this part of `queue_bytes` only within their shares of it.
/// Together they keep at most twice the part, which leaves the other clients half of the bytes.
const KEPT_PART: u64 = 4;

/// A step of [`Throttle::poll_action`].
enum Step {
    Act(Action),
    /// A record of shadow mode left its queue.
    Silent,
}

impl Throttle {
    /// The next thing to do, or `None` until something happens or [`poll_timeout`](Throttle::poll_timeout) passes.
    ///
    /// A record completes with the action that names it, not before. So an owner with a full round may stop asking,
    /// and records in excess of a bound are evicted over as many rounds as it takes.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        let now = self.not_before(now);
        loop {
            match self.ledger.readings.pop_front() {
                Some(Reading::Pause(partition)) => return Some(Action::Pause { partition }),
                Some(Reading::Resume(partition)) => return Some(Action::Resume { partition }),
                None => {}
            }
            match self.next_step(now) {
                Some(Step::Act(action)) => return Some(action),
                Some(Step::Silent) => continue,
                None => {}
            }
            self.resume_partitions(now);
            if self.ledger.readings.is_empty() {
                return None;
            }
        }
    }

    #[inline]
    fn next_step(&mut self, now: Time) -> Option<Step> {
        if !self.ledger.rejecting.is_empty()
            && let Some(step) = self.settle_rejection()
        {
            return Some(step);
        }
        if self.shadow.is_some()
            && let Some(step) = self.release_oldest(now)
        {
            return Some(step);
        }
        let Throttle { scheduler, ledger, .. } = self;
        if let Some(slot) = scheduler.expired(now, |slot| ledger.may_complete(slot)) {
            return Some(self.reject_delayed(slot, Reason::Expired, Duration::ZERO));
        }
        if let Some(step) = self.send_next(now) {
            return Some(step);
        }
        let Throttle { scheduler, ledger, .. } = self;
        if let Some(overdue) = scheduler.overdue(now, |slot| ledger.may_complete(slot)) {
            return Some(self.reject_delayed(overdue, Reason::CapacityInUse, Duration::ZERO));
        }
        self.evict_next(now)
    }

    /// The time at which something happens without a call. To be called after [`poll_action`](Throttle::poll_action)
    /// returned `None`.
    pub fn poll_timeout(&mut self, now: Time) -> Time {
        let now = self.not_before(now);
        if !self.ledger.readings.is_empty() || self.ledger.next_rejecting().is_some() {
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
            match self.scheduler.serve(now, turn, slot) {
                ClientTurn::Served { record, in_window } => return Some(self.send(now, slot, record, in_window)),
                ClientTurn::Blocked => {}
                ClientTurn::OverLimit { until } => {
                    let (reason, retry_after) = match until {
                        Time::NEVER => (Reason::Held, Duration::ZERO),
                        until => (Reason::ClientLimit, until.since(now)),
                    };
                    return Some(self.reject_delayed(slot, reason, retry_after));
                }
            }
        }
        None
    }

    /// Picks the record to send when `slot` is next. If its completion does not fit in the offset map, the partition's
    /// oldest record is sent in its place if the partition pauses at bounds; if not, the oldest record is evicted, an
    /// error, until the completion fits. Only completing the oldest record never makes the map larger.
    #[inline]
    fn select_record(&mut self, slot: Slot) -> Result<Slot, Step> {
        let Some(Location { partition, offset }) = self.ledger.location(slot) else { return Ok(slot) };
        if self.ledger.has_room(partition, offset) {
            return Ok(slot);
        }
        if self.ledger.pauses(partition) {
            return Ok(self.ledger.oldest(partition).unwrap_or(slot));
        }
        self.reject_oldest_of(partition).map_or(Ok(slot), Err)
    }

    #[inline]
    fn send(&mut self, now: Time, slot: Slot, record: QueuedRecord, in_window: u64) -> Step {
        let (waited, commit_interval) = (record.waited(now), self.scheduler.policy.commit_interval);
        self.slots.release(slot);
        let Some(location) = self.ledger.release(slot) else {
            self.scheduler.clients.get_mut(record.client).shadow.admit_late(waited, commit_interval);
            return Step::Silent;
        };
        self.scheduler.clients.get_mut(record.client).counts.admit_late(waited, commit_interval);
        self.count_sent(now, location.partition, waited, in_window);
        self.complete_admitted(slot, location, record, waited)
    }

    /// Shadow mode: sends the records that were delayed before it, in the order in which they were read. (The oldest
    /// record of all is the oldest one of its partition, so it fits in the offset map.)
    #[inline(never)]
    fn release_oldest(&mut self, now: Time) -> Option<Step> {
        let Location { partition, .. } = self.ledger.location(self.scheduler.backlog.oldest()?)?;
        // Records that were read at one time stand in several lists: of them the oldest one of its partition.
        let slot = self.ledger.oldest(partition)?;
        let location = self.ledger.release(slot)?;
        let record = self.scheduler.serve_unchecked(slot);
        let waited = now.since(record.since);
        self.slots.release(slot);
        let commit_interval = self.scheduler.policy.commit_interval;
        self.scheduler.clients.get_mut(record.client).counts.note_delay(waited, commit_interval);
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

    /// Completes a pending rejection that fits in the offset map. In a partition that is not paused at bounds, room is
    /// made for one.
    #[inline(never)]
    fn settle_rejection(&mut self) -> Option<Step> {
        if let Some((location, pending)) = self.ledger.take_rejection() {
            let PendingRejection { slot, bytes, rejection, name, grounds } = pending;
            self.grounds = grounds;
            return Some(self.complete_rejected(slot, location, bytes, rejection, name));
        }
        self.ledger.next_rejecting().and_then(|number| self.reject_oldest_of(number))
    }

    /// Evicts the oldest record of the client that is furthest above a bound or, if that does not fit in the offset
    /// map, the oldest record of its partition.
    #[inline]
    fn evict_next(&mut self, now: Time) -> Option<Step> {
        let eviction = self.scheduler.next_eviction(now)?;
        let location = self.ledger.location(eviction.slot);
        let step = match location.filter(|at| !self.ledger.has_room(at.partition, at.offset)) {
            None => self.reject_delayed(eviction.slot, Reason::QueueFull, Duration::ZERO),
            // A pending rejection at the head is completed by the next step.
            Some(full) => self.reject_oldest_of(full.partition).unwrap_or(Step::Silent),
        };
        self.scheduler.note_evicted(eviction);
        Some(step)
    }

    /// Evicts the record that holds a partition's committable offset back: its completion always fits in the offset
    /// map, and makes room in it. Returns `None` for a pending rejection, which completes by itself.
    fn reject_oldest_of(&mut self, partition: u32) -> Option<Step> {
        let oldest = self.ledger.oldest(partition)?;
        let pending = self.ledger.is_pending_rejection(oldest);
        (!pending).then(|| self.reject_delayed(oldest, Reason::QueueFull, Duration::ZERO))
    }

    #[inline(never)]
    fn reject_delayed(&mut self, slot: Slot, reason: Reason, retry_after: Duration) -> Step {
        let client = self.scheduler.clients.lookup(self.scheduler.backlog.get(slot).client);
        let waits_in_topic = reason == Reason::QueueFull && client.is_some_and(|client| client.queue.kept);
        let record = self.scheduler.remove(self.latest, slot);
        self.slots.release(slot);
        let client = self.scheduler.clients.get_mut(record.client);
        let Some(location) = self.ledger.release(slot) else {
            // With enforcement the partition would be paused, and the record be admitted later.
            if waits_in_topic {
                client.shadow.admitted += 1;
            } else {
                client.shadow.rejected.add(reason);
            }
            return Step::Silent;
        };
        client.counts.rejected.add(reason);
        let name = Some(Arc::clone(&client.name));
        self.grounds = match reason {
            Reason::Expired => self.scheduler.grounds_of_expiry(&record),
            _ => self.scheduler.grounds(self.latest, record.client, reason),
        };
        let rejection = Rejection { reason, retry_after, client: Some(record.client) };
        self.complete_rejected(slot, location, record.bytes, rejection, name)
    }

    fn complete_rejected(
        &mut self, slot: Slot, at: Location, bytes: u32, rejection: Rejection, name: Option<Arc<str>>,
    ) -> Step {
        let Location { partition, offset } = at;
        self.ledger.complete(partition, offset);
        Step::Act(Action::Reject { slot, partition, offset, bytes, rejection, name })
    }

    // ## Pauses

    /// Returns whether a client with partitions of its own has reached a bound of its backlog.
    pub(super) fn is_at_bound(&self, client: u32) -> bool {
        self.scheduler.is_full(client) || self.scheduler.keeps_too_much(client, KEPT_PART)
    }

    /// Pauses a partition at a bound of its client, or of the offset map; under `pause` all partitions at the bound of
    /// all backlogs.
    pub(super) fn pause_at_bounds(&mut self, client: u32, partition: u32) {
        let policy = &self.scheduler.policy;
        if policy.overflow() == Overflow::Auto {
            if self.is_at_bound(client) {
                self.ledger.pause(partition, PauseReason::OneClient { client });
            }
        } else {
            if self.scheduler.is_full(client) {
                self.ledger.pause(partition, PauseReason::Queue { client });
            }
            if self.held().1 >= policy.queue_bytes {
                self.ledger.pause_all(PauseReason::Bytes);
            }
        }
        self.ledger.pause_if_map_is_nearly_full(partition);
    }

    fn resume_partitions(&mut self, now: Time) {
        let ((_, bytes), scheduler) = (self.held(), &self.scheduler);
        let (clients, policy) = (&scheduler.clients, &scheduler.policy);
        let half_empty =
            |client| clients.lookup(client).is_none_or(|client| client.backlog().0 <= policy.queue_capacity / 2);
        self.ledger.resume(now, |reason| match reason {
            PauseReason::Queue { client } => half_empty(client),
            PauseReason::OneClient { client } => half_empty(client) && !scheduler.keeps_too_much(client, KEPT_PART * 2),
            PauseReason::Bytes => bytes <= policy.queue_bytes / 2,
            PauseReason::Map => false,
        });
    }

    /// The number of records that wait, pending rejections included, and their bytes.
    pub(super) fn held(&self) -> (u64, u64) {
        let (delayed, (records, bytes)) = (&self.scheduler.backlog, self.ledger.pending_rejections);
        (delayed.len() + records, delayed.bytes + bytes)
    }
}
