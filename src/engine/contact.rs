//! Contact with the brokers and the group.
//!
//! Clients are not to blame for records that piled up while none could be read, so in reject mode the core is told
//! which records these are. An engine whose consumer does not find back into its group gets a new consumer.

use std::time::Duration;

use tracing::{info, warn};
use watermaster_core::delivery::{FatalError, Kafka as _};
use watermaster_core::policy::{CatchUp, Mode};
use watermaster_core::{throttle::Throttle, units::Time};

use super::{Engine, Job, StopCause, link::Link, report::Reporter};
use watermaster_kafka::consumer::{self, Consumer, SourcePartition};
use watermaster_settings::GroupProtocol;

/// An idle loop sleeps for up to half a second, or a short cycle: that is no gap.
const SLEEP: Duration = Duration::from_secs(1);
const WATERMARKS_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which librdkafka is asked; its own thread answers.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Watches whether brokers and group are in reach.
pub(super) struct Contact<'c> {
    /// The last time that the loop went round with brokers in reach.
    last: &'c mut Time,
    /// The last time that a connection to a broker broke.
    pub(super) broker_lost: Option<Time>,
    /// The topic of a source was made anew.
    pub(super) reads_anew: bool,
    /// The last time that the membership was looked at, and the last time that the consumer was a member, or could not
    /// be one.
    checked: Time,
    excused: Time,
}

impl<'c> Contact<'c> {
    pub(super) fn new(last: &'c mut Time, now: Time) -> Contact<'c> {
        Contact { last, broker_lost: None, reads_anew: false, checked: now, excused: now }
    }

    /// Notes contact. If there was none for longer than a cycle (a late round, a stopped process, brokers away), the
    /// records that piled up are to be caught up with.
    pub(super) fn end_gap(&mut self, now: Time, throttle: &mut Throttle, link: &mut Link<'_>) {
        let gap = now.since(std::mem::replace(self.last, now));
        if !catches_up(throttle) || gap <= throttle.policy().cycle + SLEEP {
            return;
        }
        let (service, seconds) = (&link.job.service.name, gap.as_secs_f64());
        info!(service, seconds, "nothing was read for longer than a cycle: catching up");
        let assigned: Vec<_> = link.partitions.assigned().collect();
        catch_up(&assigned, throttle, link);
    }

    /// Notes that a record of this partition is read. If a broker was lost since the record before, and that was more
    /// than a cycle ago, the partition may have had no leader: the records of the same fetch are to be caught up with.
    pub(super) fn end_silence(&mut self, now: Time, number: u32, throttle: &mut Throttle, link: &mut Link<'_>) {
        let entry = link.partitions.entry(number);
        let before = std::mem::replace(&mut entry.read_at, now);
        let suspect = self.broker_lost.is_some_and(|lost| before <= lost);
        if !suspect || now.since(before) <= throttle.policy().cycle {
            return;
        }
        let (source, partition) = (entry.source, entry.partition);
        if catches_up(throttle)
            && let Some(high) = link.consumer.cached_high(source, partition)
        {
            throttle.handle_fetch_gap(number, high);
        }
    }

    /// Returns whether brokers were in reach and the consumer in no group for longer than joining takes.
    ///
    /// Seen with librdkafka 2.12 and `group_protocol = "consumer"`: a consumer that was expelled while all brokers were
    /// down never asked to join again. A new consumer begins as a new member.
    fn is_evicted(&mut self, now: Time, job: &Job, consumer: &Consumer, reporter: &mut Reporter) -> bool {
        let since = now.since(self.checked);
        if since < WATCH_INTERVAL {
            return false;
        }
        // A loop that stood still learnt nothing about the group.
        let stood_still = since > 5 * WATCH_INTERVAL;
        self.checked = now;
        let (member, status) = (consumer.belongs(), &mut reporter.status);
        if member && job.kafka.group_protocol == GroupProtocol::Consumer {
            // This protocol reports partitions only, and a member may get none.
            status.joined = true;
        }
        if consumer.reads_nothing() && !std::mem::replace(&mut status.joined, true) {
            info!(service = job.service.name, "no topic matches the patterns of the sources yet");
        }
        if (member || consumer.reads_nothing()) && status.joined || status.brokers_down || stood_still {
            self.excused = now;
            return false;
        }
        let alone = now.since(self.excused);
        let evicted = alone > consumer::joins_within(&job.kafka);
        if evicted {
            let (service, seconds) = (&job.service.name, alone.as_secs());
            warn!(service, seconds, "in no group although brokers answer: another consumer joins");
            reporter.counts.consumer_recreations += 1;
        }
        evicted
    }
}

fn catches_up(throttle: &Throttle) -> bool {
    let policy = throttle.policy();
    policy.mode == Mode::Reject && policy.catch_up == CatchUp::Delay
}

/// Ends the wait of a partition that was not read since some time. If that was longer than a cycle, the records that
/// piled up are to be caught up with.
pub(super) fn end_wait(
    now: Time, since: Time, partition: (u32, SourcePartition), throttle: &mut Throttle, link: &mut Link<'_>,
) {
    if catches_up(throttle) && now.since(since) > throttle.policy().cycle {
        catch_up(&[partition], throttle, link);
    }
}

fn catch_up(partitions: &[(u32, SourcePartition)], throttle: &mut Throttle, link: &mut Link<'_>) {
    // A cached watermark would count the records of the gap as live, so the brokers are asked where they answer.
    let addresses: Vec<_> = partitions.iter().map(|(_, address)| *address).collect();
    let asked = link.consumer.highs(&addresses, WATERMARKS_TIMEOUT);
    for &(number, address) in partitions {
        let high = asked.get(&address).copied().or_else(|| link.consumer.cached_high(address.0, address.1));
        let entry = link.partitions.entry(number);
        if let Some(high) = high {
            entry.high = entry.high.max(high);
            throttle.handle_fetch_gap(number, entry.high);
        }
    }
}

impl Engine<'_> {
    /// Returns whether only another consumer can go on: this one is in no group, asks for a topic that was made anew,
    /// or connects with old secrets. The other clients are replaced with it then.
    pub(super) fn needs_consumer(&mut self, now: Time) -> Result<bool, StopCause> {
        self.renew_logins();
        let secrets_changed = self.link.consumer.has_old_secrets();
        if !secrets_changed && !self.contact.reads_anew {
            return Ok(self.contact.is_evicted(now, self.job, self.link.consumer, self.reporter));
        }
        self.reporter.counts.consumer_recreations += 1;
        if secrets_changed {
            info!(service = self.job.service.name, "the secrets have changed: making new clients");
            self.link.replace().map_err(|error| StopCause::Delivery(FatalError::NoProducer(error)))?;
            if let Some(group) = self.group {
                group.reconnect(self.clock, self.throttle);
            }
        }
        Ok(true)
    }

    /// Gives the clients the user and the password that were read last. They take no other secret while they live.
    pub(super) fn renew_logins(&self) {
        self.link.consumer.renew_login();
        self.link.producer.renew_login();
        if let Some(group) = self.group.as_ref() {
            group.renew_login();
        }
    }
}
