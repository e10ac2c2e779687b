//! All runs of two writers and one name within small bounds, and every legal compaction of every log among them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use watermaster_core::rules::log::record::{self, ChangeId, RuleChange};
use watermaster_core::rules::log::{LogAction, Precondition, RulesLog, WriteRequest};
use watermaster_core::units::Time;

use crate::topic::{Content, Decides, NAMES, Observer, Record};

/// Later than any time for which an instance leaves the cleaning to others.
const LATER: Time = Time::from_nanos(3_600 * 1_000_000_000);

/// The number of a record in the [`Book`].
type Number = u16;

/// An attempt at a change: the records that its author has read, its number, and whether it deletes.
type Attempt = (Box<[Number]>, u8, bool);

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
struct Limits {
    window: u64,
    attempts: u8,
    crashes: u8,
    /// The records that are no changes.
    noise: u8,
    /// The records of the longest log.
    length: usize,
}

/// A log, with what those know that have read all of it.
struct Prefix {
    log: RulesLog,
    observer: Observer,
    /// The last record is a change that came in force.
    wins: bool,
    /// The changes that came in force.
    won: BTreeSet<u64>,
    /// The tombstones that may be written.
    tombstones: Vec<Number>,
}

/// All records and logs of an exploration.
struct Book {
    window: u64,
    records: Vec<Record>,
    numbers: HashMap<Record, Number>,
    prefixes: HashMap<Box<[Number]>, Rc<Prefix>>,
    writes: HashMap<Attempt, Option<Number>>,
    compactions: usize,
}

/// The change that decides, as a reader knows it.
fn known(log: &RulesLog) -> Decides {
    log.decides(NAMES[0]).map(|decides| (decides.version.n, decides.version.id.0, decides.change.deleted))
}

/// A reader that begins at a log with this end.
fn reader(window: u64, seed: u64, end: u64) -> RulesLog {
    let mut log = RulesLog::new(window, seed);
    log.handle_begin(Time::ZERO, end);
    log
}

fn hand_over(log: &mut RulesLog, offset: usize, record: &Record) {
    log.handle_record(Time::ZERO, offset as u64, record.key.as_bytes(), record.value.as_deref());
}

/// Returns the records that a log sends.
fn sent(log: &mut RulesLog) -> impl Iterator<Item = (String, Option<Vec<u8>>)> {
    std::iter::from_fn(|| log.poll_action()).filter_map(|action| match action {
        LogAction::Send { key, value, .. } => Some((key, value)),
        _ => None,
    })
}

