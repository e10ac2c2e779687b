//! The decision on a record that was just read.

use std::time::Duration;

use super::Scheduler;
use crate::ledger::TopicWait;
use crate::policy::{CatchUp, Mode};
use crate::reason::{Reason, Rejection};
use crate::units::Time;

/// The scheduler's answer; in shadow mode it is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The record goes now. It was charged; the window holds `in_window` records with it.
    Admit { client: u32, in_window: u64 },
    /// The record waits in its client's queue: a `first` one only for room in the window, before all others.
    Delay { client: u32, first: bool },
    /// The record goes first, too, and counts for no use of its client, which is owed it.
    Owe { client: u32 },
    /// The record goes to the dead-letter topic.
    Reject(Rejection),
}

impl Scheduler {
    /// Decides on a record. A record that is catching up may wait in reject mode, too. A record goes now only if `fits`
    /// says that its completion fits in the offset map.
    #[inline]
    pub fn decide(
        &mut self, now: Time, client: u32, catching_up: bool, wait: TopicWait, fits: impl Fn() -> bool,
    ) -> Decision {
        if wait.unowned_ms > 0 && catching_up && self.is_owed(now, client, wait) {
            return self.go_first(now, client, fits);
        }
        match self.policy.mode {
            Mode::Shape => self.shape(now, client, fits),
            Mode::Reject if catching_up && self.policy.catch_up == CatchUp::Delay => self.catch_up(now, client),
            Mode::Reject if !self.gates.has_limit(now) => self.wait_for_limit(now, client),
            Mode::Reject => self.admit_or_reject(now, client, fits),
        }
    }

    /// Reject mode: delays a record that is catching up.
    #[inline(never)]
    fn catch_up(&mut self, now: Time, client: u32) -> Decision {
        if self.clients.get(client).held {
            return self.reject(now, client, Reason::Held);
        }
        Decision::Delay { client, first: false }
    }

    /// Reject mode without a limit: nothing can be rejected for lack of capacity. A record within its client's default
    /// share counts by its arrival and goes first once there is one.
    fn wait_for_limit(&mut self, now: Time, index: u32) -> Decision {
        let cycle = self.cycles.number;
        let client = self.clients.get_mut(index);
        if client.held {
            return self.reject(now, index, Reason::Held);
        }
        let unlisted = client.unlisted_in();
        let may_be_first = !client.queue.has_others()
            && !client.has_used_its_share(now, cycle)
            && !self.clients.groups.have_used_their_share(unlisted, now, cycle);
        let first = may_be_first && !self.clients.is_limited(index);
        if first {
            self.clients.charge_within_share(index, now, cycle);
        }
        Decision::Delay { client: index, first }
    }

    /// Shape mode: delays a record that comes while others wait to go first. One within its client's share since the
    /// takeover would else wait for all that a flood is owed and then, if its client catches up, for what the client's
    /// share leaves beside the flood.
    #[cold]
    fn wait_behind_first(&mut self, now: Time, client: u32) -> Decision {
        if self.is_owed(now, client, TopicWait::default()) {
            return Decision::Owe { client };
        }
        Decision::Delay { client, first: false }
    }

    /// Sends a record before all others, or has it wait for room in the window.
    #[cold]
    fn go_first(&mut self, now: Time, client: u32, fits: impl FnOnce() -> bool) -> Decision {
        if !self.backlog.first.is_empty() || !self.gates.window_is_open(now) || !fits() {
            return Decision::Owe { client };
        }
        Decision::Admit { client, in_window: self.gates.charge_window(now) }
    }

    /// Shape mode: the record goes now if no record waits that may go and all gates are open.
    #[inline]
    fn shape(&mut self, now: Time, index: u32, fits: impl FnOnce() -> bool) -> Decision {
        if !self.backlog.first.is_empty() {
            return self.wait_behind_first(now, index);
        }
        let queue = &self.clients.get(index).queue;
        let alone = queue.records.is_empty()
            && (queue.group.is_none() || !self.backlog.fair.is_blocked(queue))
            && (self.backlog.fair.is_empty() || self.next_client().is_none());
        if !alone || !self.gates.are_open(now) || !fits() {
            return Decision::Delay { client: index, first: false };
        }
        match self.clients.take_limits(now, index) {
            Ok(client) => self.backlog.fair.charge(&mut client.queue),
            Err(limit) => {
                self.block(index, limit);
                return Decision::Delay { client: index, first: false };
            }
        }
        self.gates.bucket.charge(now);
        Decision::Admit { client: index, in_window: self.gates.charge_window(now) }
    }

