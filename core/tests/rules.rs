//! Rules: the one that decides each field, the times at which they hold, and what they do to records.

mod sim;
mod support;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::{sync::Arc, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::proptest;
use sim::{Fate, START, START_MS, Sim, granted, policy};
use support::rule::{clients, patterns, rule};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{ClientPattern, GroupPolicy, Limit, Mode, Overflow, Policy, Scope};
use watermaster_core::reason::Reason;
use watermaster_core::rules::{Effects, Field, Origin, Rule, RuleLimit, RuleTarget, Rules};
use watermaster_core::scheduler::Client;
use watermaster_core::throttle::Throttle;
use watermaster_core::units::Weight;

const SECOND: Duration = Duration::from_secs(1);

fn limit(rate: u32, per: Duration, burst: u32) -> RuleLimit {
    let limit = Limit { rate: NonZeroU32::new(rate).unwrap(), per, burst: NonZeroU32::new(burst).unwrap() };
    RuleLimit { limit, scales: false }
}

fn weight(weight: u64) -> Effects {
    Effects { weight: Weight::from_thousandths(weight * 1_000), ..Effects::default() }
}

fn limits(limits: &[RuleLimit]) -> Effects {
    Effects { limits: Some(limits.to_vec()), ..Effects::default() }
}

fn with_rules(policy: Policy, rules: Vec<Rule>) -> Policy {
    Policy { rules: Arc::new(Rules::new(rules)), ..policy }
}

/// A service with these rules from the start.
fn sim(policy: Policy, rules: Vec<Rule>) -> Sim {
    Sim::new(with_rules(policy, rules).at(START_MS), 1)
}

/// The number of records that are admitted at once.
fn send(sim: &mut Sim, client: &str, records: u32) -> usize {
    let fates = (0..records).map(|_| sim.read(client, 0));
    fates.filter(|fate| matches!(fate, Fate::Admitted { .. })).count()
}

fn reject(capacity: u64) -> Policy {
    Policy { mode: Mode::Reject, ..policy(capacity, SECOND) }
}

// ## Which rule decides

/// The words that ids and patterns of random rules consist of.
const IDS: [&str; 5] = ["a", "ab", "b", "g/a", "g/b"];
const PATTERNS: [&str; 6] = ["a*", "*b", "*", "g/*", "*/b", "b*"];
const GROUPS: [&str; 3] = ["g", "h", "*"];
const TIMES: i64 = 8;

fn target() -> impl Strategy<Value = RuleTarget> {
    let id = || prop_oneof![(0..IDS.len()).prop_map(|at| IDS[at]), (0..PATTERNS.len()).prop_map(|at| PATTERNS[at])];
    let groups = || vec((0..GROUPS.len()).prop_map(|at| ClientPattern::new(GROUPS[at])), 1..3);
    let named = vec(id().prop_map(ClientPattern::new), 1..3);
    prop_oneof![
        6 => named.prop_map(|patterns| RuleTarget::Clients { patterns, in_groups: None }),
        2 => groups().prop_map(|groups| RuleTarget::Clients { patterns: patterns(&["*"]), in_groups: Some(groups) }),
        2 => groups().prop_map(RuleTarget::Groups),
    ]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let effects = (any::<[bool; 5]>(), 1_u64..9).prop_map(|(set, value)| Effects {
        weight: set[0].then(|| Weight::from_thousandths(value).unwrap()),
        limits: set[1].then(|| vec![limit(value as u32, SECOND, 1)]),
        max_delay: set[2].then(|| SECOND * value as u32),
        hold: set[3].then_some(value % 2 == 0),
        expire_before_ms: set[4].then_some(value as i64),
        ..Effects::default()
    });
    let time = || prop_oneof![2 => Just(None), 1 => (0..TIMES).prop_map(Some)];
    let rest = (-1_i16..2, any::<bool>(), time(), time(), prop_oneof![9 => Just(false), 1 => Just(true)]);
    vec((target(), effects, rest), 0..12).prop_map(|rules| {
        let rule = |(number, (target, effects, (priority, at_run_time, from_ms, until_ms, disabled)))| Rule {
            origin: if at_run_time { Origin::RunTime } else { Origin::File },
            priority,
            from_ms,
            until_ms,
            disabled,
            // Few names, so that rules of run time replace some of the file.
            ..rule(&format!("r{}", number % 9), target, effects)
        };
        let mut known = HashSet::new();
        let rules = (0..).zip(rules).map(rule);
        rules.filter(|rule| known.insert((Arc::clone(&rule.name), rule.origin))).collect()
    })
}

/// Returns whether a pattern with `*` matches a text: by trying every place.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|from| matches(rest, &text[from..])),
        Some((first, rest)) => text.split_first().is_some_and(|(head, tail)| head == first && matches(rest, tail)),
    }
}

