//! Follows the topics of all services on a thread of its own, which no engine waits for.

mod dead_letters;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;
use watermaster_kafka::{KafkaError, observer::Observer};
use watermaster_settings::{Kafka, Service};

use super::pace::Followers;
use super::{CHECK_INTERVAL, Parts};
use crate::snapshot::Observed;
use dead_letters::DeadLetterWatch;

/// The interval between two rounds of questions, which is also that of the log lines about errors.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(10);
/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The client that asks about one service, and its last answers.
#[derive(Default)]
struct Subject {
    /// Made with the first question, and made anew when the service has another `consumer_group`.
    observer: Option<Observer>,
    consumer_group: Option<String>,
    partitions: BTreeMap<String, usize>,
    dead_letters: DeadLetterWatch,
}

/// Starts to follow the topics of all services until the program stops. Without a thread the metrics stay as they are.
pub(super) fn start(kafka: &Kafka, parts: &Parts) {
    let (kafka, stop, configuration) = (kafka.clone(), Arc::clone(&parts.stop), Arc::clone(&parts.configuration));
    let work = move || {
        let mut subjects: BTreeMap<String, Subject> = BTreeMap::new();
        let mut followers = Followers::default();
        while !stop.load(Ordering::Relaxed) {
            let next = Instant::now() + OBSERVE_INTERVAL;
            let running = configuration.running();
            subjects.retain(|name, _| running.iter().any(|(service, _)| service.name == *name));
            followers.follow(&kafka, &running, &stop);
            for (service, handle) in &running {
                let subject = subjects.entry(service.name.clone()).or_default();
                handle.cell.set_observed(subject.observe(&kafka, service, &stop));
            }
            while Instant::now() < next && !stop.load(Ordering::Relaxed) {
                thread::sleep(CHECK_INTERVAL);
            }
        }
    };
    if let Err(why) = thread::Builder::new().name("observer".to_owned()).spawn(work) {
        warn!("no thread follows the topics: {why}");
    }
}

impl Subject {
    /// Asks about the topics of the service. A number of partitions stays if its answer is missing; a lag does not.
    fn observe(&mut self, kafka: &Kafka, service: &Service, stop: &AtomicBool) -> Observed {
        if self.consumer_group != service.consumer_group {
            *self = Subject { consumer_group: service.consumer_group.clone(), ..Subject::default() };
        }
        self.partitions.retain(|topic, _| service.sources.iter().any(|source| source.topic == *topic));
        let mut target_lag = None;
        if let Err(why) = self.ask(kafka, service, stop, &mut target_lag) {
            warn!(service = service.name, "the brokers do not tell the partitions of the sources or a lag: {why}");
        }
        let unread = self.dead_letters.look(kafka, service);
        Observed { partitions: self.partitions.clone(), target_lag, unread }
    }

    fn ask(
        &mut self, kafka: &Kafka, service: &Service, stop: &AtomicBool, target_lag: &mut Option<(String, u64)>,
    ) -> Result<(), KafkaError> {
        self.observer.take_if(|observer| observer.has_old_secrets());
        let observer = match &mut self.observer {
            Some(observer) => observer,
            none => none.insert(Observer::new(kafka, service)?),
        };
        for source in service.sources.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            let partitions = observer.partitions(&source.topic, ANSWER_TIMEOUT)?;
            self.partitions.insert(source.topic.clone(), partitions);
        }
        if let Some(group) = &service.consumer_group {
            let lags = service.targets().into_iter().map(|target| observer.lag(target, ANSWER_TIMEOUT));
            let lags: Vec<Option<u64>> = lags.collect::<Result<_, _>>()?;
            *target_lag = lags.into_iter().flatten().reduce(|sum, lag| sum + lag).map(|lag| (group.clone(), lag));
        }
        Ok(())
    }
}
