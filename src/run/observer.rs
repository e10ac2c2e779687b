//! Follows the topics of all services on a thread of its own, which no engine waits for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;
use watermaster_kafka::{KafkaError, observer::Observer};
use watermaster_settings::{Kafka, Service, Settings};

use super::{CHECK_INTERVAL, Parts};
use crate::snapshot::{Observed, SnapshotCell};

/// The interval between two rounds of questions, which is also that of the log lines about errors.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(10);
/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One service, with the client that asks about it.
struct Subject {
    service: Service,
    cell: SnapshotCell,
    /// Made with the first question.
    observer: Option<Observer>,
    partitions: BTreeMap<String, usize>,
}

/// Starts to follow the topics of all services until the program stops. Without a thread the metrics stay as they are.
pub(super) fn start(settings: &Settings, parts: &Parts) {
    let (kafka, stop) = (settings.kafka.clone(), Arc::clone(&parts.stop));
    let subject = |(service, cell): (&Service, SnapshotCell)| Subject {
        service: service.clone(),
        cell,
        observer: None,
        partitions: BTreeMap::new(),
    };
    let cells = parts.handles.iter().map(|handle| handle.cell.clone());
    let mut subjects: Vec<_> = settings.services.iter().zip(cells).map(subject).collect();
    let work = move || {
        while !stop.load(Ordering::Relaxed) {
            let next = Instant::now() + OBSERVE_INTERVAL;
            for subject in &mut subjects {
                subject.observe(&kafka, &stop);
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
    fn observe(&mut self, kafka: &Kafka, stop: &AtomicBool) {
        let mut target_lag = None;
        if let Err(why) = self.ask(kafka, stop, &mut target_lag) {
            warn!(service = self.service.name, "the brokers do not tell the partitions of the sources or a lag: {why}");
        }
        self.cell.set_observed(Observed { partitions: self.partitions.clone(), target_lag });
    }

    fn ask(
        &mut self, kafka: &Kafka, stop: &AtomicBool, target_lag: &mut Option<(String, u64)>,
    ) -> Result<(), KafkaError> {
        let observer = match &mut self.observer {
            Some(observer) => observer,
            none => none.insert(Observer::new(kafka, &self.service)?),
        };
        for source in self.service.sources.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            let partitions = observer.partitions(&source.topic, ANSWER_TIMEOUT)?;
            self.partitions.insert(source.topic.clone(), partitions);
        }
        if let Some(group) = &self.service.consumer_group {
            let lag = observer.lag(&self.service.target, ANSWER_TIMEOUT)?;
            *target_lag = lag.map(|lag| (group.clone(), lag));
        }
        Ok(())
    }
}
