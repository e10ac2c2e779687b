//! One service's state machine: a record comes in, a verdict goes out.
//!
//! A throttle joins the [`scheduler`](crate::scheduler), which decides which record goes when, with the
//! [`ledger`](crate::ledger), which knows the partitions. It asks the ledger whether a completion fits in the offset
//! map, and the scheduler for the next record to send.
//!
//! Call order: any `handle_*`, then [`Throttle::poll_action`] until it returns `None`, then sleep until
//! [`Throttle::poll_timeout`] or the next event. No call blocks or reads a clock.
//!
//! In shadow mode (`enforce = false`) the scheduler decides on each record as always, but its decisions are only
//! counted, and every record is admitted. Delayed records of shadow mode stand in the scheduler and not in the ledger.
//!
//! Three records, of which the capacity allows one a second:
//!
//! ```
//! use std::time::Duration;
//! use watermaster_core::offset_map::OffsetMap;
//! use watermaster_core::policy::Policy;
//! use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
//! use watermaster_core::units::Time;
//!
//! let second = Duration::from_secs(1);
//! let mut now = Time::ZERO + 1_000 * second;
//! let mut throttle = Throttle::new(Policy::new(10, 10 * second), now);
//! throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
//! let record = |offset, sender| Arrival { partition: 0, offset, bytes: 100, sender, written_ms: None };
//!
//! let first = throttle.handle_record(now, &record(0, Sender::Client("home-loan")));
//! assert!(matches!(first, Verdict::Admit(_)));
//! let second = throttle.handle_record(now, &record(1, Sender::Client("home-loan")));
//! let Verdict::Delay(slot) = second else { panic!("one record a second goes") };
//! let third = throttle.handle_record(now, &record(2, Sender::Anonymous));
//! assert!(matches!(third, Verdict::Delay(_) | Verdict::Reject(_)));
//!
//! throttle.handle_timeout(now);
//! assert_eq!(throttle.poll_action(now), None);
//! now = throttle.poll_timeout(now);
//! let action = throttle.poll_action(now);
//! assert!(matches!(action, Some(Action::Admit { slot: sent, offset: 1, .. }) if sent == slot));
//! // The committable offset, and the map of the offsets that are completed beyond it; both are committed together.
//! assert_eq!(throttle.commit_without(now, 0, &[]).map(|(offset, _)| offset), Ok(3));
//! ```

mod actions;
mod events;
mod views;

use std::{sync::Arc, time::Duration};

use crate::ledger::{Ledger, Observed, PendingRejection, TopicWait};
use crate::reason::{Grounds, Reason};
use crate::scheduler::{Counts, Decision, QueuedRecord, Scheduler};
use crate::{delays::Histogram, policy::Policy, slot::Slots, units::Time, window::SlidingCount};

pub use crate::ledger::{PartitionView, PauseReason};
pub use crate::scheduler::{Cause, GroupPart, Growth, OpenRoom};
pub use crate::{reason::Rejection, slot::Slot};
pub use views::Admissions;

/// The sender of a record, as far as the shell could tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// A readable client id.
    Client(&'a str),
    /// The client that redriven records count for. They say nothing about the clients of their partition.
    Redriven(&'a str),
    /// A readable client id that the source does not allow.
    NotAllowed(&'a str),
    /// No client id, or one that can't be read.
    Anonymous,
    /// The record has more headers than are read, so it can't be forwarded as it is.
    Oversized,
}

/// A record that was just read.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The partition's number, as given to [`handle_assigned`](Throttle::handle_assigned).
    pub partition: u32,
    pub offset: i64,
    /// The memory that the record costs while it is delayed.
    pub bytes: u32,
    pub sender: Sender<'a>,
    /// The record's timestamp, in milliseconds since the Unix epoch.
    pub written_ms: Option<i64>,
}

/// The answer to a record that was just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Do nothing: the record is completed already, or delayed.
    Skip,
    /// Send the record to the target now; with the client's index, if it has one.
    Admit(Option<u32>),
    /// Keep the record under this slot until an [`Action`] names it.
    Delay(Slot),
    /// Send the record to the dead-letter topic now.
    Reject(Rejection),
}

/// Something to do beyond the record that was just read. A slot named here is free afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the record kept under this slot to the target; its bytes are those of its arrival.
    Admit { slot: Slot, partition: u32, offset: i64, bytes: u32, client: u32, waited: Duration },
    /// Send the record kept under this slot to the dead-letter topic. The name is the one that its client had when the
    /// record was rejected: by now its index may be another client's.
    Reject { slot: Slot, partition: u32, offset: i64, bytes: u32, rejection: Rejection, name: Option<Arc<str>> },
    /// Read nothing from this partition.
    Pause { partition: u32 },
    /// Read from this partition again.
    Resume { partition: u32 },
}

