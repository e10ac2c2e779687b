//! Live runs on a real Kafka beside their simulations. `scripts/results` records them in `tools/results/live.json`.

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;
use watermaster_core::policy::{Lending, Mode};

use super::page::titles;
use super::{OVER, Outcome, START_MS, Way, read, scenario, simulate};
use crate::format::seconds;

/// The file that `scripts/results` writes.
#[derive(Debug, Deserialize)]
pub struct LiveRuns {
    /// A sentence about the machine and the programs.
    pub machine: String,
    pub seconds: u64,
    runs: Vec<LiveRun>,
}

#[derive(Debug, Deserialize)]
struct LiveRun {
    scenario: String,
    mode: String,
    enforce: bool,
    cpu_seconds: f64,
    peak_kib: u64,
    /// The most records in the target in any window of one cycle.
    most_admitted: u64,
    clients: Vec<LiveClient>,
}

#[derive(Debug, Deserialize)]
struct LiveClient {
    name: String,
    sent: u64,
    rejected: u64,
    p99: f64,
}

pub fn runs() -> LiveRuns {
    serde_json::from_str(&read("tools/results/live.json")).expect("scripts/results wrote it")
}

impl LiveRun {
    /// Returns the largest p99 of the clients, live.
    fn p99(&self, over: bool) -> f64 {
        let clients = self.clients.iter().filter(|client| (client.name == OVER) == over);
        clients.map(|client| client.p99).fold(0.0, f64::max)
    }

    fn sum(&self, count: fn(&LiveClient) -> u64) -> u64 {
        self.clients.iter().map(count).sum()
    }

    /// Simulates the run. In mode reject the beginning of a cycle matters, so there is an outcome for each of five.
    fn simulated(&self, length: Duration) -> Vec<Outcome> {
        let mode: Mode = self.mode.parse().expect("a mode");
        let way = if self.enforce { Way::Shared(mode, Lending::Proportional) } else { Way::NoLimit };
        let scenario = scenario(&self.scenario).stretched(length);
        let begins: &[u64] = if mode == Mode::Reject { &[0, 2_000, 4_000, 6_000, 8_000] } else { &[0] };
        begins.iter().map(|begin| simulate(&scenario, way, None, START_MS + begin)).collect()
    }
}

fn p99(outcome: &Outcome, over: bool) -> f64 {
    let clients = outcome.clients.iter().filter(|client| (client.name == OVER) == over);
    clients.filter_map(|client| client.delay_seconds.p99).fold(0.0, f64::max)
}

/// Writes the smallest and the largest number of several simulations.
fn range(outcomes: &[Outcome], number: impl Fn(&Outcome) -> f64, shown: impl Fn(f64) -> String) -> String {
    let (least, most) = outcomes
        .iter()
        .map(number)
        .fold((f64::MAX, 0.0_f64), |(least, most), number| (least.min(number), most.max(number)));
    if shown(least) == shown(most) { shown(most) } else { format!("{} to {}", shown(least), shown(most)) }
}

pub fn table(live: &LiveRuns) -> String {
    let mut table = titles(&[
        "", "attempts", "rejected, live", "simulated", "others p99, live", "simulated", "credit-card p99, live",
        "simulated", "fullest 10 s", "CPU s per million", "peak MiB",
    ]);
    for run in &live.runs {
        let outcomes = run.simulated(Duration::from_secs(live.seconds));
        let attempts = run.sum(|client| client.sent);
        let mode = if run.enforce { run.mode.as_str() } else { "shadow" };
        let rejected = |outcome: &Outcome| (outcome.total.rejected_total() + outcome.total.retries) as f64;
        let _ = writeln!(
            table,
            "| {}, {mode} | {attempts} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {} |",
            run.scenario.replace('-', " "),
            run.sum(|client| client.rejected),
            range(&outcomes, rejected, |number| number.to_string()),
            seconds(run.p99(false)),
            range(&outcomes, |outcome| p99(outcome, false), seconds),
            seconds(run.p99(true)),
            range(&outcomes, |outcome| p99(outcome, true), seconds),
            run.most_admitted,
            run.cpu_seconds * 1e6 / attempts as f64,
            run.peak_kib / 1024,
        );
    }
    table
}
