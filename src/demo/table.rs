//! The table of the products, from a snapshot.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::setup::PRODUCTS;
use crate::snapshot::{ClientSnapshot, ServiceSnapshot};
use crate::words::{lends_or_borrows, seconds};

/// Narrow enough, with what stands below it, for a terminal of 80 columns. `p99` is of the time that records waited.
const HEADER: [&str; 9] = ["client", "wants", "granted", "share", "admitted", "delayed", "rejected", "backlog", "p99"];

/// The product in a snapshot; all 0 until the engine has shown it.
pub fn client_of(snapshot: &ServiceSnapshot, name: &str) -> ClientSnapshot {
    let found = snapshot.clients.get(name);
    found.cloned().unwrap_or_else(|| ClientSnapshot { name: name.into(), ..Default::default() })
}

/// All products. In passthrough, what would have been decided.
pub fn render(snapshot: &ServiceSnapshot) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(HEADER);
    for name in PRODUCTS {
        table.add_row(row(&client_of(snapshot, name), snapshot.enforce));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let title = format!(
        "{} takes {} in any {}: {} admitted in the last one, {} at most so far{}",
        snapshot.name,
        snapshot.capacity,
        seconds(snapshot.cycle_seconds),
        snapshot.window_admitted,
        snapshot.window_admitted_max,
        if snapshot.enforce {
            ""
        } else {
            "\nPassthrough: everything goes at once; the table counts what would have been."
        },
    );
    format!("{title}\n{}", table.trim_fmt())
}

fn row(client: &ClientSnapshot, enforce: bool) -> [String; HEADER.len()] {
    let (counts, backlog) =
        if enforce { (&client.counts, client.backlog) } else { (&client.shadow, client.shadow_backlog) };
    [
        client.name.to_string(),
        client.wants.to_string(),
        client.granted.to_string(),
        lends_or_borrows(client.granted, client.default_share),
        counts.admitted.to_string(),
        counts.delayed.to_string(),
        counts.rejected.total().to_string(),
        backlog.to_string(),
        seconds(client.delay_p99_seconds),
    ]
}

/// One line for those who read a log: each product's granted and backlog.
pub fn one_line(snapshot: &ServiceSnapshot) -> String {
    let products = PRODUCTS.map(|name| {
        let client = client_of(snapshot, name);
        let waiting = match (client.backlog, client.shadow_backlog) {
            (0, 0) => String::new(),
            (0, imagined) => format!(", {imagined} would wait"),
            (backlog, _) => format!(", {backlog} wait"),
        };
        format!("{name} wants {} granted {}{waiting}", client.wants, client.granted)
    });
    format!("{}/{} in the window; {}", snapshot.window_admitted, snapshot.capacity, products.join("; "))
}

#[cfg(test)]
pub(super) mod tests {
    use watermaster_core::reason::{Reason, ReasonCounts};

    use super::*;
    use crate::snapshot::Counts;

    /// A moment in the campaign; `sent` was 10, 20, 30, 400.
    pub(in super::super) fn snapshot() -> ServiceSnapshot {
        let client = |name: &str, admitted, granted| ClientSnapshot {
            name: name.into(),
            configured: true,
            wants: admitted,
            default_share: 50.0,
            granted,
            counts: Counts { admitted, ..Default::default() },
            ..Default::default()
        };
        let mut rejected = ReasonCounts::default();
        rejected.add(Reason::QueueFull);
        let card = ClientSnapshot {
            counts: Counts { admitted: 300, delayed: 390, rejected },
            backlog: 99,
            delay_p99_seconds: 7.5,
            ..client("credit-card", 300, 90)
        };
        ServiceSnapshot {
            name: "kyc".to_owned(),
            enforce: true,
            capacity: 200,
            cycle_seconds: 1.0,
            window_admitted: 180,
            window_admitted_max: 200,
            clients: vec![
                client("car-loan", 30, 50),
                card,
                client("home-loan", 10, 10),
                client("personal-loan", 20, 50),
            ]
            .into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_moment_in_the_campaign() {
        let expected = "\
kyc takes 200 in any 1 s: 180 admitted in the last one, 200 at most so far
client        wants granted      share admitted delayed rejected backlog   p99
home-loan        10      10   lends 40       10       0        0       0   0 s
personal-loan    20      50          -       20       0        0       0   0 s
car-loan         30      50          -       30       0        0       0   0 s
credit-card     300      90 borrows 40      300     390        1      99 7.5 s";
        assert_eq!(render(&snapshot()), expected);
    }

    #[test]
    fn before_the_first_snapshot_everything_is_0() {
        let text = render(&ServiceSnapshot::default());
        assert!(PRODUCTS.iter().all(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn a_line_for_a_log() {
        assert_eq!(
            one_line(&snapshot()),
            "180/200 in the window; home-loan wants 10 granted 10; personal-loan wants 20 granted 50; \
             car-loan wants 30 granted 50; credit-card wants 300 granted 90, 99 wait"
        );
        let mut observed = ServiceSnapshot { enforce: false, ..snapshot() };
        observed.clients.change(|client| client.shadow_backlog = std::mem::take(&mut client.backlog));
        assert!(one_line(&observed).ends_with("99 would wait"));
    }

    #[test]
    fn the_widest_table_fits_80_columns() {
        let mut widest = snapshot();
        widest.clients.change(|client| {
            (client.wants, client.granted, client.default_share) = (99_999, 185, 50.0);
            client.delay_p99_seconds = 59.9;
        });
        let text = render(&widest);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
