//! `overflow = "dead_letter"` and a partition's full offset map: who is turned away to make room in it, and how many.

mod sim;

use std::time::Duration;

use proptest::prelude::*;
use sim::{Fate, Sim, policy};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::Policy;
use watermaster_core::reason::Reason;
use watermaster_core::throttle::Throttle;

const SECOND: Duration = Duration::from_secs(1);
const BYTES: u64 = 100;

/// What was turned away so far.
fn turned_away(throttle: &Throttle) -> u64 {
    throttle.clients().map(|client| client.counts.rejected.total()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whoever completes in the middle of what waits makes a map larger. Once, all that a partition held was turned
    /// away for one record, because those furthest above their share stood in the middle too: 248 000 of 262 000, in a
    /// minute.
    #[test]
    fn no_more_than_a_part_of_what_waits_is_turned_away_for_a_record(
        clients in 1..80_usize,
        skew in 1..4_u32,
        characters in 40..300_usize,
        waiting in 500..3_000_u64,
        seed: u64,
    ) {
        let policy = Policy {
            queue_bytes: waiting * BYTES,
            map_budget: MapBudget::Chars(characters),
            ..policy(10, SECOND)
        };
        let mut sim = Sim::new(policy, 1);
        let names: Vec<String> = (0..clients).map(|client| format!("client-{client:03}")).collect();
        let mut random = seed | 1;
        for _ in 0..3 * waiting {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            let before = turned_away(&sim.throttle);
            sim.read(&names[(uniform.powi(skew as i32) * clients as f64) as usize], 0);
            let gone = turned_away(&sim.throttle) - before;
            prop_assert!(gone <= waiting / 20 + 40, "{gone} of {waiting} for one record");
            sim.run_for(SECOND / 200);
            sim.assert_the_map_fits(0);
        }
    }
}

#[test]
fn a_flood_makes_room_in_the_map_for_whoever_goes_ahead_of_it_at_once() {
    let mut policy = policy(1_000, SECOND);
    policy.map_budget = MapBudget::Chars(100);
    let mut sim = Sim::new(policy, 1);
    for number in 0..60_000 {
        sim.read(if number % 40 == 0 { "light" } else { "flood" }, 0);
        if number % 40 == 0 {
            sim.run_for(SECOND / 100);
            sim.assert_the_map_fits(0);
        }
    }
    let gone = |name| sim.count(name, |fate| *fate == Fate::Rejected(Reason::QueueFull));
    assert_eq!(gone("light"), 0);
    // A full map has room for one more gap when the first of those it has is closed.
    assert!((1..1_500 * 45).contains(&gone("flood")), "{}", gone("flood"));
    // A turn of its own is not given to whoever holds the map up: it waits for the pace at most.
    let soon = |fate: &Fate| matches!(fate, Fate::Admitted { waited } if *waited <= SECOND / 50);
    assert_eq!(sim.count("light", soon), 1_500);
}
