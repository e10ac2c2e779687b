//! The report as one page of inline SVG and CSS, without scripts or network; also well-formed XML. `report.html` is its
//! template.

use std::cmp::Reverse;

use askama::Template;

use super::plot::{COLOURS, Plot};
use super::text::{COLUMNS, ReportColumn};
use super::{ClientReport, Quantiles, Report};
use crate::{format::seconds, load::series::ClientSeries};

#[derive(Template)]
#[template(path = "report.html", config = "src/load/report/askama.toml")]
struct Page<'r> {
    report: &'r Report,
    /// Lengths with their units.
    cycle: String,
    bucket: String,
    clients: Table,
    sent: Chart<'r>,
    admitted: Chart<'r>,
    delays: Chart<'r>,
    rejections: Vec<Bar<'r>>,
    rejections_by_client: Table,
}

struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A plot over time, and its numbers.
struct Chart<'r> {
    plot: Plot<'r>,
    table: Table,
}

/// A reason with its count.
struct Bar<'r> {
    name: &'r str,
    value: u64,
    /// The largest count has a bar of 520 units.
    length: f64,
}

impl Table {
    /// Builds a table with a row for each client and one for all.
    fn by_client(report: &Report, columns: Vec<String>, cells: impl Fn(&ClientReport) -> Vec<String>) -> Table {
        Table { columns, rows: report.clients.iter().chain([&report.totals]).map(cells).collect() }
    }

    /// Builds a table with a row for each bucket that has cells.
    fn over_time<'c>(
        report: &Report, columns: impl Iterator<Item = &'c str>, cells: impl Fn(usize) -> Option<Vec<String>>,
    ) -> Table {
        let row = |at: usize| Some([vec![(at as f64 * report.series.bucket_seconds).to_string()], cells(at)?].concat());
        let rows = (0..report.series.delay_seconds.len()).filter_map(row).collect();
        Table { columns: ["second"].into_iter().chain(columns).map(str::to_owned).collect(), rows }
    }
}

/// Writes the whole page.
pub fn html(report: &Report) -> String {
    let columns: Vec<&ReportColumn> = COLUMNS.iter().filter(|column| !column.title.is_empty()).collect();
    let titles = columns.iter().map(|column| column.title.to_owned()).collect();
    let cells = |client: &ClientReport| columns.iter().map(|column| (column.cell)(client)).collect();
    let reasons = &report.totals.counts.rejected;
    let most = reasons.values().copied().max().unwrap_or(1) as f64;
    let rejected = |client: &ClientReport| {
        let counts = reasons.keys().map(|reason| client.counts.rejected.get(reason).copied().unwrap_or(0).to_string());
        [client.name.clone()].into_iter().chain(counts).collect()
    };
    let page = Page {
        report,
        cycle: seconds(report.service.cycle_seconds),
        bucket: seconds(report.series.bucket_seconds),
        clients: Table::by_client(report, titles, cells),
        sent: bands(report, |client| &client.sent),
        admitted: bands(report, |client| &client.admitted),
        delays: delays(report),
        rejections: reasons
            .iter()
            .map(|(name, &value)| Bar { name, value, length: (value as f64 / most * 520.0).ceil() })
            .collect(),
        rejections_by_client: Table::by_client(
            report,
            ["client".to_owned()].into_iter().chain(reasons.keys().cloned()).collect(),
            rejected,
        ),
    };
    // XML can't hold control characters.
    let is_forbidden = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{fffe}' | '\u{ffff}');
    page.to_string().replace(is_forbidden, "\u{fffd}")
}

/// Draws a band for each of the clients that sent most and one for all others together: as many as there are colours.
fn bands(report: &Report, counts: fn(&ClientSeries) -> &[u64]) -> Chart<'_> {
    let width = report.series.bucket_seconds;
    let rates = |client: &ClientSeries| counts(client).iter().map(|count| *count as f64 / width).collect::<Vec<f64>>();
    let mut clients: Vec<_> = report.series.clients.iter().collect();
    clients.sort_by_key(|client| Reverse(client.sent.iter().sum::<u64>()));
    let others = if clients.len() > COLOURS { clients.split_off(COLOURS - 1) } else { Vec::new() };
    let mut bands: Vec<_> = clients.into_iter().map(|client| (client.name.as_str(), rates(client))).collect();
    let sum = |sum: Vec<f64>, more: Vec<f64>| sum.iter().zip(more).map(|(sum, more)| sum + more).collect();
    bands.extend(others.into_iter().map(rates).reduce(sum).map(|rates| ("others", rates)));
    let capacity = report.service.capacity as f64 / report.service.cycle_seconds;
    let columns = bands.iter().map(|(name, _)| *name).chain(["all"]);
    let table = Table::over_time(report, columns, |at| {
        let rates = bands.iter().map(|(_, rates)| rates[at]);
        Some(rates.clone().chain([rates.sum()]).map(|rate| format!("{rate:.1}")).collect())
    });
    Chart { plot: Plot::bands(width, &bands, (format!("capacity {capacity:.1}/s"), capacity)), table }
}

fn delays(report: &Report) -> Chart<'_> {
    let buckets = &report.series.delay_seconds;
    let line = |quantile: fn(&Quantiles) -> f64| buckets.iter().map(|at| at.as_ref().map(quantile)).collect::<Vec<_>>();
    let lines = [("p50", line(|q| q.p50)), ("p95", line(|q| q.p95)), ("p99", line(|q| q.p99))];
    let table = Table::over_time(report, ["p50", "p95", "p99", "max"].into_iter(), |at| {
        let Quantiles { p50, p95, p99, max } = buckets[at]?;
        Some([p50, p95, p99, max].map(seconds).to_vec())
    });
    Chart { plot: Plot::lines(report.series.bucket_seconds, &lines), table }
}
