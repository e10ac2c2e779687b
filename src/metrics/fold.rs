//! The clients that have a metric label of their own, and the counts of each label.
//!
//! The number of labels is bounded while clients come and go, yet a counter must never decrease. When a client is
//! forgotten its label keeps what it counted (the snapshot counts them as a forgotten one's), and when the client
//! comes back the label goes on from there. `_other` is the snapshot's total minus all labels, which can't decrease
//! either, because a label only grows by records that the total grew by too.
//!
//! Labels go to the first clients that come. Once all are given, ids that are used once and never again must not keep
//! them: a client that keeps sending takes over the label of the unlisted client that has been idle longest. The idle
//! client's counters vanish and their counts join `_other`, which grows by them; what the new owner sent before is in
//! `_other` already and stays there, so its own counters begin at 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use watermaster_core::reason::{Reason, ReasonCounts};

use crate::snapshot::{ClientSnapshot, Counts, ServiceSnapshot};

/// The label of all clients that have none of their own.
pub(super) const OTHER: &str = "_other";

/// The number of cycles that an unlisted client must have been idle for before another client can take over its label.
const IDLE_CYCLES: u64 = 2;

const REASONS: usize = Reason::ALL.len();
const HALF: usize = 2 + REASONS;

/// All counters of a client in a row (really done, then shadow; each: admitted, delayed, rejections by reason), so
/// that they are added, subtracted and compared at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally([u64; 2 * HALF]);

impl Tally {
    fn new(done: &Counts, shadow: &Counts) -> Tally {
        let mut tally = Tally::default();
        for (half, counts) in tally.0.chunks_exact_mut(HALF).zip([done, shadow]) {
            half[0] = counts.admitted;
            half[1] = counts.delayed;
            for (slot, (_, count)) in half[2..].iter_mut().zip(ReasonCounts::iter(&counts.rejected)) {
                *slot = count;
            }
        }
        tally
    }

    /// What belongs to nobody who is known.
    fn of_no_client(snapshot: &ServiceSnapshot) -> Tally {
        let forgotten = snapshot.clients.forgotten();
        let strangers = Tally::new(&snapshot.unregistered, &snapshot.unregistered_shadow);
        strangers.plus(&Tally::new(&forgotten.counts, &forgotten.shadow))
    }

    pub(super) fn done(&self) -> TallyHalf<'_> {
        TallyHalf(&self.0[..HALF])
    }

    pub(super) fn shadow(&self) -> TallyHalf<'_> {
        TallyHalf(&self.0[HALF..])
    }

    fn plus(mut self, other: &Tally) -> Tally {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_add(b));
        self
    }

    fn minus(mut self, other: &Tally) -> Tally {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.saturating_sub(b));
        self
    }

    /// Whether any count is below that of `earlier`.
    fn went_back(&self, earlier: &Tally) -> bool {
        self.0.iter().zip(earlier.0).any(|(now, then)| *now < then)
    }
}

/// What was really done, or what would have been.
#[derive(Debug, Clone, Copy)]
pub(super) struct TallyHalf<'a>(&'a [u64]);

impl TallyHalf<'_> {
    pub(super) fn admitted(&self) -> u64 {
        self.0[0]
    }

    pub(super) fn delayed(&self) -> u64 {
        self.0[1]
    }

    pub(super) fn rejected(&self) -> u64 {
        self.0[2..].iter().sum()
    }

    /// One count for each of [`Reason::ALL`].
    pub(super) fn reasons(&self) -> &[u64] {
        &self.0[2..]
    }
}

/// What a label's gauges show; all 0, and without a limit, while its client is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Levels {
    pub(super) wants: u64,
    pub(super) granted: u64,
    pub(super) default_share: f64,
    /// Its own; nobody's of those that share a label.
    pub(super) limit: Option<u64>,
    pub(super) backlog: u64,
    pub(super) shadow_backlog: u64,
}

impl Levels {
    fn of(client: &ClientSnapshot) -> Levels {
        Levels {
            wants: client.wants,
            granted: client.granted,
            default_share: client.default_share,
            limit: client.limit,
            backlog: client.backlog,
            shadow_backlog: client.shadow_backlog,
        }
    }

    fn add(&mut self, client: &ClientSnapshot) {
        self.merge(&Levels::of(client));
    }

