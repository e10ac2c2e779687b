//! A live run beside the simulation of its trace.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use super::replay::Outcome;
use super::sweep::Rules;
use crate::cli::Failure;
use crate::format::{printable, seconds};

/// A number of records agrees if it differs by no more than this part of the client's records, or by this many.
const RECORDS: (f64, f64) = (0.01, 20.0);
/// A delay in seconds agrees within this part, or this time.
const DELAY: (f64, f64) = (0.05, 0.2);
/// The largest window agrees within this part, or one round: the live one is measured on the target, to which a round
/// may be appended late.
const WINDOW: f64 = 0.01;

/// The report of `watermaster load --output json`, as far as a simulation can tell the same.
#[derive(Debug, Deserialize)]
pub struct LiveRun {
    service: LiveService,
    window: LiveWindow,
    clients: Vec<LiveClient>,
}

#[derive(Debug, Deserialize)]
struct LiveService {
    mode: String,
    enforce: bool,
    capacity: u64,
}

#[derive(Debug, Deserialize)]
struct LiveWindow {
    most_admitted: u64,
    /// The capacity and one round.
    allowed: u64,
}

#[derive(Debug, Deserialize)]
struct LiveClient {
    name: String,
    sent: u64,
    rejected: BTreeMap<String, u64>,
    delay_seconds: LiveDelays,
}

#[derive(Debug, Deserialize)]
struct LiveDelays {
    p50: f64,
    p99: f64,
}

/// A number of the live run beside the simulated one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The client; `None` for all together.
    pub client: Option<String>,
    pub what: &'static str,
    pub live: f64,
    pub simulated: Option<f64>,
    pub agrees: bool,
}

impl LiveRun {
    /// Reads the report of a run with this policy.
    ///
    /// # Errors
    /// The file can't be read, is no report, or is the report of a run with another mode or capacity.
    pub fn read(path: &Path, rules: Rules, capacity: u64, enforce: bool) -> Result<LiveRun, Failure> {
        let shown = path.display();
        let text =
            std::fs::read(path).map_err(|error| Failure::config(format_args!("{shown} can't be read: {error}")))?;
        let no_report =
            |error| Failure::config(format_args!("{shown} is no report of `watermaster load --output json`: {error}"));
        let run: LiveRun = serde_json::from_slice(&text).map_err(no_report)?;
        let words = |mode: &str, enforce, capacity| format!("mode {mode}, capacity {capacity}, enforce = {enforce}");
        let live = words(&run.service.mode, run.service.enforce, run.service.capacity);
        let configured = words(rules.mode.into(), enforce, capacity);
        if live != configured {
            return Err(Failure::config(format_args!(
                "{shown} is a run with {live}: the configuration has {configured}"
            )));
        }
        Ok(run)
    }

    /// Compares the clients of the run with those of a simulation. In shadow mode nothing was held back, so there is
    /// nothing to compare but the number of records.
    pub fn compare(&self, outcome: &Outcome) -> Vec<Comparison> {
        let mut found = Vec::new();
        for live in &self.clients {
            let simulated = outcome.clients.iter().find(|client| client.name == live.name);
            let mut put = |what, number: f64, other: Option<f64>, (part, absolute): (f64, f64), of: f64| {
                let agrees = other.is_some_and(|other| (number - other).abs() <= (of * part).max(absolute));
                let client = Some(live.name.clone());
                found.push(Comparison { client, what, live: number, simulated: other, agrees });
            };
            let sent = live.sent as f64;
            put("records", sent, simulated.map(|client| client.records as f64), (0.0, 0.0), sent);
            if !self.service.enforce {
                continue;
            }
            let rejected = live.rejected.values().sum::<u64>() as f64;
            put("rejected", rejected, simulated.map(|client| client.rejected_total() as f64), RECORDS, sent);
            let LiveDelays { p50, p99 } = live.delay_seconds;
            put("p50", p50, simulated.and_then(|client| client.delay_seconds.p50), DELAY, p50);
            put("p99", p99, simulated.and_then(|client| client.delay_seconds.p99), DELAY, p99);
        }
        if self.service.enforce {
            let (live, simulated) = (self.window.most_admitted as f64, outcome.largest_window as f64);
            let round = self.window.allowed.saturating_sub(self.service.capacity) as f64;
            let agrees = (live - simulated).abs() <= (live * WINDOW).max(round);
            found.push(Comparison { client: None, what: "window", live, simulated: Some(simulated), agrees });
        }
        found
    }
}

/// Writes a comparison for a terminal.
pub fn text(comparisons: &[Comparison]) -> String {
    let titles = ["client", "", "live", "simulated", ""];
    let mut table = crate::format::table(titles, Some(2), |index| index == 2 || index == 3);
    let mut last = None;
    for one in comparisons {
        let shown = |number: f64| if one.what.starts_with('p') { seconds(number) } else { number.to_string() };
        let client = one.client.as_deref().unwrap_or("all");
        let name = if last == Some(client) { String::new() } else { printable(client).into_owned() };
        last = Some(client);
        table.add_row([
            name,
            one.what.to_owned(),
            shown(one.live),
            one.simulated.map_or("-".to_owned(), shown),
            if one.agrees { "" } else { "differs" }.to_owned(),
        ]);
    }
    table.trim_fmt()
}