/// The patterns of a rule that may match, as texts, and whether it is for clients of some groups; `None` if it is not
/// about such a target.
type Texts<'t> = dyn Fn(&Rule) -> Option<(Vec<String>, bool)> + 't;

/// The rule that decides a field of a client or a group, by the four steps in turn. Patterns are matched as texts.
fn oracle<'r>(rules: &'r [Rule], texts: &Texts<'_>, id: &str, field: Field, now: i64) -> Option<&'r Rule> {
    let is_replaced = |rule: &Rule| {
        rule.origin == Origin::File
            && rules.iter().any(|other| other.origin == Origin::RunTime && other.name == rule.name)
    };
    let reach = |rule: &Rule| {
        let (texts, in_groups) = texts(rule)?;
        let texts = texts.iter().filter(|text| matches(text.as_bytes(), id.as_bytes()));
        texts
            .map(|text| match text.as_str() {
                "*" if in_groups => 2,
                "*" => 3,
                text if text.contains('*') => 1,
                _ => 0,
            })
            .min()
    };
    let mut left: Vec<(&Rule, i32)> = rules
        .iter()
        .filter(|rule| !is_replaced(rule) && !rule.disabled && rule.effects.set(field))
        .filter(|rule| rule.from_ms.is_none_or(|from| now >= from) && rule.until_ms.is_none_or(|until| now < until))
        .filter_map(|rule| Some((rule, reach(rule)?)))
        .collect();
    let highest = left.iter().map(|(rule, _)| rule.priority).max()?;
    left.retain(|(rule, _)| rule.priority == highest);
    let narrowest = left.iter().map(|(_, reach)| *reach).min()?;
    left.retain(|(_, reach)| *reach == narrowest);
    if left.iter().any(|(rule, _)| rule.origin == Origin::RunTime) {
        left.retain(|(rule, _)| rule.origin == Origin::RunTime);
    }
    left.into_iter().map(|(rule, _)| rule).min_by(|one, other| one.name.as_bytes().cmp(other.name.as_bytes()))
}

fn text(pattern: &ClientPattern) -> String {
    let texts = IDS.iter().chain(&PATTERNS).chain(&GROUPS);
    let found = texts.into_iter().find(|text| ClientPattern::new(text) == *pattern);
    (*found.expect("a pattern of the tables")).to_owned()
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(4_000))]
    /// Each field is decided as the four steps say, in whatever order the rules stand; the rule that is told decides it:
    /// without it another one does, and without any other rule the value stays.
    #[test]
    fn the_four_steps_decide_each_field(rules in rules(), order in any::<u64>(), now in 0..TIMES) {
        let group = GroupPolicy { name: "g".into(), weight: Weight::ONE, limits: vec![], hold: false, clients: vec![] };
        let base = Policy { groups: vec![group], names_groups: true, ..policy(100, SECOND) };
        let shuffled = {
            let mut shuffled = rules.clone();
            let count = shuffled.len().max(1);
            shuffled.rotate_left(order as usize % count);
            if order % 2 == 0 { shuffled.reverse() }
            shuffled
        };
        let in_force = with_rules(base.clone(), rules.clone()).at(now);
        let other = with_rules(base.clone(), shuffled).at(now);
        for id in IDS {
            let group = id.split_once('/').map(|(group, _)| group);
            let texts = |rule: &Rule| match &rule.target {
                RuleTarget::Clients { patterns, in_groups } => {
                    let is_in = in_groups.as_ref().is_none_or(|groups| {
                        group.is_some_and(|id| groups.iter().any(|one| matches(text(one).as_bytes(), id.as_bytes())))
                    });
                    is_in.then(|| (patterns.iter().map(text).collect(), in_groups.is_some()))
                }
                _ => None,
            };
            for decision in in_force.explain_client(id) {
                let decided = oracle(&rules, &texts, id, decision.field, now);
                assert_eq!(decision.rules.first().copied(), decided, "{} of {id}", decision.field.into_str());
                let Some(winner) = decided else { continue };
                let without = |gone: &Rule| {
                    // The rule of the file that a rule of run time replaces would come back.
                    let left = rules.iter().filter(|rule| rule.name != gone.name).cloned().collect();
                    let policy = with_rules(base.clone(), left).at(now);
                    policy.explain_client(id).into_iter().find(|other| other.field == decision.field).unwrap().rules
                        .first().map(|rule| (*rule).clone())
                };
                assert_ne!(without(winner).as_ref(), Some(winner));
                for loser in &decision.rules[1..] {
                    assert_eq!(without(loser).as_ref(), Some(winner));
                }
            }
            assert_eq!(in_force.effects_on(id), other.effects_on(id), "the order of the rules");
        }
        let texts = |rule: &Rule| match &rule.target {
            RuleTarget::Groups(patterns) => Some((patterns.iter().map(text).collect(), false)),
            _ => None,
        };
        for decision in in_force.explain_group("g") {
            let decided = oracle(&rules, &texts, "g", decision.field, now);
            assert_eq!(decision.rules.first().copied(), decided, "{} of the group g", decision.field.into_str());
        }
    }

    /// Between two changes of the rules that are valid, their effects stay.
    #[test]
    fn nothing_changes_before_the_next_change(rules in rules(), now in 0..TIMES) {
        let base = with_rules(policy(100, SECOND), rules);
        let effects = |now| IDS.map(|id| base.at(now).effects_on(id));
        let next = base.rules.next_change(now).unwrap_or(TIMES + 1);
        assert!(next > now);
        for later in now..next {
            assert_eq!(effects(now), effects(later), "from {now} on, until {next}");
        }
    }
}