    /// Reject mode: a record within its client's grant, or within a part of it that still falls, goes now. If others
    /// borrowed the capacity, one within its client's default share waits until the window has room, before all
    /// borrowers; one of a borrower is rejected.
    ///
    /// Shares add up to the capacity, and use counts by arrival. From the moment at which the first record waits, no
    /// borrowed record is admitted, so after one cycle the window holds only records within shares, which fit. No
    /// record waits for longer than a cycle, and a slice by which the window counts too much. With fixed windows, two
    /// shares can come at an edge: then it is two cycles.
    #[inline]
    fn admit_or_reject(&mut self, now: Time, index: u32, fits: impl Fn() -> bool) -> Decision {
        let cycle = self.cycles.number;
        let client = self.clients.get_mut(index);
        if client.held {
            return self.reject(now, index, Reason::Held);
        }
        if client.has_used_its_allowance(now, cycle) && client.has_used_its_falling_part(now, &self.policy, cycle) {
            return self.reject(now, index, Reason::OverAllocation);
        }
        if client.queue.has_others() {
            return Decision::Delay { client: index, first: false };
        }
        let unlisted = client.unlisted_in();
        let borrows =
            client.has_used_its_share(now, cycle) || self.clients.groups.have_used_their_share(unlisted, now, cycle);
        if borrows && !fits() {
            return Decision::Delay { client: index, first: false };
        }
        let goes = self.backlog.first.is_empty()
            && match borrows {
                true => self.gates.has_room_beside(now, self.usual_of_others(index)),
                false => self.gates.window_is_open(now) && fits(),
            };
        if borrows && !goes {
            return self.reject(now, index, Reason::CapacityInUse);
        }
        if !goes {
            self.clients.charge_within_share(index, now, cycle);
            return Decision::Delay { client: index, first: true };
        }
        match self.clients.take_limits(now, index) {
            Ok(client) => client.used.charge(now, cycle),
            Err(_) => return self.reject(now, index, Reason::ClientLimit),
        }
        if !borrows && let Some(all) = self.clients.groups.unlisted(unlisted) {
            all.used.charge(now, cycle);
        }
        Decision::Admit { client: index, in_window: self.gates.charge_window(now) }
    }

    /// The records that the other clients usually send in a cycle.
    fn usual_of_others(&self, client: u32) -> u64 {
        self.cycles.usual.saturating_sub(self.clients.get(client).usual)
    }

    #[inline(never)]
    fn reject(&mut self, now: Time, client: u32, reason: Reason) -> Decision {
        if !matches!(reason, Reason::ClientLimit | Reason::Held) && !self.gates.may_reject(now) {
            return Decision::Delay { client, first: false };
        }
        let retry_after = match self.open_for(now, client, reason) {
            // An instance that holds no part of the group's capacity does not know when it will.
            Time::NEVER => Duration::ZERO,
            open => open.since(now),
        };
        Decision::Reject(Rejection { reason, retry_after, client: Some(client) })
    }

    /// The time at which the client's grant, its own limit, that of its group and, if no limit is the reason, the
    /// service's window and the shares of all clients that are not configured have room for its next record, if no
    /// record is admitted and no grant changes until then.
    fn open_for(&mut self, now: Time, index: u32, reason: Reason) -> Time {
        let (cycle, cycle_end) = (self.cycles.number, self.cycles.end);
        let client = self.clients.get_mut(index);
        let allowance = client.allowance();
        let borrows = allowance > client.share && client.has_used_its_share(now, cycle);
        let within = !client.has_used_its_allowance(now, cycle);
        let granted = if within { now } else { client.used.below_at(now, allowance, cycle_end) };
        let limit = self.clients.limits_open_at(now, index);
        let shared = self.clients.unlisted_of(index).map_or(now, |all| all.share_opens(now, cycle, cycle_end));
        let window = match reason {
            Reason::ClientLimit | Reason::Held => now,
            _ if borrows => self.gates.lends_at(now, self.backlog.first.len(), self.usual_of_others(index)),
            _ => self.gates.window_open_at(now).max(shared),
        };
        granted.max(limit).max(window)
    }
}
