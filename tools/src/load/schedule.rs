//! The time of each first attempt. Scenario, service and seed fix it, independent of the throttler (open loop).

use std::{iter, time::Duration};

use fastrand::Rng;
use itertools::Itertools as _;

use super::account::SendAttempt;
use super::plan::{Plan, PlannedClient};
use super::scenario::{Arrivals, ScenarioPhase};

/// The rate of a client over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The number of all records.
    pub total: f64,
    pieces: Vec<Piece>,
}

/// A piece in which the rate changes linearly. Times are in seconds, rates in records per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    start: f64,
    length: f64,
    from: f64,
    to: f64,
    /// Records that are due before the piece begins.
    before: f64,
}

impl Piece {
    fn records_after(&self, seconds: f64) -> f64 {
        let rate = self.from + (self.to - self.from) * seconds / self.length;
        (self.from + rate) / 2.0 * seconds
    }

    /// Returns the seconds since the piece began after which this many of its records are due:
    ///
    /// the positive root of from·t + slope/2·t² = records, in the form that stays exact when the slope is near 0.
    fn seconds_until(&self, records: f64) -> f64 {
        let slope = (self.to - self.from) / self.length;
        let root = (self.from * self.from + 2.0 * slope * records).max(0.0).sqrt();
        let divisor = self.from + root;
        if divisor > 0.0 { (2.0 * records / divisor).min(self.length) } else { 0.0 }
    }
}

impl Profile {
    /// Joins phases, at a service that takes `capacity_per_second` records per second.
    pub fn new(phases: &[ScenarioPhase], capacity_per_second: f64) -> Profile {
        let mut profile = Profile { pieces: Vec::new(), total: 0.0 };
        let mut start = 0.0;
        for phase in phases.iter().filter(|phase| phase.length > Duration::ZERO) {
            let [from, to] = [phase.from, phase.to].map(|rate| rate.per_second(phase.length, capacity_per_second));
            let length = phase.length.as_secs_f64();
            let piece = Piece { start, length, from, to, before: profile.total };
            start += length;
            profile.total += piece.records_after(length);
            profile.pieces.push(piece);
        }
        profile
    }

    /// Returns the first moment at which this many records are due; `None` if there are fewer.
    pub fn moment(&self, records: f64) -> Option<Duration> {
        if records >= self.total {
            return None;
        }
        // Of several pieces that begin with the same count, only the last one sends records.
        let index = self.pieces.partition_point(|piece| piece.before <= records).checked_sub(1)?;
        let piece = self.pieces[index];
        Some(Duration::from_secs_f64(piece.start + piece.seconds_until(records - piece.before)))
    }
}

/// The size of a record and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordShape {
    pub value_bytes: u32,
    pub key: u32,
}

/// Returns all first attempts of a plan.
pub fn schedule(plan: &Plan) -> impl Iterator<Item = SendAttempt> {
    let clients = plan.clients.iter().enumerate();
    let attempts = clients.map(|(index, client)| attempts_of(client, index, plan.seed));
    attempts.kmerge_by(|a, b| (a.due, a.client) < (b.due, b.client))
}

