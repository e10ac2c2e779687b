//! All counters of one client as one array, so that they are added, subtracted and compared together.

use watermaster_core::delays::CLIENT_BOUNDS;
use watermaster_core::reason::{Reason, ReasonCounts};

use crate::snapshot::{Counts, ServiceSnapshot};

const REASONS: usize = Reason::NAMES.len();
/// The buckets of the delays.
const BUCKETS: usize = CLIENT_BOUNDS.len() + 1;
/// Admitted, delayed, one counter for each reason of a rejection and for each bucket of the delays, and their sum.
const HALF: usize = 2 + REASONS + BUCKETS + 1;

/// The counters of one client, or of several: first those of what was done, then those of shadow mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterSet([u64; 2 * HALF]);

impl Default for CounterSet {
    fn default() -> CounterSet {
        CounterSet([0; 2 * HALF])
    }
}

impl CounterSet {
    pub(super) fn new(done: &Counts, shadow: &Counts) -> CounterSet {
        let mut counters = CounterSet::default();
        for (half, counts) in counters.0.chunks_exact_mut(HALF).zip([done, shadow]) {
            half[0] = counts.admitted;
            half[1] = counts.delayed;
            let rejected = ReasonCounts::iter(&counts.rejected).map(|(_, count)| count);
            let more = rejected.chain(counts.delays.counts).chain([counts.delays.sum]);
            half[2..].iter_mut().zip(more).for_each(|(slot, count)| *slot = count);
        }
        counters
    }

    /// The counts of a snapshot that belong to no known client: anonymous records and forgotten clients.
    pub(super) fn of_no_client(snapshot: &ServiceSnapshot) -> CounterSet {
        let forgotten = snapshot.clients.forgotten();
        let totals = &snapshot.throttle.totals;
        let unregistered = CounterSet::new(&totals.unregistered, &totals.unregistered_shadow);
        unregistered.plus(&CounterSet::new(&forgotten.counts, &forgotten.shadow))
    }

    pub(super) fn done(&self) -> Decisions<'_> {
        Decisions(&self.0[..HALF])
    }

    pub(super) fn shadow(&self) -> Decisions<'_> {
        Decisions(&self.0[HALF..])
    }

    pub(super) fn plus(mut self, other: &CounterSet) -> CounterSet {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_add(b));
        self
    }

    pub(super) fn minus(mut self, other: &CounterSet) -> CounterSet {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_sub(b));
        self
    }

    /// Returns whether any counter is below that of `earlier`.
    pub(super) fn went_back(&self, earlier: &CounterSet) -> bool {
        self.0.iter().zip(earlier.0).any(|(now, then)| *now < then)
    }
}

/// One half of a [`CounterSet`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Decisions<'a>(&'a [u64]);

impl<'a> Decisions<'a> {
    /// Returns admitted and rejected records.
    pub(super) fn admitted_and_rejected(self) -> [u64; 2] {
        [self.0[0], self.rejected_by_reason().iter().sum()]
    }

    pub(super) fn delayed(self) -> u64 {
        self.0[1]
    }

    /// Returns one count for each of [`Reason::NAMES`].
    pub(super) fn rejected_by_reason(self) -> &'a [u64] {
        &self.0[2..2 + REASONS]
    }

    /// Returns the number of delays in each bucket of [`CLIENT_BOUNDS`], and their sum in seconds.
    pub(super) fn delays(self) -> (&'a [u64], f64) {
        let delays = &self.0[2 + REASONS..];
        (&delays[..BUCKETS], delays[BUCKETS] as f64 / 1e6)
    }
}
