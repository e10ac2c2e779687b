//! A round: send what was decided, wait until all of it arrived, commit.
//!
//! Payloads are let go, and counts shown, only when the commit was acknowledged. A round that can't finish is late,
//! not lost: it goes on trying while the group is kept alive (`engine/late.rs`), and nothing is decided meanwhile.
//!
//! `Deciding => Sending => Committing => Deciding`; from `Sending`, a refused record goes `=> Bisecting => Sending`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::Rejection;
use watermaster_core::units::Time;

use super::late::{Lateness, STEP};
use super::{Engine, Stopped};
use crate::kafka::consumer::{CommitError, PartitionCommit, SourcePartition};
use crate::kafka::producer::{DeadLetter, Destination, Failure, Producer, SendError};
use crate::kafka::record::{Output, SourceIndex};
use crate::settings::{Delivery, OnUndeliverable};

/// A round is full at this many records …
const MAX_RECORDS: usize = 10_000;
/// … or bytes.
const MAX_BYTES: usize = 16 << 20;
/// This many producers replaced within [`REPLACED_WITHIN`]: the next one would fare no better.
const REPLACED_MAX: usize = 5;
const REPLACED_WITHIN: Duration = Duration::from_secs(600);
/// Fenced twice within this: another instance goes by the same name.
const FENCED_WITHIN: Duration = Duration::from_secs(60);

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
    /// The dead-letter topic refuses it too, and it is let go: committed without being sent.
    discarded: bool,
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
        self.push(Pending { output, client, rejected: None, orphan: false, discarded: false });
    }

    pub(super) fn reject(&mut self, output: Output<'c>, rejection: Rejection, client: Arc<str>) {
        let retry_after_ms = u64::try_from(rejection.retry_after.as_millis()).unwrap_or(u64::MAX);
        let rejected = Rejected { reason: rejection.reason, retry_after_ms, client };
        self.push(Pending {
            output,
            client: rejection.client,
            rejected: Some(rejected),
            orphan: false,
            discarded: false,
        });
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
    pub(super) fn round_is_empty(&self) -> bool {
        self.round.outputs.is_empty()
    }

    pub(super) fn round_has_work(&self) -> bool {
        !self.round_is_empty() || self.throttle.touched().next().is_some()
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

    /// Sends and commits what was decided. False: gave up, because a drain took too long.
    pub(super) fn run_round(&mut self) -> Result<bool, Stopped> {
        let began = self.clock.now();
        let mut late = Lateness::new();
        self.take_rejections();
        self.drop_orphans();
        let ended = match self.job.kafka.delivery {
            Delivery::ExactlyOnce => self.transact(&mut late),
            Delivery::AtLeastOnce => {
                let all: Vec<usize> = (0..self.round.outputs.len()).collect();
                self.settle(all, How::Send, &mut late).and_then(|settled| Ok(settled && self.commit(&mut late)?))
            }
        };
        if !matches!(ended, Ok(true)) {
            self.report.round("failed", Duration::ZERO);
            self.publish_flags();
            if ended.is_ok() {
                warn!(service = self.job.service.name, "gave up an unfinished round: its records will be read again");
            }
            return ended;
        }
        let now = self.clock.now();
        self.report.round("committed", now.since(began));
        let wall_ms = (now.as_nanos() / 1_000_000) as i64;
        for pending in &self.round.outputs {
            if let Some(timestamp) = pending.output.timestamp_ms() {
                self.report.end_to_end.record(Duration::from_millis((wall_ms - timestamp).max(0) as u64));
            }
        }
        self.round = Round::new(began);
        self.end_lateness(&late, now.since(began));
        self.publish(now);
        Ok(true)
    }

    pub(super) fn round_len(&self) -> usize {
        self.round.outputs.len()
    }

    /// Where the outputs of the round come from.
    pub(super) fn round_places(&self) -> impl Iterator<Item = SourcePartition> + '_ {
        self.round.outputs.iter().map(|pending| (pending.output.source(), pending.output.partition()))
    }

    /// Drops the outputs whose place and offset the caller does not want.
    pub(super) fn retain_outputs(&mut self, wanted: impl Fn(SourcePartition, i64) -> bool) {
        self.round
            .outputs
            .retain(|pending| wanted((pending.output.source(), pending.output.partition()), pending.output.offset()));
    }

    /// Revoked before anything was sent: the next owner reads these again.
    pub(super) fn drop_orphans(&mut self) {
        let throttle = &mut self.throttle;
        self.round.outputs.retain(|pending| {
            if pending.orphan {
                throttle.handle_undone(pending.client, pending.rejected.as_ref().map(|rejected| rejected.reason));
            }
            !pending.orphan
        });
    }

    // ## Sending

    /// Sends these outputs until each has arrived, in the target or in the dead-letter topic; as a probe, until each would
    /// arrive there. False: gave up.
    pub(super) fn settle(&mut self, tags: Vec<usize>, how: How, late: &mut Lateness) -> Result<bool, Stopped> {
        let mut work = vec![tags];
        while let Some(tags) = work.pop() {
            let outcome = match how {
                How::Send => self.deliver(&tags, late)?,
                How::Probe => self.probe(&tags, late)?,
            };
            let Some(outcome) = outcome else { return Ok(false) };
            if !outcome.again.is_empty() {
                work.push(outcome.again);
                if !self.breathe(late)? {
                    return Ok(false);
                }
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
        let mut broken = None;
        for (index, &tag) in tags.iter().enumerate() {
            match self.offer(tag, late)? {
                Offered::Taken => {}
                Offered::Refused(why) => outcome.refused.push((tag, why)),
                Offered::Broken(why) => {
                    // What it took before is not lost sight of: it lands or fails below.
                    broken = Some(why);
                    outcome.again.extend(&tags[index..]);
                    break;
                }
                Offered::GaveUp => return Ok(None),
            }
        }
        if !self.land(broken.is_some(), late)? {
            return Ok(None);
        }
        let failed = self.sort_failures(&mut outcome)?;
        if let Some(why) = broken.or(failed).or_else(|| self.producer.fatal()) {
            self.replace_producer("fatal", &why)?;
        }
        outcome.again.sort_unstable();
        outcome.refused.sort_unstable();
        Ok(Some(outcome))
    }

    pub(super) fn offer(&mut self, tag: usize, late: &mut Lateness) -> Result<Offered, Stopped> {
        let mut emptied = false;
        loop {
            let pending = &self.round.outputs[tag];
            if pending.orphan || pending.discarded {
                // Its next owner sends it, and may have done so: ours would come after its successors.
                return Ok(Offered::Taken);
            }
            match pending.send(&self.producer, tag) {
                Ok(()) => return Ok(Offered::Taken),
                Err(SendError::QueueFull) if emptied => {
                    return Ok(Offered::Refused("larger than queue.buffering.max.kbytes".to_owned()));
                }
                Err(SendError::QueueFull) => {
                    emptied = self.producer.flush(STEP);
                    if !self.keep_going(late)? {
                        return Ok(Offered::GaveUp);
                    }
                }
                Err(SendError::Refused(why)) => return Ok(Offered::Refused(why)),
                Err(SendError::Denied(why)) => return Err(self.target_refuses(&why)),
                Err(SendError::Fatal(why)) => return Ok(Offered::Broken(why)),
            }
        }
    }

    /// Waits until nothing is in flight. False: gave up.
    fn land(&mut self, broken: bool, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            if broken || self.producer.fatal().is_some() {
                self.producer.purge();
            }
            if self.producer.flush(STEP) {
                return Ok(true);
            }
            if !self.keep_going(late)? {
                self.producer.purge();
                return Ok(false);
            }
        }
    }

    /// What did not land; why the producer is of no use any more, if so.
    pub(super) fn sort_failures(&mut self, outcome: &mut Outcome) -> Result<Option<String>, Stopped> {
        let (mut broken, mut unknown) = (None, None);
        for (tag, failure) in self.producer.take_failures() {
            match failure {
                Failure::Refused(why) => outcome.refused.push((tag, why)),
                Failure::Denied(why) => return Err(self.target_refuses(&why)),
                Failure::Unknown(why) => {
                    unknown = Some(why);
                    outcome.again.push(tag);
                }
                Failure::Fatal(why) => {
                    broken = Some(why);
                    outcome.again.push(tag);
                }
            }
        }
        // What an abort gave up is nothing to worry about.
        if let Some(why) = unknown
            && self.job.kafka.delivery == Delivery::AtLeastOnce
        {
            let records = outcome.again.len();
            warn!(service = self.job.service.name, records, "sending again what may have arrived: {why}");
        }
        Ok(broken)
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
                pending.discarded = true;
                Ok(false)
            }
            OnUndeliverable::Stop => {
                self.report.target_refusing = true;
                Err(self.stopped(&format!(
                    "the dead-letter topic refuses {place}: {why} (on_undeliverable = \"discard\" would drop it)"
                )))
            }
        }
    }

    pub(super) fn stopped(&self, why: &str) -> Stopped {
        Stopped(format!("service {}: {why}", self.job.service.name))
    }

    pub(super) fn target_refuses(&mut self, why: &str) -> Stopped {
        self.report.target_refusing = true;
        self.stopped(&format!("writing is refused: {why}"))
    }

    /// `cause` is one of [`PRODUCER_CAUSES`](crate::snapshot::PRODUCER_CAUSES). Gives up after too many that failed.
    pub(super) fn replace_producer(&mut self, cause: &str, why: &str) -> Result<(), Stopped> {
        warn!(service = self.job.service.name, cause, "replacing the producer: {why}");
        self.report.recreated(cause);
        let now = Instant::now();
        if matches!(cause, "fatal" | "fenced") {
            self.replaced.retain(|&at| now.duration_since(at) < REPLACED_WITHIN);
            self.replaced.push(now);
        }
        if self.replaced.len() > REPLACED_MAX {
            return Err(self.stopped(&format!(
                "{} producers failed within {} min, the last one: {why}",
                self.replaced.len(),
                REPLACED_WITHIN.as_secs() / 60
            )));
        }
        let fenced_before = if cause == "fenced" { self.fenced.replace(now) } else { None };
        if fenced_before.is_some_and(|at| now.duration_since(at) < FENCED_WITHIN) {
            let id = self.producer.transactional_id();
            return Err(self.stopped(&format!(
                "another producer took the transactional.id {id} twice within a minute: two instances seem to share the \
                 instance_id {}: {why}",
                self.job.kafka.instance_id
            )));
        }
        let limits = self.job.facts.limits(&self.job.service);
        self.producer = Producer::new(&self.job.kafka, &self.job.service, limits)
            .map_err(|error| self.stopped(&error.to_string()))?;
        Ok(())
    }

    // ## Committing

    /// Commits offset and map of every partition that something completed in. False: gave up.
    fn commit(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            let touched: Vec<u32> = self.throttle.touched().collect();
            let commits = self.commits()?;
            if commits.is_empty() {
                return Ok(true);
            }
            match self.await_commit(&commits, late)? {
                Ok(()) => {
                    touched.into_iter().for_each(|number| self.throttle.handle_committed(number));
                    return Ok(true);
                }
                Err(CommitError::Fatal(why)) => {
                    return Err(self.stopped(&format!("committing failed: {why}")));
                }
                // A rebalance is under way. What was sent stays sent; if the partitions stay here, the next
                // commit covers it; if they go, their next owner repeats this round.
                Err(CommitError::Lost(why)) => {
                    info!(service = self.job.service.name, "not committed, the group changes: {why}");
                }
                Err(CommitError::Retriable(why)) => {
                    warn!(service = self.job.service.name, "committing again: {why}");
                }
            }
            self.serve_group(STEP)?;
            if !self.keep_going(late)? {
                return Ok(false);
            }
        }
    }

    /// Offset and map of every partition that something completed in.
    pub(super) fn commits(&mut self) -> Result<Vec<PartitionCommit>, Stopped> {
        let now = self.clock.now();
        let touched: Vec<u32> = self.throttle.touched().collect();
        let mut commits = Vec::with_capacity(touched.len());
        for number in touched {
            let (offset, metadata) = self
                .throttle
                .commit_of(now, number)
                .map_err(|error| self.stopped(&format!("the offset map of a partition outgrew its budget: {error}")))?;
            let (source, partition) = self.address(number);
            commits.push(PartitionCommit { source, partition, offset, metadata });
        }
        Ok(commits)
    }

    /// Commits, and watches out while it waits for the answer.
    fn await_commit(
        &mut self,
        commits: &[PartitionCommit],
        late: &mut Lateness,
    ) -> Result<Result<(), CommitError>, Stopped> {
        let consumer = self.consumer;
        let mut going = Ok(true);
        let committed = consumer.commit(commits, || {
            going = self.keep_going(late);
            matches!(going, Ok(true))
        });
        going.map(|_| committed)
    }
}

/// Whether outputs are to stay where they arrive.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    Send,
    /// In transactions that are aborted: to find out who is refused.
    Probe,
}

/// What did not arrive, by tag, in order.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) refused: Vec<(usize, String)>,
    pub(super) again: Vec<usize>,
}

/// What became of an output that was handed to the producer.
pub(super) enum Offered {
    Taken,
    Refused(String),
    /// The producer takes nothing any more.
    Broken(String),
    GaveUp,
}