/// Returns the first attempts of one client: positions on the profile's count of records, one record apart on average.
fn attempts_of(client: &PlannedClient, index: usize, seed: u64) -> impl Iterator<Item = SendAttempt> {
    // Times and shapes have generators of their own, so that another size does not move a record in time.
    let mut times = Rng::with_seed(seed ^ (index as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f));
    let mut shapes = times.fork();
    // Clients with even arrivals must not send in step.
    let mut position = if client.load.arrivals == Arrivals::Even { times.f64() - 1.0 } else { 0.0 };
    iter::from_fn(move || {
        position += match client.load.arrivals {
            // The gap to the next of independent events.
            Arrivals::Poisson => -(1.0 - times.f64()).ln(),
            Arrivals::Even => 1.0,
        };
        let at = client.profile.moment(position)?;
        let (least, most) = client.load.value_bytes;
        let shape = RecordShape { value_bytes: shapes.u32(least..=most), key: shapes.u32(0..client.load.keys.max(1)) };
        Some(SendAttempt { client: index, shape, number: 1, intended: at, due: at })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{plan::tests::plan, scenario::Rate};
    use super::*;

    impl Profile {
        /// Returns the number of records that are due until `at`.
        pub fn expected(&self, at: Duration) -> f64 {
            let at = at.as_secs_f64();
            let index = self.pieces.partition_point(|piece| piece.start <= at);
            match index.checked_sub(1).map(|index| self.pieces[index]) {
                Some(piece) => piece.before + piece.records_after((at - piece.start).min(piece.length)),
                None => 0.0,
            }
        }
    }

    fn phase() -> impl Strategy<Value = ScenarioPhase> {
        let rate = || {
            prop_oneof![
                Just(Rate::PerSecond(0.0)),
                (0.0..500.0_f64).prop_map(Rate::PerSecond),
                (1..2_000_u32).prop_map(Rate::Records),
            ]
        };
        let length = (1..20_000_u64).prop_map(Duration::from_millis);
        (rate(), rate(), length).prop_map(|(from, to, length)| ScenarioPhase { length, from, to })
    }

    #[test]
    fn a_campaign_is_a_trapezoid() {
        let second = Duration::from_secs(1);
        let (base, peak) = (Rate::PerSecond(10.0), Rate::OfCapacity(0.5));
        let phase = |seconds, from, to| ScenarioPhase { length: seconds * second, from, to };
        let profile = Profile::new(&[phase(2, base, peak), phase(4, peak, peak), phase(2, peak, base)], 100.0);
        assert_eq!(profile.total, 60.0 + 200.0 + 60.0);
        assert_eq!(profile.expected(second), 20.0);
        assert_eq!(profile.moment(20.0), Some(second));
        assert_eq!(profile.moment(160.0), Some(4 * second));
        assert_eq!(profile.moment(320.0), None);
    }

    #[test]
    fn pauses_are_skipped() {
        let steady = |rate| {
            let rate = Rate::PerSecond(rate);
            ScenarioPhase { length: Duration::from_secs(5), from: rate, to: rate }
        };
        let profile = Profile::new(&[steady(0.0), steady(1.0), steady(0.0), steady(1.0)], 1.0);
        assert_eq!([0.0, 4.0, 5.0].map(|n| profile.moment(n).unwrap().as_secs()), [5, 9, 15]);
        assert_eq!(Profile::new(&[steady(0.0)], 1.0).moment(0.0), None);
    }

    proptest! {
        #[test]
        fn moment_and_expected_are_inverse(phases in prop::collection::vec(phase(), 1..6), part in 0.0..1.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let records = profile.total * part;
            if let Some(at) = profile.moment(records) {
                let length: Duration = phases.iter().map(|phase| phase.length).sum();
                prop_assert!(at <= length + Duration::from_nanos(2));
                let back = profile.expected(at);
                prop_assert!((back - records).abs() <= 1e-5 * (1.0 + records), "{records} at {at:?}, then {back} are due");
            } else {
                prop_assert!(records >= profile.total);
            }
        }

        #[test]
        fn moments_are_ascending(phases in prop::collection::vec(phase(), 1..6), step in 0.5..20.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let moments: Vec<_> = (0..).map_while(|n| profile.moment(f64::from(n) * step)).take(3_000).collect();
            prop_assert!(moments.is_sorted());
        }
    }

    fn scenario(arrivals: &str, seed: u64) -> Plan {
        let client = |id: &str, phases: &str| {
            format!("[[client]]\nid = {id:?}\narrivals = {arrivals:?}\nvalue_bytes = [10, 30]\n{phases}")
        };
        let ramp = "[[client.phase]]\nkind = \"ramp\"\nfrom = 0\nto = 200\nfor = \"5s\"\n";
        let campaign = "[[client.phase]]\nkind = \"campaign\"\npeak = \"300%\"\nplateau = \"4s\"\n";
        let burst = "[[client.phase]]\nkind = \"burst\"\nrecords = 300\n";
        let clients = [client("a", ramp), client("b", &format!("{ramp}{campaign}")), client("c", burst)];
        plan(&format!("seed = {seed}\n{}", clients.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_seed_fixes_the_schedule(seed in 0..1_000_000_u64, even: bool) {
            let plan = |seed| scenario(if even { "even" } else { "poisson" }, seed);
            let (one, same, other) = (plan(seed), plan(seed), plan(seed + 1));
            let arrivals: Vec<_> = schedule(&one).collect();
            prop_assert_eq!(&arrivals, &schedule(&same).collect::<Vec<_>>());
            prop_assert_ne!(&arrivals, &schedule(&other).collect::<Vec<_>>());
            prop_assert!(arrivals.is_sorted_by_key(|arrival| arrival.due));
            prop_assert!(arrivals.iter().all(|arrival| (10..=30).contains(&arrival.shape.value_bytes)));
        }

        #[test]
        fn the_records_sent_are_the_integral_of_the_rate(seed in 0..1_000_000_u64, percent in 1..=100_u32, even: bool) {
            let plan = scenario(if even { "even" } else { "poisson" }, seed);
            let until = plan.length * percent / 100;
            let mut sent = vec![0_u32; plan.clients.len()];
            schedule(&plan).filter(|arrival| arrival.due <= until).for_each(|arrival| sent[arrival.client] += 1);
            for (client, sent) in plan.clients.iter().zip(sent) {
                let expected = client.profile.expected(until);
                // Even arrivals are exact to one record; Poisson arrivals are within six standard deviations.
                let tolerance = if even { 1.001 } else { 6.0 * expected.sqrt() + 6.0 };
                let off = (f64::from(sent) - expected).abs();
                prop_assert!(off <= tolerance, "{}: {sent} sent, {expected} expected", client.load.id);
            }
        }
    }
}