    /// Adds everything but the limit, which belongs to one client.
    fn merge(&mut self, other: &Levels) {
        self.wants = self.wants.saturating_add(other.wants);
        self.granted = self.granted.saturating_add(other.granted);
        self.default_share += other.default_share;
        self.backlog = self.backlog.saturating_add(other.backlog);
        self.shadow_backlog = self.shadow_backlog.saturating_add(other.shadow_backlog);
    }
}

/// One label. `ended` holds earlier lives of its client, `current` the running one, of which `elsewhere` was already
/// counted as `_other` when the label was made.
#[derive(Debug, Clone, Copy, Default)]
struct Label {
    ended: Tally,
    current: Tally,
    elsewhere: Tally,
    levels: Levels,
    /// The number of the snapshot that `current` was made for.
    made: u64,
    /// Whether the client was configured when last seen: its label is never taken over.
    configured: bool,
    /// The number of the cycle in which the client last counted something.
    active: u64,
}

impl Label {
    fn total(&self) -> Tally {
        self.ended.plus(&self.current.minus(&self.elsewhere))
    }

    /// The client counts `tally` now. If that is less than before, it was forgotten and came back in between.
    fn advance(&mut self, tally: Tally) {
        if tally.went_back(&self.current) {
            self.end();
        }
        self.current = tally;
    }

    fn end(&mut self) {
        let ended = self.total();
        *self = Label { ended, current: Tally::default(), elsewhere: Tally::default(), ..*self };
    }

    fn is_idle(&self, cycle: u64) -> bool {
        let waiting = self.levels.backlog + self.levels.shadow_backlog;
        !self.configured && waiting == 0 && cycle.saturating_sub(self.active) >= IDLE_CYCLES
    }
}

/// A client that could take over a label, with its figures in the newest snapshot.
struct Candidate<'a> {
    client: &'a ClientSnapshot,
    tally: Tally,
    made: u64,
}

/// Whether an unlisted client sends in more than one cycle: it wants something, and more of its records arrived than it
/// wanted in this cycle or the last one. An id that is used once never does, even while its record is delayed.
fn keeps_sending(client: &ClientSnapshot) -> bool {
    let arrived = client.counts.admitted + client.counts.rejected.iter().map(|(_, n)| n).sum::<u64>() + client.backlog;
    client.wants > 0 && arrived > client.wants
}

/// The labels of one service.
#[derive(Debug)]
pub(super) struct Fold {
    max_labels: usize,
    labels: BTreeMap<Arc<str>, Label>,
    other: Label,
}

impl Fold {
    /// Labels for the `configured` clients, and for others as they come while there are fewer than `max_labels`.
    pub(super) fn new(max_labels: usize, configured: impl IntoIterator<Item = Arc<str>>) -> Fold {
        let names = configured.into_iter().filter(|name| &**name != OTHER);
        let labels = names.map(|name| (name, Label { configured: true, ..Label::default() }));
        Fold { max_labels, labels: labels.collect(), other: Label::default() }
    }

    /// Takes over what the snapshot shows.
    pub(super) fn update(&mut self, snapshot: &ServiceSnapshot) {
        let cycle = snapshot.cycle;
        for label in self.labels.values_mut() {
            label.levels = Levels::default();
            label.active = label.active.min(cycle);
        }
        self.other.levels = Levels::default();
        let mut total = Tally::of_no_client(snapshot);
        let mut present = Vec::with_capacity(self.labels.len());
        let mut candidates = Vec::new();
        for (made, client) in snapshot.clients.iter_made() {
            let tally = Tally::new(&client.counts, &client.shadow);
            total = total.plus(&tally);
            if let Some(label) = self.label_for(client, &tally, cycle) {
                label.levels = Levels::of(client);
                label.configured = client.configured;
                // A life that is over stands in its old page until that is renewed, longer perhaps than the one that
                // came after it.
                if made >= label.made {
                    label.made = made;
                    label.active = if tally == label.current { label.active } else { cycle };
                    label.advance(tally);
                    present.push(Arc::clone(&client.name));
                }
            } else if &*client.name != OTHER && keeps_sending(client) {
                candidates.push(Candidate { client, tally, made });
            } else {
                self.other.levels.add(client);
            }
        }
        self.end_absent(&present);
        self.hand_over(candidates, cycle);
        let labelled = self.labels.values().fold(Tally::default(), |sum, label| sum.plus(&label.total()));
        self.other.current = total.minus(&labelled);
    }

