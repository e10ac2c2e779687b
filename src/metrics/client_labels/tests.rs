use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use watermaster_core::{reason::Reason, scheduler::Forgotten};

use super::*;
use crate::snapshot::{Clients, Counts, Page, SnapshotBuilder};

/// An event of a service between two scrapes.
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
        2 => (client.clone(), 0..Reason::ALL.len()).prop_map(|(c, r)| Step::Reject(c, r)),
        1 => (client.clone(), 0..Reason::ALL.len()).prop_map(|(c, r)| Step::Shadow(c, r)),
        1 => Just(Step::Anonymous),
        2 => client.clone().prop_map(Step::Forget),
        1 => client.prop_map(Step::Configure),
        2 => (1..4_u8).prop_map(Step::Pass),
        3 => Just(Step::Publish),
    ]
}

/// A registry like the core's, shown a part at a time: the counts of an evicted client stay in its page.
struct Registry {
    slots: [Option<(u8, ClientSnapshot)>; 8],
    free: Vec<usize>,
    forgotten: [Forgotten; 4],
    unregistered: Counts,
    ever_configured: BTreeSet<u8>,
    cycle: u64,
    shown: SnapshotBuilder,
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
            shown: SnapshotBuilder::default(),
        }
    }
}

impl Registry {
    fn find(&self, id: u8) -> Option<usize> {
        self.slots.iter().position(|slot| slot.as_ref().is_some_and(|(of, _)| *of == id))
    }

