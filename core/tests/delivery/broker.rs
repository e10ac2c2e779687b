//! The brokers: output logs and the transaction coordinator.
//!
//! A transaction ends in two moments, as in Kafka: the coordinator decides (`Ending`), and a little later its markers are
//! written, which is when outputs and offsets become visible, here both at once. Every request carries the producer's epoch.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use watermaster_core::delivery::Commit;
use watermaster_core::units::Time;

use super::checker::Checker;
use super::coverage::Coverage;
use super::group::Group;
use super::source::{Record, Source};
use super::support::random::Random;
use super::trace::note;

/// Two partitions of the target, then the dead-letter topic.
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

/// What the transaction coordinator knows of a `transactional.id`.
#[derive(Debug)]
struct Transactional {
    epoch: u32,
    state: State,
    /// The how-many-eth transaction this or the last one is.
    serial: u64,
    /// How the last one ended, by its number.
    ended: Option<(u64, bool)>,
    /// The last epoch was ended by the coordinator's clock.
    timed_out: bool,
    outputs: Vec<(usize, usize)>,
    offsets: Vec<Commit>,
}

/// Why the coordinator refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The epoch is over.
    Fenced,
    /// There is nothing to end this way.
    InvalidState,
    /// The markers of the last one are still being written.
    Busy,
}

/// What the sequence numbers of a batch say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    Next,
    /// It is there already: acknowledged, and not stored again.
    Known,
    OutOfOrder,
}

/// A request that the network delivers late.
#[derive(Debug)]
pub enum Late {
    End { id: usize, epoch: u32, serial: u64, commit: bool },
    Offsets { id: usize, epoch: u32, serial: u64, commits: Vec<Commit>, member: u32, generation: i32 },
}

/// The brokers, and what watches them.
#[derive(Debug)]
pub struct Broker {
    pub sources: Vec<Source>,
    pub logs: [Vec<Entry>; LOGS],
    ids: Vec<Transactional>,
    /// By id, epoch and log: the first sequence number of the last batch, and how many records it had.
    batches: BTreeMap<(usize, u32, usize), (u64, u64)>,
    pub timeout: Duration,
    pub group: Group,
    pub late: Vec<(Time, Late)>,
    /// The transaction coordinator can't be reached until then.
    pub transactions_down: Time,
    /// The group coordinator can't be reached until then.
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

    /// A `transactional.id` that nobody used so far.
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

    /// The number of the last transaction of this id.
    pub fn serial(&self, id: usize) -> u64 {
        self.ids[id].serial
    }

    /// The number of the transaction that a request would join now.
    pub fn open_serial(&self, id: usize) -> u64 {
        self.ids[id].serial + u64::from(!matches!(self.ids[id].state, State::Open { .. }))
    }

    /// Whether that transaction was decided to be committed.
    pub fn was_committed(&self, id: usize, serial: u64) -> bool {
        self.ids[id].ended == Some((serial, true))
    }

    /// Whether the coordinator's clock took the epoch.
    pub fn was_timed_out(&self, id: usize) -> bool {
        self.ids[id].timed_out
    }

    /// No transaction is open.
    pub fn is_quiet(&self) -> bool {
        self.late.is_empty() && self.ids.iter().all(|id| id.state == State::Empty)
    }

    /// Offsets of this partition are part of a transaction that has no markers yet.
    pub fn is_pending(&self, partition: u32) -> bool {
        self.ids.iter().any(|id| id.offsets.iter().any(|commit| commit.partition == partition))
    }

    // ## Requests

    /// InitProducerId: fences, aborts what is open, gives an epoch.
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

    /// Produce, by a producer without transactions: the record is visible at once.
    pub fn append(&mut self, log: usize, record: Record) {
        let place = self.logs[log].len();
        self.logs[log].push(Entry { record, open: false });
        self.coverage.repeated += u64::from(self.checker.is_visible(record));
        self.checker.output(record, log, place);
    }

    /// What the sequence numbers of a batch say. Brokers remember the last batch; markers do not change that.
    pub fn sequence(&self, id: usize, epoch: u32, log: usize, first: u64, count: u64) -> Sequence {
        match self.batches.get(&(id, epoch, log)) {
            Some(&last) if last == (first, count) => Sequence::Known,
            Some(&(last, length)) if last + length != first => Sequence::OutOfOrder,
            _ => Sequence::Next,
        }
    }

    /// Remembers a batch.
    pub fn remember(&mut self, id: usize, epoch: u32, log: usize, first: u64, count: u64) {
        self.batches.insert((id, epoch, log), (first, count));
    }

    /// After what librdkafka knows to have failed it takes another epoch with the next transaction, and counts anew.
    pub fn count_anew(&mut self, id: usize, epoch: u32) {
        self.batches.retain(|&(of, in_epoch, _), _| (of, in_epoch) != (id, epoch));
    }

    /// AddOffsetsToTxn and, if the group does not mind, TxnOffsetCommit.
    pub fn add_offsets(&mut self, id: usize, epoch: u32, commits: &[Commit], now: Time) -> Result<(), Refusal> {
        self.open(id, epoch, now)?;
        let pending = &mut self.ids[id].offsets;
        for commit in commits {
            pending.retain(|other| other.partition != commit.partition);
            pending.push(commit.clone());
        }
        Ok(())
    }

    /// EndTxn. The same again is answered as the first time.
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

    /// The markers of the last transaction are written by now: a client that waited for them goes on.
    pub fn finish_markers(&mut self, id: usize) {
        if let State::Ending { commit, .. } = self.ids[id].state {
            self.write_markers(id, commit);
        }
    }

    // ## What happens by itself

    /// When something happens by itself.
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
                    note("coordinator", || format!("transaction of id {id} is too old: aborted, epoch over"));
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
                // It may only join a transaction that is open.
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

    /// Keeps a committed offset.
    pub fn store(&mut self, commit: Commit) {
        self.checker.offset(&commit);
        self.group.committed[commit.partition as usize] = Some((commit.offset, commit.metadata));
    }
}
