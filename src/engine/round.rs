//! A round: send what was decided, wait until all of it arrived, commit.
//!
//! Payloads are let go, and counts shown, only when the commit was acknowledged. A round that can't finish is late,
//! not lost: it goes on trying while the group is kept alive, and nothing is decided meanwhile.
//!
//! `Deciding => Sending => Committing => Deciding`; from `Sending`, a refused record goes `=> Bisecting => Sending`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::Rejection;
use watermaster_core::units::Time;

use super::{Engine, Stopped};
use crate::kafka::consumer::{CommitError, Event, PartitionCommit};
use crate::kafka::producer::{DeadLetter, Destination, Failure, Producer, SendError};
use crate::kafka::record::{Output, SourceIndex};
use crate::settings::OnUndeliverable;

/// A round is full at this many records …
const MAX_RECORDS: usize = 10_000;
/// … or bytes.
const MAX_BYTES: usize = 16 << 20;
/// One step of waiting: between two steps the heartbeat beats and shutdown is seen.
const STEP: Duration = Duration::from_millis(100);
/// A round is late after this, and said to be.
const LATE: Duration = Duration::from_secs(2);
/// A late round polls the group from then on, so that it is not expelled: far below `max.poll.interval.ms`.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// After this, a drain gives up: what was not committed is read again by the next owner.
const DRAIN: Duration = Duration::from_secs(8);

/// What was decided since the last commit.
pub(super) struct Round<'c> {
    outputs: Vec<Pending<'c>>,
    bytes: usize,
    last: Time,
    hurry: bool,
}

struct Pending<'c> {
    output: Output<'c>,
    /// Whom it was admitted for.
    client: Option<u32>,
    /// It goes to the dead-letter topic.
    rejected: Option<Rejected>,
    /// Its partition was revoked: its next owner sends it again, and commits it.
    orphan: bool,
}

struct Rejected {
    reason: Reason,
    retry_after_ms: u64,
    client: Arc<str>,
}

impl<'c> Round<'c> {
    pub(super) fn new(now: Time) -> Round<'c> {
        Round { outputs: Vec::new(), bytes: 0, last: now, hurry: false }
    }

    pub(super) fn admit(&mut self, output: Output<'c>, client: Option<u32>) {
        self.push(Pending { output, client, rejected: None, orphan: false });
    }

    pub(super) fn reject(&mut self, output: Output<'c>, rejection: Rejection, client: Arc<str>) {
        let retry_after_ms = u64::try_from(rejection.retry_after.as_millis()).unwrap_or(u64::MAX);
        let rejected = Rejected { reason: rejection.reason, retry_after_ms, client };
        self.push(Pending { output, client: rejection.client, rejected: Some(rejected), orphan: false });
    }

    /// The next round is due at once: something must be committed before the first record.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// A partition went.
    pub(super) fn forget(&mut self, source: SourceIndex, partition: i32) {
        for pending in &mut self.outputs {
            pending.orphan |= (pending.output.source(), pending.output.partition()) == (source, partition);
        }
    }

    fn push(&mut self, pending: Pending<'c>) {
        self.bytes += pending.output.size();
        self.outputs.push(pending);
    }
}

impl Pending<'_> {
    fn send(&self, producer: &Producer, tag: usize) -> Result<(), SendError> {
        let to = match &self.rejected {
            None => Destination::Target,
            Some(rejected) => Destination::DeadLetter(DeadLetter {
                reason: rejected.reason,
                client: &rejected.client,
                retry_after_ms: rejected.retry_after_ms,
            }),
        };
        producer.send(to, &self.output, tag)
    }
}