#[test]
fn a_rule_that_names_its_group_decides_before_a_table_with_a_pattern() {
    let group = |name: &str, texts: &[&str]| GroupPolicy {
        name: name.into(),
        weight: Weight::ONE,
        limits: vec![],
        hold: false,
        clients: patterns(texts),
    };
    let groups = vec![group("cards", &["card-*", "vip"]), group("loans", &[])];
    let base = Policy { groups, ..policy(100, SECOND) };
    let to = |name: &str, group: &str, ids: &[&str]| {
        rule(name, clients(ids), Effects { group: Some(group.to_owned()), ..Effects::default() })
    };
    let of = |rules: Vec<Rule>, client: &str| {
        let policy = with_rules(base.clone(), rules).at(START_MS);
        policy.group_of(client).map(|index| policy.groups[index].name.clone())
    };
    assert_eq!(of(vec![to("z", "loans", &["card-1"])], "card-1").as_deref(), Some("loans"), "an id before a pattern");
    assert_eq!(of(vec![to("z", "loans", &["v*"])], "vip").as_deref(), Some("cards"), "a pattern after an id");
    assert_eq!(of(vec![to("z", "loans", &["*-1"])], "card-1").as_deref(), Some("cards"), "group.cards before z");
    assert_eq!(of(vec![to("a", "loans", &["*-1"])], "card-1").as_deref(), Some("loans"), "a before group.cards");
    assert_eq!(of(vec![to("a", "", &["card-1"])], "card-1"), None, "the unlisted clients");
}

/// A pattern makes the groups that records name while its rule is valid. Each takes part while it has a client.
#[test]
fn a_pattern_makes_the_groups_that_records_name() {
    let effects = Effects { weight: Some(Weight::from_thousandths(3_000).unwrap()), ..Effects::default() };
    let gold =
        Rule { until_ms: Some(START_MS + 60_000), ..rule("gold", RuleTarget::Groups(patterns(&["gold-*"])), effects) };
    let (name, limits, clients) = ("house".to_owned(), vec![], vec![]);
    let house = GroupPolicy { name, weight: Weight::ONE, limits, hold: false, clients };
    let mut base = with_rules(Policy { groups: vec![house], names_groups: true, ..policy(400, SECOND) }, vec![gold]);
    let before = base.at(START_MS);
    assert_eq!(["gold-1", "silver-1", "house"].map(|name| before.would_make_group(name)), [true, false, false]);
    assert_eq!(before.full_name("gold-1", "web"), "gold-1");

    base.meet_groups_of(["gold-2/web", "silver-1/web", "house/web", "gold-1/web"].into_iter());
    let names = |policy: &Policy| policy.groups.iter().map(|group| group.name.clone()).collect::<Vec<_>>();
    let in_force = base.at(START_MS);
    assert_eq!(names(&in_force), ["house", "gold-1", "gold-2"]);
    assert_eq!(in_force.full_name("gold-1", "web"), "gold-1/web");
    assert_eq!(
        ["house", "gold-1", "gold-2", "gold"].map(|name| in_force.group_named(name)),
        [Some(0), Some(1), Some(2), None]
    );
    assert!(!in_force.would_make_group("gold-1"));
    assert_eq!(names(&base.at(START_MS + 60_000)), ["house"]);

    let mut sim = Sim::new(in_force, 1);
    let mut shares = |names: &[&str]| {
        names.iter().for_each(|name| _ = sim.read(name, 0));
        sim.run_for(SECOND);
        let share = |client: &Client| (client.name.to_string(), client.grant.default_share.floor());
        sim.throttle.clients().iter().map(|(_, client)| share(client)).collect::<BTreeMap<_, _>>()
    };
    let expected = |shares: &[(&str, u64)]| shares.iter().map(|(name, share)| (name.to_string(), *share)).collect();
    assert_eq!(shares(&["house/web"]), expected(&[("house/web", 400)]));
    assert_eq!(shares(&["gold-1/web"]), expected(&[("gold-1/web", 300), ("house/web", 100)]));
}

