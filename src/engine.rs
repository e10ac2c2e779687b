//! One service at work: one thread, one consumer, one producer, one core.
//!
//! The loop alternates. It polls and decides until a round is due, then sends what was decided, waits until all of it
//! arrived and commits (`engine/round.rs`, `engine/transaction.rs`). No decision is taken while a round is late (`engine/late.rs`). What it shows
//! of itself is made in `engine/report.rs`; nobody else ever touches the core.

mod gap;
mod group;
mod late;
mod link;
mod places;
mod report;
mod round;
mod tail;
mod transaction;

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tracing::{debug, error, info, warn};
use watermaster_core::chunks::Chunks;
use watermaster_core::offset_map::DecodeError;
use watermaster_core::round::{Form, Round, Rules, Transactions};
use watermaster_core::slot::Slot;
use watermaster_core::throttle::{Action, Arrival, PauseReason, Rejection, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::heartbeat::Heartbeat;
use crate::reload::Inbox;
use crate::snapshot::SnapshotCell;
use watermaster_kafka::consumer::{Assignment, Consumer, Event, Offsets, SourcePartition};
use watermaster_kafka::failpoint;
use watermaster_kafka::preflight;
use watermaster_kafka::producer::Producer;
use watermaster_kafka::record::{MAX_HEADERS, Output, Record, SourceIndex};
use watermaster_settings::client_id::{self, Identity};
use watermaster_settings::{Delivery, Kafka, OnForeignOffset, OnUndeliverable, Service};

use group::Belonging;
use link::Link;
use places::Places;
use report::Report;
use tail::Tail;

/// Decisions between two looks at the clock, and at other work.
const RECORDS_PER_LOOK: usize = 64;
/// Bytes of records between two looks: backlogs exceed their bound by no more before records are evicted.
const BYTES_PER_LOOK: usize = 1 << 20;
/// The longest time that records are read without a heartbeat, a look for another policy, and a new snapshot.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// So many delayed records may pin the fetches that they came with.
const MAX_PINNING: usize = 1024;
/// The longest sleep: the snapshot is renewed at least this often.
const IDLE: Duration = Duration::from_millis(500);

/// The longest wait for the group to be left.
const LEAVE: Duration = Duration::from_secs(2);

/// What an engine is given.
pub struct Job {
    pub kafka: Kafka,
    pub service: Service,
    /// Take committed offsets of others for ours, once.
    pub accept_foreign_offsets: bool,
    /// What the brokers said of the topics.
    pub facts: preflight::Report,
    pub cell: SnapshotCell,
    pub heartbeat: Arc<Heartbeat>,
    /// Where its next policy comes from.
    pub policies: Arc<Inbox>,
    /// Set from outside: finish the round and leave.
    pub shutdown: Arc<AtomicBool>,
}

/// Why a service can't go on; for people.
#[derive(Debug, Clone)]
pub struct Stopped(pub String);

/// Runs a service until `shutdown` is set or it can't go on. However it ends, its snapshot says so.
pub fn run(job: Job) -> Result<(), Stopped> {
    let ended = operate(&job);
    job.heartbeat.stop();
    ended
}

fn operate(job: &Job) -> Result<(), Stopped> {
    let mut kept = Kept::new(job).map_err(|stopped| tell_end(job, stopped))?;
    loop {
        let consumer = Consumer::new(&job.kafka, &job.service, job.accept_foreign_offsets)
            .map_err(|error| tell_end(job, stopped(job, &error)))?;
        let work = || Engine::new(job, &consumer, kept).run();
        let ended = panic::catch_unwind(AssertUnwindSafe(work));
        let ended = ended.unwrap_or_else(|_| Err(stopped(job, &"panicked: this is a bug")));
        let ended = ended.map_err(|stopped| tell_end(job, stopped));
        // Leaves the group, so that another instance takes over at once.
        if !consumer.close(LEAVE) {
            warn!(service = job.service.name, "leaving the group takes long; going anyway");
        }
        match ended? {
            Ended::Drained => return Ok(()),
            Ended::LeftOut(left) => kept = *left,
        }
    }
}

/// How an engine ended that could have gone on.
enum Ended {
    Drained,
    /// Its consumer does not find back into the group: another one may.
    LeftOut(Box<Kept>),
}

fn stopped(job: &Job, why: &dyn std::fmt::Display) -> Stopped {
    Stopped(format!("service {}: {why}", job.service.name))
}

/// Says that and why a service stopped.
fn tell_end(job: &Job, stopped: Stopped) -> Stopped {
    let Stopped(why) = &stopped;
    error!(service = job.service.name, "{why}; this service stops");
    let mut last = (*job.cell.get()).clone();
    last.name.clone_from(&job.service.name);
    (last.up, last.ready, last.trouble) = (false, false, Some(why.clone()));
    job.cell.set(last);
    stopped
}

/// A monotonic clock that starts at the wall clock's time, which may be wrong by then.
struct Clock {
    start: Instant,
    anchor: Time,
}

impl Clock {
    fn new() -> Clock {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), anchor: Time::ZERO + wall }
    }

    fn now(&self) -> Time {
        self.anchor + self.start.elapsed()
    }
}

