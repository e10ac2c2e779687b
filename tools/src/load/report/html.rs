//! The report as one page of inline SVG and CSS, without scripts or network; also well-formed XML.

use std::fmt::Write;

use super::plot::{self, COLOURS, Caption, escaped};
use super::text::{COLUMNS, Column, lateness, promise, title, verdict};
use super::{ClientReport, ClientSeries, Ended, Quantiles, Report};
use crate::format::seconds;

const STYLE: &str = include_str!("report.css");

/// A client and its records per second in each bucket.
type Band<'r> = (&'r str, Vec<f64>);

/// Writes the whole page.
pub fn html(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <title>watermaster load: {}</title>\n<style>\n{STYLE}</style></head>\n<body>\n",
        escaped(&report.scenario)
    );
    push_head(&mut page, report);
    page.push_str("<h2>Clients</h2>\n");
    let columns: Vec<&Column> = COLUMNS.iter().filter(|column| !column.title.is_empty()).collect();
    let rows = report.clients.iter().chain([&report.totals]);
    let rows = rows.map(|client| columns.iter().map(|column| (column.cell)(client)).collect());
    push_table(&mut page, &columns.iter().map(|column| column.title).collect::<Vec<_>>(), rows);
    push_rates(&mut page, report);
    if report.ended != Ended::NotReadBack {
        push_delays(&mut page, report);
        push_rejects(&mut page, report);
    }
    let _ = write!(
        page,
        "<footer><p>Run {}, started {}. A delay counts from when a record should have been sent, not from when it was, so that \
         a generator or broker that falls behind hides nothing.</p></footer>\n</body></html>\n",
        escaped(&report.run),
        escaped(&report.started)
    );
    page
}

fn push_head(page: &mut String, report: &Report) {
    let class = if report.ok { "good" } else { "bad" };
    let _ = write!(
        page,
        "<h1>{}</h1>\n<p>{}</p>\n<p class=\"verdict {class}\">{}</p>\n",
        escaped(&title(report)),
        escaped(&report.description),
        escaped(&verdict(report))
    );
    if report.ended != Ended::NotReadBack {
        let _ = writeln!(page, "<p>{}</p>", escaped(&promise(report)));
    }
    for (class, head, items) in [("bad", "Wrong", &report.problems), ("note", "Note", &report.doubts)] {
        for item in items {
            let _ = writeln!(page, "<p class=\"{class}\"><strong>{head}:</strong> {}</p>", escaped(item));
        }
    }
    let _ = writeln!(page, "<p>{}</p>", escaped(&lateness(report)));
}

/// Returns a band for each of the clients that sent most and one for all others together: as many as there are colours.
fn bands<'r>(report: &'r Report, values: impl Fn(&'r ClientSeries) -> &'r [u64]) -> Vec<Band<'r>> {
    let width = report.series.bucket_seconds;
    let rate = |values: &[u64]| values.iter().map(|count| *count as f64 / width).collect::<Vec<f64>>();
    let mut clients: Vec<_> = report.series.clients.iter().collect();
    clients.sort_by_key(|client| std::cmp::Reverse(client.sent.iter().sum::<u64>()));
    let own = if clients.len() > COLOURS { COLOURS - 1 } else { clients.len() };
    let mut bands: Vec<_> = clients[..own].iter().map(|client| (client.name.as_str(), rate(values(client)))).collect();
    if own < clients.len() {
        let mut sum = vec![0.0; clients.iter().map(|client| values(client).len()).max().unwrap_or(0)];
        for client in &clients[own..] {
            sum.iter_mut().zip(rate(values(client))).for_each(|(sum, rate)| *sum += rate);
        }
        bands.push(("others", sum));
    }
    bands
}

fn push_rates(page: &mut String, report: &Report) {
    page.push_str("<h2>Records sent</h2>\n");
    let caption = Caption {
        id: "sent",
        title: "Records sent per second, by client",
        description: "Bands stacked over time beside the service's capacity; the table below has the numbers.",
        unit: "records/s",
    };
    push_bands(page, report, caption, &bands(report, |client| &client.sent));
    if report.ended == Ended::NotReadBack {
        return;
    }
    let _ = writeln!(
        page,
        "<h2>Records admitted</h2>\n<p class=\"note\">The line is the capacity over a cycle ({}). A step of the plot is {} long and may \
         lie above the line; the sentence at the top tells the most in any cycle.</p>",
        seconds(report.service.cycle_seconds),
        seconds(report.series.bucket_seconds)
    );
    let caption = Caption { id: "admitted", title: "Records admitted per second, by client", ..caption };
    push_bands(page, report, caption, &bands(report, |client| &client.admitted));
}

