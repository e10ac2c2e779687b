//! One of two members with unlike load is killed in a campaign, and comes back within seconds under the same id. Its
//! clients had borrowed what a client of the other member recalls just then.

use std::time::Duration;

use watermaster_core::policy::{ClientPolicy, Mode, Policy, Scope};
use watermaster_core::units::{Ratio, Time, Weight};

use crate::live::Group;
use crate::shares::{CLIENTS, poisson, quantile};
use crate::support::random::Random;

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);
/// The clients whose partitions belong to the killed member. `card` floods.
const OF_KILLED: [usize; 2] = [0, 1];
/// Those of the other one. `home` recalls its share just before the kill.
const OF_OTHER: [usize; 2] = [HOME, 3];
const HOME: usize = 2;

/// The admissions of a group, as a part of those of a single instance with the same arrivals; the waits and rejections
/// of the clients of the member that goes on.
struct Outcome {
    /// In the campaign, before the kill.
    before: f64,
    /// From the kill on.
    after: f64,
    /// The 99th percentile of the waits from the kill on, in cycles.
    waited: f64,
    rejected: u64,
    fullest: u64,
}

/// The admissions of a group or a single instance.
#[derive(Default)]
struct Admitted {
    /// In the campaign, before the kill.
    before: usize,
    /// From the kill on, by client.
    waits: [Vec<Duration>; CLIENTS.len()],
}

fn client(name: &str, weight: u64) -> ClientPolicy {
    let weight = Weight::from_thousandths(weight * 1_000).expect("a weight");
    ClientPolicy { name: name.to_owned(), weight, limits: Vec::new() }
}

fn run(mode: Mode, cycle: Duration, seed: u64) -> Outcome {
    let capacity = 200 * cycle.as_secs();
    let weights = [1, 1, 2, 1];
    let policy = Policy {
        mode,
        reservation: Ratio::from_millionths(200_000).expect("a ratio"),
        clients: CLIENTS.iter().zip(weights).map(|(name, weight)| client(name, weight)).collect(),
        ..Policy::new(capacity, cycle)
    };
    let begin = Time::ZERO + Duration::from_secs(1_000);
    let mut group = Group::new(&policy, CLIENTS.len(), &CLIENTS, begin, seed);
    let mut single = Group::new(&policy, CLIENTS.len(), &CLIENTS, begin, seed);
    let alone = single.start("single", Scope::Instance);
    let (killed, other) = (group.start("killed", Scope::Group), group.start("other", Scope::Group));
    for partition in 0..CLIENTS.len() {
        single.assign(partition, Some(alone));
        group.assign(partition, Some(if OF_KILLED.contains(&partition) { killed } else { other }));
    }
    let start = begin + SECOND * 10;
    let flood = start + cycle * 2;
    let recall = flood + cycle * 4;
    let kill = recall + SECOND * 2;
    let (back, owned, end) = (kill + SECOND * 2, kill + SECOND * 4, kill + cycle * 5);
    let mut random = Random::stream(seed, 31);
    let mut admitted = [Admitted::default(), Admitted::default()];
    let passes = |now: Time, at: Time| now < at && now + STEP >= at;
    while group.now() < end {
        let now = group.now();
        let rates = [0.14, if now < flood { 0.1 } else { 1.5 }, if now < recall { 0.03 } else { 0.16 }, 0.14];
        for (client, rate) in rates.iter().enumerate().filter(|_| now >= start) {
            for _ in 0..poisson(&mut random, rate * capacity as f64 * STEP.as_secs_f64() / cycle.as_secs_f64()) {
                group.arrive(client, client);
                single.arrive(client, client);
            }
        }
        if passes(now, kill) {
            group.kill(killed);
            OF_KILLED.iter().for_each(|&partition| single.assign(partition, None));
            group.rejected.fill(0);
        }
        if passes(now, back) {
            group.start("killed", Scope::Group);
        }
        if passes(now, owned) {
            let killed = group.find("killed");
            OF_KILLED.iter().for_each(|&partition| {
                group.assign(partition, Some(killed));
                single.assign(partition, Some(alone));
            });
        }
        group.step(STEP);
        single.step(STEP);
        for (admitted, group) in admitted.iter_mut().zip([&mut group, &mut single]) {
            for (client, waited) in group.take_admitted().into_iter().filter(|_| now >= flood + cycle) {
                admitted.before += usize::from(now < recall);
                if now >= kill {
                    admitted.waits[client].push(waited);
                }
            }
        }
    }
    let [of_group, of_single] = &mut admitted;
    let count = |admitted: &Admitted| admitted.waits.iter().map(Vec::len).sum::<usize>() as f64;
    let (before, after) = (of_group.before as f64 / of_single.before as f64, count(of_group) / count(of_single));
    let waited = OF_OTHER.map(|client| quantile(&mut of_group.waits[client], 0.99)).into_iter().fold(0.0, f64::max);
    let rejected = OF_OTHER.map(|client| group.rejected[client]).iter().sum();
    Outcome { before, after, waited: waited / cycle.as_secs_f64(), rejected, fullest: group.fullest }
}

/// Four faults once kept a capacity idle here:
/// - The admissions that a killed member may have made after its last state count for half a minute longer than a
///   cycle. The member that came back under its id took them for departures that its pace has to last until, so it kept
///   the hold for several cycles' records, and gave nothing back for half a minute. Clients within their shares waited
///   for 11 s of 10, and the group used 27 to 78 % of its capacity.
/// - Loads that changed little were told only by a member that had made no state for a heartbeat, and busy members make
///   states all the time. In mode reject, a member never heard that others lent, and the group used 59 %.
/// - In mode reject, the next owner of a partition claimed only the default shares of its clients for a cycle, although
///   their demand was known. With cycles of 60 s the group used 92 to 94 %.
/// - What a killed member had announced counted for half a minute longer than a cycle, although its next state was due
///   within a quarter of a second. With cycles of 10 s the group used 94 to 96 %.
#[test]
fn a_member_that_comes_back_gives_back_what_others_recall() {
    for mode in [Mode::Shape, Mode::Reject] {
        for cycle in [SECOND * 10, SECOND * 60] {
            for seed in 0..3 {
                let Outcome { before, after, waited, rejected, fullest } = run(mode, cycle, seed);
                let percent = [before, after].map(|part| 100.0 * part);
                println!(
                    "{mode:?}, {cycle:?}, seed {seed}: {:.1} % of a single instance, then {:.1} %; p99 {waited:.3} \
                     cycles, {rejected} rejected, fullest {fullest}",
                    percent[0], percent[1],
                );
                assert!(fullest <= 200 * cycle.as_secs(), "{fullest} records in a window");
                let least = if mode == Mode::Shape { 0.96 } else { 0.95 };
                assert!(before >= 0.95 && after >= least, "{percent:.1?} % of a single instance");
                assert!(waited <= 0.25, "p99 {waited} cycles");
                assert_eq!(rejected, 0, "within their shares");
            }
        }
    }
}
