//! Follows the topics of all services on a thread of its own, which no engine waits for.

mod dead_letters;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::warn;
use watermaster_kafka::ask::{AskError, Asker};
use watermaster_kafka::{KafkaError, consumer::group_id};
use watermaster_settings::{Kafka, Service};

use super::{CHECK_INTERVAL, Parts, open, pace, rules};
use crate::services::{Change, ServiceHandle};
use crate::snapshot::Observed;
use dead_letters::DeadLetterWatch;

/// The interval between two rounds of questions, which is also that of the log lines about errors.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(10);
/// The least time between two readings of the newest dead letters of a service.
const LETTERS_INTERVAL: Duration = Duration::from_secs(5);
/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval between two questions for the ids of the sources, and the longest wait for one.
const IDS_INTERVAL: Duration = Duration::from_secs(30);
const ID_TIMEOUT: Duration = Duration::from_millis(500);

/// The last answers about one service.
#[derive(Default)]
struct Subject {
    partitions: BTreeMap<String, usize>,
    /// The id of each source's topic, once the brokers have told it, and the time of the last question.
    ids: BTreeMap<String, String>,
    ids_asked: Option<Instant>,
    dead_letters: DeadLetterWatch,
    /// The time of the last reading of the newest dead letters.
    letters_read: Option<Instant>,
}

/// The client that asks about all services, one after the other. It is made with the first question, and made anew
/// when secrets have changed.
struct Client<'k> {
    kafka: &'k Kafka,
    asker: Option<Arc<Asker>>,
}

impl Client<'_> {
    /// Returns the client. Its own group is that of a service that this program reads.
    fn get(&mut self, service: &Service) -> Result<Arc<Asker>, KafkaError> {
        self.asker.take_if(|asker| asker.has_old_secrets());
        let asker = match self.asker.take() {
            Some(asker) => asker,
            None => Arc::new(Asker::new(self.kafka, &group_id(self.kafka, service))?),
        };
        asker.prepare();
        Ok(Arc::clone(self.asker.insert(asker)))
    }
}

/// Starts to follow the topics of all services until the program stops. Without a thread the metrics stay as they are.
pub(super) fn start(kafka: &Kafka, parts: &Parts) {
    let (kafka, stop, configuration) = (kafka.clone(), Arc::clone(&parts.fleet.stop), Arc::clone(&parts.configuration));
    let work = move || {
        let mut subjects: BTreeMap<String, Subject> = BTreeMap::new();
        let mut client = Client { kafka: &kafka, asker: None };
        let mut followers = Followers::default();
        while !stop.load(Ordering::Relaxed) {
            let next = Instant::now() + OBSERVE_INTERVAL;
            let running = configuration.running();
            subjects.retain(|name, _| running.iter().any(|(service, _)| service.name == *name));
            followers.follow(&kafka, &running, &stop);
            for (service, handle) in &running {
                let subject = subjects.entry(service.name.clone()).or_default();
                handle.cell.observed.set(Arc::new(subject.observe(&mut client, service, &stop)));
                for topic in subject.topics_made_anew(&mut client, service) {
                    warn!(service = service.name, topic, "a source was made anew: reading it by another consumer");
                    handle.inbox.leave(Change { read_anew: true, ..Change::default() });
                }
            }
            while Instant::now() < next && !stop.load(Ordering::Relaxed) {
                read_letters(&running, &mut subjects);
                thread::sleep(CHECK_INTERVAL);
            }
        }
    };
    if let Err(why) = thread::Builder::new().name("observer".to_owned()).spawn(work) {
        warn!("no thread follows the topics: {why}");
    }
}

/// Reads the newest dead letters of one service, if a request has asked for them.
fn read_letters(running: &[(Service, ServiceHandle)], subjects: &mut BTreeMap<String, Subject>) {
    for (service, handle) in running {
        let Some(subject) = subjects.get_mut(&service.name).filter(|subject| subject.may_read()) else { continue };
        if handle.cell.take_wish_for_letters() {
            handle.cell.set_letters(subject.dead_letters.newest(service));
            subject.letters_read = Some(Instant::now());
            return;
        }
    }
}

impl Subject {
    fn may_read(&self) -> bool {
        self.letters_read.is_none_or(|at| at.elapsed() >= LETTERS_INTERVAL)
    }

