//! Ratios, pair by pair.

use serde_json::{Value, json};

use crate::measure::Cost;
use crate::runner::Runner;
use crate::workload::Workload;

/// All runs of all that are compared.
pub struct Results {
    workload: String,
    records: f64,
    rows: Vec<Row>,
}

struct Row {
    runner: Runner,
    costs: Vec<Cost>,
}

/// The median of the ratios, pair by pair, with the least and the largest.
struct Ratio {
    median: f64,
    least: f64,
    largest: f64,
}

impl Results {
    pub fn new(workload: &Workload, runners: &[Runner]) -> Results {
        let rows = runners.iter().map(|runner| Row { runner: runner.clone(), costs: Vec::new() });
        Results { workload: workload.to_string(), records: workload.records as f64, rows: rows.collect() }
    }

    /// Of the `n`th that is compared.
    pub fn add(&mut self, n: usize, cost: Cost) {
        self.rows[n].costs.push(cost);
    }

    /// The loop that a row is measured against: the one with the same delivery.
    fn loop_of(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|other| other.runner.bare() && other.runner.transactional() == row.runner.transactional())
    }

    fn cpu(cost: &Cost) -> f64 {
        cost.cpu_seconds
    }

    pub fn print(&self) {
        println!("\n{}", self.workload);
        println!("Medians; ratios to the loop of the same delivery, pair by pair: median (least–largest).\n");
        println!(
            "{:<28} {:>13} {:>10} {:>18} {:>18} {:>10} {:>10} {:>9}",
            "", "CPU µs/record", "records/s", "CPU ratio", "speed ratio", "peak MiB", "beyond", "round ms"
        );
        for row in &self.rows {
            let against = self.loop_of(row);
            let text = |of: fn(&Cost) -> f64| against.map_or(String::new(), |base| ratio(row, base, of).to_string());
            let beyond =
                against.map_or(0.0, |base| row.median(|cost| cost.peak_bytes) - base.median(|cost| cost.peak_bytes));
            println!(
                "{:<28} {:>13.2} {:>10.0} {:>18} {:>18} {:>10.1} {:>10.1} {:>9.1}",
                row.runner.name,
                row.median(Self::cpu) / self.records * 1e6,
                self.records / row.median(|cost| cost.wall_seconds),
                text(Self::cpu),
                text(|cost| 1.0 / cost.wall_seconds),
                row.median(|cost| cost.peak_bytes) / MIB,
                beyond / MIB,
                row.median(|cost| cost.round_seconds) * 1e3,
            );
        }
        let turned = self.rows.iter().filter(|row| row.median(|cost| cost.turned) > 0.0);
        for row in turned {
            println!("{}: {:.1} % delayed or rejected", row.runner.name, row.median(|cost| cost.turned) * 100.0);
        }
    }

    /// All figures, of each run.
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_json(row)).collect();
        let all = json!({ "workload": self.workload, "records": self.records, "rows": rows });
        serde_json::to_string_pretty(&all).expect("figures are text")
    }

    fn row_json(&self, row: &Row) -> Value {
        let of_loop = |of: fn(&Cost) -> f64| {
            self.loop_of(row).map(|base| {
                let Ratio { median, least, largest } = ratio(row, base, of);
                json!({ "median": median, "least": least, "largest": largest })
            })
        };
        json!({
            "name": row.runner.name,
            "against": self.loop_of(row).map(|base| &base.runner.name),
            "cpu_us_per_record": row.median(Self::cpu) / self.records * 1e6,
            "records_per_second": self.records / row.median(|cost| cost.wall_seconds),
            "peak_bytes": row.median(|cost| cost.peak_bytes),
            "cpu_ratio": of_loop(Self::cpu),
            "speed_ratio": of_loop(|cost| 1.0 / cost.wall_seconds),
            "runs": row.costs,
        })
    }
}

const MIB: f64 = 1024.0 * 1024.0;

impl Row {
    fn median(&self, of: impl Fn(&Cost) -> f64) -> f64 {
        median(&sorted(self.costs.iter().map(of)))
    }
}

fn ratio(row: &Row, base: &Row, of: impl Fn(&Cost) -> f64) -> Ratio {
    let ratios = sorted(row.costs.iter().zip(&base.costs).map(|(cost, base)| of(cost) / of(base)));
    Ratio { median: median(&ratios), least: ratios[0], largest: ratios[ratios.len() - 1] }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ratio { median, least, largest } = self;
        write!(f, "{median:.2} ({least:.2}–{largest:.2})")
    }
}

/// In ascending order.
pub fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}
