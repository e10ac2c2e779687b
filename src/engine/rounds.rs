//! Rounds: what was decided is delivered by the core's [`Machine`], in steps between which the heart beats, the group
//! is served and a shutdown is seen.
//!
//! Payloads are released, and counts shown, only when the commit was acknowledged. A round that can't finish is late,
//! not lost: it goes on trying, and nothing is decided meanwhile. Records that come are deferred, and reading pauses
//! from the first one on.

use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::delivery::{ErrorClass, FatalError, Foreign, Kafka as _, Machine, Phase, Round, Step};
use watermaster_core::{throttle::Throttle, units::Time};

use super::{Engine, StopCause, link::STEP_TIMEOUT};
use crate::{clock, snapshot::RoundOutcome};
use watermaster_kafka::consumer::{Event, ForeignOffset, Offsets, SourcePartition};
use watermaster_kafka::producer;
use watermaster_kafka::record::{NO_TIMESTAMP, Record};
use watermaster_settings::{Delivery, Kafka};

/// A round is full at this many records …
const MAX_RECORDS: usize = 10_000;
/// … or bytes.
const MAX_BYTES: usize = 16 << 20;
/// A round that takes longer is late, and shown to be.
const LATE_AFTER: Duration = Duration::from_secs(2);
/// A round that takes longer polls the group, which would expel the consumer otherwise: far below
/// `max.poll.interval.ms`.
const POLL_AFTER: Duration = Duration::from_secs(20);
/// The transaction of a round begins this long before the round is due. Measured: 5 ms gain no more.
const LEAD: Duration = Duration::from_millis(3);
/// The longest time that a drain takes; the next owner reads again what was not committed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);
/// The longest wait for the end of a transaction that is given up. The next producer of this id, or the coordinator,
/// aborts it too.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(2);
/// The most events served in one go.
const MAX_EVENTS: usize = 100;

/// The running round and its schedule.
pub(super) struct Rounds<'c> {
    pub(super) round: Round<Record<'c>>,
    machine: &'c mut Machine<Offsets>,
    schedule: RoundSchedule,
    /// All records that the brokers have sent are read.
    pub(super) caught_up: bool,
    /// The next round is due at once: an offset must be committed before the first record.
    pub(super) commit_now: bool,
    /// The round has an admitted record whose delay so far is shorter than the commit interval.
    pub(super) fresh: bool,
    /// The start of the running round, or of the preparation.
    began: Instant,
    /// The time at which a round noticed the shutdown.
    draining_since: Option<Instant>,
}

impl<'c> Rounds<'c> {
    pub(super) fn new(machine: &'c mut Machine<Offsets>, schedule: RoundSchedule) -> Rounds<'c> {
        Rounds {
            round: Round::default(),
            machine,
            schedule,
            caught_up: false,
            commit_now: false,
            fresh: false,
            began: Instant::now(),
            draining_since: None,
        }
    }

    pub(super) fn has_work(&self, throttle: &Throttle) -> bool {
        !self.round.is_empty() || throttle.touched().next().is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.round.len() >= MAX_RECORDS || self.round.bytes() >= MAX_BYTES
    }

    /// The next round is due early once all records are read, if none is delayed that could be added to it. A fresh
    /// record waits for no delayed ones: the rest of the interval would be the larger part of its delay, so that all
    /// clients would feel a flood of one.
    pub(super) fn due_at(&self, throttle: &Throttle) -> Time {
        match self.schedule {
            _ if self.commit_now => Time::ZERO,
            RoundSchedule { early, .. } if self.caught_up && (self.fresh || throttle.backlog().0 == 0) => early,
            RoundSchedule { latest, .. } => latest,
        }
    }

    /// Returns the time at which the engine has the next work for the round: its transaction begins, or it is due.
    pub(super) fn next_work(&self, now: Time, throttle: &Throttle) -> Time {
        let due = self.due_at(throttle);
        let opens = due - self.schedule.lead;
        if self.round.is_empty() || opens <= now { due } else { opens }
    }

    pub(super) fn is_due(&self, now: Time, throttle: &Throttle) -> bool {
        self.is_full() || (self.due_at(throttle) <= now && self.has_work(throttle))
    }

    /// Counts from the first call that sees the shutdown, over all rounds.
    fn drain_is_over(&mut self) -> bool {
        self.draining_since.get_or_insert_with(Instant::now).elapsed() > DRAIN_TIMEOUT
    }
}

#[derive(Clone, Copy)]
enum Task {
    Prepare,
    Deliver,
}

impl Engine<'_> {
    /// Before the first record, under `exactly_once`: aborts the transaction that a dead predecessor left open. Returns
    /// false if a drain took too long.
    pub(super) fn prepare(&mut self) -> Result<bool, StopCause> {
        let ready = self.carry_out(Task::Prepare)?;
        self.end_delay("the producer is ready");
        Ok(ready)
    }

