//! A stream of rules that all instances read, each after delays of its own, and by which each decides by its own wall
//! clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::{sync::Arc, time::Duration};

use watermaster_core::policy::{ClientPolicy, GroupPolicy, Limit, Policy, Scope};
use watermaster_core::rules::{Effects, Origin, Rule, RuleLimit, RuleTarget, Rules};
use watermaster_core::units::{Time, Weight};

use crate::planted::RuleMistake;
use crate::support::random::Random;
use crate::support::rule::{clients as of_clients, patterns, rule};

pub const CLIENTS: [&str; 6] = ["listed", "other", "c-1", "c-2", "l-1", "l-2"];
const GROUPS: [&str; 3] = ["cards", "loans", "extra"];
const PATTERNS: [&str; 4] = ["*", "c-*", "l-*", "*-1"];
/// The names of rules: few, so that rules replace one another.
const NAMES: u64 = 12;
/// The interval between two looks at the wall clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An attempt to put a rule, or to delete it.
#[derive(Debug, Clone)]
struct Change {
    at: Time,
    name: Arc<str>,
    rule: Option<Rule>,
}

fn weight(thousandths: u64) -> Effects {
    Effects { weight: Weight::from_thousandths(thousandths), ..Effects::default() }
}

/// The policy of the configuration: a client, two groups, and one rule beside their tables.
pub fn configured(policy: Policy) -> Policy {
    let group = |name: &str, texts: &[&str]| GroupPolicy {
        name: name.to_owned(),
        weight: Weight::ONE,
        limits: Vec::new(),
        hold: false,
        clients: patterns(texts),
    };
    let rules = vec![
        rule("client.listed", of_clients(&["listed"]), weight(2_000)),
        rule("group.cards", RuleTarget::Groups(patterns(&["cards"])), weight(2_000)),
        rule("r0", of_clients(&["*-2"]), weight(1_500)),
    ];
    Policy {
        scope: Scope::Group,
        clients: vec![ClientPolicy { name: "listed".to_owned(), weight: Weight::ONE, limits: Vec::new() }],
        groups: vec![group("cards", &["c-*"]), group("loans", &["l-*"])],
        rules: Arc::new(Rules::new(rules)),
        ..policy
    }
}

/// The rules that the stream's author puts and deletes.
#[derive(Debug)]
pub struct Stream {
    changes: Vec<Change>,
}

impl Stream {
    /// Draws the changes between two times. The times of a rule are by the wall clock of one of the instances. All rules
    /// are deleted at the end.
    pub fn new(random: &mut Random, (from, until): (Time, Time), clocks: &[i64], most: u64) -> Stream {
        let mut changes = Vec::new();
        let mut at = from;
        while at < until {
            let name: Arc<str> = format!("r{}", random.below(NAMES)).into();
            let rule = (!random.once_in(6)).then(|| draw(random, &name, (at, until), clocks, most));
            changes.push(Change { at, name, rule });
            at = at + random.millis(0, 1_500);
        }
        let end = (0..NAMES).map(|number| Change { at: until, name: format!("r{number}").into(), rule: None });
        changes.extend(end);
        Stream { changes }
    }
}

fn draw(random: &mut Random, name: &str, (now, end): (Time, Time), clocks: &[i64], most: u64) -> Rule {
    let clients = |random: &mut Random| {
        let text = if random.once_in(3) { random.one_of(&PATTERNS) } else { random.one_of(&CLIENTS) };
        of_clients(&[text])
    };
    let groups = |random: &mut Random| RuleTarget::Groups(patterns(&[random.one_of(&GROUPS)]));
    let any = |random: &mut Random| if random.once_in(3) { groups(random) } else { clients(random) };
    let (target, effects) = match random.below(100) {
        0..40 => (RuleTarget::Service, Effects { capacity: Some(random.between(1, most)), ..Effects::default() }),
        40..55 => (any(random), Effects { hold: Some(!random.once_in(4)), ..Effects::default() }),
        55..72 => (any(random), Effects { limits: Some(limits(random, most)), ..Effects::default() }),
        72..84 => (any(random), weight(random.between(1, 20) * 250)),
        84..92 => (clients(random), Effects { max_delay: Some(random.millis(500, 9_000)), ..Effects::default() }),
        _ => {
            let group = random.one_of(&["cards", "loans", "extra", ""]);
            (clients(random), Effects { group: Some(group.to_owned()), ..Effects::default() })
        }
    };
    // By the wall clock of an instance, between the beginning and the end of the stream.
    let (now_ms, end_ms) = ((now.as_nanos() / 1_000_000) as i64, (end.as_nanos() / 1_000_000) as i64);
    let wall = |random: &mut Random, ms: i64| ms + random.one_of(clocks);
    let from_ms = random.once_in(2).then(|| {
        let after = random.between(0, 12_000) as i64 - 2_000;
        wall(random, (now_ms + after).min(end_ms))
    });
    let until_ms = (!random.once_in(3)).then(|| {
        let after = random.between(1_000, 25_000) as i64;
        wall(random, (now_ms + after).min(end_ms))
    });
    Rule {
        origin: Origin::RunTime,
        priority: random.below(3) as i16 - 1,
        from_ms,
        until_ms: until_ms.filter(|&until| from_ms.is_none_or(|from| from < until)),
        disabled: random.once_in(20),
        ..rule(name, target, effects)
    }
}

