//! The state of a throttle as the shell shows it.

use std::time::Duration;

use strum::VariantNames;

use super::{Slot, Throttle, Totals};
use crate::ledger::Ledger;
use crate::policy::Policy;
use crate::scheduler::{Cause, Client, Registry};
use crate::units::Time;

/// The admissions of an instance, as its member of a group asks for them.
pub trait Admissions {
    /// The admissions in the window that ends now, those of [`charge`](Admissions::charge) included.
    fn count(&mut self, now: Time) -> u64;
    /// The times at which admissions leave the window, ascending, with their numbers.
    fn departures(&mut self, now: Time) -> Vec<(Time, u64)>;
    /// The admissions in the window, with the moment until which they were made.
    fn slices(&mut self, now: Time) -> Vec<(Time, u64)>;
    /// All admissions so far, without those of [`charge`](Admissions::charge).
    fn total(&self) -> u64;
    /// Forgets the window: its admissions are charged elsewhere.
    fn forget(&mut self);
    /// Adds admissions of earlier lives and of other seats to the window. They count from `at` on, which is no later
    /// than `now`.
    fn charge(&mut self, now: Time, at: Time, count: u64);
}

impl Admissions for Throttle {
    fn count(&mut self, now: Time) -> u64 {
        self.window_count(now)
    }

    fn departures(&mut self, now: Time) -> Vec<(Time, u64)> {
        let now = self.not_before(now);
        self.scheduler.gates.window.departures(now).collect()
    }

    fn slices(&mut self, now: Time) -> Vec<(Time, u64)> {
        let now = self.not_before(now);
        self.scheduler.gates.window.slices(now).collect()
    }

    fn total(&self) -> u64 {
        self.admitted()
    }

    fn forget(&mut self) {
        self.scheduler.gates.begin_window(&self.scheduler.policy);
    }

    fn charge(&mut self, now: Time, at: Time, count: u64) {
        self.charge_earlier(now, at, count);
    }
}

impl Throttle {
    pub fn policy(&self) -> &Policy {
        &self.scheduler.policy
    }

    pub fn clients(&self) -> &Registry {
        &self.scheduler.clients
    }

    pub fn client(&self, name: &str) -> Option<&Client> {
        self.clients().find(name).and_then(|client| self.clients().lookup(client))
    }

    /// The partitions.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The number of the running cycle, from 0.
    pub fn cycle(&self) -> u64 {
        self.scheduler.cycles.number
    }

    /// Allocations so far, by [`Cause`].
    pub fn allocations(&self) -> [u64; Cause::VARIANTS.len()] {
        self.scheduler.cycles.allocations
    }

    /// The number of admissions in the window that ends now, and the largest one of any window since the start; both
    /// may count up to half a percent of a cycle too much, never too little.
    pub fn window_admitted(&mut self, now: Time) -> (u64, u64) {
        let now = self.not_before(now);
        let count = match &mut self.shadow {
            Some(window) => window.count(now),
            None => self.scheduler.gates.count(now, &self.scheduler.policy),
        };
        (count, self.totals.window_max)
    }

    /// The number of records in the window of the scheduler, which the limit of a group bounds.
    pub fn window_count(&mut self, now: Time) -> u64 {
        let now = self.not_before(now);
        self.scheduler.gates.window.count(now)
    }

    /// All admissions so far, by the gates of the service.
    pub fn admitted(&self) -> u64 {
        self.scheduler.gates.admitted
    }

    /// The number of delayed records and their bytes; none in shadow mode.
    pub fn backlog(&self) -> (u64, u64) {
        if self.shadow.is_some() { (0, 0) } else { self.held() }
    }

    /// The time for which the oldest delayed record has waited; zero in shadow mode.
    pub fn oldest_held(&self, now: Time) -> Duration {
        let oldest = if self.shadow.is_some() { None } else { self.scheduler.backlog.oldest() };
        oldest.map_or(Duration::ZERO, |slot| self.waited(slot, now))
    }

    /// The time for which a client's oldest delayed record has waited; zero in shadow mode.
    pub fn oldest_of(&self, client: &Client, now: Time) -> Duration {
        let oldest = if self.shadow.is_some() { None } else { client.queue.records.head() };
        oldest.map_or(Duration::ZERO, |slot| self.waited(slot, now))
    }

    /// The time for which a delayed record has waited, in its topic and here.
    pub fn waited(&self, slot: Slot, now: Time) -> Duration {
        self.scheduler.backlog.get(slot).waited(now)
    }
}