// ## What rules do

/// A token bucket of 10 with 5 a second, by default for every client: 10 at once pass, of 2 more 200 ms later one, and
/// 1.2 s later six are back.
#[test]
fn a_default_limit_holds_for_every_client_by_itself() {
    let everyone = rule("everyone", clients(&["*"]), limits(&[limit(5, SECOND, 10)]));
    let mut sim = sim(reject(1_000), vec![everyone]);
    for client in ["one", "two"] {
        assert_eq!(send(&mut sim, client, 12), 10, "{client}");
    }
    sim.run_for(Duration::from_millis(200));
    assert_eq!(send(&mut sim, "one", 2), 1);
    sim.run_for(Duration::from_millis(1_200));
    assert_eq!([send(&mut sim, "one", 12), send(&mut sim, "two", 12)], [6, 7]);
}

/// Two a minute: the records at 0:01 and 0:15 pass, that at 0:55 does not, the one at 1:27 passes. A bucket refills as
/// it goes, so two at once and one a minute: with two a minute, almost two would be back at 0:55.
#[test]
fn two_a_minute() {
    let slow = rule("slow", clients(&["slow"]), limits(&[limit(1, Duration::from_secs(60), 2)]));
    let mut sim = sim(reject(1_000), vec![slow]);
    let passes = [1, 15, 55, 87].map(|second| {
        sim.run_until(START + Duration::from_secs(second));
        send(&mut sim, "slow", 1) == 1
    });
    assert_eq!(passes, [true, true, false, true]);
}

/// Three tiers of one default limit: the weight of a client multiplies rate and burst.
#[test]
fn tiers_scale_a_default_limit_by_weight() {
    let everyone = rule("everyone", clients(&["*"]), limits(&[RuleLimit { scales: true, ..limit(4, SECOND, 4) }]));
    let tier = |name: &str, factor| rule(name, clients(&[&format!("{name}-*")]), weight(factor));
    let mut sim = sim(reject(10_000), vec![everyone, tier("gold", 5), tier("silver", 2)]);
    let at_once = ["gold-1", "silver-1", "plain"].map(|client| send(&mut sim, client, 50));
    assert_eq!(at_once, [20, 8, 4]);
    sim.run_for(SECOND / 2);
    let later = ["gold-1", "silver-1", "plain"].map(|client| send(&mut sim, client, 50));
    assert_eq!(later, [10, 4, 2]);
}

/// An account's limit holds for all its users together, and each user has one, too.
#[test]
fn an_account_and_each_of_its_users_have_limits() {
    let account = rule("account", RuleTarget::Groups(patterns(&["acme"])), limits(&[limit(10, SECOND, 10)]));
    let users = RuleTarget::Clients { patterns: patterns(&["*"]), in_groups: Some(patterns(&["acme"])) };
    let each = rule("users", users, limits(&[limit(4, SECOND, 4)]));
    let mut sim = sim(Policy { names_groups: true, ..reject(1_000) }, vec![account, each]);
    assert_eq!(["acme/a", "acme/b", "acme/c"].map(|user| send(&mut sim, user, 6)), [4, 4, 2]);
    assert_eq!(send(&mut sim, "other", 20), 20);
}

#[test]
fn several_limits_hold_at_once() {
    let both = limits(&[limit(100, SECOND, 5), limit(10, Duration::from_secs(10), 10)]);
    let mut sim = sim(reject(1_000), vec![rule("both", clients(&["a"]), both)]);
    assert_eq!(send(&mut sim, "a", 20), 5, "the burst of the first");
    sim.run_for(SECOND);
    assert_eq!(send(&mut sim, "a", 20), 5, "the burst of the first");
    sim.run_for(SECOND);
    assert_eq!(send(&mut sim, "a", 20), 2, "the second: ten at once, and one a second");
}

#[test]
fn a_limit_that_changes_keeps_its_debt() {
    let with = |limit| with_rules(reject(1_000), vec![rule("r", clients(&["a"]), limits(&[limit]))]);
    let mut sim = Sim::new(with(limit(10, Duration::from_secs(10), 10)).at(START_MS), 1);
    assert_eq!(send(&mut sim, "a", 20), 10);
    sim.throttle.handle_rules(sim.now, with(limit(10, Duration::from_secs(10), 12)).at(START_MS));
    assert_eq!(send(&mut sim, "a", 20), 2);
}

