//! Three instances, two names, a network that delays, reorders and loses records, and a compacted topic.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::{fmt, time::Duration};

use watermaster_core::rules::log::record::{self, ChangeId, RuleVersion};
use watermaster_core::rules::log::{
    LogAction, Precondition, RulesLog, WriteOutcome, WriteRefusal, WriteRequest, WriteTicket,
};
use watermaster_core::units::Time;

use crate::planted::Mistake;
use crate::support::random::Random;
use crate::topic::{Content, NAMES, Record, Topic, index};

const INSTANCES: usize = 3;
const STEPS: u64 = 400;
/// The most changes of one instance that are on their way.
const MAX_PENDING: usize = 3;
/// A reader begins again after this time.
const READING_TIME: Duration = Duration::from_secs(3_600);

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A reader knows other rules than one that saw every record.
    Agreement,
    /// A change came in force that was not based on the rule in force, or one that was did not.
    CompareAndSet,
    /// A wrong answer: a change that was acknowledged is not in force, a refused one is, or two of one base are
    /// acknowledged.
    Answer,
    /// In the end the log holds more than the living rules, or takes no changes.
    Garbage,
}

type Checked = Result<(), Violation>;

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub records: u64,
    pub comparisons: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub unknown: u64,
    pub retries: u64,
    pub begun_again: u64,
    pub tombstones: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.records += other.records;
        self.comparisons += other.comparisons;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.retries += other.retries;
        self.begun_again += other.begun_again;
        self.tombstones += other.tombstones;
    }
}

/// The result of a seed.
pub struct Run {
    pub seed: u64,
    pub violation: Option<Violation>,
    pub counts: Counts,
    /// The records of the topic, for the one who looks for a mistake.
    pub log: Vec<String>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}, {:?}", self.seed, self.violation, self.counts)?;
        self.log.iter().enumerate().try_for_each(|(offset, record)| writeln!(f, "{offset:>4} {record}"))
    }
}

pub fn run(seed: u64, mistake: Option<Mistake>) -> Run {
    let mut world = World::new(seed, mistake);
    let violation = world.run().err();
    world.counts.records = world.topic.end();
    let log = world.topic.records.iter().map(|record| format!("{:?} {:?}", record.content, record.base)).collect();
    Run { seed, violation, counts: world.counts, log }
}

/// The attempts of one change.
struct Asked {
    precondition: Precondition,
    attempts: Vec<u64>,
}

struct Instance {
    log: RulesLog,
    /// The offset at which the consumer is.
    cursor: u64,
    began: u64,
    is_end_asked: bool,
    /// The last version of each name, and whether it is a grave with its offset, as `StrictReplay` counts.
    strict: HashMap<&'static str, (u64, Option<u64>)>,
    asked: BTreeMap<WriteTicket, Asked>,
}

impl Instance {
    fn new(window: u64, seed: u64) -> Instance {
        let (strict, asked) = (HashMap::new(), BTreeMap::new());
        Instance { log: RulesLog::new(window, seed), cursor: 0, began: 0, is_end_asked: false, strict, asked }
    }

    /// Returns whether a record follows the version before it, or is void anyway.
    fn follows(&mut self, offset: u64, record: &Record, window: u64) -> bool {
        let Content::Change { name, n, deleted, until, .. } = record.content else { return true };
        let last = self.strict.get(name).filter(|(_, grave)| grave.is_none_or(|grave| offset <= grave + window));
        let before = last.map_or(0, |(n, _)| *n);
        if n == before + 1 && offset <= until {
            self.strict.insert(name, (n, deleted.then_some(offset)));
        }
        n <= before + 1
    }
}

