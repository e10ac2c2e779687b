//! A round that can't finish: what goes on while it waits.
//!
//! The heart beats, the group is served so that it does not expel us, and a drain is given up after a while. Records that
//! come meanwhile are put aside, and reading is held back as soon as there are any.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Engine, Stopped};
use watermaster_kafka::consumer::Event;
use watermaster_kafka::record::Record;

/// One step of waiting: between two steps the heartbeat beats and shutdown is seen.
pub(super) const STEP: Duration = Duration::from_millis(100);
/// A round is late after this, and said to be.
const LATE: Duration = Duration::from_secs(2);
/// A late round polls the group from then on, so that it is not expelled: far below `max.poll.interval.ms`.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// After this, a drain gives up: what was not committed is read again by the next owner.
const DRAIN: Duration = Duration::from_secs(6);
/// The most events served in one go.
const EVENTS: usize = 100;

/// How long a round has been waiting.
pub(super) struct Lateness {
    began: Instant,
    told: bool,
}

impl Lateness {
    pub(super) fn new() -> Lateness {
        Lateness { began: Instant::now(), told: false }
    }
}

impl<'c> Engine<'c> {
    /// Between two steps of waiting. False: a drain took too long.
    pub(super) fn keep_going(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        self.job.heartbeat.beat(Instant::now());
        if self.drain_is_over() {
            return Ok(false);
        }
        let waited = late.began.elapsed();
        if waited > LATE && !late.told {
            late.told = true;
            warn!(service = self.job.service.name, "waiting for the brokers");
            self.report.late = true;
            self.publish_flags();
        }
        // A rebalance must not meet an open transaction; it is ended long before the group would expel us.
        if waited > KEEP_ALIVE && !self.link.producer.in_transaction() {
            self.serve_group(Duration::ZERO)?;
        }
        Ok(true)
    }

    /// As [`keep_going`](Engine::keep_going), after a pause: what failed at once would fail at once again.
    pub(super) fn breathe(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        thread::sleep(STEP);
        self.keep_going(late)
    }

    /// From the moment that the shutdown was seen, over all rounds.
    fn drain_is_over(&mut self) -> bool {
        let stopping = self.job.shutdown.load(Ordering::Relaxed);
        stopping && self.stopping.get_or_insert_with(Instant::now).elapsed() > DRAIN
    }

    /// Lets the consumer serve a rebalance, for `time` or for what is there already; records that come are put aside.
    pub(super) fn serve_group(&mut self, time: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + time;
        for _ in 0..EVENTS {
            match self.link.consumer.poll(until.saturating_duration_since(Instant::now())) {
                Event::Idle if Instant::now() >= until => break,
                event => self.handle(event)?,
            }
        }
        Ok(())
    }

    /// Puts a record aside until the round is committed; no more are wanted meanwhile.
    pub(super) fn put_aside(&mut self, record: Record<'c>) {
        self.stash.push_back(record);
        if !self.held_back {
            self.held_back = true;
            let assigned: Vec<_> = self.link.places.assigned().map(|(_, address)| address).collect();
            self.pause(&assigned);
        }
    }

    /// `what` is over.
    pub(super) fn end_lateness(&mut self, late: &Lateness, what: &str, took: Duration) {
        if late.told {
            info!(service = self.job.service.name, seconds = took.as_secs_f64(), "{what} at last");
            self.report.late = false;
        }
        if std::mem::take(&mut self.held_back) {
            let open = self.link.places.assigned().filter(|(number, _)| self.throttle.paused(*number).is_none());
            let open: Vec<_> = open.map(|(_, address)| address).collect();
            self.resume(&open);
        }
    }
}
