//! The brokers: output logs and the transaction coordinator.
//!
//! A transaction ends in two steps, as in Kafka: the coordinator decides (`Ending`), and a little later the markers are
//! written, which makes outputs and offsets visible (here both at once). Every request carries the producer's epoch.

use std::{collections::BTreeMap, mem, time::Duration};

use watermaster_core::{delivery::Commit, units::Time};

use super::source::{Record, Source};
use super::{checker::Checker, coverage::Coverage, group::Group, support::random::Random, trace::note};

/// Number of output logs: two partitions of the target, then the dead-letter topic.
pub const LOGS: usize = 3;
pub const DEAD_LETTER: usize = 2;

/// A record in an output log.
#[derive(Debug)]
pub struct Entry {
    pub record: Record,
    pub open: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Open { since: Time },
    Ending { commit: bool, until: Time },
}

/// The state of a `transactional.id` at the transaction coordinator.
#[derive(Debug)]
struct Transactional {
    epoch: u32,
    state: State,
    /// Number of the open transaction, or of the last one.
    serial: u64,
    /// Number of the last ended transaction, and whether it was committed.
    ended: Option<(u64, bool)>,
    /// Set if the coordinator's timeout ended the last epoch.
    timed_out: bool,
    outputs: Vec<(usize, usize)>,
    offsets: Vec<Commit>,
}

/// The reason of a refusal by the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The epoch is outdated.
    Fenced,
    /// The transaction cannot be ended this way.
    InvalidState,
    /// The markers of the last transaction are still being written.
    Busy,
}

/// The result of the check of a batch's sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    Next,
    /// A duplicate: acknowledged, but not stored again.
    Known,
    OutOfOrder,
}

/// A request that the network delivers late.
#[derive(Debug)]
pub enum Late {
    End { id: usize, epoch: u32, serial: u64, commit: bool },
    Offsets { id: usize, epoch: u32, serial: u64, commits: Vec<Commit>, member: u32, generation: i32 },
}

/// The brokers, with checker and counts.
#[derive(Debug)]
pub struct Broker {
    pub sources: Vec<Source>,
    pub logs: [Vec<Entry>; LOGS],
    ids: Vec<Transactional>,
    /// By id, epoch and log: the first sequence number of the last batch, and its number of records.
    batches: BTreeMap<(usize, u32, usize), (u64, u64)>,
    pub timeout: Duration,
    pub group: Group,
    pub late: Vec<(Time, Late)>,
    /// The time until which the transaction coordinator is unreachable.
    pub transactions_down: Time,
    /// The time until which the group coordinator is unreachable.
    pub group_down: Time,
    pub checker: Checker,
    pub coverage: Coverage,
}

impl Broker {
    pub fn new(sources: Vec<Source>, timeout: Duration, group: Group, exactly_once: bool) -> Broker {
        let checker = Checker::new(&sources, exactly_once);
        Broker {
            sources,
            logs: Default::default(),
            ids: Vec::new(),
            batches: BTreeMap::new(),
            timeout,
            group,
            late: Vec::new(),
            transactions_down: Time::ZERO,
            group_down: Time::ZERO,
            checker,
            coverage: Coverage::default(),
        }
    }

    /// Adds an unused `transactional.id`.
    pub fn new_id(&mut self) -> usize {
        self.ids.push(Transactional {
            epoch: 0,
            state: State::Empty,
            serial: 0,
            ended: None,
            timed_out: false,
            outputs: Vec::new(),
            offsets: Vec::new(),
        });
        self.ids.len() - 1
    }

    /// Returns the number of the last transaction of this id.
    pub fn serial(&self, id: usize) -> u64 {
        self.ids[id].serial
    }

    /// Returns the number of the transaction that a request would join now.
    pub fn open_serial(&self, id: usize) -> u64 {
        self.ids[id].serial + u64::from(!matches!(self.ids[id].state, State::Open { .. }))
    }

    /// Returns whether the coordinator decided to commit that transaction.
    pub fn was_committed(&self, id: usize, serial: u64) -> bool {
        self.ids[id].ended == Some((serial, true))
    }

    /// Returns whether the coordinator's timeout ended the last epoch.
    pub fn was_timed_out(&self, id: usize) -> bool {
        self.ids[id].timed_out
    }

