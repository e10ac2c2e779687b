//! Numbers for people.

/// A time: `0 s`, `35 ms`, `7.5 s`, `10 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1_000.0),
        s if s.fract() == 0.0 => format!("{s:.0} s"),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([0.0, 0.035, 7.5, 10.0].map(seconds), ["0 s", "35 ms", "7.5 s", "10 s"]);
    }
}
