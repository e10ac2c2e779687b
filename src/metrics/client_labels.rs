//! The clients that have a metric label of their own, and the counters of each label.
//!
//! The number of labels is bounded while clients come and go, yet a counter must never decrease. When a client is
//! forgotten its label keeps its counts (the snapshot adds them to those of forgotten clients), and when the client
//! comes back the label continues from there. `_other` is the snapshot's total minus all labels. It can't decrease
//! either, because a label only grows by records that the total grew by too.
//!
//! The first clients get the labels. Once all labels are in use, ids that are used once and never again must not keep
//! them: a client that keeps sending takes over the label of the unlisted client that has been idle longest. The idle
//! client's counters vanish and their counts join `_other`, which grows by them. Records that the new owner sent before
//! are in `_other` already and stay there, so its own counters begin at 0.

use std::{collections::BTreeMap, sync::Arc};

use watermaster_core::delays::CLIENT_BOUNDS;
use watermaster_core::reason::{Reason, ReasonCounts};

use crate::snapshot::{ClientSnapshot, Counts, Levels, ServiceSnapshot};

/// The label of all clients, or groups of clients, that have none of their own.
pub(super) const OTHER: &str = "_other";

/// The number of cycles that an unlisted client must have been idle for before another client can take over its label.
const IDLE_CYCLES: u64 = 2;

impl Levels {
    /// Adds the figures that metrics show, but for the limit, which belongs to one client.
    fn add(&mut self, other: &Levels) {
        self.wants = self.wants.saturating_add(other.wants);
        self.granted = self.granted.saturating_add(other.granted);
        self.default_share += other.default_share;
        self.admitted_last = self.admitted_last.saturating_add(other.admitted_last);
        self.backlog = self.backlog.saturating_add(other.backlog);
        self.oldest_seconds = self.oldest_seconds.max(other.oldest_seconds);
        self.shadow_backlog = self.shadow_backlog.saturating_add(other.shadow_backlog);
    }
}

/// One label. A client that is forgotten and comes back begins a new life, with counts from 0.
#[derive(Debug, Clone, Copy, Default)]
struct Label {
    /// The counts of earlier lives.
    ended: CounterSet,
    /// The counts of the running life.
    current: CounterSet,
    /// The part of `current` that `_other` already counted when the label was made.
    elsewhere: CounterSet,
    /// 0, and without a limit, while the client is not registered.
    levels: Levels,
    /// The number of the snapshot that `current` was made for.
    made: u64,
    /// Set if the client was configured when last seen: the label of a configured client is never taken over.
    configured: bool,
    /// The number of the cycle in which a count last changed.
    active: u64,
}

impl Label {
    fn total(&self) -> CounterSet {
        self.ended.plus(&self.current.minus(&self.elsewhere))
    }

    /// Takes over the client's counts. If any is below the last one, the client was forgotten and came back in between.
    fn advance(&mut self, counters: CounterSet) {
        if counters.went_back(&self.current) {
            self.end();
        }
        self.current = counters;
    }

    fn end(&mut self) {
        let ended = self.total();
        *self = Label { ended, current: CounterSet::default(), elsewhere: CounterSet::default(), ..*self };
    }

    fn is_idle(&self, cycle: u64) -> bool {
        let waiting = self.levels.backlog + self.levels.shadow_backlog;
        !self.configured && waiting == 0 && cycle.saturating_sub(self.active) >= IDLE_CYCLES
    }
}

/// Returns whether an unlisted client sends in more than one cycle: it wants something, and more of its records arrived
/// than it wanted in this cycle or the last one. An id that is used once never does, even while its record is delayed.
fn keeps_sending(client: &ClientSnapshot) -> bool {
    let arrived = client.counts.admitted + client.counts.rejected.total() + client.levels.backlog;
    client.levels.wants > 0 && arrived > client.levels.wants
}

/// The most labels of configured clients: each has some sixty series, and rules of run time may list 100 000 clients.
const MAX_CONFIGURED: usize = 10_000;

/// The labels of one service.
#[derive(Debug, Default)]
pub(super) struct ClientLabels {
    pub(super) max_labels: usize,
    labels: BTreeMap<Arc<str>, Label>,
    other: Label,
}

impl ClientLabels {
    /// Makes no labels yet: clients get one as they come, up to `max_labels`, and configured ones beyond.
    pub(super) fn new(max_labels: usize) -> ClientLabels {
        ClientLabels { max_labels, ..ClientLabels::default() }
    }