struct World {
    random: Random,
    mistake: Option<Mistake>,
    window: u64,
    /// The steps for which a record stays at least, and those for which a tombstone does.
    lag: u64,
    retention: u64,
    now: u64,
    /// A new reader begins again after half of the steps for which tombstones stay.
    step: Duration,
    topic: Topic,
    instances: Vec<Instance>,
    /// The weights with which instances act. Some stand still.
    pace: [u64; INSTANCES],
    network: Vec<Rc<Record>>,
    doubles: bool,
    noise: u64,
    /// The acknowledged change of each base.
    acknowledged: HashMap<(&'static str, u64), u64>,
    /// The changes that were refused, or not sent.
    refused: Vec<u64>,
    counts: Counts,
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> World {
        let mut random = Random::stream(seed, 0);
        let window = random.one_of(&[2, 4, 8]);
        let (lag, retention) = (random.one_of(&[0, 5, 40]), random.one_of(&[10, 60, 200]));
        let instances = (0..INSTANCES).map(|_| Instance::new(window, random.word())).collect();
        World {
            random,
            mistake,
            window,
            lag,
            retention,
            now: 0,
            step: READING_TIME / (retention / 2) as u32,
            topic: Topic::new(window, mistake),
            instances,
            pace: [100; INSTANCES],
            network: Vec::new(),
            doubles: mistake == Some(Mistake::Doubled),
            noise: 0,
            acknowledged: HashMap::new(),
            refused: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn run(&mut self) -> Checked {
        for at in 0..INSTANCES {
            self.follow_up(at)?;
        }
        for _ in 0..STEPS {
            self.act()?;
            self.now += 1;
        }
        if !self.mistake.is_some_and(Mistake::is_of_keys) {
            self.settle()?;
        }
        if self.refused.iter().any(|id| self.topic.won.contains(id)) {
            return Err(Violation::Answer);
        }
        Ok(())
    }

    fn act(&mut self) -> Checked {
        let at = self.drawn_instance();
        match self.random.below(100) {
            0..40 => {
                for _ in 0..self.random.one_of(&[1, 1, 3, 10]) {
                    self.read(at)?;
                }
            }
            40..60 => self.ask(at)?,
            60..80 => self.deliver()?,
            80..88 => self.clean(at)?,
            88..93 => {
                let kept = self.random.one_of(&[0, 30, 80]);
                self.topic.compact(&mut self.random, self.now, self.lag, self.retention, kept);
            }
            93..95 => {
                // The process is killed and starts anew.
                self.instances[at] = Instance::new(self.window, self.random.word());
                self.follow_up(at)?;
            }
            95..97 => (0..INSTANCES).for_each(|at| self.pace[at] = self.random.one_of(&[1, 100, 100])),
            _ => {
                self.noise += 1;
                self.network.push(Rc::new(Record::noise(self.noise)));
            }
        }
        Ok(())
    }

    fn drawn_instance(&mut self) -> usize {
        let mut drawn = self.random.below(self.pace.iter().sum());
        for (at, weight) in self.pace.iter().enumerate() {
            if drawn < *weight {
                return at;
            }
            drawn -= weight;
        }
        unreachable!("the number is below the sum")
    }

    /// The time that an instance sees.
    fn time(&self, at: usize) -> Time {
        let instance = &self.instances[at];
        let stands = self.mistake == Some(Mistake::SlowStart) && !instance.log.is_live();
        let steps = if stands { instance.began } else { self.now };
        Time::ZERO + self.step * steps as u32
    }

    // ## Reading

    /// Reads one record, or the end of the topic.
    fn read(&mut self, at: usize) -> Checked {
        let (now, end) = (self.time(at), self.topic.end());
        let next = self.topic.next_from(self.instances[at].cursor);
        let tells_position = self.random.once_in(2);
        let instance = &mut self.instances[at];
        if instance.is_end_asked {
            self.answer_end(at);
        } else if let Some(offset) = next {
            let record = Rc::clone(&self.topic.records[offset as usize]);
            if self.mistake == Some(Mistake::GapIgnored) {
                (instance.cursor..offset).for_each(|gap| instance.log.handle_record(now, gap, b"", None));
            }
            let is_hidden =
                self.mistake == Some(Mistake::StrictReplay) && !instance.follows(offset, &record, self.window);
            let (key, value) = if is_hidden { ("", None) } else { (record.key.as_str(), record.value.as_deref()) };
            instance.cursor = offset + 1;
            instance.log.handle_record(now, offset, key.as_bytes(), value);
        } else if !instance.log.is_live() || tells_position {
            if self.mistake == Some(Mistake::GapIgnored) {
                (instance.cursor..end).for_each(|gap| instance.log.handle_record(now, gap, b"", None));
            }
            instance.cursor = end;
            instance.log.handle_position(now, end);
        }
        self.follow_up(at)
    }

    fn answer_end(&mut self, at: usize) {
        let (now, end) = (self.time(at), self.topic.end());
        let instance = &mut self.instances[at];
        instance.is_end_asked = false;
        if self.mistake == Some(Mistake::OneEnd) {
            // The log has not changed, as far as this reader is told.
            return instance.log.handle_end(now, end.min(instance.cursor));
        }
        instance.log.handle_end(now, end);
    }

    /// Does what an instance says, and checks what it knows.
    fn follow_up(&mut self, at: usize) -> Checked {
        while let Some(action) = self.instances[at].log.poll_action() {
            match action {
                LogAction::Begin(_) => self.begin(at),
                LogAction::AskEnd if self.random.once_in(2) => self.answer_end(at),
                LogAction::AskEnd => self.instances[at].is_end_asked = true,
                LogAction::Send { key, value, ticket } => self.send(at, key, value, ticket),
                LogAction::Done(ticket, outcome) => self.done(at, ticket, &outcome)?,
                LogAction::Changed(_) | LogAction::Known | LogAction::Unreadable { .. } => {}
                LogAction::Lost => unreachable!("this topic loses nothing"),
            }
        }
        self.check(at)
    }

    fn begin(&mut self, at: usize) {
        self.counts.begun_again += 1;
        let instance = &mut self.instances[at];
        (instance.cursor, instance.began, instance.is_end_asked) = (0, self.now, false);
        instance.strict.clear();
        let now = self.time(at);
        self.instances[at].log.handle_begin(now, self.topic.end());
    }

    /// Compares the rules that an instance knows with those of the observer at the same offset.
    fn check(&mut self, at: usize) -> Checked {
        let log = &self.instances[at].log;
        let Some(known) = log.known() else { return Ok(()) };
        self.counts.comparisons += 1;
        let state = NAMES.map(|name| {
            log.decides(name).map(|decides| (decides.version.n, decides.version.id.0, decides.change.deleted))
        });
        let sum = log.totals().sum;
        if state != self.topic.states[known as usize] || *self.topic.sums.entry(known).or_insert(sum) != sum {
            return Err(Violation::Agreement);
        }
        Ok(())
    }

    // ## Writing

    fn ask(&mut self, at: usize) -> Checked {
        if self.random.once_in(10) {
            let now = self.time(at);
            self.instances[at].log.handle_timeout(now);
            self.follow_up(at)?;
        }
        let name = self.random.one_of(&NAMES);
        let rule = (!self.random.chance(3_500)).then(|| r#"{"weight":2}"#.into());
        let in_force = self.instances[at].log.get(name).map(|rule| rule.version);
        let precondition = match self.random.below(6) {
            0 => Precondition::Absent,
            1 => Precondition::Present,
            2 | 3 => in_force.map_or(Precondition::Any, Precondition::Version),
            4 => Precondition::Version(RuleVersion { n: 1, id: ChangeId(7) }),
            _ => Precondition::Any,
        };
        if self.instances[at].asked.len() < MAX_PENDING {
            self.write(at, WriteRequest { name: name.into(), precondition, rule, by: "test".into(), at: 0 })?;
        }
        Ok(())
    }

    /// Returns whether the change was taken.
    fn write(&mut self, at: usize, request: WriteRequest) -> Result<bool, Violation> {
        let (now, precondition) = (self.time(at), request.precondition);
        let log = &mut self.instances[at].log;
        let in_force = log.get(&request.name).map(|rule| rule.version);
        let right = match precondition {
            _ if !log.is_live() => Some(WriteRefusal::Reading),
            Precondition::Absent if in_force.is_some() => Some(WriteRefusal::Changed { in_force }),
            Precondition::Present if in_force.is_none() => Some(WriteRefusal::Changed { in_force }),
            Precondition::Version(stated) if in_force != Some(stated) => Some(WriteRefusal::Changed { in_force }),
            _ if request.rule.is_none() && in_force.is_none() => Some(WriteRefusal::Missing),
            _ => None,
        };
        let written = log.write(now, request);
        if let Ok(ticket) = written {
            self.instances[at].asked.insert(ticket, Asked { precondition, attempts: Vec::new() });
        }
        self.follow_up(at)?;
        if written.as_ref().err() == right.as_ref() { Ok(written.is_ok()) } else { Err(Violation::Answer) }
    }

    fn send(&mut self, at: usize, key: String, value: Option<Vec<u8>>, ticket: Option<WriteTicket>) {
        let instance = &mut self.instances[at];
        let name = key.split('/').nth(1).expect("a key has a name").to_owned();
        let base = instance.log.decides(&name).map(|decides| decides.version.id.0);
        let mut record = Record::new(key, value, base);
        if let (Some(Mistake::NoUntil), Content::Change { id, .. }) = (self.mistake, &record.content) {
            let read = record::decode(record.key.as_bytes(), record.value.as_deref()).expect("it was written");
            let mut change = read.change.expect("a change");
            change.until = u64::MAX >> 1;
            let value = record::encode(&change).expect("it was written");
            record = Record::new(record::key(&name, ChangeId(*id)), Some(value), base);
        }
        if let (Some(ticket), Content::Change { id, .. }) = (ticket, &record.content) {
            let asked = instance.asked.get_mut(&ticket).expect("it was asked for");
            self.counts.retries += u64::from(!asked.attempts.is_empty());
            asked.attempts.push(*id);
            if self.random.once_in(30) {
                return instance.log.handle_unsent(ticket);
            }
        }
        self.counts.tombstones += u64::from(ticket.is_none());
        self.network.push(Rc::new(record));
    }

    fn done(&mut self, at: usize, ticket: WriteTicket, outcome: &WriteOutcome) -> Checked {
        // With the mistake, it was acknowledged before.
        let Some(asked) = self.instances[at].asked.remove(&ticket) else { return Ok(()) };
        match outcome {
            WriteOutcome::InForce(version) => self.acknowledge(version.id.0, &asked),
            WriteOutcome::Refused(_) | WriteOutcome::NotSent => {
                self.counts.refused += 1;
                self.refused.extend(asked.attempts);
                Ok(())
            }
            WriteOutcome::Unknown => {
                self.counts.unknown += 1;
                // Only the last attempt may still come in force.
                self.refused.extend(asked.attempts.split_last().map_or(&[][..], |(_, before)| before));
                Ok(())
            }
        }
    }

    /// An acknowledged change is in force, follows the version that was stated, and is the only one that does.
    fn acknowledge(&mut self, id: u64, asked: &Asked) -> Checked {
        self.counts.acknowledged += 1;
        let is_it = |record: &&Rc<Record>| matches!(record.content, Content::Change { id: of, .. } if of == id);
        let offset = self.topic.records.iter().position(|record| is_it(&record)).ok_or(Violation::Answer)?;
        let record = &self.topic.records[offset];
        let Content::Change { name, .. } = record.content else { unreachable!("it is a change") };
        let before = self.topic.states[offset][index(name)].filter(|(_, _, deleted)| !deleted);
        let holds = match asked.precondition {
            Precondition::Any => true,
            Precondition::Absent => before.is_none(),
            Precondition::Present => before.is_some(),
            Precondition::Version(stated) => before.is_some_and(|(n, id, _)| (n, id) == (stated.n, stated.id.0)),
        };
        let first = record.base.is_none_or(|base| *self.acknowledged.entry((name, base)).or_insert(id) == id);
        let is_new = asked.attempts.last() == Some(&id);
        let right = holds && first && is_new && self.topic.won.contains(&id);
        self.refused.extend(asked.attempts.iter().filter(|attempt| **attempt != id));
        if right { Ok(()) } else { Err(Violation::Answer) }
    }

    fn deliver(&mut self) -> Checked {
        if self.network.is_empty() {
            return Ok(());
        }
        // A record may stay on its way for the whole run.
        let at = self.random.index(self.network.len());
        let record = Rc::clone(&self.network[at]);
        let fate = self.random.below(100);
        if !(self.doubles && fate >= 70) {
            self.network.swap_remove(at);
        }
        if fate < 5 {
            return Ok(());
        }
        self.topic.append(Rc::clone(&record), self.now)?;
        if let (Some(Mistake::EarlyAnswer), Content::Change { id, .. }) = (self.mistake, &record.content) {
            for at in 0..INSTANCES {
                let asked = &mut self.instances[at].asked;
                let found = asked.iter().find(|(_, asked)| asked.attempts.contains(id)).map(|(ticket, _)| *ticket);
                if let Some(asked) = found.and_then(|ticket| asked.remove(&ticket)) {
                    self.acknowledge(*id, &asked)?;
                }
            }
        }
        Ok(())
    }

    fn clean(&mut self, at: usize) -> Checked {
        if self.mistake.is_some_and(Mistake::is_of_keys) || !self.instances[at].log.is_live() {
            return Ok(());
        }
        if let Some(mistake) = self.mistake {
            let wrong = self.topic.observer.wrong_tombstones(self.topic.end(), mistake);
            self.network.extend(wrong.into_iter().map(Rc::new));
        }
        let (now, is_first) = (self.time(at), !self.random.once_in(3));
        let most = self.random.index(4);
        self.instances[at].log.clean(now, is_first, most);
        self.follow_up(at)
    }

    // ## The end

    /// Without more faults, all agree, a change comes in force, and void changes go.
    fn settle(&mut self) -> Checked {
        // Nothing is waited for any more, so nothing is tried again.
        self.now += 10;
        for at in 0..INSTANCES {
            let now = self.time(at);
            self.instances[at].log.handle_timeout(now);
            self.follow_up(at)?;
        }
        let random = &mut self.random;
        self.network.retain(|_| random.once_in(2));
        self.doubles = false;
        while !self.network.is_empty() {
            self.deliver()?;
        }
        for at in 0..INSTANCES {
            self.catch_up(at)?;
        }
        let (precondition, rule, by) = (Precondition::Any, Some(r#"{"weight":3}"#.into()), "test".into());
        self.write_in_the_end(WriteRequest { name: NAMES[0].into(), precondition, rule, by, at: 0 })?;
        // The offsets move on past the end of each grave.
        for _ in 0..2 * self.window + 2 {
            self.topic.append(Rc::new(Record::noise(0)), self.now)?;
        }
        // Graves of several lives of a name go one after the other.
        loop {
            self.now += self.retention;
            self.catch_up(0)?;
            let now = self.time(0);
            self.instances[0].log.clean(now, true, usize::MAX);
            self.follow_up(0)?;
            if self.network.is_empty() {
                break;
            }
            self.deliver_all()?;
        }
        self.now += 10_000;
        for _ in 0..3 {
            self.topic.compact(&mut self.random, self.now, 0, 0, 0);
        }
        let changes = self.topic.left().filter(|record| matches!(record.content, Content::Change { .. })).count();
        let living = self.topic.observer.state(self.topic.end()).iter().flatten().count();
        if changes != living {
            return Err(Violation::Garbage);
        }
        for _ in 0..3 {
            self.instances[0] = Instance::new(self.window, self.random.word());
            self.follow_up(0)?;
            self.catch_up(0)?;
        }
        Ok(())
    }

    /// Writes until the record is sent and arrives. It has to come in force at the first attempt.
    fn write_in_the_end(&mut self, request: WriteRequest) -> Checked {
        loop {
            let before = self.counts.acknowledged;
            if !self.write(0, request.clone())? {
                return Err(Violation::Answer);
            }
            let is_sent = !self.network.is_empty();
            self.deliver_all()?;
            self.catch_up(0)?;
            if is_sent {
                let is_acknowledged = self.counts.acknowledged == before + 1;
                return if is_acknowledged { Ok(()) } else { Err(Violation::Garbage) };
            }
        }
    }

    /// Delivers everything, and loses nothing.
    fn deliver_all(&mut self) -> Checked {
        let now = self.now;
        std::mem::take(&mut self.network).into_iter().try_for_each(|record| self.topic.append(record, now))
    }

    fn catch_up(&mut self, at: usize) -> Checked {
        loop {
            let instance = &self.instances[at];
            if instance.log.is_live() && instance.cursor == self.topic.end() {
                return Ok(());
            }
            self.read(at)?;
        }
    }
}
