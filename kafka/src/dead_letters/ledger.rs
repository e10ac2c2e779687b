//! The ledger of a service's dead letters: those that any job has redriven or parked, and those that are closed.
//!
//! It is one partition of a compacted topic. An entry holds the states of a *page* of offsets; a transaction of a job
//! writes the pages that it changes, beside the records that it sends, so both are there or neither is. All jobs of a
//! service have one `transactional.id`: a later one fences the earlier one, and ends its open transaction. What the
//! later one reads afterwards is all that was done.
//!
//! Each transaction also writes an entry `holder`, with the process and the number of the transaction. By it a process
//! sees that another one took over, and whether a commit without an answer succeeded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::BorrowedMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use strum::VariantArray as _;
use watermaster_settings::Service;

use super::runs::Runs;
use super::{DoneState, Outgoing, Positions, Ranges, Reader};
use crate::{ask::AskError, assign::remaining, record::NO_TIMESTAMP};

/// The number of offsets of a page. It is part of the entries' format.
const PAGE: i64 = 4096;
const HOLDER_KEY: &str = "holder";

/// The last transaction of any job. Names and order of the fields are part of the entries' format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The job, for people.
    pub job: String,
    /// A name that no other process has.
    pub process: String,
    /// A number that no other transaction of the process has.
    pub transaction: u64,
}

/// The states of the dead letters in one topic: the dead-letter topic of a service, or its parking topic.
#[derive(Debug)]
pub struct Ledger {
    /// The topic of the ledger.
    topic: String,
    /// The topic with the dead letters, and its id.
    letters: String,
    id: String,
    partitions: BTreeMap<i32, Runs>,
    /// The pages to write, each by partition and first offset.
    changed: BTreeSet<(i32, i64)>,
    /// The offset in the ledger from which to read on.
    next: i64,
    holder: Option<Holder>,
    /// The number of entries about an earlier topic of the same name.
    former: u64,
}

impl Ledger {
    /// Makes a ledger without entries for the topic of `reader`.
    pub fn new(service: &Service, reader: &Reader) -> Ledger {
        Ledger::empty(service.ledger(), reader.topic().to_owned(), String::new())
    }

    fn empty(topic: String, letters: String, id: String) -> Ledger {
        let (partitions, changed) = (BTreeMap::new(), BTreeSet::new());
        Ledger { topic, letters, id, partitions, changed, next: 0, holder: None, former: 0 }
    }

    /// Reads the entries that came since the last call, by the client of `reader`, which then reads nothing else. A
    /// ledger that is missing has no entries.
    ///
    /// Where the topic of the dead letters was made anew, the entries about the earlier topic do not count.
    ///
    /// # Errors
    /// The brokers do not answer within `timeout`, or refuse; or an entry is not of this format.
    pub fn load(&mut self, reader: &mut Reader, timeout: Duration) -> Result<(), AskError> {
        let deadline = Instant::now() + timeout;
        let id = reader.asker.topic_id(reader.topic(), remaining(deadline))?;
        let mut log = match reader.beside(&self.topic, remaining(deadline)) {
            Err(AskError::MissingTopic { .. }) => None,
            log => Some(log?),
        };
        let bounds = match &log {
            None => 0..0,
            Some(log) => {
                let unknown = || log.failed(ClientError::MessageConsumption(Code::UnknownPartition));
                log.bounds(remaining(deadline))?.remove(&0).ok_or_else(unknown)?
            }
        };
        if id != self.id || self.next > bounds.end {
            *self = Ledger::empty(self.topic.clone(), self.letters.clone(), id);
        }
        if let Some(log) = &mut log {
            log.start(&Ranges::from([(0, self.next.max(bounds.start)..bounds.end)]))?;
            while !log.is_done() {
                if Instant::now() >= deadline {
                    return Err(log.failed(ClientError::MessageConsumption(Code::OperationTimedOut)));
                }
                log.next_with(remaining(deadline), |entry| self.take(entry))?.transpose()?;
            }
        }
        self.next = bounds.end;
        Ok(())
    }

    /// Takes in the next entry.
    fn take(&mut self, entry: &BorrowedMessage<'_>) -> Result<(), AskError> {
        let offset = entry.offset();
        self.next = offset + 1;
        let applied = self.apply(entry.key().unwrap_or_default(), entry.payload());
        applied.ok_or_else(|| AskError::ForeignRecord { topic: self.topic.clone(), offset })
    }

    /// Takes over that the job `default` has passed all dead letters below its position, as versions without a ledger
    /// left it.
    pub fn pass(&mut self, default: &Positions, bounds: &Ranges) {
        for (partition, (offset, metadata)) in default {
            if let Some(range) = bounds.get(partition).filter(|_| is_everything(metadata)) {
                self.fill(*partition, range.start..(*offset).min(range.end), DoneState::Redriven);
            }
        }
    }

    /// Returns the offset in the ledger up to which it was read: a call of [`load`](Ledger::load) that fails for its
    /// time may have come further, and the next one goes on there.
    pub fn read_to(&self) -> i64 {
        self.next
    }

    /// Returns the last transaction of any job.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// Returns the name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the number of entries about an earlier topic of the same name, which do not count.
    pub fn former(&self) -> u64 {
        self.former
    }

