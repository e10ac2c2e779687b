//! Seats on a real Kafka: openings, writes, the ends of the log, and what stays of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{collections::HashMap, sync::Arc, thread};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use watermaster_core::group::control::{ControlLog as _, Event, LogCall, OpeningNumber};
use watermaster_core::group::state::{BANK, Load, SeatLoads, SeatRecord, State, StateKind, Terms};
use watermaster_core::group::wire;
use watermaster_core::policy::Mode;
use watermaster_kafka::control::{SeatLog, SeatLogError, ensure_topic};

use crate::control::kafka;
use crate::control_topic::empty;
use crate::preflight::WITH_ACLS;
use crate::support::broker::{Broker, Topic, unique};
use crate::support::own_broker::OwnBroker;
use crate::support::wait::{wait_for, wait_until};

const TIMEOUT: Duration = Duration::from_secs(30);
/// The time between two looks at the log. It is short, since some tests measure.
const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// A control log.
struct Log {
    broker: Broker,
    topic: String,
}

impl Log {
    fn new(broker: &Broker) -> Log {
        let topic = unique("seats");
        ensure_topic(&kafka(broker, 0), &topic, "", None, TIMEOUT).expect("the topic is made");
        Log { broker: broker.clone(), topic }
    }

    fn prefix(&self) -> String {
        format!("{}.seat.", self.topic)
    }

    fn member(&self) -> Member {
        // A busy broker knows a topic a moment after it has made it.
        let log = wait_for("the log to open", TIMEOUT, || {
            SeatLog::open(&kafka(&self.broker, 0), &self.topic, &self.topic, &self.prefix(), TIMEOUT).ok()
        });
        let (states, read, ends, news) = (HashMap::new(), Vec::new(), Vec::new(), Vec::new());
        Member { log, attempts: 0, states, read, ends, position: 0, news }
    }

    /// Returns a plain producer with the transactional id of a seat, in a transaction.
    fn producer(&self, seat: &str) -> BaseProducer {
        let mut config = self.broker.client();
        config.set("transactional.id", format!("{}{seat}", self.prefix()));
        let producer: BaseProducer = config.create().expect("a producer");
        producer.init_transactions(TIMEOUT).expect("an epoch");
        producer.begin_transaction().expect("a transaction");
        producer
    }

    /// Produces a state and waits until it is stored. Its transaction stays open.
    fn produce(&self, producer: &BaseProducer, state: State) {
        let (key, value) = wire::encode(&SeatRecord::State(state));
        let value = value.expect("a state has a value");
        let sent = producer.send(BaseRecord::to(&self.topic).partition(0).key(&key).payload(&value));
        sent.map_err(|(error, _)| error).expect("the producer takes a record");
        producer.flush(TIMEOUT).expect("the record is stored");
    }

    /// Returns the end of the log for readers with an isolation level.
    fn end(&self, isolation: &str) -> u64 {
        let mut config = self.broker.client();
        let consumer: BaseConsumer = config.set("isolation.level", isolation).create().expect("a consumer");
        consumer.fetch_watermarks(&self.topic, 0, TIMEOUT).expect("the ends of the log").1 as u64
    }

    /// Waits until no transaction is open. (A commit is answered before its marker is stored.) Returns the end of the
    /// log.
    fn settled(&self) -> u64 {
        wait_for("the last marker", TIMEOUT, || {
            let end = self.end("read_uncommitted");
            (self.end("read_committed") == end).then_some(end)
        })
    }
}

/// A reader of the log, and all that it has read.
struct Member {
    log: SeatLog,
    attempts: OpeningNumber,
    /// The last state of each seat.
    states: HashMap<Arc<str>, State>,
    read: Vec<(u64, SeatRecord)>,
    /// The ends that were told, and the last of them.
    ends: Vec<u64>,
    position: u64,
    /// Events that are about openings.
    news: Vec<Event>,
}

