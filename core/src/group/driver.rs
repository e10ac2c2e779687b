//! The member of a running service: it joins a [`Member`] with a throttle, and both with the control log.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use strum::VariantNames;

use super::control::{ControlLog, Event, LogCall, OpeningNumber};
use super::demand::DemandMeter;
use super::member::Member;
use super::state::{BANK, Progress, SeatRecord, StateKind};
use super::targets::Shares;
use super::{Clocks, GroupParams};
use crate::delays::Histogram;
use crate::policy::Policy;
use crate::scheduler::GroupPart;
use crate::throttle::Throttle;
use crate::units::Time;

/// The seats that a member opens: its own, those of members that stopped, and the bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum OpenedSeat {
    /// The member's own seat.
    Own,
    /// The seat of a member that stopped.
    Other,
    Bank,
}

/// Counts since the process started.
#[derive(Debug, Clone, Default)]
pub struct DriverCounts {
    /// Begun openings, in the order of [`OpenedSeat`].
    pub openings: [u64; OpenedSeat::VARIANTS.len()],
    /// Seats of members that stopped, taken over by this member.
    pub claims: u64,
    /// The times from the making of an own state until it was read back.
    pub exchanges: Histogram,
}

/// A member, and what it tells its throttle.
#[derive(Debug)]
pub struct Driver {
    member: Member,
    meter: DemandMeter,
    /// The splits of the capacity of which the throttle knows its parts.
    splits: u64,
    told: GroupPart,
    /// Loads tell the admissions, for the instance that searches for the capacity.
    tells_progress: bool,
    /// Own states that were not read back, with the times at which they were made.
    sent: VecDeque<(u64, Time)>,
    /// The opening under which a claim is on its way.
    claim: Option<OpeningNumber>,
    counts: DriverCounts,
}

impl Driver {
    /// Drives a member.
    pub fn new(member: Member, tells_progress: bool) -> Driver {
        Driver {
            member,
            meter: DemandMeter::default(),
            splits: 0,
            told: GroupPart::NONE,
            tells_progress,
            sent: VecDeque::new(),
            claim: None,
            counts: DriverCounts::default(),
        }
    }

    /// Begins anew, as another life: the log is to be read from its beginning. Until it has a part again, the throttle
    /// admits nothing.
    pub fn restart(&mut self, now: Clocks, life: u64, throttle: &mut Throttle) {
        let (params, seat) = (self.member.params().clone(), Arc::clone(self.member.seat()));
        self.member = Member::new(params, Shares::new(throttle.policy()), seat, life, now);
        (self.splits, self.claim) = (0, None);
        self.sent.clear();
        self.tell(now, throttle);
    }

    /// Reads the log, makes the calls that are due, and tells the throttle its part. `clocks` are read after each
    /// event: if the process stood still in between, a time from before would make the others look silent for as long.
    /// `memory` finds the number of records that were admitted in the last cycle, before the group began; `None` if
    /// that can't be found out now. It may take its time. Returns whether the member looked, so that its views may have
    /// changed.
    ///
    /// # Errors
    /// The log can't be read any more.
    pub fn serve<L: ControlLog>(
        &mut self, clocks: impl Fn() -> Clocks, throttle: &mut Throttle, log: &mut L,
        memory: impl FnOnce() -> Option<u64>,
    ) -> Result<bool, L::Error> {
        while let Some(event) = log.poll()? {
            let now = clocks();
            self.note(now.slow, &event);
            let calls = self.member.handle_event(now, &event, throttle);
            self.obey(now.slow, calls, log);
        }
        if self.member.needs_memory()
            && let Some(count) = memory()
        {
            self.member.charge_memory(count);
        }
        let now = clocks();
        let looks = now.slow >= self.member.next_look();
        if looks {
            self.look(now, throttle, log);
        }
        self.tell(now, throttle);
        Ok(looks)
    }

    fn tell(&mut self, now: Clocks, throttle: &mut Throttle) {
        let part = self.member.part_now(now);
        if std::mem::replace(&mut self.told, part) != part {
            throttle.handle_part(now.slow, part);
        }
    }

    fn look<L: ControlLog>(&mut self, now: Clocks, throttle: &mut Throttle, log: &mut L) {
        let params = self.member.params();
        let loads = self.meter.measure(now.slow, params, throttle, |client| self.member.part(client));
        let progress = self.tells_progress.then(|| {
            let admitted = throttle.totals().delays.counts.iter().sum();
            Progress { admitted, waits: throttle.backlog().0 > 0 }
        });
        let calls = self.member.look(now, loads, progress, throttle);
        self.obey(now.slow, calls, log);
        let splits = self.member.splits();
        if std::mem::replace(&mut self.splits, splits) != splits {
            let (part_of, part_of_group) =
                (|client: &str| self.member.part(client), |group: &str| self.member.group_part(group));
            throttle.handle_parts(now.slow, part_of, part_of_group);
        }
    }

    fn obey<L: ControlLog>(&mut self, now: Time, calls: Vec<LogCall>, log: &mut L) {
        for call in calls {
            match &call {
                LogCall::Open { seat, .. } => {
                    let opened = match &**seat {
                        BANK => OpenedSeat::Bank,
                        _ if seat == self.member.seat() => OpenedSeat::Own,
                        _ => OpenedSeat::Other,
                    };
                    self.counts.openings[opened as usize] += 1;
                    if opened == OpenedSeat::Own {
                        // A state that is in doubt may never come.
                        self.sent.clear();
                    }
                }
                LogCall::Write { attempt, records } => match records.first() {
                    Some(SeatRecord::State(state)) if state.kind == StateKind::Own => {
                        self.sent.push_back((state.seq, now));
                    }
                    Some(SeatRecord::State(state)) if state.kind == StateKind::Claimed => self.claim = Some(*attempt),
                    _ => {}
                },
                LogCall::Close { .. } => {}
            }
            log.call(call);
        }
    }

    fn note(&mut self, now: Time, event: &Event) {
        match event {
            Event::Written { attempt, committed } if self.claim == Some(*attempt) => {
                self.claim = None;
                self.counts.claims += u64::from(*committed);
            }
            Event::Record { record: SeatRecord::State(state), .. } if state.seat == *self.member.seat() => {
                while let Some(&(seq, made)) = self.sent.front().filter(|(seq, _)| *seq <= state.seq) {
                    self.sent.pop_front();
                    if seq == state.seq {
                        self.counts.exchanges.record(now.since(made));
                    }
                }
            }
            _ => {}
        }
    }

    /// Changes the configuration: the capacity, or the weights and rules of lending.
    pub fn change(&mut self, params: GroupParams, policy: &Policy) {
        self.member.change(params, Shares::new(policy));
    }

    /// Names at most half as much load from now on: the log refused a record for its size.
    pub fn shrink_loads(&mut self) {
        self.meter.shrink();
    }

    /// Begins to leave the group. [`serve`](Driver::serve) goes on until [`Member::has_left`].
    pub fn leave(&mut self) {
        self.member.leave();
    }

    pub fn member(&self) -> &Member {
        &self.member
    }

    pub fn counts(&self) -> &DriverCounts {
        &self.counts
    }

    /// The time for which an own state has not been read back; zero if all were.
    pub fn log_behind(&self, now: Time) -> Duration {
        self.sent.front().map_or(Duration::ZERO, |&(_, made)| now.since(made))
    }
}
