//! Recent admissions as bits: the count of each slice of time, back from the newest.

use super::bits::{BitReader, BitWriter, Malformed};
use super::{AdmissionSlice, MAX_SLICES};
use crate::offset_runs::{NUMBER_WIDTH_BITS, rice};

/// Bits of the number of slices.
const SLICES_BITS: u32 = 9;
/// Bits of a Rice parameter; counts go up to 2⁶³.
const PARAMETER_BITS: u32 = 6;

/// The most bits that a map takes beside the completed set.
///
/// `slices` is the number of slices from the oldest to the newest that will be written (more than [`MAX_SLICES`] count
/// as that many); `admitted` is their sum. Larger arguments never give less.
pub fn overhead_bits(slices: usize, admitted: u64) -> u64 {
    let fixed = SLICES_BITS + 2 * NUMBER_WIDTH_BITS + u32::BITS + 63 + PARAMETER_BITS;
    u64::from(fixed) + rice(slices.clamp(1, MAX_SLICES) as u64, admitted.min(MAX_ADMITTED)).1
}

/// A larger sum is written as this one.
const MAX_ADMITTED: u64 = 1 << 62;

/// Writes slices of `slice_ms` each, and their two numbers so many bits `wider` than needed. Without slices, the
/// numbers are written only if they are to be wider, and with an empty slice.
pub(super) fn write(bits: &mut BitWriter, slice_ms: u32, slices: &[AdmissionSlice], wider: Option<[u32; 2]>) {
    let slice_ms = slice_ms.max(1);
    let counted = || slices.iter().filter(|slice| slice.admitted > 0);
    let newest = counted().map(|slice| slice.end_ms.max(0)).max();
    if newest.is_none() && wider.is_none() {
        return bits.push(0, SLICES_BITS);
    }
    let newest = newest.unwrap_or(0);
    let mut counts = by_age(newest, slice_ms, counted());
    counts.resize(counts.len().max(1), 0);
    let (parameter, _) = rice(counts.len() as u64, counts.iter().sum());
    let [width_wider, newest_wider] = wider.unwrap_or_default();
    bits.push(counts.len() as u64, SLICES_BITS);
    bits.push_number(u64::from(slice_ms), width_wider);
    bits.push_number(newest.unsigned_abs(), newest_wider);
    bits.push(u64::from(parameter), PARAMETER_BITS);
    for count in counts {
        bits.push_rice(count, parameter);
    }
}

/// Merges all slices into the newest: its admissions count longer, never shorter.
pub(super) fn in_one(slices: &[AdmissionSlice]) -> Option<AdmissionSlice> {
    let end_ms = slices.iter().filter(|slice| slice.admitted > 0).map(|slice| slice.end_ms).max()?;
    let admitted = slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.admitted));
    Some(AdmissionSlice { end_ms, admitted })
}

/// The counts, newest first. An end between two steps counts at the later one, a slice that is too old in the oldest:
/// its admissions count longer, not shorter.
fn by_age<'a>(newest: i64, slice_ms: u32, slices: impl Iterator<Item = &'a AdmissionSlice>) -> Vec<u64> {
    let mut counts: Vec<u64> = Vec::new();
    let mut room = MAX_ADMITTED;
    for slice in slices {
        let age = newest.abs_diff(slice.end_ms.max(0)) / u64::from(slice_ms);
        let index = usize::try_from(age).unwrap_or(usize::MAX).min(MAX_SLICES - 1);
        if index >= counts.len() {
            counts.resize(index + 1, 0);
        }
        let count = slice.admitted.min(room);
        counts[index] += count;
        room -= count;
    }
    counts
}

/// Reads slices that [`write`] wrote, oldest first, and the bits that both numbers are wider than needed.
pub(super) fn read(bits: &mut BitReader<'_>) -> Result<(Vec<AdmissionSlice>, [u32; 2]), Malformed> {
    let count = bits.take(SLICES_BITS)?;
    if count == 0 {
        return Ok((Vec::new(), [0; 2]));
    }
    let ((width, width_wider), (newest, newest_wider)) = (bits.take_number()?, bits.take_number()?);
    let width = i64::try_from(width).map_err(|_| Malformed)?;
    let newest = i64::try_from(newest).map_err(|_| Malformed)?;
    let parameter = bits.take(PARAMETER_BITS)? as u32;
    let mut slices = Vec::new();
    for age in 0..count as i64 {
        let admitted = bits.take_rice(parameter)?;
        let end_ms = width.checked_mul(age).and_then(|back| newest.checked_sub(back)).ok_or(Malformed)?;
        if admitted > 0 {
            slices.push(AdmissionSlice { end_ms, admitted });
        }
    }
    slices.reverse();
    Ok((slices, [width_wider, newest_wider]))
}
