//! The trait that the machine talks to Kafka by: every call may fail, take long, or be the last thing that the process does.

use std::fmt;
use std::time::Duration;

use watermaster_core::offset_map;
use watermaster_core::round::{
    Commit, Committed, ErrorClass, ErrorKind, Failure, Form, Kafka, OffsetsError, Output, SendError, TransactionError,
};

use super::broker::{DEAD_LETTER, Late};
use super::client::{Client, Cluster, Producer};
use super::network::{CALL, error, gone};
use super::planted::{self, Plant};
use super::source::{Poison, Record};

/// The longest wait for the offsets of a transaction.
const SEND_OFFSETS: Duration = Duration::from_secs(5);
/// One attempt to learn what is committed.
const COMMITTED: Duration = Duration::from_secs(3);

/// Offsets, and who commits them.
#[derive(Clone)]
pub struct Offsets {
    commits: Vec<Commit>,
    member: u32,
    generation: i32,
}

impl fmt::Debug for Offsets {
    /// Partition, offset and what is completed beyond it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} in generation {}:", self.member, self.generation)?;
        for Commit { partition, offset, metadata } in &self.commits {
            let map = offset_map::decode(*offset, metadata.as_bytes()).map(|map| map.completed);
            write!(f, " {partition} at {offset} {map:?}")?;
        }
        Ok(())
    }
}

/// An instance's clients and the brokers.
pub struct Link<'a> {
    pub client: &'a mut Client,
    pub cluster: &'a mut Cluster,
}

