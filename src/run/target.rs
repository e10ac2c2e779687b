//! The target of a service: how far the service's own consumer group has committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::warn;
use watermaster_core::pace::{Offsets, Pace};
use watermaster_kafka::KafkaError;
use watermaster_kafka::ask::{AskError, Asker};
use watermaster_kafka::consumer::group_id;
use watermaster_kafka::log_limiter::LogLimiter;
use watermaster_settings::{Kafka, Service};

use crate::clock::Clock;

/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait for a record in the tail of a partition.
const TAIL_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which the partitions of the target are counted, and at which tails are asked about again.
const RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// A client that got no answer for this long is replaced: its credentials may be old.
const REPLACE_INTERVAL: Duration = Duration::from_secs(30);

type MakeAsker = fn(&Kafka, &str) -> Result<Asker, KafkaError>;

/// The target of a service, as its consumer group reads it.
pub(super) struct Target<'a> {
    kafka: &'a Kafka,
    service: &'a Service,
    make: MakeAsker,
    asker: Option<Asker>,
    /// The number of partitions, and when they were counted.
    partitions: Option<(i32, Instant)>,
    answered_at: Instant,
    /// Tails that were asked about, and whether a record was found.
    tails: BTreeMap<i32, (Offsets, bool)>,
    log_limiter: LogLimiter,
}

fn group(service: &Service) -> &str {
    service.consumer_group.as_deref().unwrap_or_default()
}

impl<'a> Target<'a> {
    /// The target up to the end of the stable records.
    pub fn new(kafka: &'a Kafka, service: &'a Service) -> Target<'a> {
        Target::with(kafka, service, Asker::new)
    }

    /// The target up to its last record, which may belong to an open transaction.
    pub fn of_all_records(kafka: &'a Kafka, service: &'a Service) -> Target<'a> {
        Target::with(kafka, service, Asker::of_all_records)
    }

    fn with(kafka: &'a Kafka, service: &'a Service, make: MakeAsker) -> Target<'a> {
        let (answered_at, tails, log_limiter) = (Instant::now(), BTreeMap::new(), LogLimiter::default());
        Target { kafka, service, make, asker: None, partitions: None, answered_at, tails, log_limiter }
    }

    /// Returns the offsets of all partitions in which the group committed; `None` if they can't be read, or if it has
    /// committed none.
    pub fn offsets(&mut self) -> Option<Vec<Offsets>> {
        match self.ask() {
            Ok(offsets) => {
                self.answered_at = Instant::now();
                Some(offsets).filter(|offsets| !offsets.is_empty())
            }
            Err(why) => {
                if self.answered_at.elapsed() > REPLACE_INTERVAL {
                    (self.asker, self.answered_at) = (None, Instant::now());
                }
                self.warn("offsets", &why);
                None
            }
        }
    }

    /// Returns the sum of the ends of all partitions but these, in which the group committed.
    pub fn other_ends(&mut self, committed: &[Offsets]) -> Option<i64> {
        let (asker, (partitions, _)) = (self.asker.as_ref()?, self.partitions?);
        let committed: BTreeSet<i32> = committed.iter().map(|one| one.partition).collect();
        let others = (0..partitions).filter(|partition| !committed.contains(partition));
        let ends = asker.sum_of_ends(&self.service.target, others, ANSWER_TIMEOUT);
        ends.map_err(|why| self.warn("ends", &why)).ok()
    }

    /// Returns the most markers that the transactions of these instances write per second: one for each partition.
    pub fn markers(&self, instances: u32) -> u64 {
        let partitions = self.partitions.map_or(0, |(partitions, _)| partitions);
        let transactions = f64::from(instances) * self.kafka.transactions_per_second();
        (f64::from(partitions) * transactions).ceil() as u64
    }

    fn ask(&mut self) -> Result<Vec<Offsets>, AskError> {
        self.asker.take_if(|asker| asker.has_old_secrets());
        let asker = match &mut self.asker {
            Some(asker) => asker,
            none => none.insert((self.make)(self.kafka, &group_id(self.kafka, self.service))?),
        };
        asker.prepare();
        let target = &self.service.target;
        let counted = self.partitions.filter(|(_, at)| at.elapsed() < RENEW_INTERVAL);
        let (partitions, _) = match counted {
            Some(counted) => counted,
            None => {
                self.tails.clear();
                *self.partitions.insert((asker.partitions(target, ANSWER_TIMEOUT)?, Instant::now()))
            }
        };
        asker.offsets(group(self.service), target, partitions, ANSWER_TIMEOUT)
    }

    /// Looks for records in the tails that may hold markers of transactions only, once for each.
    pub fn close_tails(&mut self, pace: &mut Pace, clock: &Clock) {
        let tails: Vec<Offsets> = pace.doubtful_tails(clock.now()).collect();
        for tail in tails {
            let known = self.tails.get(&tail.partition).filter(|(known, _)| *known == tail);
            let known = known.map(|(_, has_record)| *has_record);
            let has_record = known.unwrap_or_else(|| self.has_record(tail));
            self.tails.insert(tail.partition, (tail, has_record));
            if !has_record {
                pace.handle_empty_tail(tail);
            }
        }
    }

    /// Asks about a tail. Without an answer it counts as open.
    pub fn has_record(&mut self, tail: Offsets) -> bool {
        let Some(asker) = &self.asker else { return true };
        let found = asker.has_record(&self.service.target, tail, TAIL_TIMEOUT);
        found.unwrap_or_else(|why| {
            self.warn("a tail", &why);
            true
        })
    }

    fn warn(&mut self, what: &'static str, why: &AskError) {
        let (service, group) = (&self.service.name, group(self.service));
        self.log_limiter.warn(what, |suppressed| {
            warn!(service, group, suppressed, "the brokers do not tell how far the service is: {why}");
        });
    }
}