    /// Begins the transaction of the next round if that is due soon, and sends the outputs that are decided so far.
    /// Records that come meanwhile join the round.
    pub(super) fn open_transaction(&mut self, now: Time) {
        let rounds = &mut self.rounds;
        let due = rounds.due_at(self.throttle);
        if !rounds.round.is_empty() && due - rounds.schedule.lead <= now {
            // The transaction does not grow old, also if records come without a pause from now on.
            rounds.schedule.latest = due;
            let link = &mut self.link;
            #[cfg(feature = "failpoints")]
            let link = &mut super::faulty_link::FaultyLink(link);
            rounds.machine.open(&mut rounds.round, link, now);
        }
    }

    /// Gives up the transaction of a round that has not begun.
    pub(super) fn give_up_transaction(&mut self) {
        if self.rounds.machine.is_open() {
            self.abandon_round();
            self.rounds.machine.forget_open();
        }
    }

    /// Delivers what was decided. Returns false if a drain took too long.
    pub(super) fn run_round(&mut self) -> Result<bool, StopCause> {
        let began = self.clock.now();
        // A partition that comes while the round is under way may ask for the next one.
        self.rounds.commit_now = false;
        let ended = self.carry_out(Task::Deliver);
        if !matches!(ended, Ok(true)) {
            self.abandon_round();
            self.reporter.count_round(RoundOutcome::Failed);
            self.reporter.publish_flags(self.job);
            if ended.is_ok() {
                warn!(
                    service = self.job.service.name,
                    "gave up an unfinished round: records that are not committed will be read again"
                );
            }
            return ended;
        }
        let now = self.clock.now();
        self.reporter.count_round(RoundOutcome::Committed);
        let counts = &mut self.reporter.counts.delivery;
        counts.round.record(now.since(began));
        let wall_ms = clock::wall_ms();
        let rounds = &mut self.rounds;
        for output in rounds.round.outputs() {
            let timestamp = output.payload.origin.timestamp_ms;
            if timestamp != NO_TIMESTAMP {
                counts.end_to_end.record(age(wall_ms, timestamp));
            }
        }
        rounds.round.clear();
        counts.stubs += rounds.round.take_stubs();
        self.delayed.detach();
        (rounds.schedule, rounds.fresh) = (RoundSchedule::after(began, now, &self.job.kafka), false);
        self.end_delay("a late round was committed");
        // Each admission joins the running round at once, so that all of them have arrived.
        self.job.handle.open.lock().delivered = self.throttle.admitted();
        self.publish(now);
        Ok(true)
    }

    /// Makes steps until the task is done. Returns false if a drain took too long.
    fn carry_out(&mut self, task: Task) -> Result<bool, StopCause> {
        self.rounds.began = Instant::now();
        let ended = loop {
            let now = self.read_clocks();
            let rounds = &mut self.rounds;
            let phase = if self.link.is_initialised() { rounds.machine.phase() } else { Phase::Prepare };
            let link = &mut self.link;
            #[cfg(feature = "failpoints")]
            let link = &mut super::faulty_link::FaultyLink(link);
            let step = match task {
                Task::Prepare => rounds.machine.prepare(link, now),
                Task::Deliver => rounds.machine.step(&mut rounds.round, self.throttle, link, now),
            };
            if self.job.kafka.delivery == Delivery::ExactlyOnce {
                self.reporter.spent[phase as usize] += self.clock.now().since(now);
            }
            self.report_events();
            match step.map_err(|error| self.stop_cause(error)) {
                Ok(Step::Done) => break Ok(true),
                Ok(Step::Again) => {}
                Ok(Step::Backoff) => thread::sleep(STEP_TIMEOUT),
                Ok(Step::PollGroup) => self.serve_group(STEP_TIMEOUT)?,
                Err(cause) => break Err(cause),
            }
            if !self.keep_going()? {
                break Ok(false);
            }
        };
        self.reporter.end_phases();
        ended
    }

