//! The network: a call fails, is not answered, arrives late as a copy, or the process crashes during it.

use std::time::Duration;

use watermaster_core::delivery::{ClientError, ErrorClass, ErrorKind, Failure, TransactionError};

use super::broker::{DEAD_LETTER, Late, Refusal, Sequence};
use super::source::{Poison, Record};
use super::{client::Producer, link::Link, trace::note};

/// Timeout of one call that can be continued by calling again.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn error(class: ErrorClass, kind: ErrorKind, text: &str) -> TransactionError {
    TransactionError { class, kind, source: ClientError::new(text) }
}

pub(super) fn gone() -> TransactionError {
    error(ErrorClass::Fatal, ErrorKind::Other, "the process has crashed")
}

/// The effect of the network on an EndTxn.
enum Fate {
    Answered,
    /// Not applied.
    Lost,
    /// Applied, but the answer was lost.
    AnswerLost,
    /// Answered, and a copy arrives later.
    Copied,
    /// Not answered, arrives later.
    Late,
}

impl Link<'_> {
    pub(super) fn producer(&mut self) -> &mut Producer {
        &mut self.client.producer
    }

    /// Returns whether the process has crashed, here or before.
    pub(super) fn dies(&mut self, applied: bool) -> bool {
        let rate = self.cluster.rates.crash;
        if !self.client.crashed && self.cluster.fault_occurs(rate) {
            note(&self.client.name, || format!("crashes in a call, applied: {applied}"));
            self.client.crashed = true;
            let coverage = &mut self.cluster.broker.coverage;
            if applied { coverage.crashes_after_call += 1 } else { coverage.crashes_in_call += 1 }
        }
        self.client.crashed
    }

    pub(super) fn take(&mut self, time: Duration) {
        self.client.took += time;
    }

    /// Records the answer in the trace.
    pub(super) fn answer<T: std::fmt::Debug>(&mut self, call: &str, answer: T) -> T {
        let quick = self.cluster.random.millis(1, 8);
        self.take(quick);
        note(&self.client.name, || format!("{call}: {answer:?}"));
        answer
    }

    pub(super) fn cut(&self) -> bool {
        self.client.cut_until > self.cluster.now
    }

    /// Returns whether the transaction coordinator is unreachable.
    pub(super) fn transactions_away(&self) -> bool {
        self.cut() || self.cluster.broker.transactions_down > self.cluster.now
    }

    pub(super) fn group_away(&self) -> bool {
        self.cut() || self.cluster.broker.group_down > self.cluster.now
    }

    pub(super) fn timed_out(&mut self, after: Duration) -> TransactionError {
        self.take(after);
        self.cluster.broker.coverage.retriable += 1;
        error(ErrorClass::Retriable, ErrorKind::Other, "timed out")
    }

    /// Returns an injected error at the seed's rate.
    pub(super) fn injected(&mut self, classes: &[ErrorClass]) -> Option<TransactionError> {
        let rate = self.cluster.rates.error;
        if !self.cluster.fault_occurs(rate) {
            return None;
        }
        let class = self.cluster.random.one_of(classes);
        let coverage = &mut self.cluster.broker.coverage;
        match class {
            ErrorClass::Retriable => coverage.retriable += 1,
            ErrorClass::Abortable => coverage.abortable += 1,
            ErrorClass::Fatal => coverage.fatal += 1,
        }
        let text = "injected";
        match class {
            ErrorClass::Retriable => {}
            ErrorClass::Abortable => self.producer().failing = Some(text.to_owned()),
            ErrorClass::Fatal => self.producer().fatal = Some(text.to_owned()),
        }
        Some(error(class, ErrorKind::Other, text))
    }

    /// Maps a refusal of the coordinator to the error of librdkafka.
    pub(super) fn refused(&mut self, refusal: Refusal) -> TransactionError {
        let id = self.client.id;
        match refusal {
            Refusal::Fenced => {
                let timed_out = self.cluster.broker.was_timed_out(id);
                let coverage = &mut self.cluster.broker.coverage;
                if timed_out {
                    coverage.fenced_by_timeout += 1
                } else {
                    coverage.fenced_by_other += 1
                }
                self.producer().fatal = Some("fenced".to_owned());
                error(ErrorClass::Fatal, ErrorKind::Fenced, "fenced")
            }
            Refusal::InvalidState => {
                self.producer().fatal = Some("invalid transaction state".to_owned());
                error(ErrorClass::Fatal, ErrorKind::Other, "invalid transaction state")
            }
            Refusal::Busy => self.timed_out(CALL_TIMEOUT),
        }
    }

    pub(super) fn epoch(&mut self) -> u32 {
        self.producer().epoch.unwrap_or(0)
    }

    /// Returns the error that blocks all calls until the open transaction ends.
    pub(super) fn blocking_error(&mut self) -> Option<TransactionError> {
        if let Some(why) = self.producer().fatal.clone() {
            let kind = if why == "fenced" { ErrorKind::Fenced } else { ErrorKind::Other };
            return Some(error(ErrorClass::Fatal, kind, &why));
        }
        let why = self.producer().failing.clone()?;
        Some(error(ErrorClass::Abortable, ErrorKind::Other, &why))
    }

    /// Reports a call that librdkafka does not allow in this state.
    pub(super) fn expect(&mut self, holds: bool, call: &str) {
        if !holds {
            let name = self.client.name.clone();
            self.cluster.broker.checker.breaks(|| format!("protocol: {name}: {call}"));
        }
    }

    /// Returns whether the offsets are still queued behind other requests to the same broker.
    pub(super) fn offsets_wait(&mut self) -> bool {
        let (now, rate) = (self.cluster.now, self.cluster.rates.slow_offsets);
        let begun = self.producer().offsets_until;
        let until = match begun {
            Some(until) => until,
            None if self.cluster.later_fault_occurs(rate) => {
                self.cluster.broker.coverage.slow_offsets += 1;
                now + self.cluster.later.millis(500, 12_000)
            }
            None => now,
        };
        self.producer().offsets_until = Some(until);
        until > now
    }

    // ## Sending

    /// Sends, at random, the batches that librdkafka's own threads may have sent by now.
    pub(super) fn transmit_by_itself(&mut self) {
        if self.cluster.rates.stored_and_repeated > 0 && self.cluster.later.once_in(2) {
            if self.cluster.exactly_once {
                self.cluster.broker.finish_markers(self.client.id);
            }
            self.transmit();
        }
    }

    /// Sends the queued records to the brokers. On a slow network it sends a part, and returns whether some are left.
    pub(super) fn transmits_slowly(&mut self) -> bool {
        let per_record = self.cluster.rates.per_record;
        if per_record.is_zero() {
            self.transmit();
            return false;
        }
        let part = (100 / per_record.as_millis().max(1)).max(1) as usize;
        // A repeated batch is repeated as a whole.
        let part = part.max(self.producer().again.unwrap_or(0)).min(self.producer().in_flight.len());
        let later = self.producer().in_flight.split_off(part);
        self.transmit();
        self.producer().in_flight.extend(later);
        self.take(per_record * part as u32);
        self.blocking_error().is_none() && !self.producer().in_flight.is_empty()
    }

    /// Sends the queued records to the brokers, batch by batch.
    pub(super) fn transmit(&mut self) {
        while let Some(&(log, ..)) = self.producer().in_flight.front() {
            let same = match self.producer().again.take() {
                Some(same) => same,
                None => {
                    let most = self.cluster.random.between(1, self.cluster.rates.batch) as usize;
                    self.producer().in_flight.iter().take(most).take_while(|(other, ..)| *other == log).count()
                }
            };
            let batch: Vec<_> = self.producer().in_flight.drain(..same).collect();
            if !self.send_batch(log, &batch) && (self.producer().again.is_some() || self.cluster.random.once_in(2)) {
                // The rest stays queued until the abort.
                return;
            }
            if self.producer().fatal.is_some() {
                return;
            }
        }
    }

    fn send_batch(&mut self, log: usize, batch: &[(usize, Record, usize)]) -> bool {
        let refused = |record: &Record| match record.poison {
            Poison::Whole | Poison::Key | Poison::Everywhere | Poison::Instance => true,
            Poison::Broker => log != DEAD_LETTER,
            Poison::None | Poison::Producer => false,
        };
        if batch.iter().any(|(_, record, _)| refused(record)) {
            self.cluster.broker.coverage.neighbours += batch.len() as u64 - 1;
            let (id, epoch) = (self.client.id, self.epoch());
            self.cluster.broker.forget_batches(id, epoch);
            self.fail(batch, |tag| (tag, Failure::Refused(ClientError::new("invalid record"))));
            return false;
        }
        let (id, epoch, now) = (self.client.id, self.epoch(), self.cluster.now);
        let (first, count) = (self.producer().next[log], batch.len() as u64);
        match self.cluster.broker.sequence(id, epoch, log, first, count) {
            Sequence::Next => {}
            Sequence::Known => {
                self.cluster.broker.coverage.known_batches += 1;
                self.producer().next[log] += count;
                self.note_arrived(batch);
                return true;
            }
            Sequence::OutOfOrder => {
                self.producer().fatal = Some("out of order".to_owned());
                self.fail(batch, |tag| (tag, Failure::Fatal(ClientError::new("out of order"))));
                return false;
            }
        }
        let rate = self.cluster.rates.batch_lost;
        let lost = self.cluster.fault_occurs(rate);
        if !(lost && self.cluster.random.once_in(2)) {
            for &(_, record, _) in batch {
                if !self.cluster.exactly_once {
                    self.cluster.broker.append(log, record);
                    continue;
                }
                if let Err(refusal) = self.cluster.broker.produce(id, epoch, log, record, now) {
                    self.refused(refusal);
                    self.fail(batch, |tag| (tag, Failure::Fatal(ClientError::new("fenced"))));
                    return false;
                }
                self.producer().added = true;
            }
        }
        if lost {
            self.cluster.broker.coverage.batches_unknown += 1;
            // A record may time out before the connection breaks.
            let broke = self.cluster.random.once_in(2);
            self.producer().tainted |= broke;
            self.cluster.broker.forget_batches(id, epoch);
            self.fail(batch, |tag| (tag, Failure::Unknown(ClientError::new("not answered"))));
            return false;
        }
        self.cluster.broker.remember(id, epoch, log, first, count);
        let rate = self.cluster.rates.stored_and_repeated;
        if self.cluster.later_fault_occurs(rate) {
            let producer = self.producer();
            batch.iter().rev().for_each(|record| producer.in_flight.push_front(*record));
            producer.again = Some(batch.len());
            return false;
        }
        self.producer().next[log] += count;
        self.note_arrived(batch);
        true
    }

    fn fail(&mut self, batch: &[(usize, Record, usize)], failure: impl Fn(usize) -> (usize, Failure)) {
        let exactly_once = self.cluster.exactly_once;
        let producer = self.producer();
        producer.failures.extend(batch.iter().map(|&(_, _, tag)| failure(tag)));
        if exactly_once {
            producer.failing = Some("a record failed".to_owned());
        }
    }

    // ## Ending

    fn fate(&mut self) -> Fate {
        let rate = self.cluster.rates.disconnect;
        if !self.cluster.fault_occurs(rate) {
            return Fate::Answered;
        }
        self.producer().tainted = true;
        match self.cluster.random.below(5) {
            0 => Fate::Lost,
            1 => Fate::AnswerLost,
            2 | 3 => Fate::Copied,
            _ => Fate::Late,
        }
    }

    /// EndTxn.
    pub(super) fn end(&mut self, commit: bool) -> Result<(), TransactionError> {
        if !self.producer().added {
            // librdkafka sends no EndTxn for a transaction that the coordinator does not know.
            return Ok(());
        }
        if self.transactions_away() {
            return Err(self.timed_out(CALL_TIMEOUT));
        }
        let (id, epoch) = (self.client.id, self.epoch());
        let serial = self.cluster.broker.serial(id);
        let fate = self.fate();
        if matches!(fate, Fate::Copied | Fate::Late) {
            let at = self.cluster.now + self.cluster.random.millis(20, 20_000);
            self.cluster.broker.late.push((at, Late::End { id, epoch, serial, commit }));
        }
        if matches!(fate, Fate::Lost | Fate::Late) {
            self.cut_for_a_while();
            return Err(self.timed_out(CALL_TIMEOUT));
        }
        let (now, cluster) = (self.cluster.now, &mut *self.cluster);
        let ended = cluster.broker.end(id, epoch, commit, now, &mut cluster.random);
        match ended {
            Err(refusal) => Err(self.refused(refusal)),
            Ok(()) if matches!(fate, Fate::AnswerLost) => {
                self.cut_for_a_while();
                Err(self.timed_out(CALL_TIMEOUT))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Sometimes keeps a broken connection broken for longer than any timeout.
    fn cut_for_a_while(&mut self) {
        if self.cluster.random.once_in(2) {
            let until = self.cluster.now + self.cluster.random.millis(1_000, 25_000);
            self.client.cut_until = self.client.cut_until.max(until);
            self.cluster.broker.coverage.cuts += 1;
        }
    }
}
