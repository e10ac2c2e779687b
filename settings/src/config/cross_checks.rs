//! Rules between keys of different sections.

use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use humantime::format_duration;
use watermaster_core::policy::Scope;

use super::{service, values};
use crate::model::Service;
use crate::reader::{KeyPath, Section};

/// Checks everything that no section can check alone, and notes each error. Keys with errors of their own are skipped.
pub fn check(kafka: &Section<'_>, admin: &Section<'_>, services: &[Section<'_>]) {
    check_names(services);
    warn_of_useless_tokens(admin, services);
    check_topics(kafka, services);
    check_commit_interval(kafka, services);
}

fn check_names(services: &[Section<'_>]) {
    let mut seen = BTreeMap::new();
    for service in services {
        let name = service.text("name", values::service_name);
        claim(&mut seen, service, "name", name, "a name of its own for each service");
    }
}

/// Reports the services of tokens that are not configured, mostly for a typing error: the token changes no rule of the
/// service that was meant.
fn warn_of_useless_tokens(admin: &Section<'_>, services: &[Section<'_>]) {
    let names: Vec<String> = services.iter().filter_map(|service| service.text("name", values::service_name)).collect();
    for token in admin.tables("token") {
        let listed = token.list("services", values::service_name).flatten().unwrap_or_default();
        for unknown in listed.iter().filter(|name| !names.contains(name)) {
            let problem = format!("has {unknown:?}, which is the name of no service");
            token.warn("services", problem, format!("one or more of {}", names.join(", ")));
        }
    }
}

/// Notes an error if another section has the same value at `key`.
fn claim(seen: &mut BTreeMap<String, KeyPath>, section: &Section<'_>, key: &str, value: Option<String>, allowed: &str) {
    match value.map(|value| seen.entry(value)) {
        Some(Entry::Occupied(first)) => {
            section.refuse(key, format!("is {:?}, which is {} too", first.key(), first.get()), allowed);
        }
        Some(Entry::Vacant(place)) => _ = place.insert(section.path.clone()),
        None => {}
    }
}

fn check_topics(kafka: &Section<'_>, services: &[Section<'_>]) {
    let (mut sources, mut patterns) = (BTreeMap::new(), BTreeMap::new());
    let of_dlq = topics_of_dlq(kafka, services);
    for source in services.iter().flat_map(|service| service.tables("source")) {
        let topic = source.optional("topic", values::topic).flatten();
        refuse_of_dlq(&of_dlq, &source, "topic", topic.as_deref());
        claim(&mut sources, &source, "topic", topic, "each topic as a source only once");
        let pattern = source.optional("topic_pattern", |text| values::topic_pattern(text).map(|_| text.to_owned()));
        claim(&mut patterns, &source, "topic_pattern", pattern.flatten(), "each pattern only once");
    }
    let (mut ledgers, mut logs) = (BTreeMap::new(), BTreeMap::new());
    for service in services {
        let is_in_group = service.get::<Scope>("scope") == Some(Scope::Group);
        let (mut uses, ledger) = (BTreeMap::new(), service.text("dead_letter", values::topic));
        for (section, key, topic) in outputs(service, kafka) {
            let Some(topic) = topic else { continue };
            refuse_of_dlq(&of_dlq, &section, key, Some(&topic));
            if let Some(source) = sources.get(&topic) {
                section.refuse(
                    key,
                    format!("is {topic:?}, which is {source} too: records would go round in a loop"),
                    "a topic that is no source of any service",
                );
            }
            // Sources may share a target, or a dead-letter topic.
            let other = *uses.entry(topic.clone()).or_insert(key);
            if other != key {
                section.refuse(key, format!("is {topic:?}, which is the {other} too"), "a topic of its own");
            }
            if key == "rules_topic" || key == "control_topic" && is_in_group {
                claim_log(&mut logs, &section, key, &topic);
            }
            if key == "dead_letter" && *ledgers.entry(topic.clone()).or_insert(ledger.clone()) != ledger {
                let problem =
                    format!("is {topic:?}, where another service with a ledger of its own rejects records, too");
                section.refuse(key, problem, "one dead_letter of both services, or a topic of its own");
            }
        }
    }
}

/// Returns the topics that `dlq` makes for all services, each with its use.
fn topics_of_dlq(kafka: &Section<'_>, services: &[Section<'_>]) -> BTreeMap<String, &'static str> {
    let mut topics = BTreeMap::new();
    for service in services {
        let own = service.text("dead_letter", values::topic);
        topics.extend(own.map(|topic| (Service::ledger_beside(&topic), "the ledger of dead letters")));
        let dead_letters = outputs(service, kafka).into_iter().filter(|(_, key, _)| *key == "dead_letter");
        let parked = dead_letters.filter_map(|(.., topic)| Some((Service::parked(&topic?), "parked dead letters")));
        topics.extend(parked);
    }
    topics
}

fn refuse_of_dlq(of_dlq: &BTreeMap<String, &str>, section: &Section<'_>, key: &str, topic: Option<&str>) {
    if let Some((topic, kept)) = topic.and_then(|topic| of_dlq.get_key_value(topic)) {
        section.refuse(key, format!("is {topic:?}, where dlq keeps {kept}"), "a topic of its own");
    }
}

/// Notes an error if another service has the same topic for its rules or its seats. Records there name no service: with
/// those of another one, an instance would have capacity that is not its own.
fn claim_log(logs: &mut BTreeMap<String, (KeyPath, bool)>, service: &Section<'_>, key: &str, topic: &str) {
    let is_set = service.is_set(key);
    match logs.entry(topic.to_owned()) {
        Entry::Occupied(first) => {
            let (other, other_is_set) = first.get();
            // Services of one name have one default, and an error for their name.
            if *other != service.path && (is_set || *other_is_set) {
                service.refuse(key, format!("is {topic:?}, which is that of {other} too"), "a topic of its own");
            }
        }
        Entry::Vacant(place) => _ = place.insert((service.path.clone(), is_set)),
    }
}

/// Returns the topics that a service writes to, each with its section and key; the service's own come first.
fn outputs<'a>(service: &Section<'a>, kafka: &Section<'_>) -> Vec<(Section<'a>, &'static str, Option<String>)> {
    const KEYS: [&str; 2] = ["target", "dead_letter"];
    let own = KEYS.map(|key| (service.clone(), key, service.text(key, values::topic)));
    let control = (service.clone(), "control_topic", service::control_topic(service, kafka));
    let rules = (service.clone(), "rules_topic", service.optional("rules_topic", values::topic).flatten());
    let of_source =
        |source: Section<'a>| KEYS.map(|key| (source.clone(), key, source.optional(key, values::topic).flatten()));
    let of_sources = service.tables("source").into_iter().flat_map(of_source);
    own.into_iter().chain([control, rules]).chain(of_sources).collect()
}

/// A round must be short compared to every cycle: the window's limit holds to within one round.
fn check_commit_interval(kafka: &Section<'_>, services: &[Section<'_>]) {
    let cycles = services.iter().filter_map(|service| Some((service.get::<Duration>("cycle")?, service)));
    let Some((cycle, service)) = cycles.min_by_key(|(cycle, _)| *cycle) else { return };
    let Some(interval) = kafka.get::<Duration>("commit_interval").filter(|interval| *interval > cycle / 10) else {
        return;
    };
    let (interval, path, cycle_text) = (format_duration(interval), &service.path, format_duration(cycle));
    let problem = format!("is \"{interval}\", above a tenth of the cycle of {path} ({cycle_text})");
    kafka.refuse("commit_interval", problem, format!("{} or less", format_duration(cycle / 10)));
}
