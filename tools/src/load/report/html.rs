//! The report as one page of inline SVG and CSS, without scripts or network; also well-formed XML. `report.html` is its
//! template.

use std::{cmp::Reverse, fmt::Write as _};

use askama::Template;

use super::text::ReportColumn;
use super::{ClientReport, LoadReport, Quantiles};
use crate::format::{decimal, seconds};
use crate::load::account::ClientSeries;

// The area between the axes; `report.html` has the same numbers.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 748.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 224.0;

/// The number of colours: the classes `c0` to `c7`. Outlines, titles and dashes distinguish curves without them.
const COLOURS: usize = 8;

#[derive(Template)]
#[template(path = "load/report/report.html", config = "src/askama.toml")]
struct ReportPage<'r> {
    report: &'r LoadReport,
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
    fn by_client(report: &LoadReport, columns: Vec<String>, cells: impl Fn(&ClientReport) -> Vec<String>) -> Table {
        Table { columns, rows: report.clients.iter().chain([&report.totals]).map(cells).collect() }
    }

    /// Builds a table with a row for each bucket that has cells.
    fn over_time<'c>(
        report: &LoadReport, columns: impl Iterator<Item = &'c str>, cells: impl Fn(usize) -> Option<Vec<String>>,
    ) -> Table {
        let row = |at: usize| Some([vec![(at as f64 * report.series.bucket_seconds).to_string()], cells(at)?].concat());
        let rows = (0..report.series.delay_seconds.len()).filter_map(row).collect();
        Table { columns: ["second"].into_iter().chain(columns).map(str::to_owned).collect(), rows }
    }
}

pub fn html(report: &LoadReport) -> String {
    let columns: Vec<&ReportColumn> = report.columns().filter(|(_, title, _)| !title.is_empty()).collect();
    let titles = columns.iter().map(|(_, title, _)| (*title).to_owned()).collect();
    let cells = |client: &ClientReport| columns.iter().map(|(.., cell)| cell(client)).collect();
    let reasons = &report.totals.counts.rejected;
    let most = reasons.values().copied().max().unwrap_or(1) as f64;
    let rejected = |client: &ClientReport| {
        let counts = reasons.keys().map(|reason| client.counts.rejected.get(reason).copied().unwrap_or(0).to_string());
        [client.name.clone()].into_iter().chain(counts).collect()
    };
    let page = ReportPage {
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
fn bands(report: &LoadReport, counts: fn(&ClientSeries) -> &[u64]) -> Chart<'_> {
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

fn delays(report: &LoadReport) -> Chart<'_> {
    let buckets = &report.series.delay_seconds;
    let line = |quantile: fn(&Quantiles) -> f64| buckets.iter().map(|at| at.as_ref().map(quantile)).collect::<Vec<_>>();
    let lines = [("p50", line(|q| q.p50)), ("p95", line(|q| q.p95)), ("p99", line(|q| q.p99))];
    let table = Table::over_time(report, ["p50", "p95", "p99", "max"].into_iter(), |at| {
        let Quantiles { p50, p95, p99, max } = buckets[at]?;
        Some([p50, p95, p99, max].map(seconds).to_vec())
    });
    Chart { plot: Plot::lines(report.series.bucket_seconds, &lines), table }
}

/// A plot over time.
struct Plot<'a> {
    curves: Vec<Curve<'a>>,
    levels: Vec<Mark>,
    times: Vec<Mark>,
    limit: Option<Mark>,
}

/// A band or a line.
struct Curve<'a> {
    name: &'a str,
    /// The class of its colour.
    class: String,
    path: String,
}

/// A labelled place on an axis.
struct Mark {
    at: String,
    label: String,
}