    fn report_events(&mut self) {
        let events = self.rounds.machine.take_events();
        if events.is_empty() {
            return;
        }
        for event in &events {
            self.reporter.report(event, &self.link);
        }
        self.reporter.publish_flags(self.job);
    }

    /// Ends what an unfinished round left in flight: its transaction, or its outputs.
    fn abandon_round(&mut self) {
        if self.job.kafka.delivery == Delivery::AtLeastOnce {
            self.link.purge();
        }
        let until = Instant::now() + ABANDON_TIMEOUT;
        while self.link.in_transaction() && Instant::now() < until {
            // A commit that has begun can only be repeated.
            let committing = self.rounds.machine.phase() == Phase::Commit;
            match if committing { self.link.commit() } else { self.link.abort() } {
                Err(error) if error.class != ErrorClass::Retriable => break,
                Err(_) => thread::sleep(STEP_TIMEOUT),
                Ok(()) => {}
            }
        }
    }

    /// Does what is due between two steps. Returns false if a drain took too long.
    fn keep_going(&mut self) -> Result<bool, StopCause> {
        self.job.handle.heartbeat.beat(Instant::now());
        self.renew_logins();
        self.serve_group_member()?;
        if self.job.handle.is_stopped() && self.rounds.drain_is_over() {
            return Ok(false);
        }
        let waited = self.rounds.began.elapsed();
        if waited > LATE_AFTER && !self.reporter.status.late {
            warn!(service = self.job.service.name, "waiting for the brokers");
            self.reporter.status.late = true;
            self.reporter.publish_flags(self.job);
        }
        // A rebalance must not meet an open transaction, which is ended long before the group would expel the consumer.
        if waited > POLL_AFTER && !self.link.in_transaction() {
            self.serve_group(Duration::ZERO)?;
            // Brokers may refuse the old secrets. Then outputs in flight never arrive, and the consumer hears no more
            // of its group: the round would never end. Nor would it with records of a partition that a topic lacks
            // since it was made anew. Another consumer follows in any case.
            if self.link.consumer.has_old_secrets() || self.job.handle.inbox.reads_anew() {
                self.lose_partitions();
                self.link.purge();
            }
            self.lose_former_sources();
        }
        Ok(true)
    }

    /// Forgets the partitions of topics that are no sources in the change that waits for the end of this round. The
    /// brokers take no offsets of a topic that was deleted: with records of it, the round would not end before
    /// librdkafka renews what it knows of the topics and the group takes the partitions away, after minutes.
    fn lose_former_sources(&mut self) {
        let Some(topics) = self.job.handle.inbox.waiting_topics() else { return };
        let assigned = self.link.partitions.assigned().map(|(_, address)| address);
        let is_former = |at: &SourcePartition| !topics.contains(&self.link.partitions.sources.get(at.0).topic);
        let former: Vec<_> = assigned.filter(is_former).collect();
        if !former.is_empty() {
            warn!(service = self.job.service.name, "a round waits for topics that are no sources any more: going on");
            self.revoked(&former, false);
            // The consumer still has these partitions. Only another one reads them if their topics come back.
            self.contact.reads_anew = true;
        }
    }

    /// Resumes what a late round had stopped.
    fn end_delay(&mut self, ended: &str) {
        if std::mem::take(&mut self.reporter.status.late) {
            let seconds = self.rounds.began.elapsed().as_secs_f64();
            info!(service = self.job.service.name, seconds, "{ended} at last");
        }
        if std::mem::take(&mut self.intake.reading_paused) {
            let open =
                self.link.partitions.assigned().filter(|(number, _)| self.throttle.ledger().paused(*number).is_none());
            let open: Vec<_> = open.map(|(_, address)| address).collect();
            self.intake.resume(&open, self.job, self.reporter);
        }
    }