    /// Returns whether no transaction is open and no request is late.
    pub fn is_quiet(&self) -> bool {
        self.late.is_empty() && self.ids.iter().all(|id| id.state == State::Empty)
    }

    /// Returns whether a transaction without markers contains offsets of this partition.
    pub fn is_pending(&self, partition: u32) -> bool {
        self.ids.iter().any(|id| id.offsets.iter().any(|commit| commit.partition == partition))
    }

    // ## Requests

    /// InitProducerId: fences the old producer, aborts its open transaction, returns the new epoch.
    pub fn init(&mut self, id: usize, now: Time, random: &mut Random) -> Result<u32, Refusal> {
        match self.ids[id].state {
            State::Ending { .. } => Err(Refusal::Busy),
            State::Open { .. } => {
                self.ids[id].epoch += 1;
                self.ids[id].timed_out = false;
                self.decide(id, false, now, random);
                Err(Refusal::Busy)
            }
            State::Empty => {
                self.ids[id].epoch += 1;
                self.ids[id].timed_out = false;
                Ok(self.ids[id].epoch)
            }
        }
    }

    fn open(&mut self, id: usize, epoch: u32, now: Time) -> Result<(), Refusal> {
        let known = &mut self.ids[id];
        if known.epoch != epoch {
            return Err(Refusal::Fenced);
        }
        match known.state {
            State::Ending { .. } => return Err(Refusal::Busy),
            State::Open { .. } => {}
            State::Empty => {
                known.state = State::Open { since: now };
                known.serial += 1;
            }
        }
        Ok(())
    }

    /// AddPartitionsToTxn and Produce.
    pub fn produce(&mut self, id: usize, epoch: u32, log: usize, record: Record, now: Time) -> Result<(), Refusal> {
        self.open(id, epoch, now)?;
        self.ids[id].outputs.push((log, self.logs[log].len()));
        self.logs[log].push(Entry { record, open: true });
        Ok(())
    }

    /// Produce without transactions: the record is visible at once.
    pub fn append(&mut self, log: usize, record: Record) {
        let place = self.logs[log].len();
        self.logs[log].push(Entry { record, open: false });
        self.coverage.repeated += u64::from(self.checker.is_visible(record));
        self.checker.output(record, log, place);
    }

    /// Checks the sequence numbers of a batch. Brokers remember the last batch; markers do not change that.
    pub fn sequence(&self, id: usize, epoch: u32, log: usize, first: u64, count: u64) -> Sequence {
        match self.batches.get(&(id, epoch, log)) {
            Some(&last) if last == (first, count) => Sequence::Known,
            Some(&(last, length)) if last + length != first => Sequence::OutOfOrder,
            _ => Sequence::Next,
        }
    }

    /// Remembers the last batch of a log.
    pub fn remember(&mut self, id: usize, epoch: u32, log: usize, first: u64, count: u64) {
        self.batches.insert((id, epoch, log), (first, count));
    }

    /// Forgets the batches of an epoch. After a known failure, librdkafka bumps the epoch with the next transaction,
    /// and sequence numbers start again.
    pub fn forget_batches(&mut self, id: usize, epoch: u32) {
        self.batches.retain(|&(of, in_epoch, _), _| (of, in_epoch) != (id, epoch));
    }

    /// AddOffsetsToTxn and TxnOffsetCommit; the caller has checked the group.
    pub fn add_offsets(&mut self, id: usize, epoch: u32, commits: &[Commit], now: Time) -> Result<(), Refusal> {
        self.open(id, epoch, now)?;
        let pending = &mut self.ids[id].offsets;
        for commit in commits {
            pending.retain(|other| other.partition != commit.partition);
            pending.push(commit.clone());
        }
        Ok(())
    }

    /// EndTxn. A repeated request gets the same answer.
    pub fn end(&mut self, id: usize, epoch: u32, commit: bool, now: Time, random: &mut Random) -> Result<(), Refusal> {
        let known = &self.ids[id];
        if known.epoch != epoch {
            return Err(Refusal::Fenced);
        }
        match known.state {
            State::Open { .. } => {
                self.decide(id, commit, now, random);
                Ok(())
            }
            State::Ending { commit: decided, .. } if decided == commit => Ok(()),
            State::Empty if known.ended.is_some_and(|(_, decided)| decided == commit) => Ok(()),
            State::Empty | State::Ending { .. } => Err(Refusal::InvalidState),
        }
    }