impl Member {
    /// Takes what is there.
    fn look(&mut self) {
        while let Some(event) = self.log.poll().expect("the log is read") {
            match event {
                Event::Record { offset, record } => {
                    if let SeatRecord::State(state) = &record {
                        self.states.insert(Arc::clone(&state.seat), state.clone());
                    }
                    self.read.push((offset, record));
                }
                Event::End(position) => {
                    let records = self.read.last().map_or(0, |(offset, _)| offset + 1);
                    assert!(position >= records, "an end before a record that was read: {position}, {records}");
                    self.position = position;
                    self.ends.push(position);
                }
                news => self.news.push(news),
            }
        }
    }

    /// Looks until there is an answer.
    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Member) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.look();
            if let Some(answer) = probe(self) {
                return answer;
            }
            assert!(began.elapsed() < TIMEOUT, "waited for {what}: {:?}", self.news);
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Waits for an event of an opening. Events of former openings are left out.
    fn news(&mut self, what: &str, attempt: OpeningNumber) -> Event {
        let is_of = |event: &Event| match event {
            Event::Opened { attempt: of, .. } | Event::Failed { attempt: of } => *of == attempt,
            Event::Written { attempt: of, .. } => *of == attempt,
            Event::Record { .. } | Event::End(_) => false,
        };
        self.wait(what, |member| member.news.iter().position(is_of).map(|at| member.news.remove(at)))
    }

    /// Looks until the log can't be used any more.
    fn error(&mut self) -> SeatLogError {
        wait_for("an error of the log", 2 * TIMEOUT, || {
            loop {
                match self.log.poll() {
                    Err(error) => return Some(error),
                    Ok(None) => return None,
                    Ok(Some(_)) => {}
                }
            }
        })
    }

    fn begin_to_open(&mut self, seat: &str) -> OpeningNumber {
        self.attempts += 1;
        self.log.call(LogCall::Open { seat: seat.into(), attempt: self.attempts });
        self.attempts
    }

    /// Waits until the transactional id is initialised. Returns the end of the log after that.
    fn opened(&mut self, attempt: OpeningNumber) -> u64 {
        match self.news("an opening", attempt) {
            Event::Opened { end, .. } => end,
            other => panic!("the opening came to {other:?}"),
        }
    }

    /// Opens a seat and reads until it is open. The first opening on a new cluster may take longer than one attempt:
    /// the log of transactions is made then.
    fn open(&mut self, seat: &str) -> OpeningNumber {
        let began = Instant::now();
        loop {
            let attempt = self.begin_to_open(seat);
            match self.news("an opening", attempt) {
                Event::Opened { end, .. } => {
                    self.read_to(end);
                    return attempt;
                }
                other => assert!(began.elapsed() < TIMEOUT, "the opening came to {other:?}"),
            }
        }
    }

    fn read_to(&mut self, end: u64) {
        self.wait(&format!("position {end}"), |member| (member.position >= end).then_some(()));
    }

    /// Writes a state. Returns whether it is committed.
    fn write(&mut self, attempt: OpeningNumber, state: &State) -> bool {
        self.begin_to_write(attempt, state, None);
        self.written(attempt)
    }

    fn begin_to_write(&mut self, attempt: OpeningNumber, state: &State, loads: Option<&SeatLoads>) {
        let loads = loads.cloned().map(SeatRecord::Loads);
        let records = [SeatRecord::State(state.clone())].into_iter().chain(loads).collect();
        self.log.call(LogCall::Write { attempt, records });
    }

    fn written(&mut self, attempt: OpeningNumber) -> bool {
        match self.news("a write", attempt) {
            Event::Written { committed, .. } => committed,
            other => panic!("the write came to {other:?}"),
        }
    }

    /// The number of the last state of a seat.
    fn last(&self, seat: &str) -> Option<u64> {
        self.states.get(seat).map(|state| state.seq)
    }

    /// The numbers of all states of a seat.
    fn numbers(&self, seat: &str) -> Vec<u64> {
        let number = |(_, record): &(u64, SeatRecord)| match record {
            SeatRecord::State(state) if &*state.seat == seat => Some(state.seq),
            _ => None,
        };
        self.read.iter().filter_map(number).collect()
    }
}