impl<'a> Plot<'a> {
    /// Draws bands stacked over time, each with a value for each bucket, and a horizontal line to compare with.
    fn bands(bucket: f64, bands: &[(&'a str, Vec<f64>)], (label, limit): (String, f64)) -> Self {
        let buckets = bands.first().map_or(0, |(_, values)| values.len());
        let sums = (0..buckets).map(|at| bands.iter().map(|(_, values)| values[at]).sum::<f64>());
        let axes = Axes::new(buckets, bucket, sums.fold(limit, f64::max));
        let mut base = vec![0.0; buckets];
        let mut curves = Vec::new();
        for (index, (name, values)) in bands.iter().enumerate().filter(|_| buckets > 0) {
            let top: Vec<f64> = base.iter().zip(values).map(|(below, value)| below + value).collect();
            let mut path = axes.steps(top.iter().copied().map(Some));
            for (at, below) in base.iter().enumerate().rev() {
                let _ = write!(path, "L{} {}H{}", axes.x(at + 1), axes.y(*below), axes.x(at));
            }
            curves.push(Curve { name, class: format!("c{}", index % COLOURS), path: path + "Z" });
            base = top;
        }
        Plot { limit: Some(Mark { at: axes.y(limit), label }), ..axes.plot(curves) }
    }

    /// Draws lines over time; a bucket without a value interrupts its line.
    fn lines(bucket: f64, lines: &[(&'a str, Vec<Option<f64>>)]) -> Self {
        let largest = lines.iter().flat_map(|(_, values)| values.iter().flatten()).copied().fold(0.0, f64::max);
        let axes = Axes::new(lines.first().map_or(0, |(_, values)| values.len()), bucket, largest);
        let curve = |(index, (name, values)): (usize, &(&'a str, Vec<Option<f64>>))| Curve {
            name,
            class: format!("d{index}"),
            path: axes.steps(values.iter().copied()),
        };
        axes.plot(lines.iter().enumerate().map(curve).collect())
    }
}

/// The axes of a plot over time.
struct Axes {
    buckets: usize,
    /// Length of a bucket in seconds.
    bucket: f64,
    largest: f64,
    step: f64,
}

impl Axes {
    fn new(buckets: usize, bucket: f64, largest: f64) -> Axes {
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let step = nice_step(largest);
        Axes { buckets: buckets.max(1), bucket, largest: (largest * 1.04 / step).ceil() * step, step }
    }

    fn x(&self, bucket: usize) -> String {
        format!("{:.1}", LEFT + (RIGHT - LEFT) * bucket as f64 / self.buckets as f64)
    }

    fn y(&self, value: f64) -> String {
        format!("{:.1}", BOTTOM - (BOTTOM - TOP) * value / self.largest)
    }

    /// Returns a path along the values of the buckets, interrupted where there is none.
    fn steps(&self, values: impl Iterator<Item = Option<f64>>) -> String {
        let (mut path, mut pen) = (String::new(), 'M');
        for (at, value) in values.enumerate() {
            if let Some(value) = value {
                let _ = write!(path, "{pen}{} {}H{}", self.x(at), self.y(value), self.x(at + 1));
            }
            pen = if value.is_some() { 'L' } else { 'M' };
        }
        path
    }

    fn plot<'a>(&self, curves: Vec<Curve<'a>>) -> Plot<'a> {
        let levels = ticks(self.largest, self.step).map(|value| Mark { at: self.y(value), label: decimal(value) });
        let length = self.buckets as f64 * self.bucket;
        let x = |time: f64| format!("{:.1}", LEFT + (RIGHT - LEFT) * time / length);
        let times = ticks(length, nice_step(length)).map(|time| Mark { at: x(time), label: decimal(time) });
        Plot { curves, levels: levels.collect(), times: times.collect(), limit: None }
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides an axis into five to ten parts.
fn nice_step(largest: f64) -> f64 {
    let power = 10.0_f64.powf((largest / 5.0).log10().floor());
    let parts = largest / 5.0 / power;
    power * [5.0, 2.0].into_iter().find(|step| parts >= *step).unwrap_or(1.0)
}

fn ticks(largest: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..).map(move |at| f64::from(at) * step).take_while(move |value| *value <= largest * 1.000_001)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_nice_and_neither_few_nor_many() {
        for largest in [0.003, 0.7, 1.0, 4.2, 10.0, 37.0, 99.0, 1e6] {
            let steps = largest / nice_step(largest);
            assert!((4.99..=12.6).contains(&steps), "{largest}: {steps}");
        }
    }
}