impl Book {
    fn new(window: u64) -> Book {
        let (records, numbers, prefixes, writes) = (Vec::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let mut book = Book { window, records, numbers, prefixes, writes, compactions: 0 };
        let (observer, won) = (Observer::new(window), BTreeSet::new());
        let empty = Prefix { log: book.live(&[], 0), observer, wins: false, won, tombstones: Vec::new() };
        book.prefixes.insert([].into(), Rc::new(empty));
        book
    }

    fn number(&mut self, key: String, value: Option<Vec<u8>>, base: Option<u64>) -> Number {
        let next = Number::try_from(self.records.len()).expect("there are few records");
        let record = Record::new(key, value, base);
        *self.numbers.entry(record).or_insert_with_key(|record| {
            self.records.push(record.clone());
            next
        })
    }

    fn record(&self, number: Number) -> &Record {
        &self.records[usize::from(number)]
    }

    /// Returns a reader that saw each record of a log. The attempt decides the id of what it writes next.
    fn live(&self, records: &[Number], attempt: u8) -> RulesLog {
        let mut log = reader(self.window, attempt.into(), 0);
        log.handle_end(Time::ZERO, 0);
        records.iter().enumerate().for_each(|(offset, number)| hand_over(&mut log, offset, self.record(*number)));
        assert!(log.is_live());
        log
    }

    /// Returns what is known at the end of a log. The first time, compares a reader that saw each record with the
    /// observer, and new readers of all that compaction may leave.
    fn prefix(&mut self, records: &[Number]) -> Rc<Prefix> {
        if let Some(prefix) = self.prefixes.get(records) {
            return Rc::clone(prefix);
        }
        let (last, before) = records.split_last().expect("the empty log is known");
        let (before, record, offset) = (self.prefix(before), self.record(*last).clone(), before.len() as u64);
        let (mut log, mut observer, mut won) = (before.log.clone(), before.observer.clone(), before.won.clone());
        while log.poll_action().is_some() {}
        hand_over(&mut log, offset as usize, &record);
        let wins = std::iter::from_fn(|| log.poll_action()).any(|action| matches!(action, LogAction::Changed(_)));
        let base = observer.state(offset)[0].map(|(_, id, _)| id);
        let fits = match record.content {
            Content::Change { until, .. } => base == record.base && offset <= until,
            _ => false,
        };
        assert_eq!([wins, observer.apply(offset, &record)], [fits; 2], "{record:?} at the end of {records:?}");
        if let (true, Content::Change { id, .. }) = (wins, &record.content) {
            won.insert(*id);
        }
        let expected = observer.state(offset + 1)[0];
        assert_eq!(known(&log), expected, "at the end of {records:?}");
        self.check_compactions(records, expected);
        let mut cleaner = log.clone();
        cleaner.clean(LATER, true, usize::MAX);
        let tombstones = sent(&mut cleaner).map(|(key, value)| self.number(key, value, None)).collect();
        let prefix = Rc::new(Prefix { log, observer, wins, won, tombstones });
        self.prefixes.insert(records.into(), Rc::clone(&prefix));
        prefix
    }

    /// A new reader knows the same rules, whatever compaction has removed.
    fn check_compactions(&mut self, records: &[Number], expected: Decides) {
        let end = records.len() as u64;
        for gone in self.legal_compactions(records) {
            let mut log = reader(self.window, 0, end);
            let left = records.iter().enumerate().filter(|(offset, _)| gone >> offset & 1 == 0);
            left.for_each(|(offset, number)| hand_over(&mut log, offset, self.record(*number)));
            log.handle_position(Time::ZERO, end);
            log.handle_end(Time::ZERO, end);
            assert!(log.is_live());
            assert_eq!(known(&log), expected, "compaction has left {gone:b} out of {records:?}");
            self.compactions += 1;
        }
    }

    /// Returns every set of offsets, as bits, that compaction may have removed: of each key, records that later ones
    /// follow; and a tombstone, after all earlier records of its key.
    fn legal_compactions(&self, records: &[Number]) -> Vec<u32> {
        let key = |offset: usize| &self.record(records[offset]).key;
        let is_tombstone = |offset: usize| self.record(records[offset]).value.is_none();
        let earlier = |offset: usize| (0..offset).filter(move |other| key(*other) == key(offset));
        let is_last = |offset: usize| (offset + 1..records.len()).all(|other| key(other) != key(offset));
        let may_go = |gone: u32, offset: usize| {
            let is_removable = is_tombstone(offset) || !is_last(offset);
            is_removable && (!is_tombstone(offset) || earlier(offset).all(|other| gone >> other & 1 == 1))
        };
        let is_legal = |gone: &u32| (0..records.len()).all(|offset| gone >> offset & 1 == 0 || may_go(*gone, offset));
        (0..1 << records.len()).filter(is_legal).collect()
    }

    /// Returns the change that a writer makes which has read these records; nothing if there is no rule to delete.
    fn write(&mut self, records: &[Number], attempt: u8, deletes: bool) -> Option<Number> {
        let asked = (records.into(), attempt, deletes);
        if let Some(number) = self.writes.get(&asked) {
            return *number;
        }
        let mut log = self.live(records, attempt);
        let base = log.decides(NAMES[0]).map(|decides| decides.version.id.0);
        let rule = (!deletes).then(|| "{}".into());
        let (name, precondition, by) = (NAMES[0].into(), Precondition::Any, "".into());
        let written = log.write(Time::ZERO, WriteRequest { name, precondition, rule, by, at: 0 });
        let record = written.ok().and_then(|_| sent(&mut log).next());
        let number = record.map(|(key, value)| self.number(key, value, base));
        self.writes.insert(asked, number);
        number
    }
}

/// A state of two writers, a network and a log.
#[derive(Clone)]
struct State {
    records: Vec<Number>,
    /// The offset up to which each writer has read, and the change that it waits for.
    writers: [(u8, Option<Number>); 2],
    /// Sorted.
    network: Vec<Number>,
    attempts: u8,
    crashes: u8,
    noise: u8,
    /// The tombstones that were written, sorted.
    tombstones: Vec<Number>,
    /// The acknowledged changes, sorted.
    acknowledged: Vec<Number>,
}

fn with(list: &[Number], number: Number) -> Vec<Number> {
    let mut list = list.to_vec();
    list.insert(list.partition_point(|other| *other < number), number);
    list
}

impl State {
    /// A short form: there are very many states.
    fn packed(&self) -> Box<[Number]> {
        let mut packed: Vec<Number> = [self.attempts, self.crashes, self.noise].map(Number::from).into();
        for (position, pending) in self.writers {
            packed.extend([position.into(), pending.unwrap_or(Number::MAX)]);
        }
        for list in [&self.records, &self.network, &self.tombstones, &self.acknowledged] {
            packed.push(list.len() as Number);
            packed.extend(list);
        }
        packed.into()
    }