/// The bug: a limit took over the debt of the one at its place, so another one that was taken away before it renewed it.
#[test]
fn limits_that_stay_keep_their_debts_wherever_they_stand() {
    let (fast, hourly) = (limit(50, SECOND, 50), limit(100, Duration::from_secs(3_600), 100));
    let with = |list: &[RuleLimit]| with_rules(reject(1_000), vec![rule("r", clients(&["a"]), limits(list))]);
    let mut sim = Sim::new(with(&[fast, hourly]).at(START_MS), 1);
    let mut sent = 0;
    for list in [&[fast, hourly][..], &[hourly], &[hourly, fast], &[fast, hourly]] {
        sim.throttle.handle_rules(sim.now, with(list).at(START_MS));
        for _ in 0..4 {
            sent += send(&mut sim, "a", 60);
            sim.run_for(SECOND);
        }
        assert_eq!(sent, 100, "with {} limits", list.len());
    }
}

/// The bug: a client was forgotten together with the debt to its own limit, and had the whole limit again when it came
/// back.
#[test]
fn a_client_is_not_forgotten_while_its_limit_counts_its_records() {
    let everyone = rule("everyone", clients(&["*"]), limits(&[limit(10, Duration::from_secs(3_600), 10)]));
    let mut sim = sim(Policy { client_idle_timeout: SECOND * 2, ..reject(1_000) }, vec![everyone]);
    assert_eq!(send(&mut sim, "a", 20), 10);
    sim.run_for(SECOND * 900);
    assert_eq!(send(&mut sim, "a", 20), 2, "one in six minutes");
    sim.run_for(SECOND * 3_610);
    assert!(sim.throttle.client("a").is_none(), "a newcomer would get no more");
}

/// A full registry forgets a client with a debt only if there is no other one.
#[test]
fn a_newcomer_takes_the_place_of_a_client_without_a_debt() {
    let partner = rule("partner", clients(&["partner-*"]), limits(&[limit(10, Duration::from_secs(3_600), 10)]));
    let mut sim = sim(Policy { max_clients: 40, ..reject(10_000) }, vec![partner]);
    let partners: Vec<String> = (0..37).map(|number| format!("partner-{number}")).collect();
    for client in partners.iter().map(String::as_str).chain(["other-1", "other-2", "other-3"]) {
        send(&mut sim, client, 20);
    }
    for number in 0..30 {
        sim.run_for(SECOND * 3);
        assert_eq!(send(&mut sim, &format!("new-{number}"), 1), 1);
    }
    sim.run_for(SECOND * 3);
    for partner in &partners {
        assert_eq!(send(&mut sim, partner, 20), 0, "{partner}: one in six minutes");
    }
}

fn hold(name: &str, target: RuleTarget) -> Rule {
    rule(name, target, Effects { hold: Some(true), ..Effects::default() })
}

/// A held client lends all that it has, and its records wait; then they go in their order.
#[test]
fn a_held_client_waits_and_lends_its_share() {
    let base = policy(100, SECOND);
    let mut sim = Sim::new(base.clone(), 1);
    let flood = |sim: &mut Sim| {
        for _ in 0..3_000 {
            for name in ["held", "free"] {
                sim.read(name, 0);
            }
            sim.run_for(Duration::from_millis(1));
        }
    };
    flood(&mut sim);
    let held = with_rules(base.clone(), vec![hold("night", clients(&["held"]))]);
    sim.throttle.handle_rules(sim.now, held.at(START_MS));
    assert_eq!(granted(&sim.throttle), 100);
    let admitted = |sim: &Sim, name| sim.count(name, |fate| matches!(fate, Fate::Admitted { .. }));
    let before = ["held", "free"].map(|name| admitted(&sim, name));
    flood(&mut sim);
    let during = ["held", "free"].map(|name| admitted(&sim, name));
    assert_eq!(during[0], before[0], "nothing of a held client is admitted");
    assert!(during[1] - before[1] >= 297, "the other client gets the whole capacity: {}", during[1] - before[1]);
    sim.throttle.handle_rules(sim.now, base.at(START_MS));
    flood(&mut sim);
    assert!(admitted(&sim, "held") - during[0] >= 140, "half of the capacity again");
}

/// A full offset map sends the oldest record of a partition before all others. While that one belongs to a held client,
/// the other clients wait for it, but no longer: it may leave by its longest wait.
#[test]
fn a_held_client_blocks_no_other_one_after_its_records_have_left() {
    let small = Policy { overflow: Overflow::Pause, map_budget: MapBudget::Chars(24), ..policy(10_000, SECOND) };
    let stale = Effects { hold: Some(true), max_delay: Some(SECOND * 2), ..Effects::default() };
    let mut sim = sim(small, vec![rule("night", clients(&["held"]), stale)]);
    for number in 0..400 {
        // Records in flight still arrive after the pause.
        sim.read(if number % 3 == 0 { "held" } else { "free" }, 0);
    }
    assert!(sim.paused[0] && sim.count("free", |fate| *fate == Fate::Held) > 0, "the map is full");
    sim.run_for(SECOND * 10);
    let waits = |name| sim.count(name, |fate| *fate == Fate::Held);
    assert_eq!([waits("held"), waits("free")], [0, 0]);
    assert_eq!(sim.count("free", |fate| matches!(fate, Fate::Rejected(_))), 0);
}

