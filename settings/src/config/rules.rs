//! Rules between keys of different sections.

use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use humantime::format_duration;

use super::{service, values};
use crate::reader::{KeyPath, Section};

/// Checks everything that no section can check alone, and notes each error. Keys with errors of their own are skipped.
pub fn check(kafka: &Section<'_>, services: &[Section<'_>]) {
    check_names(services);
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
    for source in services.iter().flat_map(|service| service.tables("source")) {
        let topic = source.optional("topic", values::topic).flatten();
        claim(&mut sources, &source, "topic", topic, "each topic as a source only once");
        let pattern = source.optional("topic_pattern", |text| values::topic_pattern(text).map(|_| text.to_owned()));
        claim(&mut patterns, &source, "topic_pattern", pattern.flatten(), "each pattern only once");
    }
    for service in services {
        let topics = ["target", "dead_letter"].map(|key| (key, service.text(key, values::topic)));
        let outputs = [topics.as_slice(), &[("control_topic", service::control_topic(service, kafka))]].concat();
        for (index, (key, topic)) in outputs.iter().enumerate() {
            let Some(topic) = topic else { continue };
            if let Some(source) = sources.get(topic) {
                service.refuse(
                    key,
                    format!("is {topic:?}, which is {source} too: records would go round in a loop"),
                    "a topic that is no source of any service",
                );
            }
            if let Some((other, _)) = outputs[..index].iter().find(|(_, name)| name.as_ref() == Some(topic)) {
                service.refuse(key, format!("is {topic:?}, which is the {other} too"), "a topic of its own");
            }
        }
    }
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
