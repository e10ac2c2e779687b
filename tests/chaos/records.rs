//! The generated records, made from a seed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::origin::{Fate, HEADER, Origin, first_line};
use crate::plan::{Plan, TARGET_MAX_BYTES, now_ms};
use crate::{support::generator::Random, support::record::Header};

/// The clients with their shares of the load in percent. The first ones demand far more than an equal share.
pub const CLIENTS: [(&str, u64); 8] = [
    ("home-loan", 30),
    ("personal-loan", 22),
    ("car-loan", 16),
    ("credit-card", 12),
    ("savings", 8),
    ("student-loan", 6),
    ("leasing", 4),
    ("overdraft", 2),
];
const ANONYMOUS: u16 = CLIENTS.len() as u16;
const POISONER: u16 = ANONYMOUS + 1;
/// Number of keys of a compacted source, low enough for the cleaner to find records to remove.
const COMPACTED_KEYS: u64 = 12_000;

/// A record to be sent.
#[derive(Debug)]
pub struct NewRecord {
    pub topic: String,
    pub partition: i32,
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<Header>,
}

/// Makes unique records.
pub struct RecordMaker {
    plan: Plan,
    random: Random,
    next_id: u64,
    sequences: HashMap<(u8, i32, u16), u64>,
}

impl RecordMaker {
    pub fn new(plan: &Plan) -> RecordMaker {
        RecordMaker {
            random: Random(plan.seed ^ 0x6765_6e65),
            plan: plan.clone(),
            next_id: 0,
            sequences: HashMap::new(),
        }
    }

    /// Makes the next record, of a random client and for a random partition. `partitions` holds the number of
    /// partitions of each topic.
    pub fn next(&mut self, partitions: &[AtomicI32], fate: Fate) -> NewRecord {
        let topic = self.random.below(partitions.len() as u64) as u8;
        let count = partitions[usize::from(topic)].load(Ordering::Relaxed);
        let partition = self.random.below(count as u64) as i32;
        let client = self.client();
        // With a steady load, the first client is known to one instance at a time.
        let (topic, partition) = if self.plan.steady && client == 0 { (0, 0) } else { (topic, partition) };
        let length = match self.random.below(200) {
            0 => 10_000,
            _ => self.random.below(220) as usize,
        };
        let padding = self.padding(length);
        let origin = self.origin(topic, partition, client, fate);
        let (key, tombstone) = self.key(topic);
        let value = (!tombstone).then(|| value(origin.id, &padding));
        self.make(origin, now_ms() as i64, key, value)
    }

    /// Makes a record that the target refuses: `too_large`, `future` (its timestamp), or `null_key` (for a compacted
    /// target).
    pub fn poison(&mut self, kind: &str) -> NewRecord {
        // Not into a compacted source: it refuses null keys, too.
        let plain: Vec<u8> = (0_u8..).zip(&self.plan.sources).filter(|(_, s)| !s.compacted).map(|(n, _)| n).collect();
        let topic = plain[self.random.below(plain.len() as u64) as usize];
        let origin = self.origin(topic, 0, POISONER, Fate::Poison);
        let large = if kind == "too_large" { TARGET_MAX_BYTES * 2 } else { 10 };
        // Random bytes, so that compression does not make the record small.
        let padding = self.random.bytes(large);
        let ahead = if kind == "future" { 48 * 3_600_000 } else { 0 };
        let key = (kind != "null_key").then(|| b"poison".to_vec());
        self.make(origin, now_ms() as i64 + ahead, key, Some(value(origin.id, &padding)))
    }

    fn origin(&mut self, topic: u8, partition: i32, client: u16, fate: Fate) -> Origin {
        self.next_id += 1;
        let sequence = self.sequences.entry((topic, partition, client)).or_default();
        *sequence += 1;
        Origin { id: self.next_id, topic, partition, client, sequence: *sequence, fate }
    }

    fn client(&mut self) -> u16 {
        let mut left = self.random.below(103);
        for (number, (_, part)) in (0_u16..).zip(CLIENTS) {
            if left < part {
                return number;
            }
            left -= part;
        }
        ANONYMOUS
    }

    /// Makes a key, and decides whether the record is a tombstone.
    fn key(&mut self, topic: u8) -> (Option<Vec<u8>>, bool) {
        if self.plan.sources[usize::from(topic)].compacted {
            let key = format!("account-{}", self.random.below(COMPACTED_KEYS));
            return (Some(key.into_bytes()), self.random.below(10) == 0);
        }
        let key = match self.random.below(100) {
            // A compacted target refuses null keys.
            0..6 if self.plan.append_time => None,
            6 | 7 => Some(Vec::new()),
            8 => Some(vec![0xc3, 0x28, self.random.below(256) as u8]),
            _ => Some(format!("account-{}", self.random.below(5_000)).into_bytes()),
        };
        (key, self.random.below(50) == 0)
    }

    fn padding(&mut self, length: usize) -> Vec<u8> {
        let mut padding = self.random.bytes(length);
        padding.iter_mut().for_each(|byte| *byte = b'a' + *byte % 16);
        padding
    }

    fn make(&mut self, origin: Origin, timestamp: i64, key: Option<Vec<u8>>, value: Option<Vec<u8>>) -> NewRecord {
        let mut headers: Vec<Header> = vec![(HEADER.to_owned(), Some(origin.to_text().into_bytes()))];
        let name = match origin.client {
            ANONYMOUS => None,
            POISONER => Some("poisoner"),
            client => Some(CLIENTS[usize::from(client)].0),
        };
        headers.extend(name.map(|name| ("client-id".to_owned(), Some(name.as_bytes().to_vec()))));
        match self.random.below(40) {
            0 => headers.push(("trace".to_owned(), None)),
            1 => headers.splice(0..0, [("a".to_owned(), Some(vec![])), ("a".to_owned(), None)]).for_each(drop),
            2 => headers.push(("throttle-attempt".to_owned(), Some(b"4".to_vec()))),
            _ => {}
        }
        let topic = self.plan.sources[usize::from(origin.topic)].name.clone();
        NewRecord { topic, partition: origin.partition, timestamp, key, value, headers }
    }
}

fn value(id: u64, padding: &[u8]) -> Vec<u8> {
    let mut value = first_line(id, padding).into_bytes();
    value.push(b'\n');
    value.extend(padding);
    value
}
