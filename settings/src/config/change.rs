//! Compares two configurations: a running program takes over some keys, the others need a restart.

use std::collections::{BTreeMap, BTreeSet};

use humantime::parse_duration;
use serde_json::Value;

use watermaster_core::policy::Scope;

use super::schema::NAMED_TABLES;
use super::{Config, ConfigError, ConfigErrors, Origin, SCHEMA};
use crate::model::Service;
use crate::reader::{Entry, KeyPath, Segment};

const RESTART: &str = "as it was while the program runs; a restart takes it over";
/// A number that changes by more than this factor is doubtful: a digit too many admits ten times as much.
const MOST_FACTOR: f64 = 2.0;
/// The keys that tell the elements of a list apart. A source has one of the last two.
const NAMES: [&str; 3] = ["name", "topic", "topic_pattern"];

/// A list or tables by name, the key that each of its elements has, and the number of steps to an element.
type Kind = (&'static str, &'static str, usize);
const LISTS: [Kind; 4] =
    [("service", NAMES[0], 2), ("token", NAMES[0], 3), ("source", NAMES[1], 4), ("rule", NAMES[0], 4)];

/// One difference between two configurations.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    pub key: KeyPath,
    /// The service that the key belongs to.
    pub service: Option<String>,
    /// The values before and after; for a service or a source that came or went, its name; for one in the place of
    /// another, both.
    pub from: Option<Value>,
    pub to: Option<Value>,
    pub origin: Origin,
}

impl Changed {
    /// Returns by which factor a number or a time has changed, if it is more than twice or less than half of the former
    /// one.
    pub fn doubtful_factor(&self) -> Option<f64> {
        let magnitude = |value: &Option<Value>| {
            let value = value.as_ref()?;
            value.as_f64().or_else(|| parse_duration(value.as_str()?).ok().map(|time| time.as_secs_f64()))
        };
        let factor = magnitude(&self.to)? / magnitude(&self.from)?;
        (factor.is_finite() && !(1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&factor)).then_some(factor)
    }
}

impl Config {
    /// Returns the differences to another configuration, in the order of their keys. A service, a token or a source
    /// that came or went is one.
    ///
    /// # Errors
    /// One for each key that takes a restart to change.
    pub fn changes(&self, to: &Config) -> Result<Vec<Changed>, ConfigErrors> {
        let (before, after) = (entries(self), entries(to));
        let tables = NAMED_TABLES.map(|name| (name, "weight", 4));
        let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        let (mut changed, mut errors) = (BTreeMap::new(), self.renamed(to));
        let mut note = |key: KeyPath, at: &KeyPath, from: Option<Value>, to: Option<Value>, origin: &Origin| {
            let service = name_of_service(at).map(str::to_owned);
            let mut now = Changed { key: key.clone(), service, from, to, origin: origin.clone() };
            // An element that came has the position of one that is gone: the key has both names.
            if let Some(mut other) = changed.remove(&key) {
                if now.to.is_none() {
                    std::mem::swap(&mut now, &mut other);
                }
                now.from = now.from.or(other.from);
            }
            changed.insert(key, now);
        };
        for key in keys {
            let (old, new) = (before.get(key).copied(), after.get(key).copied());
            let [was, is] = [old, new].map(|entry| entry.and_then(|entry| entry.value.as_ref()));
            let Some(entry) = new.or(old) else { continue };
            let kinds = if was == is { &tables[..] } else { &LISTS };
            if let Some(depth) = changed_element(kinds, key, &before, &after) {
                let element = entry.key.segments()[..depth].iter().cloned().collect();
                let name = Some(Value::from(key.segments()[depth - 1].to_string()));
                let (from, to) = if new.is_some() { (None, name) } else { (name, None) };
                note(element, key, from, to, &entry.origin);
                continue;
            }
            if was == is {
                continue;
            }
            note(entry.key.clone(), key, was.cloned(), is.cloned(), &entry.origin);
            let service = name_of_service(key);
            let service = service.and_then(|name| self.settings.services.iter().find(|service| service.name == name));
            if !entry.reloads || service.is_some_and(|service| is_fixed_in_group(entry, service)) {
                errors.push(needs_restart(entry, service, was, is));
            }
        }
        if errors.is_empty() {
            errors.extend(self.hidden_change(to));
        }
        if errors.is_empty() {
            Ok(changed.into_values().collect())
        } else {
            Err(ConfigErrors::new(SCHEMA.subject, errors))
        }
    }

