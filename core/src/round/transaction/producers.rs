//! The producers of a service, one after another: when one gets its epoch, and when it has to go.

use std::time::Duration;

use super::super::TransactionError;
use super::super::kafka::{ErrorClass, ErrorKind, Kafka};
use super::super::outcome::{Cause, Note, Phase, Step, Stop};
use super::{TAINTED, Transactions};
use crate::units::Time;

/// After this a producer that gets no epoch is given up too: another may fare better.
const INIT: Duration = Duration::from_secs(60);
/// More than this many producers that failed within [`REPLACED_WITHIN`]: the next one would fare no better.
const REPLACED_MAX: usize = 5;
const REPLACED_WITHIN: Duration = Duration::from_secs(600);
/// Fenced twice within this: another instance goes by the same name.
const FENCED_WITHIN: Duration = Duration::from_secs(60);
/// Fenced again within this: by the same one.
const FENCING_LASTS: Duration = Duration::from_secs(5);

impl<O> Transactions<O> {
    /// Sees to it that transactions can begin: `None` when they can. No transaction is open.
    pub(super) fn ready<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        kafka: &mut K,
        now: Time,
    ) -> Result<Option<Step>, Stop> {
        if let Some(why) = kafka.fatal() {
            self.replace(kafka, Cause::Fatal, why, now)?;
        } else if kafka.in_transaction() {
            self.replace(kafka, Cause::Timeout, "an abort was not answered".to_owned(), now)?;
        } else if kafka.is_initialised() && kafka.tainted() {
            self.replace(kafka, Cause::Disconnect, TAINTED.to_owned(), now)?;
        }
        if kafka.is_initialised() {
            return Ok(None);
        }
        let since = *self.preparing.get_or_insert(now);
        let Err(error) = kafka.init() else {
            self.preparing = None;
            return Ok(None);
        };
        self.failed(Phase::Prepare, &error);
        if error.class == ErrorClass::Retriable && now.since(since) < INIT {
            return Ok(Some(Step::Again));
        }
        self.preparing = None;
        deny(&error)?;
        self.replace_after(kafka, &error, now)?;
        Ok(Some(Step::Breathe))
    }

    pub(super) fn replace_after<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        kafka: &mut K,
        error: &TransactionError,
        now: Time,
    ) -> Result<(), Stop> {
        let outlived = self.began.is_some_and(|began| now.since(began) >= self.rules.timeout);
        let cause = match (error.class, error.kind) {
            (ErrorClass::Retriable, _) => Cause::Timeout,
            // librdkafka can't tell a transaction that the coordinator ended for its age from one that another instance ended.
            (_, ErrorKind::Fenced) if outlived => Cause::Timeout,
            (_, ErrorKind::Fenced) => Cause::Fenced,
            // A broker that was away, not a producer that fails by itself.
            _ if kafka.tainted() => Cause::Disconnect,
            _ => Cause::Fatal,
        };
        self.replace(kafka, cause, error.to_string(), now)
    }

    /// Another producer. Gives up after too many that failed.
    pub fn replace<P, K: Kafka<P, Offsets = O>>(
        &mut self,
        kafka: &mut K,
        cause: Cause,
        why: String,
        now: Time,
    ) -> Result<(), Stop> {
        self.notes.push(Note::Replaced { cause, why: why.clone() });
        match cause {
            Cause::Fatal => {
                self.replaced.retain(|&at| now.since(at) < REPLACED_WITHIN);
                self.replaced.push(now);
                if self.replaced.len() > REPLACED_MAX {
                    return Err(Stop::Failures { count: self.replaced.len(), why });
                }
            }
            Cause::Fenced => match self.fenced {
                // One that came and went may fence more than once: its request is repeated until ours are out of its way.
                Some(at) if now.since(at) < FENCING_LASTS => {}
                Some(at) if now.since(at) < FENCED_WITHIN => return Err(Stop::FencedTwice(why)),
                _ => self.fenced = Some(now),
            },
            Cause::Timeout | Cause::Disconnect => {}
        }
        self.in_doubt = false;
        kafka.replace().map_err(Stop::NoProducer)
    }

    pub(super) fn failed(&mut self, phase: Phase, error: &TransactionError) {
        self.notes.push(Note::Failed { phase, class: error.class });
    }
}

/// An error that only people can mend.
pub(super) fn deny(error: &TransactionError) -> Result<(), Stop> {
    match error.kind {
        ErrorKind::Group => Err(Stop::Commit(error.to_string())),
        ErrorKind::Denied => Err(Stop::Denied(error.to_string())),
        ErrorKind::Fenced | ErrorKind::Other => Ok(()),
    }
}
