//! The machine's trait for Kafka: every call may fail, take long, or be the last one before the process crashes.

use std::{fmt, time::Duration};

use watermaster_core::delivery::{
    ClientError, Commit, Committed, ErrorClass, ErrorKind, Failure, Form, Kafka, OffsetsError, Output, SendError,
    TransactionError,
};
use watermaster_core::offset_map;

use super::broker::{DEAD_LETTER, Late};
use super::client::{Client, Cluster, Producer};
use super::network::{CALL_TIMEOUT, error, gone};
use super::source::{Poison, Record};

/// Timeout of sending a transaction's offsets.
const SEND_OFFSETS_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of one attempt to read the committed offsets.
const COMMITTED_TIMEOUT: Duration = Duration::from_secs(3);

/// Offsets, with the member and the generation that commits them.
#[derive(Clone)]
pub struct Offsets {
    pub commits: Vec<Commit>,
    pub member: u32,
    pub generation: i32,
}

impl fmt::Debug for Offsets {
    /// Writes partition, offset and the offsets completed beyond it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} in generation {}:", self.member, self.generation)?;
        for Commit { partition, offset, metadata } in &self.commits {
            let map = offset_map::decode(*offset, metadata.as_bytes()).map(|map| map.completed);
            write!(f, " {partition} at {offset} {map:?}")?;
        }
        Ok(())
    }
}

/// The clients of an instance, and the brokers.
pub struct Link<'a> {
    pub client: &'a mut Client,
    pub cluster: &'a mut Cluster,
}

