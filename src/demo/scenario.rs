//! What the demo's products send, and when: fixed by the length and the seed, whatever the throttler does (open loop).

use std::time::Duration;

use super::setup::{CYCLE, PRODUCTS, SHARE};
use crate::trial::random::Random;

/// One part of the demo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    pub name: &'static str,
    /// What to look at, in one sentence.
    pub look_at: &'static str,
    /// Where it ends, in hundredths of the whole.
    until_percent: u32,
    /// What each product sends, in percent of its default share, in the order of [`PRODUCTS`].
    load_percent: [u32; PRODUCTS.len()],
}

/// The story, in order. During the campaign and after it, each product but credit-card sends at most three quarters of
/// its share, evenly enough to stay within it in any cycle ([`Stream::advance`]).
pub const PHASES: [Phase; 4] = [
    Phase {
        name: "an ordinary day",
        look_at: "home-loan is nearly idle and lends; personal-loan borrows a little of it.",
        until_percent: 20,
        load_percent: [10, 125, 70, 80],
    },
    Phase {
        name: "the credit-card campaign",
        look_at: "credit-card sends 8 times its share and gets what the others leave.",
        until_percent: 60,
        load_percent: [10, 75, 70, 800],
    },
    Phase {
        name: "the lender wants its share back",
        look_at: "home-loan needs its share again; credit-card gives back what it borrowed.",
        until_percent: 90,
        load_percent: [75, 75, 70, 800],
    },
    Phase {
        name: "after the campaign",
        look_at: "credit-card goes quiet; if it has a backlog, that takes what the others leave.",
        until_percent: 100,
        load_percent: [60, 60, 60, 10],
    },
];

/// The demo's story, stretched to a length.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    length: Duration,
}

impl Scenario {
    /// The story told in `length`.
    pub fn new(length: Duration) -> Scenario {
        Scenario { length }
    }

    /// How long it takes.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// When a phase of [`PHASES`] ends.
    pub fn end_of(&self, phase: usize) -> Duration {
        self.length * PHASES[phase].until_percent / 100
    }

    /// Which phase of [`PHASES`] runs so long after the start.
    pub fn phase_at(&self, at: Duration) -> usize {
        (0..PHASES.len()).find(|&phase| at < self.end_of(phase)).unwrap_or(PHASES.len() - 1)
    }

    /// Everything that is sent, in order of time.
    pub fn schedule(&self, seed: u64) -> Schedule {
        Schedule { scenario: *self, streams: std::array::from_fn(|product| Stream::new(product, seed)) }
    }
}

/// One record to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Since the start.
    pub at: Duration,
    /// Index into [`PRODUCTS`].
    pub product: usize,
}

/// All arrivals of a scenario.
#[derive(Debug, Clone)]
pub struct Schedule {
    scenario: Scenario,
    streams: [Stream; PRODUCTS.len()],
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let stream = self.streams.iter_mut().min_by_key(|stream| stream.next)?;
        let arrival = Arrival { at: stream.next, product: stream.product };
        stream.advance(&self.scenario);
        (arrival.at < self.scenario.length).then_some(arrival)
    }
}

/// The arrivals of one product: one in each slot of the phase's mean gap, somewhere in the slot's first half.
#[derive(Debug, Clone)]
struct Stream {
    product: usize,
    /// The start of the next arrival's slot.
    slot: Duration,
    next: Duration,
    random: Random,
}

impl Stream {
    /// A stream whose first slot starts at random, so that products do not send in step.
    fn new(product: usize, seed: u64) -> Stream {
        let mut random = Random::new(seed ^ (product as u64 + 1));
        let slot = random_part(&mut random, mean_gap(PHASES[0].load_percent[product]), 1_000);
        Stream { product, slot, next: slot, random }
    }

