//! Follows the open dead letters of a service, and its redrive jobs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::{debug, warn};
use watermaster_kafka::dead_letters::{Backlog, JobPositions, Unread};
use watermaster_kafka::load::OpenError;
use watermaster_settings::{Kafka, Service};
use watermaster_tools::dlq::{JobCounts, count_jobs};

use super::ANSWER_TIMEOUT;
use crate::snapshot::ServiceSnapshot;

/// The interval between two questions that the brokers refuse, or cannot answer because the topic is missing.
const REFUSED_INTERVAL: Duration = Duration::from_secs(600);
/// The interval between two looks at the jobs.
const JOBS_INTERVAL: Duration = Duration::from_secs(60);

/// Returns whether this instance counts the dead letters by reason. Of a group of instances, one does: the one with
/// partition 0 of the first source.
pub(super) fn is_counted_here(service: &Service, snapshot: &ServiceSnapshot) -> bool {
    let is_first = |topic: &str| service.sources.first().is_some_and(|source| source.topic == topic);
    snapshot.up && snapshot.partitions.iter().any(|one| one.partition == 0 && is_first(&one.topic))
}

/// The newest figures; `None` while they are unknown.
#[derive(Default)]
pub(super) struct DeadLetterFigures {
    pub unread: Option<Unread>,
    pub jobs: Option<JobCounts>,
}

/// The client that looks at the dead letters of one service.
#[derive(Default)]
pub(super) struct DeadLetterWatch {
    backlog: Option<Backlog>,
    /// The time before which a refused question is not repeated.
    refused_until: Option<Instant>,
    /// The log has a line about the refusal.
    warned: bool,
    jobs: JobWatch,
}

#[derive(Default)]
struct JobWatch {
    positions: Option<BTreeMap<String, JobPositions>>,
    counts: Option<JobCounts>,
    next: Option<Instant>,
}

impl DeadLetterWatch {
    /// Looks at the dead letters, and if `counts`, at their reasons and at the jobs, too.
    pub fn look(&mut self, kafka: &Kafka, service: &Service, counts: bool) -> DeadLetterFigures {
        if self.refused_until.is_some_and(|until| Instant::now() < until) {
            return DeadLetterFigures::default();
        }
        match self.unread(kafka, service, counts) {
            Ok(unread) => {
                self.warned = false;
                DeadLetterFigures { unread: Some(unread), jobs: self.jobs.look(&self.backlog, kafka, service, counts) }
            }
            Err(why) => {
                self.refuse(service, &why);
                DeadLetterFigures::default()
            }
        }
    }

    fn unread(&mut self, kafka: &Kafka, service: &Service, counts: bool) -> Result<Unread, OpenError> {
        let backlog = match &mut self.backlog {
            Some(backlog) => backlog,
            none => none.insert(Backlog::open(kafka, service, ANSWER_TIMEOUT)?),
        };
        backlog.look(counts, ANSWER_TIMEOUT)
    }

    /// Replaces the client. The right to read dead letters is optional, so a refusal is told only once.
    fn refuse(&mut self, service: &Service, why: &OpenError) {
        let (service, is_refused) = (&service.name, is_refusal(why));
        if is_refused && !self.warned {
            warn!(service, "the metrics of dead letters are missing: {why}");
        } else {
            debug!(service, "the brokers do not tell the dead letters: {why}");
        }
        let refused_until = is_refused.then(|| Instant::now() + REFUSED_INTERVAL);
        *self = DeadLetterWatch { refused_until, warned: self.warned || is_refused, ..DeadLetterWatch::default() };
    }
}

fn is_refusal(why: &OpenError) -> bool {
    use OpenError::{ForeignRecord, MissingTopic, RefusedGroup, RefusedTopic};
    matches!(why, RefusedGroup { .. } | RefusedTopic { .. } | MissingTopic { .. } | ForeignRecord { .. })
}

impl JobWatch {
    fn look(&mut self, backlog: &Option<Backlog>, kafka: &Kafka, service: &Service, counts: bool) -> Option<JobCounts> {
        let Some(backlog) = backlog.as_ref().filter(|_| counts) else {
            *self = JobWatch::default();
            return None;
        };
        if self.next.is_some_and(|next| Instant::now() < next) {
            return self.counts;
        }
        match backlog.jobs(kafka, service, ANSWER_TIMEOUT) {
            Ok(positions) => {
                self.counts = Some(count_jobs(self.positions.as_ref(), &positions));
                (self.positions, self.next) = (Some(positions), Some(Instant::now() + JOBS_INTERVAL));
            }
            Err(why) => {
                debug!(service = service.name, "the brokers do not tell the redrive jobs: {why}");
                *self = JobWatch { next: Some(Instant::now() + REFUSED_INTERVAL), ..JobWatch::default() };
            }
        }
        self.counts
    }
}
