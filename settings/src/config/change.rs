//! Compares two configurations: a running program takes over some keys, the others need a restart.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use watermaster_core::policy::Scope;

use super::{Config, ConfigError, ConfigErrors, SCHEMA};
use crate::model::Service;
use crate::reader::{Entry, KeyPath, Segment};

const RESTART: &str = "as it was while the program runs; a restart takes it over";

impl Config {
    /// Returns the keys in which another configuration differs, in order.
    ///
    /// # Errors
    /// One for each key that takes a restart to change.
    pub fn changes(&self, to: &Config) -> Result<Vec<KeyPath>, ConfigErrors> {
        let (before, after) = (entries(self), entries(to));
        let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let (mut changed, mut errors) = (Vec::new(), Vec::new());
        for &&key in &keys {
            let (old, new) = (before.get(key), after.get(key));
            let [before, after] = [old, new].map(|entry| entry.and_then(|entry| entry.value.as_ref()));
            if before == after {
                continue;
            }
            changed.push(key.clone());
            if let Some(entry) = new.or(old).filter(|entry| !entry.reloads || self.is_fixed_in_group(entry)) {
                errors.push(self.needs_restart(entry, before, after));
            }
        }
        if errors.is_empty() && !self.is_alike(to) {
            errors.extend(self.hidden_change());
        }
        if errors.is_empty() { Ok(changed) } else { Err(ConfigErrors::new(SCHEMA.subject, errors)) }
    }

    /// Returns whether all instances of a group must have the same value of this key at any time.
    fn is_fixed_in_group(&self, entry: &Entry) -> bool {
        let in_group = self.service_of(entry).is_some_and(|service| service.policy.scope == Scope::Group);
        let name = entry.key.segments().last();
        in_group && matches!(name, Some(Segment::Name(name)) if name == "cycle" || name == "mode")
    }

    fn service_of(&self, entry: &Entry) -> Option<&Service> {
        match entry.key.segments() {
            [Segment::Name(list), Segment::Index(index), ..] if list == "service" => self.settings.services.get(*index),
            _ => None,
        }
    }

    fn needs_restart(&self, entry: &Entry, before: Option<&Value>, after: Option<&Value>) -> ConfigError {
        let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), |value| value.to_string());
        let service = self.service_of(entry);
        ConfigError {
            key: entry.key.clone(),
            service: service.map(|service| service.name.clone()),
            problem: format!("has changed from {} to {}", show(before), show(after)),
            allowed: RESTART.to_owned(),
            origin: entry.origin.clone(),
        }
    }

    /// Returns the error for a difference that no entry shows: the value of a hidden property.
    fn hidden_change(&self) -> Option<ConfigError> {
        let section = KeyPath::default().child("kafka");
        let servers = section.child("bootstrap_servers");
        Some(ConfigError {
            key: section.child("properties"),
            service: None,
            problem: "a value that is not shown has changed".to_owned(),
            allowed: RESTART.to_owned(),
            origin: self.effective.iter().find(|entry| entry.key == servers)?.origin.clone(),
        })
    }

    /// Returns whether the settings differ in nothing but policies.
    fn is_alike(&self, to: &Config) -> bool {
        let mut to = to.settings.clone();
        for (service, own) in to.services.iter_mut().zip(&self.settings.services) {
            service.policy.clone_from(&own.policy);
        }
        to == self.settings
    }
}

fn entries(config: &Config) -> BTreeMap<&KeyPath, &Entry> {
    config.effective.iter().map(|entry| (&entry.key, entry)).collect()
}
