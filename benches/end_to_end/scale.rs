//! Curves: what becomes of the costs as one thing grows.

use std::str::FromStr;

use serde_json::{Value, json};

use crate::cost;
use crate::options::Options;
use crate::report::Report;
use crate::results::{HEADS, Results};
use crate::workload::Workload;
use crate::{backlog, table};

/// What grows, and through which points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    axis: Axis,
    points: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Partitions,
    /// In one process, each with topics of its own.
    Services,
    /// Records that are held.
    Backlog,
    Clients,
}

/// Each axis, its name, and the points unless others are asked for.
const AXES: [(Axis, &str, &[u64]); 4] = [
    (Axis::Partitions, "partitions", &[1, 4, 32, 100, 300, 1000]),
    (Axis::Services, "services", &[1, 2, 8, 32]),
    (Axis::Backlog, "backlog", &[100_000, 1_000_000, 3_000_000, 10_000_000]),
    (Axis::Clients, "clients", &[16, 1000, 10_000, 100_000]),
];

impl Scale {
    /// Reads `AXIS` or `AXIS=N,N…`.
    pub fn parse(text: &str) -> Result<Scale, String> {
        let (name, points) = text.split_once('=').map_or((text, None), |(name, points)| (name, Some(points)));
        let known = AXES.iter().find(|(_, known, _)| *known == name);
        let &(axis, _, usual) = known.ok_or("it takes partitions, services, backlog or clients")?;
        let points = points.map_or(Ok(usual.to_vec()), |points| points.split(',').map(u64::from_str).collect());
        let points = points.map_err(|error| format!("its points are numbers: {error}"))?;
        let too_far = |&&point: &&u64| point == 0 || axis == Axis::Partitions && i32::try_from(point).is_err();
        points.iter().find(too_far).map_or(Ok(Scale { axis, points: points.clone() }), |n| Err(format!("{n} can't be")))
    }

    /// Whether records are held.
    pub fn holds(&self) -> bool {
        self.axis == Axis::Backlog
    }

    /// Whether others can't do what is measured.
    pub fn watermaster_only(&self) -> bool {
        matches!(self.axis, Axis::Services | Axis::Backlog)
    }

    fn name(&self) -> &'static str {
        AXES.iter().find(|(axis, ..)| *axis == self.axis).map_or("", |(_, name, _)| name)
    }

    fn at(&self, point: u64, workload: Workload) -> Workload {
        match self.axis {
            Axis::Partitions => {
                Workload { partitions: i32::try_from(point).expect("it was looked at when read"), ..workload }
            }
            Axis::Services => Workload { services: point, records: workload.records / point * point, ..workload },
            Axis::Clients => Workload { clients: point, ..workload },
            Axis::Backlog => Workload { records: point, ..workload },
        }
    }
}

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
    println!("\n{}; {} as in the first column.", options.workload(), scale.name());
    println!("Medians; ratios to the loop of the same delivery, pair by pair: median (least–largest).\n");
    table::print(2, &[&[scale.name()], &HEADS[..]].concat(), &rows);
}
