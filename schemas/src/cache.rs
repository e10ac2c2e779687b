//! The schemas that one engine knows, and the ids that it waits for.
//!
//! Lookups never block. A thread of its own asks the registry, for one id after the other. An id for which the registry
//! gave no answer is asked for again after [`RETRY_INTERVAL`], for as long as the engine needs it. All times count
//! from one moment of the caller's choice.
//!
//! Any producer can write ids that the registry does not know, each of which holds its partition up for one question.
//! [`MAX_MISSES`] bounds these questions. Beyond it, an id counts as unknown without a question until there is room for
//! one again. A producer that sends a new schema during such a flood may find its first records anonymous.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use strum::VariantNames;
use watermaster_settings::client_id::{Found, HeaderLookup, SchemaId, Schemas, UnknownSchema};
use watermaster_settings::{SchemaFormat, SchemaRegistry};

use crate::registry::{Answer, RegistryClient, RegistryError};
use crate::{Schema, SchemaError, wire};

/// The interval at which the registry is asked again about an id.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The most memory of the schemas that are kept, in bytes. The oldest ones are dropped for a new one.
const MAX_BYTES: usize = 64 << 20;
/// The memory of a schema beside its own: its entries in the lists.
const ENTRY_BYTES: usize = 128;
/// The longest time for which an id without a schema is remembered. A registry that copies another one may get the
/// schema late.
const MISSING_TIME: Duration = Duration::from_secs(60);
/// The most questions about ids without a schema, and the interval after which there is room for one more.
const MAX_MISSES: u32 = 100;
const MISS_INTERVAL: Duration = Duration::from_millis(600);
/// The largest number that a registry gives. It does not answer questions about larger ones as such.
const MAX_NUMBER: u32 = i32::MAX.cast_unsigned();

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
    Missing(SchemaId),
    #[error("schema {0} can't be used: {1}")]
    Unusable(SchemaId, #[source] SchemaError),
    #[error("schema {0} is not known yet: {1}")]
    Failed(SchemaId, #[source] RegistryError),
    #[error(
        "values name many schemas that can't be used, {0} the last one: for now others are not asked for, and their \
         values count as values without a schema"
    )]
    TooManyMissing(SchemaId),
}

/// The schemas of one engine.
#[derive(Default)]
pub struct SchemaCache {
    settings: Option<SchemaRegistry>,
    schemas: HashMap<SchemaId, Schema>,
    /// The ids of `schemas`, the oldest first.
    order: VecDeque<SchemaId>,
    /// The memory of `schemas`.
    bytes: usize,
    missing: HashSet<SchemaId>,
    /// The time at which `missing` was emptied.
    emptied: Duration,
    /// The questions about ids without a schema for which there is no room any more, and the time up to which room was
    /// made.
    misses: u32,
    forgiven: Duration,
    asked: BTreeMap<SchemaId, Asked>,
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
    ids: Sender<SchemaId>,
    answers: Receiver<(SchemaId, Result<Answer, RegistryError>)>,
}

impl Worker {
    fn start(settings: SchemaRegistry) -> std::io::Result<Worker> {
        let ((ids, asked), (answer, answers)) = (channel(), channel());
        let work = move || {
            let mut registry = RegistryClient::new(settings);
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
        &self, format: SchemaFormat, path: &[String], header: HeaderLookup<'r>, value: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema> {
        let named = match wire::named(header, value) {
            Ok(Some(named)) => named,
            Ok(None) => return Ok(Ok(None)),
            Err(broken) => return Ok(Err(broken)),
        };
        match self.schemas.get(&named.id) {
            Some(schema) => Ok(schema.find(format, path, &named)),
            None if self.is_missing(named.id) => Ok(Ok(None)),
            None if self.misses >= MAX_MISSES && !self.asked.contains_key(&named.id) => Ok(Ok(None)),
            None => Err(UnknownSchema(named.id)),
        }
    }
}

impl SchemaCache {
    /// Makes an empty cache. Its thread starts with the first question.
    pub fn new(settings: Option<SchemaRegistry>) -> SchemaCache {
        SchemaCache { settings, ..SchemaCache::default() }
    }

    /// Returns true if the registry has said what an id means.
    pub fn knows(&self, id: SchemaId) -> bool {
        self.schemas.contains_key(&id) || self.is_missing(id)
    }

    fn is_missing(&self, id: SchemaId) -> bool {
        matches!(id, SchemaId::Number(number) if number > MAX_NUMBER) || self.missing.contains(&id)
    }

