//! The tracker compared with a model of sets, over logs with holes, restarts and compaction.

use std::collections::BTreeSet;

use proptest::prelude::*;
use watermaster_core::offset_map::{MAX_SPAN, MapBudget, decode, encode};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::tracker::{Seen, Tracker};

const BUDGET: MapBudget = MapBudget::Chars(4096);

#[derive(Debug, Clone)]
enum Step {
    /// Reads the next record; if there is none, appends one at this distance beyond the end.
    Read(i64),
    /// Reads the log up to its end, after appending this number of markers.
    ReadEnd(i64),
    /// Completes one of the pending records.
    Complete(prop::sample::Index),
    /// Completes the first pending record.
    CompleteBase,
    /// Reads all records again.
    Rewind,
    /// Removes a record from the log.
    Compact(prop::sample::Index),
    /// Starts a new owner from the offset map.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![20 => Just(0), 5 => 1..4i64, 2 => 60..140i64, 1 => 1_000_000_000..4_000_000_000i64];
    let step = prop_oneof![
        12 => gap.clone().prop_map(Step::Read),
        2 => gap.prop_map(Step::ReadEnd),
        9 => any::<prop::sample::Index>().prop_map(Step::Complete),
        2 => Just(Step::CompleteBase),
        1 => Just(Step::Rewind),
        1 => any::<prop::sample::Index>().prop_map(Step::Compact),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..120)
}

/// A simple model of a log and its reader.
struct Model {
    log: BTreeSet<i64>,
    log_end: i64,
    done: BTreeSet<i64>,
    pending: BTreeSet<i64>,
    next: i64,
    restored: OffsetRuns,
}

impl Model {
    fn base(&self) -> i64 {
        let mut unread = self.next;
        while self.restored.contains(unread) {
            unread += 1;
        }
        self.pending.first().copied().unwrap_or(unread).min(unread)
    }

    fn read(&mut self, gap: i64) -> (i64, Seen) {
        let offset = match self.log.range(self.next..).next() {
            Some(offset) => *offset,
            None => self.log_end.max(self.next) + gap,
        };
        self.log.insert(offset);
        self.log_end = self.log_end.max(offset + 1);
        self.next = offset + 1;
        if self.done.contains(&offset) {
            return (offset, Seen::Completed);
        }
        self.pending.insert(offset);
        (offset, Seen::New)
    }
}

struct Pair {
    tracker: Tracker,
    model: Model,
}

impl Pair {
    fn new(start: i64) -> Pair {
        let model = Model {
            log: BTreeSet::new(),
            log_end: start,
            done: BTreeSet::new(),
            pending: BTreeSet::new(),
            next: start,
            restored: OffsetRuns::new(),
        };
        Pair { tracker: Tracker::new(start), model }
    }

    fn apply(&mut self, step: &Step) {
        let bound = self.tracker.bits_bound();
        match step {
            Step::Read(gap) => {
                let (offset, seen) = self.model.read(*gap);
                assert_eq!(self.tracker.observe(offset), seen, "offset {offset}");
                assert!(self.tracker.bits_bound() <= bound, "a read enlarged the map");
            }
            Step::ReadEnd(markers) => self.read_end(*markers, bound),
            Step::Complete(index) if !self.model.pending.is_empty() => {
                let pending: Vec<i64> = self.model.pending.iter().copied().collect();
                self.complete(*index.get(&pending), bound);
            }
            Step::CompleteBase if !self.model.pending.is_empty() => {
                self.complete(self.model.pending.first().copied().unwrap(), bound);
            }
            Step::Rewind => {
                for offset in self.model.log.range(..self.model.next) {
                    let pending = self.model.pending.contains(offset);
                    let expected = if pending { Seen::Again } else { Seen::Completed };
                    assert_eq!(self.tracker.observe(*offset), expected, "offset {offset}");
                }
            }
            Step::Compact(index) if !self.model.log.is_empty() => {
                let log: Vec<i64> = self.model.log.iter().copied().collect();
                self.model.log.remove(index.get(&log));
            }
            Step::Restart => self.restart(),
            Step::Complete(_) | Step::CompleteBase | Step::Compact(_) => {}
        }
        self.check();
    }

