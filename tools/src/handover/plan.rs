//! Plans the offset with which the group that takes a partition over begins. No plan skips a record that nothing has
//! done.

use watermaster_core::offset_map::{self, DecodeError, MapBudget, OffsetMap, TooLarge};
use watermaster_core::{offset_runs::OffsetRuns, tracker::Tracker};

/// The way that the offsets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From Watermaster's group to the service's own.
    To,
    /// From the service's own group to Watermaster's.
    From,
}

/// The offsets of a partition before the handover.
#[derive(Debug, Clone)]
pub(super) struct GroupOffsets {
    /// Watermaster's committed offset and the map beside it.
    pub ours: Option<(i64, Result<OffsetMap, DecodeError>)>,
    /// The committed offset of the service's own group.
    pub theirs: Option<i64>,
    /// The first offset, and the end of the stable records.
    pub bounds: (i64, i64),
}

/// A fact about a partition that people have to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Note {
    #[error("neither group has an offset: begins at the first record")]
    Fresh,
    #[error("only the taking group has an offset: keeps it")]
    Kept,
    #[error("the offset map can't be read: more records may be done twice")]
    UnknownMap,
    #[error("up to {0} records were deleted before they were read")]
    Deleted(i64),
    #[error("the taking group is ahead by {0}")]
    Ahead(i64),
    #[error("the offset lies beyond the end: the topic was made anew, or records of an open transaction were read")]
    BeyondEnd,
}

/// The plan for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartitionPlan {
    /// The offset of the taking group after the handover.
    pub offset: i64,
    /// The metadata to commit with it; `None` if the group has this offset.
    pub commit: Option<String>,
    /// The completed offsets that will be done again.
    pub twice: OffsetRuns,
    pub note: Option<Note>,
}

/// Plans the handover of a partition.
///
/// # Errors
/// The offset map does not fit into this budget.
pub(super) fn plan(
    position: &GroupOffsets, direction: Direction, budget: MapBudget,
) -> Result<PartitionPlan, TooLarge> {
    let (low, end) = position.bounds;
    let ours = position.ours.as_ref().map(|(offset, _)| *offset);
    let (gives, takes) = match direction {
        Direction::To => (ours, position.theirs),
        Direction::From => (position.theirs, ours),
    };
    let map = match &position.ours {
        Some((_, Ok(map) | Err(DecodeError::HandedOver(map)))) => map.clone(),
        Some((_, Err(DecodeError::Copied { admitted }))) => {
            OffsetMap { admitted: admitted.clone(), ..OffsetMap::default() }
        }
        _ => OffsetMap::default(),
    };
    let (given, mut note) = match (gives, takes) {
        (None, Some(offset)) => {
            return Ok(PartitionPlan { offset, commit: None, twice: OffsetRuns::new(), note: Some(Note::Kept) });
        }
        (None, None) => (low, Some(Note::Fresh)),
        (Some(offset), _) if offset > end => (offset, Some(Note::BeyondEnd)),
        (Some(offset), _) if offset < low => (low, Some(Note::Deleted(low - offset))),
        (Some(offset), _) => (offset, None),
    };
    let ahead = takes.filter(|offset| *offset > given);
    // Set back, Watermaster does everything again. Otherwise it keeps what it knows as completed.
    let keeps_map = direction == Direction::From && ahead.is_none();
    let completed = || map.completed.iter().filter(|run| run.end > given);
    let offset = match completed().next() {
        Some(run) if run.contains(&given) && ahead.is_none() => run.end,
        _ => given,
    };
    let beyond: OffsetRuns = completed().map(|run| run.start.max(offset)..run.end).collect();
    let repeated = ahead.map(|ahead| offset..ahead);
    let twice = if keeps_map { OffsetRuns::new() } else { repeated.into_iter().chain(beyond.iter()).collect() };
    let is_map_unknown =
        matches!(position.ours, Some((_, Err(DecodeError::Copied { .. } | DecodeError::Unreadable(_)))));
    if let Some(ahead) = ahead {
        note = Some(Note::Ahead(ahead - offset));
    } else if direction == Direction::To && is_map_unknown {
        note = note.or(Some(Note::UnknownMap));
    }
    let is_read = direction == Direction::To || matches!(position.ours, Some((_, Ok(_))));
    let commit = match direction {
        _ if takes == Some(offset) && is_read => None,
        Direction::To => Some(String::new()),
        Direction::From => {
            let completed = if keeps_map { beyond } else { OffsetRuns::new() };
            let tracker = Tracker::restore(offset, &completed);
            Some(offset_map::encode(budget, &tracker, slice_ms(&map), &map.admitted, map.tag)?)
        }
    };
    Ok(PartitionPlan { offset, commit, twice, note })
}