    /// Asks the registry about an id, unless that is under way.
    pub fn ask(&mut self, id: SchemaId, now: Duration) {
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
    pub fn poll(&mut self, now: Duration, is_needed: impl Fn(SchemaId) -> bool) -> Vec<Trouble> {
        if now.saturating_sub(self.emptied) >= MISSING_TIME {
            self.emptied = now;
            self.missing.clear();
        }
        while self.forgiven + MISS_INTERVAL <= now {
            self.forgiven = if self.misses == 0 { now } else { self.forgiven + MISS_INTERVAL };
            self.misses = self.misses.saturating_sub(1);
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
        let due: Vec<SchemaId> = self.asked.iter().filter(|(_, asked)| is_due(asked)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.send(id, now));
        troubles
    }

    fn next_answer(&mut self, now: Duration) -> Option<(SchemaId, Result<Answer, RegistryError>)> {
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

    fn take(&mut self, id: SchemaId, answer: Result<Answer, RegistryError>, now: Duration) -> Option<Trouble> {
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
            self.missing.insert(id);
            self.misses += 1;
            if self.misses == MAX_MISSES {
                return Some(Trouble::TooManyMissing(id));
            }
        }
        trouble
    }

    fn keep(&mut self, id: SchemaId, schema: Schema) {
        self.bytes += schema.bytes() + ENTRY_BYTES;
        match self.schemas.insert(id, schema) {
            Some(former) => self.bytes -= former.bytes() + ENTRY_BYTES,
            None => self.order.push_back(id),
        }
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            let dropped = self.schemas.remove(&oldest);
            self.bytes -= dropped.map_or(0, |dropped| dropped.bytes() + ENTRY_BYTES);
        }
    }

    /// Hands an id to the thread. If there is none, and none can be started, that is tried again later.
    fn send(&mut self, id: SchemaId, now: Duration) {
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

    const AVRO: &str = r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}"#;

    #[test]
    fn the_oldest_schemas_make_room() {
        let mut cache = SchemaCache::new(None);
        let symbol = "A".repeat(1 << 20);
        let large = format!(r#"{{"type": "enum", "name": "E", "symbols": ["{symbol}"]}}"#);
        let (small, large) = (|| Schema::parse(None, &[], AVRO).unwrap(), || Schema::parse(None, &[], &large).unwrap());
        let fitting = MAX_BYTES / (large().bytes() + ENTRY_BYTES);
        assert!((20..100).contains(&fitting), "{} bytes", large().bytes());
        let id = |n: usize| SchemaId::Number(n as u32);
        for n in 0..=fitting {
            cache.keep(id(n), small());
            cache.keep(id(n), large());
        }
        assert_eq!((cache.schemas.len(), cache.order.len()), (fitting, fitting));
        assert!(!cache.knows(id(0)) && cache.knows(id(1)) && cache.knows(id(fitting)));
        assert!(cache.bytes <= MAX_BYTES && cache.bytes > MAX_BYTES - 2 * large().bytes());
        for n in 0..fitting {
            cache.keep(id(n), small());
        }
        assert_eq!(cache.schemas.len(), fitting + 1);
    }

    /// Each value of a producer can name another schema. Ids that the registry does not know are asked for a hundred
    /// times at once, and a hundred times a minute.
    #[test]
    fn a_flood_of_unknown_ids_is_not_asked_for() {
        let mut cache = SchemaCache::new(None);
        let find = |cache: &SchemaCache, id: u32| {
            let value = [&[0][..], &id.to_be_bytes(), b"\x02"].concat();
            let found = cache.find(SchemaFormat::Avro, &["a".to_owned()], HeaderLookup::Absent, Some(&value));
            found.map(|found| found.map(|id| id.map(std::borrow::Cow::into_owned)))
        };
        assert_eq!(find(&cache, MAX_NUMBER + 1), Ok(Ok(None)), "no registry gives such a number");
        let minutes = 10;
        let (mut asked, mut id) = (0, 1_000);
        for millisecond in 0..minutes * 60_000 {
            let now = Duration::from_millis(millisecond);
            cache.poll(now, |_| true);
            id += 1;
            if find(&cache, id).is_err() {
                asked += 1;
                let trouble = cache.take(SchemaId::Number(id), Ok(Answer::Missing), now);
                assert_eq!(matches!(trouble, Some(Trouble::TooManyMissing(_))), cache.misses == MAX_MISSES);
            }
            assert!(cache.missing.len() <= 300);
        }
        assert_eq!(asked, u64::from(MAX_MISSES) * (minutes + 1) - 1);
        // An id that a partition waits for is not given up, and known schemas are.
        let now = Duration::from_secs(60 * minutes);
        cache.poll(now, |_| true);
        assert!(find(&cache, 1).is_err());
        cache.ask(SchemaId::Number(1), now);
        while cache.misses < MAX_MISSES {
            id += 1;
            cache.take(SchemaId::Number(id), Ok(Answer::Missing), now);
        }
        assert_eq!(find(&cache, 2), Ok(Ok(None)));
        assert!(find(&cache, 1).is_err() && !cache.knows(SchemaId::Number(1)));
        cache.take(SchemaId::Number(1), Ok(Answer::Schema(Schema::parse(None, &[], AVRO).unwrap())), now);
        assert_eq!(find(&cache, 1), Ok(Ok(Some("1".to_owned()))));
    }
}
