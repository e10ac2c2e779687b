//! Shape mode at one instance: clients within their shares hardly wait beside a flood of any form, and the capacity is
//! used.

#[path = "sim/mod.rs"]
mod sim;
#[path = "support/mod.rs"]
mod support;

use std::f64::consts::TAU;
use std::iter;
use std::time::Duration;

use sim::{Fate, START, Sim, policy};
use support::random::Random;
use watermaster_core::units::Time;
use watermaster_core::window::slice_width;

/// The seed of all traffic here.
const SEED: u64 = 1;

/// An owner that is away now and then is so in each period.
const PERIOD: Duration = Duration::from_millis(100);

/// A client that sends at equal intervals, at 0.8 of its share.
const REGULAR: &str = "b";

/// The form of a flood. Times are in cycles, rates are parts of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flood {
    /// At equal intervals, at three times the capacity.
    Steady,
    /// At random, at three times the capacity.
    Random,
    /// At random, for the first time of each sum of both.
    OnOff(f64, f64),
    /// At a rate that swings between 0 and three times the capacity with this period.
    Sine(f64),
    /// At one and a half times the capacity, in batches of this part of the capacity.
    Batches(f64),
    /// As much as makes the load of all clients this part of the capacity.
    Load(f64),
    /// Two clients, each at random at three times the capacity.
    Two,
}

const FLOODS: [Flood; 14] = [
    Flood::Steady,
    Flood::Random,
    Flood::OnOff(0.7, 0.6),
    Flood::OnOff(0.2, 0.3),
    Flood::OnOff(0.1, 0.9),
    Flood::OnOff(0.3, 2.0),
    Flood::Sine(3.0),
    Flood::Sine(0.7),
    Flood::Batches(0.02),
    Flood::Batches(0.3),
    Flood::Load(0.95),
    Flood::Load(1.0),
    Flood::Load(1.2),
    Flood::Two,
];

