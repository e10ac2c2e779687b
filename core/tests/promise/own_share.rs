//! Reject mode: a client within its default share is never rejected because others borrow or use too much.

use std::{collections::VecDeque, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use watermaster_core::policy::{Lending, Mode, Policy, Window};
use watermaster_core::units::{Ratio, Time, Weight};
use watermaster_core::{offset_map::MapBudget, window::slice_width};

use crate::case::{Class, grouped_policies, name};
use crate::sim::{self, Fate, Sim};
use crate::{check, support::random::Random};

/// A step of the script.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Time passes, in thousandths of a cycle.
    Wait(u32),
    /// Time passes until the client's oldest record is exactly one cycle old.
    WaitForTheOldest,
    /// The client sends up to this many records, within its share.
    Own(u32),
    /// Another client sends this many.
    Other { client: usize, records: u32 },
    /// A number of `ids` that are not configured send `each` records. If they are `fresh`, the throttle never saw them.
    Strangers { ids: u32, each: u32, fresh: bool },
    /// The policy is given again, as it is.
    Reload,
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    script: Vec<Step>,
    /// The time from one stranger to the next, as a part of a cycle: none, or enough for an allocation.
    between_strangers: Option<u32>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    let shapes = (any::<bool>(), 1_u64..1_001, proptest::option::of(Just(99)));
    (grouped_policies(class), shapes).prop_flat_map(|(mut policy, (is_short, unlisted, between_strangers))| {
        let other = |(client, records)| Step::Other { client, records };
        policy.mode = Mode::Reject;
        policy.unlisted_weight = Weight::from_thousandths(unlisted).unwrap();
        policy.max_delay = is_short.then_some(policy.cycle / 3);
        (policy.queue_capacity, policy.queue_bytes, policy.map_budget) = (1 << 40, 1 << 40, MapBudget::default());
        let clients = policy.clients.len();
        let step = prop_oneof![
            3 => prop_oneof![1_u32..20, 1_u32..400, 1_u32..1_500].prop_map(Step::Wait),
            3 => Just(Step::WaitForTheOldest),
            6 => prop_oneof![Just(1_u32), 1_u32..40, Just(5_000)].prop_map(Step::Own),
            3 => (1..clients, prop_oneof![1_u32..10, 1_u32..400]).prop_map(other),
            2 => (1_u32..60, 1_u32..40, any::<bool>())
                .prop_map(|(ids, each, fresh)| Step::Strangers { ids, each, fresh }),
            1 => Just(Step::Reload),
        ];
        vec(step, 1..60).prop_map(move |script| Case { policy: policy.clone(), script, between_strangers })
    })
}

/// The times of the client's records in the last cycle.
struct Sent(VecDeque<Time>);

impl Sent {
    fn within(&mut self, now: Time, cycle: Duration) -> u64 {
        while self.0.front().is_some_and(|at| *at + cycle <= now) {
            self.0.pop_front();
        }
        self.0.len() as u64
    }
}

/// Checks client 0, which sends no more than its default share in any window of a cycle, beside others, strangers and
/// reloads, alone or in a group, and with a longest wait of a third of a cycle: none of its records is rejected, and
/// none waits for longer than a cycle and the slices by which windows count too much. With fixed windows
/// two shares of each client can come at an edge, and the second one waits for the first.
fn within_its_share_is_never_rejected(case: Case) {
    let Case { policy, script, between_strangers } = case;
    let (cycle, capacity) = (policy.cycle, policy.capacity);
    let cycles = if policy.window == Window::Fixed { 2 } else { 1 };
    let mut sim = Sim::new(policy.clone(), 1);
    if script.iter().any(|step| matches!(step, Step::Strangers { .. })) {
        // All strangers together have one share, from the first one on.
        sim.read("stranger", 0);
        sim.run_for(cycle / 50);
    }
    let share = sim.throttle.client(&name(0)).expect("a configured client").grant.default_share.floor();
    let (mut sent, mut fresh_ids) = (Sent(VecDeque::new()), 0);
    for step in script {
        match step {
            Step::Wait(thousandths) => sim.run_for(cycle * thousandths / 1_000),
            Step::WaitForTheOldest => {
                if let Some(&oldest) = sent.0.front() {
                    sim.run_until(oldest + cycle);
                }
            }
            Step::Other { client, records } => {
                for _ in 0..records.min(2 * capacity as u32) {
                    sim.read(&name(client), 0);
                }
            }
            Step::Strangers { ids, each, fresh } => {
                for id in 0..ids {
                    fresh_ids += u32::from(fresh);
                    let id = if fresh { fresh_ids } else { id };
                    (0..each).for_each(|_| _ = sim.read(&format!("stranger-{id}-x"), 0));
                    sim.run_for(between_strangers.map_or(Duration::ZERO, |part| cycle / part));
                }
            }
            Step::Reload => sim.throttle.handle_policy(sim.now, policy.clone()),
            Step::Own(records) => {
                for _ in 0..records {
                    if sent.within(sim.now, cycle) >= share {
                        break;
                    }
                    sent.0.push_back(sim.now);
                    sim.read(&name(0), 0);
                }
            }
        }
    }
    let most = cycle * cycles + slice_width(cycle) * 2;
    sim.run_for(most);
    for life in sim.lives.values().filter(|life| life.client == name(0)) {
        let Fate::Admitted { waited } = life.fate else { panic!("{life:?}") };
        assert!(waited <= most, "{life:?}");
    }
}

#[test]
fn a_client_within_its_share_is_never_rejected() {
    check("own_share", cases, within_its_share_is_never_rejected);
}

