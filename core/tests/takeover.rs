//! Partitions that were without an owner for some seconds, beside a flood: their clients used less than their shares
//! meanwhile, so the records that waited go first, as many as the shares would have let through.

mod sim;
mod support;

use std::num::NonZeroU32;
use std::{sync::Arc, time::Duration};

use sim::{Fate, START_MS, Sim, client, policy};
use support::rule::rule;
use watermaster_core::policy::{Limit, Mode, Policy};
use watermaster_core::rules::{Effects, RuleLimit, Rules};
use watermaster_core::units::Time;

const CYCLE: Duration = Duration::from_secs(10);
/// 100 records a second, of which each of two clients has half.
const CAPACITY: u64 = 1_000;
const STEP: Duration = Duration::from_millis(5);
/// A polite client sends a record in so many steps: two thirds of its share.
const POLITE: u64 = 6;
/// The flood sends one in each step: four times its share.
const FLOOD: u64 = 1;
const GAP: Duration = Duration::from_secs(4);

/// A client, its partition, and the number of steps in which it sends a record.
type Traffic = (u32, &'static str, u64);
const TWO: [Traffic; 2] = [(0, "polite", POLITE), (1, "flood", FLOOD)];

/// Lets time pass. Returns the times at which records of the `unowned` partitions were written.
fn run(sim: &mut Sim, steps: &mut u64, time: Duration, traffic: &[Traffic], unowned: &[(u32, &str)]) -> Vec<Vec<Time>> {
    let (end, mut written) = (sim.now + time, vec![Vec::new(); unowned.len()]);
    while sim.now < end {
        for &(partition, name, every) in traffic {
            if !steps.is_multiple_of(every) {
                continue;
            }
            if let Some(gap) = unowned.iter().position(|(gap, _)| *gap == partition) {
                written[gap].push(sim.now);
            } else {
                sim.written = Some(sim.now);
                sim.read(name, partition);
            }
        }
        *steps += 1;
        sim.run_for(STEP);
    }
    written
}

/// The waits and rejections of the records of `polite` that were read at a takeover or after it.
#[derive(Debug)]
struct Outcome {
    longest: Duration,
    /// Those that waited for longer than 300 ms.
    late: usize,
    rejected: usize,
}

/// Runs with a gap in the ownership of one client's partition.
fn play(mode: Mode, partition: u32, name: &str) -> Outcome {
    let clients = ["polite", "flood"].map(|name| client(name, 1.0, None)).into();
    let mut sim = Sim::new(Policy { mode, clients, ..policy(CAPACITY, CYCLE) }, 2);
    let mut steps = 0;
    run(&mut sim, &mut steps, 3 * CYCLE, &TWO, &[]);
    let (takeover, unowned) = (sim.now + GAP, [(partition, name)]);
    sim.without_owner(&unowned, |sim| run(sim, &mut steps, GAP, &TWO, &unowned));
    run(&mut sim, &mut steps, 3 * CYCLE, &TWO, &[]);
    let after = sim.lives.values().filter(|life| life.client == "polite" && life.read >= takeover);
    let waits: Vec<Duration> = after.map(|life| life.decided.since(life.read)).collect();
    Outcome {
        longest: waits.iter().copied().max().expect("records of polite"),
        late: waits.iter().filter(|wait| **wait > Duration::from_millis(300)).count(),
        rejected: sim.count("polite", |fate| matches!(fate, Fate::Rejected(_))),
    }
}

/// In four seconds at two thirds of its share the client sends 132 records, which the window lets through at 100 a
/// second, with those that come meanwhile. If they had only the client's weight beside the flood, the last one would
/// wait for 3.1 s in shape mode, and for 2.3 s in reject mode; if those that come meanwhile had, 258 would be late.
#[test]
fn records_without_an_owner_catch_up_at_the_pace_of_the_capacity() {
    for (mode, most_ms, most_late) in [(Mode::Shape, 1_500, 160), (Mode::Reject, 300, 0)] {
        let outcome = play(mode, 0, "polite");
        assert!(outcome.longest <= Duration::from_millis(most_ms), "{mode:?}: {outcome:?}");
        assert!(outcome.late <= most_late && outcome.rejected == 0, "{mode:?}: {outcome:?}");
    }
}

/// A flood that was without an owner has 800 records. It is owed its share of four seconds, 200 of them.
#[test]
fn a_flood_without_an_owner_is_owed_no_more_than_its_share() {
    for mode in [Mode::Shape, Mode::Reject] {
        let outcome = play(mode, 1, "flood");
        assert!(outcome.longest <= Duration::from_millis(3_500), "{mode:?}: {outcome:?}");
        assert_eq!(outcome.rejected, 0, "{mode:?}");
    }
}

/// An instance stops in the middle of a campaign, while the flood's records have waited for most of a cycle already.
/// If its share of all that time went first, in the order in which records are read, those of the clients within their
/// shares would wait for it for seconds: also those of a client that lost no partition.
#[test]
fn a_flood_that_was_behind_before_the_gap_holds_no_other_client_up() {
    let gap = Duration::from_secs(1);
    let traffic: [Traffic; 3] = [(1, "flood", FLOOD), (0, "polite", 4 * POLITE), (2, "owned", 4 * POLITE)];
    for mode in [Mode::Shape, Mode::Reject] {
        let clients = ["polite", "flood", "owned"].map(|name| client(name, 1.0, None)).into();
        let mut sim = Sim::new(Policy { mode, clients, ..policy(CAPACITY, CYCLE) }, 3);
        let mut steps = 0;
        run(&mut sim, &mut steps, 2 * CYCLE, &traffic[1..], &[]);
        run(&mut sim, &mut steps, CYCLE, &traffic, &[]);
        let (takeover, unowned) = (sim.now + gap, [(1, "flood"), (0, "polite")]);
        sim.without_owner(&unowned, |sim| run(sim, &mut steps, gap, &traffic, &unowned));
        run(&mut sim, &mut steps, 3 * CYCLE, &traffic, &[]);
        for name in ["polite", "owned"] {
            let after = sim.lives.values().filter(|life| life.client == name && life.read >= takeover);
            let longest = after.map(|life| life.decided.since(life.read)).max().expect("records");
            assert!(longest <= Duration::from_millis(300), "{mode:?}: {name} waited for {longest:?}");
            let rejected = sim.count(name, |fate| matches!(fate, Fate::Rejected(_)));
            assert_eq!(rejected, 0, "{mode:?}: {name}");
        }
    }
}

/// Chaos with rules found one dead letter in shape mode: a record that went first after a takeover was rejected, because
/// its client was held by then. Such records wait in their client's turn, and the other clients wait for none of them.
#[test]
fn a_client_that_is_held_or_limited_after_a_takeover_waits_in_its_turn() {
    let one = NonZeroU32::new(1).unwrap();
    let limit = RuleLimit { limit: Limit { rate: one, per: CYCLE, burst: one }, scales: false };
    let hold = Effects { hold: Some(true), ..Effects::default() };
    let limited = Effects { limits: Some(vec![limit]), ..Effects::default() };
    for effects in [hold, limited] {
        let clients = ["polite", "flood"].map(|name| client(name, 1.0, None)).into();
        let base = Policy { clients, ..policy(CAPACITY, CYCLE) };
        let mut sim = Sim::new(base.clone(), 2);
        let mut steps = 0;
        run(&mut sim, &mut steps, 3 * CYCLE, &TWO, &[]);
        let unowned = [(0, "polite")];
        sim.without_owner(&unowned, |sim| run(sim, &mut steps, GAP, &TWO, &unowned));
        let rules = Rules::new(vec![rule("stop", support::rule::clients(&["polite"]), effects)]);
        let stopped = Policy { rules: Arc::new(rules), ..base.clone() };
        sim.throttle.handle_rules(sim.now, stopped.at(START_MS));
        let waits = |sim: &Sim, name| sim.count(name, |fate| *fate == Fate::Held);
        let (waiting, of_flood) = (waits(&sim, "polite"), waits(&sim, "flood"));
        let admitted = |sim: &Sim, name| sim.count(name, |fate| matches!(fate, Fate::Admitted { .. }));
        let before = admitted(&sim, "flood");
        assert!(waiting > 100, "records wait after the takeover: {waiting}");
        sim.run_for(CYCLE * 2);
        assert!(waits(&sim, "polite") + 4 >= waiting, "they wait");
        assert!(admitted(&sim, "flood") >= before + of_flood.min(1_900), "the other client does not");
        sim.throttle.handle_rules(sim.now, base.at(START_MS));
        sim.run_for(CYCLE);
        assert_eq!(waits(&sim, "polite"), 0);
        let mut turns = sim.lives.iter().filter(|((partition, _), _)| *partition == 0).map(|(_, life)| life.turn);
        assert!(turns.by_ref().is_sorted(), "in their order");
        for name in ["polite", "flood"] {
            assert_eq!(sim.count(name, |fate| matches!(fate, Fate::Rejected(_))), 0, "{name}");
        }
    }
}
