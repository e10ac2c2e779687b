use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A record's reason and time; `None` for a marker of a transaction.
type Slot = Option<(usize, i64)>;

#[derive(Debug, Clone)]
enum Step {
    Append(Vec<Slot>),
    /// All dead letters before this one are done.
    Move(usize),
    /// A job does these dead letters.
    Do(usize, usize),
    /// Retention removes the oldest records.
    Expire(usize),
    /// The topic is made anew.
    Replace,
    /// A look counts at most this number of offsets.
    Look(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let slot = prop::option::weighted(0.9, (0..REASON_LABELS.len(), -1..1_000_i64));
    prop_oneof![
        4 => prop::collection::vec(slot, 0..40).prop_map(Step::Append),
        2 => (0..300_usize).prop_map(Step::Move),
        4 => (0..300_usize, 0..40_usize).prop_map(|(start, length)| Step::Do(start, length)),
        1 => (0..20_usize).prop_map(Step::Expire),
        1 => Just(Step::Replace),
        6 => prop_oneof![Just(usize::MAX), 0..30_usize].prop_map(Step::Look),
    ]
}

/// Counts the records of some offsets in the plain way.
fn recount(log: &[Slot], offsets: impl Iterator<Item = usize>) -> Tallies {
    let mut tallies = Tallies::default();
    for (reason, time) in offsets.filter_map(|offset| log[offset]) {
        tallies[reason].records += 1;
        let times = tallies[reason].oldest_ms.into_iter().chain((time >= 0).then_some(time));
        tallies[reason].oldest_ms = times.min();
    }
    tallies
}

/// Counts the gaps in chunks of at most `step` offsets until the budget is used up.
fn look(chunks: &mut Chunks, log: &[Slot], done: &BTreeSet<i64>, range: &Range<i64>, mut budget: usize, step: usize) {
    let count = |range: Range<i64>| done.range(range).count() as u64;
    chunks.keep(range, count);
    while let Some(gap) = chunks.gap(range).filter(|_| budget > 0) {
        let end = gap.end.min(gap.start.saturating_add_unsigned(budget.min(step) as u64));
        let mut chunk = Chunk::starting_at(gap.start);
        for offset in gap.start..end {
            if let Some((reason, time)) = log[offset as usize].filter(|_| !done.contains(&offset)) {
                let name = (reason < Reason::NAMES.len()).then_some(REASON_LABELS[reason].as_bytes());
                chunk.count(offset, name, time);
            }
        }
        chunk.close(end);
        chunk.set_done(count);
        budget -= (end - gap.start) as usize;
        chunks.add(chunk);
    }
}

proptest! {
    #[test]
    fn the_figures_equal_a_plain_recount(steps in prop::collection::vec(step(), 1..60), chunk in 1..4_usize) {
        let (mut log, mut chunks) = (Vec::<Slot>::new(), Chunks::default());
        let (mut position, mut low, mut done) = (0, 0, BTreeSet::new());
        for step in steps {
            match step {
                Step::Append(slots) => log.extend(slots),
                Step::Move(to) => position = to.clamp(position, log.len()),
                Step::Do(start, length) => {
                    done.extend((start..start + length).take_while(|at| *at < log.len()).map(|at| at as i64));
                }
                Step::Expire(count) => low = (low + count).min(log.len()),
                Step::Replace => {
                    // A topic that grows beyond the former end between two looks is not noticed.
                    (log, position, low, done) = (Vec::new(), 0, 0, BTreeSet::new());
                    chunks.keep(&(0..0), |_| 0);
                }
                Step::Look(budget) => {
                    let range = position.max(low) as i64..log.len() as i64;
                    look(&mut chunks, &log, &done, &range, budget, chunk);
                    let open = |at: &usize| !done.contains(&(*at as i64));
                    let counted = chunks.0.iter().flat_map(|chunk| chunk.start as usize..chunk.end as usize);
                    prop_assert!(chunks.0.is_sorted_by(|one, next| one.end <= next.start));
                    let (tallies, offsets) = chunks.total();
                    prop_assert_eq!(tallies, recount(&log, counted.clone().filter(open)));
                    prop_assert_eq!(offsets, counted.clone().filter(open).count() as u64);
                    prop_assert!(counted.clone().all(|offset| range.contains(&(offset as i64))));
                    if budget == usize::MAX {
                        prop_assert_eq!(tallies, recount(&log, (range.start as usize..log.len()).filter(open)));
                    }
                }
            }
        }
    }
}

#[test]
fn the_number_of_chunks_is_bounded_and_the_chunks_stay_even() {
    let log = vec![Some((0, 5)); 3_000_000];
    let mut chunks = Chunks::default();
    look(&mut chunks, &log, &BTreeSet::new(), &(0..3_000_000), usize::MAX, 3_000);
    assert!((MAX_CHUNKS / 2..=MAX_CHUNKS).contains(&chunks.0.len()), "{}", chunks.0.len());
    let longest = chunks.0.iter().map(Chunk::len).max().unwrap();
    assert!(longest <= 4 * 3_000_000 / MAX_CHUNKS as i64, "{longest}");
    assert_eq!(chunks.total().0[0], Tally { records: 3_000_000, oldest_ms: Some(5) });
    // A begin in the middle of a chunk drops that chunk alone.
    chunks.keep(&(longest + 1..3_000_000), |_| 0);
    let gap = chunks.gap(&(longest + 1..3_000_000)).unwrap();
    assert!(gap.start == longest + 1 && gap.end - gap.start < longest, "{gap:?}");
}