/// The wall clock, in milliseconds since the Unix epoch.
fn wall_ms() -> i64 {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_millis()).unwrap_or(i64::MAX)
}

struct Engine<'c> {
    job: &'c Job,
    link: Link<'c>,
    clock: Clock,
    throttle: Throttle,
    /// Payloads of delayed records, by slot.
    held: Chunks<Option<Output<'c>>>,
    /// How many of them there are.
    holding: usize,
    /// Slots of what was delayed lately: it still pins the fetch that it came with, for many a record waits only for a moment.
    pinning: Vec<u32>,
    /// What was decided since the last commit.
    round: Round<Output<'c>>,
    transactions: Transactions<Offsets>,
    /// When the last round began.
    last_round: Time,
    /// The next round is due at once: something must be committed before the first record.
    hurry: bool,
    /// Records that were polled while a round was late.
    stash: VecDeque<Record<'c>>,
    /// Reading is held back because records had to be put aside.
    held_back: bool,
    /// When the shutdown was seen in a round.
    stopping: Option<Instant>,
    /// When the loop last went round with brokers in reach.
    last_contact: Time,
    brokers_down: bool,
    /// When a connection to a broker broke last.
    broker_lost: Option<Time>,
    tail: Tail,
    belonging: Belonging,
    report: Report,
}

/// What an engine hands on to the next one, which has another consumer: nothing of it was read from that one.
struct Kept {
    clock: Clock,
    throttle: Throttle,
    transactions: Transactions<Offsets>,
    producer: Producer,
    places: Places,
    last_contact: Time,
    report: Report,
}

impl Kept {
    /// Of an engine that never ran.
    fn new(job: &Job) -> Result<Kept, Stopped> {
        let limits = job.facts.limits(&job.service);
        let producer = Producer::new(&job.kafka, &job.service, limits).map_err(|error| stopped(job, &error))?;
        let clock = Clock::new();
        let now = clock.now();
        let replay = job.accept_foreign_offsets || job.kafka.on_foreign_offset == OnForeignOffset::Replay;
        let rules = Rules {
            timeout: producer.transaction_timeout(),
            replay_foreign: replay,
            discard_undeliverable: job.service.on_undeliverable == OnUndeliverable::Discard,
        };
        Ok(Kept {
            throttle: Throttle::new(job.service.policy.clone(), now),
            transactions: Transactions::new(rules),
            clock,
            producer,
            places: Places::default(),
            last_contact: now,
            report: Report::default(),
        })
    }
}

/// Records that were decided since the last look at the clock.
#[derive(Default)]
struct Unchecked {
    records: usize,
    bytes: usize,
}

