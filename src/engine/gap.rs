//! Catching up: what piled up while nothing could be read is nobody's fault, and in reject mode it is told to the core.

use std::time::Duration;

use tracing::info;
use watermaster_core::policy::{CatchUp, Mode};
use watermaster_core::units::Time;

use super::Engine;

/// The loop sleeps for up to half a second, or a short cycle, when there is nothing to do: that is no gap.
const SLEEP: Duration = Duration::from_secs(1);
/// The longest wait for high watermarks.
const ASK: Duration = Duration::from_secs(2);

impl Engine<'_> {
    /// The loop stood still (a late round, a stopped process) or the brokers were away for longer than a cycle: what
    /// piled up meanwhile is nobody's fault.
    pub(super) fn notice_gap(&mut self, now: Time) {
        if !self.brokers_down {
            self.gap_ends(now);
        }
    }

    pub(super) fn gap_ends(&mut self, now: Time) {
        let gap = now.since(self.last_contact);
        self.last_contact = now;
        if !self.catches_up() || gap <= self.throttle.policy().cycle + SLEEP {
            return;
        }
        info!(
            service = self.job.service.name,
            seconds = gap.as_secs_f64(),
            "nothing was read for longer than a cycle: catching up"
        );
        let assigned: Vec<_> = self.link.places.assigned().collect();
        // A stale answer would count the gap's own records as live, so ask the brokers where they can be asked.
        let addresses: Vec<_> = assigned.iter().map(|(_, address)| *address).collect();
        let asked = self.link.consumer.highs(&addresses, ASK);
        for (number, address) in assigned {
            let high = asked.get(&address).copied().or_else(|| self.link.consumer.cached_high(address.0, address.1));
            let place = &mut self.link.places[number];
            if let Some(high) = high {
                place.high = place.high.max(high);
                self.throttle.handle_fetch_gap(number, place.high);
            }
        }
    }

    /// A record of this partition is being read. If a broker was lost since the one before, and that was longer than a
    /// cycle ago, the partition may have had no leader: what the same fetch brought is catching up.
    pub(super) fn notice_silence(&mut self, now: Time, number: u32) {
        let place = &mut self.link.places[number];
        let before = std::mem::replace(&mut place.read_at, now);
        let suspect = self.broker_lost.is_some_and(|lost| before <= lost);
        if !suspect || now.since(before) <= self.throttle.policy().cycle {
            return;
        }
        let (source, partition) = (place.source, place.partition);
        if self.catches_up()
            && let Some(high) = self.link.consumer.cached_high(source, partition)
        {
            self.throttle.handle_fetch_gap(number, high);
        }
    }

    fn catches_up(&self) -> bool {
        let policy = self.throttle.policy();
        policy.mode == Mode::Reject && policy.catch_up == CatchUp::Delay
    }
}