    /// Returns the states that can follow.
    fn following(&self, book: &mut Book, limits: &Limits) -> Vec<State> {
        let mut found = Vec::new();
        let all = book.prefix(&self.records);
        for (at, (position, pending)) in self.writers.into_iter().enumerate() {
            let read = &self.records[..usize::from(position)];
            let prefix = book.prefix(read);
            if let Some(number) = self.records.get(usize::from(position)) {
                let mut next = self.clone();
                let is_own = pending == Some(*number);
                next.writers[at] = (position + 1, pending.filter(|_| !is_own));
                if is_own && book.prefix(&self.records[..read.len() + 1]).wins {
                    next.acknowledged = with(&self.acknowledged, *number);
                    check_answers(book, &all, &next.acknowledged);
                }
                found.push(next);
            }
            if self.attempts > 0 && pending.is_none() {
                let attempt = limits.attempts - self.attempts;
                let changes = [false, true].map(|deletes| book.write(read, attempt, deletes));
                found.extend(changes.into_iter().flatten().map(|change| {
                    let network = with(&self.network, change);
                    let mut next = State { network, attempts: self.attempts - 1, ..self.clone() };
                    next.writers[at] = (position, Some(change));
                    next
                }));
            }
            if self.crashes > 0 {
                let mut next = State { crashes: self.crashes - 1, ..self.clone() };
                next.writers[at] = (self.records.len() as u8, None);
                found.push(next);
            }
            let unwritten = prefix.tombstones.iter().filter(|number| !self.tombstones.contains(number));
            found.extend(unwritten.map(|number| {
                let tombstones = with(&self.tombstones, *number);
                State { network: with(&self.network, *number), tombstones, ..self.clone() }
            }));
        }
        if self.records.len() < limits.length {
            for at in 0..self.network.len() {
                let mut next = self.clone();
                next.records.push(next.network.remove(at));
                found.push(next);
            }
            if self.noise > 0 {
                let mut next = State { noise: self.noise - 1, ..self.clone() };
                next.records.push(book.number(format!("noise/{}", self.noise), Some(Vec::new()), None));
                found.push(next);
            }
        }
        found
    }
}

/// Acknowledged changes are in force, and no two of them follow the same one.
fn check_answers(book: &Book, all: &Prefix, acknowledged: &[Number]) {
    let mut bases = HashSet::new();
    for record in acknowledged.iter().map(|number| book.record(*number)) {
        let Content::Change { id, .. } = record.content else { unreachable!("it is a change") };
        assert!(all.won.contains(&id), "{record:?} is acknowledged and not in force");
        assert!(record.base.is_none_or(|base| bases.insert(base)), "{record:?} and another one are acknowledged");
    }
}

/// Returns the number of states, logs and compacted logs.
fn explore(limits: Limits) -> [usize; 3] {
    let mut book = Book::new(limits.window);
    let Limits { attempts, crashes, noise, .. } = limits;
    let (writers, empty) = ([(0, None); 2], Vec::new);
    let first = State {
        records: empty(),
        writers,
        network: empty(),
        attempts,
        crashes,
        noise,
        tombstones: empty(),
        acknowledged: empty(),
    };
    let (mut seen, mut open) = (HashSet::from([first.packed()]), vec![first]);
    while let Some(state) = open.pop() {
        open.extend(state.following(&mut book, &limits).into_iter().filter(|next| seen.insert(next.packed())));
    }
    [seen.len(), book.prefixes.len(), book.compactions]
}

fn limits(window: u64, attempts: u8, crashes: u8, noise: u8, length: usize) -> Limits {
    Limits { window, attempts, crashes, noise, length }
}

#[test]
fn no_run_within_small_bounds_breaks_a_promise() {
    for limits in [limits(1, 2, 1, 2, 7), limits(1, 3, 1, 1, 6), limits(2, 3, 1, 0, 6), limits(1, 4, 0, 0, 6)] {
        let [states, logs, compactions] = explore(limits);
        println!("{limits:?}: {states} states, {logs} logs, {compactions} compacted logs");
    }
}

/// The mistake stands inside of a reader, so it is made here by one that is told that it misses nothing.
#[test]
fn a_new_reader_that_applies_tombstones_in_order_is_wrong() {
    let mut book = Book::new(1);
    let mut change = |id, n, deleted: bool, until| {
        let (v, by, rule) = (record::VERSION, "".into(), (!deleted).then(|| "{}".into()));
        let change = RuleChange { v, n, until, deleted, by, at: 0, rule };
        book.number(record::key(NAMES[0], ChangeId(id)), Some(record::encode(&change).expect("a change")), None)
    };
    // The grave ends after offset 2. The third change has lost against it. The fourth one is a new life.
    let [first, grave, lost, new] =
        [change(0, 1, false, 1), change(1, 2, true, 2), change(2, 2, false, 2), change(3, 1, false, 5)];
    let noise = [0, 1].map(|number| book.number(format!("noise/{number}"), Some(Vec::new()), None));
    let mut tombstone = |id| book.number(record::key(NAMES[0], ChangeId(id)), None, None);
    let tombstones = [0, 2, 1].map(&mut tombstone);
    let records = [first, grave, lost, noise[0], new, tombstones[0], tombstones[1], noise[1], tombstones[2]];
    let expected = known(&book.live(&records, 0));
    assert_eq!(expected, Some((1, 3, false)));
    book.check_compactions(&records, expected);
    let compactions = book.legal_compactions(&records);
    let is_wrong = |gone: &&u32| {
        let mut log = book.live(&[], 0);
        for (offset, number) in records.iter().enumerate() {
            match *gone >> offset & 1 {
                0 => hand_over(&mut log, offset, book.record(*number)),
                _ => log.handle_record(Time::ZERO, offset as u64, b"", None),
            }
        }
        !log.is_live() || known(&log) != expected
    };
    let wrong = compactions.iter().filter(is_wrong).count();
    println!("wrong after {wrong} of {} compactions", compactions.len());
    assert!(wrong > 0);
}
