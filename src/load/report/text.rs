//! The report for a terminal.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::window::By;
use super::{ClientReport, Ended, Promise, Quantiles, Report};
use crate::words::seconds;

/// `again` are second and further attempts; the last four are of the delay.
const HEADER: [&str; 11] =
    ["client", "sent", "again", "admitted", "rejected", "waiting", "adm/s", "p50", "p95", "p99", "max"];

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n\n{}\n", title(report), table(report));
    if report.ended != Ended::NotReadBack {
        let _ = write!(text, "\n{}", promise(report));
    }
    push_rejects(&mut text, report);
    let _ = writeln!(text, "{}", lateness(report));
    for problem in &report.problems {
        let _ = writeln!(text, "WRONG: {problem}");
    }
    for doubt in &report.doubts {
        let _ = writeln!(text, "note: {doubt}");
    }
    let _ = write!(text, "{}", verdict(report));
    text
}

/// How well the generator kept to its schedule, in one line.
pub fn lateness(report: &Report) -> String {
    let [p99, max] = [report.generator.late_p99_seconds, report.generator.late_max_seconds].map(seconds);
    format!("The generator was late by {p99} (p99), {max} at most.")
}

/// What was played, in one line.
pub fn title(report: &Report) -> String {
    let Report { scenario, seed, service, sending_seconds, .. } = report;
    format!(
        "{scenario} (seed {seed}) at {}, {} mode{}, {}: {} records per {}; sent for {}",
        service.name,
        service.mode,
        if service.enforce { "" } else { " (passthrough)" },
        service.delivery,
        service.capacity,
        seconds(service.cycle_seconds),
        seconds(*sending_seconds),
    )
}

/// How it ended, in one sentence.
pub fn verdict(report: &Report) -> String {
    let totals = &report.totals;
    let open = totals.waiting;
    match report.ended {
        Ended::NotReadBack => format!("{} sent; what came out was not read.", totals.sent),
        Ended::AccountedFor if report.ok => format!("All {} are accounted for.", totals.sent),
        Ended::AccountedFor => format!("All {} came out, but not as they should.", totals.sent),
        Ended::NoProgress if open == 0 => "Nothing more came out, and nothing waits.".to_owned(),
        Ended::NoProgress => {
            format!("Nothing more came out; {open} still wait in the source topics. Does watermaster run?")
        }
        Ended::Interrupted => format!("Interrupted; {open} had not come out."),
    }
}

/// What became of the promise, in a sentence.
pub fn promise(report: &Report) -> String {
    let window = &report.window;
    if window.most_admitted == 0 {
        return "Nothing was admitted.\n".to_owned();
    }
    let by = match window.by {
        By::AppendTime => "by the target's append time",
        By::Arrival => "by arrival at this reader",
    };
    let judged = match window.promise {
        Promise::Kept => format!("the promise was kept ({} allowed: the capacity and a round)", window.allowed),
        Promise::Broken => format!("THE PROMISE WAS BROKEN ({} allowed)", window.allowed),
        Promise::NotKnown => format!("more than the {} allowed, if the reader kept up", window.allowed),
        Promise::NotGiven => "nothing was promised (enforce = false)".to_owned(),
        Promise::NotRead => "nothing was read".to_owned(),
    };
    let cycle = seconds(report.service.cycle_seconds);
    format!("Most admitted in any {cycle}: {} {by}; {judged}.\n", window.most_admitted)
}

fn push_rejects(text: &mut String, report: &Report) {
    let reasons: Vec<_> = report.totals.rejected.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !reasons.is_empty() {
        let _ = writeln!(text, "Rejected: {}.", reasons.join(", "));
    }
}

fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(HEADER);
    for client in &report.clients {
        table.add_row(row(client));
    }
    if report.clients.len() > 1 {
        table.add_row(row(&report.totals));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn row(client: &ClientReport) -> [String; HEADER.len()] {
    let [p50, p95, p99, max] = delays(client);
    [
        client.name.clone(),
        client.sent.to_string(),
        client.retries.to_string(),
        client.admitted.to_string(),
        client.rejected.values().sum::<u64>().to_string(),
        client.waiting.to_string(),
        format!("{:.0}", client.admitted_per_second),
        p50,
        p95,
        p99,
        max,
    ]
}

/// p50, p95, p99 and the longest; dashes where nothing was admitted.
pub fn delays(client: &ClientReport) -> [String; 4] {
    let Quantiles { p50, p95, p99, max } = client.delay_seconds;
    [p50, p95, p99, max].map(|delay| if client.admitted > 0 { seconds(delay) } else { "-".to_owned() })
}