    /// Steps to the next slot. Slots do not drift: a window of n slots never holds more than n + 1 arrivals. A slot
    /// never reaches beyond the end of a phase, or an idle product would sleep into its busy time.
    fn advance(&mut self, scenario: &Scenario) {
        let gap = |at| mean_gap(PHASES[scenario.phase_at(at)].load_percent[self.product]);
        let end = scenario.end_of(scenario.phase_at(self.slot));
        let slot = self.slot + gap(self.slot);
        self.slot = if self.slot < end { slot.min(end) } else { slot };
        let next = self.slot + random_part(&mut self.random, gap(self.slot), 500);
        self.next = next.max(self.next);
    }
}

/// A random part of a time, of at most so many thousandths.
fn random_part(random: &mut Random, time: Duration, permille: u32) -> Duration {
    time * random.below(permille + 1) / 1_000
}

/// The time between two records of a product that sends so many percent of its default share.
fn mean_gap(load_percent: u32) -> Duration {
    CYCLE * 100 / (SHARE as u32 * load_percent)
}

#[cfg(test)]
mod tests {
    use super::super::traffic::{SHARE_WINDOW, ShareWindow};
    use super::*;

    const LENGTH: Duration = Duration::from_secs(30);

    #[test]
    fn the_same_seed_tells_the_same_story_in_order() {
        let scenario = Scenario::new(LENGTH);
        let arrivals: Vec<_> = scenario.schedule(7).collect();
        assert_eq!(arrivals, scenario.schedule(7).collect::<Vec<_>>());
        assert_ne!(arrivals, scenario.schedule(8).collect::<Vec<_>>());
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        assert!(arrivals.iter().all(|arrival| arrival.at < LENGTH));
    }

    #[test]
    fn each_product_sends_what_its_phase_says() {
        for seconds in [5, 30, 120] {
            let scenario = Scenario::new(Duration::from_secs(seconds));
            let mut sent = [[0_u32; PRODUCTS.len()]; PHASES.len()];
            scenario.schedule(1).for_each(|a| sent[scenario.phase_at(a.at)][a.product] += 1);
            let mut start = Duration::ZERO;
            for (i, phase) in PHASES.iter().enumerate() {
                let cycles = (scenario.end_of(i) - start).as_secs_f64() / CYCLE.as_secs_f64();
                start = scenario.end_of(i);
                for (product, name) in PRODUCTS.iter().enumerate() {
                    let expected = cycles * 50.0 * f64::from(phase.load_percent[product]) / 100.0;
                    let difference = (f64::from(sent[i][product]) - expected).abs();
                    assert!(difference <= expected * 0.1 + 3.0, "{seconds} s, {}, {name}", phase.name);
                }
            }
        }
    }

    #[test]
    fn within_its_share_a_product_never_sends_more_than_its_share_in_a_cycle() {
        for seconds in [5, 30, 120] {
            let scenario = Scenario::new(Duration::from_secs(seconds));
            for (product, name) in PRODUCTS.iter().enumerate() {
                let percent = |at| PHASES[scenario.phase_at(at)].load_percent[product];
                let mut window = ShareWindow::default();
                let mut last_over = Duration::ZERO;
                for arrival in scenario.schedule(1).filter(|arrival| arrival.product == product) {
                    let is_above = window.is_above_share(arrival.at);
                    if percent(arrival.at) > 100 {
                        last_over = arrival.at;
                    }
                    let recently = last_over > Duration::ZERO && arrival.at < last_over + SHARE_WINDOW;
                    assert!(!is_above || recently, "{seconds} s, {name} at {:?}", arrival.at);
                }
            }
        }
    }

    #[test]
    fn the_story_needs_a_throttler_only_because_of_the_campaign() {
        let total = |phase: &Phase| phase.load_percent.iter().sum::<u32>();
        let all = 100 * PRODUCTS.len() as u32;
        assert!(total(&PHASES[0]) < all);
        assert!(total(&PHASES[1]) > 2 * all && total(&PHASES[2]) > 2 * all);
        assert_eq!(PHASES[PHASES.len() - 1].until_percent, 100);
        assert!(PHASES.iter().all(|phase| phase.look_at.len() <= 80), "one line of a terminal");
    }
}
