//! The kinds of metrics, and the units of their values.

use strum::IntoStaticStr;

/// The kind of a metric, named as in a `# TYPE` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum MetricKind {
    /// Never decreases while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, a sum and a count.
    Histogram,
}

/// The unit of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Whole records; capacity is counted in them too.
    Records,
    Seconds,
    Bytes,
    /// From 0 to 1.
    Ratio,
    /// Either 0 or 1.
    Bool,
    /// A number of the things that the name tells.
    Count,
}
