//! The table of clients, with as many columns as fit: for the screen and for plain text.

use std::iter;

use ratatui::text::Span;
use unicode_truncate::UnicodeTruncateStr as _;
use watermaster_api::{GroupFigures, MemberView};

use super::fetch::{ClientStatus, ServiceStatus};
use crate::format::{lends_or_borrows, printable};

/// A column beside the names.
struct Column {
    title: &'static str,
    /// Without room for all columns, those that are worth least are dropped first.
    worth: u8,
    /// The value of a client, if it is known. Clients are sorted by it, the largest first.
    value: fn(&ServiceStatus, &ClientStatus) -> Option<f64>,
    shown: fn(f64) -> String,
}

const fn column(
    title: &'static str, worth: u8, value: fn(&ServiceStatus, &ClientStatus) -> Option<f64>, shown: fn(f64) -> String,
) -> Column {
    Column { title, worth, value, shown }
}

static COLUMNS: [Column; 7] = [
    column("wants", 4, |_, client| Some(client.view.wants as f64), count),
    column(GRANTED, 6, |_, client| Some(client.view.granted as f64), count),
    column("share", 1, |_, client| Some(client.view.granted as f64 - client.view.default_share), lends_or_borrows),
    column("admit/s", 5, |_, client| Some(client.per_second?.admitted), rate),
    column("delay/s", 2, |_, client| Some(client.per_second?.delayed), rate),
    column("reject/s", 3, |_, client| Some(client.per_second?.rejected), rate),
    column("backlog", 7, |service, client| Some(service.decisions(client).backlog as f64), count),
];

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// Title of the column that marks clients that a rule holds.
const GRANTED: &str = "granted";
/// Title of the column of names.
const NAME: &str = "client";
/// Longer names are shortened to this width if there is no room.
const MIN_NAME_WIDTH: usize = 8;
/// Longer names are always shortened.
const MAX_NAME_WIDTH: usize = 40;
const MAX_GROUP_WIDTH: usize = 20;

/// The column that clients are sorted by: 0 for the names, else one more than the index into [`COLUMNS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sort(usize);

impl Sort {
    pub fn title(self) -> &'static str {
        self.0.checked_sub(1).map_or(NAME, |column| COLUMNS[column].title)
    }

    pub fn next(self) -> Sort {
        Sort((self.0 + 1) % (COLUMNS.len() + 1))
    }
}

/// Sorts the clients of a service; each comes with its index by name.
pub fn rows(service: &ServiceStatus, sort: Sort) -> Vec<(usize, &ClientStatus)> {
    let mut rows: Vec<_> = service.clients.iter().enumerate().collect();
    if let Some(column) = sort.0.checked_sub(1) {
        // The sort is stable, so clients with equal keys stay in the order of their names.
        let key = |client| (COLUMNS[column].value)(service, client).unwrap_or(-1.0);
        rows.sort_by(|(_, a), (_, b)| key(b).total_cmp(&key(a)));
    }
    rows
}

/// The cells of a column, the title first, with its worth.
type Cells = (u8, Vec<String>);

/// Returns the lines of the table of clients, the titles first, no wider than `width`.
pub fn fitted(service: &ServiceStatus, rows: &[(usize, &ClientStatus)], width: usize) -> Vec<String> {
    let cells_of = |Column { title, worth, value, shown }: &Column| {
        let cells = rows.iter().map(|(_, client)| match value(service, client) {
            _ if client.view.held && *title == GRANTED => "held".to_owned(),
            value => value.map_or("-".to_owned(), shown),
        });
        (*worth, iter::once((*title).to_owned()).chain(cells).collect())
    };
    let names = rows.iter().map(|(_, client)| client.view.name.as_str());
    let group = |client: &ClientStatus| shortened(client.view.group.as_deref().unwrap_or("-"), MAX_GROUP_WIDTH);
    let groups = || iter::once("group".to_owned()).chain(rows.iter().map(|(_, client)| group(client))).collect();
    // The group column is worth least: most names of clients begin with that of their group.
    let groups = rows.iter().any(|(_, client)| client.view.group.is_some()).then(|| (0, groups()));
    laid_out(NAME, names, groups.into_iter().chain(COLUMNS.iter().map(cells_of)).collect(), width)
}