impl Unchecked {
    fn count(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn is_enough(&self) -> bool {
        self.records >= RECORDS_PER_LOOK || self.bytes >= BYTES_PER_LOOK
    }
}

impl<'c> Engine<'c> {
    fn new(job: &'c Job, consumer: &'c Consumer, kept: Kept) -> Engine<'c> {
        let now = kept.clock.now();
        Engine {
            job,
            link: Link::new(job, consumer, kept.producer, kept.places),
            clock: kept.clock,
            throttle: kept.throttle,
            held: Chunks::default(),
            holding: 0,
            pinning: Vec::new(),
            round: Round::default(),
            transactions: kept.transactions,
            last_round: now,
            hurry: false,
            stash: VecDeque::new(),
            held_back: false,
            stopping: None,
            last_contact: kept.last_contact,
            brokers_down: false,
            broker_lost: None,
            tail: Tail::default(),
            belonging: Belonging::new(now),
            report: kept.report,
        }
    }

    fn run(mut self) -> Result<Ended, Stopped> {
        self.publish(self.clock.now());
        if self.job.kafka.delivery == Delivery::ExactlyOnce && !self.prepare_transactions()? {
            return Ok(Ended::Drained);
        }
        while !self.job.shutdown.load(Ordering::Relaxed) {
            let now = self.clock.now();
            self.job.heartbeat.beat(Instant::now());
            if self.is_left_out(now) {
                return Ok(Ended::LeftOut(Box::new(self.keep())));
            }
            self.notice_gap(now);
            self.notice_tails(now);
            self.notice_policy(now);
            self.throttle.handle_timeout(now);
            self.tell_allocations();
            self.act(now);
            if self.round_due(now) {
                if !self.run_round()? {
                    return Ok(Ended::Drained);
                }
                continue;
            }
            self.publish_if_old(now);
            let wait = self.wait(now);
            self.read(wait)?;
        }
        self.drain()?;
        Ok(Ended::Drained)
    }

    /// Gives up everything that came from this consumer, keeps the rest.
    fn keep(mut self) -> Kept {
        let assigned: Vec<_> = self.link.places.assigned().map(|(_, address)| address).collect();
        if !assigned.is_empty() {
            self.revoked(&assigned, true);
        }
        self.round.drop_orphans(&mut self.throttle);
        Kept {
            clock: self.clock,
            throttle: self.throttle,
            transactions: self.transactions,
            producer: self.link.producer,
            places: self.link.places,
            last_contact: self.last_contact,
            report: self.report,
        }
    }

    /// Stops reading, finishes the round. What is delayed stays uncommitted: the next owner reads it again.
    fn drain(&mut self) -> Result<(), Stopped> {
        info!(service = self.job.service.name, "draining");
        self.report.draining = true;
        if !self.round_has_work() || self.run_round()? {
            self.publish(self.clock.now());
        }
        Ok(())
    }

    /// Takes over another policy, if one was left.
    fn notice_policy(&mut self, now: Time) {
        let Some(policy) = self.job.policies.take() else { return };
        let service = &self.job.service.name;
        let (capacity, cycle, mode) = (policy.capacity, policy.cycle, policy.mode.as_str());
        let (cycle_seconds, enforce) = (cycle.as_secs_f64(), policy.enforce);
        info!(service, capacity, cycle_seconds, mode, enforce, "another policy");
        self.throttle.handle_policy(now, policy);
        self.publish(now);
    }

    /// How long nothing will happen by itself.
    fn wait(&mut self, now: Time) -> Duration {
        let mut until = self.throttle.poll_timeout(now).min(now + IDLE);
        if self.round_has_work() {
            until = until.min(self.round_due_at());
        }
        // A shorter wait is none to librdkafka, and would be spun through. What may go meanwhile goes then.
        Duration::from_millis(until.since(now).as_nanos().div_ceil(1_000_000) as u64)
    }

    // ## Reading

    /// Waits for the next event, then takes the events that are there, until a round is due or the loop has other work.
    fn read(&mut self, wait: Duration) -> Result<(), Stopped> {
        let mut timeout = if self.stash.is_empty() { wait } else { Duration::ZERO };
        let mut now = self.clock.now();
        let until = now + wait + BUSY_INTERVAL;
        let mut unchecked = Unchecked::default();
        loop {
            let event = match self.stash.pop_front() {
                Some(record) => Event::Record(record),
                None => self.link.consumer.poll(timeout),
            };
            if unchecked.records == 0 {
                now = self.clock.now();
            }
            match event {
                Event::Idle => {
                    self.tail.emptied = true;
                    if !self.round_has_work() {
                        self.detach_held();
                    }
                    return Ok(());
                }
                Event::Record(record) => unchecked.count(self.decide(now, record)),
                other => {
                    self.handle(other)?;
                    // The event may have looked at the clock itself: records that come next are decided no earlier.
                    unchecked = Unchecked::default();
                    if self.hurry {
                        return Ok(());
                    }
                }
            }
            if self.round_is_full() {
                return Ok(());
            }
            if unchecked.is_enough() {
                unchecked = Unchecked::default();
                if now >= until || self.must_look_up(now) {
                    return Ok(());
                }
            }
            timeout = Duration::ZERO;
        }
    }

