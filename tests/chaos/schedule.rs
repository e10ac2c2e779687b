//! The order of the faults: the seed shuffles all kinds, and no kind repeats before each has been injected once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::faults::{KINDS, Kind, Lane};
use crate::{journal::Entry, plan::Plan, support::generator::Random, world::World};

/// Longest pause between two faults of a lane, in ms.
const MAX_PAUSE_MS: u64 = 800;
/// Number of retries, before the next deal, of a kind that took no effect.
const MAX_RETRIES: u32 = 2;

/// The remaining faults, shared by all lanes and all runs of an invocation.
pub struct Deck(Mutex<Cards>);

struct Cards {
    kinds: Vec<&'static Kind>,
    /// Kinds of this deal that have not been injected, the next one last. A kind that is impossible in this run stays
    /// for the next run.
    left: Vec<&'static Kind>,
    deals: u32,
    random: Random,
    /// Number of faults of each kind that took effect.
    effective: BTreeMap<&'static str, u32>,
    /// Number of faults of each kind that took no effect, since the last deal.
    without_effect: BTreeMap<&'static str, u32>,
}

/// The next step of a lane.
enum Turn {
    Inject(&'static Kind),
    /// Only other lanes can inject the remaining kinds of this deal.
    Wait,
    /// No kind is possible for the lane in this run.
    Stop,
}

impl Deck {
    /// Creates a deck of the wanted kinds; of all kinds if none is named.
    pub fn new(seed: u64, wanted: &[String]) -> Deck {
        let is_wanted = |kind: &&Kind| wanted.is_empty() || wanted.iter().any(|name| name == kind.name);
        Deck(Mutex::new(Cards {
            kinds: KINDS.iter().filter(is_wanted).collect(),
            left: Vec::new(),
            deals: 0,
            random: Random(seed),
            effective: BTreeMap::new(),
            without_effect: BTreeMap::new(),
        }))
    }

    fn cards(&self) -> MutexGuard<'_, Cards> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Draws the next fault for a lane; `Lane::Either` takes any kind.
    fn draw(&self, lane: Lane, plan: &Plan) -> Turn {
        let mut cards = self.cards();
        let is_for = |kind: &Kind| lane == Lane::Either || kind.lane == Lane::Either || kind.lane == lane;
        if !cards.kinds.iter().any(|kind| is_for(kind) && kind.is_possible(plan.append_time, plan.grouped)) {
            return Turn::Stop;
        }
        if !cards.left.iter().any(|kind| kind.is_possible(plan.append_time, plan.grouped)) {
            cards.deal();
        }
        match cards.left.iter().rposition(|kind| is_for(kind) && kind.is_possible(plan.append_time, plan.grouped)) {
            Some(index) => Turn::Inject(cards.left.remove(index)),
            None => Turn::Wait,
        }
    }

    /// Records whether a fault took effect; one that did not is retried.
    fn record(&self, kind: &'static Kind, took_effect: bool) {
        let mut cards = self.cards();
        let counts = if took_effect { &mut cards.effective } else { &mut cards.without_effect };
        let count = counts.entry(kind.name).or_default();
        *count += 1;
        if !took_effect && *count <= MAX_RETRIES {
            cards.left.insert(0, kind);
        }
    }

    /// Tells whether the first deal was completed, and returns the kinds that never took effect.
    pub fn coverage(&self) -> (bool, Vec<&'static str>) {
        let cards = self.cards();
        let missing = cards.kinds.iter().map(|kind| kind.name).filter(|name| !cards.effective.contains_key(name));
        (cards.deals > 1, missing.collect())
    }
}

impl Cards {
    fn deal(&mut self) {
        // Kinds that were impossible so far are still in the deck.
        let kept: Vec<&str> = self.left.iter().map(|kind| kind.name).collect();
        self.left.extend(self.kinds.iter().filter(|kind| !kept.contains(&kind.name)));
        for n in (1..self.left.len()).rev() {
            let other = self.random.below(n as u64 + 1) as usize;
            self.left.swap(n, other);
        }
        self.deals += 1;
        self.without_effect.clear();
    }
}

/// Injects faults until `until`.
pub fn run_lane(world: &World, deck: &Deck, lane: Lane, until: Instant) {
    let mut random = Random(world.plan.seed.wrapping_mul(2) + u64::from(lane == Lane::Cluster));
    while Instant::now() < until {
        match deck.draw(lane, &world.plan) {
            Turn::Inject(kind) => {
                // With `--one-at-a-time` the effects of earlier faults must be over.
                if lane == Lane::Either {
                    world.wait_calm();
                }
                let took_effect = inject(world, kind, &mut random);
                deck.record(kind, took_effect);
                std::thread::sleep(Duration::from_millis(random.below(MAX_PAUSE_MS)));
            }
            Turn::Wait => std::thread::sleep(Duration::from_millis(200)),
            Turn::Stop => return,
        }
    }
}

/// Injects one fault and waits for recovery; tells whether the fault took effect.
pub fn inject(world: &World, kind: &'static Kind, random: &mut Random) -> bool {
    if kind.alone {
        let _alone = world.alone.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        inject_now(world, kind, random)
    } else {
        let _shared = world.alone.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        inject_now(world, kind, random)
    }
}

fn inject_now(world: &World, kind: &'static Kind, random: &mut Random) -> bool {
    world.journal.line(&format!("kind={} begins", kind.name));
    let began = Instant::now();
    let outcome = (kind.inject)(world, random, kind.name);
    let lasted = began.elapsed();
    let recovery = world.wait_recovery(&outcome);
    if let Err(why) = &recovery {
        world.journal.anomaly("silent", format!("after {}: {why}", kind.name));
    }
    world.check_windows();
    let took_effect = outcome.effect.is_observed();
    world.journal.fault(Entry {
        kind: kind.name,
        target: outcome.target,
        effect: outcome.effect,
        began: outcome.began,
        ended: outcome.ended,
        lasted,
        recovery: recovery.ok(),
    });
    took_effect
}
