//! Events of the consumer other than records: partitions come and go, brokers are lost and found.

use tracing::{debug, error, info, warn};

use super::{Engine, StopCause};
use watermaster_kafka::consumer::{Assignment, Event, SourcePartition};
use watermaster_kafka::topics::SourceIndex;

impl<'c> Engine<'c> {
    /// Handles an event; a record, which came while a round is under way, is deferred.
    pub(super) fn handle(&mut self, event: Event<'c>) -> Result<(), StopCause> {
        match event {
            Event::Assigned(assignments) => self.assigned(assignments),
            Event::Revoked { partitions, lost } => self.revoked(&partitions, lost),
            Event::Record(record) => {
                if self.intake.defer(record) {
                    let assigned: Vec<_> = self.link.partitions.assigned().map(|(_, address)| address).collect();
                    self.intake.pause(&assigned, self.job, self.reporter);
                }
            }
            Event::Refused(foreign) => return Err(foreign.into()),
            Event::Skipped { source, partition, from, to } => self.skipped((source, partition), from, to),
            Event::Beyond { source, partition, offset, high } => {
                let (service, topic) = (&self.job.service.name, &self.link.partitions.sources.get(source).topic);
                error!(service, topic, partition, offset, high, "a topic ends before its next record: reading it anew");
                self.contact.reads_anew = true;
            }
            Event::BrokerLost(why) => {
                debug!(service = self.job.service.name, "a broker's connection broke: {why}");
                self.contact.broker_lost = Some(self.clock.now());
            }
            Event::Down(why) => {
                if !std::mem::replace(&mut self.reporter.status.brokers_down, true) {
                    warn!(service = self.job.service.name, "no broker can be reached, waiting: {why}");
                    self.publish(self.clock.now());
                }
            }
            Event::Up => {
                if std::mem::replace(&mut self.reporter.status.brokers_down, false) {
                    info!(service = self.job.service.name, "the brokers are back");
                    self.contact.end_gap(self.clock.now(), self.throttle, &mut self.link);
                    self.publish(self.clock.now());
                }
            }
            Event::Fatal(error) => return Err(StopCause::Consumer(error)),
            Event::Idle => {}
        }
        Ok(())
    }

    /// Counts records that were deleted before they were read.
    fn skipped(&mut self, at: SourcePartition, from: i64, to: i64) {
        let (topic, partition) = (&self.link.partitions.sources.get(at.0).topic, at.1);
        let (service, lost) = (&self.job.service.name, u64::try_from(to - from).unwrap_or(0));
        error!(service, topic, partition, from, to, lost, "records were deleted before they were read");
        self.reporter.counts.lost_records += lost;
        // Deferred records of the partition still need their decisions; the first record behind the gap reports it
        // then.
        if let Some(number) = self.link.partitions.find(at)
            && !self.intake.has_deferred(at)
        {
            self.throttle.handle_end(number, to);
        }
    }

    fn assigned(&mut self, assignments: Vec<Assignment>) {
        info!(service = self.job.service.name, partitions = assignments.len(), "partitions assigned");
        self.reporter.status.joined = true;
        self.reporter.counts.rebalances += 1;
        if self.intake.reading_paused {
            let addresses: Vec<_> = assignments.iter().map(|one| (one.source, one.partition)).collect();
            self.intake.pause(&addresses, self.job, self.reporter);
        }
        let now = self.read_clocks();
        let copied: Vec<_> = assignments.iter().filter(|one| one.copied).collect();
        if let Some(first) = copied.first() {
            let topic = &self.link.partitions.sources.get(first.source).topic;
            warn!(
                service = self.job.service.name,
                partitions = copied.len(),
                "a mirror such as MirrorMaker 2 copied the committed offsets of {}; the first is {topic}/{} at {}. The \
                 service continues there. Records beyond these offsets that the other cluster had completed are sent \
                 again",
                if copied.len() == 1 { "one partition".to_owned() } else { format!("{} partitions", copied.len()) },
                first.partition,
                first.base
            );
        }
        for assignment in assignments {
            let number = self.link.partitions.number((assignment.source, assignment.partition));
            let entry = self.link.partitions.entry(number);
            (entry.assigned, entry.high, entry.read_at) = (true, assignment.high, now);
            self.reporter.counts.lost_records += assignment.lost;
            self.throttle.handle_assigned(now, number, assignment.base, &assignment.map, assignment.high);
            self.tell_sole_client(number);
            let ((topic, partition), offset) = (self.link.name(number), assignment.base);
            debug!(service = self.job.service.name, topic, partition, offset, "assigned");
            if assignment.commit_first {
                self.throttle.touch(number);
                self.rounds.commit_now = true;
            } else {
                self.throttle.handle_takeover(now, number);
            }
        }
        self.publish(self.clock.now());
    }

    /// Tells the core to whom the records of a partition belong.
    pub(super) fn tell_sole_client(&mut self, number: u32) {
        let source = self.link.partitions.sources.get(self.link.partitions.address(number).0);
        self.throttle.handle_sole_client(number, self.job.service.sole_client(source).as_deref());
    }

    /// Forgets everything about the partitions, at once: their next owner starts from what was committed.
    pub(super) fn revoked(&mut self, partitions: &[(SourceIndex, i32)], lost: bool) {
        info!(service = self.job.service.name, partitions = partitions.len(), lost, "partitions revoked");
        self.reporter.counts.rebalances += 1;
        // An expelled consumer is no member until its next assignment, which may be empty.
        self.reporter.status.joined &= !lost;
        for &partition in partitions {
            let Some(number) = self.link.partitions.find(partition) else { continue };
            self.link.partitions.entry(number).assigned = false;
            for slot in self.throttle.handle_revoked(number) {
                self.delayed.remove(slot);
            }
            self.rounds.round.forget(number);
            self.intake.forget(partition);
        }
        self.publish(self.clock.now());
    }
}