    /// Something is due that reading must not hold up.
    fn must_look_up(&mut self, now: Time) -> bool {
        self.round_due(now) || self.throttle.poll_timeout(now) <= now || self.job.shutdown.load(Ordering::Relaxed)
    }

    /// Decides on a record. Returns its cost in bytes.
    fn decide(&mut self, now: Time, record: Record<'c>) -> usize {
        let Some(number) = self.link.places.find((record.source(), record.partition())) else {
            return 0;
        };
        self.notice_silence(now, number);
        let source = &self.job.service.sources[record.source().index()];
        let (partition, offset) = (record.partition(), record.offset());
        let Some(contents) = record.contents() else {
            return self.decide_oversized(now, number, record);
        };
        let identity = client_id::identify(&self.job.service.client_from, &contents, source);
        let (sender, name) = match &identity {
            Identity::Client(name) => match &source.allowed_clients {
                Some(allowed) if !allowed.iter().any(|client| client == name) => (Sender::NotAllowed(name), &**name),
                _ => (Sender::Client(name), &**name),
            },
            Identity::Anonymous(why) => {
                let (service, topic) = (&self.job.service.name, &source.topic);
                self.report.seldom.warn("anonymous", Instant::now(), |left_out| {
                    warn!(service, topic, partition, offset, left_out, "a record names no client: {why}");
                });
                (Sender::Anonymous, "")
            }
        };
        let (place, cost) = ((number, offset), contents.cost());
        let bytes = u32::try_from(cost).unwrap_or(u32::MAX);
        let arrival = Arrival { partition: number, offset, bytes, sender };
        let verdict = self.throttle.handle_record(now, &arrival);
        match verdict {
            Verdict::Skip => {}
            Verdict::Admit(client) => {
                let client = client.and_then(|client| self.throttle.client_name(client));
                self.round.admit(place, Output::Fresh(record), cost, client);
            }
            Verdict::Delay(slot) => self.hold(slot, Output::Fresh(record)),
            Verdict::Reject(rejection) => {
                // Who is not known to the core is known by name only.
                let name = match rejection.client {
                    Some(_) => self.client_name(&rejection),
                    None => Arc::from(name),
                };
                self.round.reject(place, (Output::Fresh(record), Form::Whole), cost, rejection, name);
            }
        }
        cost
    }

    /// Has the core reject a record whose headers are too many to be read. Only its key is kept.
    #[cold]
    fn decide_oversized(&mut self, now: Time, number: u32, record: Record<'c>) -> usize {
        let (offset, stub) = (record.offset(), record.into_stub());
        let cost = stub.contents().cost();
        let bytes = u32::try_from(cost).unwrap_or(u32::MAX);
        let arrival = Arrival { partition: number, offset, bytes, sender: Sender::Oversized };
        match self.throttle.handle_record(now, &arrival) {
            Verdict::Skip => return cost,
            Verdict::Delay(slot) => self.hold(slot, Output::Held(stub)),
            Verdict::Reject(rejection) => {
                let name = self.client_name(&rejection);
                self.round.reject((number, offset), (Output::Held(stub), Form::Stub), cost, rejection, name);
            }
            Verdict::Admit(_) => unreachable!("the core never admits an oversized record"),
        }
        let (topic, partition) = self.place_name(number);
        let service = &self.job.service.name;
        self.report.seldom.warn("oversized", Instant::now(), |left_out| {
            warn!(
                service,
                topic,
                partition,
                offset,
                left_out,
                "a record has more than {MAX_HEADERS} headers: a stub goes to the dead-letter topic in its place"
            );
        });
        cost
    }