    fn decide(&mut self, id: usize, commit: bool, now: Time, random: &mut Random) {
        let known = &mut self.ids[id];
        known.ended = Some((known.serial, commit));
        let markers = if random.once_in(8) { random.millis(50, 2_000) } else { random.millis(1, 40) };
        known.state = State::Ending { commit, until: now + markers };
    }

    /// Writes the markers of the last transaction: a client that waits for them can continue.
    pub fn finish_markers(&mut self, id: usize) {
        if let State::Ending { commit, .. } = self.ids[id].state {
            self.write_markers(id, commit);
        }
    }

    // ## Events without a request

    /// Returns the time of the next event without a request.
    pub fn next_event(&self) -> Time {
        let late = self.late.iter().map(|(at, _)| *at);
        let ids = self.ids.iter().filter_map(|id| match id.state {
            State::Empty => None,
            State::Open { since } => Some(since + self.timeout),
            State::Ending { until, .. } => Some(until),
        });
        late.chain(ids).min().unwrap_or(Time::NEVER)
    }

    pub fn run(&mut self, now: Time, random: &mut Random) {
        for id in 0..self.ids.len() {
            match self.ids[id].state {
                State::Open { since } if since + self.timeout <= now => {
                    note("coordinator", || format!("transaction of id {id} timed out: aborted, epoch ended"));
                    self.coverage.timed_out_open += 1;
                    self.ids[id].epoch += 1;
                    self.ids[id].timed_out = true;
                    self.decide(id, false, now, random);
                }
                State::Ending { commit, until } if until <= now => self.write_markers(id, commit),
                _ => {}
            }
        }
        while let Some(at) = self.late.iter().position(|(at, _)| *at <= now) {
            let (_, late) = self.late.swap_remove(at);
            self.deliver(late, now, random);
        }
    }

    fn deliver(&mut self, late: Late, now: Time, random: &mut Random) {
        match late {
            Late::End { id, epoch, serial, commit } => {
                let answer = self.end(id, epoch, commit, now, random);
                note("network", || format!("late EndTxn(commit: {commit}) of id {id} epoch {epoch}: {answer:?}"));
                self.coverage.late_ends += 1;
                self.coverage.late_ends_fenced += u64::from(answer == Err(Refusal::Fenced));
                self.coverage.torn += u64::from(answer.is_ok() && self.ids[id].serial != serial);
            }
            Late::Offsets { id, epoch, serial, commits, member, generation } => {
                self.coverage.late_offsets += 1;
                // Late offsets can only join an open transaction.
                let open = matches!(self.ids[id].state, State::Open { .. });
                let allowed = self.group.allows(member, generation);
                note("network", || format!("late offsets of id {id} epoch {epoch}: open {open}, {allowed:?}"));
                if open && allowed.is_ok() && self.add_offsets(id, epoch, &commits, now).is_ok() {
                    self.coverage.late_offsets_taken += u64::from(self.ids[id].serial != serial);
                }
            }
        }
    }

    fn write_markers(&mut self, id: usize, commit: bool) {
        let known = &mut self.ids[id];
        known.state = State::Empty;
        let (outputs, offsets) = (mem::take(&mut known.outputs), mem::take(&mut known.offsets));
        note("coordinator", || {
            let what = if commit { "committed" } else { "aborted" };
            let bases: Vec<_> = offsets.iter().map(|commit| (commit.partition, commit.offset)).collect();
            let records: Vec<_> = outputs
                .iter()
                .map(|&(log, at)| (self.logs[log][at].record.partition, self.logs[log][at].record.offset, log))
                .collect();
            format!("id {id} {what}: records {records:?}, offsets {bases:?}")
        });
        if commit {
            self.coverage.commits += 1
        } else {
            self.coverage.aborts += 1
        }
        for &(log, at) in &outputs {
            let entry = &mut self.logs[log][at];
            entry.open = false;
            if commit {
                self.checker.output(entry.record, log, at);
            }
        }
        if commit {
            offsets.into_iter().for_each(|commit| self.store(commit));
            self.checker.compare();
        }
    }

    /// Stores a committed offset.
    pub fn store(&mut self, commit: Commit) {
        self.checker.offset(&commit);
        self.group.committed[commit.partition as usize] = Some((commit.offset, commit.metadata));
    }
}
