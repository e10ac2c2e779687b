//! The state machine that delivers a round under either strategy.
//!
//! - At least once: `Starting => Bisecting => Filling => Landing => Bisecting … => CommittingOffsets => done`. Outputs
//!   are sent for good, in one group that is halved while a broker refuses it; then the offsets are committed through
//!   the consumer.
//! - Exactly once: `Starting => Filling => Offsets => Landing => Committing => done`, all in one transaction. It may be
//!   `Open`, with some of the outputs, before the round begins. Every error leads through `Aborting`, or a new
//!   producer, and `Resyncing` back to `Starting`, where the rest of the round is tried again. Refused records are
//!   found in between, in transactions that are always aborted (`Bisecting`).
//!
//! ARCHITECTURE.md has the table. One [`step`](Machine::step) makes about one call of [`Kafka`] and never waits by
//! itself, so that its owner can beat, serve the group and be shut down between two steps. In a round the group must
//! not be served while a transaction is open: a rebalance never meets offsets on their way. The records that the core
//! counts as completed are always those that are committed together with the outputs of the round, because outputs are
//! kept until their commit was acknowledged.

mod at_least_once;
mod bisecting;
mod exactly_once;
mod producers;

use std::{mem, time::Duration};

use super::kafka::{ClientError, Failure, Kafka, SendError, TransactionError};
use super::outcome::{DeliveryError, Event, FatalError, Phase, Step};
use super::round::Round;
use crate::{throttle::Throttle, units::Time};
use at_least_once::PendingCommit;
use bisecting::{Bisection, Missing};
use producers::ProducerHistory;

/// The number of outputs that one step hands over.
const CHUNK: usize = 1024;

/// The guarantee that a delivery gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Sends, then commits: a crash in between repeats the round.
    AtLeastOnce,
    /// Sends and commits in one transaction, which the coordinator leaves open for `timeout`
    /// (`transaction.timeout.ms`).
    ExactlyOnce { timeout: Duration },
}

/// The owner's choices.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryRules {
    pub strategy: Strategy,
    /// Take a foreign committed offset for the partition's start; otherwise stop.
    pub replay_foreign: bool,
    /// Drop a record of which the dead-letter topic refuses each stub, too; otherwise stop.
    pub discard_undeliverable: bool,
}

/// Delivers rounds, one at a time. `O` is [`Kafka::Offsets`].
#[derive(Debug)]
pub struct Machine<O> {
    rules: DeliveryRules,
    state: State<O>,
    /// The time at which the last transaction began.
    began: Option<Time>,
    /// The most outputs of the next transaction: a round that ran out of time is committed in parts.
    most: usize,
    producers: ProducerHistory,
    events: Vec<Event>,
}

#[derive(Debug)]
enum State<O> {
    /// The next attempt begins.
    Starting,
    /// The transaction of the next round is open, and has the outputs before the tag `sent`.
    Open { sent: usize },
    /// `next` indexes the first tag that was not handed over; `emptied` tells whether the send queue was flushed for
    /// it.
    Filling { attempt: Attempt<O>, next: usize, emptied: bool },
    /// All outputs were handed over, and the offsets follow.
    Offsets(Attempt<O>),
    /// Outputs are in flight.
    Landing(Attempt<O>),
    /// `outputs` counts the outputs in the transaction.
    Committing { since: Time, outputs: usize },
    /// A commit through the consumer; `None` before the offsets are taken.
    CommittingOffsets(Option<PendingCommit<O>>),
    /// The transaction is ended without effect.
    Aborting { since: Time, then: Then<O> },
    /// `warned` tells whether an unreadable answer was reported.
    Resyncing { warned: bool },
    /// The next group is to be sent.
    Bisecting(Bisection),
}

/// The continuation after an abort.
#[derive(Debug)]
enum Then<O> {
    Resync,
    /// Find the refused records.
    Bisect,
    /// Evaluate the probe that was aborted.
    Judge(Attempt<O>),
}

/// A group of outputs on its way.
#[derive(Debug)]
struct Attempt<O> {
    tags: Vec<usize>,
    purpose: Purpose<O>,
    deadline: Time,
    missing: Missing,
    /// The error after which the producer takes or sends nothing any more.
    broken: Option<ClientError>,
    /// The error of a record of unknown fate.
    unknown: Option<ClientError>,
    /// The error that keeps the offsets out of this transaction.
    offsets_error: Option<TransactionError>,
    /// Nothing is in flight.
    landed: bool,
    /// The deadline passed before all outputs had landed.
    late: bool,
}

#[derive(Debug)]
enum Purpose<O> {
    /// Exactly once: commit the outputs together with these offsets.
    Commit(O),
    /// Find out which outputs are refused. Exactly once sends them in a transaction that is aborted, at least once for
    /// good.
    Bisect(Bisection),
}

/// One step of a machine, and its parameters.
struct StepContext<'a, P, K: Kafka<P>> {
    machine: &'a mut Machine<K::Offsets>,
    round: &'a mut Round<P>,
    throttle: &'a mut Throttle,
    kafka: &'a mut K,
    now: Time,
}

impl<O> Attempt<O> {
    fn new(tags: Vec<usize>, purpose: Purpose<O>, deadline: Time) -> Attempt<O> {
        Attempt {
            tags,
            purpose,
            deadline,
            missing: Missing::default(),
            broken: None,
            unknown: None,
            offsets_error: None,
            landed: false,
            late: false,
        }
    }

