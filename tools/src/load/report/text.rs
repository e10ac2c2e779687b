//! The report for a terminal, and the columns and sentences that it shares with the page.

use std::fmt::Write;

use super::{ClientReport, Ended, LoadReport, MeasuredBy, Promise, Quantiles};
use crate::format::seconds;

/// A column of the table of clients: its title on a terminal, its title on the page (each empty if the column is not
/// shown there), and the cell of a client.
pub type ReportColumn = (&'static str, &'static str, fn(&ClientReport) -> String);

static COLUMNS: [ReportColumn; 15] = [
    ("client", "client", |client| client.name.clone()),
    ("sent", "sent", |client| client.counts.sent.to_string()),
    ("again", "sent again", |client| client.counts.retries.to_string()),
    ("", "sent/s", |client| format!("{:.1}", client.sent_per_second)),
    ("admitted", "admitted", |client| client.counts.admitted.to_string()),
    ("", "admitted/s", |client| format!("{:.1}", client.admitted_per_second)),
    ("rejected", "rejected", |client| client.counts.rejected_total().to_string()),
    ("waiting", "waiting", |client| client.counts.waiting.to_string()),
    ("", "lost", |client| client.counts.lost.to_string()),
    ("", "duplicated", |client| client.counts.duplicated.to_string()),
    ("adm/s", "", |client| format!("{:.0}", client.admitted_per_second)),
    ("p50", "delay p50", |client| delay(client, |delays| delays.p50)),
    ("p95", "p95", |client| delay(client, |delays| delays.p95)),
    ("p99", "p99", |client| delay(client, |delays| delays.p99)),
    ("max", "max", |client| delay(client, |delays| delays.max)),
];

/// The first columns, which are known without reading the outcomes.
const SENT_COLUMNS: usize = 4;

fn delay(client: &ClientReport, quantile: fn(&Quantiles) -> f64) -> String {
    if client.counts.admitted > 0 { seconds(quantile(&client.delay_seconds)) } else { "-".to_owned() }
}

pub fn text(report: &LoadReport) -> String {
    let mut text = format!("{}\n\n{}\n", report.title(), table(report));
    if report.was_read() {
        let _ = write!(text, "\n{}\n", report.promise());
    }
    let rejected = &report.totals.counts.rejected;
    if !rejected.is_empty() {
        let reasons: Vec<_> = rejected.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let _ = writeln!(text, "Rejected: {}.", reasons.join(", "));
    }
    let _ = writeln!(text, "{}", report.lateness());
    for problem in &report.problems {
        let _ = writeln!(text, "WRONG: {problem}");
    }
    for doubt in &report.doubts {
        let _ = writeln!(text, "note: {doubt}");
    }
    text + &report.verdict()
}

fn table(report: &LoadReport) -> String {
    let columns: Vec<&ReportColumn> = report.columns().filter(|(title, ..)| !title.is_empty()).collect();
    let mut table = crate::format::table(columns.iter().map(|(title, ..)| title), Some(1), |index| index > 0);
    let totals = (report.clients.len() > 1).then_some(&report.totals);
    for client in report.clients.iter().chain(totals) {
        table.add_row(columns.iter().map(|(.., cell)| cell(client)));
    }
    table.trim_fmt()
}

impl LoadReport {
    /// Returns the columns whose figures are known.
    pub fn columns(&self) -> impl Iterator<Item = &'static ReportColumn> {
        COLUMNS[..if self.was_read() { COLUMNS.len() } else { SENT_COLUMNS }].iter()
    }

    /// Writes the lateness of the generator in a sentence.
    pub fn lateness(&self) -> String {
        let [p99, max] = [self.generator.late_p99_seconds, self.generator.late_max_seconds].map(seconds);
        format!("The generator was late by {p99} (p99), {max} at most.")
    }

    /// Writes the scenario and the service in a line.
    pub fn title(&self) -> String {
        let LoadReport { scenario, seed, service, sending_seconds, .. } = self;
        format!(
            "{scenario} (seed {seed}) at {}, {} mode{}, {}: {} records per {}; sent for {}",
            service.name,
            service.mode,
            if service.enforce { "" } else { " (shadow)" },
            service.delivery,
            service.capacity,
            seconds(service.cycle_seconds),
            seconds(*sending_seconds),
        )
    }

    /// Writes how the run ended in a sentence.
    pub fn verdict(&self) -> String {
        let totals = &self.totals.counts;
        let open = totals.waiting;
        match self.ended {
            Ended::NotReadBack => format!("{} sent; the outcomes were not read.", totals.sent),
            Ended::AccountedFor if self.ok => format!("All {} are accounted for.", totals.sent),
            Ended::AccountedFor => format!("All {} came out, but not as they should.", totals.sent),
            Ended::NoProgress if open == 0 => "Nothing more came out, and nothing waits.".to_owned(),
            Ended::NoProgress => {
                format!("Nothing more came out; {open} still wait in the source topics. Does watermaster run?")
            }
            Ended::Interrupted => format!("Interrupted; {open} had not come out."),
        }
    }

    /// Writes whether the promise was kept in a sentence.
    pub fn promise(&self) -> String {
        let window = &self.window;
        if window.most_admitted == 0 {
            return "Nothing was admitted.".to_owned();
        }
        let by = match window.by {
            MeasuredBy::AppendTime => "by the target's append time",
            MeasuredBy::Arrival => "by arrival at this reader",
        };
        let judged = match window.promise {
            Promise::Kept => format!("the promise was kept ({} allowed: the capacity and a round)", window.allowed),
            Promise::Broken => format!("THE PROMISE WAS BROKEN ({} allowed)", window.allowed),
            Promise::NotKnown => format!("more than the {} allowed, if the reader kept up", window.allowed),
            Promise::NotGiven => "nothing was promised (enforce = false)".to_owned(),
            Promise::NotRead => "nothing was read".to_owned(),
        };
        let cycle = seconds(self.service.cycle_seconds);
        format!("Most admitted in any {cycle}: {} {by}; {judged}.", window.most_admitted)
    }
}
