//! Membership in the group: an engine whose consumer does not find back into its group gets a new consumer.
//!
//! Seen with librdkafka 2.12 and `group_protocol = "consumer"`: a consumer that was expelled while all brokers were
//! down never asked to join again. A new consumer begins as a new member.

use std::time::Duration;

use tracing::warn;
use watermaster_core::units::Time;

use super::{Job, report::Reporter};
use watermaster_kafka::consumer::{self, Consumer};
use watermaster_settings::GroupProtocol;

/// The interval at which librdkafka is asked; its own thread answers.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Watches for how long the consumer has been in no group.
pub(super) struct MembershipWatch {
    checked: Time,
    /// The last time that it was a member, or could not be one.
    excused: Time,
}

impl MembershipWatch {
    pub(super) fn new(now: Time) -> MembershipWatch {
        MembershipWatch { checked: now, excused: now }
    }

    /// Returns whether brokers were in reach and the consumer in no group for longer than joining takes.
    pub(super) fn is_evicted(&mut self, now: Time, job: &Job, consumer: &Consumer, reporter: &mut Reporter) -> bool {
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
        if member && status.joined || status.brokers_down || stood_still {
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
