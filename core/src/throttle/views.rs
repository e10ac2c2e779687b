//! The state of a throttle as the shell shows it.

use std::{sync::Arc, time::Duration};

use strum::VariantNames;

use super::Throttle;
use crate::ledger::{PartitionView, PauseReason};
use crate::scheduler::{Cause, Client, Counts, Forgotten};
use crate::{delays::Histogram, policy::Policy, tracker::Tracker, units::Time};

impl Throttle {
    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        self.scheduler.policy()
    }

    /// The name of a client.
    pub fn client_name(&self, client: u32) -> Option<Arc<str>> {
        self.scheduler.clients().name_of(client)
    }

    /// All clients, in no particular order.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.scheduler.clients().iter().map(|(_, client)| client)
    }

    /// The number of known clients.
    pub fn known(&self) -> usize {
        self.scheduler.clients().len()
    }

    /// The number of pages that the clients are stored in.
    pub fn pages(&self) -> usize {
        self.scheduler.clients().pages()
    }

    /// The clients of a page below [`pages`](Throttle::pages), and the counts of those forgotten out of it.
    pub fn page(&self, page: usize) -> (impl Iterator<Item = &Client>, Forgotten) {
        self.scheduler.clients().page(page)
    }

    /// A client by name.
    pub fn client(&self, name: &str) -> Option<&Client> {
        self.scheduler.clients().find(name).and_then(|client| self.scheduler.clients().lookup(client))
    }

    /// The counts of records without a known client, those of forgotten clients included: decisions that were carried
    /// out, and shadow mode's.
    pub fn unregistered(&self) -> (Counts, Counts) {
        let (mut counts, mut shadow) = self.of_no_client();
        let forgotten = self.scheduler.clients().forgotten();
        counts.merge(&forgotten.counts);
        shadow.merge(&forgotten.shadow);
        (counts, shadow)
    }

    /// The counts of records that had no known client when they came: decisions that were carried out, and shadow
    /// mode's.
    pub fn of_no_client(&self) -> (Counts, Counts) {
        (self.totals.unregistered, self.totals.unregistered_shadow)
    }

    /// The number of the running cycle, from 0.
    pub fn cycle(&self) -> u64 {
        self.scheduler.cycle()
    }

    /// Allocations so far, by [`Cause`].
    pub fn allocations(&self) -> [u64; Cause::VARIANTS.len()] {
        self.scheduler.allocations()
    }

    /// The number of admissions in the window that ends now, and the largest one of any window since the start; both
    /// may count up to half a percent of a cycle too much, never too little.
    pub fn window_admitted(&mut self, now: Time) -> (u64, u64) {
        let now = self.not_before(now);
        let window = self.shadow.as_mut().unwrap_or(self.scheduler.window());
        (window.count(now), self.totals.window_max)
    }

    /// The number of delayed records and their bytes; none in shadow mode.
    pub fn backlog(&self) -> (u64, u64) {
        if self.shadow.is_some() { (0, 0) } else { self.held() }
    }

    /// The time for which the oldest delayed record has waited; zero in shadow mode.
    pub fn oldest_held(&self, now: Time) -> Duration {
        if self.shadow.is_some() { Duration::ZERO } else { self.scheduler.oldest_wait(now) }
    }

    /// The delays of admitted records.
    pub fn delays(&self) -> &Histogram {
        &self.totals.delays
    }

    /// An assigned partition.
    pub fn partition(&self, partition: u32) -> Option<PartitionView> {
        self.ledger.partition(partition)
    }

    /// The completed offsets of an assigned partition.
    pub fn tracker(&self, partition: u32) -> Option<&Tracker> {
        self.ledger.tracker(partition)
    }

    /// The reason for which a partition is paused.
    pub fn paused(&self, partition: u32) -> Option<PauseReason> {
        self.ledger.paused(partition)
    }
}