    /// Keeps what is delayed.
    fn hold(&mut self, slot: Slot, output: Output<'c>) {
        let index = slot.0 as usize;
        let vacant = self.held.get(index).is_none_or(Option::is_none);
        self.held.set(index, Some(output));
        self.holding += usize::from(vacant);
        self.pinning.push(slot.0);
        if self.pinning.len() >= MAX_PINNING {
            self.detach_held();
        }
    }

    /// Copies what is delayed and still pins a fetch. (A slot may have been let go, or given away again, meanwhile.)
    fn detach_held(&mut self) {
        for slot in self.pinning.drain(..) {
            let place = &mut self.held[slot as usize];
            if let Some(Output::Fresh(record)) = place {
                *place = Some(Output::Held(record.detach()));
            }
        }
    }

    /// Does what the core says about delayed records and partitions, until it has nothing to say or a round is full.
    fn act(&mut self, now: Time) {
        while !self.round_is_full()
            && let Some(action) = self.throttle.poll_action(now)
        {
            self.enact(action);
        }
    }

    fn enact(&mut self, action: Action) {
        match action {
            Action::Admit { slot, partition, offset, bytes, client, .. } => {
                let record = self.take_held(slot.0);
                let client = self.throttle.client_name(client);
                self.round.admit((partition, offset), record, bytes as usize, client);
            }
            Action::Reject { slot, partition, offset, bytes, rejection, name } => {
                let (record, name) = (self.take_held(slot.0), name.unwrap_or_else(|| Arc::from("")));
                let form = if record.is_stub() { Form::Stub } else { Form::Whole };
                self.round.reject((partition, offset), (record, form), bytes as usize, rejection, name);
            }
            Action::Pause { partition: number } => {
                let (topic, partition) = self.place_name(number);
                let reason = self.throttle.paused(number).map(PauseReason::as_str);
                debug!(service = self.job.service.name, topic, partition, reason, "paused");
                self.pause(&[self.link.places.address(number)]);
            }
            Action::Resume { partition: number } => {
                let (topic, partition) = self.place_name(number);
                debug!(service = self.job.service.name, topic, partition, "resumed");
                self.resume(&[self.link.places.address(number)]);
            }
        }
    }

    fn pause(&mut self, partitions: &[SourcePartition]) {
        if let Err(error) = self.link.consumer.pause(partitions) {
            // Reading on is harmless: what comes is kept within the same bounds.
            let service = &self.job.service.name;
            let tell = |left_out| warn!(service, left_out, "pausing failed: {error}");
            self.report.seldom.warn("pausing", Instant::now(), tell);
        }
    }

    fn resume(&mut self, partitions: &[SourcePartition]) {
        if let Err(error) = self.link.consumer.resume(partitions) {
            let service = &self.job.service.name;
            let tell = |left_out| error!(service, left_out, "resuming failed: {error}");
            self.report.seldom.warn("resuming", Instant::now(), tell);
        }
    }

