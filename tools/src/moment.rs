//! Times on the command line and in results.

use std::time::{SystemTime, UNIX_EPOCH};

/// Parses a time in UTC, or a duration before now. Returns the milliseconds since 1970.
pub fn moment(text: &str) -> Result<i64, &'static str> {
    let utc = text.strip_suffix('Z').unwrap_or(text);
    let whole = match utc.len() {
        10 => format!("{utc}T00:00:00Z"),
        16 => format!("{utc}:00Z"),
        _ => format!("{utc}Z"),
    };
    let before = |text| humantime::parse_duration(text).ok().and_then(|time| SystemTime::now().checked_sub(time));
    let found = humantime::parse_rfc3339_weak(&whole).ok().or_else(|| before(text));
    found.map(millis).ok_or("allowed: 2026-11-20T00:00Z, 2026-11-20, or a time before now such as 24h")
}

/// Returns the milliseconds since 1970.
pub fn millis(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_or_before_now() {
        let at = |text: &str| moment(text).unwrap();
        for text in
            ["2026-11-20", "2026-11-20T00:00Z", "2026-11-20T00:00", "2026-11-20 00:00:00", "2026-11-20T00:00:00Z"]
        {
            assert_eq!(at(text), 1_795_132_800_000, "{text}");
        }
        assert_eq!(at("2026-11-20T01:00:00.250Z"), 1_795_136_400_250);
        let hour = millis(SystemTime::now()) - at("1h");
        assert!((3_599_000..=3_601_000).contains(&hour), "{hour}");
        for wrong in ["", "yesterday", "2026-13-01", "-1h"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
