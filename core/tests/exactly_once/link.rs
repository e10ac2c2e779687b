//! The trait that the machine talks to Kafka by: every call may fail, take long, or be the last thing that the process does.

use std::fmt;
use std::time::Duration;

use watermaster_core::map;
use watermaster_core::round::{
    Commit, Committed, ErrorClass, ErrorKind, Failure, Kafka, OffsetsError, Output, SendError, TransactionError,
};

use super::broker::{DEAD_LETTER, Late, Poison, Record, Refusal};
use super::client::{Client, Cluster, Producer};
use super::planted::{self, Plant};
use super::trace::note;

/// One call that can be gone on with.
const CALL: Duration = Duration::from_millis(500);
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
            let map = map::decode(*offset, metadata.as_bytes()).map(|map| map.completed);
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

fn error(class: ErrorClass, kind: ErrorKind, text: &str) -> TransactionError {
    TransactionError { class, kind, text: text.to_owned() }
}

fn gone() -> TransactionError {
    error(ErrorClass::Fatal, ErrorKind::Other, "the process is gone")
}

/// What the network did to an EndTxn.
enum Fate {
    Answered,
    /// It was not applied.
    Lost,
    /// It was applied.
    AnswerLost,
    /// It comes later; a second copy was answered.
    Copied,
    /// It comes later.
    Late,
}

