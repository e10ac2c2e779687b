//! The decision on a record that was just read.

use std::time::Duration;

use super::Scheduler;
use crate::policy::{CatchUp, Mode};
use crate::reason::{Reason, Rejection};
use crate::units::Time;

/// The scheduler's answer; in shadow mode it is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The record goes now. It was charged; the window holds `in_window` records with it.
    Admit {
        client: u32,
        in_window: u64,
    },
    /// The record waits in its client's queue.
    Delay {
        client: u32,
    },
    Reject(Rejection),
}

impl Scheduler {
    /// Decides on a record. A record that is catching up may wait in reject mode, too. A record goes now only if `fits`
    /// says that its completion fits in the offset map.
    #[inline]
    pub fn decide(&mut self, now: Time, client: u32, catching_up: bool, fits: impl FnOnce() -> bool) -> Decision {
        match self.policy.mode {
            Mode::Shape => self.shape(now, client, fits),
            Mode::Reject if catching_up && self.policy.catch_up == CatchUp::Delay => Decision::Delay { client },
            // Without a limit nothing can be rejected for lack of capacity.
            Mode::Reject if !self.gates.has_limit(now) => Decision::Delay { client },
            Mode::Reject => self.admit_or_reject(now, client, fits),
        }
    }

    /// Shape mode: the record goes now if no record waits that may go and all gates are open.
    #[inline]
    fn shape(&mut self, now: Time, index: u32, fits: impl FnOnce() -> bool) -> Decision {
        let alone = self.clients.get(index).queue.records.is_empty()
            && (self.backlog.fair.is_empty() || self.next_client().is_none());
        if !alone || !self.gates.are_open(now) || !fits() {
            return Decision::Delay { client: index };
        }
        let client = self.clients.get_mut(index);
        if let Err(until) = client.take_own_limit(now) {
            self.block(index, until);
            return Decision::Delay { client: index };
        }
        self.backlog.fair.charge(&mut client.queue);
        self.gates.bucket.charge(now);
        Decision::Admit { client: index, in_window: self.gates.window.add_counted(now, 1) }
    }

    /// Reject mode: the record goes now if it is within its client's grant, or is rejected.
    #[inline]
    fn admit_or_reject(&mut self, now: Time, index: u32, fits: impl FnOnce() -> bool) -> Decision {
        let cycle = self.cycles.number;
        let client = self.clients.get_mut(index);
        if client.has_used_its_allowance(now, cycle) {
            return self.reject(now, index, Reason::OverAllocation);
        }
        if !client.queue.records.is_empty() || !fits() {
            return Decision::Delay { client: index };
        }
        if !self.gates.window_is_open(now) {
            return self.reject(now, index, Reason::CapacityInUse);
        }
        let client = self.clients.get_mut(index);
        if client.take_own_limit(now).is_err() {
            return self.reject(now, index, Reason::ClientLimit);
        }
        client.used.charge(now, cycle);
        Decision::Admit { client: index, in_window: self.gates.window.add_counted(now, 1) }
    }

    #[inline(never)]
    fn reject(&mut self, now: Time, client: u32, reason: Reason) -> Decision {
        let retry_after = match self.open_for(now, client) {
            // An instance that holds no part of the group's capacity does not know when it will.
            Time::NEVER => Duration::ZERO,
            open => open.since(now),
        };
        Decision::Reject(Rejection { reason, retry_after, client: Some(client) })
    }

    /// The time at which the client's grant, the service's window and the client's own limit all have room for its next
    /// record, if no record is admitted and no grant changes until then.
    fn open_for(&mut self, now: Time, index: u32) -> Time {
        let (cycle, cycle_end) = (self.cycles.number, self.cycles.end);
        let client = self.clients.get_mut(index);
        let allowance = client.allowance();
        let within = !client.has_used_its_allowance(now, cycle);
        let granted = if within { now } else { client.used.below_at(now, allowance, cycle_end) };
        let limit = client.limit.as_deref_mut().map_or(now, |limit| limit.next_room(now));
        granted.max(limit).max(self.gates.window_open_at(now))
    }
}