    /// Takes the failures that Kafka has reported.
    fn take_failures(&mut self, failures: Vec<(usize, Failure)>) -> Result<(), FatalError> {
        for (tag, failure) in failures {
            match failure {
                Failure::Refused(error) => self.missing.refused.push((tag, error.into())),
                Failure::Denied(error) => return Err(FatalError::Denied(error.into())),
                Failure::Unknown(error) => {
                    self.missing.again.push(tag);
                    self.unknown = Some(error);
                }
                Failure::Fatal(error) => {
                    self.missing.again.push(tag);
                    self.broken.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    /// Schedules the outputs from `next` on for another attempt.
    fn skip_rest(&mut self, next: usize) {
        self.missing.again.extend(&self.tags[next..]);
    }

    fn is_complete(&self) -> bool {
        self.landed && self.missing.again.is_empty()
    }
}

impl<O> Machine<O> {
    /// Makes a machine that has delivered nothing yet.
    pub fn new(rules: DeliveryRules) -> Machine<O> {
        Machine {
            rules,
            state: State::Starting,
            began: None,
            most: usize::MAX,
            producers: ProducerHistory::default(),
            events: Vec::new(),
        }
    }

    /// Makes a step of the preparation before the first record, which aborts the transaction that a dead predecessor
    /// left open. At least once needs none.
    pub fn prepare<P, K: Kafka<P, Offsets = O>>(&mut self, kafka: &mut K, now: Time) -> Result<Step, FatalError> {
        if self.rules.strategy == Strategy::AtLeastOnce {
            return Ok(Step::Done);
        }
        Ok(self.ready(kafka, now)?.unwrap_or(Step::Done))
    }

    /// Makes the next step of a round. Until [`Step::Done`], no output may be added. A round that is given up stays
    /// open: its owner aborts it, or leaves it to the next producer of this id.
    pub fn step<P, K: Kafka<P, Offsets = O>>(
        &mut self, round: &mut Round<P>, throttle: &mut Throttle, kafka: &mut K, now: Time,
    ) -> Result<Step, FatalError> {
        StepContext { machine: self, round, throttle, kafka, now }.run()
    }

    /// Returns the part of the round that is under way.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Starting | State::Open { .. } | State::Bisecting(_) => Phase::Begin,
            State::Filling { .. } | State::Landing(_) => Phase::Send,
            State::Offsets(_) => Phase::Offsets,
            State::Committing { .. } | State::CommittingOffsets(_) => Phase::Commit,
            State::Aborting { .. } => Phase::Abort,
            State::Resyncing { .. } => Phase::Resync,
        }
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }
}

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    fn run(&mut self) -> Result<Step, FatalError> {
        let at_least_once = self.machine.rules.strategy == Strategy::AtLeastOnce;
        match mem::replace(&mut self.machine.state, State::Starting) {
            State::Starting if at_least_once => self.send_all(),
            State::Starting => self.start_transaction(),
            State::Open { sent } => self.go_on_from(sent),
            State::Filling { attempt, next, emptied } => self.fill(attempt, next, emptied),
            State::Offsets(attempt) => self.send_offsets(attempt),
            State::Landing(attempt) if at_least_once => self.await_all(attempt),
            State::Landing(attempt) => self.land(attempt),
            State::Committing { since, outputs } => self.commit(since, outputs),
            State::CommittingOffsets(pending) => self.commit_offsets(pending),
            State::Aborting { since, then } => self.abort(since, then),
            State::Resyncing { warned } => self.resync(warned),
            State::Bisecting(bisection) if at_least_once => self.send_group(bisection),
            State::Bisecting(bisection) => self.probe_group(bisection),
        }
    }

    /// Ends the step: the next one is made in this state.
    fn go_on(&mut self, state: State<K::Offsets>) -> Result<Step, FatalError> {
        self.machine.state = state;
        Ok(Step::Again)
    }

    /// Filling: hands the outputs over to the producer.
    fn fill(
        &mut self, mut attempt: Attempt<K::Offsets>, mut next: usize, mut emptied: bool,
    ) -> Result<Step, FatalError> {
        let until = (next + CHUNK).min(attempt.tags.len());
        if self.now >= attempt.deadline {
            attempt.skip_rest(next);
            next = attempt.tags.len();
        }
        while next < until {
            let tag = attempt.tags[next];
            let output = &mut self.round.outputs[tag];
            match if output.is_wanted() { self.kafka.send(output, tag) } else { Ok(()) } {
                Ok(()) => {}
                Err(SendError::QueueFull) if emptied => {
                    attempt.missing.refused.push((tag, DeliveryError::LargerThanQueue));
                }
                Err(SendError::QueueFull) => {
                    let emptied = self.kafka.flush();
                    return self.go_on(State::Filling { attempt, next, emptied });
                }
                Err(SendError::Refused(error)) => attempt.missing.refused.push((tag, error.into())),
                Err(SendError::Denied(error)) => return Err(FatalError::Denied(error.into())),
                Err(SendError::Fatal(error)) => {
                    attempt.skip_rest(next);
                    attempt.broken = Some(error);
                    next = attempt.tags.len();
                    break;
                }
            }
            (next, emptied) = (next + 1, false);
        }
        self.go_on(if next < attempt.tags.len() {
            State::Filling { attempt, next, emptied }
        } else if matches!(attempt.purpose, Purpose::Commit(_)) && attempt.missing.is_empty() {
            State::Offsets(attempt)
        } else {
            State::Landing(attempt)
        })
    }
}
