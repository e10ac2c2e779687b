//! The page: a template, and tables in place of its marks.

use std::fmt::Write;

use super::{Felt, Outcome, TRAFFICS, WAYS, live, read, scenario};
use crate::format::seconds;

/// Writes the page from `tools/results/results.md`.
pub fn page(outcomes: &[Vec<Outcome>]) -> String {
    let runs = live::runs();
    let marks = [
        ("{{summary}}", summary(outcomes)),
        ("{{details}}", details(outcomes)),
        ("{{seeds}}", seeds()),
        ("{{live}}", live::table(&runs)),
        ("{{seconds}}", runs.seconds.to_string()),
        ("{{machine}}", runs.machine),
    ];
    marks.iter().fold(read("tools/results/results.md"), |page, (mark, text)| page.replace(mark, text.trim_end()))
}

fn seeds() -> String {
    let seed = |(name, title): &(&str, &str)| format!("{title} {}", scenario(name).seed);
    TRAFFICS.iter().map(seed).collect::<Vec<_>>().join(", ")
}

/// Begins a table.
pub fn titles(titles: &[&str]) -> String {
    format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()))
}

/// Writes a part of the clients' records.
fn share(part: f64) -> String {
    if part == 0.0 { "0".to_owned() } else { format!("{:.1} %", 100.0 * part) }
}

/// Writes a time, and the rejections if there are any.
fn felt(felt: Felt) -> String {
    let rejected = if felt.rejected > 0.0 { format!(", {} rejected", share(felt.rejected)) } else { String::new() };
    format!("{}{rejected}", seconds(felt.p99))
}

/// The clients within their shares, under each rule and traffic.
fn summary(outcomes: &[Vec<Outcome>]) -> String {
    let mut table = titles(&[&[""][..], &TRAFFICS.map(|(_, title)| title)].concat());
    for (row, (_, label)) in WAYS.iter().enumerate() {
        let cells = outcomes.iter().map(|outcomes| felt(Felt::within(&outcomes[row])));
        let _ = writeln!(table, "| {label} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

/// All numbers, a table for each traffic.
fn details(outcomes: &[Vec<Outcome>]) -> String {
    let mut text = String::new();
    for ((_, title), outcomes) in TRAFFICS.iter().zip(outcomes) {
        let records = outcomes[0].total.records;
        let _ = write!(text, "### {}{}: {records} records\n\n", title[..1].to_uppercase(), &title[1..]);
        text += &titles(&[
            "", "others p99", "longest", "rejected", "credit-card p99", "longest", "rejected", "fullest 10 s", "used",
            "in service p99", "longest", "slowest", "retries",
        ]);
        for ((way, label), outcome) in WAYS.iter().zip(outcomes) {
            let _ = writeln!(text, "| {label} | {} |", cells(*way, outcome).join(" | "));
        }
        text.push('\n');
    }
    text
}

fn cells(way: super::Way, outcome: &Outcome) -> [String; 12] {
    let (within, over) = (Felt::within(outcome), Felt::over(outcome));
    let service = outcome.service.expect("a service is modelled");
    let shared = matches!(way, super::Way::Shared(..));
    [
        seconds(within.p99),
        seconds(within.max),
        share(within.rejected),
        seconds(over.p99),
        seconds(over.max),
        share(over.rejected),
        outcome.largest_window.to_string(),
        if shared { format!("{:.0} %", 100.0 * outcome.used) } else { "–".to_owned() },
        service.wait_seconds.p99.map_or("–".to_owned(), seconds),
        service.wait_seconds.max.map_or("–".to_owned(), seconds),
        format!("{:.0} %", 100.0 * service.slowest),
        outcome.total.retries.to_string(),
    ]
}