/// Returns a width of slices by which the ends of all slices in a map lie on one grid.
fn slice_ms(map: &OffsetMap) -> u32 {
    let steps = map.admitted.windows(2).map(|pair| pair[1].end_ms.abs_diff(pair[0].end_ms));
    let common = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    u32::try_from(steps.fold(0, common)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use watermaster_core::offset_map::{AdmissionSlice, decode};

    use super::*;
    use Direction::{From, To};

    fn map(runs: &[(i64, i64)]) -> OffsetMap {
        let admitted = [1_000, 1_300, 1_500].map(|end_ms| AdmissionSlice { end_ms, admitted: 7 });
        OffsetMap {
            completed: runs.iter().map(|(start, end)| *start..*end).collect(),
            admitted: admitted.to_vec(),
            tag: None,
        }
    }

    /// A partition with the offsets 50 to 999, of which Watermaster has committed 100 and completed 103 to 105 and 110
    /// to 119.
    fn at(ours: bool, theirs: Option<i64>) -> GroupOffsets {
        let ours = ours.then(|| (100, Ok(map(&[(103, 106), (110, 120)]))));
        GroupOffsets { ours, theirs, bounds: (50, 1_000) }
    }

    fn planned(position: &GroupOffsets, direction: Direction) -> PartitionPlan {
        plan(position, direction, MapBudget::default()).unwrap()
    }

    fn runs(step: &PartitionPlan) -> Vec<(i64, i64)> {
        step.twice.iter().map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn the_service_begins_at_the_committable_offset_and_repeats_what_lies_beyond() {
        for theirs in [None, Some(70), Some(99)] {
            let step = planned(&at(true, theirs), To);
            assert_eq!((step.offset, step.commit.as_deref(), step.note), (100, Some(""), None), "{theirs:?}");
            assert_eq!(runs(&step), [(103, 106), (110, 120)]);
        }
        let again = planned(&at(true, Some(100)), To);
        assert_eq!((again.offset, again.commit, again.note), (100, None, None));
    }

    #[test]
    fn a_group_that_is_ahead_is_named_and_set_back_only_on_demand() {
        let step = planned(&at(true, Some(104)), To);
        assert_eq!((step.offset, step.note), (100, Some(Note::Ahead(4))));
        assert_eq!(runs(&step), [(100, 106), (110, 120)]);
        let step = planned(&at(true, Some(90)), From);
        assert_eq!((step.offset, step.note), (90, Some(Note::Ahead(10))));
        assert_eq!(runs(&step), [(90, 100), (103, 106), (110, 120)]);
        let written = decode(90, step.commit.unwrap().as_bytes()).unwrap();
        assert!(written.completed.is_empty());
    }

    #[test]
    fn watermaster_keeps_what_it_has_completed_beyond_the_offset_of_the_service() {
        let cases = [
            (100, 100, None),
            (102, 102, Some(vec![(103, 106), (110, 120)])),
            (104, 106, Some(vec![(110, 120)])),
            (119, 120, Some(vec![])),
            (500, 500, Some(vec![])),
        ];
        for (theirs, offset, completed) in cases {
            let step = planned(&at(true, Some(theirs)), From);
            assert_eq!((step.offset, step.note, runs(&step)), (offset, None, vec![]), "{theirs}");
            let written = step.commit.map(|metadata| decode(offset, metadata.as_bytes()).unwrap());
            let expected = completed.map(|runs| map(&runs));
            assert_eq!(written, expected, "{theirs}");
        }
    }

    #[test]
    fn an_offset_that_another_program_committed_gets_a_map() {
        let foreign = Some((100, offset_map::decode(100, b"")));
        let position = GroupOffsets { ours: foreign, ..at(true, Some(100)) };
        let step = planned(&position, From);
        assert_eq!((step.offset, step.note), (100, None));
        assert!(decode(100, step.commit.unwrap().as_bytes()).is_ok());
        assert_eq!(planned(&position, To).commit, None);
        let unreadable = Some((100, offset_map::decode(100, b"wm9")));
        let step = planned(&GroupOffsets { ours: unreadable, ..at(true, None) }, To);
        assert_eq!((step.offset, step.note), (100, Some(Note::UnknownMap)));
    }

    #[test]
    fn a_partition_without_an_offset_begins_at_its_first_record() {
        for direction in [To, From] {
            let step = planned(&at(false, None), direction);
            assert_eq!((step.offset, step.commit.is_some(), step.note), (50, true, Some(Note::Fresh)));
        }
        let kept = [planned(&at(false, Some(70)), To), planned(&at(true, None), From)];
        assert_eq!(
            kept.map(|step| (step.offset, step.commit, step.note)),
            [70, 100].map(|at| (at, None, Some(Note::Kept)))
        );
    }

    #[test]
    fn deleted_records_are_skipped_aloud_and_no_offset_lies_beyond_the_end() {
        let step = planned(&GroupOffsets { bounds: (104, 1_000), ..at(true, None) }, To);
        assert_eq!((step.offset, step.note, runs(&step)), (106, Some(Note::Deleted(4)), vec![(110, 120)]));
        for (position, direction) in [(at(true, None), To), (at(false, Some(100)), From)] {
            let step = planned(&GroupOffsets { bounds: (0, 99), ..position }, direction);
            assert_eq!(step.note, Some(Note::BeyondEnd));
        }
    }
}
