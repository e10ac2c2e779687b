//! A completed set as bits.

use std::ops::Range;

use super::bits::{BitReader, BitWriter, Malformed};
use crate::offset_runs::{Kind, PARAMETER_BITS, SetShape};
use crate::offset_runs::{MAX_SPAN, OffsetRuns};

/// Writes completed runs beyond `base`, which must be of this shape.
pub(super) fn write(bits: &mut BitWriter, base: i64, shape: SetShape, runs: impl Iterator<Item = Range<i64>>) {
    let (kind, _) = shape.cheapest();
    write_header(bits, kind, shape);
    let mut end = base;
    for run in runs {
        write_pair(bits, kind, run.start.abs_diff(end), run.end.abs_diff(run.start));
        end = run.end;
    }
}

fn write_header(bits: &mut BitWriter, kind: Kind, shape: SetShape) {
    let (number, count, parameters) = match kind {
        Kind::Runs { waiting, completed } => (0, shape.pairs, vec![waiting, completed]),
        Kind::AfterWaiting { parameter } => (1, shape.waiting, vec![parameter]),
        Kind::BeforeCompleted { parameter } => (2, shape.completed, vec![parameter]),
    };
    bits.push(number, 2);
    bits.push_number(count);
    for parameter in parameters {
        bits.push(u64::from(parameter), PARAMETER_BITS);
    }
}

/// Writes some waiting offsets and the completed ones after them, at least one of each.
fn write_pair(bits: &mut BitWriter, kind: Kind, waiting: u64, completed: u64) {
    match kind {
        Kind::Runs { waiting: parameter, completed: other } => {
            bits.push_rice(waiting - 1, parameter);
            bits.push_rice(completed - 1, other);
        }
        Kind::AfterWaiting { parameter } => {
            (1..waiting).for_each(|_| bits.push_rice(0, parameter));
            bits.push_rice(completed, parameter);
        }
        Kind::BeforeCompleted { parameter } => {
            bits.push_rice(waiting, parameter);
            (1..completed).for_each(|_| bits.push_rice(0, parameter));
        }
    }
}

/// Reads a set that [`write`] wrote. Takes memory in proportion to the bits, even if they claim more.
pub(super) fn read(bits: &mut BitReader<'_>, base: i64) -> Result<OffsetRuns, Malformed> {
    let mut set = Collector { base, span: 0, runs: OffsetRuns::new() };
    let kind = bits.take(2)?;
    let count = bits.take_number()?;
    match kind {
        0 => {
            let (waiting, completed) = (take_parameter(bits)?, take_parameter(bits)?);
            for _ in 0..count {
                set.waiting(bits.take_rice(waiting)?.saturating_add(1))?;
                set.completed(bits.take_rice(completed)?.saturating_add(1))?;
            }
        }
        1 => {
            let parameter = take_parameter(bits)?;
            for _ in 0..count {
                set.waiting(1)?;
                set.completed(bits.take_rice(parameter)?)?;
            }
        }
        2 => {
            let parameter = take_parameter(bits)?;
            for _ in 0..count {
                set.waiting(bits.take_rice(parameter)?)?;
                set.completed(1)?;
            }
        }
        _ => return Err(Malformed),
    }
    Ok(set.runs)
}

fn take_parameter(bits: &mut BitReader<'_>) -> Result<u32, Malformed> {
    bits.take(PARAMETER_BITS).map(|parameter| parameter as u32)
}

/// The offsets read so far, from `base` on. The base is never completed: otherwise a later offset would be committed.
struct Collector {
    base: i64,
    span: u64,
    runs: OffsetRuns,
}

impl Collector {
    fn waiting(&mut self, count: u64) -> Result<(), Malformed> {
        self.advance(count).map(|_| ())
    }

    fn completed(&mut self, count: u64) -> Result<(), Malformed> {
        if self.span == 0 {
            return Err(Malformed);
        }
        let run = self.advance(count)?;
        self.runs.push(run);
        Ok(())
    }

    /// The next `count` offsets. A set does not reach too far.
    fn advance(&mut self, count: u64) -> Result<Range<i64>, Malformed> {
        let end = self.span.checked_add(count).filter(|end| *end <= MAX_SPAN).ok_or(Malformed)?;
        let start = std::mem::replace(&mut self.span, end);
        let offset = |ahead: u64| self.base.checked_add_unsigned(ahead).ok_or(Malformed);
        Ok(offset(start)?..offset(end)?)
    }
}
