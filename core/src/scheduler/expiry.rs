//! Records that have waited for too long: for as long as they may, or for longer than shares explain.

use super::{Scheduler, backlog::Backlog, client::Client};
use crate::policy::{Mode, Scope, Window};
use crate::{linked_list::LinkedList, slot::Slot, units::Time, window::slice_width};

/// The most expired records that are looked at for one that may complete: each is a step in memory.
const LOOKED_AT: usize = 1_000;

/// Returns whether a rule expires the oldest delayed record of a client.
fn has_expired(backlog: &Backlog, client: &Client) -> bool {
    client.queue.records.head().is_some_and(|head| backlog.get(head).since < client.expires_before)
}

impl Scheduler {
    /// Finds the clients with records that a rule expires.
    pub(super) fn find_expiring(&mut self) {
        let with_some = self.clients.iter().filter(|(_, client)| has_expired(&self.backlog, client));
        self.expiring = with_some.map(|(index, _)| index).collect();
        // Other rules may give those that go first another longest wait.
        self.first_expires = Time::ZERO;
        let has_own_delays = self.backlog.in_turn().skip(1).any(|list| !list.is_empty());
        let has_others = has_own_delays || !self.backlog.first.is_empty();
        self.may_expire = self.policy.max_delay.is_some() || has_others || !self.expiring.is_empty();
    }

    /// The record that has waited for the window longest, if that is longer than shares can explain: then the part of
    /// the group's capacity that this instance holds has become smaller than its clients' shares. Those that may not
    /// complete stay for one commit interval.
    #[inline]
    pub fn overdue(&mut self, now: Time, may_complete: impl Fn(Slot) -> bool) -> Option<Slot> {
        let first = self.backlog.first.head()?;
        let is_due = self.overdue_after <= now && self.overdue_at(first) <= now && self.gates.may_reject(now);
        if is_due { self.find_overdue(now, may_complete) } else { None }
    }

    #[cold]
    fn find_overdue(&mut self, now: Time, may_complete: impl Fn(Slot) -> bool) -> Option<Slot> {
        let found =
            self.backlog.first().take_while(|&slot| self.overdue_at(slot) <= now).find(|&slot| may_complete(slot));
        if found.is_none() {
            self.overdue_after = now + self.policy.commit_interval;
        }
        found
    }

    /// Outside a group, the capacity may have been lowered, or the service had no room: the record waits on.
    pub(super) fn overdue_at(&self, slot: Slot) -> Time {
        let is_rejected = self.policy.mode == Mode::Reject && self.policy.scope == Scope::Group;
        if is_rejected { self.explained_until(slot) } else { Time::NEVER }
    }

    /// The time until which shares explain the wait of a record that goes first (reject mode).
    fn explained_until(&self, slot: Slot) -> Time {
        let window = self.policy.window_length();
        // Around an edge of fixed windows, clients may send twice their shares.
        let most = if self.policy.window == Window::Fixed { window * 2 } else { window };
        // Records that clients are owed come on top of those within their shares: at most those of a cycle.
        let most = if self.backlog.owes { most + window } else { most };
        // Without a limit a record waits for an instance's part of the capacity, however small its client's use is.
        self.backlog.get(slot).since.max(self.gates.limited_since) + most + slice_width(window) * 2
    }

    /// A delayed record that has waited for as long as it may, or that a rule expires. Those that may not complete stay
    /// for one commit interval: their completion does not fit in the offset map, which older records of their partition
    /// that may wait for longer hold back.
    #[inline]
    pub fn expired(&mut self, now: Time, may_complete: impl Fn(Slot) -> bool) -> Option<Slot> {
        if self.may_expire { self.find_expired(now, may_complete) } else { None }
    }

    fn find_expired(&mut self, now: Time, may_complete: impl Fn(Slot) -> bool) -> Option<Slot> {
        if self.expire_after > now {
            return None;
        }
        // Clients of which a rule expires no more records, at the end of the list.
        let Scheduler { expiring, clients, backlog, .. } = self;
        let has_some = |client: &Client| has_expired(backlog, client);
        while expiring.pop_if(|client| !clients.lookup(*client).is_some_and(has_some)).is_some() {}
        self.find_first_expiry(now);
        if self.expiring.is_empty() && self.next_deadline() > now {
            return None;
        }
        let is_due = |slot: &Slot| self.deadline(*slot) <= now;
        let by_rule = self.expiring.iter().filter_map(|&client| self.clients.lookup(client)).flat_map(|client| {
            let records = self.backlog.records_of(&client.queue);
            records.take_while(|&slot| self.backlog.get(slot).since < client.expires_before)
        });
        let of_first = self.backlog.first().take(if self.first_expires <= now { usize::MAX } else { 0 }).filter(is_due);
        let of_others = self.backlog.in_turn().flat_map(|list| self.backlog.in_list(list).take_while(is_due));
        let found = by_rule.chain(of_first).chain(of_others).take(LOOKED_AT).find(|&slot| may_complete(slot));
        if found.is_none() {
            self.expire_after = now + self.policy.commit_interval;
        }
        found
    }

    /// Finds the time anew before which no record that goes first expires, once it has come and the oldest one stays.
    fn find_first_expiry(&mut self, now: Time) {
        if self.first_expires > now || self.backlog.first.head().is_some_and(|head| self.deadline(head) <= now) {
            return;
        }
        let deadlines = self.backlog.first().map(|slot| self.deadline(slot));
        self.first_expires = deadlines.min().unwrap_or(Time::NEVER);
    }

    /// No delayed record will have waited for as long as it may before this time.
    #[inline]
    pub(super) fn next_deadline(&self) -> Time {
        let heads = self.backlog.in_turn().filter_map(LinkedList::head).map(|head| self.deadline(head));
        heads.fold(self.first_expires, Time::min)
    }

    /// The time at which a delayed record has waited for as long as it may. In mode reject a record that goes first is
    /// within its client's share: it stays for as long as shares can explain its wait.
    pub(super) fn deadline(&self, slot: Slot) -> Time {
        let record = self.backlog.get(slot);
        let delay = self.backlog.own_delay(record).or(self.policy.max_delay);
        let deadline = delay.map_or(Time::NEVER, |delay| record.since + delay);
        if record.first && self.policy.mode == Mode::Reject {
            deadline.max(self.explained_until(slot))
        } else {
            deadline
        }
    }
}
