//! Which faults come when: all kinds in an order from the seed, none of them again before each has come.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::faults::{KINDS, Kind, Lane};
use crate::journal::Entry;
use crate::plan::Plan;
use crate::support::generator::Random;
use crate::world::World;

/// Between two faults of a lane, at most, in ms.
const GAP: u64 = 800;
/// A kind that met nothing it could hit gets so many chances more before the next deal.
const AGAIN: u32 = 2;

/// The faults that are still to come, for all lanes and all runs of an invocation.
pub struct Deck(Mutex<Cards>);

struct Cards {
    kinds: Vec<&'static Kind>,
    /// Those of this deal that have not come yet, the next one last; what is not possible in a run stays for the next one.
    left: Vec<&'static Kind>,
    deals: u32,
    random: Random,
    /// How often each kind came with and without effect; without, since the last deal.
    effective: BTreeMap<&'static str, u32>,
    in_vain: BTreeMap<&'static str, u32>,
}

/// What a lane is to do.
enum Turn {
    Inflict(&'static Kind),
    /// The others have not come to the end of this deal.
    Wait,
    /// There is nothing that it could ever do.
    Rest,
}

impl Deck {
    /// Of those kinds that are wanted: all, if none are named.
    pub fn new(seed: u64, wanted: &[String]) -> Deck {
        let is_wanted = |kind: &&Kind| wanted.is_empty() || wanted.iter().any(|name| name == kind.name);
        Deck(Mutex::new(Cards {
            kinds: KINDS.iter().filter(is_wanted).collect(),
            left: Vec::new(),
            deals: 0,
            random: Random(seed),
            effective: BTreeMap::new(),
            in_vain: BTreeMap::new(),
        }))
    }

    fn cards(&self) -> MutexGuard<'_, Cards> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The next fault for a lane; `Lane::Either` takes any.
    fn draw(&self, lane: Lane, plan: &Plan) -> Turn {
        let mut cards = self.cards();
        let is_for = |kind: &Kind| lane == Lane::Either || kind.lane == Lane::Either || kind.lane == lane;
        if !cards.kinds.iter().any(|kind| is_for(kind) && kind.is_possible(plan.append_time)) {
            return Turn::Rest;
        }
        if !cards.left.iter().any(|kind| kind.is_possible(plan.append_time)) {
            cards.deal();
        }
        match cards.left.iter().rposition(|kind| is_for(kind) && kind.is_possible(plan.append_time)) {
            Some(place) => Turn::Inflict(cards.left.remove(place)),
            None => Turn::Wait,
        }
    }

    /// How a fault went: one without effect comes once more.
    fn went(&self, kind: &'static Kind, took_effect: bool) {
        let mut cards = self.cards();
        let counts = if took_effect { &mut cards.effective } else { &mut cards.in_vain };
        let count = counts.entry(kind.name).or_default();
        *count += 1;
        if !took_effect && *count <= AGAIN {
            cards.left.insert(0, kind);
        }
    }

    /// Whether time was left for faults to come again, and the kinds that never took effect.
    pub fn coverage(&self) -> (bool, Vec<&'static str>) {
        let cards = self.cards();
        let missing = cards.kinds.iter().map(|kind| kind.name).filter(|name| !cards.effective.contains_key(name));
        (cards.deals > 1, missing.collect())
    }
}

impl Cards {
    fn deal(&mut self) {
        // What was not possible so far stays.
        let kept: Vec<&str> = self.left.iter().map(|kind| kind.name).collect();
        self.left.extend(self.kinds.iter().filter(|kind| !kept.contains(&kind.name)));
        for n in (1..self.left.len()).rev() {
            let other = self.random.below(n as u64 + 1) as usize;
            self.left.swap(n, other);
        }
        self.deals += 1;
        self.in_vain.clear();
    }
}

/// Inflicts faults until the time is up.
pub fn run_lane(world: &World, deck: &Deck, lane: Lane, until: Instant) {
    let mut random = Random(world.plan.seed.wrapping_mul(2) + u64::from(lane == Lane::Cluster));
    while Instant::now() < until {
        match deck.draw(lane, &world.plan) {
            Turn::Inflict(kind) => {
                // One at a time: nothing is left of those before.
                if lane == Lane::Either {
                    world.wait_calm();
                }
                let took_effect = inflict(world, kind, &mut random);
                deck.went(kind, took_effect);
                std::thread::sleep(Duration::from_millis(random.below(GAP)));
            }
            Turn::Wait => std::thread::sleep(Duration::from_millis(200)),
            Turn::Rest => return,
        }
    }
}

/// One fault, and how the program gets over it. Whether it took effect.
pub fn inflict(world: &World, kind: &'static Kind, random: &mut Random) -> bool {
    if kind.alone {
        let _alone = world.alone.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        inflict_now(world, kind, random)
    } else {
        let _shared = world.alone.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        inflict_now(world, kind, random)
    }
}

fn inflict_now(world: &World, kind: &'static Kind, random: &mut Random) -> bool {
    world.journal.line(&format!("kind={} begins", kind.name));
    let began = Instant::now();
    let inflicted = (kind.inflict)(world, random, kind.name);
    let lasted = began.elapsed();
    let recovery = world.wait_recovery(&inflicted);
    if let Err(why) = &recovery {
        world.journal.anomaly("silent", format!("after {}: {why}", kind.name));
    }
    world.check_windows();
    let took_effect = inflicted.effect.is_ok();
    world.journal.fault(Entry {
        kind: kind.name,
        target: inflicted.target,
        effect: inflicted.effect,
        lasted,
        recovery: recovery.ok(),
    });
    took_effect
}