fn state(seat: &str, seq: u64) -> State {
    State {
        seat: seat.into(),
        issue: 1,
        author: 1,
        kind: if seat == BANK { StateKind::Bank } else { StateKind::Own },
        seq,
        hold: 100,
        slices: Vec::new(),
        ahead: 10,
        ahead_time_ms: 30_000,
        out: Vec::new(),
        next: 1,
        seen: [].into(),
        terms: Terms { capacity: 100, cycle_ms: 1_000, mode: Mode::Shape, digest: 0 },
    }
}

/// Returns loads of about this number of bytes, which no compression makes much smaller.
fn large_loads(bytes: u64) -> SeatLoads {
    let letter = |n: u64| char::from(b'a' + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % 26) as u8);
    let client: String = (0..bytes).map(|n| letter(n * n + n.rotate_left(17))).collect();
    SeatLoads { seat: "a".into(), loads: vec![(client.into(), Load { demand: 1, wants: 1 })], progress: None, rules: 0 }
}

/// The first chapter of any seat: opened, written, read back.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn states_are_read_back_as_they_were_written() {
    let log = Log::new(&Broker::of_this_run());
    let mut member = log.member();
    let own = member.open("a");
    let bank = member.open(BANK);
    let loads = [("one".into(), Load { demand: 3, wants: 2 })].into();
    let loads = SeatLoads { seat: "a".into(), loads, progress: None, rules: 0 };
    member.begin_to_write(own, &state("a", 1), Some(&loads));
    assert!(member.written(own));
    assert!(member.write(bank, &state(BANK, 1)), "two seats are open at the same time");
    assert!(member.write(own, &state("a", 2)), "a producer writes more than once");
    let end = log.settled();
    member.read_to(end);
    let expected = [
        SeatRecord::State(state("a", 1)),
        SeatRecord::Loads(loads),
        SeatRecord::State(state(BANK, 1)),
        SeatRecord::State(state("a", 2)),
    ];
    assert!(member.read.iter().map(|(_, record)| record).eq(&expected), "{:?}", member.read);

    member.log.call(LogCall::Close { attempt: own });
    assert!(!member.write(own, &state("a", 3)), "nothing is written under an opening that was closed");
    assert_eq!(member.news, [], "an opening that was closed says nothing more");
}

/// A member falls silent, another one opens its seat, and the silent one awakes: it must not write over what the other
/// one wrote.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn to_open_a_seat_fences_its_owner() {
    let log = Log::new(&Broker::of_this_run());
    let (mut owner, mut other) = (log.member(), log.member());
    let owned = owner.open("a");
    assert!(owner.write(owned, &state("a", 1)) && owner.write(owned, &state("a", 2)));

    let claim = other.open("a");
    assert_eq!(other.last("a"), Some(2), "the last state was read before the seat is open");
    assert!(!owner.write(owned, &state("a", 3)), "the owner has lost its seat");
    assert!(other.write(claim, &state("a", 4)));

    let owned = owner.open("a");
    assert_eq!(owner.last("a"), Some(4));
    assert!(owner.write(owned, &state("a", 5)));
    assert!(!other.write(claim, &state("a", 6)), "the owner has its seat again");
    let end = log.settled();
    owner.read_to(end);
    assert_eq!(owner.numbers("a"), [1, 2, 4, 5]);
}

/// A seat is opened while its owner writes one state after the other. The opener must have read the owner's last state
/// before it goes on, and no other state of the owner may appear after that.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn an_opening_in_the_middle_of_writes_misses_no_state() {
    const ROUNDS: u64 = 40;
    let log = Log::new(&Broker::of_this_run());
    let (mut owner, mut other) = (log.member(), log.member());
    let (mut seq, mut kept, mut in_doubt) = (0, Vec::new(), 0);
    for round in 0..ROUNDS {
        let owned = owner.open("a");
        let claim = other.begin_to_open("a");
        let mut write = |owner: &mut Member| {
            seq += 1;
            owner.write(owned, &state("a", seq)).then(|| kept.push(seq))
        };
        while write(&mut owner).is_some() {}
        let end = other.opened(claim);
        other.read_to(end);
        let last = other.last("a");
        if last == Some(seq) {
            in_doubt += 1;
            kept.push(seq);
        }
        assert_eq!(last, kept.last().copied(), "round {round}: the opener misses a state");
        seq += 1;
        assert!(other.write(claim, &state("a", seq)));
        kept.push(seq);
    }
    println!("{} states, {in_doubt} of {ROUNDS} that were in doubt are committed", kept.len());
    let end = log.settled();
    other.read_to(end);
    assert_eq!(other.numbers("a"), kept, "a state appears that the opener had not read");
}

