//! The producers of a service, one after another: when a producer gets its epoch, and when it is replaced.

use std::time::Duration;

use super::super::kafka::{ErrorClass, ErrorKind, Kafka, TransactionError};
use super::super::outcome::{DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
use super::{Machine, Strategy};
use crate::units::Time;

/// The longest wait for an epoch; another producer may fare better.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);
/// The most producers that may fail within [`FAILURES_INTERVAL`]: the next one would fare no better.
const MAX_FAILURES: usize = 5;
const FAILURES_INTERVAL: Duration = Duration::from_secs(600);
/// Two fencings within this time come from another instance with the same id …
const FENCED_INTERVAL: Duration = Duration::from_secs(60);
/// … unless they follow each other within this time: then they come from the same request.
const SAME_FENCING_INTERVAL: Duration = Duration::from_secs(5);

/// The past of the producers.
#[derive(Debug, Default)]
pub(super) struct ProducerHistory {
    /// The time since which the producer has been asking for its epoch.
    preparing: Option<Time>,
    /// The times at which failed producers were replaced.
    failed: Vec<Time>,
    /// The time at which a producer was last fenced.
    fenced: Option<Time>,
    /// Set once the producer has abandoned records of unknown fate. librdkafka reuses their sequence numbers, so a
    /// broker that did store them would acknowledge the next records as duplicates and drop them.
    pub in_doubt: bool,
}

impl<O> Machine<O> {
    /// Gets a producer ready for a transaction. Returns `None` when it is. No transaction is open.
    pub(super) fn ready<P, K: Kafka<P, Offsets = O>>(
        &mut self, kafka: &mut K, now: Time,
    ) -> Result<Option<Step>, FatalError> {
        if let Some(error) = kafka.fatal() {
            self.replace(kafka, ReplaceCause::Fatal, error.into(), now)?;
        } else if kafka.in_transaction() {
            self.replace(kafka, ReplaceCause::Timeout, DeliveryError::AbortTimeout, now)?;
        } else if kafka.is_initialised() && kafka.tainted() {
            self.replace(kafka, ReplaceCause::Disconnect, DeliveryError::Tainted, now)?;
        }
        if kafka.is_initialised() {
            return Ok(None);
        }
        let since = *self.producers.preparing.get_or_insert(now);
        let Err(error) = kafka.init() else {
            self.producers.preparing = None;
            return Ok(None);
        };
        self.call_failed(Phase::Prepare, &error);
        if error.class == ErrorClass::Retriable && now.since(since) < INIT_TIMEOUT {
            return Ok(Some(Step::Again));
        }
        self.producers.preparing = None;
        deny(&error)?;
        self.replace_after(kafka, error, now)?;
        Ok(Some(Step::Backoff))
    }

    pub(super) fn replace_after<P, K: Kafka<P, Offsets = O>>(
        &mut self, kafka: &mut K, error: TransactionError, now: Time,
    ) -> Result<(), FatalError> {
        let now = kafka.now(now);
        let outlived = self.began.is_some() && self.age(now) >= self.transaction_timeout();
        let cause = match (error.class, error.kind) {
            (ErrorClass::Retriable, _) => ReplaceCause::Timeout,
            // librdkafka can't tell a transaction that the coordinator ended for its age from one that another instance
            // ended.
            (_, ErrorKind::Fenced) if outlived => ReplaceCause::Timeout,
            (_, ErrorKind::Fenced) => ReplaceCause::Fenced,
            // A broker was away; the producer itself did not fail.
            _ if kafka.tainted() => ReplaceCause::Disconnect,
            _ => ReplaceCause::Fatal,
        };
        self.replace(kafka, cause, error.into(), now)
    }

    /// Replaces the producer. Fails after too many failures.
    pub(super) fn replace<P, K: Kafka<P, Offsets = O>>(
        &mut self, kafka: &mut K, cause: ReplaceCause, error: DeliveryError, now: Time,
    ) -> Result<(), FatalError> {
        self.events.push(Event::ProducerReplaced { cause, error: error.clone() });
        match cause {
            ReplaceCause::Fatal => {
                let failed = &mut self.producers.failed;
                failed.retain(|&at| now.since(at) < FAILURES_INTERVAL);
                failed.push(now);
                if failed.len() > MAX_FAILURES {
                    return Err(FatalError::TooManyFailures { count: failed.len(), source: error });
                }
            }
            ReplaceCause::Fenced => match self.producers.fenced {
                // An instance that came and went may fence more than once: its request is repeated until ours are out
                // of its way.
                Some(at) if now.since(at) < SAME_FENCING_INTERVAL => {}
                Some(at) if now.since(at) < FENCED_INTERVAL => return Err(FatalError::FencedTwice(error)),
                _ => self.producers.fenced = Some(now),
            },
            ReplaceCause::Timeout | ReplaceCause::Disconnect => {}
        }
        self.producers.in_doubt = false;
        kafka.replace().map_err(FatalError::NoProducer)
    }

    /// Returns how long the coordinator leaves a transaction open.
    pub(super) fn transaction_timeout(&self) -> Duration {
        match self.rules.strategy {
            Strategy::ExactlyOnce { timeout } => timeout,
            Strategy::AtLeastOnce => Duration::ZERO,
        }
    }

    pub(super) fn age(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    pub(super) fn call_failed(&mut self, phase: Phase, error: &TransactionError) {
        self.events.push(Event::CallFailed { phase, class: error.class });
    }
}

/// Fails for an error that only people can mend.
pub(super) fn deny(error: &TransactionError) -> Result<(), FatalError> {
    match error.kind {
        ErrorKind::Group => Err(FatalError::Commit(error.clone().into())),
        ErrorKind::Denied => Err(FatalError::Denied(error.clone().into())),
        ErrorKind::Fenced | ErrorKind::Other => Ok(()),
    }
}
