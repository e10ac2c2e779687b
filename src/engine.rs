//! One service at work: one thread, one consumer, one producer, one core.
//!
//! The loop alternates: it polls and decides until a round is due, then delivers what was decided (`engine/rounds.rs`).
//! While a round is under way nothing is decided. No other thread touches the core; the reporter publishes snapshots of
//! it.

mod changes;
mod contact;
mod decisions;
mod delayed;
mod error;
mod events;
/// Stands beside the only test that compiles it.
#[cfg(feature = "failpoints")]
#[path = "../tests/chaos/faulty_link.rs"]
mod faulty_link;
mod group;
mod intake;
mod link;
mod partitions;
mod report;
mod rounds;
mod rules;
mod suspended;

use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::delivery::{DeliveryRules, Machine, Strategy};
use watermaster_core::throttle::{OpenRoom, Throttle};
use watermaster_core::units::Time;

use crate::clock::{self, Clock};
use crate::services::ServiceHandle;
use watermaster_kafka::consumer::{Consumer, Event, Offsets};
use watermaster_kafka::{preflight, producer, producer::Producer};
use watermaster_schemas::cache::SchemaCache;
use watermaster_settings::{Delivery, Kafka, OnForeignOffset, OnUndeliverable, Service};

use contact::Contact;
use delayed::DelayedRecords;
pub use error::{EngineError, StopCause};
use group::GroupMember;
use intake::Intake;
use link::Link;
use partitions::{Partitions, Sources};
use report::Reporter;
use rounds::{RoundSchedule, Rounds};
use rules::PolicyInForce;

/// The most decisions between two readings of the clock.
const MAX_UNTIMED_RECORDS: usize = 64;
/// The most bytes between two readings: backlogs exceed their bound by no more.
const MAX_UNTIMED_BYTES: usize = 1 << 20;
/// The longest time that records are read without a heartbeat, a new policy and a new snapshot.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// The longest sleep: the snapshot is renewed at least this often.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// The interval between two looks for the rules of run time, at the start.
const RULES_INTERVAL: Duration = Duration::from_millis(50);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The parameters of an engine.
pub struct Job {
    pub kafka: Kafka,
    pub service: Service,
    /// Take foreign committed offsets as they are, once.
    pub accept_foreign_offsets: bool,
    /// The brokers' answers about the topics.
    pub facts: preflight::Report,
    pub handle: ServiceHandle,
}

/// Runs a service until its handle stops it or it can't go on. Its last snapshot shows how it ended.
pub fn run(job: Job) -> Result<(), EngineError> {
    let ended = operate(&job);
    job.handle.heartbeat.stop();
    ended
}

fn operate(job: &Job) -> Result<(), EngineError> {
    wait_for_rules(job);
    let mut state = EngineState::new(job).map_err(|cause| error::stop(job, cause))?;
    if job.handle.is_stopped() {
        return Ok(());
    }
    loop {
        let consumer = state.partitions.sources.consumer(job).map_err(|error| error::stop(job, error.into()))?;
        let work = || Engine::new(job, &consumer, &mut state).run();
        let exit = panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(StopCause::Panicked));
        if matches!(exit, Err(StopCause::Panicked)) {
            // Outputs in flight must not land once another instance has the partitions.
            state.producer.transactions().purge();
        }
        let exit = exit.map_err(|cause| error::stop(job, cause));
        // Leaving the group lets another instance take over at once.
        if !consumer.close(LEAVE_TIMEOUT) {
            warn!(service = job.service.name, "leaving the group takes long; going anyway");
        }
        match exit? {
            LoopEnd::Drained => return Ok(()),
            LoopEnd::RecreateConsumer => {}
        }
    }
}

/// Waits until the rules of run time are known: without them, an instance that starts would admit what they forbid.
fn wait_for_rules(job: &Job) {
    let Some(topic) = &job.service.rules_topic else { return };
    while job.handle.rules.are_awaited() && !job.handle.is_stopped() {
        job.handle.cell.show_trouble(format!("waiting for the rules in {topic}"));
        job.handle.heartbeat.beat(Instant::now());
        thread::sleep(RULES_INTERVAL);
    }
}

/// The end of an engine without an error.
enum LoopEnd {
    Drained,
    /// The consumer does not find back into its group; a new one may.
    RecreateConsumer,
}

/// The state that outlives a consumer. Nothing of it was read from that consumer.
struct EngineState {
    clock: Clock,
    policy: PolicyInForce,
    throttle: Throttle,
    group: Option<GroupMember>,
    machine: Machine<Offsets>,
    producer: Producer,
    partitions: Partitions,
    last_contact: Time,
    reporter: Reporter,
    schemas: SchemaCache,
}

