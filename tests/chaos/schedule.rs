//! Which faults come when: decks of all kinds, shuffled by the seed, one for each lane.

use std::time::{Duration, Instant};

use crate::faults::{Inflicted, KINDS, Kind, Lane};
use crate::journal::Entry;
use crate::plan::Plan;
use crate::support::generator::Random;
use crate::world::World;

/// Between two faults of a lane.
const GAP: u64 = 3_000;

/// The faults of one lane, without end.
pub struct Deck {
    kinds: Vec<&'static Kind>,
    left: Vec<&'static Kind>,
    pub random: Random,
}

impl Deck {
    /// Of those kinds that are wanted (all, if none are named) and make sense on this plan.
    pub fn new(plan: &Plan, lane: Lane, wanted: &[String]) -> Deck {
        let is_wanted = |kind: &&Kind| wanted.is_empty() || wanted.iter().any(|name| name == kind.name);
        let takes_it = |kind: &&Kind| plan.append_time && ["poison_future", "poison_null_key"].contains(&kind.name);
        let kinds = KINDS.iter().filter(|kind| kind.lane == lane && is_wanted(kind) && !takes_it(kind)).collect();
        let seed = plan.seed;
        Deck { kinds, left: Vec::new(), random: Random(seed.wrapping_mul(2) + u64::from(lane == Lane::Cluster)) }
    }

    /// The next kind: each comes once before any comes again.
    fn draw(&mut self) -> Option<&'static Kind> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            for n in (1..self.left.len()).rev() {
                self.left.swap(n, self.random.below(n as u64 + 1) as usize);
            }
        }
        self.left.pop()
    }
}

/// Inflicts faults until the time is up.
pub fn run_lane(world: &World, mut deck: Deck, until: Instant) {
    while Instant::now() < until {
        let Some(kind) = deck.draw() else { return };
        inflict(world, kind, &mut deck.random);
        std::thread::sleep(Duration::from_millis(deck.random.below(GAP)));
    }
}

/// One fault, and how the program gets over it.
pub fn inflict(world: &World, kind: &'static Kind, random: &mut Random) {
    if kind.alone {
        let _alone = world.alone.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        inflict_now(world, kind, random);
    } else {
        let _shared = world.alone.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        inflict_now(world, kind, random);
    }
}

fn inflict_now(world: &World, kind: &'static Kind, random: &mut Random) {
    world.journal.line(&format!("kind={} begins", kind.name));
    let Inflicted { target, effect, since } = (kind.inflict)(world, random, kind.name);
    let flow = world.wait_flow(since, world.patience);
    if let Err(why) = &flow {
        world.journal.anomaly("silent", format!("after {}: {why}", kind.name));
    }
    world.check_windows();
    world.journal.fault(Entry { kind: kind.name, target, effect, recovery: flow.ok() });
}