    fn client(&mut self, id: u8) -> &mut ClientSnapshot {
        let slot = self.find(id).unwrap_or_else(|| self.free.pop().unwrap());
        // Client 0 is configured, client 7 has the name of the shared label.
        let name = if id == 7 { OTHER.into() } else { format!("c{id}").into() };
        let (configured, granted) = (id == 0, u64::from(id) + 1);
        // With wants of 1, each client keeps sending from its second record on.
        let levels = Levels { granted, wants: 1, ..Default::default() };
        let client = ClientSnapshot { name, configured, levels, ..Default::default() };
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

    /// Returns all counts as they are now.
    fn decided(&self) -> CounterSet {
        let all: Vec<Page> = (0..4).map(|number| self.page(number)).collect();
        let clients = SnapshotBuilder::default().build_some(8, 4, [4, 4], |number| all[number].clone());
        total(&snapshot_of(clients, self.unregistered, self.cycle))
    }

    /// Returns a snapshot in which the first of four pages and `renewed` others are as they are now.
    fn snapshot(&mut self, renewed: usize) -> ServiceSnapshot {
        let mut shown = std::mem::take(&mut self.shown);
        let clients = shown.build_some(8 - self.free.len(), 4, [1, 1 + renewed], |number| self.page(number));
        self.shown = shown;
        snapshot_of(clients, self.unregistered, self.cycle)
    }
}

fn snapshot_of(clients: Clients, unregistered: Counts, cycle: u64) -> ServiceSnapshot {
    let mut snapshot = ServiceSnapshot { clients, ..ServiceSnapshot::default() };
    snapshot.throttle.totals.unregistered = unregistered;
    snapshot.figures.cycle = cycle;
    snapshot
}

fn total(snapshot: &ServiceSnapshot) -> CounterSet {
    let clients = snapshot.clients.iter().map(|c| CounterSet::new(&c.counts, &c.shadow));
    clients.fold(CounterSet::of_no_client(snapshot), |sum, t| sum.plus(&t))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn counters_never_decrease_and_always_add_up(
        max_labels in 0..5_usize,
        renewed in 1..4_usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut registry = Registry { ever_configured: [0].into(), ..Default::default() };
        let mut labels = ClientLabels::new(max_labels);
        let mut before: BTreeMap<String, CounterSet> = BTreeMap::new();
        for step in &steps {
            registry.apply(step);
            if !matches!(step, Step::Publish) {
                continue;
            }
            let snapshot = registry.snapshot(renewed);
            labels.update(&snapshot);
            prop_assert!(!registry.decided().went_back(&total(&snapshot)), "more than the decisions");
            if renewed == 3 {
                prop_assert_eq!(total(&snapshot), registry.decided());
            }
            let now: BTreeMap<String, CounterSet> = labels.iter().map(|(name, t, _)| (name.into(), t)).collect();
            for (name, counters) in &before {
                // The counters of a client that lost its label vanish.
                let decreased = now.get(name).is_some_and(|now| now.went_back(counters));
                prop_assert!(!decreased, "{name} decreased");
            }
            for id in &registry.ever_configured {
                let name = format!("c{id}");
                let is_configured = |client: &ClientSnapshot| client.configured && *client.name == *name;
                let shown = snapshot.clients.iter().any(is_configured);
                prop_assert!(!shown || now.contains_key(&name), "{name} is configured, but has no label");
            }
            let sum = now.values().fold(CounterSet::default(), |sum, t| sum.plus(t));
            prop_assert_eq!(sum, total(&snapshot));
            let granted: u64 = labels.iter().map(|(_, _, levels)| levels.granted).sum();
            prop_assert_eq!(granted, snapshot.clients.iter().map(|c| c.levels.granted).sum::<u64>());
            prop_assert!(now.len() <= max_labels + registry.ever_configured.len() + 1);
            before = now;
        }
    }
}

/// The fault: a hundred rules of run time made a page of six million lines.
#[test]
fn very_many_configured_clients_share_a_label() {
    let client = |id| ClientSnapshot { name: format!("c{id:05}").into(), configured: true, ..Default::default() };
    let clients = (0..MAX_CONFIGURED + 5).map(client).collect();
    let mut labels = ClientLabels::new(200);
    labels.update(&ServiceSnapshot { clients, ..ServiceSnapshot::default() });
    assert_eq!(labels.iter().count(), MAX_CONFIGURED + 1);
}

#[test]
fn a_client_that_returns_continues_its_counters() {
    let mut registry = Registry::default();
    let mut labels = ClientLabels::new(9);
    let count = |labels: &ClientLabels, name: &str| {
        labels
            .iter()
            .find(|(label, ..)| *label == name)
            .map(|(_, counters, _)| counters.done().admitted_and_rejected()[0])
    };
    let mut publish = |steps: &[Step], labels: &mut ClientLabels| {
        steps.iter().for_each(|step| registry.apply(step));
        labels.update(&registry.snapshot(3));
    };
    publish(&[Step::Admit(1, 5)], &mut labels);
    assert_eq!((count(&labels, "c1"), count(&labels, OTHER)), (Some(5), Some(0)));
    publish(&[Step::Forget(1)], &mut labels);
    assert_eq!((count(&labels, "c1"), count(&labels, OTHER)), (Some(5), Some(0)));
    publish(&[Step::Admit(1, 7)], &mut labels);
    assert_eq!((count(&labels, "c1"), count(&labels, OTHER)), (Some(12), Some(0)));
}

fn sends(name: &str, admitted: u64, wants: u64) -> ClientSnapshot {
    let counts = Counts { admitted, ..Default::default() };
    let levels = Levels { wants, ..Default::default() };
    ClientSnapshot { name: name.into(), counts, levels, ..Default::default() }
}

fn admitted(labels: &ClientLabels) -> BTreeMap<String, u64> {
    labels.iter().map(|(name, counters, _)| (name.to_owned(), counters.done().admitted_and_rejected()[0])).collect()
}

/// The bug: the first ids kept their labels for the life of the process, and a later client got none.
#[test]
fn ids_that_are_used_once_do_not_keep_their_labels() {
    let mut labels = ClientLabels::new(200);
    let mut before = BTreeMap::new();
    for cycle in 0..6 {
        let wants = u64::from(cycle < 2);
        let mut clients: Vec<_> = (0..1_000).map(|id| sends(&format!("id-{id:03}"), 1, wants)).collect();
        clients.push(ClientSnapshot { configured: true, ..sends("configured", 0, 0) });
        // `real` sends five records a cycle, from the cycle after the ids on.
        clients.extend((cycle > 0).then(|| sends("real", 5 * cycle, 5)));
        labels.update(&snapshot_of(clients.into_iter().collect(), Counts::default(), cycle));
        let now = admitted(&labels);
        assert_eq!(now.len(), 201);
        assert_eq!(now.values().sum::<u64>(), 1_000 + 5 * cycle);
        assert!(now[OTHER] >= before.get(OTHER).copied().unwrap_or(0));
        before = now;
    }
    // In cycle 2 the first ids have been idle for two cycles and `real` has sent in two: it gets a label.
    assert_eq!(before.get("real"), Some(&15));
    assert!(before.contains_key("configured"), "an idle configured client must keep its label");
    assert_eq!((before.contains_key("id-000"), before.contains_key("id-001")), (false, true));
}

#[test]
fn a_label_is_kept_while_its_client_has_a_backlog_or_returns_in_time() {
    let mut labels = ClientLabels::new(2);
    for cycle in 0..10 {
        let mut delayed = sends("delayed", 0, 1);
        delayed.levels.backlog = 1;
        let seldom = sends("seldom", 1 + cycle / 2, 1);
        let clients = vec![delayed, sends("real", 5 * cycle, 5), seldom];
        // The first two clients get the labels.
        let clients = if cycle == 0 { vec![clients[0].clone(), clients[2].clone()] } else { clients };
        labels.update(&snapshot_of(clients.into_iter().collect(), Counts::default(), cycle));
        assert!(!admitted(&labels).contains_key("real"), "cycle {cycle}");
    }
}