impl EngineState {
    fn new(job: &Job) -> Result<EngineState, StopCause> {
        let sources = Sources::new(job);
        let clock = Clock::start();
        let now = clock.now();
        let rules = DeliveryRules {
            strategy: match job.kafka.delivery {
                Delivery::AtLeastOnce => Strategy::AtLeastOnce,
                Delivery::ExactlyOnce => Strategy::ExactlyOnce { timeout: producer::transaction_timeout(&job.kafka) },
            },
            replay_foreign: job.accept_foreign_offsets || job.kafka.on_foreign_offset == OnForeignOffset::Replay,
            discard_undeliverable: job.service.on_undeliverable == OnUndeliverable::Discard,
        };
        let mut policy = PolicyInForce::new(job.service.policy.clone());
        policy.take_run_time(job.handle.rules.to_take());
        let mut throttle = Throttle::new(policy.look(clock::wall_ms()), now);
        // Nothing is admitted before the open records were counted.
        throttle.handle_open_room(job.handle.open.get().max.map(|_| OpenRoom { admitted: 0, records: 0 }));
        Ok(EngineState {
            group: GroupMember::join(job, &policy, throttle.policy(), &clock)?,
            policy,
            throttle,
            machine: Machine::new(rules),
            clock,
            producer: sources.producer(job)?,
            partitions: Partitions::new(sources),
            last_contact: now,
            reporter: Reporter::default(),
            schemas: SchemaCache::new(job.kafka.schema_registry.clone()),
        })
    }
}

struct Engine<'c> {
    job: &'c Job,
    clock: &'c Clock,
    policy: &'c mut PolicyInForce,
    throttle: &'c mut Throttle,
    group: &'c mut Option<GroupMember>,
    link: Link<'c>,
    intake: Intake<'c>,
    delayed: DelayedRecords<'c>,
    rounds: Rounds<'c>,
    contact: Contact<'c>,
    reporter: &'c mut Reporter,
}

/// Counts the records that were decided since the clock was read.
#[derive(Default)]
struct Untimed {
    records: usize,
    bytes: usize,
}

