//! Brokers with one control partition: coordinators of transactional ids, markers that are written late, open, committed
//! and aborted records, a last stable offset, and compaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use watermaster_core::group::state::SeatRecord;
use watermaster_core::units::Time;

use crate::planted::Mistake;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Open,
    Committed,
    Aborted,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub offset: u64,
    pub at: Time,
    pub record: SeatRecord,
    pub status: Status,
}

/// The key by which compaction keeps the last record.
fn key(record: &SeatRecord) -> (bool, Arc<str>) {
    match record {
        SeatRecord::State(state) => (true, Arc::clone(&state.seat)),
        SeatRecord::Loads(loads) => (false, Arc::clone(&loads.seat)),
        SeatRecord::Tombstone(seat) => (true, Arc::clone(seat)),
        SeatRecord::LoadsTombstone(seat) => (false, Arc::clone(seat)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transaction {
    #[default]
    Empty,
    Ongoing,
    Preparing {
        commits: bool,
    },
    Complete {
        commits: bool,
    },
}

#[derive(Debug, Default)]
pub struct Coordinator {
    epoch: u64,
    transaction: Transaction,
    offsets: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Init,
    Produce { epoch: u64, records: Vec<SeatRecord> },
    End { epoch: u64, commits: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Epoch(u64),
    Done,
    /// The transaction before has not ended yet.
    Concurrent,
    Refused,
    Timeout,
}

/// A later step of the brokers that a request causes.
#[derive(Debug, PartialEq, Eq)]
pub enum Follows {
    /// The markers of a transactional id are to be written soon.
    Markers(Arc<str>),
    /// The coordinator ends the transaction if it is still open after its timeout.
    Timeout { id: Arc<str>, epoch: u64, offset: u64 },
}

#[derive(Debug, Default)]
pub struct Broker {
    pub entries: Vec<Entry>,
    pub end: u64,
    pub coordinators: BTreeMap<Arc<str>, Coordinator>,
    pub outages: Vec<(Time, Time)>,
    pub mistake: Option<Mistake>,
}

impl Broker {
    /// The end of the outage at this time.
    pub fn away(&self, now: Time) -> Option<Time> {
        self.outages.iter().find(|(from, to)| (*from..*to).contains(&now)).map(|(_, to)| *to)
    }

    fn is_unfenced(&self, id: &str) -> bool {
        match self.mistake {
            Some(Mistake::NoFencing) => true,
            Some(Mistake::BankUnfenced) => id.is_empty(),
            _ => false,
        }
    }

    pub fn request(&mut self, now: Time, id: &Arc<str>, request: &Request) -> (Answer, Option<Follows>) {
        let (unfenced, is_away) = (self.is_unfenced(id), self.away(now).is_some());
        let coordinator = self.coordinators.entry(Arc::clone(id)).or_default();
        match request {
            Request::Init if unfenced => (Answer::Epoch(0), None),
            Request::Init => match coordinator.transaction {
                Transaction::Ongoing => {
                    coordinator.epoch += 1;
                    coordinator.transaction = Transaction::Preparing { commits: false };
                    (Answer::Concurrent, Some(Follows::Markers(Arc::clone(id))))
                }
                Transaction::Preparing { .. } => (Answer::Concurrent, None),
                Transaction::Empty | Transaction::Complete { .. } => {
                    coordinator.epoch += 1;
                    coordinator.transaction = Transaction::Empty;
                    (Answer::Epoch(coordinator.epoch), None)
                }
            },
            Request::Produce { epoch, .. } | Request::End { epoch, .. } if !unfenced && *epoch != coordinator.epoch => {
                (Answer::Refused, None)
            }
            Request::Produce { records, .. } => match coordinator.transaction {
                Transaction::Preparing { .. } => (Answer::Concurrent, None),
                _ if is_away => (Answer::Refused, None),
                Transaction::Ongoing if !coordinator.offsets.is_empty() => (Answer::Refused, None),
                _ => {
                    coordinator.transaction = Transaction::Ongoing;
                    let first = self.end;
                    for record in records {
                        coordinator.offsets.push(self.end);
                        let (record, status) = (record.clone(), Status::Open);
                        self.entries.push(Entry { offset: self.end, at: now, record, status });
                        self.end += 1;
                    }
                    let (id, epoch) = (Arc::clone(id), coordinator.epoch);
                    (Answer::Done, Some(Follows::Timeout { id, epoch, offset: first }))
                }
            },
            &Request::End { commits, .. } => match coordinator.transaction {
                Transaction::Ongoing => {
                    coordinator.transaction = Transaction::Preparing { commits };
                    (Answer::Done, Some(Follows::Markers(Arc::clone(id))))
                }
                Transaction::Preparing { commits: before } | Transaction::Complete { commits: before }
                    if before == commits =>
                {
                    (Answer::Done, None)
                }
                _ => (Answer::Refused, None),
            },
        }
    }

    /// The transaction has been open for too long.
    pub fn time_out(&mut self, id: &Arc<str>, epoch: u64, offset: u64) -> Option<Follows> {
        let coordinator = self.coordinators.get_mut(id)?;
        let is_it = coordinator.epoch == epoch && coordinator.offsets.contains(&offset);
        if coordinator.transaction != Transaction::Ongoing || !is_it {
            return None;
        }
        coordinator.epoch += 1;
        coordinator.transaction = Transaction::Preparing { commits: false };
        Some(Follows::Markers(Arc::clone(id)))
    }

    /// Writes the markers. Returns the records that were committed, in the order of the log.
    pub fn mark(&mut self, id: &Arc<str>) -> Vec<(u64, SeatRecord)> {
        let coordinator = self.coordinators.get_mut(id).expect("a coordinator");
        let Transaction::Preparing { commits } = coordinator.transaction else { return Vec::new() };
        let offsets = std::mem::take(&mut coordinator.offsets);
        coordinator.transaction = Transaction::Complete { commits };
        let mut committed = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| offsets.contains(&entry.offset)) {
            entry.status = if commits { Status::Committed } else { Status::Aborted };
            if commits {
                committed.push((entry.offset, entry.record.clone()));
            }
        }
        self.end += 1;
        committed
    }

    fn stable_end(&self) -> u64 {
        let open = self.entries.iter().find(|entry| entry.status == Status::Open);
        open.map_or(self.end, |entry| entry.offset)
    }

    /// The committed records from an offset on, and the offset after all that was read.
    pub fn fetch(&self, from: u64) -> (Vec<(u64, SeatRecord)>, u64) {
        let reads_all = self.mistake == Some(Mistake::UncommittedRead);
        let end = if reads_all { self.end } else { self.stable_end() };
        let start = self.entries.partition_point(|entry| entry.offset < from);
        let is_read = |entry: &&Entry| {
            entry.offset < end && (entry.status == Status::Committed || reads_all && entry.status == Status::Open)
        };
        (self.entries[start..].iter().filter(is_read).map(|entry| (entry.offset, entry.record.clone())).collect(), end)
    }

    /// Removes committed records that later ones supersede, and aborted ones.
    pub fn compact(&mut self, now: Time) {
        let stable = self.stable_end();
        let mut last = BTreeMap::new();
        let is_settled = |entry: &Entry| entry.status == Status::Committed && entry.offset < stable;
        for entry in self.entries.iter().filter(|entry| is_settled(entry)) {
            last.insert(key(&entry.record), entry.offset);
        }
        self.entries.retain(|entry| {
            let is_new = entry.status == Status::Open || entry.offset >= stable;
            is_new
                || entry.at + Duration::from_millis(500) > now
                || entry.status == Status::Committed && last[&key(&entry.record)] == entry.offset
        });
    }
}