fn limits(random: &mut Random, most: u64) -> Vec<RuleLimit> {
    let one = |random: &mut Random| {
        let number = |random: &mut Random, most| NonZeroU32::new(random.between(1, most) as u32).expect("from 1 on");
        let limit = Limit { rate: number(random, most / 8), per: Duration::from_secs(1), burst: number(random, 20) };
        RuleLimit { limit, scales: random.once_in(3) }
    };
    (0..random.below(3)).map(|_| one(random)).collect()
}

/// The rules that one instance has read, and those that it ought to have taken over.
#[derive(Debug)]
pub struct Reader {
    /// The times at which it reads the changes that it has not read, in order.
    reads: VecDeque<Time>,
    read: usize,
    /// The rules of run time, and the policy of the configuration with them.
    rules: BTreeMap<Arc<str>, Rule>,
    with_rules: Policy,
    next_look: Time,
    mistake: Option<RuleMistake>,
    /// The policy with the rules as the mistake has them.
    spoiled: Policy,
}

impl Reader {
    /// Draws the times at which an instance reads the changes.
    pub fn new(random: &mut Random, stream: &Stream, configured: &Policy, mistake: Option<RuleMistake>) -> Reader {
        let most = random.one_of(&[100, 1_000, 5_000]);
        let mut last = Time::ZERO;
        let mut read = |change: &Change| {
            last = last.max(change.at + random.millis(0, most));
            last
        };
        Reader {
            reads: stream.changes.iter().map(&mut read).collect(),
            read: 0,
            rules: BTreeMap::new(),
            with_rules: configured.clone(),
            next_look: Time::ZERO,
            mistake,
            spoiled: configured.clone(),
        }
    }

    /// Reads what is due. Returns the policy that the instance takes over now, if it looks at its clock.
    pub fn look(&mut self, now: Time, wall_ms: i64, stream: &Stream, configured: &Policy) -> Option<Policy> {
        let mut reads = false;
        while self.reads.front().is_some_and(|at| *at <= now) {
            self.reads.pop_front();
            let Change { name, rule, .. } = &stream.changes[self.read];
            match rule {
                Some(rule) => drop(self.rules.insert(Arc::clone(name), rule.clone())),
                None => drop(self.rules.remove(name)),
            }
            self.read += 1;
            reads = true;
        }
        if reads {
            let with = |spoil: &dyn Fn(&mut Rule)| {
                let mut run_time: Vec<Rule> = self.rules.values().cloned().collect();
                run_time.iter_mut().for_each(spoil);
                let rules = configured.rules.iter().cloned().chain(run_time).collect();
                Policy { rules: Arc::new(Rules::new(rules)), ..configured.clone() }
            };
            self.with_rules = with(&|_| {});
            self.spoiled = with(&|rule| {
                if let Some(mistake) = self.mistake {
                    mistake.spoil_rule(rule);
                }
            });
        }
        if !reads && now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_INTERVAL;
        Some(self.spoiled.at(wall_ms))
    }

    /// The capacity that the rules read so far set at a time of the wall clock, found by itself.
    pub fn capacity(&self, wall_ms: i64) -> u64 {
        let valid = self.rules.values().filter(|rule| {
            let begun = rule.from_ms.is_none_or(|from| from <= wall_ms);
            begun && rule.until_ms.is_none_or(|until| wall_ms < until) && !rule.disabled
        });
        let setting = valid.filter_map(|rule| Some((rule, rule.effects.capacity?)));
        let first = setting.min_by_key(|(rule, _)| (Reverse(rule.priority), Arc::clone(&rule.name)));
        first.map_or(self.with_rules.capacity, |(_, capacity)| capacity)
    }

    /// Returns whether the rules read so far hold each client at a time of the wall clock.
    pub fn holds(&self, wall_ms: i64) -> [bool; CLIENTS.len()] {
        let policy = self.with_rules.at(wall_ms);
        CLIENTS.map(|client| {
            let of_group = policy.group_of(client).is_some_and(|group| policy.groups[group].hold);
            of_group || policy.effects_on(client).is_some_and(|effects| effects.hold)
        })
    }

    /// The number of changes that the instance has read.
    pub fn changes(&self) -> usize {
        self.read
    }
}
