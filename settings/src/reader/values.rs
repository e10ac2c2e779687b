//! Parses the values that every kind of file has: numbers, durations, sizes.
//!
//! A decimal never passes through a float, so a weight of `2.3` is 2 300 thousandths on every machine.

use std::{fmt::Display, num::NonZeroU32, ops::RangeInclusive, str::FromStr, time::Duration};

use strum::VariantNames;

use super::schema::Kind;

/// The reason why a text is not a value of a key. It follows "is …: " in an error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ValueError {
    /// The description of what is allowed says it all, so there is no text.
    #[error("")]
    NotAllowed,
    #[error("not a plain decimal number")]
    NotDecimal,
    #[error("{0}")]
    Because(String),
}

/// Returns the error for another reason, in words.
pub(crate) fn because(reason: impl Display) -> ValueError {
    ValueError::Because(reason.to_string())
}

/// A type that is parsed from the text of a key.
pub trait FromText: Sized {
    /// Parses `text`, which was written for a key of this kind.
    fn from_text(text: &str, kind: Kind) -> Result<Self, ValueError>;
}

/// An enum of which a key holds one variant, by its name. The names come from strum's derives.
pub trait Choice: FromStr + VariantNames {}

impl<T: Choice> FromText for T {
    fn from_text(text: &str, _: Kind) -> Result<T, ValueError> {
        text.parse().map_err(|_| ValueError::NotAllowed)
    }
}

impl FromText for bool {
    fn from_text(text: &str, _: Kind) -> Result<bool, ValueError> {
        text.parse().map_err(|_| ValueError::NotAllowed)
    }
}

impl FromText for u64 {
    fn from_text(text: &str, kind: Kind) -> Result<u64, ValueError> {
        match kind {
            Kind::Count(min, max) => count(text, min..=max),
            Kind::Size(min, max) => size(text, min..=max),
            other => unreachable!("{other:?} is not counted"),
        }
    }
}

impl FromText for i16 {
    fn from_text(text: &str, kind: Kind) -> Result<i16, ValueError> {
        let Kind::Whole(min, max) = kind else { unreachable!("{kind:?} is no whole number") };
        let number = text.replace('_', "").parse().map_err(|_| ValueError::NotAllowed)?;
        i16::try_from(in_range(number, &(min..=max))?).map_err(|_| ValueError::NotAllowed)
    }
}

impl FromText for usize {
    fn from_text(text: &str, kind: Kind) -> Result<usize, ValueError> {
        usize::try_from(u64::from_text(text, kind)?).map_err(|_| ValueError::NotAllowed)
    }
}

impl FromText for u32 {
    fn from_text(text: &str, kind: Kind) -> Result<u32, ValueError> {
        u32::try_from(u64::from_text(text, kind)?).map_err(|_| ValueError::NotAllowed)
    }
}

impl FromText for NonZeroU32 {
    fn from_text(text: &str, kind: Kind) -> Result<NonZeroU32, ValueError> {
        NonZeroU32::new(u32::from_text(text, kind)?).ok_or(ValueError::NotAllowed)
    }
}

impl FromText for Duration {
    fn from_text(text: &str, kind: Kind) -> Result<Duration, ValueError> {
        match kind {
            Kind::Duration(min, max) => duration(text, min..=max),
            other => unreachable!("{other:?} is no duration"),
        }
    }
}

/// Parses a decimal as an integer count of 10^-`places`: `decimal("0.1", 3)` is 100.
pub fn decimal(text: &str, places: usize) -> Result<u64, ValueError> {
    let text = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return Err(ValueError::NotDecimal);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places {
        return Err(because(format_args!("more than {places} decimals")));
    }
    format!("{whole}{fraction:0<places$}").parse().map_err(|_| ValueError::NotAllowed)
}

/// Parses a whole number.
pub fn count(text: &str, range: RangeInclusive<u64>) -> Result<u64, ValueError> {
    let number = text.replace('_', "").parse().map_err(|_| ValueError::NotAllowed)?;
    in_range(number, &range)
}

/// Parses a duration with its unit.
pub fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, ValueError> {
    in_range(humantime::parse_duration(text).map_err(because)?, &range)
}

/// Parses a size in bytes, with a unit of 1000 (`MB`) or 1024 (`MiB`) or none.
fn size(text: &str, range: RangeInclusive<u64>) -> Result<u64, ValueError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number = count(&text[..end], 0..=u64::MAX)?;
    let unit = match text[end..].trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(because(format_args!("{other:?} is no unit of size"))),
    };
    in_range(number.checked_mul(unit).ok_or(ValueError::NotAllowed)?, &range)
}

fn in_range<T: PartialOrd>(value: T, range: &RangeInclusive<T>) -> Result<T, ValueError> {
    if range.contains(&value) { Ok(value) } else { Err(ValueError::NotAllowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let bytes = |text| size(text, 1..=u64::MAX);
        assert_eq!(bytes("256MiB"), Ok(268_435_456));
        assert_eq!(bytes("16 MB"), Ok(16_000_000));
        assert_eq!(bytes("1024"), Ok(1024));
        for wrong in ["", "MiB", "1.5GiB", "10mb", "99999999999TiB", "-1", "0"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