impl Engine<'_> {
    pub(super) fn round_has_work(&self) -> bool {
        !self.round.outputs.is_empty() || self.throttle.touched().next().is_some()
    }

    pub(super) fn round_is_full(&self) -> bool {
        self.round.outputs.len() >= MAX_RECORDS || self.round.bytes >= MAX_BYTES
    }

    pub(super) fn round_due_at(&self) -> Time {
        if self.round.hurry { Time::ZERO } else { self.round.last + self.job.kafka.commit_interval }
    }

    pub(super) fn round_due(&self, now: Time) -> bool {
        self.round_is_full() || (self.round_due_at() <= now && self.round_has_work())
    }

    pub(super) fn run_round(&mut self) -> Result<(), Stopped> {
        let began = self.clock.now();
        let mut late = Lateness::new();
        self.act_on_decided();
        // Revoked before anything was sent: the next owner reads these again.
        self.round.outputs.retain(|pending| !pending.orphan);
        let all: Vec<usize> = (0..self.round.outputs.len()).collect();
        let finished = self.settle(all, &mut late)? && self.commit(&mut late)?;
        if !finished {
            warn!(service = self.job.service.name, "gave up an unfinished round: its records will be read again");
            self.report.round("failed", Duration::ZERO);
            return Ok(());
        }
        let now = self.clock.now();
        self.report.round("committed", now.since(began));
        let wall_ms = (now.as_nanos() / 1_000_000) as i64;
        for pending in &self.round.outputs {
            if let Some(timestamp) = pending.output.timestamp_ms() {
                self.report.end_to_end.record(Duration::from_millis((wall_ms - timestamp).max(0) as u64));
            }
        }
        self.round.outputs.clear();
        (self.round.bytes, self.round.last, self.round.hurry) = (0, began, false);
        if late.told {
            info!(
                service = self.job.service.name,
                seconds = now.since(began).as_secs_f64(),
                "a late round was committed"
            );
            self.end_lateness(&late);
        }
        self.publish(now);
        Ok(())
    }

    // ## Sending

    /// Sends these outputs until each has arrived, in the target or in the dead-letter topic. False: gave up.
    fn settle(&mut self, tags: Vec<usize>, late: &mut Lateness) -> Result<bool, Stopped> {
        let mut work = vec![tags];
        while let Some(tags) = work.pop() {
            let Some(outcome) = self.deliver(&tags, late)? else { return Ok(false) };
            if !outcome.again.is_empty() {
                work.push(outcome.again);
            }
            match outcome.refused.len() {
                0 => {}
                1 => {
                    let (tag, why) = &outcome.refused[0];
                    if self.undeliverable(*tag, why)? {
                        work.push(vec![*tag]);
                    }
                }
                // A broker refuses whole batches. Fewer than were sent: send those again by themselves; all of them:
                // halve, until the culprit stands alone. The first half goes first, to keep the order.
                n if n < tags.len() => work.push(outcome.refused.into_iter().map(|(tag, _)| tag).collect()),
                n => {
                    let mut first: Vec<usize> = outcome.refused.into_iter().map(|(tag, _)| tag).collect();
                    let second = first.split_off(n / 2);
                    work.push(second);
                    work.push(first);
                }
            }
        }
        Ok(true)
    }

    /// Sends and waits until nothing is in flight. `None`: gave up.
    fn deliver(&mut self, tags: &[usize], late: &mut Lateness) -> Result<Option<Outcome>, Stopped> {
        let mut outcome = Outcome::default();
        for &tag in tags {
            loop {
                match self.round.outputs[tag].send(&self.producer, tag) {
                    Ok(()) => break,
                    Err(SendError::QueueFull) => {
                        self.producer.flush(STEP);
                        if !self.keep_going(late)? {
                            return Ok(None);
                        }
                    }
                    Err(SendError::Refused(why)) => {
                        outcome.refused.push((tag, why));
                        break;
                    }
                    Err(SendError::Denied(why)) => return Err(self.target_refuses(&why)),
                    Err(SendError::Fatal(why)) => {
                        self.replace_producer(&why)?;
                        outcome.again.push(tag);
                        break;
                    }
                }
            }
        }
        while !self.producer.flush(STEP) {
            if !self.keep_going(late)? {
                self.producer.purge();
                return Ok(None);
            }
        }
        let mut broken = None;
        for (tag, failure) in self.producer.take_failures() {
            match failure {
                Failure::Refused(why) => outcome.refused.push((tag, why)),
                Failure::Denied(why) => return Err(self.target_refuses(&why)),
                Failure::Unknown(why) => {
                    warn!(service = self.job.service.name, "sending again what may have arrived: {why}");
                    outcome.again.push(tag);
                }
                Failure::Fatal(why) => {
                    broken = Some(why);
                    outcome.again.push(tag);
                }
            }
        }
        if let Some(why) = broken.or_else(|| self.producer.fatal()) {
            self.replace_producer(&why)?;
        }
        outcome.again.sort_unstable();
        outcome.refused.sort_unstable();
        Ok(Some(outcome))
    }

    /// One record that its topic refuses for good. True: send it to the dead-letter topic instead.
    fn undeliverable(&mut self, tag: usize, why: &str) -> Result<bool, Stopped> {
        let pending = &mut self.round.outputs[tag];
        let source = &self.job.service.sources[pending.output.source().index()].topic;
        let place = format!("{source}/{} offset {}", pending.output.partition(), pending.output.offset());
        let undeliverable = pending.rejected.as_ref().is_some_and(|rejected| rejected.reason == Reason::Undeliverable);
        if pending.rejected.is_none() {
            warn!(service = self.job.service.name, "undeliverable: {place}: {why}");
            let client =
                pending.client.and_then(|client| self.throttle.client_name(client)).unwrap_or_else(|| Arc::from(""));
            pending.rejected = Some(Rejected { reason: Reason::Undeliverable, retry_after_ms: 0, client });
            self.throttle.handle_undeliverable(pending.client);
            return Ok(true);
        }
        match self.job.service.on_undeliverable {
            OnUndeliverable::Discard => {
                error!(
                    service = self.job.service.name,
                    undeliverable, "discarded: the dead-letter topic refuses {place}: {why}"
                );
                Ok(false)
            }
            OnUndeliverable::Stop => {
                self.report.target_refusing = true;
                Err(Stopped(format!(
                    "service {}: the dead-letter topic refuses {place}: {why} (on_undeliverable = \"discard\" would drop it)",
                    self.job.service.name
                )))
            }
        }
    }

    fn target_refuses(&mut self, why: &str) -> Stopped {
        self.report.target_refusing = true;
        self.publish(self.clock.now());
        Stopped(format!("service {}: writing is refused: {why}", self.job.service.name))
    }

    fn replace_producer(&mut self, why: &str) -> Result<(), Stopped> {
        warn!(service = self.job.service.name, "replacing the producer: {why}");
        self.report.recreated("fatal");
        let limits = self.job.facts.limits(&self.job.service);
        self.producer = Producer::new(&self.job.kafka, &self.job.service, limits)
            .map_err(|error| Stopped(format!("service {}: {error}", self.job.service.name)))?;
        Ok(())
    }

    // ## Committing

    /// Commits offset and map of every partition that something completed in. False: gave up.
    fn commit(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            let now = self.clock.now();
            let touched: Vec<u32> = self.throttle.touched().collect();
            let mut commits = Vec::with_capacity(touched.len());
            for &number in &touched {
                let (offset, metadata) = self.throttle.commit_of(now, number).map_err(|error| {
                    Stopped(format!(
                        "service {}: the offset map of a partition outgrew its budget: {error}",
                        self.job.service.name
                    ))
                })?;
                let (source, partition) = self.address(number);
                commits.push(PartitionCommit { source, partition, offset, metadata });
            }
            if commits.is_empty() {
                return Ok(true);
            }
            match self.consumer.commit(&commits) {
                Ok(()) => {
                    touched.into_iter().for_each(|number| self.throttle.handle_committed(number));
                    return Ok(true);
                }
                Err(CommitError::Fatal(why)) => {
                    return Err(Stopped(format!("service {}: committing failed: {why}", self.job.service.name)));
                }
                Err(CommitError::Lost(why)) => {
                    // A rebalance is under way. What was sent stays sent; if the partitions stay here, the next
                    // commit covers it; if they go, their next owner repeats this round.
                    info!(service = self.job.service.name, "not committed, the group changes: {why}");
                    self.serve_group()?;
                    if !self.keep_going(late)? {
                        return Ok(false);
                    }
                }
                Err(CommitError::Retriable(why)) => {
                    warn!(service = self.job.service.name, "committing again: {why}");
                    self.serve_group()?;
                    if !self.keep_going(late)? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    // ## Late

    /// Between two steps of waiting. False: a drain took too long.
    fn keep_going(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        self.job.heartbeat.beat(Instant::now());
        let waited = late.began.elapsed();
        if self.job.shutdown.load(Ordering::Relaxed) && late.since_shutdown() > DRAIN {
            return Ok(false);
        }
        if waited > LATE && !late.told {
            late.told = true;
            warn!(service = self.job.service.name, "a round is late, waiting for the brokers");
            self.report.late = true;
            self.publish_flags();
        }
        if waited > KEEP_ALIVE {
            if !late.paused {
                late.paused = true;
                self.pause(&self.assigned_addresses());
            }
            self.serve_group()?;
        }
        Ok(true)
    }

    /// Lets the consumer serve a rebalance; records that come are put aside.
    fn serve_group(&mut self) -> Result<(), Stopped> {
        for _ in 0..100 {
            match self.consumer.poll(Duration::from_millis(1)) {
                Event::Idle => break,
                event => self.handle(event)?,
            }
        }
        Ok(())
    }

    fn end_lateness(&mut self, late: &Lateness) {
        self.report.late = false;
        if late.paused {
            let open = (0u32..)
                .zip(&self.places)
                .filter(|(number, place)| place.assigned && self.throttle.paused(*number).is_none());
            let open: Vec<_> = open.map(|(_, place)| (place.source, place.partition)).collect();
            self.resume(&open);
        }
    }

    fn assigned_addresses(&self) -> Vec<(SourceIndex, i32)> {
        self.places.iter().filter(|place| place.assigned).map(|place| (place.source, place.partition)).collect()
    }
}

/// What did not arrive, by tag, in order.
#[derive(Default)]
struct Outcome {
    refused: Vec<(usize, String)>,
    again: Vec<usize>,
}

/// How long a round has been waiting.
struct Lateness {
    began: Instant,
    shutdown: Option<Instant>,
    told: bool,
    paused: bool,
}

impl Lateness {
    fn new() -> Lateness {
        Lateness { began: Instant::now(), shutdown: None, told: false, paused: false }
    }

    fn since_shutdown(&mut self) -> Duration {
        self.shutdown.get_or_insert_with(Instant::now).elapsed()
    }
}