/// Writes a legend, a plot and a table of bands.
fn push_bands(page: &mut String, report: &Report, caption: Caption<'_>, bands: &[Band<'_>]) {
    page.push_str("<ul class=\"legend\">");
    // In the order of the plot: the last band is on top.
    for (index, (name, _)) in bands.iter().enumerate().rev() {
        let _ = write!(page, "<li><span class=\"swatch s{index}\"></span>{}</li>", escaped(name));
    }
    page.push_str("</ul>\n");
    let capacity = report.capacity_per_second();
    let line = format!("capacity {capacity:.1}/s");
    push_figure(page, &plot::bands(caption, report.series.bucket_seconds, bands, (&line, capacity)));
    let columns: Vec<&str> = ["second"].into_iter().chain(bands.iter().map(|(name, _)| *name)).chain(["all"]).collect();
    let buckets = bands.first().map_or(0, |(_, values)| values.len());
    let rows = (0..buckets).map(|at| {
        let values = bands.iter().map(|(_, values)| values[at]);
        let all = values.clone().sum::<f64>();
        [time_of(report, at)].into_iter().chain(values.chain([all]).map(|rate| format!("{rate:.1}"))).collect()
    });
    push_details(page, "Records per second, in numbers", &columns, rows);
}

fn push_delays(page: &mut String, report: &Report) {
    let buckets = &report.series.delay_seconds;
    let line = |quantile: fn(&Quantiles) -> f64| buckets.iter().map(|at| at.as_ref().map(quantile)).collect::<Vec<_>>();
    let lines = [("p50", line(|q| q.p50)), ("p95", line(|q| q.p95)), ("p99", line(|q| q.p99))];
    page.push_str(
        "<h2>Delay of admitted records</h2>\n<ul class=\"legend\"><li><span class=\"dash d2\">p99</span></li>\
         <li><span class=\"dash d1\">p95</span></li><li><span class=\"dash d0\">p50</span></li></ul>\n",
    );
    let caption = Caption {
        id: "delay",
        title: "Delay percentiles over time",
        description: "p50, p95 and p99 of the delay from the intended sending to the target, by time of admission.",
        unit: "seconds",
    };
    push_figure(page, &plot::lines(caption, report.series.bucket_seconds, &lines));
    let rows = buckets.iter().enumerate().filter_map(|(at, quantiles)| {
        let Quantiles { p50, p95, p99, max } = (*quantiles)?;
        Some([time_of(report, at)].into_iter().chain([p50, p95, p99, max].map(seconds)).collect())
    });
    push_details(page, "Delays, in numbers", &["second", "p50", "p95", "p99", "max"], rows);
}

fn push_rejects(page: &mut String, report: &Report) {
    page.push_str("<h2>Records rejected, by reason</h2>\n");
    let reasons: Vec<(&str, u64)> = report.totals.rejected.iter().map(|(reason, n)| (reason.as_str(), *n)).collect();
    if reasons.is_empty() {
        page.push_str("<p>Nothing was rejected.</p>\n");
        return;
    }
    let caption = Caption {
        id: "rejected",
        title: "Records rejected, by reason",
        description: "A bar for each reason; the table below has them by client.",
        unit: "records",
    };
    push_figure(page, &plot::bars(caption, &reasons));
    let columns: Vec<&str> = ["client"].into_iter().chain(reasons.iter().map(|(reason, _)| *reason)).collect();
    let of = |client: &ClientReport| {
        let counts = reasons.iter().map(|(reason, _)| client.rejected.get(*reason).copied().unwrap_or(0).to_string());
        [client.name.clone()].into_iter().chain(counts).collect()
    };
    push_table(page, &columns, report.clients.iter().chain([&report.totals]).map(of));
}

/// Returns the start of a bucket, in seconds.
fn time_of(report: &Report, bucket: usize) -> String {
    format!("{}", bucket as f64 * report.series.bucket_seconds)
}

fn push_figure(page: &mut String, svg: &str) {
    let _ = writeln!(page, "<figure>{svg}</figure>");
}

fn push_details(page: &mut String, summary: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let _ = write!(page, "<details><summary>{summary}</summary>");
    push_table(page, columns, rows);
    page.push_str("</details>\n");
}

fn push_table(page: &mut String, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    page.push_str("<div class=\"scroll\"><table><thead><tr>");
    columns.iter().for_each(|name| _ = write!(page, "<th scope=\"col\">{}</th>", escaped(name)));
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let (tag, scope) = if index == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let _ = write!(page, "<{tag}{scope}>{}</{tag}>", escaped(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}