/// A member is killed between the produce request and the commit. Its record stays in the log, and counts as none.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn to_open_a_seat_ends_a_transaction_that_was_left_open() {
    let log = Log::new(&Broker::of_this_run());
    let owner = log.producer("a");
    log.produce(&owner, state("a", 1));
    let (left, stable) = (log.end("read_uncommitted"), log.end("read_committed"));
    assert!(stable < left, "the transaction is open: {stable}, {left}");

    let mut member = log.member();
    let began = Instant::now();
    let claim = member.begin_to_open("a");
    let end = member.opened(claim);
    println!("the seat was opened in {:?}", began.elapsed());
    assert!(end > left, "the marker is stored before the seat is open: {left}, {end}");
    member.read_to(end);
    assert_eq!(member.read, [], "a record that was not committed");
    assert!(member.write(claim, &state("a", 2)));
    let end = log.settled();
    member.read_to(end);
    assert_eq!(member.numbers("a"), [2]);
    assert!(owner.commit_transaction(TIMEOUT).is_err(), "the killed member's commit comes too late");
}

/// Another seat's transaction is open, and hides from all readers what was committed behind it. The seat must not count
/// as open until its own last state is visible.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_end_of_an_opening_lies_behind_open_transactions_of_other_seats() {
    let log = Log::new(&Broker::of_this_run());
    let mut owner = log.member();
    let owned = owner.open("a");
    assert!(owner.write(owned, &state("a", 1)));
    log.settled();
    let other = log.producer("b");
    log.produce(&other, state("b", 1));
    let stable = log.end("read_committed");
    assert!(owner.write(owned, &state("a", 2)), "an open transaction stops reading, and not writing");

    let mut member = log.member();
    let claim = member.begin_to_open("a");
    let end = member.opened(claim);
    assert_eq!(end, log.end("read_uncommitted"));
    assert!(end > stable, "the end is behind the open transaction: {stable}, {end}");
    member.read_to(stable);
    assert_eq!(member.last("a"), Some(1), "the last state is hidden by now");
    assert!(member.position < end, "the seat is not open: {}, {end}", member.position);
    other.commit_transaction(TIMEOUT).expect("the other seat's transaction ends");
    member.read_to(end);
    assert_eq!((member.last("a"), member.last("b")), (Some(2), Some(1)));
}

/// A seat is open once the position has reached the end of the log: behind markers, aborted and deleted records, too.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_position_passes_markers_and_aborted_records_and_deleted_ones() {
    let broker = Broker::of_this_run();
    let mut topic = Topic::new(unique("seats"), 1);
    topic.set("cleanup.policy", "compact");
    let _topics = broker.create(std::slice::from_ref(&topic));
    let log = Log { broker: broker.clone(), topic: topic.name.clone() };
    let mut member = log.member();
    member.read_to(0);
    assert_eq!(member.position, 0, "an empty log");

    let own = member.open("a");
    assert!(member.write(own, &state("a", 1)));
    let read_all = |member: &mut Member, what: &str| {
        let end = log.settled();
        member.read_to(end);
        assert_eq!(member.position, end, "{what}");
    };
    read_all(&mut member, "behind a marker");
    for aborted in 1..=3 {
        let other = log.producer("b");
        (1..=aborted).for_each(|seq| log.produce(&other, state("b", seq)));
        other.abort_transaction(TIMEOUT).expect("the transaction ends");
        read_all(&mut member, "behind aborted records and their marker");
        read_all(&mut log.member(), "the same for a newcomer");
    }
    assert!(member.numbers("b").is_empty(), "aborted records are never read");

    empty(&broker, &topic);
    let mut newcomer = log.member();
    read_all(&mut newcomer, "on an emptied log");
    assert!(newcomer.position > 0 && newcomer.read.is_empty());
    let claim = newcomer.open("a");
    assert!(newcomer.write(claim, &state("a", 2)));
    read_all(&mut newcomer, "behind the first record of an emptied log");
    read_all(&mut member, "for a reader that was at the end when the log was emptied");
    assert_eq!((newcomer.numbers("a"), member.numbers("a")), (vec![2], vec![1, 2]));
}