impl Flood {
    fn clients(self) -> usize {
        if self == Flood::Two { 2 } else { 1 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    capacity: u64,
    cycle: Duration,
    cycles: f64,
    flood: Flood,
    /// The owner does nothing in this first part of each [`PERIOD`].
    away: Duration,
}

/// The figures of a run.
struct Outcome {
    /// The 99th percentile of the waits of [`REGULAR`] after the quiet cycle.
    regular_p99: Duration,
    /// The admitted part of the capacity after the quiet cycle.
    used: f64,
    fullest_window: u64,
    /// Times at which the throttle was asked in vain, and its admissions.
    vain: u64,
    admitted: u64,
}

impl Case {
    /// Each client's share, in records a second.
    fn share(&self) -> f64 {
        self.capacity as f64 / self.cycle.as_secs_f64() / (3 + self.flood.clients()) as f64
    }

    /// The longest wait that a regular client may notice: a queue of its own with its share as the rate would let a
    /// record wait for one record at most; beside other clients it may wait for another one.
    fn law(&self) -> Duration {
        Duration::from_secs_f64(2.0 / self.share()) + Duration::from_millis(10)
    }

    /// The times of all records, in cycles, with their clients: three polite ones, and after a quiet cycle the flood.
    fn traffic(&self) -> Vec<(f64, &'static str)> {
        let mut random = Random::stream(SEED, 77);
        let capacity = self.capacity as f64;
        let share = capacity / (3 + self.flood.clients()) as f64;
        let mut sent = Vec::new();
        let mut send = |client, start: f64, end: f64, gap: &mut dyn FnMut() -> f64, keeps: &dyn Fn(f64) -> bool| {
            let times = iter::successors(Some(start), |at| Some(at + gap())).take_while(|at| *at < end);
            sent.extend(times.filter(|at| keeps(*at)).map(|at| (at, client)));
        };
        let always = |_: f64| true;
        let mut at_random = |rate: f64| -(1.0 - random.unit()).ln() / rate;
        send("a", 0.0, self.cycles, &mut || at_random(0.5 * share), &always);
        send(REGULAR, 0.0, self.cycles, &mut || 1.0 / (0.8 * share), &always);
        send("c", 0.0, self.cycles, &mut || at_random(0.95 * share), &always);
        for client in ["flood", "flood-2"].into_iter().take(self.flood.clients()) {
            send(client, 0.0, 1.0, &mut || at_random(0.3 * share), &always);
            let mut flood = |rate: f64, keeps: &dyn Fn(f64) -> bool| {
                send(client, 1.0, self.cycles, &mut || at_random(rate * capacity), keeps);
            };
            match self.flood {
                Flood::Random | Flood::Two => flood(3.0, &always),
                Flood::OnOff(on, off) => flood(3.0, &|at| (at - 1.0) % (on + off) < on),
                Flood::Load(part) => flood(part - 2.25 * share / capacity, &always),
                Flood::Sine(period) => {
                    // Every record of a flood at the highest rate has a phase of its own, by the golden ratio.
                    flood(3.0, &|at| (at * 1e6 * 0.618_034) % 1.0 < (1.0 - (TAU * (at - 1.0) / period).cos()) / 2.0);
                }
                Flood::Steady => send(client, 1.0, self.cycles, &mut || 1.0 / (3.0 * capacity), &always),
                Flood::Batches(part) => {
                    let batch = (part * capacity).max(1.0).floor();
                    let mut left = 0.0;
                    let mut gap = || {
                        left = if left < 1.0 { batch - 1.0 } else { left - 1.0 };
                        if left < 1.0 { at_random(1.5 * capacity / batch) } else { 0.0 }
                    };
                    send(client, 1.0, self.cycles, &mut gap, &always);
                }
            }
        }
        sent.sort_by(|one, other| one.0.total_cmp(&other.0));
        sent
    }

    /// The next moment at which the owner is there.
    fn there(&self, at: Time) -> Time {
        let phase = Duration::from_nanos(at.since(START).as_nanos() as u64 % PERIOD.as_nanos() as u64);
        if phase < self.away { at + (self.away - phase) } else { at }
    }

    fn run(&self) -> Outcome {
        let mut policy = policy(self.capacity, self.cycle);
        if !self.away.is_zero() {
            // The bucket is as deep as two rounds of an owner that commits so often.
            policy.commit_interval = PERIOD;
        }
        let mut sim = Sim::new(policy, 5);
        let (mut vain, mut decided) = (0, 0);
        for (at, client) in self.traffic() {
            let at = START + self.cycle.mul_f64(at);
            loop {
                let next = self.there(sim.throttle.poll_timeout(sim.now));
                if next > at {
                    break;
                }
                sim.now = next;
                sim.act();
                vain += u64::from(sim.decisions() == decided);
                decided = sim.decisions();
            }
            sim.now = sim.now.max(self.there(at));
            sim.read(client, client.len() as u32 % 5);
            decided = sim.decisions();
        }
        let quiet = START + self.cycle;
        let end = START + self.cycle.mul_f64(self.cycles);
        let mut waits: Vec<Duration> = sim
            .lives
            .values()
            .filter(|life| life.client == REGULAR && life.read > quiet)
            .map(|life| match life.fate {
                Fate::Admitted { waited } => waited,
                Fate::Held => end.since(life.read),
                Fate::Rejected(reason) => panic!("{reason:?}"),
            })
            .collect();
        waits.sort();
        let admissions = sim.admissions();
        let used = admissions.iter().filter(|at| **at > quiet).count();
        Outcome {
            regular_p99: waits[(waits.len() - 1) * 99 / 100],
            used: used as f64 / (self.capacity as f64 * (self.cycles - 1.0)),
            fullest_window: sim.most_in_a_window(self.cycle) as u64,
            vain,
            admitted: admissions.len() as u64,
        }
    }
}

/// Capacity, length of the cycle in seconds, and number of cycles.
const SIZES: [(u64, u64, f64); 9] = [
    (10, 1, 60.0),
    (100, 1, 40.0),
    (1_000, 1, 20.0),
    (100_000, 1, 3.0),
    (800, 2, 20.0),
    (2_000, 10, 10.0),
    (60, 60, 40.0),
    (20_000, 60, 5.0),
    (3_600, 3_600, 7.0),
];

fn cases() -> impl Iterator<Item = Case> {
    let sizes = SIZES.map(|(capacity, seconds, cycles)| (capacity, Duration::from_secs(seconds), cycles));
    sizes.into_iter().flat_map(|(capacity, cycle, cycles)| {
        FLOODS.map(|flood| Case { capacity, cycle, cycles, flood, away: Duration::ZERO })
    })
}

#[test]
fn a_regular_client_within_its_share_does_not_notice_a_flood() {
    for case in cases() {
        let outcome = case.run();
        let law = case.law();
        println!(
            "{}/{:?} {:?}: p99 {:?} (law {law:?}), used {:.4}, {} of {} in vain",
            case.capacity, case.cycle, case.flood, outcome.regular_p99, outcome.used, outcome.vain, outcome.admitted
        );
        assert!(outcome.fullest_window <= case.capacity, "{case:?}: {}", outcome.fullest_window);
        assert!(outcome.regular_p99 <= law, "{case:?}: {:?}, allowed {law:?}", outcome.regular_p99);
        // The owner is woken for nothing at most once in a slice, and once for each record.
        let slices = case.cycle.div_duration_f64(slice_width(case.cycle)) * case.cycles;
        assert!(outcome.vain <= outcome.admitted + slices as u64, "{case:?}: {} of {}", outcome.vain, outcome.admitted);
    }
}

/// An owner is away for a part of each tenth of a second. A regular client waits for it to come back, twice at most, and
/// the gaps cost little of the capacity.
#[test]
fn gaps_of_the_owner_are_made_up_for() {
    let sizes = |case: &Case| (800..=20_000).contains(&case.capacity);
    let cases = cases().filter(|case| sizes(case) && matches!(case.flood, Flood::Steady | Flood::Random));
    for case in cases.flat_map(|case| [30, 60, 90].map(|gap| Case { away: Duration::from_millis(gap), ..case })) {
        let outcome = case.run();
        println!("{case:?}: p99 {:?}, used {:.4}", outcome.regular_p99, outcome.used);
        assert!(outcome.fullest_window <= case.capacity, "{case:?}: {}", outcome.fullest_window);
        assert!(outcome.regular_p99 <= case.law() + PERIOD * 2, "{case:?}: {:?}", outcome.regular_p99);
        assert!(outcome.used >= 0.95, "{case:?}: {}", outcome.used);
    }
}

/// A saturating flood leaves hardly any of the capacity unused, although nothing goes in lumps.
#[test]
fn a_flood_uses_the_capacity() {
    for case in cases().filter(|case| matches!(case.flood, Flood::Steady | Flood::Random | Flood::Two)) {
        let outcome = case.run();
        // A record that is not due yet, and a slice of the window.
        let due = 0.994 - 1.0 / case.capacity as f64;
        assert!(outcome.used >= due, "{case:?}: {} of {due}", outcome.used);
    }
}

/// A borrower weighs less than its share while lenders are away. The bug: once they were back, its first record kept
/// the place that one record of the small weight had given it, and waited for 20 s.
#[test]
fn a_borrower_within_its_share_does_not_wait_longer_once_lenders_return() {
    const LENDERS: usize = 198;
    let cycle = Duration::from_secs(10);
    let names = || [REGULAR, "flood"].map(str::to_owned).into_iter().chain((0..LENDERS).map(|n| format!("lender-{n}")));
    // A newcomer counts with its share for two cycles.
    let mut sent: Vec<(f64, String)> = names().map(|client| (0.0, client)).collect();
    // In the third cycle it borrows one record, afterwards it sends less than its share of ten.
    sent.extend((0..11).map(|n| (20.0 + 0.9 * f64::from(n), REGULAR.to_owned())));
    sent.extend((0..8).flat_map(|n| [30.0 + 2.5 * f64::from(n); 2]).map(|at| (at, REGULAR.to_owned())));
    sent.extend((0..18_000).map(|n| (20.0 + f64::from(n) / 600.0, "flood".to_owned())));
    sent.extend(names().skip(2).flat_map(|lender| iter::repeat_n((35.05, lender), 20)));
    sent.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut sim = Sim::new(policy(2_000, cycle), 5);
    for (at, client) in sent {
        sim.run_until(START + Duration::from_secs_f64(at));
        sim.read(&client, client.len() as u32 % 5);
    }
    sim.run_for(cycle * 3);
    let waits = sim.lives.values().filter(|life| life.client == REGULAR).map(|life| match life.fate {
        Fate::Admitted { waited } => waited,
        other => panic!("{other:?}"),
    });
    let longest = waits.max().expect("it sent records");
    // Of two records that come at once, one waits for a second in a queue of its own.
    assert!(longest <= Duration::from_secs(3), "{longest:?}");
}
