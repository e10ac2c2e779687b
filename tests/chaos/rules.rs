//! Rules that change while faults are injected (`--rules`): one author puts and deletes rules at any instance, and in the
//! end all instances have the last version that it was promised.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::records::CLIENTS;
use crate::support::{generator::Random, wait::let_the_fault_last};
use crate::world::World;

/// The token of the author, and the file in the directory of the run that has it.
pub const TOKEN: &str = "token-of-the-author";
pub const TOKEN_FILE: &str = "author.token";
const RULES: u64 = 12;
/// Longest pause between two changes, in ms.
const MAX_PAUSE_MS: u64 = 600;
/// Longer than the program waits for the outcome of a change.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const AGREE_TIMEOUT: Duration = Duration::from_secs(60);
/// Rules that hold records back end soon, so that no partition stands still because of a rule alone.
const HOLD_MS: u64 = 3_000;
const LOWER_MS: u64 = 20_000;
/// The fewest acknowledged changes of a run that proves something.
const FEWEST: u64 = 20;

/// The author's view of a rule: its version, or `None` if there is no such rule.
type Version = Option<String>;

/// The changes of a run.
#[derive(Default)]
pub struct Author {
    /// The last promised version of each rule. A rule is missing while the outcome of its last change is unknown.
    promised: Mutex<BTreeMap<String, Version>>,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    has_ended: AtomicBool,
    /// Locked during a change.
    change: Mutex<()>,
}

impl Author {
    /// Changes rules until `end`.
    pub fn write(&self, world: &World) {
        let mut random = Random(world.plan.seed.wrapping_mul(3));
        while !self.has_ended.load(Ordering::Relaxed) {
            let running = world.fleet.running();
            let turn = self.change.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let slot = running.get(random.below(running.len().max(1) as u64) as usize);
            if let (Some(&slot), false) = (slot, self.has_ended.load(Ordering::Relaxed)) {
                let name = format!("rule-{}", random.below(RULES));
                let rule = (random.below(4) > 0).then(|| self.rule(world, &mut random));
                self.change(world, slot, &name, rule.as_ref());
            }
            drop(turn);
            let_the_fault_last(Duration::from_millis(random.below(MAX_PAUSE_MS)));
        }
    }

    fn rule(&self, world: &World, random: &mut Random) -> Value {
        let (client, _) = CLIENTS[random.below(CLIENTS.len() as u64) as usize];
        let until = |ms: u64| {
            let time = std::time::SystemTime::now() + Duration::from_millis(ms);
            humantime::format_rfc3339_millis(time).to_string()
        };
        let rate = 1 + random.below(world.plan.rate);
        match random.below(6) {
            0 => json!({ "clients": [client], "weight": 1 + random.below(9) }),
            1 => json!({ "clients": ["*"], "weight": 2, "priority": 5, "until": until(LOWER_MS) }),
            2 => json!({ "clients": [client], "limit": { "rate": rate, "per": "1s" }, "until": until(LOWER_MS) }),
            3 => json!({ "clients": [client], "hold": true, "until": until(HOLD_MS) }),
            4 => json!({ "clients": [client], "max_delay": "1h", "note": "as the configuration says" }),
            _ => {
                let capacity = world.plan.start_capacity() * (70 + random.below(31)) / 100;
                json!({ "service": true, "capacity": capacity, "until": until(LOWER_MS) })
            }
        }
    }

    /// Puts a rule, or deletes it.
    fn change(&self, world: &World, slot: usize, name: &str, rule: Option<&Value>) {
        let path = path(world, name);
        let known = self.promised().get(name).cloned();
        let version = match known {
            Some(version) => version,
            None => match version_at(world, slot, name) {
                Some(version) => version,
                None => return,
            },
        };
        if rule.is_none() && version.is_none() {
            return;
        }
        // From now on the outcome is unknown.
        self.promised().remove(name);
        let condition = version.as_ref().map_or(("if-none-match", "*".to_owned()), |etag| ("if-match", quoted(etag)));
        let method = if rule.is_some() { "PUT" } else { "DELETE" };
        let answer = world.fleet.request(slot, method, &path, &[(condition.0, &condition.1)], rule, ANSWER_TIMEOUT);
        match answer {
            Some((200 | 201, body)) => self.note(name, body["etag"].as_str().map(str::to_owned)),
            Some((204, _)) => self.note(name, None),
            // An instance that has not read the author's last change yet refuses, too.
            Some((409 | 412 | 428 | 429 | 503, _)) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
            Some((504, _)) | None => _ = self.unknown.fetch_add(1, Ordering::Relaxed),
            Some((status, body)) => world.journal.anomaly("rules", format!("{method} {name}: {status} {body}")),
        }
    }

