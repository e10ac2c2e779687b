//! A round under `exactly_once`: the core's [`Transactions`](watermaster_core::round::Transactions) say what is to be done,
//! this does it, in steps between which the heart beats and the group is served.

use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use watermaster_core::round::{Cause, Ending, ErrorClass, Foreign, Kafka, Note, Phase, Step, Stop};

use super::late::{Lateness, STEP};
use super::{Engine, Stopped, wall_ms};

/// The longest wait to get rid of a transaction that is given up; the next producer of this id, or the coordinator, aborts it too.
const ABANDON: Duration = Duration::from_secs(2);

/// What is asked of the core.
#[derive(Clone, Copy)]
enum Task {
    Prepare,
    Round,
}

impl<'c> Engine<'c> {
    /// Before the first record: aborts at once what a dead predecessor left open. False: gave up.
    pub(super) fn prepare_transactions(&mut self) -> Result<bool, Stopped> {
        let mut late = Lateness::new();
        let began = Instant::now();
        let ready = self.carry_out(Task::Prepare, &mut late);
        self.report.end_phases();
        let ready = ready?;
        self.end_lateness(&late, "the producer is ready", began.elapsed());
        Ok(ready)
    }

    /// Sends and commits the round, in as many attempts as it takes. False: gave up.
    pub(super) fn transact(&mut self, late: &mut Lateness) -> Result<bool, Stopped> {
        let ended = self.carry_out(Task::Round, late);
        self.report.end_phases();
        // Gave up or stopped in the middle of one.
        let until = Instant::now() + ABANDON;
        while self.link.in_transaction() && Instant::now() < until {
            // A commit that was begun can only be gone on with.
            let committing = self.transactions.phase() == Phase::Commit;
            match if committing { self.link.commit() } else { self.link.abort() } {
                Err(error) if error.class != ErrorClass::Retriable => break,
                Err(_) => std::thread::sleep(STEP),
                Ok(()) => {}
            }
        }
        ended
    }

    fn carry_out(&mut self, task: Task, late: &mut Lateness) -> Result<bool, Stopped> {
        loop {
            let now = self.clock.now();
            self.throttle.handle_wall_clock(now, wall_ms());
            let phase = if self.link.is_initialised() { self.transactions.phase() } else { Phase::Prepare };
            let step = match task {
                Task::Prepare => self.transactions.prepare(&mut self.link, now),
                Task::Round => self.transactions.step(&mut self.round, &mut self.throttle, &mut self.link, now),
            };
            self.report.phase(phase, self.clock.now().since(now));
            self.tell_notes();
            match step.map_err(|stop| self.stop(stop))? {
                Step::Done => return Ok(true),
                Step::Again => {}
                Step::Breathe => std::thread::sleep(STEP),
                Step::ServeGroup => self.serve_group(STEP)?,
            }
            if !self.keep_going(late)? {
                return Ok(false);
            }
        }
    }

    /// Another producer; gives up after too many that failed.
    pub(super) fn replace_producer(&mut self, cause: Cause, why: String) -> Result<(), Stopped> {
        let now = self.clock.now();
        let replaced = self.transactions.replace(&mut self.link, cause, why, now);
        self.tell_notes();
        replaced.map_err(|stop| self.stop(stop))
    }

    /// Logs and counts what happened.
    pub(super) fn tell_notes(&mut self) {
        let notes = self.transactions.take_notes();
        if notes.is_empty() {
            return;
        }
        for note in &notes {
            self.tell(note);
        }
        self.publish_flags();
    }

