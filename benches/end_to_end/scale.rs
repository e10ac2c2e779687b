//! Measures the costs at each point of an axis.

use serde_json::{Value, json};

use crate::axis::{Axis, Scale};
use crate::results::{HEADS, Results};
use crate::{backlog, cost, options::Options, report::Report, table};

/// Prints a table of the costs at each point.
pub fn measure(broker: &str, options: &Options, scale: &Scale, report: &Report) {
    if scale.axis == Axis::Backlog {
        return backlog::measure(broker, options, &scale.points, report);
    }
    let runners = options.runners(options.commit_interval());
    let mut rows = Vec::new();
    for &point in &scale.points {
        let workload = scale.at(point, options.workload());
        let costs = cost::compare(broker, &workload, &runners, options.pairs(), scale.axis == Axis::Services);
        let results = Results::new(&workload, &runners, costs);
        rows.extend(results.rows().into_iter().map(|row| [vec![point.to_string()], row].concat()));
        let Value::Object(mut result) = results.json() else { unreachable!("results are an object") };
        result.insert("axis".to_owned(), json!(scale.name()));
        result.insert("point".to_owned(), json!(point));
        report.add("scale", Value::Object(result));
    }
    println!("\n{}; the first column is the number of {}.", options.workload(), scale.name());
    println!("Medians; ratios to the loop of the same delivery, pair by pair: median (smallest–largest).\n");
    table::print(2, &[&[scale.name()], &HEADS[..]].concat(), &rows);
}
