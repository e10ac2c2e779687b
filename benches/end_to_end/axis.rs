//! The axis and the points of `--scale`.

use std::{error::Error, str::FromStr};

use crate::workload::Workload;

/// An axis along which the workload grows, and its points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    pub axis: Axis,
    pub points: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    Partitions,
    /// Services in one process, each with topics of its own.
    Services,
    /// Held records.
    Backlog,
    Clients,
}

/// Each axis with its name and its default points.
const AXES: [(Axis, &str, &[u64]); 4] = [
    (Axis::Partitions, "partitions", &[1, 4, 32, 100, 300, 1000]),
    (Axis::Services, "services", &[1, 2, 8, 32]),
    (Axis::Backlog, "backlog", &[100_000, 1_000_000, 3_000_000, 10_000_000]),
    (Axis::Clients, "clients", &[16, 1000, 10_000, 100_000]),
];

impl Scale {
    /// Reads `AXIS` or `AXIS=N,N…`.
    pub fn parse(text: &str) -> Result<Scale, Box<dyn Error + Send + Sync>> {
        let (name, points) = text.split_once('=').map_or((text, None), |(name, points)| (name, Some(points)));
        let known = AXES.iter().find(|(_, known, _)| *known == name);
        let &(axis, _, default) = known.ok_or("the axis is partitions, services, backlog or clients")?;
        let points = points.map_or(Ok(default.to_vec()), |points| points.split(',').map(u64::from_str).collect());
        let points: Vec<u64> = points.map_err(|error| format!("points are numbers: {error}"))?;
        let is_invalid = |&&point: &&u64| point == 0 || axis == Axis::Partitions && i32::try_from(point).is_err();
        match points.iter().find(is_invalid) {
            Some(point) => Err(format!("{point} is not a valid point").into()),
            None => Ok(Scale { axis, points }),
        }
    }

    /// Tells whether the measurement holds all records in backlogs.
    pub fn holds_records(&self) -> bool {
        self.axis == Axis::Backlog
    }

    /// Tells whether only Watermaster supports the measurement.
    pub fn watermaster_only(&self) -> bool {
        matches!(self.axis, Axis::Services | Axis::Backlog)
    }

    /// Returns the name of the axis.
    pub fn name(&self) -> &'static str {
        AXES.iter().find(|(axis, ..)| *axis == self.axis).map_or("", |(_, name, _)| name)
    }

    /// Returns the workload at a point of the axis.
    pub fn at(&self, point: u64, workload: Workload) -> Workload {
        match self.axis {
            Axis::Partitions => {
                Workload { partitions: i32::try_from(point).expect("parsing checked the range"), ..workload }
            }
            Axis::Services => Workload { services: point, records: workload.records / point * point, ..workload },
            Axis::Clients => Workload { clients: point, ..workload },
            Axis::Backlog => Workload { records: point, ..workload },
        }
    }
}
