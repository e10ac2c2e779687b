//! The report as one page of inline SVG and CSS, without scripts or network; also well-formed XML. The templates are
//! `report.html`, `plot.svg` and `table.html`.

use std::cmp::Reverse;

use askama::Template;

use super::plot::{COLOURS, Caption, Plot};
use super::text::{COLUMNS, ReportColumn};
use super::{ClientReport, Quantiles, Report};
use crate::{format::seconds, load::series::ClientSeries};

#[derive(Template)]
#[template(path = "report.html", config = "src/load/report/askama.toml")]
struct Page<'r> {
    report: &'r Report,
    clients: Table,
    sections: Vec<Section<'r>>,
    rejections: Vec<Bar<'r>>,
    rejections_by_client: Table,
}

#[derive(Template)]
#[template(path = "table.html", config = "src/load/report/askama.toml")]
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A plot over time, and its numbers.
struct Section<'r> {
    heading: &'static str,
    note: Option<String>,
    plot: Plot<'r>,
    summary: &'static str,
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
    let mut sections = vec![sent(report)];
    if report.was_read() {
        sections.extend([admitted(report), delays(report)]);
    }
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
        clients: Table::by_client(report, titles, cells),
        sections,
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

fn sent(report: &Report) -> Section<'_> {
    let caption = Caption {
        id: "sent",
        title: "Records sent per second, by client",
        description: "Bands stacked over time beside the service's capacity; the table below has the numbers.",
        unit: "records/s",
    };
    bands(report, "Records sent", None, caption, |client| &client.sent)
}

fn admitted(report: &Report) -> Section<'_> {
    let note = format!(
        "The line is the capacity over a cycle ({}). A step of the plot is {} long and may lie above the line; \
         the sentence at the top has the most of any cycle.",
        seconds(report.service.cycle_seconds),
        seconds(report.series.bucket_seconds)
    );
    let caption = Caption {
        id: "admitted",
        title: "Records admitted per second, by client",
        description: "Bands stacked over time beside the service's capacity; the table below has the numbers.",
        unit: "records/s",
    };
    bands(report, "Records admitted", Some(note), caption, |client| &client.admitted)
}

/// Draws a band for each of the clients that sent most and one for all others together: as many as there are colours.
fn bands<'r>(
    report: &'r Report, heading: &'static str, note: Option<String>, caption: Caption,
    counts: fn(&ClientSeries) -> &[u64],
) -> Section<'r> {
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
    let plot = Plot::bands(caption, width, &bands, (format!("capacity {capacity:.1}/s"), capacity));
    Section { heading, note, plot, summary: "Records per second, in numbers", table }
}

fn delays(report: &Report) -> Section<'_> {
    let buckets = &report.series.delay_seconds;
    let line = |quantile: fn(&Quantiles) -> f64| buckets.iter().map(|at| at.as_ref().map(quantile)).collect::<Vec<_>>();
    let lines = [("p50", line(|q| q.p50)), ("p95", line(|q| q.p95)), ("p99", line(|q| q.p99))];
    let caption = Caption {
        id: "delay",
        title: "Delay percentiles over time",
        description: "p50, p95 and p99 of the delay from the intended sending to the target, by time of admission.",
        unit: "seconds",
    };
    let table = Table::over_time(report, ["p50", "p95", "p99", "max"].into_iter(), |at| {
        let Quantiles { p50, p95, p99, max } = buckets[at]?;
        Some([p50, p95, p99, max].map(seconds).to_vec())
    });
    Section {
        heading: "Delay of admitted records",
        note: None,
        plot: Plot::lines(caption, report.series.bucket_seconds, &lines),
        summary: "Delays, in numbers",
        table,
    }
}
