//! The rate of a client over time, in linear pieces, and the time at which each record is due.

use std::time::Duration;

use super::scenario::Phase;

/// The rate of a client over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The number of all records.
    pub total: f64,
    pieces: Vec<Piece>,
}

/// A piece in which the rate changes linearly. Times are in seconds, rates in records per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    start: f64,
    length: f64,
    from: f64,
    to: f64,
    /// Records that are due before the piece begins.
    before: f64,
}

impl Piece {
    fn records_after(&self, seconds: f64) -> f64 {
        let rate = self.from + (self.to - self.from) * seconds / self.length;
        (self.from + rate) / 2.0 * seconds
    }

    /// Returns the seconds since the piece began after which this many of its records are due:
    ///
    /// the positive root of from·t + slope/2·t² = records, in the form that stays exact when the slope is near 0.
    fn seconds_until(&self, records: f64) -> f64 {
        let slope = (self.to - self.from) / self.length;
        let root = (self.from * self.from + 2.0 * slope * records).max(0.0).sqrt();
        let divisor = self.from + root;
        if divisor > 0.0 { (2.0 * records / divisor).min(self.length) } else { 0.0 }
    }
}

impl Profile {
    /// Joins phases, at a service that takes `capacity_per_second` records per second.
    pub fn new(phases: &[Phase], capacity_per_second: f64) -> Profile {
        let mut profile = Profile { pieces: Vec::new(), total: 0.0 };
        let mut start = 0.0;
        for phase in phases.iter().filter(|phase| phase.length > Duration::ZERO) {
            let [from, to] = [phase.from, phase.to].map(|rate| rate.per_second(phase.length, capacity_per_second));
            let length = phase.length.as_secs_f64();
            let piece = Piece { start, length, from, to, before: profile.total };
            start += length;
            profile.total += piece.records_after(length);
            profile.pieces.push(piece);
        }
        profile
    }

    /// Returns the first moment at which this many records are due; `None` if there are fewer.
    pub fn moment(&self, records: f64) -> Option<Duration> {
        if records >= self.total {
            return None;
        }
        // Of several pieces that begin with the same count, only the last one sends records.
        let index = self.pieces.partition_point(|piece| piece.before <= records).checked_sub(1)?;
        let piece = self.pieces[index];
        Some(Duration::from_secs_f64(piece.start + piece.seconds_until(records - piece.before)))
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::super::scenario::Rate;
    use super::*;

    impl Profile {
        /// Returns the number of records that are due until `at`.
        pub fn expected(&self, at: Duration) -> f64 {
            let at = at.as_secs_f64();
            let index = self.pieces.partition_point(|piece| piece.start <= at);
            match index.checked_sub(1).map(|index| self.pieces[index]) {
                Some(piece) => piece.before + piece.records_after((at - piece.start).min(piece.length)),
                None => 0.0,
            }
        }
    }

    fn phase() -> impl Strategy<Value = Phase> {
        let rate = || {
            prop_oneof![
                Just(Rate::PerSecond(0.0)),
                (0.0..500.0_f64).prop_map(Rate::PerSecond),
                (1..2_000_u32).prop_map(Rate::Records),
            ]
        };
        let length = (1..20_000_u64).prop_map(Duration::from_millis);
        (rate(), rate(), length).prop_map(|(from, to, length)| Phase { length, from, to })
    }

    #[test]
    fn a_campaign_is_a_trapezoid() {
        let second = Duration::from_secs(1);
        let (base, peak) = (Rate::PerSecond(10.0), Rate::OfCapacity(0.5));
        let phase = |seconds, from, to| Phase { length: seconds * second, from, to };
        let profile = Profile::new(&[phase(2, base, peak), phase(4, peak, peak), phase(2, peak, base)], 100.0);
        assert_eq!(profile.total, 60.0 + 200.0 + 60.0);
        assert_eq!(profile.expected(second), 20.0);
        assert_eq!(profile.moment(20.0), Some(second));
        assert_eq!(profile.moment(160.0), Some(4 * second));
        assert_eq!(profile.moment(320.0), None);
    }

    #[test]
    fn pauses_are_skipped() {
        let steady = |rate| {
            let rate = Rate::PerSecond(rate);
            Phase { length: Duration::from_secs(5), from: rate, to: rate }
        };
        let profile = Profile::new(&[steady(0.0), steady(1.0), steady(0.0), steady(1.0)], 1.0);
        assert_eq!([0.0, 4.0, 5.0].map(|n| profile.moment(n).unwrap().as_secs()), [5, 9, 15]);
        assert_eq!(Profile::new(&[steady(0.0)], 1.0).moment(0.0), None);
    }

    proptest! {
        #[test]
        fn moment_and_expected_are_inverse(phases in prop::collection::vec(phase(), 1..6), part in 0.0..1.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let records = profile.total * part;
            if let Some(at) = profile.moment(records) {
                let length: Duration = phases.iter().map(|phase| phase.length).sum();
                prop_assert!(at <= length + Duration::from_nanos(2));
                let back = profile.expected(at);
                prop_assert!((back - records).abs() <= 1e-5 * (1.0 + records), "{records} at {at:?}, then {back} are due");
            } else {
                prop_assert!(records >= profile.total);
            }
        }

        #[test]
        fn moments_are_ascending(phases in prop::collection::vec(phase(), 1..6), step in 0.5..20.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let moments: Vec<_> = (0..).map_while(|n| profile.moment(f64::from(n) * step)).take(3_000).collect();
            prop_assert!(moments.is_sorted());
        }
    }
}
