//! A round: send what was decided, wait until all of it arrived, commit.
//!
//! Payloads are let go, and counts shown, only when the commit was acknowledged. A round that can't finish is late,
//! not lost: it goes on trying while the group is kept alive (`engine/late.rs`), and nothing is decided meanwhile.
//!
//! `Deciding => Sending => Committing => Deciding`; from `Sending`, a refused record goes `=> Bisecting => Sending`.

use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::round::{Cause, Failure, Halves, SendError, Sent, Stop, commits};
use watermaster_core::units::Time;

use super::late::{Lateness, STEP};
use super::link;
use super::{Engine, Stopped, wall_ms};
use watermaster_kafka::consumer::{CommitError, PartitionCommit};
use watermaster_settings::Delivery;

/// A round is full at this many records …
const MAX_RECORDS: usize = 10_000;
/// … or bytes.
const MAX_BYTES: usize = 16 << 20;

impl Engine<'_> {
    pub(super) fn round_is_empty(&self) -> bool {
        self.round.is_empty()
    }

    pub(super) fn round_has_work(&self) -> bool {
        !self.round_is_empty() || self.throttle.touched().next().is_some()
    }

    pub(super) fn round_is_full(&self) -> bool {
        self.round.len() >= MAX_RECORDS || self.round.bytes() >= MAX_BYTES
    }

    pub(super) fn round_due_at(&self) -> Time {
        if self.hurry { Time::ZERO } else { self.last_round + self.job.kafka.commit_interval }
    }

    pub(super) fn round_due(&self, now: Time) -> bool {
        self.round_is_full() || (self.round_due_at() <= now && self.round_has_work())
    }

    /// Sends and commits what was decided. False: gave up, because a drain took too long.
    pub(super) fn run_round(&mut self) -> Result<bool, Stopped> {
        let began = self.clock.now();
        let mut late = Lateness::new();
        self.round.drop_orphans(&mut self.throttle);
        let ended = match self.job.kafka.delivery {
            Delivery::ExactlyOnce => self.transact(&mut late),
            Delivery::AtLeastOnce => self.settle(&mut late).and_then(|settled| Ok(settled && self.commit(&mut late)?)),
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
        let wall_ms = wall_ms();
        for output in self.round.outputs() {
            if let Some(timestamp) = output.payload.timestamp_ms() {
                self.report.end_to_end.record(age(wall_ms, timestamp));
            }
        }
        self.round.clear();
        self.report.stubs += self.round.take_stubs();
        self.detach_held();
        (self.last_round, self.hurry) = (counts_from(began, now, self.job.kafka.commit_interval), false);
        self.end_lateness(&late, "a late round was committed", now.since(began));
        self.publish(now);
        Ok(true)
    }

    // ## Sending (at_least_once)

    /// Sends all outputs until each has arrived, in the target or in the dead-letter topic. False: gave up.
    fn settle(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        let mut halves = Halves::of((0..self.round.len()).collect());
        while let Some(tags) = halves.next_group() {
            let Some(outcome) = self.deliver(&tags, late)? else { return Ok(false) };
            if !outcome.again.is_empty() && !self.breathe(late)? {
                return Ok(false);
            }
            if let Some((tag, why)) = halves.sort_out(tags.len(), outcome)
                && self.refused(tag, why)?
            {
                halves.push(tag);
            }
        }
        Ok(true)
    }

    /// One record that its topic refuses for good. True: send it to the dead-letter topic instead.
    fn refused(&mut self, tag: usize, why: String) -> Result<bool, Stopped> {
        let refused = self.transactions.refuse(&mut self.round, &mut self.throttle, tag, why);
        self.tell_notes();
        refused.map_err(|stop| self.stop(stop))
    }

    /// Sends and waits until nothing is in flight. `None`: gave up.
    fn deliver(&mut self, tags: &[usize], late: &mut Lateness) -> Result<Option<Sent>, Stopped> {
        let mut outcome = Sent::default();
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
        if let Some(why) = broken.or(failed).or_else(|| self.link.producer.fatal()) {
            self.replace_producer(Cause::Fatal, why)?;
        }
        outcome.sort();
        Ok(Some(outcome))
    }

    fn offer(&mut self, tag: usize, late: &mut Lateness) -> Result<Offered, Stopped> {
        let mut emptied = false;
        loop {
            let output = self.round.output_mut(tag);
            if output.orphan || output.discarded {
                // Its next owner sends it, and may have done so: ours would come after its successors.
                return Ok(Offered::Taken);
            }
            match link::send(&self.link.producer, output, tag) {
                Ok(()) => return Ok(Offered::Taken),
                Err(SendError::QueueFull) if emptied => {
                    return Ok(Offered::Refused("larger than queue.buffering.max.kbytes".to_owned()));
                }
                Err(SendError::QueueFull) => {
                    emptied = self.link.producer.flush(STEP);
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
            if broken || self.link.producer.fatal().is_some() {
                self.link.producer.purge();
            }
            if self.link.producer.flush(STEP) {
                return Ok(true);
            }
            if !self.keep_going(late)? {
                self.link.producer.purge();
                return Ok(false);
            }
        }
    }

    /// What did not land; why the producer is of no use any more, if so.
    fn sort_failures(&mut self, outcome: &mut Sent) -> Result<Option<String>, Stopped> {
        let (mut broken, mut unknown) = (None, None);
        for (tag, failure) in self.link.producer.take_failures() {
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
        if let Some(why) = unknown {
            let (service, records) = (&self.job.service.name, outcome.again.len());
            self.report.seldom.warn("sending again", Instant::now(), |left_out| {
                warn!(service, records, left_out, "sending again what may have arrived: {why}");
            });
        }
        Ok(broken)
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
                    let service = &self.job.service.name;
                    let tell = |left_out| info!(service, left_out, "not committed, the group changes: {why}");
                    self.report.seldom.warn("group changes", Instant::now(), tell);
                }
                Err(CommitError::Retriable(why)) => {
                    let service = &self.job.service.name;
                    let tell = |left_out| warn!(service, left_out, "committing again: {why}");
                    self.report.seldom.warn("committing again", Instant::now(), tell);
                }
            }
            self.serve_group(STEP)?;
            if !self.keep_going(late)? {
                return Ok(false);
            }
        }
    }

    fn commits(&mut self) -> Result<Vec<PartitionCommit>, Stopped> {
        let now = self.clock.now();
        self.throttle.handle_wall_clock(now, wall_ms());
        let commits = commits(&mut self.throttle, now);
        let commits = commits.map_err(|error| self.stop(Stop::Map(error.to_string())))?;
        Ok(self.link.by_source(&commits))
    }

    /// Commits, and watches out while it waits for the answer.
    fn await_commit(
        &mut self,
        commits: &[PartitionCommit],
        late: &mut Lateness,
    ) -> Result<Result<(), CommitError>, Stopped> {
        let consumer = self.link.consumer;
        let mut going = Ok(true);
        let committed = consumer.commit(commits, || {
            going = self.keep_going(late);
            matches!(going, Ok(true))
        });
        going.map(|_| committed)
    }
}