/// One service's state machine.
#[derive(Debug)]
pub struct Throttle {
    scheduler: Scheduler,
    ledger: Ledger,
    slots: Slots,
    /// Shadow mode: the admissions of the last cycle. (The scheduler's window counts those that it would have made.)
    shadow: Option<SlidingCount>,
    /// The room for open records, which shadow mode does not apply.
    open_room: Option<OpenRoom>,
    totals: Totals,
    grounds: Grounds,
    /// The latest moment that any call named; an earlier one counts as this.
    latest: Time,
}

/// Sums over all clients and partitions.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Records that had no known client when they came: decisions that were carried out, and shadow mode's.
    pub unregistered: Counts,
    pub unregistered_shadow: Counts,
    /// The delays of admitted records.
    pub delays: Histogram,
    /// The most admissions in any window.
    pub window_max: u64,
}

impl Throttle {
    /// A service that starts now. Until [`handle_wall_clock`](Throttle::handle_wall_clock) says otherwise, `now` is
    /// taken for the wall clock's nanoseconds since the Unix epoch.
    pub fn new(policy: Policy, now: Time) -> Throttle {
        let (ledger, enforce) = (Ledger::new(&policy), policy.enforce);
        let scheduler = Scheduler::new(policy, now);
        Throttle {
            ledger,
            slots: Slots::default(),
            shadow: (!enforce).then(|| scheduler.gates.window.clone()),
            open_room: None,
            totals: Totals::default(),
            grounds: Grounds::default(),
            latest: now,
            scheduler,
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
        let wait = self.ledger.waited_in_topic(now, arrival.partition, arrival.offset, arrival.written_ms);
        let age_ms = wait.age_ms;
        match self.decide(now, arrival, observed, wait, |ledger| ledger.has_room(arrival.partition, arrival.offset)) {
            Decision::Admit { client, in_window } => {
                self.scheduler.clients.get_mut(client).counts.admitted += 1;
                let age = if age_ms > 0 { self.note_age(client, age_ms) } else { Duration::ZERO };
                self.count_sent(now, arrival.partition, age, in_window);
                self.ledger.complete_at_once(arrival.partition, arrival.offset);
                Verdict::Admit(Some(client))
            }
            Decision::Delay { client, first } => {
                self.delay(arrival, QueuedRecord { first, age_ms, ..QueuedRecord::new(client, arrival.bytes, now) })
            }
            Decision::Owe { client } => {
                let record = QueuedRecord::new(client, arrival.bytes, now);
                self.delay(arrival, QueuedRecord { first: true, owed: true, age_ms, ..record })
            }
            Decision::Reject(rejection) => self.reject(arrival, rejection),
        }
    }

    /// Counts the time for which a record waited in its topic.
    #[cold]
    fn note_age(&mut self, client: u32, age_ms: u32) -> Duration {
        let (age, interval) = (Duration::from_millis(age_ms.into()), self.scheduler.policy.commit_interval);
        self.scheduler.clients.get_mut(client).counts.note_delay(age, interval);
        age
    }

    /// Asks the scheduler for its decision. An admission completes at once, so it must fit in the offset map.
    #[inline(always)]
    fn decide(
        &mut self, now: Time, arrival: &Arrival<'_>, observed: Observed, wait: TopicWait,
        fits: impl Fn(&Ledger) -> bool,
    ) -> Decision {
        match self.client_of(now, arrival.sender) {
            Ok(client) => {
                if let Sender::Client(name) = arrival.sender {
                    self.ledger.note_client(arrival.partition, client, name);
                }
                self.scheduler.note_arrival(now, client, observed.first_time);
                let ledger = &self.ledger;
                self.scheduler.decide(now, client, observed.catching_up, wait, || fits(ledger))
            }
            Err(reason) => Decision::Reject(Rejection { reason, retry_after: Duration::ZERO, client: None }),
        }
    }

    #[inline]
    fn client_of(&mut self, now: Time, sender: Sender<'_>) -> Result<u32, Reason> {
        match sender {
            Sender::Client(name) | Sender::Redriven(name) => {
                self.scheduler.client_of(now, name).ok_or(Reason::TooManyClients)
            }
            Sender::NotAllowed(_) => Err(Reason::UnknownClient),
            Sender::Anonymous => Err(Reason::Anonymous),
            Sender::Oversized => Err(Reason::Undeliverable),
        }
    }

    /// Shadow mode: counts the decision on a record, and admits it unless it can't be forwarded as it is.
    #[inline(never)]
    fn handle_in_shadow(&mut self, now: Time, arrival: &Arrival<'_>, observed: Observed) -> Verdict {
        let decision = self.decide(now, arrival, observed, TopicWait::default(), |_| true);
        if arrival.sender == Sender::Oversized
            && let Decision::Reject(rejection) = decision
        {
            return self.reject(arrival, rejection);
        }
        let client = match decision {
            Decision::Admit { client, .. } => {
                self.scheduler.clients.get_mut(client).shadow.admitted += 1;
                Some(client)
            }
            Decision::Owe { client } | Decision::Delay { client, .. } => {
                let first = matches!(decision, Decision::Delay { first: true, .. });
                let record = QueuedRecord { first, ..QueuedRecord::new(client, arrival.bytes, now) };
                self.scheduler.enqueue(self.slots.take(), record, self.ledger.pauses(arrival.partition));
                self.scheduler.clients.get_mut(client).shadow.delayed += 1;
                Some(client)
            }
            Decision::Reject(rejection) => {
                let counts = match rejection.client {
                    Some(client) => &mut self.scheduler.clients.get_mut(client).shadow,
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

    /// Delays a record. A partition that pauses at bounds is paused, and its records are never evicted. A record that
    /// may not pause its partition, of a client of which no record is evicted, is rejected itself at a bound.
    #[inline(never)]
    fn delay(&mut self, arrival: &Arrival<'_>, record: QueuedRecord) -> Verdict {
        let (client, partition) = (record.client, arrival.partition);
        let (pauses, auto) = (self.ledger.pauses(partition), self.scheduler.policy.keeps());
        let may_pause = pauses && (!auto || self.ledger.is_sole_client(partition, client));
        if auto && !may_pause && (pauses || self.scheduler.keeps(client)) && self.is_at_bound(client) {
            let rejection = Rejection { reason: Reason::QueueFull, retry_after: Duration::ZERO, client: Some(client) };
            return self.reject(arrival, rejection);
        }
        let slot = self.slots.take();
        self.scheduler.enqueue(slot, record, pauses);
        self.scheduler.clients.get_mut(client).counts.delayed += 1;
        self.ledger.hold(slot, partition, arrival.offset);
        if may_pause {
            self.pause_at_bounds(client, partition);
        }
        Verdict::Delay(slot)
    }

    /// Rejects a record. If its completion does not fit in the offset map, it waits until it does.
    #[inline(never)]
    fn reject(&mut self, arrival: &Arrival<'_>, rejection: Rejection) -> Verdict {
        self.counts(rejection.client).rejected.add(rejection.reason);
        let of_client = |client| self.scheduler.grounds(self.latest, client, rejection.reason);
        let grounds = rejection.client.map(of_client).unwrap_or_default();
        let (partition, offset) = (arrival.partition, arrival.offset);
        if self.ledger.has_room(partition, offset) {
            self.ledger.complete_at_once(partition, offset);
            self.grounds = grounds;
            return Verdict::Reject(rejection);
        }
        self.ledger.pause_if_map_is_nearly_full(partition);
        let name = match (rejection.client, arrival.sender) {
            (Some(client), _) => self.scheduler.clients.name_of(client),
            (None, Sender::Client(name) | Sender::Redriven(name) | Sender::NotAllowed(name)) => Some(Arc::from(name)),
            (None, Sender::Anonymous | Sender::Oversized) => None,
        };
        let slot = self.slots.take();
        let pending = PendingRejection { slot, bytes: arrival.bytes, rejection, name, grounds };
        self.ledger.keep_rejection(partition, offset, pending);
        Verdict::Delay(slot)
    }

    /// Takes the grounds of the rejection that the last verdict or action told.
    pub fn take_grounds(&mut self) -> Grounds {
        std::mem::take(&mut self.grounds)
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
        self.counts(client).admitted += 1;
        let in_window = self.shadow.as_mut().map_or(0, |window| window.add(now, 1));
        self.count_sent(now, partition, waited, in_window);
    }

    fn counts(&mut self, client: Option<u32>) -> &mut Counts {
        match client {
            Some(client) => &mut self.scheduler.clients.get_mut(client).counts,
            None => &mut self.totals.unregistered,
        }
    }

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
}

#[cfg(test)]
mod tests;
