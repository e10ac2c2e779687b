//! The service behind the target: a queue that it finishes at a rate, more slowly while too much work waits in it.

use std::{collections::VecDeque, time::Duration};

use serde::Serialize;
use watermaster_core::units::Time;

use super::tally::{SimulatedDelays, TimeAbove, Waits};

/// The part of its rate that the service loses for each second of work beyond the knee.
const LOSS_PER_SECOND: f64 = 0.08;
/// The part of its rate that the service always keeps.
pub const LEAST_SPEED: f64 = 0.5;
/// Beyond this part of its rate the service has recovered.
const RECOVERED: f64 = 0.999;
/// The seconds in which most of a change of speed happens: to a lower one, and back.
const SLOWING_SECONDS: f64 = 2.0;
const RECOVERY_SECONDS: f64 = 10.0;
/// The longest time for which a speed is taken as constant.
const SLICE: Duration = Duration::from_millis(10);

/// Moves a part of the rate, after some time, towards the one that belongs to the seconds of work beyond the knee: down
/// soon, up slowly.
pub fn next_speed(speed: f64, beyond: f64, seconds: f64) -> f64 {
    let aim = (1.0 - LOSS_PER_SECOND * beyond.max(0.0)).max(LEAST_SPEED);
    let over = if aim < speed { SLOWING_SECONDS } else { RECOVERY_SECONDS };
    speed + (seconds / over).min(1.0) * (aim - speed)
}

/// The speed of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceModel {
    /// Records per second that it finishes.
    pub rate: u32,
    /// The time that its waiting work may take before it slows down; `None` if it never does.
    pub knee: Option<Duration>,
}

/// A record in the service.
#[derive(Debug, Clone, Copy)]
pub struct OpenRecord {
    pub client: u32,
    /// The time of its first attempt.
    pub sent: Time,
    pub admitted: Time,
}

/// The queue of a service.
#[derive(Debug)]
pub struct ServiceQueue {
    model: ServiceModel,
    threshold: Duration,
    /// Records that were admitted earlier are not counted.
    counted_from: Time,
    now: Time,
    open: VecDeque<OpenRecord>,
    /// The part of the first record that is done.
    done: f64,
    /// The present part of the rate.
    speed: f64,
    waits: Waits,
    above: TimeAbove,
    most_open: u64,
    slowest: f64,
}

/// The service's side of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServiceOutcome {
    /// Records per second.
    pub rate: u32,
    /// Times from the admission of a record until it was finished.
    pub wait_seconds: SimulatedDelays,
    pub most_open: u64,
    /// The time in which a record had been in the service for longer than the threshold.
    pub seconds_above: f64,
    /// The smallest part of its rate to which the service fell.
    pub slowest: f64,
}

impl ServiceQueue {
    pub fn new(model: ServiceModel, threshold: Duration, counted_from: Time) -> ServiceQueue {
        ServiceQueue {
            model,
            threshold,
            counted_from,
            now: Time::ZERO,
            open: VecDeque::new(),
            done: 0.0,
            speed: 1.0,
            waits: Waits::default(),
            above: TimeAbove::default(),
            most_open: 0,
            slowest: 1.0,
        }
    }

    /// Adds a record that is admitted now.
    pub fn add(&mut self, record: OpenRecord) {
        self.open.push_back(record);
        self.most_open = self.most_open.max(self.open.len() as u64);
    }

    /// Works until `until`, or until no record is open if that is earlier and the time is [`Time::NEVER`].
    pub fn advance(&mut self, until: Time, mut finished: impl FnMut(OpenRecord, Time)) {
        while self.now < until {
            if self.open.is_empty() && (self.speed >= 1.0 || until == Time::NEVER) {
                self.now = until;
                return;
            }
            let end = until.min(self.now + SLICE);
            let seconds = end.since(self.now).as_secs_f64();
            self.work(seconds, &mut finished);
            self.change_speed(seconds);
            self.now = end;
        }
    }

    fn work(&mut self, seconds: f64, finished: &mut impl FnMut(OpenRecord, Time)) {
        let per_second = f64::from(self.model.rate) * self.speed;
        let mut left = seconds;
        while let Some(first) = self.open.front() {
            let (first, needed) = (*first, (1.0 - self.done) / per_second);
            if needed > left {
                self.done += left * per_second;
                return;
            }
            (left, self.done) = (left - needed, 0.0);
            let now = self.now + Duration::from_secs_f64((seconds - left).max(0.0));
            self.count(first.admitted, now);
            finished(first, now);
            self.open.pop_front();
        }
    }