impl Kafka<Record> for Link<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        let Client { member, generation, owned, unsettled, .. } = *self.client;
        let ours = commits.iter().all(|commit| owned & !unsettled & 1 << commit.partition != 0);
        if member == 0 || generation < 0 || self.client.lost() || !ours {
            self.cluster.broker.coverage.moved += 1;
            return self.answer("offsets", Err(OffsetsError::GroupMoved(ClientError::new("the group moved"))));
        }
        let offsets = Offsets { commits: commits.to_vec(), member, generation };
        Ok(self.answer("offsets", offsets))
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let initialised = self.producer().epoch.is_some();
        self.expect(!initialised, "init of a producer that has its epoch");
        self.expect(self.cluster.exactly_once, "a transaction under at_least_once");
        if self.transactions_away() {
            return Err(self.timed_out(CALL_TIMEOUT));
        }
        let early = self.cluster.random.once_in(2);
        if early && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Fatal]) {
            return self.answer("init", Err(error));
        }
        let (id, now, cluster) = (self.client.id, self.cluster.now, &mut *self.cluster);
        let epoch = cluster.broker.init(id, now, &mut cluster.random);
        if self.dies(true) {
            return Err(gone());
        }
        if !early && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Fatal]) {
            return self.answer("init", Err(error));
        }
        match epoch {
            Ok(epoch) => {
                let producer = self.producer();
                (producer.epoch, producer.tainted) = (Some(epoch), false);
                self.answer("init", epoch);
                Ok(())
            }
            Err(refusal) => {
                let error = self.refused(refusal);
                self.answer("init", Err(error))
            }
        }
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let Producer { open, fatal, epoch, .. } = self.producer();
        let ready = !*open && fatal.is_none() && epoch.is_some();
        self.expect(ready, "begin without an epoch, or in a transaction, or after a fatal error");
        if let Some(error) = self.injected(&[ErrorClass::Abortable, ErrorClass::Fatal]) {
            self.producer().failing = None;
            return self.answer("begin", Err(error));
        }
        let producer = self.producer();
        producer.failures.clear();
        (producer.open, producer.added, producer.failing) = (true, false, None);
        producer.offsets_until = None;
        self.answer("begin", Ok(()))
    }

    fn send(&mut self, output: &mut Output<Record>, tag: usize) -> Result<(), SendError> {
        if self.client.crashed {
            return Err(SendError::Fatal(ClientError::new("the process has crashed")));
        }
        let open = self.producer().open || !self.cluster.exactly_once;
        self.expect(open, "send outside of a transaction");
        let mut record = output.payload;
        let log = if output.rejected.is_some() { DEAD_LETTER } else { usize::from(record.client) % DEAD_LETTER };
        if self.producer().fatal.is_some() || self.producer().failing.is_some() {
            return Err(SendError::Fatal(ClientError::new("erroneous state")));
        }
        if self.producer().in_flight.len() as u64 >= self.cluster.rates.queue {
            self.cluster.broker.coverage.queue_full += 1;
            return Err(SendError::QueueFull);
        }
        let whole_to_target = log != DEAD_LETTER && record.poison == Poison::Instance;
        self.expect(!whole_to_target, "a record that may only be sent as a stub goes to the target");
        if log == DEAD_LETTER {
            let needed = output.form == Form::Whole || record.poison.is_refused_as(Form::Whole);
            self.expect(needed, "a stub of a record that the dead-letter topic takes whole");
            if !record.poison.is_refused_as(output.form) {
                record.poison = Poison::None;
            }
        }
        if record.poison == Poison::Producer && log != DEAD_LETTER {
            return self.answer("send", Err(SendError::Refused(ClientError::new("too large"))));
        }
        self.note_sent(output.payload, log);
        self.producer().in_flight.push_back((log, record, tag));
        Ok(())
    }

    fn flush(&mut self) -> bool {
        if self.dies(false) {
            return false;
        }
        if self.blocking_error().is_none() && !self.producer().in_flight.is_empty() {
            let slow = self.cluster.rates.slow;
            let away = if self.cluster.exactly_once { self.transactions_away() } else { self.cut() };
            if away || self.cluster.fault_occurs(slow) {
                self.take(Duration::from_millis(100));
                return self.answer("flush", false);
            }
            if self.cluster.exactly_once {
                self.cluster.broker.finish_markers(self.client.id);
            } else if self.injected(&[ErrorClass::Fatal]).is_some() {
                self.transmit_by_itself();
                return self.answer("flush", false);
            }
            if self.transmits_slowly() {
                return self.answer("flush", false);
            }
        }
        self.dies(true);
        let done = self.producer().in_flight.is_empty();
        self.take(if done { Duration::ZERO } else { Duration::from_millis(100) });
        self.answer("flush", done)
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        std::mem::take(&mut self.producer().failures)
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<bool, TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let open = self.producer().open;
        self.expect(open, "offsets outside of a transaction");
        if self.offsets_wait() {
            self.take(CALL_TIMEOUT);
            return self.answer("send_offsets", Ok(false));
        }
        if let Some(error) = self.blocking_error() {
            return self.answer("send_offsets", Err(error));
        }
        if self.transactions_away() || self.group_away() {
            return Err(self.timed_out(SEND_OFFSETS_TIMEOUT));
        }
        // Records are sent without waiting for offsets.
        self.transmit_by_itself();
        if let Some(error) = self.blocking_error() {
            return self.answer("send_offsets", Err(error));
        }
        if let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Abortable, ErrorClass::Fatal]) {
            return self.answer("send_offsets", Err(error));
        }
        let (id, epoch, now) = (self.client.id, self.epoch(), self.cluster.now);
        let Offsets { commits, member, generation } = offsets;
        let disconnect = self.cluster.rates.disconnect / 4;
        if self.cluster.fault_occurs(disconnect) {
            // The request arrives after another answer, or after the caller gave up.
            let at = now + self.cluster.random.millis(20, 6_000);
            let (serial, commits) = (self.cluster.broker.open_serial(id), commits.clone());
            let (member, generation) = (*member, *generation);
            self.cluster.broker.late.push((at, Late::Offsets { id, epoch, serial, commits, member, generation }));
            // Giving up a call does not break the connection.
            if self.cluster.random.once_in(2) {
                return Err(self.timed_out(SEND_OFFSETS_TIMEOUT));
            }
            self.producer().tainted = true;
        }
        if let Err(why) = self.cluster.broker.group.allows(*member, *generation) {
            self.cluster.broker.coverage.refused_by_group += 1;
            self.producer().failing = Some(why.to_owned());
            return self.answer("send_offsets", Err(error(ErrorClass::Abortable, ErrorKind::Other, why)));
        }
        self.cluster.broker.finish_markers(id);
        if let Err(refusal) = self.cluster.broker.add_offsets(id, epoch, commits, now) {
            let error = self.refused(refusal);
            return self.answer("send_offsets", Err(error));
        }
        self.producer().added = true;
        if self.dies(true) {
            return Err(gone());
        }
        if let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Abortable, ErrorClass::Fatal]) {
            return self.answer("send_offsets", Err(error));
        }
        self.answer("send_offsets", Ok(true))
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let (open, sent) = (self.producer().open, self.producer().in_flight.is_empty());
        self.expect(open, "commit outside of a transaction");
        self.expect(sent, "commit before everything was sent");
        if let Some(error) = self.blocking_error() {
            return self.answer("commit", Err(error));
        }
        self.producer().committing = true;
        self.client.serial = self.cluster.broker.serial(self.client.id);
        let early = self.cluster.random.once_in(2);
        if early && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Abortable, ErrorClass::Fatal])
        {
            self.producer().committing = error.class == ErrorClass::Retriable;
            return self.answer("commit", Err(error));
        }
        let ended = self.end(true);
        if self.dies(true) {
            return Err(gone());
        }
        if ended.is_ok()
            && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Fatal])
        {
            return self.answer("commit", Err(error));
        }
        if ended.is_ok() {
            let producer = self.producer();
            (producer.open, producer.committing) = (false, false);
        }
        self.answer("commit", ended)
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let Producer { open, committing, .. } = *self.producer();
        self.expect(open, "abort outside of a transaction");
        self.expect(!committing, "abort while a commit is unanswered");
        if self.producer().offsets_until.is_some_and(|until| until > self.cluster.now) {
            return Err(self.timed_out(CALL_TIMEOUT));
        }
        self.purge();
        if let Some(why) = self.producer().fatal.clone() {
            return self.answer("abort", Err(error(ErrorClass::Fatal, ErrorKind::Other, &why)));
        }
        if let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Fatal]) {
            return self.answer("abort", Err(error));
        }
        let ended = self.end(false);
        if self.dies(true) {
            return Err(gone());
        }
        if ended.is_ok() {
            let producer = self.producer();
            (producer.open, producer.failing) = (false, None);
        }
        self.answer("abort", ended)
    }

    fn replace(&mut self) -> Result<(), ClientError> {
        if !self.client.crashed {
            if self.producer().open {
                // An abandoned producer may go on sending until its successor has an epoch.
                self.transmit_by_itself();
            }
            self.client.producer = self.cluster.new_producer();
            self.answer("replace", ());
        }
        Ok(())
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError> {
        if self.dies(false) {
            return Err(ClientError::new("the process has crashed"));
        }
        let rate = self.cluster.rates.error;
        if self.group_away() || self.cluster.fault_occurs(rate) {
            self.take(COMMITTED_TIMEOUT);
            return self.answer("committed", Err(ClientError::new("timed out")));
        }
        let pending = partitions.iter().any(|&partition| self.cluster.broker.is_pending(partition));
        if pending {
            self.cluster.broker.coverage.waited_for_pending += 1;
            let wait = self.cluster.random.millis(100, 3_000);
            self.take(wait);
            return self.answer("committed", Err(ClientError::new("a transaction is pending")));
        }
        let committed = self.cluster.broker.group.committed_of(partitions);
        let bases: Vec<_> =
            committed.iter().map(|one| (one.partition, one.offset.as_ref().map(|(at, _)| *at))).collect();
        self.answer("committed", bases);
        Ok(committed)
    }

    fn is_initialised(&self) -> bool {
        self.cluster.exactly_once && self.client.producer.epoch.is_some()
    }

    fn in_transaction(&self) -> bool {
        self.client.producer.open
    }

    fn failing(&self) -> bool {
        self.client.producer.failing.is_some() || self.client.producer.fatal.is_some()
    }

    fn tainted(&self) -> bool {
        self.client.producer.tainted
    }

    fn fatal(&self) -> Option<ClientError> {
        self.client.producer.fatal.clone().map(ClientError::new)
    }

    fn commit_offsets(&mut self, offsets: &Offsets) -> Result<bool, OffsetsError> {
        self.commit_through_the_consumer(offsets)
    }

    fn purge(&mut self) {
        let producer = self.producer();
        producer.again = None;
        let purged =
            producer.in_flight.drain(..).map(|(_, _, tag)| (tag, Failure::Unknown(ClientError::new("purged"))));
        producer.failures.extend(purged);
    }
}