    fn take_held(&mut self, slot: u32) -> Output<'c> {
        self.let_go(slot).expect("the core names slots that it was given")
    }

    /// Empties a slot. Once all are empty nothing pins a fetch: what waits only for a moment is never looked for to be copied.
    fn let_go(&mut self, slot: u32) -> Option<Output<'c>> {
        let output = self.held[slot as usize].take()?;
        self.holding -= 1;
        if self.holding == 0 {
            self.pinning.clear();
        }
        Some(output)
    }

    fn client_name(&self, rejection: &Rejection) -> Arc<str> {
        rejection.client.and_then(|client| self.throttle.client_name(client)).unwrap_or_else(|| Arc::from(""))
    }

    // ## Why it can't go on

    fn stopped(&self, why: &str) -> Stopped {
        stopped(self.job, &why)
    }

    fn foreign(&self, topic: &str, partition: i32, offset: i64, why: &DecodeError) -> Stopped {
        self.stopped(&format!(
            "somebody else committed offset {offset} of {topic}/{partition}: {why}. `watermaster run \
             --accept-foreign-offsets` takes the committed offsets as they are, once; on_foreign_offset = \"replay\" \
             always does"
        ))
    }

    fn target_refuses(&mut self, why: &str) -> Stopped {
        self.report.target_refusing = true;
        self.stopped(&format!("writing is refused: {why}"))
    }

    // ## Events

    fn handle(&mut self, event: Event<'c>) -> Result<(), Stopped> {
        match event {
            Event::Assigned(assignments) => self.assigned(assignments),
            Event::Revoked { partitions, lost } => self.revoked(&partitions, lost),
            Event::Record(record) => self.put_aside(record),
            Event::Refused(foreign) => {
                return Err(self.foreign(&foreign.topic, foreign.partition, foreign.offset, &foreign.why));
            }
            Event::Skipped { source, partition, from, to } => {
                let topic = &self.job.service.sources[source.index()].topic;
                let lost = u64::try_from(to - from).unwrap_or(0);
                error!(
                    service = self.job.service.name,
                    topic, partition, from, to, lost, "records were deleted before they were read"
                );
                self.report.lost_records += lost;
                // What was put aside of it is still to be decided on; the first record after the gap tells of it then.
                let aside =
                    self.stash.iter().any(|record| (record.source(), record.partition()) == (source, partition));
                if let Some(number) = self.link.places.find((source, partition))
                    && !aside
                {
                    self.throttle.handle_end(number, to);
                }
            }
            Event::BrokerLost(why) => {
                debug!(service = self.job.service.name, "a broker's connection broke: {why}");
                self.broker_lost = Some(self.clock.now());
            }
            Event::Down(why) => {
                if !std::mem::replace(&mut self.brokers_down, true) {
                    warn!(service = self.job.service.name, "no broker can be reached, waiting: {why}");
                    self.show();
                }
            }
            Event::Up => {
                if std::mem::replace(&mut self.brokers_down, false) {
                    info!(service = self.job.service.name, "the brokers are back");
                    self.gap_ends(self.clock.now());
                    self.show();
                }
            }
            Event::Fatal(error) => return Err(self.stopped(&error.to_string())),
            Event::Idle => {}
        }
        Ok(())
    }

    fn assigned(&mut self, assignments: Vec<Assignment>) {
        let now = self.clock.now();
        info!(service = self.job.service.name, partitions = assignments.len(), "partitions assigned");
        self.report.joined = true;
        self.report.rebalances += 1;
        if self.held_back {
            let addresses: Vec<_> = assignments.iter().map(|one| (one.source, one.partition)).collect();
            self.pause(&addresses);
        }
        self.throttle.handle_wall_clock(now, wall_ms());
        for assignment in assignments {
            let number = self.link.places.number((assignment.source, assignment.partition));
            let place = &mut self.link.places[number];
            (place.assigned, place.high, place.read_at) = (true, assignment.high, now);
            self.report.lost_records += assignment.lost;
            self.throttle.handle_assigned(now, number, assignment.base, &assignment.map, assignment.high);
            debug!(
                service = self.job.service.name,
                topic = self.job.service.sources[assignment.source.index()].topic,
                partition = assignment.partition,
                offset = assignment.base,
                "assigned"
            );
            if assignment.commit_first {
                self.throttle.touch(number);
                self.hurry = true;
            }
        }
        self.show();
    }

    /// Forgets everything about the partitions, at once: their next owner starts from what was committed.
    fn revoked(&mut self, partitions: &[(SourceIndex, i32)], lost: bool) {
        info!(service = self.job.service.name, partitions = partitions.len(), lost, "partitions revoked");
        self.report.rebalances += 1;
        // Expelled: not a member until the next assignment, be it of nothing.
        self.report.joined &= !lost;
        for &(source, partition) in partitions {
            if failpoint::planted(failpoint::Fault::NoPurgeOnRevoke) {
                break;
            }
            let Some(number) = self.link.places.find((source, partition)) else { continue };
            self.link.places[number].assigned = false;
            for slot in self.throttle.handle_revoked(number) {
                self.let_go(slot.0);
            }
            self.round.forget(number);
            self.stash.retain(|record| (record.source(), record.partition()) != (source, partition));
        }
        self.show();
    }
}