impl Kafka<Record> for Link<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        let commits = planted::commits(self.cluster, commits);
        if self.cluster.has(Plant::UnfencedGroupMetadata) {
            return Ok(Offsets { commits, member: 0, generation: -1 });
        }
        let Client { member, generation, owned, unsettled, .. } = *self.client;
        let ours = commits.iter().all(|commit| owned & !unsettled & 1 << commit.partition != 0)
            || self.cluster.has(Plant::NoPurgeOnRevoke);
        if member == 0 || generation < 0 || self.client.lost() || !ours {
            self.cluster.broker.coverage.moved += 1;
            return self.answer("offsets", Err(OffsetsError::Moved("the group moves".to_owned())));
        }
        let offsets = Offsets { commits, member, generation };
        Ok(self.answer("offsets", offsets))
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let initialised = self.producer().epoch.is_some();
        self.expect(!initialised, "init of a producer that has its epoch");
        if self.transactions_away() {
            return Err(self.timed_out(CALL));
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
            return Err(SendError::Fatal("the process is gone".to_owned()));
        }
        let open = self.producer().open;
        self.expect(open, "send outside of a transaction");
        let mut record = output.payload;
        let log = if output.rejected.is_some() { DEAD_LETTER } else { usize::from(record.client) % DEAD_LETTER };
        if self.producer().fatal.is_some() || self.producer().failing.is_some() {
            return Err(SendError::Fatal("erroneous state".to_owned()));
        }
        if self.producer().in_flight.len() as u64 >= self.cluster.rates.queue {
            self.cluster.broker.coverage.queue_full += 1;
            return Err(SendError::QueueFull);
        }
        let whole_to_target = log != DEAD_LETTER && record.poison == Poison::Instance;
        self.expect(!whole_to_target, "a record that is only to be sent as a stub goes to the target");
        if log == DEAD_LETTER {
            let needed = output.form == Form::Whole || record.poison.is_refused_as(Form::Whole);
            self.expect(needed, "a stub of a record that the dead-letter topic takes whole");
            if !record.poison.is_refused_as(output.form) {
                record.poison = Poison::Nobody;
            }
        }
        if record.poison == Poison::Producer && log != DEAD_LETTER {
            if self.cluster.has(Plant::IgnoredSendError) {
                return Ok(());
            }
            return self.answer("send", Err(SendError::Refused("too large".to_owned())));
        }
        self.producer().in_flight.push_back((log, record, tag));
        Ok(())
    }

    fn flush(&mut self) -> bool {
        if self.dies(false) {
            return false;
        }
        if self.trouble().is_none() && !self.producer().in_flight.is_empty() {
            let slow = self.cluster.rates.slow;
            if self.transactions_away() || self.cluster.strikes(slow) {
                self.take(Duration::from_millis(100));
                return self.answer("flush", false);
            }
            self.cluster.broker.finish_markers(self.client.id);
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
            self.take(CALL);
            return self.answer("send_offsets", Ok(false));
        }
        if let Some(error) = self.trouble() {
            return self.answer("send_offsets", Err(error));
        }
        if self.transactions_away() || self.group_away() {
            return Err(self.timed_out(SEND_OFFSETS));
        }
        // Records do not wait for offsets.
        self.transmit_by_itself();
        if let Some(error) = self.trouble() {
            return self.answer("send_offsets", Err(error));
        }
        if let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Abortable, ErrorClass::Fatal]) {
            return self.answer("send_offsets", Err(error));
        }
        let (id, epoch, now) = (self.client.id, self.epoch(), self.cluster.now);
        let Offsets { commits, member, generation } = offsets;
        let disconnect = self.cluster.rates.disconnect / 4;
        if self.cluster.strikes(disconnect) {
            // It comes after another answer, or after nobody waits for it any more.
            let at = now + self.cluster.random.millis(20, 6_000);
            let (serial, commits) = (self.cluster.broker.open_serial(id), commits.clone());
            let (member, generation) = (*member, *generation);
            self.cluster.broker.late.push((at, Late::Offsets { id, epoch, serial, commits, member, generation }));
            // A call that is given up is no broken connection.
            if self.cluster.random.once_in(2) {
                return Err(self.timed_out(SEND_OFFSETS));
            }
            self.producer().tainted = true;
        }
        if let Err(why) = self.cluster.broker.group.allows(*member, *generation) {
            self.cluster.broker.coverage.refused_by_group += 1;
            self.producer().failing = Some(why.to_owned());
            return self.answer("send_offsets", Err(error(ErrorClass::Abortable, ErrorKind::Other, why)));
        }
        if self.cluster.has(Plant::OffsetsOutsideTransaction) {
            commits.iter().for_each(|commit| self.cluster.broker.store(commit.clone()));
            return self.answer("send_offsets", Ok(true));
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
        if let Some(error) = self.trouble() {
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
            return Err(self.timed_out(CALL));
        }
        let producer = self.producer();
        let purged: Vec<usize> = producer.in_flight.drain(..).map(|(_, _, tag)| tag).collect();
        producer.again = None;
        producer.failures.extend(purged.into_iter().map(|tag| (tag, Failure::Unknown("purged".to_owned()))));
        if let Some(why) = producer.fatal.clone() {
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

    fn replace(&mut self) -> Result<(), String> {
        if !self.client.crashed {
            if self.producer().open {
                // One that is given up goes on with what it was given, until its successor has its epoch.
                self.transmit_by_itself();
            }
            self.client.producer = Producer::default();
            self.answer("replace", ());
        }
        Ok(())
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, String> {
        if self.dies(false) {
            return Err("the process is gone".to_owned());
        }
        let rate = self.cluster.rates.error;
        if self.group_away() || self.cluster.strikes(rate) {
            self.take(COMMITTED);
            return self.answer("committed", Err("timed out".to_owned()));
        }
        let pending = partitions.iter().any(|&partition| self.cluster.broker.is_pending(partition));
        if pending && !self.cluster.has(Plant::ReadUncommitted) {
            self.cluster.broker.coverage.waited_for_pending += 1;
            let wait = self.cluster.random.millis(100, 3_000);
            self.take(wait);
            return self.answer("committed", Err("a transaction is pending".to_owned()));
        }
        let of = |&partition: &u32| {
            let known = self.cluster.broker.group.committed[partition as usize].clone();
            Committed { partition, offset: known.map(|(offset, metadata)| (offset, metadata.into_bytes())) }
        };
        let committed: Vec<Committed> = partitions.iter().map(of).collect();
        let bases: Vec<_> =
            committed.iter().map(|one| (one.partition, one.offset.as_ref().map(|(at, _)| *at))).collect();
        self.answer("committed", bases);
        Ok(committed)
    }

    fn is_initialised(&self) -> bool {
        self.client.producer.epoch.is_some()
    }

    fn in_transaction(&self) -> bool {
        self.client.producer.open
    }

    fn failing(&self) -> bool {
        self.client.producer.failing.is_some() || self.client.producer.fatal.is_some()
    }

    fn tainted(&self) -> bool {
        self.client.producer.tainted && !self.cluster.has(Plant::NoTaint)
    }

    fn fatal(&self) -> Option<String> {
        self.client.producer.fatal.clone()
    }
}