/// Returns the lines of the table of a group's instances, the titles first, no wider than `width`.
pub fn group(group: &GroupFigures, width: usize) -> Vec<String> {
    let column = |worth, title: &str, cell: fn(&MemberView) -> String| {
        (worth, iter::once(title.to_owned()).chain(group.members.iter().map(cell)).collect())
    };
    let columns = vec![
        column(5, "hold", |member| member.hold.to_string()),
        column(4, "target", |member| member.target.to_string()),
        column(3, "used", |member| member.used.to_string()),
        column(2, "state", |member| printable(&member.state).into_owned()),
        column(1, "last state", |member| format!("{:.1} s ago", member.state_age_seconds)),
    ];
    laid_out("instance", group.members.iter().map(|member| member.instance.as_str()), columns, width)
}

/// Sets names and columns side by side. Without room for all columns, those that are worth least are left out.
fn laid_out<'n>(
    title: &'n str, names: impl Iterator<Item = &'n str>, mut columns: Vec<Cells>, width: usize,
) -> Vec<String> {
    let names: Vec<String> = iter::once(title).chain(names).map(|name| shortened(name, MAX_NAME_WIDTH)).collect();
    let widest = names.iter().map(|name| width_of(name)).max().unwrap_or(0);
    let widest_cell = |cells: &[String]| cells.iter().map(|cell| width_of(cell)).max().unwrap_or(0);
    let room = |columns: &[Cells]| width.saturating_sub(columns.iter().map(|(_, cells)| widest_cell(cells) + 1).sum());
    while room(&columns) < widest.min(MIN_NAME_WIDTH)
        && let Some(least) = (0..columns.len()).min_by_key(|&at| columns[at].0)
    {
        columns.remove(least);
    }
    let name_width = widest.min(room(&columns));
    let widths: Vec<usize> = columns.iter().map(|(_, cells)| widest_cell(cells)).collect();
    let line = |(at, name): (usize, &String)| {
        let name = shortened(name, name_width);
        let pad = " ".repeat(name_width.saturating_sub(width_of(&name)));
        let cell = |cell: &str, width: usize| format!(" {}{cell}", " ".repeat(width - width_of(cell)));
        let cells: String = columns.iter().zip(&widths).map(|((_, cells), width)| cell(&cells[at], *width)).collect();
        format!("{name}{pad}{cells}")
    };
    names.iter().enumerate().map(line).collect()
}

