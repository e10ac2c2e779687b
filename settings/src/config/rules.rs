//! Rules that hold between keys of different sections.

use std::collections::BTreeMap;
use std::time::Duration;

use super::section::Section;
use super::service::Draft;

/// Checks everything that no section can see alone, and notes what is wrong.
pub fn check(kafka: &Section<'_>, commit_interval: Option<Duration>, drafts: &[Draft<'_>]) {
    check_names(drafts);
    check_sources(drafts);
    check_outputs(drafts);
    check_commit_interval(kafka, commit_interval, drafts);
}

fn check_names(drafts: &[Draft<'_>]) {
    let mut seen = BTreeMap::new();
    for draft in drafts {
        let Some(name) = &draft.name else { continue };
        if let Some(first) = seen.insert(name, draft.section.path()) {
            draft.section.refuse(
                "name",
                format!("is {name:?}, which is {first} too"),
                "a name of its own for each service",
            );
        }
    }
}

fn check_sources(drafts: &[Draft<'_>]) {
    let mut seen = BTreeMap::new();
    for (section, topic) in drafts.iter().flat_map(|draft| &draft.sources) {
        let Some(topic) = topic else { continue };
        if let Some(first) = seen.insert(topic, section.path()) {
            section.refuse("topic", format!("is {topic:?}, which is {first} too"), "each topic as a source only once");
        }
    }
}

fn check_outputs(drafts: &[Draft<'_>]) {
    let sources: Vec<_> = drafts
        .iter()
        .flat_map(|draft| &draft.sources)
        .filter_map(|(section, topic)| Some((topic.as_ref()?, section.path())))
        .collect();
    for draft in drafts {
        let outputs =
            [("target", &draft.target), ("dead_letter", &draft.dead_letter), ("control_topic", &draft.control_topic)];
        for (index, (key, topic)) in outputs.iter().enumerate() {
            let Some(topic) = topic else { continue };
            if let Some((_, source)) = sources.iter().find(|(name, _)| *name == topic) {
                draft.section.refuse(
                    key,
                    format!("is {topic:?}, which is {source} too: records would go round in a loop"),
                    "a topic that is no source of any service",
                );
            }
            if let Some((other, _)) = outputs[..index].iter().find(|(_, name)| name.as_ref() == Some(topic)) {
                draft.section.refuse(key, format!("is {topic:?}, which is the {other} too"), "a topic of its own");
            }
        }
    }
}

/// A round must be short beside every cycle, or the window's promise gets coarse.
fn check_commit_interval(kafka: &Section<'_>, commit_interval: Option<Duration>, drafts: &[Draft<'_>]) {
    let shortest = drafts.iter().filter_map(|draft| Some((draft.cycle?, draft))).min_by_key(|(cycle, _)| *cycle);
    let (Some(interval), Some((cycle, draft))) = (commit_interval, shortest) else {
        return;
    };
    if interval > cycle / 10 {
        let most = humantime::format_duration(cycle / 10);
        let interval = humantime::format_duration(interval);
        kafka.refuse(
            "commit_interval",
            format!(
                "is \"{interval}\", above a tenth of the cycle of {} ({})",
                draft.section.path(),
                humantime::format_duration(cycle)
            ),
            format!("{most} or less"),
        );
    }
}