    /// Returns the id of the topic with the dead letters; empty if the brokers tell none.
    pub(super) fn letters_id(&self) -> &str {
        &self.id
    }

    /// Returns the state of a dead letter; `None` if it is open.
    pub fn state(&self, partition: i32, offset: i64) -> Option<DoneState> {
        self.partitions.get(&partition)?.state(offset)
    }

    /// Returns the first open offset that is not below `offset`.
    pub fn first_open(&self, partition: i32, offset: i64) -> i64 {
        self.partitions.get(&partition).map_or(offset, |runs| runs.first_open(offset))
    }

    /// Returns the number of offsets in a range that are done.
    pub(super) fn done(&self, partition: i32, range: Range<i64>) -> u64 {
        self.partitions.get(&partition).map_or(0, |runs| runs.count(range))
    }

    /// Sets the state of a dead letter.
    pub fn mark(&mut self, partition: i32, offset: i64, state: DoneState) {
        if self.state(partition, offset) != Some(state) {
            self.set(partition, offset..offset + 1, state);
        }
    }

    /// Sets the state of the open offsets of a range.
    pub fn fill(&mut self, partition: i32, range: Range<i64>, state: DoneState) {
        let gaps = self.partitions.entry(partition).or_default().gaps(range);
        gaps.into_iter().for_each(|gap| self.set(partition, gap, state));
    }

    fn set(&mut self, partition: i32, range: Range<i64>, state: DoneState) {
        let pages = range.start / PAGE..=(range.end - 1) / PAGE;
        self.changed.extend(pages.map(|page| (partition, page * PAGE)));
        self.partitions.entry(partition).or_default().set(range, Some(state));
    }

    /// Returns the records that write the changes, which then count as written. After a transaction that fails, the
    /// ledger is to be read anew.
    pub fn take_changes(&mut self, holder: &Holder) -> Vec<Outgoing> {
        let by = serde_json::to_string(holder).expect("texts and a number are JSON");
        let changed = std::mem::take(&mut self.changed);
        let pages = changed.into_iter().map(|(partition, start)| {
            (format!("{}/{partition}/{start}", self.letters), self.page(partition, start).to_string())
        });
        pages.chain([(HOLDER_KEY.to_owned(), by)]).map(|(key, value)| self.record(key, value)).collect()
    }

    fn record(&self, key: String, value: String) -> Outgoing {
        let (key, value) = (Some(key.into_bytes()), Some(value.into_bytes()));
        Outgoing { topic: self.topic.clone(), key, value, headers: Vec::new(), timestamp_ms: NO_TIMESTAMP }
    }

    /// Writes a page: the id of the topic, and the runs of each state, without their ends.
    fn page(&self, partition: i32, start: i64) -> Value {
        let mut page = Map::new();
        page.insert("topic_id".to_owned(), self.id.clone().into());
        let runs: Vec<_> = self.partitions[&partition].within(start..start + PAGE).collect();
        for state in DoneState::VARIANTS {
            let of_state = runs.iter().filter(|(_, other)| other == state);
            let of_state: Value = of_state.map(|(run, _)| json!([run.start, run.end])).collect();
            page.insert(<&str>::from(state).to_owned(), of_state);
        }
        Value::Object(page)
    }

    /// Takes an entry in; `None` if it has another format. Entries about other topics are left out.
    fn apply(&mut self, key: &[u8], value: Option<&[u8]>) -> Option<()> {
        let key = std::str::from_utf8(key).ok()?;
        let value: Option<Value> = value.map(serde_json::from_slice).transpose().ok()?;
        if key == HOLDER_KEY {
            self.holder = value.map(serde_json::from_value).transpose().ok()?;
            return Some(());
        }
        let (rest, start) = key.rsplit_once('/')?;
        let (topic, partition) = rest.rsplit_once('/')?;
        let (partition, start): (i32, i64) = (partition.parse().ok()?, start.parse().ok()?);
        if topic != self.letters {
            return Some(());
        }
        let page = start..start + PAGE;
        let runs = self.partitions.entry(partition).or_default();
        runs.set(page.clone(), None);
        // A tombstone opens the page.
        let Some(value) = value else { return Some(()) };
        let id = value["topic_id"].as_str()?;
        if id != self.id && !id.is_empty() && !self.id.is_empty() {
            self.former += 1;
            return Some(());
        }
        for state in DoneState::VARIANTS {
            for run in value[<&str>::from(state)].as_array()? {
                let run = run[0].as_i64()?..run[1].as_i64()?;
                let is_inside = page.start <= run.start && run.start < run.end && run.end <= page.end;
                is_inside.then(|| runs.set(run, Some(*state)))?;
            }
        }
        Some(())
    }
}

/// Returns whether a job has selected all dead letters, by the metadata of its position.
fn is_everything(metadata: &str) -> bool {
    let Ok(Value::Object(extent)) = serde_json::from_str(metadata) else { return false };
    let Some(Value::Object(select)) = extent.get("select") else { return false };
    select.values().all(|condition| condition.is_null() || *condition == json!([]))
}

#[cfg(test)]
mod tests;