    fn count(&mut self, admitted: Time, now: Time) {
        if admitted >= self.counted_from {
            self.waits.record(now.since(admitted));
            if now.since(admitted) > self.threshold {
                self.above.add(admitted + self.threshold, now);
            }
        }
    }

    fn change_speed(&mut self, seconds: f64) {
        let Some(knee) = self.model.knee else { return };
        let beyond = self.open.len() as f64 / f64::from(self.model.rate) - knee.as_secs_f64();
        self.speed = next_speed(self.speed, beyond, seconds);
        if beyond <= 0.0 && self.speed > RECOVERED {
            self.speed = 1.0;
        }
        self.slowest = self.slowest.min(self.speed);
    }

    pub fn outcome(&self) -> ServiceOutcome {
        ServiceOutcome {
            rate: self.model.rate,
            wait_seconds: self.waits.result(),
            most_open: self.most_open,
            seconds_above: self.above.seconds(),
            slowest: (self.slowest * 1e3).round() / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::from_nanos((seconds * 1e9) as u64)
    }

    /// Admits a record at each of these seconds and works until all are finished.
    fn served(model: ServiceModel, admitted: impl IntoIterator<Item = f64>) -> (Vec<f64>, ServiceOutcome) {
        let mut queue = ServiceQueue::new(model, Duration::from_secs(1), Time::ZERO);
        let mut times = Vec::new();
        let mut finished = |_, now: Time| times.push((now.as_nanos() as f64 / 1e7).round() / 1e2);
        for seconds in admitted {
            queue.advance(at(seconds), &mut finished);
            queue.add(OpenRecord { client: 0, sent: Time::ZERO, admitted: at(seconds) });
        }
        queue.advance(Time::NEVER, &mut finished);
        (times, queue.outcome())
    }

    #[test]
    fn records_are_finished_one_after_the_other() {
        let (times, outcome) = served(ServiceModel { rate: 2, knee: None }, [0.0, 0.0, 0.1, 5.0, 5.2, 5.2, 5.2]);
        assert_eq!(times, [0.5, 1.0, 1.5, 5.5, 6.0, 6.5, 7.0]);
        let SimulatedDelays { p50, max, .. } = outcome.wait_seconds;
        assert_eq!((outcome.most_open, p50, max, outcome.slowest), (4, Some(1.0), Some(1.8), 1.0));
        // Above one second from 1.1 s to 1.5 s, and from 6.2 s to 7 s.
        assert!((outcome.seconds_above - 1.2).abs() < 0.02, "{outcome:?}");
    }

    /// At 90 % of its rate a healthy service keeps up. After a burst it stays slow, because it never gets the time to
    /// work the burst off: more comes than it can finish at half its rate.
    #[test]
    fn beyond_the_knee_the_service_slows_down_and_does_not_recover() {
        let steady = (0..20_000).map(|n| f64::from(n) / 90.0);
        let slow = ServiceModel { rate: 100, knee: Some(Duration::from_secs(4)) };
        let (_, healthy) = served(slow, steady.clone());
        assert!(healthy.slowest == 1.0 && healthy.wait_seconds.max.unwrap() < 0.1, "{healthy:?}");
        let burst = || (0..2_000).map(|_| 0.0).chain(steady.clone());
        let (_, fast) = served(ServiceModel { knee: None, ..slow }, burst());
        assert_eq!((fast.slowest, fast.wait_seconds.max.map(f64::round)), (1.0, Some(20.0)));
        let (_, fallen) = served(slow, burst());
        assert!(fallen.slowest < 0.51 && fallen.wait_seconds.max.unwrap() > 100.0, "{fallen:?}");
    }

    #[test]
    fn an_idle_service_recovers() {
        let slow = ServiceModel { rate: 100, knee: Some(Duration::from_secs(4)) };
        let (times, _) = served(slow, (0..1_000).map(|_| 0.0).chain([200.0]));
        assert_eq!(times.last(), Some(&200.01));
    }
}
