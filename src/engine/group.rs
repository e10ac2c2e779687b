//! Belonging to the group: an engine whose consumer does not find back into it gets another consumer.
//!
//! Seen with librdkafka 2.12 and `group_protocol = "consumer"`: expelled while all brokers were down, it never asked to join
//! again. Whatever keeps a consumer out, a new one begins as a new member.

use std::time::Duration;

use tracing::warn;
use watermaster_core::units::Time;

use super::Engine;
use watermaster_kafka::consumer;
use watermaster_settings::GroupProtocol;

/// Between two looks: each waits for librdkafka's own thread.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Since when the consumer is in no group.
pub(super) struct Belonging {
    looked: Time,
    /// When it was a member last, or could not be one.
    excused: Time,
}

impl Belonging {
    pub(super) fn new(now: Time) -> Belonging {
        Belonging { looked: now, excused: now }
    }
}

impl Engine<'_> {
    /// Whether brokers were in reach and the consumer in no group for longer than joining takes.
    pub(super) fn is_left_out(&mut self, now: Time) -> bool {
        if now.since(self.belonging.looked) < LOOK_EVERY {
            return false;
        }
        // A loop that stood still says nothing about the group.
        let stood_still = now.since(self.belonging.looked) > 5 * LOOK_EVERY;
        self.belonging.looked = now;
        let member = self.link.consumer.belongs();
        if member && self.job.kafka.group_protocol == GroupProtocol::Consumer {
            // It is told of partitions only: a member that gets none is one all the same.
            self.report.joined = true;
        }
        if member && self.report.joined || self.brokers_down || stood_still {
            self.belonging.excused = now;
            return false;
        }
        let alone = now.since(self.belonging.excused);
        let left_out = alone > consumer::joins_within(&self.job.kafka);
        if left_out {
            let seconds = alone.as_secs();
            warn!(
                service = self.job.service.name,
                seconds, "in no group although brokers answer: another consumer joins"
            );
            self.report.consumer_recreations += 1;
        }
        left_out
    }
}