    /// Takes over the figures of a snapshot.
    pub(super) fn update(&mut self, snapshot: &ServiceSnapshot) {
        let cycle = snapshot.figures.cycle;
        for label in self.labels.values_mut() {
            label.levels = Levels::default();
            label.active = label.active.min(cycle);
        }
        self.other.levels = Levels::default();
        let mut total = CounterSet::of_no_client(snapshot);
        let mut present = Vec::with_capacity(self.labels.len());
        // The clients that could take over a label.
        let mut candidates = Vec::new();
        for (made, client) in snapshot.clients.iter_made() {
            let counters = CounterSet::new(&client.counts, &client.shadow);
            total = total.plus(&counters);
            if let Some(label) = self.label_for(client, &counters, cycle) {
                label.levels = client.levels;
                label.configured = client.configured;
                // With very many clients a page may still show a former life after a later life was shown and ended.
                if made >= label.made {
                    label.made = made;
                    label.active = if counters == label.current { label.active } else { cycle };
                    label.advance(counters);
                    present.push(Arc::clone(&client.name));
                }
            } else if &*client.name != OTHER && keeps_sending(client) {
                candidates.push((made, client, counters));
            } else {
                self.other.levels.add(&client.levels);
            }
        }
        self.end_absent(&present);
        self.hand_over(candidates, cycle);
        let labelled = self.labels.values().fold(CounterSet::default(), |sum, label| sum.plus(&label.total()));
        self.other.current = total.minus(&labelled);
    }

    /// Returns every label with its counters and gauges, `_other` last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, CounterSet, Levels)> {
        let labels = self.labels.iter().map(|(name, label)| (&**name, label));
        labels.chain([(OTHER, &self.other)]).map(|(name, label)| (name, label.total(), label.levels))
    }

    fn label_for(&mut self, client: &ClientSnapshot, counters: &CounterSet, cycle: u64) -> Option<&mut Label> {
        if &*client.name == OTHER {
            return None;
        }
        if !self.labels.contains_key(&client.name) {
            let has_room = self.labels.len() < self.max_labels;
            if !has_room && (!client.configured || self.labels.len() >= MAX_CONFIGURED) {
                return None;
            }
            // Without room, the client was perhaps part of `_other` before it was configured. Its counts stay there.
            let elsewhere = if has_room { CounterSet::default() } else { *counters };
            let label = Label { current: elsewhere, elsewhere, active: cycle, ..Label::default() };
            self.labels.insert(Arc::clone(&client.name), label);
        }
        self.labels.get_mut(&client.name)
    }

    /// Ends the labels of forgotten clients: those that are not among the `present` (sorted, as the snapshot is).
    fn end_absent(&mut self, present: &[Arc<str>]) {
        for (name, label) in &mut self.labels {
            if present.binary_search(name).is_err() {
                label.end();
            }
        }
    }

    /// Gives the labels of idle clients to the candidates, that of the longest idle client first. Candidates for which
    /// no label is left count in `_other`, and so do the clients that lost theirs.
    fn hand_over(&mut self, candidates: Vec<(u64, &ClientSnapshot, CounterSet)>, cycle: u64) {
        let mut idle = if candidates.is_empty() { Vec::new() } else { self.idle(cycle) };
        for (made, client, counters) in candidates {
            // Several have to go if there are too many: clients that were configured late have labels beyond
            // `max_labels`, and may no longer be configured.
            while self.labels.len() >= self.max_labels
                && let Some((_, name)) = idle.pop()
            {
                let loser = self.labels.remove(&name).unwrap_or_default();
                self.other.levels.add(&loser.levels);
            }
            if self.labels.len() < self.max_labels {
                let (levels, current, elsewhere) = (client.levels, counters, counters);
                let label = Label { current, elsewhere, levels, made, active: cycle, ..Label::default() };
                self.labels.insert(Arc::clone(&client.name), label);
            } else {
                self.other.levels.add(&client.levels);
            }
        }
    }

    /// Returns the labels of idle clients, that of the longest idle client last.
    fn idle(&self, cycle: u64) -> Vec<(u64, Arc<str>)> {
        let idle = self.labels.iter().filter(|(_, label)| label.is_idle(cycle));
        let mut idle: Vec<_> = idle.map(|(name, label)| (label.active, Arc::clone(name))).collect();
        idle.sort_unstable_by(|a, b| b.cmp(a));
        idle
    }
}

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

#[cfg(test)]
mod tests;