/// The bug, which random cases meet about once in a million: three clients send all of their shares in each cycle, after
/// one of them borrowed what fills the window. Each cycle, records waited for a slice longer, until some were rejected.
#[test]
fn clients_that_send_all_of_their_shares_wait_no_longer_in_each_cycle() {
    let mut policy = sim::policy(42, Duration::from_millis(100));
    (policy.mode, policy.reservation) = (Mode::Reject, Ratio::ZERO);
    policy.clients = [1, 2, 0].map(|n| sim::client(&name(n), 1.0, None)).into();
    let other = |client, records| Step::Other { client, records };
    let shares = [Step::WaitForTheOldest, other(2, 14), other(1, 14), Step::Own(14)];
    // Client 2 learns to borrow. Its last flood comes half a slice before the first record of client 0.
    let floods = [[other(2, 84), Step::Wait(1_005)]; 8].concat().into_iter().chain([other(2, 84), Step::Wait(5)]);
    let script = floods.chain([shares; 12].concat()).collect();
    within_its_share_is_never_rejected(Case { policy, script, between_strangers: None });
}

/// A lender beside a flood, in percent.
#[derive(Debug)]
struct Measured {
    /// Its records that are rejected while it is within its share.
    rejected: f64,
    /// The 99th percentile of the waits of its records, of a cycle.
    wait: f64,
    /// The part of the capacity that the flood gets.
    flood: f64,
}

/// Measures a lender beside a flood, by the used part of its share and its reservation.
fn beside_a_flood(load: f64, reservation: u32, lending: Lending, seed: u64) -> Measured {
    const CAPACITY: u64 = 200;
    const CYCLES: u64 = 400;
    let cycle = Duration::from_secs(1);
    let mut policy = sim::policy(CAPACITY, cycle);
    (policy.mode, policy.lending) = (Mode::Reject, lending);
    policy.reservation = Ratio::from_millionths(reservation).unwrap();
    policy.clients = (0..4).map(|n| sim::client(&name(n), 1.0, None)).collect();
    let mut sim = Sim::new(policy, 1);
    let share = CAPACITY as f64 / 4.0;
    // The lender, two clients that send all of their shares, and a flood of eight shares; each at random times.
    let rates = [load * share, share, share, 8.0 * share];
    let mut random = Random::stream(seed, 0);
    // The time from one record to the next, by the inverse of the exponential distribution.
    let mut gap = |rate: f64| {
        let uniform = (random.word() >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-(1.0 - uniform).ln() / rate)
    };
    let mut due: Vec<Time> = rates.iter().map(|rate| sim.now + gap(*rate)).collect();
    let (end, mut sent) = (sim.now + cycle * CYCLES as u32, Sent(VecDeque::new()));
    let (mut records, mut rejected) = (0_u32, 0_u32);
    loop {
        let next = (0..4).min_by_key(|client| due[*client]).unwrap();
        if due[next] > end {
            break;
        }
        sim.run_until(due[next]);
        due[next] = due[next] + gap(rates[next]);
        let fate = sim.read(&name(next), 0);
        if next == 0 {
            let within = sent.within(sim.now, cycle) < share as u64;
            sent.0.push_back(sim.now);
            records += 1;
            rejected += u32::from(within && matches!(fate, Fate::Rejected(_)));
        }
    }
    sim.run_for(cycle * 2);
    let waits_of = |client: usize| {
        sim.lives.values().filter(move |life| life.client == name(client)).filter_map(|life| match life.fate {
            Fate::Admitted { waited } => Some(waited),
            _ => None,
        })
    };
    let mut waits: Vec<Duration> = waits_of(0).collect();
    waits.sort_unstable();
    Measured {
        rejected: f64::from(rejected) / f64::from(records) * 100.0,
        wait: waits[(waits.len() - 1) * 99 / 100].div_duration_f64(cycle) * 100.0,
        flood: waits_of(3).count() as f64 / (CAPACITY * CYCLES) as f64 * 100.0,
    }
}

/// The percentages of the wait and of the flood, for each load.
type Figures = [(f64, f64); 3];

/// The rows of the table: the reservation in millionths and as printed, and its figures.
const FIGURES: [(u32, &str, Figures); 4] = [
    (0, "0", [(1.6, 48.0), (2.7, 41.0), (1.9, 33.0)]),
    (100_000, "0.1", [(0.7, 48.0), (2.7, 41.0), (1.9, 33.0)]),
    (500_000, "0.5", [(0.0, 40.0), (1.1, 39.0), (1.9, 33.0)]),
    (1_000_000, "1", [(0.0, 25.0), (0.0, 25.0), (0.0, 25.0)]),
];

/// Compares the table of docs/design/algorithm.md with the measurement.
#[test]
fn waits_of_a_lender_are_as_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/design/algorithm.md");
    let document = std::fs::read_to_string(path).unwrap();
    for (reservation, shown, figures) in FIGURES {
        let cells = figures.map(|(wait, flood)| format!(" {wait:.1} %, {flood:.0} % |"));
        let row = format!("| {shown} |{}", cells.concat());
        assert!(document.contains(&row), "docs/design/algorithm.md lacks the row {row}");
        for (load, (wait, flood)) in [0.1, 0.4, 0.7].into_iter().zip(figures) {
            let measured = beside_a_flood(load, reservation, Lending::Proportional, 7);
            println!("reservation {shown}, load {load}: {measured:?}");
            assert_eq!(measured.rejected, 0.0, "{load} of its share, reservation {shown}");
            assert!((measured.wait - wait).abs() <= 1.0, "{measured:?} at {load}, reservation {shown}");
            assert!((measured.flood - flood).abs() <= 1.0, "{measured:?} at {load}, reservation {shown}");
        }
    }
}