    /// Returns an error for each service that has another name now: under it, all its sources would be read again.
    fn renamed(&self, to: &Config) -> Vec<ConfigError> {
        let has = |config: &Config, name: &str| config.settings.services.iter().any(|service| service.name == name);
        let gone = self.settings.services.iter().filter(|service| !has(to, &service.name));
        let renamed = gone.filter_map(|gone| {
            let mut services = to.settings.services.iter();
            let at = services.position(|new| new.target == gone.target && !has(self, &new.name))?;
            let key = KeyPath::default().child("service").element(at).child("name");
            let entry = to.effective.iter().find(|entry| entry.key == key)?;
            Some(needs_restart(entry, Some(gone), Some(&gone.name.as_str().into()), entry.value.as_ref()))
        });
        renamed.collect()
    }

    /// Returns the error for a difference that no entry shows: the value of a hidden property, or a password.
    fn hidden_change(&self, to: &Config) -> Option<ConfigError> {
        if self.settings.kafka == to.settings.kafka {
            return None;
        }
        let section = KeyPath::default().child("kafka");
        let is_same_registry = self.settings.kafka.schema_registry == to.settings.kafka.schema_registry;
        let changed = if is_same_registry { "properties" } else { "schema_registry" };
        let servers = section.child("bootstrap_servers");
        Some(ConfigError {
            key: section.child(changed),
            service: None,
            problem: "a value that is not shown has changed".to_owned(),
            allowed: RESTART.to_owned(),
            origin: self.effective.iter().find(|entry| entry.key == servers)?.origin.clone(),
        })
    }
}

/// Returns whether all instances of a group must have the same value of this key at any time.
fn is_fixed_in_group(entry: &Entry, service: &Service) -> bool {
    let name = entry.key.segments().last();
    let fixed = matches!(name, Some(Segment::Name(name)) if name == "cycle" || name == "mode");
    fixed && service.policy.scope == Scope::Group
}

/// Returns the name of the service that a stable key belongs to.
fn name_of_service(key: &KeyPath) -> Option<&str> {
    match key.segments() {
        [Segment::Name(list), Segment::Name(name), ..] if list == "service" => Some(name),
        _ => None,
    }
}

fn needs_restart(
    entry: &Entry, service: Option<&Service>, before: Option<&Value>, after: Option<&Value>,
) -> ConfigError {
    let show = |value: Option<&Value>| value.map_or("nothing".to_owned(), |value| value.to_string());
    ConfigError {
        key: entry.key.clone(),
        service: service.map(|service| service.name.clone()),
        problem: format!("has changed from {} to {}", show(before), show(after)),
        allowed: RESTART.to_owned(),
        origin: entry.origin.clone(),
    }
}

/// Returns the number of steps to the element of a stable key, of one of these kinds, that only one of the
/// configurations has.
fn changed_element(
    kinds: &[Kind], key: &KeyPath, before: &BTreeMap<KeyPath, &Entry>, after: &BTreeMap<KeyPath, &Entry>,
) -> Option<usize> {
    let segments = key.segments();
    kinds.iter().find_map(|&(list, name, depth)| {
        let is_list = matches!(segments.get(depth - 2), Some(Segment::Name(found)) if found == list);
        let element = segments.get(..depth).filter(|_| is_list)?.iter().cloned().collect::<KeyPath>().child(name);
        (before.contains_key(&element) != after.contains_key(&element)).then_some(depth)
    })
}

/// Returns the entries by stable keys, in which services and sources have names for positions: positions shift when one
/// comes or goes.
fn entries(config: &Config) -> BTreeMap<KeyPath, &Entry> {
    let names = config.effective.iter().filter_map(|entry| {
        let (key, section) = entry.key.segments().split_last()?;
        let is_name = matches!(key, Segment::Name(key) if NAMES.contains(&key.as_str()));
        let is_element = matches!(section.last(), Some(Segment::Index(_)));
        Some((section, entry.value.as_ref()?.as_str()?)).filter(|_| is_name && is_element)
    });
    let names: BTreeMap<&[Segment], &str> = names.collect();
    let stable = |entry: &Entry| -> KeyPath {
        let segments = entry.key.segments();
        let named = |at: usize| names.get(&segments[..=at]).map(|name| Segment::Name((*name).to_owned()));
        (0..segments.len()).map(|at| named(at).unwrap_or_else(|| segments[at].clone())).collect()
    };
    config.effective.iter().map(|entry| (stable(entry), entry)).collect()
}