    fn read_end(&mut self, markers: i64, bound: u64) {
        while self.model.log.range(self.model.next..).next().is_some() {
            let (offset, seen) = self.model.read(0);
            assert_eq!(self.tracker.observe(offset), seen);
        }
        self.model.log_end += markers;
        self.model.next = self.model.next.max(self.model.log_end);
        self.tracker.observe_end(self.model.next);
        assert!(self.tracker.bits_bound() <= bound, "a read enlarged the map");
    }

    fn complete(&mut self, offset: i64, bound: u64) {
        let base = self.tracker.base();
        let predicted = self.tracker.bits_bound_after(offset);
        if predicted == u64::MAX {
            assert!(offset.abs_diff(base) >= MAX_SPAN);
            return;
        }
        self.tracker.complete(offset);
        self.model.pending.remove(&offset);
        self.model.done.insert(offset);
        if offset == base {
            assert!(
                self.tracker.bits_bound() <= predicted && predicted <= bound,
                "completing the base enlarged the map"
            );
        } else {
            assert_eq!(self.tracker.bits_bound(), predicted, "completing {offset}");
        }
        let once = self.tracker.bits_bound();
        self.tracker.complete(offset);
        assert_eq!(self.tracker.bits_bound(), once);
    }

    fn restart(&mut self) {
        let text = encode(BUDGET, &self.tracker, 1, &[], None).unwrap();
        let base = self.tracker.base();
        let map = decode(base, text.as_bytes()).unwrap();
        self.tracker = Tracker::restore(base, &map.completed);
        self.model.restored = map.completed;
        self.model.next = base;
        self.model.pending.clear();
    }

    fn check(&self) {
        let (tracker, model) = (&self.tracker, &self.model);
        assert_eq!(tracker.base(), model.base());
        assert_eq!(tracker.next(), model.next);
        assert!(model.done.iter().all(|offset| tracker.is_completed(*offset)));
        assert!(!model.pending.iter().any(|offset| tracker.is_completed(*offset)));
        self.check_runs();
    }

