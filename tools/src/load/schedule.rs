//! All first attempts in order of time. Scenario, service and seed fix them, independent of the throttler (open loop).

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::plan::{Client, Plan};
use super::{random::Random, scenario::Arrivals};

/// A record to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Time since the start.
    pub at: Duration,
    /// Index into the clients of the plan.
    pub client: usize,
    pub shape: Shape,
}

/// The size of a record and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub value_bytes: u32,
    pub key: u32,
}

/// All arrivals of a plan.
#[derive(Debug, Clone)]
pub struct Schedule<'p> {
    streams: Vec<Stream<'p>>,
    next: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl<'p> Schedule<'p> {
    /// Starts at the beginning of the plan.
    pub fn new(plan: &'p Plan) -> Schedule<'p> {
        let stream = |(at, client)| Stream::new(client, plan.seed, at);
        let mut streams: Vec<Stream<'p>> = plan.clients.iter().enumerate().map(stream).collect();
        let first = streams.iter_mut().enumerate();
        let next = first.filter_map(|(client, stream)| Some(Reverse((stream.advance()?, client)))).collect();
        Schedule { streams, next }
    }
}

impl Iterator for Schedule<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, client)) = self.next.pop()?;
        let stream = &mut self.streams[client];
        let shape = stream.shape();
        if let Some(next) = stream.advance() {
            self.next.push(Reverse((next, client)));
        }
        Some(Arrival { at, client, shape })
    }
}

/// The arrivals of one client: positions on the profile's count of records, one record apart on average.
#[derive(Debug, Clone)]
struct Stream<'p> {
    client: &'p Client,
    position: f64,
    begun: bool,
    /// Times and shapes have generators of their own, so that another size does not move a record in time.
    times: Random,
    shapes: Random,
}

impl<'p> Stream<'p> {
    fn new(client: &'p Client, seed: u64, index: usize) -> Stream<'p> {
        let mut seeds = Random::new(seed ^ (index as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        let (times, shapes) = (Random::new(seeds.bits()), Random::new(seeds.bits()));
        Stream { client, position: 0.0, begun: false, times, shapes }
    }

    fn advance(&mut self) -> Option<Duration> {
        self.position += match self.client.arrivals {
            Arrivals::Poisson => self.times.exponential(),
            Arrivals::Even if self.begun => 1.0,
            // Clients must not send in step.
            Arrivals::Even => self.times.unit(),
        };
        self.begun = true;
        self.client.profile.moment(self.position)
    }

    fn shape(&mut self) -> Shape {
        let (least, most) = self.client.value_bytes;
        let value_bytes = least + self.shapes.below(most - least + 1);
        Shape { value_bytes, key: self.shapes.below(self.client.keys.max(1)) }
    }
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
            let arrivals: Vec<_> = Schedule::new(&one).collect();
            prop_assert_eq!(&arrivals, &Schedule::new(&same).collect::<Vec<_>>());
            prop_assert_ne!(&arrivals, &Schedule::new(&other).collect::<Vec<_>>());
            prop_assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
            prop_assert!(arrivals.iter().all(|arrival| (10..=30).contains(&arrival.shape.value_bytes)));
        }

        #[test]
        fn the_records_sent_are_the_integral_of_the_rate(seed in 0..1_000_000_u64, percent in 1..=100_u32, even: bool) {
            let plan = scenario(if even { "even" } else { "poisson" }, seed);
            let until = plan.length * percent / 100;
            let mut sent = vec![0_u32; plan.clients.len()];
            Schedule::new(&plan).filter(|arrival| arrival.at <= until).for_each(|arrival| sent[arrival.client] += 1);
            for (client, sent) in plan.clients.iter().zip(sent) {
                let expected = client.profile.expected(until);
                // Even arrivals are exact to one record; Poisson arrivals are within six standard deviations.
                let tolerance = if even { 1.001 } else { 6.0 * expected.sqrt() + 6.0 };
                let off = (f64::from(sent) - expected).abs();
                prop_assert!(off <= tolerance, "{}: {sent} sent, {expected} expected", client.id);
            }
        }
    }
}
