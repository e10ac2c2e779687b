//! The metrics of rules.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use watermaster_api::RuleChangeView;
use watermaster_core::rules::log::record::{ChangeId, RuleVersion};
use watermaster_core::rules::{Origin, Rule, Rules};
use watermaster_settings::Service;
use watermaster_settings::config::rule_of_json;

use super::*;
use crate::rules::{KnownRule, LogState, NotUnderstood, RulesCell};

const NOW_MS: i64 = 1_000_000;

fn rule(name: &str, more: Value) -> Rule {
    let mut body = json!({ "clients": ["web"], "weight": 2 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rule_of_json(name, body.as_object().unwrap(), u64::MAX).unwrap()
}

fn service_with(topic: Option<&str>, of_file: &[&str]) -> Service {
    let mut service = crate::tests::service(Mode::Shape, true);
    service.rules_topic = topic.map(str::to_owned);
    let of_file = of_file.iter().map(|name| Rule { origin: Origin::File, ..rule(name, json!({})) });
    service.policy.rules = Arc::new(Rules::new(of_file.collect()));
    service
}

/// Returns rules of run time in each state, one of which replaces the rule `base` of the file.
fn cell() -> RulesCell {
    let cell = RulesCell::default();
    let mut known = cell.known();
    let rules = [
        ("base", Ok(rule("base", json!({})))),
        ("next", Ok(rule("next", json!({ "from": "1970-01-01T00:16:41Z" })))),
        ("over", Ok(rule("over", json!({ "until": "1970-01-01T00:16:40Z" })))),
        ("off", Ok(rule("off", json!({ "disabled": true })))),
        ("new", Err(NotUnderstood::LaterForm(2))),
    ];
    for ((name, rule), at_ms) in rules.into_iter().zip(7_000..) {
        let version = RuleVersion { n: 1, id: ChangeId(7) };
        let rule = KnownRule { version, by: "ops".into(), at_ms, body: "{}".into(), rule, forbidden_capacity: None };
        known.rules.insert(name.into(), rule);
    }
    (known.state, known.read_at) = (LogState::Known, Some(Instant::now()));
    (known.read_offset, known.sum) = (41, (1 << 53) + 5);
    known.counts.insert(("put", "in_force"), 4);
    drop(known);
    cell
}

fn scrape_rules(service: &Service, cell: &RulesCell) -> Samples {
    let mut publisher = Publisher::new("", 10);
    publish_start(&mut publisher);
    publisher.services.get_mut("kyc").unwrap().rules = RulesFigures::of(service, cell, NOW_MS);
    parse(&publisher.render()).0.into_iter().filter(|((name, _), _)| name.starts_with("watermaster_rules")).collect()
}

fn number(samples: &Samples, origin: &str, state: &str) -> Option<f64> {
    sample(samples, "watermaster_rules", &[("service", "kyc"), ("origin", origin), ("state", state)])
}

fn of_service(samples: &Samples, name: &str) -> Option<f64> {
    sample(samples, name, &[("service", "kyc")])
}

/// Publishes rules of each origin, so that each metric of rules has a sample.
pub(super) fn publish_known(publisher: &mut Publisher) {
    let rules = RulesFigures::of(&service_with(Some("rules"), &["base"]), &cell(), NOW_MS);
    publisher.services.get_mut("kyc").unwrap().rules = rules;
}

#[test]
fn rules_are_counted_by_origin_and_state() {
    let samples = scrape_rules(&service_with(Some("rules"), &["base", "other"]), &cell());
    let states = ["in_force", "not_yet", "expired", "disabled", "replaced", "not_understood"];
    let of = |origin| states.map(|state| number(&samples, origin, state).unwrap());
    assert_eq!(of("file"), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(of("run_time"), [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]);
}

#[test]
fn changes_of_rules_are_counted_and_each_result_exists_at_0() {
    let samples = scrape_rules(&service_with(Some("rules"), &[]), &cell());
    let count = |(verb, result)| {
        let labels = [("service", "kyc"), ("verb", verb), ("result", result)];
        sample(&samples, "watermaster_rules_changes_total", &labels)
    };
    let counts = [("put", "in_force"), ("put", "unknown"), ("delete", "refused"), ("read", "unreadable")].map(count);
    assert_eq!(counts, [4.0, 0.0, 0.0, 0.0].map(Some));
}

#[test]
fn the_checksum_is_exact_as_a_float_and_stands_beside_its_offset() {
    let service = service_with(Some("rules"), &[]);
    let samples = scrape_rules(&service, &cell());
    let figures = ["watermaster_rules_read_offset", "watermaster_rules_checksum"];
    assert_eq!(figures.map(|name| of_service(&samples, name)), [Some(41.0), Some(5.0)]);
    let is_short = |samples: &Samples| {
        of_service(samples, "watermaster_rules_behind_seconds").is_some_and(|behind| (0.0..60.0).contains(&behind))
    };
    assert!(is_short(&samples));

    // An instance that runs without the rules has to show for how long: without the sample, no alert could tell.
    let reading = cell();
    reading.known().read_at = None;
    let samples = scrape_rules(&service, &reading);
    assert_eq!(figures.map(|name| of_service(&samples, name)), [None; 2], "before all was read once");
    assert!(is_short(&samples));
}

#[test]
fn the_last_change_is_that_of_the_newest_rule_or_of_a_deleted_one() {
    let (service, cell) = (service_with(Some("rules"), &[]), cell());
    let at = || of_service(&scrape_rules(&service, &cell), "watermaster_rules_last_change_seconds");
    assert_eq!(at(), Some(7.004));
    cell.known().note_change(RuleChangeView {
        at: "1970-01-01T00:00:09.500Z".to_owned(),
        by: "ops".to_owned(),
        name: "gone".to_owned(),
        etag: None,
        rule: Value::Null,
    });
    assert_eq!(at(), Some(9.5));
    let empty = scrape_rules(&service, &RulesCell::default());
    assert_eq!(of_service(&empty, "watermaster_rules_last_change_seconds"), None);
}

#[test]
fn without_a_topic_only_rules_of_the_file_are_counted() {
    let samples = scrape_rules(&service_with(None, &["base"]), &RulesCell::default());
    let names: BTreeSet<&str> = samples.keys().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["watermaster_rules"]));
    assert_eq!([number(&samples, "file", "in_force"), number(&samples, "run_time", "in_force")], [Some(1.0), None]);
    assert_eq!(scrape_rules(&service_with(None, &[]), &RulesCell::default()), Samples::new());
}