impl Untimed {
    fn count(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    fn is_full(&self) -> bool {
        self.records >= MAX_UNTIMED_RECORDS || self.bytes >= MAX_UNTIMED_BYTES
    }
}

impl<'c> Engine<'c> {
    fn new(job: &'c Job, consumer: &'c Consumer, state: &'c mut EngineState) -> Engine<'c> {
        let now = state.clock.now();
        Engine {
            job,
            clock: &state.clock,
            policy: &mut state.policy,
            throttle: &mut state.throttle,
            group: &mut state.group,
            link: Link::new(job, &state.clock, consumer, &mut state.producer, &mut state.partitions),
            intake: Intake::new(consumer, &mut state.schemas),
            delayed: DelayedRecords::default(),
            rounds: Rounds::new(&mut state.machine, RoundSchedule::after(now, now, &job.kafka)),
            contact: Contact::new(&mut state.last_contact, now),
            reporter: &mut state.reporter,
        }
    }

    // ## The loop

    fn run(mut self) -> Result<LoopEnd, StopCause> {
        let ended = self.work();
        self.give_up_transaction();
        ended
    }

    fn work(&mut self) -> Result<LoopEnd, StopCause> {
        self.publish(self.clock.now());
        if !self.prepare()? {
            self.leave_group();
            return Ok(LoopEnd::Drained);
        }
        while !self.job.handle.is_stopped() {
            let now = self.clock.now();
            self.job.handle.heartbeat.beat(Instant::now());
            if self.needs_consumer(now)? {
                self.forget_consumer();
                return Ok(LoopEnd::RecreateConsumer);
            }
            if !self.reporter.status.brokers_down {
                self.contact.end_gap(now, self.throttle, &mut self.link);
            }
            self.intake.probe_ends(now, self.throttle, &self.link);
            self.release_suspended(now);
            self.take_change(now)?;
            self.take_rules(now);
            self.serve_group_member()?;
            self.throttle.handle_timeout(now);
            self.reporter.log_allocations(&self.job.service.name, self.throttle);
            self.apply_actions(now);
            if self.rounds.is_due(now, self.throttle) {
                if !self.run_round()? {
                    self.leave_group();
                    return Ok(LoopEnd::Drained);
                }
                continue;
            }
            self.open_transaction(now);
            if self.reporter.is_stale(now) {
                self.meet_groups_of_others();
                self.publish(now);
            }
            let wait = self.idle_time(now);
            self.read(wait)?;
        }
        self.drain()?;
        Ok(LoopEnd::Drained)
    }

    /// Gives up everything that was read from this consumer.
    fn forget_consumer(&mut self) {
        self.lose_partitions();
        // The next consumer tells only of an outage that it has met itself, and of the end of that one.
        self.reporter.status.brokers_down = false;
        // Without partitions, no revocation has told that.
        self.reporter.status.joined = false;
        self.rounds.round.drop_orphans(self.throttle);
        // The admissions of the round that was given up never arrive, so no count has to wait for them.
        self.job.handle.open.lock().delivered = self.throttle.admitted();
    }

    /// Takes all partitions for lost to other members of the group.
    fn lose_partitions(&mut self) {
        let assigned: Vec<_> = self.link.partitions.assigned().map(|(_, address)| address).collect();
        if !assigned.is_empty() {
            self.revoked(&assigned, true);
        }
    }

    /// Finishes the round. Delayed records stay uncommitted: the next owner reads them again.
    fn drain(&mut self) -> Result<(), StopCause> {
        info!(service = self.job.service.name, "draining");
        self.reporter.status.draining = true;
        if !self.rounds.has_work(self.throttle) || self.run_round()? {
            self.publish(self.clock.now());
        }
        self.leave_group();
        Ok(())
    }

    /// Hands the part of the shared capacity over to the other instances, which would notice the silence only later.
    fn leave_group(&mut self) {
        if let Some(group) = self.group {
            group.leave(self.job, self.clock, self.throttle, &self.link);
        }
    }

    /// Lets the instance take part in its group, if the capacity is shared.
    fn serve_group_member(&mut self) -> Result<(), StopCause> {
        let Some(group) = self.group else { return Ok(()) };
        group.serve(self.job, self.clock, self.throttle, &self.link)?;
        self.reporter.status.group_trouble = group.trouble(self.clock);
        Ok(())
    }

    /// Returns how long the engine has nothing to do unless an event comes.
    fn idle_time(&mut self, now: Time) -> Duration {
        let mut until = self.throttle.poll_timeout(now).min(now + self.intake.idle_interval());
        if self.rounds.has_work(self.throttle) {
            until = until.min(self.rounds.next_work(now, self.throttle));
        }
        if let Some(group) = self.group {
            until = until.min(group.next_look());
        }
        // librdkafka takes a wait below a millisecond for none, and the loop would spin.
        Duration::from_millis(until.since(now).as_nanos().div_ceil(1_000_000) as u64)
    }

    /// Reads the clock, and tells the core the wall clock's time.
    fn read_clocks(&mut self) -> Time {
        let now = self.clock.now();
        self.throttle.handle_wall_clock(now, clock::wall_ms());
        now
    }

    // ## Reading

    /// Waits for the next event, then takes the events that are there, until a round is due or the loop has other work.
    fn read(&mut self, wait: Duration) -> Result<(), StopCause> {
        let mut timeout = wait;
        let mut now = self.clock.now();
        let until = now + wait + BUSY_INTERVAL;
        let mut untimed = Untimed::default();
        loop {
            let event = self.intake.next(timeout);
            if untimed.records == 0 {
                now = self.clock.now();
            }
            match event {
                Event::Idle => {
                    self.intake.end_probe.caught_up = true;
                    self.rounds.caught_up = true;
                    if !self.rounds.has_work(self.throttle) {
                        self.delayed.detach();
                    }
                    return Ok(());
                }
                Event::Record(record) => {
                    self.rounds.caught_up = false;
                    untimed.count(self.decide(now, record));
                }
                other => {
                    self.handle(other)?;
                    // The event may have read the clock: the next records must not be decided before that time.
                    untimed = Untimed::default();
                    if self.rounds.commit_now {
                        return Ok(());
                    }
                }
            }
            if self.rounds.is_full() {
                return Ok(());
            }
            if untimed.is_full() {
                untimed = Untimed::default();
                if now >= until || self.has_other_work(now) {
                    return Ok(());
                }
            }
            timeout = Duration::ZERO;
        }
    }

    fn has_other_work(&mut self, now: Time) -> bool {
        self.rounds.is_due(now, self.throttle)
            || self.throttle.poll_timeout(now) <= now
            || self.group.as_ref().is_some_and(|group| group.next_look() <= now)
            || self.job.handle.is_stopped()
    }

    fn publish(&mut self, now: Time) {
        let whole = self.rounds.round.is_empty();
        if whole && let Some(group) = self.group {
            self.reporter.group = group.snapshot(self.clock);
        }
        self.reporter.publish(now, self.job, self.throttle, &self.link, whole);
    }
}
