//! All first attempts in order of time. Scenario, service and seed fix them, independent of the throttler (open loop).

use std::iter;

use fastrand::Rng;
use itertools::Itertools as _;

use super::plan::{Client, Plan};
use super::{account::Attempt, scenario::Arrivals};

/// The size of a record and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub value_bytes: u32,
    pub key: u32,
}

/// Returns all first attempts of a plan.
pub fn schedule(plan: &Plan) -> impl Iterator<Item = Attempt> {
    let clients = plan.clients.iter().enumerate();
    let attempts = clients.map(|(index, client)| attempts_of(client, index, plan.seed));
    attempts.kmerge_by(|a, b| (a.due, a.client) < (b.due, b.client))
}

/// Returns the first attempts of one client: positions on the profile's count of records, one record apart on average.
fn attempts_of(client: &Client, index: usize, seed: u64) -> impl Iterator<Item = Attempt> {
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
        let shape = Shape { value_bytes: shapes.u32(least..=most), key: shapes.u32(0..client.load.keys.max(1)) };
        Some(Attempt { client: index, shape, number: 1, intended: at, due: at })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::plan::tests::plan;
    use super::*;

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