    /// Lets the consumer serve its group, for `time` or until nothing is waiting; records that come are deferred.
    fn serve_group(&mut self, time: Duration) -> Result<(), StopCause> {
        let until = Instant::now() + time;
        for _ in 0..MAX_EVENTS {
            match self.link.consumer.poll(until.saturating_duration_since(Instant::now())) {
                Event::Idle if Instant::now() >= until => break,
                event => self.handle(event)?,
            }
        }
        Ok(())
    }

    /// Turns an error of the machine into one for people.
    fn stop_cause(&mut self, error: FatalError) -> StopCause {
        let status = &mut self.reporter.status;
        status.target_refusing |= matches!(error, FatalError::Denied(_) | FatalError::Undeliverable { .. });
        let name = |number| {
            let (topic, partition) = self.link.name(number);
            (topic.to_owned(), partition)
        };
        match error {
            FatalError::Undeliverable { partition, offset, source } => {
                let (topic, partition) = name(partition);
                StopCause::Undeliverable { topic, partition, offset, source }
            }
            FatalError::Foreign(Foreign { partition, offset, source }) => {
                let (topic, partition) = name(partition);
                ForeignOffset { topic, partition, offset, source }.into()
            }
            FatalError::FencedTwice(source) => StopCause::FencedTwice {
                transactional_id: producer::transactional_id(&self.job.kafka, &self.job.service),
                instance_id: self.job.kafka.instance_id.clone(),
                source,
            },
            error => StopCause::Delivery(error),
        }
    }
}

/// The times of the next round.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundSchedule {
    /// The round is due from then on if all records are read, and it has a fresh one or none is delayed.
    early: Time,
    /// The round is due in any case.
    latest: Time,
    /// The time between the begin of the transaction and that of the round.
    lead: Duration,
}

impl RoundSchedule {
    /// Schedules the round that follows one from `began` until `now`.
    pub(super) fn after(began: Time, now: Time, kafka: &Kafka) -> RoundSchedule {
        let next = |interval| due_after(began, now, interval);
        let lead = match kafka.delivery {
            Delivery::ExactlyOnce => LEAD.min(kafka.min_commit_interval / 4),
            Delivery::AtLeastOnce => Duration::ZERO,
        };
        RoundSchedule { early: next(kafka.min_commit_interval), latest: next(kafka.commit_interval), lead }
    }
}

/// Returns the time one interval after `began`, but leaves half an interval after a slow round, to read. Otherwise slow
/// brokers lead to ever smaller rounds.
fn due_after(began: Time, now: Time, interval: Duration) -> Time {
    began.max(now - interval / 2) + interval
}

/// Returns how long ago `timestamp` was at `wall_ms`, both in milliseconds since the Unix epoch; zero for a timestamp
/// in the future. Producers choose timestamps freely: one near `i64::MIN` gives the longest time that can be shown, not
/// an overflow.
fn age(wall_ms: i64, timestamp: i64) -> Duration {
    Duration::from_millis(u64::try_from(wall_ms.saturating_sub(timestamp)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_any_timestamp_is_defined() {
        let now = 1_700_000_000_000;
        for (timestamp, millis) in [(now - 5, 5), (now, 0), (now + 5, 0), (i64::MAX, 0), (i64::MIN, i64::MAX as u64)] {
            assert_eq!(age(now, timestamp), Duration::from_millis(millis), "{timestamp}");
        }
    }

    /// The bug: with brokers that took 780 ms for a round, three instances got 64 records into each, 220 a second,
    /// while 1200 a second arrived.
    #[test]
    fn a_slow_round_leaves_half_an_interval_to_read() {
        let (began, interval) = (Time::from_nanos(1_000_000_000_000), Duration::from_millis(100));
        for (took, left) in [(0, 100), (20, 80), (50, 50), (90, 50), (780, 50)] {
            let now = began + Duration::from_millis(took);
            let due = due_after(began, now, interval);
            assert_eq!(due.since(now), Duration::from_millis(left), "after {took} ms");
        }
    }
}