/// Returns the number of columns that a text takes on a terminal.
pub fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to a width on the terminal.
fn shortened(text: &str, width: usize) -> String {
    let text = printable(text);
    match width {
        _ if width_of(&text) <= width => text.into_owned(),
        0 => String::new(),
        _ => format!("{}…", text.unicode_truncate(width - 1).0),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::fetch::{self, add_rates, tests::service};
    use super::*;

    /// Returns a service, a second after an answer with smaller counts.
    fn moment() -> ServiceStatus {
        let (mut before, mut now) = (service(), [service()]);
        for (client, admitted) in before.clients.iter_mut().zip([35, 72, 50, 43]) {
            client.view.done.admitted -= admitted;
        }
        before.clients[1].view.done.delayed -= 401;
        add_rates(&mut now, &[before], Duration::from_secs(1));
        let [now] = now;
        now
    }

    fn text(service: &ServiceStatus, sort: Sort, width: usize) -> String {
        fitted(service, &rows(service, sort), width).join("\n")
    }

    fn all_sorts() -> Vec<Sort> {
        std::iter::successors(Some(Sort::default()), |sort| Some(sort.next())).take(COLUMNS.len() + 1).collect()
    }

    #[test]
    fn a_campaign_is_shown_as_expected() {
        let expected = "\
client        wants granted      share admit/s delay/s reject/s backlog
car-loan         35      35   lends 15      35       0        0       0
credit-card    6350      72 borrows 22      72     401        0    6334
home-loan        52      50          -      50       0        0       0
personal-loan    43      43    lends 7      43       0        0       0";
        assert_eq!(text(&moment(), Sort::default(), usize::MAX), expected);
    }

    #[test]
    fn a_held_client_has_no_grant() {
        let mut moment = moment();
        moment.clients[1].view.held = true;
        let table = text(&moment, Sort::default(), usize::MAX);
        assert_eq!(
            table.lines().nth(2).unwrap(),
            "credit-card    6350    held borrows 22      72     401        0    6334"
        );
    }

    #[test]
    fn groups_have_a_column_if_a_client_is_in_one() {
        let mut moment = moment();
        moment.clients[1].view.group = Some("cards".to_owned());
        let expected = "\
client        group wants granted      share admit/s delay/s reject/s backlog
car-loan          -    35      35   lends 15      35       0        0       0
credit-card   cards  6350      72 borrows 22      72     401        0    6334";
        let table = text(&moment, Sort::default(), usize::MAX);
        assert_eq!(table.lines().take(3).collect::<Vec<_>>().join("\n"), expected);
        assert!(!text(&moment, Sort::default(), 70).contains("group"), "it is dropped first");
    }

    #[test]
    fn a_narrow_table_drops_the_least_important_columns() {
        let expected = "\
client        wants granted admit/s backlog
credit-card    6350      72      72    6334
home-loan        52      50      50       0
personal-loan    43      43      43       0
car-loan         35      35      35       0";
        assert_eq!(text(&moment(), Sort(2), 44), expected);
        let expected = "\
client   backlog
car-loan       0
credit-…    6334
home-lo…       0
persona…       0";
        assert_eq!(text(&moment(), Sort::default(), 16), expected);
    }

    #[test]
    fn a_group_is_shown_as_expected() {
        let expected = "\
instance hold target used   state last state
wm-0      120    118   97    live  0.4 s ago
wm-1       80     82   80  silent 12.3 s ago
wm-2        0      0    0 claimed 41.0 s ago";
        assert_eq!(group(&fetch::tests::group(), usize::MAX).join("\n"), expected);
        assert_eq!(group(&fetch::tests::group(), 16)[1], "wm-0      120");
    }

    #[test]
    fn each_order_begins_with_the_largest() {
        let moment = moment();
        for sort in all_sorts() {
            let first = rows(&moment, sort)[0].1.view.name.as_str();
            let expected = if ["client", "reject/s"].contains(&sort.title()) { "car-loan" } else { "credit-card" };
            assert_eq!(first, expected, "{}", sort.title());
        }
    }

    #[test]
    fn shadow_mode_shows_the_shadow_backlog() {
        let mut moment = moment();
        moment.figures.enforce = false;
        moment.clients[0].view.shadow.backlog = 77;
        let table = text(&moment, Sort::default(), usize::MAX);
        assert!(table.lines().nth(1).is_some_and(|line| line.ends_with(" 77")), "{table}");
        assert!(table.lines().nth(2).is_some_and(|line| line.ends_with(" 0")), "{table}");
    }

    proptest! {
        /// Ids are foreign input, and terminals have any size.
        #[test]
        fn no_line_is_wider_than_the_terminal(
            name in "\\PC{0,60}|[a-z\u{7f}\n\u{1b}住宅é]{0,60}",
            width in 0..120_usize,
        ) {
            let mut moment = moment();
            moment.clients[0].view.group = Some(name.clone());
            moment.clients[0].view.name = name;
            for line in fitted(&moment, &rows(&moment, Sort::default()), width) {
                prop_assert!(width_of(&line) <= width, "{line:?}");
                prop_assert!(!line.contains(char::is_control));
            }
        }
    }
}
