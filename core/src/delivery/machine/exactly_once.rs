//! Exactly once: a round, or a part of one, in a transaction. It is committed, aborted, or left to the next producer.
//!
//! The transaction may begin shortly before its round is due. The coordinator then knows the partitions, and the first
//! outputs are on their way, when the round begins: about 1 ms less for a record in the median.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::kafka::{Commit, Committed, ErrorClass, Foreign, Kafka, OffsetsError, TransactionError};
use super::super::outcome::{AttemptOutcome, DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
use super::super::round::{Round, commits_without, offsets_of};
use super::{Attempt, Bisection, Machine, Missing, Purpose, State, StepContext, Strategy, Then, producers::deny};
use crate::offset_map::{self, OffsetMap};
use crate::units::Time;

/// The longest wait for the answer to a commit or an abort; the producer is replaced then.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// The tags and the offsets of the next attempt, or the step that follows without them: nothing is left to commit, or
/// the group has moved on.
type NextOffsets<O> = Result<(Vec<usize>, O), Step>;

impl<O> Machine<O> {
    /// Begins the transaction of a round that will be due soon, and sends the outputs that are there; called again, it
    /// sends those that came since. Until the next [`step`](Machine::step), outputs may be added and the group may be
    /// served. A revocation makes that step abort the transaction, if it has outputs of the partition. The call does
    /// nothing while the producer is not fit for a transaction: the round then begins when it is due.
    pub fn open<P, K: Kafka<P, Offsets = O>>(&mut self, round: &mut Round<P>, kafka: &mut K, now: Time) {
        let mut sent = match self.state {
            State::Open { sent } => sent,
            State::Starting if self.is_fit(kafka) && kafka.begin().is_ok() => {
                self.began = Some(now);
                0
            }
            _ => return,
        };
        // An orphan is dropped when the round begins, which changes the tags of those behind it. An output that the
        // producer does not take now is for the round, too.
        while let Some(output) = round.outputs.get_mut(sent).filter(|output| output.is_wanted()) {
            if kafka.send(output, sent).is_err() {
                break;
            }
            sent += 1;
        }
        self.state = State::Open { sent };
    }

    /// Returns whether a transaction is open for a round that has not begun.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Forgets such a transaction, because its round is given up. Its owner aborts it.
    pub fn forget_open(&mut self) {
        if self.is_open() {
            self.state = State::Starting;
            self.producers.in_doubt = true;
        }
    }

    fn is_fit<P, K: Kafka<P, Offsets = O>>(&self, kafka: &K) -> bool {
        matches!(self.rules.strategy, Strategy::ExactlyOnce { .. })
            && self.most == usize::MAX
            && !self.producers.in_doubt
            && kafka.is_initialised()
            && !kafka.in_transaction()
            && kafka.fatal().is_none()
            && !kafka.tainted()
    }
}

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Starting: prepares the producer and the offsets, then begins the transaction.
    pub(super) fn start_transaction(&mut self) -> Result<Step, FatalError> {
        // A probe commits nothing, so it may go on with a producer in doubt.
        if self.machine.producers.in_doubt {
            self.machine.replace(self.kafka, ReplaceCause::Timeout, DeliveryError::InDoubt, self.now)?;
        }
        if let Some(step) = self.machine.ready(self.kafka, self.now)? {
            return Ok(step);
        }
        match self.next_offsets()? {
            Ok((tags, offsets)) => self.begin(tags, Purpose::Commit(offsets)),
            Err(step) => Ok(step),
        }
    }

    /// Open: takes the offsets, now that the round is due, and goes on with the outputs that were not sent.
    pub(super) fn go_on_from(&mut self, sent: usize) -> Result<Step, FatalError> {
        if self.round.outputs[..sent].iter().any(|output| output.orphan) {
            return self.give_up_open();
        }
        let Ok((tags, offsets)) = self.next_offsets()? else { return self.give_up_open() };
        let deadline = self.machine.began.unwrap_or(self.now) + self.send_timeout();
        let attempt = Attempt::new(tags, Purpose::Commit(offsets), deadline);
        self.go_on(State::Filling { attempt, next: sent, emptied: false })
    }

    /// Aborts the transaction, which may have outputs in flight.
    fn give_up_open(&mut self) -> Result<Step, FatalError> {
        let has_landed = self.kafka.flush();
        self.machine.producers.in_doubt |= !has_landed || !self.kafka.failures().is_empty();
        self.give_up(DeliveryError::GroupMoved, Then::Resync)
    }

    /// Takes the outputs of the next attempt, and the offsets that cover exactly them.
    pub(super) fn next_offsets(&mut self) -> Result<NextOffsets<K::Offsets>, FatalError> {
        self.round.drop_orphans(self.throttle);
        let (tags, commits) = self.next_part()?;
        if commits.is_empty() {
            debug_assert!(tags.is_empty(), "a partition with outputs has completed something");
            return Ok(Err(Step::Done));
        }
        match self.kafka.offsets(&commits) {
            Ok(offsets) => Ok(Ok((tags, offsets))),
            Err(OffsetsError::Refused(error)) => Err(FatalError::Commit(error.into())),
            Err(OffsetsError::GroupMoved(error) | OffsetsError::Retriable(error)) => {
                self.machine.events.push(Event::GroupMoved(error));
                Ok(Err(Step::PollGroup))
            }
        }
    }

    /// Returns the outputs of the next attempt and the commits that cover exactly them: the whole round, or as many of
    /// its first decisions as can be sent in time.
    fn next_part(&mut self) -> Result<(Vec<usize>, Vec<Commit>), FatalError> {
        let tags = self.round.next_tags(self.machine.most);
        let rest = &self.round.outputs[tags.last().map_or(self.round.len(), |last| last + 1)..];
        if let Ok(commits) = commits_without(self.throttle, self.now, rest) {
            return Ok((tags, commits));
        }
        // Holes behind the rest make the map of a part larger than that of the whole round, which fits.
        Ok((self.round.next_tags(usize::MAX), commits_without::<P>(self.throttle, self.now, &[])?))
    }

    /// Returns how long outputs and offsets may take, so that time is left for the commit.
    pub(super) fn send_timeout(&self) -> Duration {
        self.machine.transaction_timeout() * 8 / 10
    }

    /// Halves the next attempt, because one with this many outputs took too long.
    fn send_less(&mut self, outputs: usize) {
        if outputs > 1 {
            self.machine.most = outputs / 2;
            self.machine.events.push(Event::Divided { outputs, next: self.machine.most });
        }
    }

    pub(super) fn begin(&mut self, tags: Vec<usize>, purpose: Purpose<K::Offsets>) -> Result<Step, FatalError> {
        let Err(error) = self.kafka.begin() else {
            self.machine.began = Some(self.now);
            let attempt = Attempt::new(tags, purpose, self.now + self.send_timeout());
            return self.go_on(State::Filling { attempt, next: 0, emptied: false });
        };
        let Purpose::Bisect(mut bisection) = purpose else {
            return self.abandon_producer(Phase::Begin, error, AttemptOutcome::Aborted);
        };
        self.machine.call_failed(Phase::Begin, &error);
        self.machine.replace_after(self.kafka, error, self.now)?;
        bisection.push(tags);
        self.machine.state = State::Bisecting(bisection);
        Ok(Step::Backoff)
    }

    /// Offsets: adds the offsets to the transaction while its records are on their way. One after the other would add a
    /// fifth to the time of a round.
    pub(super) fn send_offsets(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        let Purpose::Commit(offsets) = &attempt.purpose else { unreachable!("a probe is aborted without offsets") };
        match self.kafka.send_offsets(offsets) {
            Ok(true) => self.go_on(State::Landing(attempt)),
            // On a connection to a broker they wait behind records that are not stored yet.
            Ok(false) if self.now < attempt.deadline => self.go_on(State::Offsets(attempt)),
            Ok(false) => {
                self.send_less(attempt.tags.len());
                let error = TransactionError::other(ErrorClass::Retriable, DeliveryError::OffsetsTimeout);
                self.recover(Phase::Offsets, error)
            }
            Err(error) if error.class == ErrorClass::Abortable => {
                // A refused record may be the cause; it is known once all records have landed or failed.
                attempt.offsets_error = Some(error);
                self.go_on(State::Landing(attempt))
            }
            Err(error) => self.recover(Phase::Offsets, error),
        }
    }

    /// Landing: waits until all outputs have landed, one has failed, or the deadline has passed.
    pub(super) fn land(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        attempt.landed = self.kafka.flush();
        // After a failure, the other records stay where they are until the abort.
        let failing = attempt.offsets_error.is_some() || self.kafka.failing();
        if !attempt.landed && !failing && self.now < attempt.deadline {
            return self.go_on(State::Landing(attempt));
        }
        attempt.take_failures(self.kafka.failures())?;
        let complete = attempt.is_complete();
        self.machine.producers.in_doubt |= !complete;
        attempt.late = !failing && self.now >= attempt.deadline && !complete;
        if matches!(attempt.purpose, Purpose::Bisect(_)) {
            return self.go_on(State::Aborting { since: self.now, then: Then::Judge(attempt) });
        }
        if attempt.late {
            self.send_less(attempt.tags.len());
        }
        if !attempt.missing.refused.is_empty() {
            self.give_up(DeliveryError::RecordRefused, Then::Bisect)
        } else if let Some(error) = attempt.offsets_error {
            self.recover(Phase::Offsets, error)
        } else if !attempt.landed && !failing {
            self.give_up(DeliveryError::LandingTimeout, Then::Resync)
        } else if !complete {
            // The cause is reported with the abort, if that fails as well.
            self.give_up(DeliveryError::NotLanded, Then::Resync)
        } else {
            self.go_on(State::Committing { since: self.now, outputs: attempt.tags.len() })
        }
    }

    /// Committing: commits the transaction.
    pub(super) fn commit(&mut self, since: Time, outputs: usize) -> Result<Step, FatalError> {
        let Err(error) = self.kafka.commit() else {
            return Ok(self.conclude(outputs));
        };
        if error.class == ErrorClass::Retriable && self.now.since(since) < END_TIMEOUT {
            self.machine.call_failed(Phase::Commit, &error);
            return self.go_on(State::Committing { since, outputs });
        }
        // The coordinator may have ended the transaction for its age.
        if self.machine.age(self.now) >= self.send_timeout() {
            self.send_less(outputs);
        }
        match error.class {
            ErrorClass::Retriable | ErrorClass::Fatal => {
                self.abandon_producer(Phase::Commit, error, AttemptOutcome::Unknown)
            }
            ErrorClass::Abortable => self.recover(Phase::Commit, error),
        }
    }

    /// Counts the outputs of a transaction as committed.
    fn conclude(&mut self, outputs: usize) -> Step {
        self.round.committed += outputs;
        let rest = offsets_of(&self.round.outputs[self.round.committed..]);
        let touched: Vec<u32> = self.throttle.touched().filter(|number| !rest.contains_key(number)).collect();
        touched.into_iter().for_each(|number| self.throttle.handle_committed(number));
        if self.machine.age(self.now) < self.send_timeout() / 2 {
            self.machine.most = self.machine.most.saturating_mul(2);
        }
        // The next part follows, if there is one. The group may be served before it begins.
        if rest.is_empty() { Step::Done } else { Step::Again }
    }

    fn end_attempt(&mut self, outcome: AttemptOutcome, error: DeliveryError) {
        self.machine.events.push(Event::AttemptEnded { outcome, error });
    }

    pub(super) fn give_up(&mut self, error: DeliveryError, then: Then<K::Offsets>) -> Result<Step, FatalError> {
        self.end_attempt(AttemptOutcome::Aborted, error);
        self.go_on(State::Aborting { since: self.now, then })
    }

    /// Reacts to the error of a call other than begin and abort.
    fn recover(&mut self, phase: Phase, error: TransactionError) -> Result<Step, FatalError> {
        deny(&error)?;
        match error.class {
            // A request that was not answered may still arrive, and would join the next transaction of this epoch.
            ErrorClass::Fatal | ErrorClass::Retriable => self.abandon_producer(phase, error, AttemptOutcome::Aborted),
            ErrorClass::Abortable => {
                self.machine.call_failed(phase, &error);
                self.give_up(error.into(), Then::Resync)
            }
        }
    }

    /// Replaces the producer; its successor ends the transaction that it left open.
    fn abandon_producer(
        &mut self, phase: Phase, error: TransactionError, outcome: AttemptOutcome,
    ) -> Result<Step, FatalError> {
        self.machine.call_failed(phase, &error);
        self.end_attempt(outcome, error.clone().into());
        self.machine.replace_after(self.kafka, error, self.now)?;
        self.go_on(State::Resyncing { warned: false })
    }

    /// Aborting: aborts the transaction, or replaces the producer.
    pub(super) fn abort(&mut self, since: Time, then: Then<K::Offsets>) -> Result<Step, FatalError> {
        let mut replaced = true;
        if self.kafka.tainted() {
            // A tainted producer is replaced in any case. Brokers that were away may have forgotten the transaction.
            self.machine.replace(self.kafka, ReplaceCause::Disconnect, DeliveryError::Tainted, self.now)?;
        } else if let Err(error) = self.kafka.abort() {
            self.machine.call_failed(Phase::Abort, &error);
            if error.class == ErrorClass::Retriable && self.now.since(since) < END_TIMEOUT {
                return self.go_on(State::Aborting { since, then });
            }
            self.machine.replace_after(self.kafka, error, self.now)?;
        } else {
            replaced = false;
        }
        match then {
            Then::Resync => self.go_on(State::Resyncing { warned: false }),
            Then::Bisect => {
                let tags = self.round.next_tags(self.machine.most);
                self.go_on(State::Bisecting(Bisection::of(tags)))
            }
            Then::Judge(mut attempt) => {
                if replaced && attempt.tags.len() > 1 {
                    // The other refusals were lost with the old producer: a known one may be a neighbour of the
                    // culprit.
                    attempt.missing = Missing::default();
                    attempt.landed = false;
                    attempt.late |= self.machine.age(self.now) >= self.send_timeout();
                }
                self.judge(attempt)
            }
        }
    }

    /// Resyncing: compares a round of unknown outcome with the group's committed offsets, and drops the outputs that
    /// are recorded as completed from it.
    pub(super) fn resync(&mut self, warned: bool) -> Result<Step, FatalError> {
        self.machine.state = State::Resyncing { warned };
        // Until the new producer has its epoch, a commit of the old one may still be under way.
        if let Some(step) = self.machine.ready(self.kafka, self.now)? {
            return Ok(step);
        }
        self.round.drop_orphans(self.throttle);
        // Partitions without outputs are asked for as well: the answer shows that the group's coordinator is there.
        let outputs = self.round.outputs.iter().map(|output| output.partition);
        let partitions: BTreeSet<u32> = outputs.chain(self.throttle.touched()).collect();
        let partitions: Vec<u32> = partitions.into_iter().collect();
        if !partitions.is_empty() {
            match self.kafka.committed(&partitions) {
                Ok(committed) => self.drop_recorded(committed)?,
                Err(error) => {
                    if !warned {
                        self.machine.events.push(Event::CommittedUnreadable(error));
                    }
                    self.machine.state = State::Resyncing { warned: true };
                    return Ok(Step::Backoff);
                }
            }
        }
        // The group may have moved on unnoticed, and would refuse the next attempt, too.
        self.machine.state = State::Starting;
        Ok(Step::PollGroup)
    }

    fn drop_recorded(&mut self, committed: Vec<Committed>) -> Result<(), FatalError> {
        let mut recorded: BTreeMap<u32, (i64, OffsetMap)> = BTreeMap::new();
        for Committed { partition, offset } in committed {
            let Some((offset, metadata)) = offset else { continue };
            let map = match offset_map::decode(offset, &metadata) {
                Ok(map) => map,
                Err(_) if self.machine.rules.replay_foreign => OffsetMap::default(),
                Err(source) => return Err(FatalError::Foreign(Foreign { partition, offset, source })),
            };
            let known = self.throttle.ledger().partition(partition).map(|view| view.base);
            if let Some(known) = known.filter(|known| offset > *known) {
                self.machine.events.push(Event::Overtaken { partition, committed: offset, known });
            }
            recorded.insert(partition, (offset, map));
        }
        let before = self.round.len();
        self.round.retain(|partition, offset| {
            let done = |(base, map): &(i64, OffsetMap)| offset < *base || map.completed.contains(offset);
            !recorded.get(&partition).is_some_and(done)
        });
        self.machine.events.push(Event::Compared { done: before - self.round.len(), left: self.round.len() });
        Ok(())
    }
}
