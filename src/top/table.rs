//! The columns, as many as fit: for the screen and for plain text.

use ratatui::text::Span;

use super::app::Sort;
use super::fetch::Service;
use super::rates::{Rates, Row};
use crate::words::{lends_or_borrows, printable};

struct Column {
    title: &'static str,
    cell: fn(&Row, bool) -> String,
    /// Where there is no room, the one that is worth least goes first.
    worth: u8,
}

static COLUMNS: [Column; 7] = [
    Column { title: "wants", cell: |row, _| row.client.wants.to_string(), worth: 4 },
    Column { title: "granted", cell: |row, _| row.client.granted.to_string(), worth: 6 },
    Column { title: "share", cell: |row, _| lends_or_borrows(row.client.granted, row.client.default_share), worth: 1 },
    Column { title: "admit/s", cell: |row, _| rate(row, |rates| rates.admitted), worth: 5 },
    Column { title: "delay/s", cell: |row, _| rate(row, |rates| rates.delayed), worth: 2 },
    Column { title: "reject/s", cell: |row, _| rate(row, |rates| rates.rejected), worth: 3 },
    Column { title: "backlog", cell: |row, enforce| backlog(row, enforce).to_string(), worth: 7 },
];

/// Names are shown in at least this many columns of the terminal, if they have them, and in at most so many.
const SHORT_NAME: usize = 8;
const LONG_NAME: usize = 40;

/// What waits, or would wait.
pub fn backlog(row: &Row, enforce: bool) -> u64 {
    if enforce { row.client.backlog } else { row.client.shadow.backlog }
}

/// The clients of a service in an order, each with its place by name.
pub fn rows(service: &Service<Row>, sort: Sort) -> Vec<(usize, &Row)> {
    let mut rows: Vec<_> = service.clients.iter().enumerate().collect();
    // The API sorts by name, and a stable sort keeps that among equals.
    rows.sort_by(|(_, a), (_, b)| sort.key(b, service.enforce).total_cmp(&sort.key(a, service.enforce)));
    rows
}

/// A column with what stands in it, and how wide that is.
struct Filled {
    column: &'static Column,
    cells: Vec<String>,
    width: usize,
}

impl Filled {
    fn new(column: &'static Column, service: &Service<Row>, rows: &[(usize, &Row)]) -> Filled {
        let cells: Vec<String> = rows.iter().map(|(_, row)| (column.cell)(row, service.enforce)).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(0).max(column.title.len());
        Filled { column, cells, width }
    }
}

/// The table's lines, the titles first, no wider than `width`.
pub fn fitted(service: &Service<Row>, rows: &[(usize, &Row)], width: usize) -> Vec<String> {
    let names: Vec<String> = rows.iter().map(|(_, row)| shortened(&row.client.name, LONG_NAME)).collect();
    let widest = names.iter().map(|name| columns_of(name)).max().unwrap_or(0).max("client".len());
    let mut columns: Vec<Filled> = COLUMNS.iter().map(|column| Filled::new(column, service, rows)).collect();
    let taken = |columns: &[Filled]| columns.iter().map(|column| column.width + 1).sum::<usize>();
    while taken(&columns) + widest.min(SHORT_NAME) > width
        && let Some(least) = (0..columns.len()).min_by_key(|&at| columns[at].column.worth)
    {
        columns.remove(least);
    }
    let name_width = widest.min(width.saturating_sub(taken(&columns)));
    let line = |name: &str, cell: &dyn Fn(&Filled) -> String| {
        let name = shortened(name, name_width);
        let pad = " ".repeat(name_width.saturating_sub(columns_of(&name)));
        let cells: String = columns.iter().map(|column| format!(" {:>1$}", cell(column), column.width)).collect();
        format!("{name}{pad}{cells}")
    };
    let titles = line("client", &|filled| filled.column.title.to_owned());
    let lines = names.iter().enumerate().map(|(at, name)| line(name, &|filled| filled.cells[at].clone()));
    std::iter::once(titles).chain(lines).collect()
}

fn rate(row: &Row, of: fn(&Rates) -> f64) -> String {
    match row.per_second.as_ref().map(of) {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

/// How many columns of a terminal a text takes.
pub fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text in at most so many columns.
fn shortened(text: &str, width: usize) -> String {
    let text = printable(text);
    if columns_of(&text) <= width {
        return text.into_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if columns_of(&short) >= width {
            short.pop();
            break;
        }
    }
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::fetch::tests::service;
    use super::super::rates;
    use super::*;

    /// A second after a moment in which less had been counted.
    pub fn moment() -> Service<Row> {
        let (mut before, now) = (service(), service());
        for (client, admitted) in before.clients.iter_mut().zip([35, 72, 50, 43]) {
            client.admitted -= admitted;
        }
        before.clients[1].delayed -= 401;
        rates::since(Some((&[before], Duration::from_secs(1))), vec![now]).remove(0)
    }

    fn text(service: &Service<Row>, sort: Sort, width: usize) -> String {
        fitted(service, &rows(service, sort), width).join("\n")
    }

    #[test]
    fn a_moment_in_a_campaign() {
        let expected = "\
client        wants granted      share admit/s delay/s reject/s backlog
car-loan         35      35   lends 15      35       0        0       0
credit-card    6350      72 borrows 22      72     401        0    6334
home-loan        52      50          -      50       0        0       0
personal-loan    43      43    lends 7      43       0        0       0";
        assert_eq!(text(&moment(), Sort::Name, usize::MAX), expected);
    }

    #[test]
    fn where_there_is_no_room_the_least_goes_first() {
        let expected = "\
client        wants granted admit/s backlog
credit-card    6350      72      72    6334
home-loan        52      50      50       0
personal-loan    43      43      43       0
car-loan         35      35      35       0";
        assert_eq!(text(&moment(), Sort::Granted, 44), expected);
        let expected = "\
client   backlog
car-loan       0
credit-…    6334
home-lo…       0
persona…       0";
        assert_eq!(text(&moment(), Sort::Name, 16), expected);
    }

    #[test]
    fn each_order_begins_with_the_largest() {
        let moment = moment();
        let first = |sort| rows(&moment, sort)[0].1.client.name.clone();
        assert_eq!(first(Sort::Name), "car-loan");
        for sort in [Sort::Wants, Sort::Granted, Sort::Admitted, Sort::Delayed, Sort::Backlog] {
            assert_eq!(first(sort), "credit-card", "{sort:?}");
        }
    }

    #[test]
    fn passthrough_shows_what_would_wait() {
        let mut moment = moment();
        moment.enforce = false;
        moment.clients[0].client.shadow.backlog = 77;
        let table = text(&moment, Sort::Name, usize::MAX);
        assert!(table.lines().nth(1).is_some_and(|line| line.ends_with(" 77")), "{table}");
        assert!(table.lines().nth(2).is_some_and(|line| line.ends_with(" 0")), "{table}");
    }

    proptest! {
        /// Ids come from outside, and terminals are as they are.
        #[test]
        fn no_line_is_wider_than_the_terminal(name in "\\PC{0,60}|[a-z\u{7f}\n\u{1b}住宅é]{0,60}", width in 0..120_usize) {
            let mut moment = moment();
            moment.clients[0].client.name = name;
            for line in fitted(&moment, &rows(&moment, Sort::Name), width) {
                prop_assert!(columns_of(&line) <= width, "{line:?}");
                prop_assert!(!line.contains(char::is_control));
            }
        }
    }
}
