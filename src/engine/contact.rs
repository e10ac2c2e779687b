//! Contact with the brokers. Clients are not to blame for records that piled up while none could be read, so in reject
//! mode the core is told which records these are.

use std::time::Duration;

use tracing::info;
use watermaster_core::policy::{CatchUp, Mode};
use watermaster_core::{throttle::Throttle, units::Time};

use super::{link::Link, membership::MembershipWatch};

/// An idle loop sleeps for up to half a second, or a short cycle: that is no gap.
const SLEEP: Duration = Duration::from_secs(1);
/// The longest wait for high watermarks.
const WATERMARKS_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches whether brokers and group are in reach.
pub(super) struct Contact {
    /// The last time that the loop went round with brokers in reach.
    pub(super) last: Time,
    /// The last time that a connection to a broker broke.
    pub(super) broker_lost: Option<Time>,
    pub(super) membership: MembershipWatch,
}

impl Contact {
    pub(super) fn new(last: Time, now: Time) -> Contact {
        Contact { last, broker_lost: None, membership: MembershipWatch::new(now) }
    }

    /// Notes contact. If there was none for longer than a cycle (a late round, a stopped process, brokers away), the
    /// records that piled up are to be caught up with.
    pub(super) fn end_gap(&mut self, now: Time, throttle: &mut Throttle, link: &mut Link<'_>) {
        let gap = now.since(std::mem::replace(&mut self.last, now));
        if !catches_up(throttle) || gap <= throttle.policy().cycle + SLEEP {
            return;
        }
        info!(
            service = link.job.service.name,
            seconds = gap.as_secs_f64(),
            "nothing was read for longer than a cycle: catching up"
        );
        let assigned: Vec<_> = link.partitions.assigned().collect();
        // A cached watermark would count the gap's own records as live, so the brokers are asked where they answer.
        let addresses: Vec<_> = assigned.iter().map(|(_, address)| *address).collect();
        let asked = link.consumer.highs(&addresses, WATERMARKS_TIMEOUT);
        for (number, address) in assigned {
            let high = asked.get(&address).copied().or_else(|| link.consumer.cached_high(address.0, address.1));
            let entry = &mut link.partitions[number];
            if let Some(high) = high {
                entry.high = entry.high.max(high);
                throttle.handle_fetch_gap(number, entry.high);
            }
        }
    }

    /// Notes that a record of this partition is read. If a broker was lost since the record before, and that was more
    /// than a cycle ago, the partition may have had no leader: the records of the same fetch are to be caught up with.
    pub(super) fn end_silence(&mut self, now: Time, number: u32, throttle: &mut Throttle, link: &mut Link<'_>) {
        let entry = &mut link.partitions[number];
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
}

fn catches_up(throttle: &Throttle) -> bool {
    let policy = throttle.policy();
    policy.mode == Mode::Reject && policy.catch_up == CatchUp::Delay
}