/// The control topic was made by hand, and takes smaller records only. The state is in doubt, and the remedy is named.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_that_is_too_large_names_the_setting() {
    let broker = Broker::of_this_run();
    let mut topic = Topic::new(unique("seats"), 1);
    topic.set("cleanup.policy", "compact");
    topic.set("max.message.bytes", "20000");
    let _topics = broker.create(std::slice::from_ref(&topic));
    let log = Log { broker, topic: topic.name.clone() };
    let mut member = log.member();
    let own = member.open("a");
    member.begin_to_write(own, &state("a", 1), Some(&large_loads(30_000)));
    let error = member.error();
    let said = error.to_string();
    assert!(matches!(error, SeatLogError::Refused { .. }) && said.contains("max.message.bytes"), "{said}");
    let own = member.open("a");
    assert!(member.write(own, &state("a", 1)), "the same without its loads");
}

/// The records of a compacted log fit together at its ends only. A newcomer that gets the log in several answers must
/// not be told of an end after the first of them.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_newcomer_is_told_of_no_end_before_the_end() {
    let log = Log::new(&Broker::of_this_run());
    let mut member = log.member();
    let own = member.open("a");
    for seq in 1..=10 {
        member.begin_to_write(own, &state("a", seq), Some(&large_loads(800_000)));
        assert!(member.written(own));
    }
    let end = log.settled();
    let mut newcomer = log.member();
    newcomer.read_to(end);
    assert_eq!((newcomer.ends, newcomer.read.len()), (vec![end], 20));
}

/// Members write so often that there is an open transaction at any time. Readers must not wait for a quiet moment.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn ends_are_told_on_a_log_that_is_never_quiet() {
    const ENDS: u32 = 20;
    let log = Log::new(&Broker::of_this_run());
    let mut member = log.member();
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let took = thread::scope(|scope| {
        scope.spawn(|| {
            let producers = ["b", "c"].map(|seat| (seat, log.producer(seat)));
            for seq in 1.. {
                let [(seat, next), (_, last)] = [&producers[seq % 2], &producers[(seq + 1) % 2]];
                log.produce(next, state(seat, seq as u64));
                if seq > 1 {
                    last.commit_transaction(TIMEOUT).expect("a commit");
                    last.begin_transaction().expect("a transaction");
                }
                if stop.load(Ordering::Relaxed) || began.elapsed() > 2 * TIMEOUT {
                    break;
                }
            }
        });
        member.read_to(1);
        let began = Instant::now();
        for _ in 0..ENDS {
            let end = log.end("read_uncommitted");
            assert!(member.position < end);
            member.read_to(end);
        }
        stop.store(true, Ordering::Relaxed);
        began.elapsed()
    });
    println!("an end is reached in {:?}, {} records were read", took / ENDS, member.read.len());
}

