//! The schemas that one engine knows, and the ids that it waits for.
//!
//! Lookups never block. A thread of its own asks the registry, for one id after the other. An id for which the registry
//! gave no answer is asked for again after [`RETRY_INTERVAL`], for as long as the engine needs it. All times count
//! from one moment of the caller's choice.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use strum::VariantNames;
use watermaster_settings::client_id::{Found, Schemas, UnknownSchema};
use watermaster_settings::{SchemaFormat, SchemaRegistry};

use crate::registry::{Answer, Registry, RegistryError};
use crate::{Schema, SchemaError, wire};

/// The interval at which the registry is asked again about an id.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The most schemas that are kept. The oldest one is dropped for a new one.
const MAX_SCHEMAS: usize = 1_000;
/// The most ids without a schema that are remembered, and the longest time. A registry that copies another one may get
/// the schema late.
const MAX_MISSING: usize = 10_000;
const MISSING_TIME: Duration = Duration::from_secs(60);

/// The result of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// The schema came.
    Found,
    /// There is no such schema, or it can't be used.
    Missing,
    /// The registry gave no answer, or refused.
    Failed,
}

/// A result that people should know of.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("schema {0} does not exist in the registry")]
    Missing(u32),
    #[error("schema {0} can't be used: {1}")]
    Unusable(u32, #[source] SchemaError),
    #[error("schema {0} is not known yet: {1}")]
    Failed(u32, #[source] RegistryError),
}

/// The schemas of one engine.
pub struct SchemaCache {
    settings: Option<SchemaRegistry>,
    schemas: HashMap<u32, Schema>,
    /// The ids of `schemas`, the oldest first.
    order: VecDeque<u32>,
    missing: HashSet<u32>,
    /// The time at which `missing` was emptied.
    emptied: Duration,
    asked: BTreeMap<u32, Asked>,
    worker: Option<Worker>,
    /// The requests by outcome, in the order of [`Outcome`].
    pub counts: [u64; Outcome::VARIANTS.len()],
}

/// The state of an id that the engine waits for.
#[derive(Default)]
struct Asked {
    /// The time of the next request; `None` while one is under way.
    retry_at: Option<Duration>,
    /// The last failure.
    failure: Option<String>,
}

/// The thread that asks the registry, and the ways to it and back.
struct Worker {
    ids: Sender<u32>,
    answers: Receiver<(u32, Result<Answer, RegistryError>)>,
}

impl Worker {
    fn start(settings: SchemaRegistry) -> std::io::Result<Worker> {
        let ((ids, asked), (answer, answers)) = (channel(), channel());
        let work = move || {
            let mut registry = Registry::new(settings);
            for id in asked {
                if answer.send((id, registry.schema(id))).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("schemas".to_owned()).spawn(work)?;
        Ok(Worker { ids, answers })
    }
}

impl Schemas for SchemaCache {
    fn find<'r>(
        &self, format: SchemaFormat, path: &[String], value: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema> {
        let Some((id, body)) = value.and_then(wire::split) else { return Ok(Ok(None)) };
        match self.schemas.get(&id) {
            Some(schema) => Ok(schema.find(format, path, body)),
            None if self.missing.contains(&id) => Ok(Ok(None)),
            None => Err(UnknownSchema(id)),
        }
    }
}

impl SchemaCache {
    /// Makes an empty cache. Its thread starts with the first question.
    pub fn new(settings: Option<SchemaRegistry>) -> SchemaCache {
        SchemaCache {
            settings,
            schemas: HashMap::new(),
            order: VecDeque::new(),
            missing: HashSet::new(),
            emptied: Duration::ZERO,
            asked: BTreeMap::new(),
            worker: None,
            counts: Default::default(),
        }
    }

    /// Returns true if the registry has said what an id means.
    pub fn knows(&self, id: u32) -> bool {
        self.schemas.contains_key(&id) || self.missing.contains(&id)
    }

    /// Asks the registry about an id, unless that is under way.
    pub fn ask(&mut self, id: u32, now: Duration) {
        if let Entry::Vacant(vacant) = self.asked.entry(id) {
            vacant.insert(Asked::default());
            self.send(id, now);
        }
    }

    /// Returns the last failure, while an id waits for another attempt.
    pub fn failure(&self) -> Option<&str> {
        self.asked.values().find_map(|asked| asked.failure.as_deref())
    }

    /// Takes the answers that have come, and asks again where it is time. An id for which `is_needed` returns false is
    /// no longer asked for.
    pub fn poll(&mut self, now: Duration, is_needed: impl Fn(u32) -> bool) -> Vec<Trouble> {
        if now.saturating_sub(self.emptied) >= MISSING_TIME {
            self.emptied = now;
            self.missing.clear();
        }
        let mut troubles = Vec::new();
        if self.asked.is_empty() {
            return troubles;
        }
        while let Some((id, answer)) = self.next_answer(now) {
            troubles.extend(self.take(id, answer, now));
        }
        self.asked.retain(|id, _| is_needed(*id));
        let is_due = |asked: &Asked| asked.retry_at.is_some_and(|at| now >= at);
        let due: Vec<u32> = self.asked.iter().filter(|(_, asked)| is_due(asked)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.send(id, now));
        troubles
    }

    fn next_answer(&mut self, now: Duration) -> Option<(u32, Result<Answer, RegistryError>)> {
        match self.worker.as_ref()?.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                // The thread panicked: another one answers.
                self.worker = None;
                self.asked.values_mut().for_each(|asked| asked.retry_at = Some(now + RETRY_INTERVAL));
                None
            }
        }
    }

    fn take(&mut self, id: u32, answer: Result<Answer, RegistryError>, now: Duration) -> Option<Trouble> {
        let (outcome, trouble) = match answer {
            Ok(Answer::Schema(schema)) => {
                self.keep(id, schema);
                (Outcome::Found, None)
            }
            Ok(Answer::Missing) => (Outcome::Missing, Some(Trouble::Missing(id))),
            Ok(Answer::Unusable(error)) => (Outcome::Missing, Some(Trouble::Unusable(id, error))),
            Err(error) => (Outcome::Failed, Some(Trouble::Failed(id, error))),
        };
        self.counts[outcome as usize] += 1;
        match outcome {
            Outcome::Failed => {
                if let Some(asked) = self.asked.get_mut(&id) {
                    asked.retry_at = Some(now + RETRY_INTERVAL);
                    asked.failure = trouble.as_ref().map(ToString::to_string);
                }
            }
            Outcome::Found | Outcome::Missing => _ = self.asked.remove(&id),
        }
        if outcome == Outcome::Missing {
            if self.missing.len() >= MAX_MISSING {
                self.missing.clear();
            }
            self.missing.insert(id);
        }
        trouble
    }

    fn keep(&mut self, id: u32, schema: Schema) {
        if self.schemas.insert(id, schema).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > MAX_SCHEMAS
            && let Some(oldest) = self.order.pop_front()
        {
            self.schemas.remove(&oldest);
        }
    }

    /// Hands an id to the thread. If there is none, and none can be started, that is tried again later.
    fn send(&mut self, id: u32, now: Duration) {
        if self.worker.is_none() {
            self.worker = self.settings.clone().and_then(|settings| Worker::start(settings).ok());
        }
        let is_sent = self.worker.as_ref().is_some_and(|worker| worker.ids.send(id).is_ok());
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.retry_at = (!is_sent).then(|| now + RETRY_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_schema_makes_room_and_missing_ones_are_bounded() {
        let mut cache = SchemaCache::new(None);
        for id in 0..=MAX_SCHEMAS as u32 {
            cache.keep(id, Schema::Other);
            cache.keep(id, Schema::Other);
        }
        assert_eq!((cache.schemas.len(), cache.order.len()), (MAX_SCHEMAS, MAX_SCHEMAS));
        assert!(!cache.knows(0) && cache.knows(1) && cache.knows(MAX_SCHEMAS as u32));
        for id in 0..3 * MAX_MISSING as u32 {
            cache.take(id, Ok(Answer::Missing), Duration::ZERO);
            assert!(cache.missing.len() <= MAX_MISSING && cache.knows(id));
        }
    }
}