/// What became of an output that was handed to the producer.
enum Offered {
    Taken,
    Refused(String),
    /// The producer takes nothing any more.
    Broken(String),
    GaveUp,
}

/// When a round that took from `began` to `now` counts as begun, for the next one's time. However long it took, there is time to
/// read before the next: else each round carries only what one look at the queue brought, and the slower the brokers, the
/// fewer records they get.
fn counts_from(began: Time, now: Time, commit_interval: Duration) -> Time {
    began.max(now - commit_interval / 2)
}

/// Returns how long ago `timestamp` was at `wall_ms`, both in milliseconds since the Unix epoch; zero for a timestamp
/// in the future. Producers choose timestamps freely: one near `i64::MIN` gives the longest time that can be told, not
/// an overflow.
fn age(wall_ms: i64, timestamp: i64) -> Duration {
    Duration::from_millis(u64::try_from(wall_ms.saturating_sub(timestamp)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_any_timestamp_can_be_told() {
        let now = 1_700_000_000_000;
        for (timestamp, millis) in [(now - 5, 5), (now, 0), (now + 5, 0), (i64::MAX, 0), (i64::MIN, i64::MAX as u64)] {
            assert_eq!(age(now, timestamp), Duration::from_millis(millis), "{timestamp}");
        }
    }

    /// With brokers that took 780 ms for a round, three instances got 64 records into each, 220 a second, while 1200 came.
    #[test]
    fn a_slow_round_leaves_half_an_interval_to_read() {
        let (began, interval) = (Time::from_nanos(1_000_000_000_000), Duration::from_millis(100));
        for (took, left) in [(0, 100), (20, 80), (50, 50), (90, 50), (780, 50)] {
            let now = began + Duration::from_millis(took);
            let due = counts_from(began, now, interval) + interval;
            assert_eq!(due.since(now), Duration::from_millis(left), "after {took} ms");
        }
    }
}
