//! What a running program can take over from another configuration, and what only a restart can.

use std::collections::BTreeMap;

use serde_json::Value;

use super::effective::Entry;
use super::layers::child;
use super::{Config, ConfigError, ConfigErrors};

/// The keys of a service that take effect while it runs; so do all of its `shape` and its clients.
pub const RELOADED: &[&str] = &[
    "capacity",
    "cycle",
    "reservation",
    "lending",
    "mode",
    "enforce",
    "window",
    "catch_up",
    "max_clients",
    "unlisted_weight",
    "client_idle_timeout",
];

impl Config {
    /// The keys in which another configuration differs, in order.
    ///
    /// # Errors
    /// One for each key that takes a restart to change.
    pub fn changes(&self, to: &Config) -> Result<Vec<String>, ConfigErrors> {
        let (before, after) = (entries(self), entries(to));
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort();
        keys.dedup();
        let differs = |key: &&&String| value(&before, key) != value(&after, key);
        let changed: Vec<&String> = keys.iter().filter(differs).copied().collect();
        let fixed = changed.iter().filter_map(|key| {
            let entry = after.get(*key).or_else(|| before.get(*key))?;
            (!takes_effect(entry)).then(|| self.needs_restart(key, entry, value(&before, key), value(&after, key)))
        });
        let mut errors: Vec<ConfigError> = fixed.collect();
        if errors.is_empty() && !self.is_alike(to) {
            errors.extend(before.get("kafka.bootstrap_servers").map(|entry| ConfigError {
                key: "kafka.properties".to_owned(),
                service: None,
                problem: "a value that is not shown has changed".to_owned(),
                allowed: RESTART.to_owned(),
                origin: entry.origin.clone(),
            }));
        }
        if errors.is_empty() { Ok(changed.into_iter().cloned().collect()) } else { Err(ConfigErrors::new(errors)) }
    }

    fn needs_restart(&self, key: &str, entry: &Entry, before: Option<&Value>, after: Option<&Value>) -> ConfigError {
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        ConfigError {
            key: key.to_owned(),
            service: within_service(&entry.section)
                .and_then(|(index, _)| Some(self.settings.services.get(index)?.name.clone())),
            problem: format!("has changed from {} to {}", show(before), show(after)),
            allowed: RESTART.to_owned(),
            origin: entry.origin.clone(),
        }
    }

    /// Whether nothing differs but policies.
    fn is_alike(&self, to: &Config) -> bool {
        let mut to = to.settings.clone();
        if to.services.len() != self.settings.services.len() {
            return false;
        }
        for (service, mine) in to.services.iter_mut().zip(&self.settings.services) {
            service.policy.clone_from(&mine.policy);
        }
        to == self.settings
    }
}

/// The service that a section belongs to, by its place in the list, and the rest of the section's path.
fn within_service(section: &str) -> Option<(usize, &str)> {
    let (index, within) = section.strip_prefix("service[")?.split_once(']')?;
    Some((index.parse().ok()?, within))
}

const RESTART: &str = "as it was while the program runs; a restart takes it over";

fn entries(config: &Config) -> BTreeMap<String, &Entry> {
    config.effective.iter().map(|entry| (child(&entry.section, &entry.name), entry)).collect()
}

fn value<'a>(entries: &BTreeMap<String, &'a Entry>, key: &str) -> Option<&'a Value> {
    entries.get(key)?.value.as_ref()
}

fn takes_effect(entry: &Entry) -> bool {
    match within_service(&entry.section) {
        None => false,
        Some((_, "")) => RELOADED.contains(&entry.name.as_str()),
        Some((_, within)) => within == ".shape" || within.starts_with(".client."),
    }
}