#[test]
fn reject_mode_rejects_records_of_held_clients_and_groups() {
    let base = Policy { names_groups: true, ..reject(100) };
    let rules = vec![hold("night", RuleTarget::Groups(patterns(&["g"]))), hold("one", clients(&["a"]))];
    let mut sim = sim(base, rules);
    for client in ["g/x", "a"] {
        assert_eq!(sim.read(client, 0), Fate::Rejected(Reason::Held), "{client}");
    }
    assert_eq!(sim.read("b", 0), Fate::Admitted { waited: Duration::ZERO });
}

#[test]
fn records_that_were_read_before_a_time_expire() {
    let base = policy(10, SECOND);
    let mut sim = Sim::new(base.clone(), 1);
    for client in ["a", "b"] {
        send(&mut sim, client, 30);
    }
    sim.run_for(SECOND * 2);
    send(&mut sim, "a", 5);
    let now_ms = START_MS + 2_000;
    let expire = Effects { expire_before_ms: Some(now_ms), ..Effects::default() };
    sim.throttle.handle_rules(sim.now, with_rules(base, vec![rule("empty", clients(&["a"]), expire)]).at(now_ms));
    sim.act();
    let expired = |name| sim.count(name, |fate| *fate == Fate::Rejected(Reason::Expired));
    let waiting = |name| sim.count(name, |fate| *fate == Fate::Held);
    assert_eq!(expired("b"), 0);
    assert!(expired("a") >= 15 && waiting("a") == 5, "{} expired, {} wait", expired("a"), waiting("a"));
}

/// Each client has its own longest wait. A change counts for records that begin to wait later.
#[test]
fn clients_have_longest_waits_of_their_own() {
    let delay = |name: &str, seconds| {
        let effects = Effects { max_delay: Some(Duration::from_secs(seconds)), ..Effects::default() };
        rule(name, clients(&[name]), effects)
    };
    let base = Policy { max_delay: Some(Duration::from_secs(60)), ..policy(10, SECOND) };
    let mut sim = sim(base.clone(), vec![delay("short", 2), delay("long", 20)]);
    for _ in 0..100 {
        for name in ["short", "long", "plain"] {
            sim.read(name, 0);
        }
    }
    sim.throttle.handle_rules(sim.now, with_rules(base, vec![delay("short", 5)]).at(START_MS));
    for _ in 0..100 {
        for name in ["short", "long", "plain"] {
            sim.read(name, 0);
        }
    }
    sim.run_for(Duration::from_secs(100));
    let longest = |name: &str| {
        let lives =
            sim.lives.values().filter(|life| life.client == name && life.fate == Fate::Rejected(Reason::Expired));
        let mut waits: Vec<u64> = lives.map(|life| life.decided.since(life.read).as_secs()).collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    };
    assert_eq!(longest("short"), [2, 5]);
    assert_eq!(longest("long").first(), Some(&20));
    assert!(longest("plain").is_empty() || longest("plain") == [60]);
    assert!(sim.lives.values().all(|life| life.fate != Fate::Held));
}

/// Without a table in the configuration, all clients stand alone, and a rule for one of them changes no other's share.
#[test]
fn a_weight_for_one_client_leaves_the_others_alone() {
    let mut sim = sim(policy(100, SECOND), vec![rule("vip", clients(&["vip"]), weight(2))]);
    for name in ["vip", "a", "b"] {
        sim.read(name, 0);
    }
    sim.run_for(SECOND);
    let share = |name: &str| sim.throttle.client(name).unwrap().grant.default_share.floor();
    assert_eq!(["vip", "a", "b"].map(share), [50, 25, 25]);
}

/// With a table, a client that a rule names in order to set its weight is listed, too: the unlisted ones weigh 1
/// together.
#[test]
fn a_weight_lists_a_client_beside_those_of_tables() {
    let base = Policy { clients: vec![sim::client("listed", 1.0, None)], ..policy(100, SECOND) };
    let table = rule("client.listed", clients(&["listed"]), weight(1));
    let mut sim = sim(base, vec![table, rule("vip", clients(&["vip"]), weight(2))]);
    for name in ["a", "b"] {
        sim.read(name, 0);
    }
    sim.run_for(SECOND);
    let share = |name: &str| sim.throttle.client(name).unwrap().grant.default_share.as_f64();
    assert_eq!(["listed", "vip", "a", "b"].map(share), [25.0, 50.0, 12.5, 12.5]);
}

