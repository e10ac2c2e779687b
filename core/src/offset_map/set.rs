//! A completed set as bits.

use std::ops::Range;

use super::bits::{BitReader, BitWriter, Malformed};
use crate::offset_runs::{MAX_SPAN, OffsetRuns};
use crate::offset_runs::{PARAMETER_BITS, RunKind, SetShape};

/// Writes completed runs beyond `base`, which must be of this shape, and their count so many bits `wider` than needed.
pub(super) fn write(
    bits: &mut BitWriter, base: i64, shape: SetShape, runs: impl Iterator<Item = Range<i64>>, wider: u32,
) {
    let (kind, _) = shape.cheapest();
    let (number, count, parameters) = match kind {
        RunKind::Runs { waiting, completed } => (0, shape.pairs, vec![waiting, completed]),
        RunKind::AfterWaiting { parameter } => (1, shape.waiting, vec![parameter]),
        RunKind::BeforeCompleted { parameter } => (2, shape.completed, vec![parameter]),
    };
    bits.push(number, 2);
    bits.push_number(count, wider);
    parameters.into_iter().for_each(|parameter| bits.push(u64::from(parameter), PARAMETER_BITS));
    let mut end = base;
    for run in runs {
        write_pair(bits, kind, run.start.abs_diff(end), run.end.abs_diff(run.start));
        end = run.end;
    }
}

/// Writes some waiting offsets and the completed ones after them, at least one of each.
fn write_pair(bits: &mut BitWriter, kind: RunKind, waiting: u64, completed: u64) {
    match kind {
        RunKind::Runs { waiting: parameter, completed: other } => {
            bits.push_rice(waiting - 1, parameter);
            bits.push_rice(completed - 1, other);
        }
        RunKind::AfterWaiting { parameter } => {
            (1..waiting).for_each(|_| bits.push_rice(0, parameter));
            bits.push_rice(completed, parameter);
        }
        RunKind::BeforeCompleted { parameter } => {
            bits.push_rice(waiting, parameter);
            (1..completed).for_each(|_| bits.push_rice(0, parameter));
        }
    }
}

/// Reads a set that [`write`] wrote, and the bits that its count is wider than needed. Takes memory in proportion to
/// the bits, even if they claim more.
pub(super) fn read(bits: &mut BitReader<'_>, base: i64) -> Result<(OffsetRuns, u32), Malformed> {
    let kind = bits.take(2)?;
    let (count, wider) = bits.take_number()?;
    let mut parameter = || bits.take(PARAMETER_BITS).map(|parameter| Some(parameter as u32));
    // Lengths without a parameter are 1.
    let (waiting, completed) = match kind {
        0 => (parameter()?, parameter()?),
        1 => (None, parameter()?),
        2 => (parameter()?, None),
        _ => return Err(Malformed),
    };
    let mut after = |offset: i64, parameter: Option<u32>| {
        let length = match parameter {
            Some(parameter) => bits.take_rice(parameter)?.saturating_add(u64::from(kind == 0)),
            None => 1,
        };
        offset.checked_add_unsigned(length).filter(|end| end.abs_diff(base) <= MAX_SPAN).ok_or(Malformed)
    };
    let (mut end, mut runs) = (base, OffsetRuns::new());
    for _ in 0..count {
        let start = after(end, waiting)?;
        // The base is never completed: otherwise a later offset would be committed.
        if start == base {
            return Err(Malformed);
        }
        end = after(start, completed)?;
        runs.push(start..end);
    }
    Ok((runs, wider))
}
