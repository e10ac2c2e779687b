//! Tables, numbers and ids as people read them, on every screen alike.

use std::borrow::Cow;

use comfy_table::{CellAlignment, Row, Table, presets};

/// Makes a table with these titles. The columns that `is_number` chooses stand to the right. With a `gap`, the table
/// has as many spaces behind each column, and no frame.
pub fn table(titles: impl Into<Row>, gap: Option<u16>, is_number: impl Fn(usize) -> bool) -> Table {
    let mut table = Table::new();
    table.load_style(if gap.is_some() { presets::NOTHING } else { presets::UTF8_FULL_CONDENSED });
    table.set_header(titles);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if is_number(index) { CellAlignment::Right } else { CellAlignment::Left });
        if let Some(gap) = gap {
            column.set_padding((0, gap));
        }
    }
    table
}

/// Writes a duration given in seconds: `0 s`, `35 ms`, `7.5 s`, `10 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 1.0 => format!("{:.0} ms", s * 1_000.0),
        s if s.fract() == 0.0 => format!("{s:.0} s"),
        s => format!("{s:.1} s"),
    }
}

/// Writes a number with at most three decimals, without trailing zeros and without the sign of a zero.
pub fn decimal(value: f64) -> String {
    let text = format!("{value:.3}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// Writes how far a client's grant exceeds its default share: `borrows 22`, `lends 7`, `-`.
pub fn lends_or_borrows(excess: f64) -> String {
    match excess {
        d if d >= 0.5 => format!("borrows {}", d.round()),
        d if d <= -0.5 => format!("lends {}", -d.round()),
        _ => "-".to_owned(),
    }
}

/// Makes an id from outside safe to print: characters that would move the cursor of a terminal or end a line become
/// `·`.
pub fn printable(id: &str) -> Cow<'_, str> {
    // Besides control characters: those that reverse the direction of a line or have no width.
    let is_unsafe = |c: char| {
        let invisible =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        invisible || c.is_control()
    };
    if id.contains(is_unsafe) { Cow::Owned(id.replace(is_unsafe, "·")) } else { Cow::Borrowed(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([0.0, 0.035, 7.5, 10.0].map(seconds), ["0 s", "35 ms", "7.5 s", "10 s"]);
    }

    #[test]
    fn decimals_have_no_trailing_zeros() {
        assert_eq!([0.0, -0.0001, 0.5, 20.0, 0.005].map(decimal), ["0", "0", "0.5", "20", "0.005"]);
    }

    #[test]
    fn a_difference_below_half_a_record_is_not_shown() {
        assert_eq!([-0.4, 0.5, -7.0].map(lends_or_borrows), ["-", "borrows 1", "lends 7"]);
    }

    #[test]
    fn an_id_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb\u{202e}c"), "a·[2J·b·c");
        assert!(matches!(printable("prêt-immobilier 住宅"), Cow::Borrowed(_)));
    }
}