    /// Asks about the topics of the service. A number of partitions stays if its answer is missing; a lag does not.
    fn observe(&mut self, client: &mut Client<'_>, service: &Service, stop: &AtomicBool) -> Observed {
        self.partitions.retain(|topic, _| service.sources.iter().any(|source| source.topic == *topic));
        let target_lag = self.ask(client, service, stop).unwrap_or_else(|why| {
            warn!(service = service.name, "the brokers do not tell the partitions of the sources or a lag: {why}");
            None
        });
        let unread = self.dead_letters.look(client, service);
        Observed { partitions: self.partitions.clone(), target_lag, unread }
    }

    /// Returns the sources with other ids than before. librdkafka does not notice a topic that was made anew if the
    /// former one had changed its leader: it takes the lower leader epoch of the new one for one that is out of date,
    /// and asks for the former one forever. Embedded brokers and those before Kafka 2.8 tell no ids.
    fn topics_made_anew(&mut self, client: &mut Client<'_>, service: &Service) -> Vec<String> {
        if self.ids_asked.is_some_and(|at| at.elapsed() < IDS_INTERVAL) {
            return Vec::new();
        }
        let Ok(asker) = client.get(service) else { return Vec::new() };
        self.ids_asked = Some(Instant::now());
        self.ids.retain(|topic, _| service.sources.iter().any(|source| source.topic == *topic));
        let mut made_anew = Vec::new();
        for source in &service.sources {
            let id = match asker.topic_id(&source.topic, ID_TIMEOUT) {
                Ok(id) if !id.is_empty() => id,
                Ok(_) | Err(AskError::RefusedTopic { .. }) => continue,
                // Brokers that do not answer about one topic do not answer about the next.
                Err(_) => break,
            };
            let former = self.ids.insert(source.topic.clone(), id.clone());
            made_anew.extend(former.filter(|former| *former != id).map(|_| source.topic.clone()));
        }
        made_anew
    }

    /// Returns the service's consumer group and its lag, if there is one.
    fn ask(
        &mut self, client: &mut Client<'_>, service: &Service, stop: &AtomicBool,
    ) -> Result<Option<(String, u64)>, AskError> {
        let asker = client.get(service)?;
        for source in service.sources.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            let partitions = asker.partitions(&source.topic, ANSWER_TIMEOUT)?;
            self.partitions.insert(source.topic.clone(), partitions as usize);
        }
        let Some(group) = &service.consumer_group else { return Ok(None) };
        let lags = service.targets().into_iter().map(|target| asker.lag(group, target, ANSWER_TIMEOUT));
        let lags: Vec<Option<u64>> = lags.collect::<Result<_, _>>()?;
        Ok(lags.into_iter().flatten().reduce(|sum, lag| sum + lag).map(|lag| (group.clone(), lag)))
    }
}

/// The threads that follow the targets and the rules of services, each by its name: one for each purpose, with a client
/// of its own.
#[derive(Default)]
struct Followers(BTreeMap<String, JoinHandle<()>>);

/// The work of a thread.
type Follow = fn(&Kafka, &Service, &ServiceHandle, &AtomicBool);

impl Followers {
    /// Starts a thread for each service whose capacity is to be found, and for each whose open records are bounded.
    /// Each ends when that is no longer so, when its service ends, or when the program stops.
    fn follow(&mut self, kafka: &Kafka, services: &[(Service, ServiceHandle)], stop: &Arc<AtomicBool>) {
        self.0.retain(|_, thread| !thread.is_finished());
        for (service, handle) in services {
            if service.rules_topic.is_some() {
                self.start("rules", rules::follow, kafka, service, handle, stop);
            }
            if handle.pace.lock().settings.is_some() {
                self.start("pace", pace::search, kafka, service, handle, stop);
            }
            if handle.open.get().max.is_some() && !self.start("open", open::bound, kafka, service, handle, stop) {
                handle.inbox.leave(Change { open_room: Some(None), ..Change::default() });
            }
        }
    }

    /// Starts a thread unless it is running. Returns false if there is none.
    fn start(
        &mut self, purpose: &str, work: Follow, kafka: &Kafka, service: &Service, handle: &ServiceHandle,
        stop: &Arc<AtomicBool>,
    ) -> bool {
        let name = format!("{purpose}-{}", service.name);
        if self.0.contains_key(&name) {
            return true;
        }
        let (kafka, service, handle, stop) = (kafka.clone(), service.clone(), handle.clone(), Arc::clone(stop));
        let thread = thread::Builder::new().name(name.clone());
        match thread.spawn(move || work(&kafka, &service, &handle, &stop)) {
            Ok(thread) => _ = self.0.insert(name.clone(), thread),
            Err(why) => warn!("no thread {name} follows the target: {why}"),
        }
        self.0.contains_key(&name)
    }
}