    fn tell(&mut self, note: &Note) {
        self.count_note(note);
        let (service, now) = (&self.job.service.name, Instant::now());
        let (topic, partition) = match note {
            Note::Overtaken { partition, .. }
            | Note::Undeliverable { partition, .. }
            | Note::Stubbed { partition, .. }
            | Note::Discarded { partition, .. } => self.place_name(*partition),
            _ => ("", 0),
        };
        let seldom = &mut self.report.seldom;
        match note {
            Note::Failed { .. } => {}
            Note::Ended { outcome: Ending::Aborted, why } => {
                seldom.warn("aborted", now, |left_out| warn!(service, left_out, "a round is aborted: {why}"));
            }
            Note::Ended { outcome: Ending::Unknown, why } => seldom.warn("unknown", now, |left_out| {
                warn!(service, left_out, "a round is committed or not, which is found out now: {why}");
            }),
            Note::Replaced { cause, why } => seldom.warn("replaced", now, |left_out| {
                warn!(service, cause = cause.as_str(), left_out, "replacing the producer: {why}");
            }),
            Note::Divided { outputs, next } => seldom.warn("divided", now, |left_out| {
                warn!(service, outputs, next, left_out, "a round took too long: it is committed in parts");
            }),
            Note::GroupMoves(why) => seldom.warn("group changes", now, |left_out| {
                info!(service, left_out, "not sent yet, the group changes: {why}");
            }),
            Note::Unlearnt(why) => seldom.warn("unlearnt", now, |left_out| {
                warn!(service, left_out, "can't learn what is committed yet: {why}");
            }),
            Note::Compared { done, left } => seldom.warn("compared", now, |left_out| {
                info!(service, done, left, left_out, "compared the round with what is committed");
            }),
            Note::Overtaken { committed, known, .. } => seldom.warn("overtaken", now, |left_out| {
                warn!(
                    service,
                    topic, partition, committed, known, left_out, "more is committed than this instance knows of"
                );
            }),
            Note::Undeliverable { offset, why, .. } => seldom.warn("undeliverable", now, |left_out| {
                warn!(
                    service,
                    topic, partition, offset, left_out, "undeliverable: {topic}/{partition} offset {offset}: {why}"
                );
            }),
            Note::Stubbed { offset, why, .. } => seldom.warn("stubbed", now, |left_out| {
                warn!(
                    service,
                    topic,
                    partition,
                    offset,
                    left_out,
                    "a stub goes to the dead-letter topic in place of {topic}/{partition} offset {offset}: {why}"
                );
            }),
            // Each of them: nothing else says which record is gone.
            Note::Discarded { offset, why, .. } => {
                error!(
                    service,
                    topic,
                    partition,
                    offset,
                    "discarded: the dead-letter topic refuses {topic}/{partition} offset {offset}: {why}"
                );
            }
        }
    }

    fn count_note(&mut self, note: &Note) {
        match note {
            Note::Failed { phase, class } => self.report.failed(*phase, *class),
            Note::Ended { outcome: Ending::Aborted, .. } => self.report.round("aborted", Duration::ZERO),
            Note::Ended { outcome: Ending::Unknown, .. } => self.report.round("unknown", Duration::ZERO),
            Note::Replaced { cause, .. } => self.report.recreated(cause.as_str()),
            Note::Compared { done, left } => self.report.resynced(*done, *left),
            Note::Divided { .. }
            | Note::GroupMoves(_)
            | Note::Unlearnt(_)
            | Note::Overtaken { .. }
            | Note::Undeliverable { .. }
            | Note::Stubbed { .. }
            | Note::Discarded { .. } => {}
        }
    }

    /// The topic and number of a partition.
    pub(super) fn place_name(&self, number: u32) -> (&'c str, i32) {
        let (source, partition) = self.link.places.address(number);
        (&self.job.service.sources[source.index()].topic, partition)
    }

    /// Why the service stops, for people.
    pub(super) fn stop(&mut self, stop: Stop) -> Stopped {
        match stop {
            Stop::Commit(why) => self.stopped(&format!("committing failed: {why}")),
            Stop::Denied(why) => self.target_refuses(&why),
            Stop::Map(why) => self.stopped(&format!("the offset map of a partition outgrew its budget: {why}")),
            Stop::Undeliverable { partition, offset, why } => {
                self.report.target_refusing = true;
                let (topic, partition) = self.place_name(partition);
                self.stopped(&format!(
                    "the dead-letter topic refuses {topic}/{partition} offset {offset}: {why} (on_undeliverable = \
                     \"discard\" would drop it)"
                ))
            }
            Stop::Foreign(Foreign { partition, offset, why }) => {
                let (topic, partition) = self.place_name(partition);
                self.foreign(topic, partition, offset, &why)
            }
            Stop::Failures { count, why } => {
                self.stopped(&format!("{count} producers failed within 10 min, the last one: {why}"))
            }
            Stop::FencedTwice(why) => self.stopped(&format!(
                "another producer took the transactional.id {} twice within a minute: two instances seem to share the \
                 instance_id {}: {why}",
                self.link.producer.transactional_id(),
                self.job.kafka.instance_id
            )),
            Stop::NoProducer(why) => self.stopped(&why),
        }
    }
}