/// The bug: a rule listed the clients that it names also if they are in none of its groups, so that it has no effect on
/// them. Each had the share of a listed client.
#[test]
fn a_rule_for_clients_of_some_groups_lists_no_others() {
    let groups = vec![group_of_clients("gold", &["gold-*"])];
    let base = Policy { clients: vec![sim::client("listed", 1.0, None)], groups, ..policy(300, SECOND) };
    let target =
        RuleTarget::Clients { patterns: patterns(&["a", "b", "gold-1"]), in_groups: Some(patterns(&["gold"])) };
    let mut sim = sim(base, vec![rule("vip", target, weight(2))]);
    for name in ["a", "b", "gold-1"] {
        sim.read(name, 0);
    }
    sim.run_for(SECOND);
    let share = |name: &str| sim.throttle.client(name).unwrap().grant.default_share.as_f64();
    assert_eq!(["listed", "gold-1", "a", "b"].map(share), [100.0, 100.0, 50.0, 50.0]);
}

/// The fault: ids of a rule filled the registry, and records of all other clients were rejected.
#[test]
fn clients_that_rules_list_take_no_place_from_others() {
    let listed = vec![sim::client("listed", 1.0, None)];
    let base = Policy { clients: listed, max_clients: 4, ..reject(1_000) };
    let mut sim = sim(base, vec![rule("partners", clients(&["a", "b", "c", "d", "e", "f"]), weight(2))]);
    for client in ["one", "two", "three"] {
        assert_eq!(send(&mut sim, client, 1), 1, "{client}");
    }
    assert_eq!(sim.read("four", 0), Fate::Rejected(Reason::TooManyClients));
}

