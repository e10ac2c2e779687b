//! A rate over time, made of straight pieces, and when so many records are due.

use std::time::Duration;

use super::scenario::Phase;

/// What a client sends over time: `expected(t)` records until `t`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pieces: Vec<Piece>,
    length: f64,
    total: f64,
}

/// A straight piece: seconds, records per second, records.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    start: f64,
    length: f64,
    from: f64,
    to: f64,
    /// What is due before it begins.
    before: f64,
}

impl Piece {
    fn records_after(&self, seconds: f64) -> f64 {
        let rate = self.from + (self.to - self.from) * seconds / self.length;
        (self.from + rate) / 2.0 * seconds
    }

    /// When so many records of it are due, in seconds since it began.
    ///
    /// The positive root of from·t + slope/2·t² = records, in the form that stays exact when the slope is near 0.
    fn seconds_until(&self, records: f64) -> f64 {
        let slope = (self.to - self.from) / self.length;
        let root = (self.from * self.from + 2.0 * slope * records).max(0.0).sqrt();
        let divisor = self.from + root;
        if divisor > 0.0 { (2.0 * records / divisor).min(self.length) } else { 0.0 }
    }
}

impl Profile {
    /// The phases, one after the other, at a service that takes so many records per second.
    pub fn new(phases: &[Phase], capacity_per_second: f64) -> Profile {
        let mut profile = Profile { pieces: Vec::new(), length: 0.0, total: 0.0 };
        for (length, from, to) in phases.iter().flat_map(|phase| phase.pieces(capacity_per_second)) {
            let length = length.as_secs_f64();
            let piece = Piece { start: profile.length, length, from, to, before: profile.total };
            profile.length += length;
            if length > 0.0 {
                profile.total += piece.records_after(length);
                profile.pieces.push(piece);
            }
        }
        profile
    }

    /// All records.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// How long it takes.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.length)
    }

    /// Records until `at`.
    pub fn expected(&self, at: Duration) -> f64 {
        let at = at.as_secs_f64();
        let index = self.pieces.partition_point(|piece| piece.start <= at);
        match index.checked_sub(1).map(|index| self.pieces[index]) {
            Some(piece) => piece.before + piece.records_after((at - piece.start).min(piece.length)),
            None => 0.0,
        }
    }

    /// The first moment at which so many records are due; `None`: they never are.
    pub fn moment(&self, records: f64) -> Option<Duration> {
        if records >= self.total {
            return None;
        }
        // Of pieces that begin with the same count only the last sends anything.
        let index = self.pieces.partition_point(|piece| piece.before <= records).checked_sub(1)?;
        let piece = self.pieces[index];
        Some(Duration::from_secs_f64(piece.start + piece.seconds_until(records - piece.before)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::scenario::Rate;
    use super::*;

    fn phase() -> impl Strategy<Value = Phase> {
        let rate = || prop_oneof![Just(0.0), 0.0..500.0_f64].prop_map(Rate::PerSecond);
        let length = || (1..20_000_u64).prop_map(Duration::from_millis);
        prop_oneof![
            (rate(), length()).prop_map(|(rate, length)| Phase::Steady { rate, length }),
            (rate(), rate(), length()).prop_map(|(from, to, length)| Phase::Ramp { from, to, length }),
            (1..2_000_u32, length()).prop_map(|(records, length)| Phase::Burst { records, length }),
            (rate(), rate(), length(), length(), length())
                .prop_map(|(base, peak, rise, plateau, decay)| Phase::Campaign { base, peak, rise, plateau, decay }),
        ]
    }

    #[test]
    fn a_campaign_is_a_trapezoid() {
        let second = Duration::from_secs(1);
        let (base, peak) = (Rate::PerSecond(10.0), Rate::OfCapacity(0.5));
        let campaign = Phase::Campaign { base, peak, rise: 2 * second, plateau: 4 * second, decay: 2 * second };
        let profile = Profile::new(&[campaign], 100.0);
        assert_eq!((profile.total(), profile.length()), (60.0 + 200.0 + 60.0, 8 * second));
        assert_eq!(profile.expected(second), 20.0);
        assert_eq!(profile.moment(20.0), Some(second));
        assert_eq!(profile.moment(160.0), Some(4 * second));
        assert_eq!(profile.moment(320.0), None);
    }

    #[test]
    fn silence_is_passed_over() {
        let steady = |rate| Phase::Steady { rate: Rate::PerSecond(rate), length: Duration::from_secs(5) };
        let profile = Profile::new(&[steady(0.0), steady(1.0), steady(0.0), steady(1.0)], 1.0);
        assert_eq!([0.0, 4.0, 5.0].map(|n| profile.moment(n).unwrap().as_secs()), [5, 9, 15]);
        assert_eq!(Profile::new(&[steady(0.0)], 1.0).moment(0.0), None);
    }

    proptest! {
        #[test]
        fn a_moment_is_when_so_many_are_expected(phases in prop::collection::vec(phase(), 1..6), part in 0.0..1.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let records = profile.total() * part;
            if let Some(at) = profile.moment(records) {
                prop_assert!(at <= profile.length() + Duration::from_nanos(2));
                let back = profile.expected(at);
                prop_assert!((back - records).abs() <= 1e-5 * (1.0 + records), "{records} at {at:?}, which expects {back}");
            } else {
                prop_assert!(records >= profile.total());
            }
        }

        #[test]
        fn moments_come_in_order(phases in prop::collection::vec(phase(), 1..6), step in 0.5..20.0_f64) {
            let profile = Profile::new(&phases, 100.0);
            let moments: Vec<_> = (0..).map_while(|n| profile.moment(f64::from(n) * step)).take(3_000).collect();
            prop_assert!(moments.is_sorted());
        }
    }
}