impl Link<'_> {
    fn producer(&mut self) -> &mut Producer {
        &mut self.client.producer
    }

    /// Whether the process dies here, or did before.
    fn dies(&mut self, applied: bool) -> bool {
        let rate = self.cluster.rates.crash;
        if !self.client.crashed && self.cluster.strikes(rate) {
            note(&self.client.name, || format!("dies in a call, applied: {applied}"));
            self.client.crashed = true;
            let coverage = &mut self.cluster.broker.coverage;
            if applied { coverage.crashes_after_call += 1 } else { coverage.crashes_in_call += 1 }
        }
        self.client.crashed
    }

    fn take(&mut self, time: Duration) {
        self.client.took += time;
    }

    /// Notes the answer.
    fn answer<T: std::fmt::Debug>(&mut self, call: &str, answer: T) -> T {
        let quick = self.cluster.random.millis(1, 8);
        self.take(quick);
        note(&self.client.name, || format!("{call}: {answer:?}"));
        answer
    }

    fn cut(&self) -> bool {
        self.client.cut_until > self.cluster.now
    }

    /// The transaction coordinator can't be reached.
    fn transactions_away(&self) -> bool {
        self.cut() || self.cluster.broker.transactions_down > self.cluster.now
    }

    fn group_away(&self) -> bool {
        self.cut() || self.cluster.broker.group_down > self.cluster.now
    }

    fn timed_out(&mut self, after: Duration) -> TransactionError {
        self.take(after);
        self.cluster.broker.coverage.retriable += 1;
        error(ErrorClass::Retriable, ErrorKind::Other, "timed out")
    }

    /// An error out of nowhere.
    fn injected(&mut self, classes: &[ErrorClass]) -> Option<TransactionError> {
        let rate = self.cluster.rates.error;
        if !self.cluster.strikes(rate) {
            return None;
        }
        let class = self.cluster.random.pick(classes);
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

    /// The coordinator refused.
    fn refused(&mut self, refusal: Refusal) -> TransactionError {
        let id = self.client.id;
        match refusal {
            Refusal::Fenced => {
                let timed_out = self.cluster.broker.was_timed_out(id);
                let coverage = &mut self.cluster.broker.coverage;
                if timed_out { coverage.fenced_by_timeout += 1 } else { coverage.fenced_by_other += 1 }
                self.producer().fatal = Some("fenced".to_owned());
                error(ErrorClass::Fatal, ErrorKind::Fenced, "fenced")
            }
            Refusal::InvalidState => {
                self.producer().fatal = Some("invalid transaction state".to_owned());
                error(ErrorClass::Fatal, ErrorKind::Other, "invalid transaction state")
            }
            Refusal::Busy => self.timed_out(CALL),
        }
    }

    fn epoch(&mut self) -> u32 {
        self.producer().epoch.unwrap_or(0)
    }

    /// What can't be gone on with before the open transaction is ended.
    fn trouble(&mut self) -> Option<TransactionError> {
        if let Some(why) = self.producer().fatal.clone() {
            let kind = if why == "fenced" { ErrorKind::Fenced } else { ErrorKind::Other };
            return Some(error(ErrorClass::Fatal, kind, &why));
        }
        let why = self.producer().failing.clone()?;
        Some(error(ErrorClass::Abortable, ErrorKind::Other, &why))
    }

    /// The machine asked for what librdkafka does not do in this state.
    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            let name = self.client.name.clone();
            self.cluster.broker.checker.breaks(|| format!("protocol: {name}: {what}"));
        }
    }

    // ## Sending

    /// Hands what was taken to the brokers, batch by batch.
    fn transmit(&mut self) {
        while let Some(&(log, ..)) = self.producer().in_flight.front() {
            let most = self.cluster.random.between(1, self.cluster.rates.batch) as usize;
            let same = self.producer().in_flight.iter().take(most).take_while(|(other, ..)| *other == log).count();
            let batch: Vec<_> = self.producer().in_flight.drain(..same).collect();
            if !self.send_batch(log, &batch) && self.cluster.random.one_in(2) {
                // The rest stays where it is until the abort.
                return;
            }
            if self.producer().fatal.is_some() {
                return;
            }
        }
    }

    fn send_batch(&mut self, log: usize, batch: &[(usize, Record, usize)]) -> bool {
        let refused = |record: &Record| match record.poison {
            Poison::Everywhere => true,
            Poison::Broker => log != DEAD_LETTER,
            Poison::Nobody | Poison::Producer => false,
        };
        if batch.iter().any(|(_, record, _)| refused(record)) {
            self.cluster.broker.coverage.neighbours += batch.len() as u64 - 1;
            self.fail(batch, |tag| (tag, Failure::Refused("invalid record".to_owned())));
            return false;
        }
        let rate = self.cluster.rates.batch_lost;
        let lost = self.cluster.strikes(rate);
        if !(lost && self.cluster.random.one_in(2)) {
            let (id, epoch, now) = (self.client.id, self.epoch(), self.cluster.now);
            for &(_, record, _) in batch {
                if let Err(refusal) = self.cluster.broker.produce(id, epoch, log, record, now) {
                    self.refused(refusal);
                    self.fail(batch, |tag| (tag, Failure::Fatal("fenced".to_owned())));
                    return false;
                }
                self.producer().added = true;
            }
        }
        if lost {
            self.cluster.broker.coverage.batches_unknown += 1;
            self.producer().tainted = true;
            self.fail(batch, |tag| (tag, Failure::Unknown("disconnected".to_owned())));
        }
        !lost
    }

    fn fail(&mut self, batch: &[(usize, Record, usize)], failure: impl Fn(usize) -> (usize, Failure)) {
        let producer = self.producer();
        producer.failures.extend(batch.iter().map(|&(_, _, tag)| failure(tag)));
        producer.failing = Some("a record failed".to_owned());
    }

    // ## Ending

    fn fate(&mut self) -> Fate {
        let rate = self.cluster.rates.disconnect;
        if !self.cluster.strikes(rate) {
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
    fn end(&mut self, commit: bool) -> Result<(), TransactionError> {
        if !self.producer().added {
            // librdkafka does not ask for what the coordinator does not know of.
            return Ok(());
        }
        if self.transactions_away() {
            return Err(self.timed_out(CALL));
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
            return Err(self.timed_out(CALL));
        }
        let (now, cluster) = (self.cluster.now, &mut *self.cluster);
        let ended = cluster.broker.end(id, epoch, commit, now, &mut cluster.random);
        match ended {
            Err(refusal) => Err(self.refused(refusal)),
            Ok(()) if matches!(fate, Fate::AnswerLost) => {
                self.cut_for_a_while();
                Err(self.timed_out(CALL))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Now and then a broken connection stays broken for longer than anybody waits.
    fn cut_for_a_while(&mut self) {
        if self.cluster.random.one_in(2) {
            let until = self.cluster.now + self.cluster.random.millis(1_000, 25_000);
            self.client.cut_until = self.client.cut_until.max(until);
            self.cluster.broker.coverage.cuts += 1;
        }
    }
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
        let early = self.cluster.random.one_in(2);
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
        self.answer("begin", Ok(()))
    }

    fn send(&mut self, output: &Output<Record>, tag: usize) -> Result<(), SendError> {
        if self.client.crashed {
            return Err(SendError::Fatal("the process is gone".to_owned()));
        }
        let open = self.producer().open;
        self.expect(open, "send outside of a transaction");
        let record = output.payload;
        let log = if output.rejected.is_some() { DEAD_LETTER } else { usize::from(record.client) % DEAD_LETTER };
        if self.producer().fatal.is_some() || self.producer().failing.is_some() {
            return Err(SendError::Fatal("erroneous state".to_owned()));
        }
        if self.producer().in_flight.len() as u64 >= self.cluster.rates.queue {
            self.cluster.broker.coverage.queue_full += 1;
            return Err(SendError::QueueFull);
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
            self.transmit();
        }
        self.dies(true);
        let done = self.producer().in_flight.is_empty();
        self.take(if done { Duration::ZERO } else { Duration::from_millis(100) });
        self.answer("flush", done)
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        std::mem::take(&mut self.producer().failures)
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<(), TransactionError> {
        if self.dies(false) {
            return Err(gone());
        }
        let open = self.producer().open;
        self.expect(open, "offsets outside of a transaction");
        if let Some(error) = self.trouble() {
            return self.answer("send_offsets", Err(error));
        }
        if self.transactions_away() || self.group_away() {
            return Err(self.timed_out(SEND_OFFSETS));
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
            if self.cluster.random.one_in(2) {
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
            return self.answer("send_offsets", Ok(()));
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
        self.answer("send_offsets", Ok(()))
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
        let early = self.cluster.random.one_in(2);
        if early && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Abortable, ErrorClass::Fatal]) {
            self.producer().committing = error.class == ErrorClass::Retriable;
            return self.answer("commit", Err(error));
        }
        let ended = self.end(true);
        if self.dies(true) {
            return Err(gone());
        }
        if ended.is_ok() && let Some(error) = self.injected(&[ErrorClass::Retriable, ErrorClass::Fatal]) {
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
        let producer = self.producer();
        let purged: Vec<usize> = producer.in_flight.drain(..).map(|(_, _, tag)| tag).collect();
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
        let bases: Vec<_> = committed.iter().map(|one| (one.partition, one.offset.as_ref().map(|(at, _)| *at))).collect();
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
