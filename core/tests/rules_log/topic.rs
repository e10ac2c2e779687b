//! A compacted topic with one partition, and an observer that sees each of its records.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use watermaster_core::rules::log::record::{self, RuleChange, RuleRecord};

use crate::planted::Mistake;
use crate::support::random::Random;
use crate::world::Violation;

/// The names of rules in these tests.
pub const NAMES: [&str; 2] = ["a", "b"];

/// The index of a name in [`NAMES`].
pub fn index(name: &str) -> usize {
    NAMES.iter().position(|known| *known == name).expect("only these names are used")
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Content {
    Change { name: &'static str, id: u64, n: u64, deleted: bool, until: u64 },
    Tombstone { name: &'static str, id: u64 },
    Noise,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    pub key: String,
    pub value: Option<Vec<u8>>,
    pub content: Content,
    /// The change that the author of this one knew; only the checker reads it.
    pub base: Option<u64>,
}

impl Record {
    pub fn new(key: String, value: Option<Vec<u8>>, base: Option<u64>) -> Record {
        let content = match record::decode(key.as_bytes(), value.as_deref()) {
            Ok(RuleRecord { name, id, change: Some(change) }) => {
                let RuleChange { n, deleted, until, .. } = change;
                Content::Change { name: NAMES[index(name)], id: id.0, n, deleted, until }
            }
            Ok(RuleRecord { name, id, change: None }) => Content::Tombstone { name: NAMES[index(name)], id: id.0 },
            Err(_) => Content::Noise,
        };
        Record { key, value, content, base }
    }

    pub fn tombstone(name: &str, id: u64) -> Record {
        Record::new(record::key(name, record::ChangeId(id)), None, None)
    }

    /// A record that no reader can read.
    pub fn noise(number: u64) -> Record {
        Record::new(format!("noise/{number}"), Some(b"?".to_vec()), None)
    }

    /// The key by which compaction keeps the last record.
    fn compaction_key(&self, mistake: Option<Mistake>) -> String {
        match (mistake, &self.content) {
            (Some(Mistake::SameKey), Content::Change { name, .. } | Content::Tombstone { name, .. }) => {
                (*name).to_owned()
            }
            (Some(Mistake::SlotKey), Content::Change { name, n, .. }) => format!("{name}/{n}"),
            _ => self.key.clone(),
        }
    }
}

/// The change that decides under a name: n, id, and whether it deletes.
pub type Decides = Option<(u64, u64, bool)>;

#[derive(Debug, Clone)]
struct Last {
    id: u64,
    n: u64,
    deleted: bool,
    offset: u64,
}

/// The rules of the protocol in their simplest form.
#[derive(Debug, Clone)]
pub struct Observer {
    window: u64,
    last: BTreeMap<&'static str, Last>,
    /// The changes without a tombstone that are not in force, by name and id: the offset, and whether it is a grave that
    /// had ended.
    refuse: BTreeMap<(&'static str, u64), (u64, bool)>,
}

impl Observer {
    pub fn new(window: u64) -> Observer {
        Observer { window, last: BTreeMap::new(), refuse: BTreeMap::new() }
    }

    fn at(&self, name: &str, offset: u64) -> Option<&Last> {
        self.last.get(name).filter(|last| !last.deleted || offset <= last.offset + self.window)
    }

    /// The state of all names at an offset.
    pub fn state(&self, offset: u64) -> [Decides; 2] {
        NAMES.map(|name| self.at(name, offset).map(|last| (last.n, last.id, last.deleted)))
    }

    /// Returns whether the record is a change that comes in force.
    pub fn apply(&mut self, offset: u64, record: &Record) -> bool {
        let (name, change, until) = match record.content {
            Content::Change { name, id, n, deleted, until } => (name, Last { id, n, deleted, offset }, until),
            Content::Tombstone { name, id } => {
                self.refuse.remove(&(name, id));
                if self.last.get(name).is_some_and(|last| last.id == id) {
                    self.last.remove(name);
                }
                return false;
            }
            Content::Noise => return false,
        };
        let decides = self.at(name, offset).map(|last| (last.n, last.id));
        if decides.is_some_and(|(_, id)| id == change.id) {
            return false;
        }
        if change.n <= decides.map_or(0, |(n, _)| n) || offset > until {
            self.refuse.insert((name, change.id), (offset, false));
            return false;
        }
        self.refuse.remove(&(name, change.id));
        if let Some(former) = self.last.insert(name, change) {
            self.refuse.insert((name, former.id), (former.offset, decides.is_none()));
        }
        true
    }

    /// The tombstones that a program writes which makes one of three mistakes.
    pub fn wrong_tombstones(&self, position: u64, mistake: Mistake) -> Vec<Record> {
        let ended = self.refuse.iter().filter(|(_, (_, ended))| *ended).map(|((name, id), _)| (*name, *id));
        let graves = self.last.iter().filter(|(_, last)| last.deleted);
        let over = graves.clone().filter(|(_, grave)| position > grave.offset + self.window);
        let is_clean = |name: &str| self.refuse.keys().all(|(of, _)| *of != name);
        let of = |(name, grave): (&&'static str, &Last)| (*name, grave.id);
        let wrong: Vec<(&str, u64)> = match mistake {
            Mistake::GraveAsRefuse => ended.collect(),
            Mistake::GraveFirst => ended.chain(over.map(of)).collect(),
            Mistake::NoUntil => graves.filter(|(name, _)| is_clean(name)).map(of).collect(),
            _ => Vec::new(),
        };
        wrong.into_iter().map(|(name, id)| Record::tombstone(name, id)).collect()
    }
}

/// The topic, and the truth about it.
pub struct Topic {
    mistake: Option<Mistake>,
    pub records: Vec<Rc<Record>>,
    /// The number of each record's key for compaction.
    keys: Vec<usize>,
    key_numbers: HashMap<String, usize>,
    present: Vec<bool>,
    times: Vec<u64>,
    /// The times from which on tombstones without earlier records of their keys are kept.
    bare: HashMap<usize, u64>,
    pub observer: Observer,
    /// The state below each offset.
    pub states: Vec<[Decides; 2]>,
    /// The sums of readers at each offset.
    pub sums: HashMap<u64, u64>,
    /// The changes that came in force.
    pub won: HashSet<u64>,
}

impl Topic {
    pub fn new(window: u64, mistake: Option<Mistake>) -> Topic {
        Topic {
            mistake,
            records: Vec::new(),
            keys: Vec::new(),
            key_numbers: HashMap::new(),
            present: Vec::new(),
            times: Vec::new(),
            bare: HashMap::new(),
            observer: Observer::new(window),
            states: vec![[None; 2]],
            sums: HashMap::new(),
            won: HashSet::new(),
        }
    }

    pub fn end(&self) -> u64 {
        self.records.len() as u64
    }

    /// Appends a record. Of the changes with one base, the first one that comes in time comes in force, and no other.
    pub fn append(&mut self, record: Rc<Record>, now: u64) -> Result<(), Violation> {
        let offset = self.end();
        let fits = match &record.content {
            Content::Change { name, until, .. } => {
                let before = self.observer.state(offset)[index(name)];
                before.map(|(_, id, _)| id) == record.base && offset <= *until
            }
            _ => false,
        };
        let wins = self.observer.apply(offset, &record);
        if wins != fits {
            return Err(Violation::CompareAndSet);
        }
        if let (true, Content::Change { id, .. }) = (wins, &record.content) {
            self.won.insert(*id);
        }
        let numbers = self.key_numbers.len();
        let key = record.compaction_key(self.mistake);
        self.keys.push(*self.key_numbers.entry(key).or_insert(numbers));
        self.records.push(record);
        self.present.push(true);
        self.times.push(now);
        self.states.push(self.observer.state(offset + 1));
        Ok(())
    }

    /// Returns the offset of the first record from `position` on that is still there.
    pub fn next_from(&self, position: u64) -> Option<u64> {
        (position..self.end()).find(|offset| self.present[*offset as usize])
    }

    /// The records that are still there.
    pub fn left(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().zip(&self.present).filter(|(_, present)| **present).map(|(record, _)| &**record)
    }

    /// A run of the cleaner, which may be cut short anywhere: it removes any part of the records that it may remove.
    /// Records stay for `lag` at least. A tombstone goes only after all earlier records of its key, and stays for
    /// `retention` from the run on that removed those (KIP-534).
    pub fn compact(&mut self, random: &mut Random, now: u64, lag: u64, retention: u64, kept_percent: u64) {
        let end = self.times.iter().filter(|time| **time + lag <= now).count();
        let last: HashMap<usize, usize> = self.keys[..end].iter().enumerate().map(|(at, key)| (*key, at)).collect();
        let mut earlier: HashMap<usize, Vec<usize>> = HashMap::new();
        for offset in 0..end {
            let key = self.keys[offset];
            let before = earlier.entry(key).or_default();
            let is_tombstone = matches!(self.records[offset].content, Content::Tombstone { .. });
            let is_bare = !before.iter().any(|other| self.present[*other]);
            if is_bare && is_tombstone {
                self.bare.entry(offset).or_insert(now);
            }
            let is_old = is_bare && self.bare.get(&offset).is_some_and(|since| since + retention <= now);
            let may_go = last[&key] > offset && (is_bare || !is_tombstone) || is_old;
            if self.present[offset] && may_go && random.below(100) >= kept_percent {
                self.present[offset] = false;
            }
            before.push(offset);
        }
    }
}