/// Prints the times of openings and exchanges on an idle broker, and what a log costs.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn an_opening_and_an_exchange_take_little_time() {
    const EXCHANGES: u64 = 200;
    let log = Log::new(&Broker::of_this_run());
    let before = threads();
    let mut member = log.member();
    let reading = threads();
    let openings = (0..20).map(|_| {
        let began = Instant::now();
        member.open("a");
        began.elapsed()
    });
    print_times("opening", openings.collect());
    let own = member.open("a");
    wait_until("the threads of former openings to end", TIMEOUT, || threads() <= reading + 7);
    let owning = threads();
    let (mut committed, mut read) = (Vec::new(), Vec::new());
    for seq in 1..=EXCHANGES {
        let began = Instant::now();
        member.begin_to_write(own, &state("a", seq), None);
        let (mut is_committed, mut is_read) = (false, false);
        member.wait("an exchange", |member| {
            if !is_committed && member.news.pop().is_some() {
                is_committed = true;
                committed.push(began.elapsed());
            }
            if !is_read && member.last("a") == Some(seq) {
                is_read = true;
                read.push(began.elapsed());
            }
            (is_committed && is_read).then_some(())
        });
    }
    let slowest = read.iter().max().copied();
    print_times("write until committed", committed);
    print_times("write until read back", read);
    member.open(BANK);
    let banking = threads();
    println!("threads: {} read, {} own a seat, {} keep the bank", reading - before, owning - reading, banking - owning);
    let began = Instant::now();
    drop(member);
    let dropped = began.elapsed();
    println!("the log is dropped in {dropped:?}");
    wait_until("all threads to end", TIMEOUT, || threads() <= before);
    assert!(dropped < Duration::from_secs(2), "{dropped:?}");
    assert!(slowest < Some(Duration::from_secs(5)), "{slowest:?}");
}

fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what}: p50 {:?}, p90 {:?}, p99 {:?}, {} times", at(50), at(90), at(99), times.len());
}

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    /// Compaction keeps the last committed record of a key. An aborted one of the same key that lies behind it must not
    /// take its place: the seat would be forgotten.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn compaction_keeps_a_committed_state_beside_aborted_ones() {
        let broker = OwnBroker::with(&["log.cleaner.backoff.ms=200"]);
        let mut topic = Topic::new(unique("seats"), 1);
        topic.set("cleanup.policy", "compact");
        topic.set("segment.ms", "1000");
        topic.set("min.cleanable.dirty.ratio", "0.01");
        topic.set("delete.retention.ms", "0");
        let _topics = broker.create(std::slice::from_ref(&topic));
        let log = Log { broker: broker.clone(), topic: topic.name.clone() };
        let mut member = log.member();
        let mut own = member.open("a");
        (1..=5).for_each(|seq| assert!(member.write(own, &state("a", seq))));
        member.log.call(LogCall::Close { attempt: own });
        let other = log.producer("a");
        (6..=8).for_each(|seq| log.produce(&other, state("a", seq)));
        other.abort_transaction(TIMEOUT).expect("the transaction ends");
        // Each state of another seat may begin a new segment, and only older segments are compacted. Once the first of
        // them is gone, the aborted records before it are, too.
        own = member.open("b");
        let mut seq = 0;
        wait_until("the first states to be compacted away", Duration::from_secs(120), || {
            seq += 1;
            assert!(member.write(own, &state("b", seq)));
            let mut newcomer = log.member();
            newcomer.read_to(log.settled());
            let (of_a, of_b) = (newcomer.numbers("a"), newcomer.numbers("b"));
            assert_eq!(of_a.last(), Some(&5), "the last committed state is kept: {of_a:?}");
            assert_eq!(of_b.last(), Some(&seq));
            println!("states of a: {of_a:?}, of b: {of_b:?}");
            of_a == [5] && of_b.first() != Some(&1)
        });
    }

    /// The brokers stand still. Each call ends after some seconds, and a member that stops does not wait for them.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_call_without_an_answer_ends_the_opening() {
        let mut broker = OwnBroker::start();
        let log = Log::new(&broker);
        let mut member = log.member();
        let own = member.open("a");
        assert!(member.write(own, &state("a", 1)));
        broker.freeze();
        let other = member.begin_to_open("b");
        assert!(!member.write(own, &state("a", 2)), "a write without an answer is in doubt");
        assert_eq!(member.news("the opening", other), Event::Failed { attempt: other });
        let again = member.begin_to_open("a");
        broker.thaw();
        let end = member.opened(again);
        member.read_to(end);
        assert!(member.write(again, &state("a", 3)));

        broker.freeze();
        member.begin_to_open("a");
        let began = Instant::now();
        drop(member);
        let dropped = began.elapsed();
        println!("the log is dropped in {dropped:?} without brokers");
        assert!(dropped < Duration::from_secs(2), "{dropped:?}");
        broker.thaw();
    }

    /// Seats of members that stopped have to be opened, too: a grant for the own id only would do until then.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_refused_transactional_id_names_the_grant() {
        let broker = OwnBroker::with(&WITH_ACLS);
        let log = Log::new(&broker);
        let mut member = log.member();
        member.open("a");
        // A grant of an id to another user takes it away from all others.
        let id = format!("{}b", log.prefix());
        let acl = ["--add", "--allow-principal", "User:other", "--operation", "Write", "--transactional-id", &id];
        broker.tool("org.apache.kafka.tools.AclCommand", &acl);
        member.begin_to_open("b");
        let error = member.error();
        let said = error.to_string();
        println!("{said}");
        assert!(
            said.contains(&format!("WRITE and DESCRIBE on the transactional ids with the prefix {}", log.prefix()))
        );
        assert!(said.contains(&id) && !error.passes_by(), "{said}");
    }

    /// A broken connection may have carried a second copy of a commit, which would end the next transaction. So the
    /// seat is to be opened again. The reader goes on.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_broken_connection_ends_the_opening() {
        let mut broker = OwnBroker::start();
        let log = Log::new(&broker);
        let mut member = log.member();
        let own = member.open("a");
        assert!(member.write(own, &state("a", 1)));
        broker.kill();
        assert_eq!(member.news("the opening's end", own), Event::Failed { attempt: own });
        assert!(!member.write(own, &state("a", 2)), "nothing is written under an opening that is over");
        broker.start_again();
        let own = member.open("a");
        assert!(member.write(own, &state("a", 2)));
        member.read_to(log.settled());
        assert_eq!(member.numbers("a"), [1, 2]);
    }

    /// An operator deletes the control topic, or makes it anew. Readers must notice: what they hold counts no more.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_log_that_is_deleted_or_made_anew_is_lost_history() {
        let broker = OwnBroker::start();
        for is_made_anew in [false, true] {
            let log = Log::new(&broker);
            let mut member = log.member();
            let own = member.open("a");
            assert!((1..=5).all(|seq| member.write(own, &state("a", seq))));
            member.read_to(log.settled());
            broker.delete(std::slice::from_ref(&log.topic));
            if is_made_anew {
                wait_until("the topic to be gone", TIMEOUT, || {
                    ensure_topic(&kafka(&broker, 0), &log.topic, "", None, TIMEOUT).is_ok_and(|topic| topic.created)
                });
            }
            let began = Instant::now();
            let error = member.error();
            println!("made anew: {is_made_anew}: after {:?}: {error}", began.elapsed());
            assert!(matches!(error, SeatLogError::Read { .. }), "{error}");
        }
    }

    /// The fault: after its leader had changed, a topic was made anew. librdkafka takes the first leader epoch of the new
    /// topic for one that is out of date, and goes on to ask for the old one: no error came, and no record. The members
    /// wrote states into the new log, and did not read that others had made the capacity a second time.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_log_that_is_made_anew_after_its_leader_changed_is_lost_history() {
        let mut broker = OwnBroker::start();
        let log = Log::new(&broker);
        let mut member = log.member();
        for seq in 1..=3 {
            let own = member.open("a");
            assert!(member.write(own, &state("a", seq)));
            member.read_to(log.settled());
            broker.kill();
            broker.start_again();
        }
        broker.delete(std::slice::from_ref(&log.topic));
        wait_until("the topic to be gone", TIMEOUT, || {
            ensure_topic(&kafka(&broker, 0), &log.topic, "", None, TIMEOUT).is_ok_and(|topic| topic.created)
        });
        let mut other = log.member();
        let own = other.open("b");
        assert!((1..=20).all(|seq| other.write(own, &state("b", seq))));
        let began = Instant::now();
        let error = member.error();
        println!("after {:?}: {error}", began.elapsed());
        assert!(matches!(error, SeatLogError::Replaced { .. }) && error.passes_by(), "{error}");
    }
}