/// Ten thousand groups are the most. Clients of further ones are unlisted.
#[test]
fn the_number_of_groups_is_bounded() {
    let names: Vec<String> = (0..10_500).map(|number| format!("g{number:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = rule("many", RuleTarget::Groups(patterns(&names)), Effects::default());
    let listed = vec![sim::client("listed", 1.0, None)];
    let policy = Policy { names_groups: true, clients: listed, ..reject(1_000) };
    let policy = with_rules(policy, vec![many]).at(START_MS);
    assert_eq!(policy.groups.len(), 10_000);
    assert!(policy.group_of("g09999/a").is_some() && policy.group_of("g10000/a").is_none());
    assert!(!policy.would_make_group("g10000"));
    let mut sim = Sim::new(policy, 1);
    let group_of = |sim: &mut Sim, client: &str| {
        sim.read(client, 0);
        sim.throttle.client(client).unwrap().group()
    };
    assert_eq!([group_of(&mut sim, "g10000/a"), group_of(&mut sim, "g00000/a")], [Some(0), Some(1)]);
}

fn group_of_clients(name: &str, listed: &[&str]) -> GroupPolicy {
    let (weight, limits) = (Weight::ONE, Vec::new());
    GroupPolicy { name: name.to_owned(), weight, limits, hold: false, clients: patterns(listed) }
}

/// The bug: in a group of instances, a group that a rule made before any client was known stopped the engine.
#[test]
fn a_rule_makes_a_group_before_the_first_client() {
    for scope in [Scope::Instance, Scope::Group] {
        let base = Policy { scope, names_groups: true, ..policy(10, SECOND) };
        let gold = vec![rule("gold", RuleTarget::Groups(patterns(&["gold"])), weight(2))];
        let with_rule = Policy { rules: Arc::new(Rules::new(gold)), ..base.clone() }.at(START_MS);
        let mut throttle = Throttle::new(base, START);
        throttle.handle_rules(START, with_rule.clone());
        throttle.handle_policy(START, with_rule);
    }
}

/// The bugs: a group's table with `"*"` was before a rule of run time for all clients, and one with a client's id was
/// behind one with a pattern of as many characters.
#[test]
fn tables_of_groups_rank_as_rules_do() {
    let groups = vec![group_of_clients("a", &[]), group_of_clients("z", &["*"])];
    let effects = Effects { group: Some("a".into()), ..Effects::default() };
    let to_a = Rule { origin: Origin::RunTime, ..rule("move", clients(&["*"]), effects) };
    let with_rule = Policy { groups, rules: Arc::new(Rules::new(vec![to_a])), ..policy(10, SECOND) }.at(START_MS);
    let name_of = |policy: &Policy, client| policy.group_of(client).map(|group| policy.groups[group].name.clone());
    assert_eq!(name_of(&with_rule, "x").as_deref(), Some("a"));
    let groups = vec![group_of_clients("a", &["car-1*"]), group_of_clients("b", &["car-1"])];
    let tables = Policy { groups, ..policy(10, SECOND) };
    assert_eq!(name_of(&tables, "car-1").as_deref(), Some("b"));
    assert_eq!(name_of(&tables, "car-12").as_deref(), Some("a"));
}

#[test]
fn a_weekend_is_a_rule_with_two_times() {
    let base = policy(100, SECOND);
    let weekend =
        Rule { from_ms: Some(10), until_ms: Some(20), ..rule("weekend", RuleTarget::Service, Effects::default()) };
    let effects = Effects { capacity: Some(300), enforce: Some(false), ..Effects::default() };
    let policy = with_rules(base, vec![Rule { effects, ..weekend }]);
    let at = |now| (policy.at(now).capacity, policy.at(now).enforce);
    assert_eq!([9, 10, 19, 20].map(at), [(100, true), (300, false), (300, false), (100, true)]);
    assert_eq!([0, 10, 20].map(|now| policy.rules.next_change(now)), [Some(10), Some(20), None]);
}

/// The grants that a change of rules is announced with are those that the next cycle gives. The fault: unlisted clients
/// counted with the weights that rules give them inside their group, and not as one each, in what they weigh together.
#[test]
fn the_forecast_of_unlisted_clients_is_what_they_get() {
    for (unlisted_weight, of_pattern) in [(1, 500), (1, 5_000), (5, 5_000), (5, 1_000)] {
        let base = Policy {
            clients: vec![sim::client("listed", 1.0, None)],
            unlisted_weight: Weight::from_thousandths(unlisted_weight * 1_000).unwrap(),
            ..reject(1_000)
        };
        let table = rule("client.listed", clients(&["listed"]), weight(1));
        let light = Effects { weight: Weight::from_thousandths(of_pattern), ..Effects::default() };
        let policy = with_rules(base, vec![table, rule("free", clients(&["free-*"]), light)]).at(START_MS);
        let mut sim = Sim::new(policy.clone(), 1);
        let names = ["listed", "free-1", "other"];
        for _ in 0..3_000 {
            for name in names {
                sim.read(name, 0);
            }
            sim.run_for(SECOND / 1_000);
        }
        let wants = names.map(|name| (Arc::from(name), sim.throttle.client(name).unwrap().last_wants));
        let granted = names.map(|name| sim.throttle.client(name).unwrap().grant.records);
        let forecast = watermaster_core::scheduler::grants(&policy, policy.capacity, &wants);
        assert_eq!(forecast, granted, "{wants:?}, {unlisted_weight}, {of_pattern}");
    }
}

/// A rule's capacity protects the service where the search finds more, and raises nothing where it finds less.
#[test]
fn the_smaller_one_of_the_found_capacity_and_that_of_a_rule_counts() {
    let capacity = |records| Effects { capacity: Some(records), ..Effects::default() };
    let observe = Effects { pace_observes: Some(true), ..Effects::default() };
    for (effects, counts) in [(capacity(50), 50), (capacity(90), 80), (observe, 100), (weight(1), 80)] {
        let rules = vec![rule("night", RuleTarget::Service, effects)];
        let mut policy = with_rules(policy(100, SECOND), rules).at(START_MS);
        policy.take_found(Some(80));
        assert_eq!(policy.capacity, counts);
    }
}

/// Records that are read after the time of `expire_before` stay, also if the rule comes into force later than that.
#[test]
fn only_records_that_were_read_before_the_time_of_a_rule_expire() {
    let at = |seconds: i64| START_MS + seconds * 1_000;
    let effects = Effects { expire_before_ms: Some(at(2)), ..Effects::default() };
    let policy = with_rules(policy(1, SECOND * 1_000), vec![rule("stop", clients(&["a"]), effects)]);
    let mut sim = Sim::new(policy.at(at(0)), 1);
    let expired = |sim: &Sim| sim.count("a", |fate| *fate == Fate::Rejected(Reason::Expired));
    (0..10).for_each(|_| _ = sim.read("a", 0));
    sim.run_for(SECOND * 3);
    assert_eq!(expired(&sim), 0, "its time has not come, or nothing told the throttle");
    (0..10).for_each(|_| _ = sim.read("a", 0));
    sim.run_for(SECOND);
    sim.throttle.handle_rules(sim.now, policy.at(at(4)));
    sim.run_for(SECOND);
    assert_eq!(expired(&sim), sim.count("a", |fate| matches!(fate, Fate::Rejected(_))));
    assert_eq!((expired(&sim), sim.count("a", |fate| *fate == Fate::Held)), (9, 10));
}