    /// Every label with its counts and levels, `_other` last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Tally, Levels)> {
        let labels = self.labels.iter().map(|(name, label)| (&**name, label));
        labels.chain([(OTHER, &self.other)]).map(|(name, label)| (name, label.total(), label.levels))
    }

    fn label_for(&mut self, client: &ClientSnapshot, tally: &Tally, cycle: u64) -> Option<&mut Label> {
        if &*client.name == OTHER {
            return None;
        }
        if !self.labels.contains_key(&client.name) {
            let has_room = self.labels.len() < self.max_labels;
            if !has_room && !client.configured {
                return None;
            }
            // Without room it may have been among the others before it was configured; what it counted stays there.
            let elsewhere = if has_room { Tally::default() } else { *tally };
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
    /// none is left count in `_other`, and so do the clients that lost theirs.
    fn hand_over(&mut self, candidates: Vec<Candidate<'_>>, cycle: u64) {
        let mut idle = if candidates.is_empty() { Vec::new() } else { self.idle(cycle) };
        for Candidate { client, tally, made } in candidates {
            if self.make_room(&mut idle) {
                let levels = Levels::of(client);
                let label = Label { current: tally, elsewhere: tally, levels, made, active: cycle, ..Label::default() };
                self.labels.insert(Arc::clone(&client.name), label);
            } else {
                self.other.levels.add(client);
            }
        }
    }

    /// Takes labels from `idle` clients until there is room for another one. More than one goes if there are too many:
    /// clients that were configured late have labels beyond `max_labels`, and may be configured no longer.
    fn make_room(&mut self, idle: &mut Vec<(u64, Arc<str>)>) -> bool {
        while let Some((_, name)) = idle.pop() {
            if let Some(loser) = self.labels.remove(&name) {
                self.other.levels.merge(&loser.levels);
            }
            if self.labels.len() < self.max_labels {
                return true;
            }
        }
        false
    }

    /// The labels of idle clients, that of the longest idle client last.
    fn idle(&self, cycle: u64) -> Vec<(u64, Arc<str>)> {
        let idle = self.labels.iter().filter(|(_, label)| label.is_idle(cycle));
        let mut idle: Vec<_> = idle.map(|(name, label)| (label.active, Arc::clone(name))).collect();
        idle.sort_unstable_by(|a, b| b.cmp(a));
        idle
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use watermaster_core::scheduler::Forgotten;

    use super::*;
    use crate::snapshot::{Page, Renewal};

    /// What can happen to a service between two scrapes.
    #[derive(Debug, Clone)]
    enum Step {
        Admit(u8, u8),
        Delay(u8, u8),
        Reject(u8, usize),
        Shadow(u8, usize),
        Anonymous,
        Forget(u8),
        Configure(u8),
        /// The number of cycles that pass.
        Pass(u8),
        Publish,
    }

    fn step() -> impl Strategy<Value = Step> {
        let client = 0..8_u8;
        prop_oneof![
            4 => (client.clone(), 1..9_u8).prop_map(|(c, n)| Step::Admit(c, n)),
            1 => (client.clone(), 1..9_u8).prop_map(|(c, n)| Step::Delay(c, n)),
            2 => (client.clone(), 0..REASONS).prop_map(|(c, r)| Step::Reject(c, r)),
            1 => (client.clone(), 0..REASONS).prop_map(|(c, r)| Step::Shadow(c, r)),
            1 => Just(Step::Anonymous),
            2 => client.clone().prop_map(Step::Forget),
            1 => client.prop_map(Step::Configure),
            2 => (1..4_u8).prop_map(Step::Pass),
            3 => Just(Step::Publish),
        ]
    }

    /// A registry as the core keeps it, shown a part at a time: what was decided for a forgotten client stays in its
    /// page.
    struct Registry {
        slots: [Option<(u8, ClientSnapshot)>; 8],
        free: Vec<usize>,
        forgotten: [Forgotten; 4],
        unregistered: Counts,
        ever_configured: BTreeSet<u8>,
        cycle: u64,
        shown: Renewal,
    }

    impl Default for Registry {
        fn default() -> Registry {
            Registry {
                slots: [const { None }; 8],
                free: (0..8).rev().collect(),
                forgotten: Default::default(),
                unregistered: Counts::default(),
                ever_configured: BTreeSet::new(),
                cycle: 0,
                shown: Renewal::default(),
            }
        }
    }

    impl Registry {
        fn find(&self, id: u8) -> Option<usize> {
            self.slots.iter().position(|slot| slot.as_ref().is_some_and(|(of, _)| *of == id))
        }

        fn client(&mut self, id: u8) -> &mut ClientSnapshot {
            let slot = self.find(id).unwrap_or_else(|| self.free.pop().unwrap());
            // Client 0 is configured, client 7 has the name of the fold itself.
            let name = if id == 7 { OTHER.into() } else { format!("c{id}").into() };
            let (configured, granted) = (id == 0, u64::from(id) + 1);
            // With wants of 1, each client keeps sending from its second record on.
            let client = ClientSnapshot { name, configured, granted, wants: 1, ..Default::default() };
            &mut self.slots[slot].get_or_insert((id, client)).1
        }

        fn apply(&mut self, step: &Step) {
            match *step {
                Step::Admit(c, n) => self.client(c).counts.admitted += u64::from(n),
                Step::Delay(c, n) => self.client(c).counts.delayed += u64::from(n),
                Step::Reject(c, r) => self.client(c).counts.rejected.add(Reason::ALL[r]),
                Step::Shadow(c, r) => self.client(c).shadow.rejected.add(Reason::ALL[r]),
                Step::Anonymous => self.unregistered.rejected.add(Reason::Anonymous),
                Step::Configure(c) => {
                    self.client(c).configured = true;
                    self.ever_configured.insert(c);
                }
                Step::Pass(cycles) => self.cycle += u64::from(cycles),
                Step::Publish => {}
                Step::Forget(c) => {
                    let Some(slot) = self.find(c) else { return };
                    let (_, gone) = self.slots[slot].take().unwrap();
                    self.forgotten[slot / 2].merge(&Forgotten { counts: gone.counts, shadow: gone.shadow });
                    self.free.push(slot);
                }
            }
        }

        fn page(&self, number: usize) -> Page {
            let clients = self.slots[2 * number..][..2].iter().flatten().map(|(_, client)| client.clone());
            Page::new(clients.collect(), self.forgotten[number])
        }

        /// The truth.
        fn decided(&self) -> Tally {
            let all: Vec<Page> = (0..4).map(|number| self.page(number)).collect();
            let clients = Renewal::default().renew_some(8, 4, [4, 4], |number| all[number].clone());
            total(&ServiceSnapshot { clients, unregistered: self.unregistered, ..Default::default() })
        }

        /// What is shown: `renewed` pages of four as they are now, and the first one.
        fn snapshot(&mut self, renewed: usize) -> ServiceSnapshot {
            let mut shown = std::mem::take(&mut self.shown);
            let clients = shown.renew_some(8 - self.free.len(), 4, [1, 1 + renewed], |number| self.page(number));
            self.shown = shown;
            ServiceSnapshot { clients, unregistered: self.unregistered, cycle: self.cycle, ..Default::default() }
        }
    }

    fn total(snapshot: &ServiceSnapshot) -> Tally {
        let clients = snapshot.clients.iter().map(|c| Tally::new(&c.counts, &c.shadow));
        clients.fold(Tally::of_no_client(snapshot), |sum, t| sum.plus(&t))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn counters_never_decrease_and_add_up_whoever_comes_and_goes(
            max_labels in 0..5_usize,
            renewed in 1..4_usize,
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut registry = Registry { ever_configured: [0].into(), ..Default::default() };
            let mut fold = Fold::new(max_labels, ["c0".into()]);
            let mut before: BTreeMap<String, Tally> = BTreeMap::new();
            for step in &steps {
                registry.apply(step);
                if !matches!(step, Step::Publish) {
                    continue;
                }
                let snapshot = registry.snapshot(renewed);
                fold.update(&snapshot);
                prop_assert!(!registry.decided().went_back(&total(&snapshot)), "more than was decided");
                if renewed == 3 {
                    prop_assert_eq!(total(&snapshot), registry.decided());
                }
                let now: BTreeMap<String, Tally> = fold.iter().map(|(name, t, _)| (name.into(), t)).collect();
                for (name, tally) in &before {
                    // The counters of a client that lost its label vanish.
                    let decreased = now.get(name).is_some_and(|now| now.went_back(tally));
                    prop_assert!(!decreased, "{name} decreased");
                }
                for id in &registry.ever_configured {
                    let name = format!("c{id}");
                    let is_configured = |client: &ClientSnapshot| client.configured && *client.name == *name;
                    let shown = snapshot.clients.iter().any(is_configured);
                    prop_assert!(!shown || now.contains_key(&name), "{name} is configured");
                }
                let sum = now.values().fold(Tally::default(), |sum, t| sum.plus(t));
                prop_assert_eq!(sum, total(&snapshot));
                let granted: u64 = fold.iter().map(|(_, _, levels)| levels.granted).sum();
                prop_assert_eq!(granted, snapshot.clients.iter().map(|c| c.granted).sum::<u64>());
                prop_assert!(now.len() <= max_labels + registry.ever_configured.len() + 1);
                before = now;
            }
        }
    }

    #[test]
    fn a_client_that_comes_back_goes_on_where_it_was() {
        let mut registry = Registry::default();
        let mut fold = Fold::new(9, []);
        let count = |fold: &Fold, name: &str| {
            fold.iter().find(|(label, ..)| *label == name).map(|(_, tally, _)| tally.done().admitted())
        };
        let mut publish = |steps: &[Step], fold: &mut Fold| {
            steps.iter().for_each(|step| registry.apply(step));
            fold.update(&registry.snapshot(3));
        };
        publish(&[Step::Admit(1, 5)], &mut fold);
        assert_eq!((count(&fold, "c1"), count(&fold, OTHER)), (Some(5), Some(0)));
        publish(&[Step::Forget(1)], &mut fold);
        assert_eq!((count(&fold, "c1"), count(&fold, OTHER)), (Some(5), Some(0)));
        publish(&[Step::Admit(1, 7)], &mut fold);
        assert_eq!((count(&fold, "c1"), count(&fold, OTHER)), (Some(12), Some(0)));
    }

    fn sends(name: &str, admitted: u64, wants: u64) -> ClientSnapshot {
        let counts = Counts { admitted, ..Default::default() };
        ClientSnapshot { name: name.into(), counts, wants, ..Default::default() }
    }

    fn labels(fold: &Fold) -> BTreeMap<String, u64> {
        fold.iter().map(|(name, tally, _)| (name.to_owned(), tally.done().admitted())).collect()
    }

    /// Once, ids that came first kept their labels for the life of the process, and a client that came later had none.
    #[test]
    fn ids_that_are_used_once_do_not_keep_their_labels() {
        let mut fold = Fold::new(200, ["configured".into()]);
        let mut before = BTreeMap::new();
        for cycle in 0..6 {
            let wants = u64::from(cycle < 2);
            let mut clients: Vec<_> = (0..1_000).map(|id| sends(&format!("id-{id:03}"), 1, wants)).collect();
            clients.push(ClientSnapshot { configured: true, ..sends("configured", 0, 0) });
            // Five records a cycle, from the cycle after the ids on.
            clients.extend((cycle > 0).then(|| sends("real", 5 * cycle, 5)));
            fold.update(&ServiceSnapshot { clients: clients.into(), cycle, ..Default::default() });
            let now = labels(&fold);
            assert_eq!(now.len(), 201);
            assert_eq!(now.values().sum::<u64>(), 1_000 + 5 * cycle);
            assert!(now[OTHER] >= before.get(OTHER).copied().unwrap_or(0));
            before = now;
        }
        // In cycle 2 the first ids are idle for two cycles, and it has sent in two: from then on it counts by itself.
        assert_eq!(before.get("real"), Some(&15));
        assert!(before.contains_key("configured"), "a configured client keeps its label however idle it is");
        assert_eq!((before.contains_key("id-000"), before.contains_key("id-001")), (false, true));
    }

    #[test]
    fn a_label_is_kept_while_its_client_waits_or_comes_back_in_time() {
        let mut fold = Fold::new(2, []);
        for cycle in 0..10 {
            let delayed = ClientSnapshot { backlog: 1, ..sends("delayed", 0, 1) };
            let seldom = sends("seldom", 1 + cycle / 2, 1);
            let clients = vec![delayed, sends("real", 5 * cycle, 5), seldom];
            // The first two to come are the owners.
            let clients = if cycle == 0 { vec![clients[0].clone(), clients[2].clone()] } else { clients };
            fold.update(&ServiceSnapshot { clients: clients.into(), cycle, ..Default::default() });
            assert!(!labels(&fold).contains_key("real"), "cycle {cycle}");
        }
    }
}
