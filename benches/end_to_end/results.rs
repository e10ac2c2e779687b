//! Medians of the costs, and ratios to the loops, pair by pair.

use serde_json::{Value, json};

use crate::figures::{MIB, Spread};
use crate::{cost::Cost, runner::Runner, workload::Workload};

/// The costs of all runs of all programs.
pub struct Results {
    workload: String,
    records: f64,
    rows: Vec<Row>,
}

struct Row {
    runner: Runner,
    costs: Vec<Cost>,
}

/// The column heads of [`Results::rows`].
pub const HEADS: [&str; 9] =
    ["", "CPU µs/record", "records/s", "CPU ratio", "speed ratio", "peak MiB", "added MiB", "round ms", "idle %"];

impl Results {
    pub fn new(workload: &Workload, runners: &[Runner], costs: Vec<Vec<Cost>>) -> Results {
        let rows = runners.iter().zip(costs).map(|(runner, costs)| Row { runner: runner.clone(), costs });
        Results { workload: workload.to_string(), records: workload.records as f64, rows: rows.collect() }
    }

    /// Finds the loop that a row is compared with: the one with the same delivery.
    fn loop_of(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|other| other.runner.bare() && other.runner.transactional() == row.runner.transactional())
    }

    pub fn workload(&self) -> &str {
        &self.workload
    }

    /// Returns the rows of a table: medians, and ratios to the loop of the same delivery, pair by pair.
    pub fn rows(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: &Row) -> Vec<String> {
        let against = self.loop_of(row);
        let text = |of: fn(&Cost) -> f64| against.map_or(String::new(), |base| ratio(row, base, of).text(2));
        let peak = row.median(|cost| cost.peak_bytes);
        let added = against.map(|base| peak - base.median(|cost| cost.peak_bytes));
        vec![
            row.runner.name.clone(),
            format!("{:.2}", row.median(|cost| cost.cpu_seconds) / self.records * 1e6),
            format!("{:.0}", row.median(|cost| cost.records_per_second)),
            text(|cost| cost.cpu_seconds),
            text(|cost| cost.records_per_second),
            format!("{:.1}", peak / MIB),
            added.map_or(String::new(), |added| format!("{:.1}", added / MIB)),
            format!("{:.1}", row.median(|cost| cost.round_seconds) * 1e3),
            row.idle().map_or(String::new(), |idle| format!("{:.2}", idle * 100.0)),
        ]
    }

    /// Describes the fraction of delayed or rejected records, for each program that had any.
    pub fn delayed_or_rejected(&self) -> Vec<String> {
        let line = |row: &Row| {
            let fraction = row.median(|cost| cost.delayed_or_rejected);
            (fraction > 0.0).then(|| format!("{}: {:.1} % delayed or rejected", row.runner.name, fraction * 100.0))
        };
        self.rows.iter().filter_map(line).collect()
    }

    /// Returns all figures of each run as JSON.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_json(row)).collect();
        json!({ "workload": self.workload, "records": self.records, "rows": rows })
    }

    fn row_json(&self, row: &Row) -> Value {
        let against = self.loop_of(row);
        let of_loop = |of: fn(&Cost) -> f64| against.map(|base| ratio(row, base, of));
        json!({
            "name": row.runner.name,
            "against": against.map(|base| &base.runner.name),
            "commit_interval_ms": row.runner.commit_interval_ms,
            "cpu_us_per_record": row.median(|cost| cost.cpu_seconds) / self.records * 1e6,
            "records_per_second": row.median(|cost| cost.records_per_second),
            "peak_bytes": row.median(|cost| cost.peak_bytes),
            "idle": row.idle(),
            "cpu_ratio": of_loop(|cost| cost.cpu_seconds),
            "speed_ratio": of_loop(|cost| cost.records_per_second),
            "runs": row.costs,
        })
    }
}

impl Row {
    fn median(&self, of: impl Fn(&Cost) -> f64) -> f64 {
        Spread::of(self.costs.iter().map(of)).median
    }

    fn idle(&self) -> Option<f64> {
        let idle: Option<Vec<f64>> = self.costs.iter().map(|cost| cost.idle).collect();
        idle.map(|idle| Spread::of(idle.into_iter()).median)
    }
}

fn ratio(row: &Row, base: &Row, of: impl Fn(&Cost) -> f64) -> Spread {
    Spread::of(row.costs.iter().zip(&base.costs).map(|(cost, base)| of(cost) / of(base)))
}