    fn check_runs(&self) {
        let (tracker, model) = (&self.tracker, &self.model);
        let runs: OffsetRuns = tracker.runs().collect();
        assert_eq!(runs.iter().count(), tracker.runs().count(), "adjacent runs are not merged");
        for run in runs.iter() {
            assert!(run.start > tracker.base());
            assert!(model.pending.range(run.clone()).next().is_none(), "{run:?} contains a pending record");
            let unread = run.start.max(model.next)..run.end;
            assert!(unread.is_empty() || unread.clone().step_by(1).all(|offset| model.restored.contains(offset)));
        }
        let beyond = model.done.range(tracker.base()..);
        assert!(beyond.clone().all(|offset| runs.contains(*offset)), "a completed record is not in the map");
        let end = runs.iter().last().map_or(tracker.base(), |run| run.end);
        assert_eq!(tracker.span(), end.abs_diff(tracker.base()));
        let fresh = Tracker::restore(tracker.base(), &runs);
        assert_eq!(fresh.bits_bound(), tracker.bits_bound(), "the counts differ from the runs");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn tracks_the_same_offsets_as_a_set(start in prop_oneof![Just(0), 0..200i64, Just(1 << 50)], steps in steps()) {
        let mut pair = Pair::new(start);
        for step in &steps {
            pair.apply(step);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn base_reaches_the_end_of_the_log_once_all_records_are_completed(steps in steps(), seed in any::<u64>()) {
        let mut pair = Pair::new(7);
        for step in &steps {
            pair.apply(step);
        }
        pair.read_end(0, u64::MAX);
        let mut seed = seed;
        while !pair.model.pending.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = (seed >> 33) as usize % pair.model.pending.len();
            let offset = pair.model.pending.iter().copied().nth(pick).unwrap();
            let far = pair.tracker.bits_bound_after(offset) == u64::MAX;
            let offset = if far { pair.tracker.base() } else { offset };
            let bound = pair.tracker.bits_bound();
            pair.complete(offset, bound);
        }
        prop_assert_eq!(pair.tracker.base(), pair.model.next);
        prop_assert_eq!(pair.tracker.span(), 0);
    }
}

#[test]
fn completions_in_order_leave_an_empty_map() {
    let mut tracker = Tracker::new(5);
    for offset in 5..100_000 {
        assert_eq!(tracker.observe(offset), Seen::New);
        tracker.complete(offset);
        assert_eq!((tracker.base(), tracker.span()), (offset + 1, 0));
    }
}

#[test]
fn a_hole_completes_with_the_record_before_it() {
    let mut tracker = Tracker::new(0);
    for offset in [0, 2, 4] {
        tracker.observe(offset);
    }
    tracker.complete(2);
    assert!(!tracker.is_completed(1) && tracker.is_completed(2) && tracker.is_completed(3));
    assert_eq!((tracker.runs().next(), tracker.runs().count()), (Some(2..3), 1));
    tracker.complete(0);
    assert_eq!(tracker.base(), 4);
}

#[test]
fn holes_found_in_steps_are_merged() {
    let mut tracker = Tracker::new(0);
    tracker.observe(0);
    tracker.observe(1);
    for end in 3..1000 {
        tracker.observe_end(end);
    }
    tracker.observe(1001);
    tracker.complete(1);
    tracker.complete(1001);
    assert_eq!((tracker.runs().next(), tracker.runs().count()), (Some(1..1002), 1));
}

#[test]
fn an_offset_missing_from_the_map_is_a_hole_only_once_the_log_skips_it() {
    let mut tracker = Tracker::restore(10, &[12..14, 16..18].into_iter().collect());
    assert_eq!((tracker.base(), tracker.next(), tracker.span()), (10, 10, 8));
    assert_eq!(tracker.observe(10), Seen::New);
    assert_eq!(tracker.observe(12), Seen::Completed, "11 was skipped");
    tracker.complete(10);
    assert_eq!(tracker.base(), 14, "offset 14 is not read yet");
    assert_eq!(tracker.observe(15), Seen::New);
    assert_eq!(tracker.base(), 15);
    tracker.complete(15);
    assert_eq!(tracker.base(), 18);
    assert_eq!(tracker.observe(16), Seen::Completed);
}

#[test]
fn no_record_completes_beyond_max_span_and_gaps_take_no_memory() {
    let far = 1 << 60;
    let mut tracker = Tracker::new(0);
    for offset in [0, 1, far, far + 2] {
        assert_eq!(tracker.observe(offset), Seen::New);
    }
    assert_eq!(tracker.bits_bound_after(far), u64::MAX);
    tracker.complete(far);
    assert!(!tracker.is_completed(far));
    tracker.complete(1);
    assert!(tracker.is_completed(far - 1));
    tracker.complete(0);
    assert_eq!(tracker.base(), far);
    tracker.complete(far);
    assert_eq!(tracker.base(), far + 2);
}

#[test]
fn map_reaches_max_span_and_not_beyond() {
    let mut tracker = Tracker::new(0);
    tracker.observe(0);
    tracker.observe_end(MAX_SPAN as i64 - 1);
    tracker.observe(MAX_SPAN as i64 - 1);
    tracker.observe(MAX_SPAN as i64);
    assert_eq!(tracker.bits_bound_after(MAX_SPAN as i64), u64::MAX);
    assert!(tracker.bits_bound_after(MAX_SPAN as i64 - 1) < 1000);
    tracker.complete(MAX_SPAN as i64 - 1);
    assert_eq!(tracker.span(), MAX_SPAN);
    let text = encode(BUDGET, &tracker, 1, &[], None).unwrap();
    let map = decode(0, text.as_bytes()).unwrap();
    assert_eq!(map.completed, tracker.runs().collect());
}