    fn note(&self, name: &str, version: Version) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        self.promised().insert(name.to_owned(), version);
    }

    fn promised(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Version>> {
        self.promised.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets the author end after its present change.
    pub fn stop(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Ends the changes. Checks that all instances have the rules that were promised, and deletes them.
    pub fn end(&self, world: &World) {
        self.stop();
        // A change that has begun goes on to its end.
        drop(self.change.lock());
        let mut seen = BTreeMap::new();
        let agree = world.wait(AGREE_TIMEOUT, || {
            let all = world.fleet.running().into_iter().map(|slot| (slot, all_at(world, slot)));
            seen = all.collect::<BTreeMap<_, _>>();
            let mut rules = seen.values();
            let first = rules.next().cloned().flatten();
            first.is_some() && rules.all(|other| *other == first)
        });
        if !agree {
            world.journal.anomaly("rules", format!("the instances have different rules: {seen:?}"));
        }
        let rules = seen.into_values().flatten().next().unwrap_or_default();
        for (name, promised) in &*self.promised() {
            let found = rules.get(name);
            if found != promised.as_ref() {
                world.journal.anomaly("rules", format!("{name} is {found:?}, and {promised:?} was promised"));
            }
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let text = format!(
            "rules: {} changes acknowledged, {} refused, {} with an unknown outcome; {} rules at the end",
            count(&self.acknowledged),
            count(&self.refused),
            count(&self.unknown),
            rules.len()
        );
        world.journal.line(&text);
        println!("{text}");
        if count(&self.acknowledged) < FEWEST {
            world.journal.anomaly("rules", format!("too few changes took effect: {text}"));
        }
        let deleted = world.wait(AGREE_TIMEOUT, || {
            world.fleet.running().first().is_some_and(|slot| {
                let left = all_at(world, *slot).unwrap_or_default();
                for (name, etag) in &left {
                    let condition = [("if-match", quoted(etag))];
                    let condition = condition.each_ref().map(|(name, value)| (*name, value.as_str()));
                    world.fleet.request(*slot, "DELETE", &path(world, name), &condition, None, ANSWER_TIMEOUT);
                }
                all_at(world, *slot).is_some_and(|left| left.is_empty())
            })
        });
        if !deleted {
            world.journal.anomaly("rules", "rules can't be deleted".to_owned());
        }
    }
}

fn quoted(etag: &str) -> String {
    format!("{etag:?}")
}

fn path(world: &World, name: &str) -> String {
    format!("/v1/services/{}/rules/{name}", world.plan.service)
}

/// Returns the version of a rule at an instance; `None` if it does not answer.
fn version_at(world: &World, slot: usize, name: &str) -> Option<Version> {
    match world.fleet.request(slot, "GET", &path(world, name), &[], None, ANSWER_TIMEOUT)? {
        (200, body) => Some(body["etag"].as_str().map(str::to_owned)),
        (404, _) => Some(None),
        _ => None,
    }
}

/// Returns the names and versions of all rules at an instance; `None` if it does not answer.
fn all_at(world: &World, slot: usize) -> Option<BTreeMap<String, String>> {
    let path = format!("/v1/services/{}/rules", world.plan.service);
    let (200, body) = world.fleet.request(slot, "GET", &path, &[], None, ANSWER_TIMEOUT)? else { return None };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    body["rules"].as_array()?.iter().map(|rule| Some((text(&rule["name"])?, text(&rule["etag"])?))).collect()
}
