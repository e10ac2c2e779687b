//! Prometheus text for the families that the exporter can't hold.
//!
//! Two kinds: series that vanish, those of a partition when it is revoked and those of a client that loses its label
//! (the exporter never forgets a series that a handle made), and histograms, which arrive already counted (the exporter
//! takes them sample by sample, which costs per record what the engine has paid already). Both are written from the
//! newest snapshots at each scrape, so there is nothing to remove and nothing to replay.

use std::fmt::Write;

use crate::snapshot::HistogramSnapshot;

use super::table::Metric;

/// The head of a family. The table's help needs no escaping (its tests see to that).
pub(super) fn write_head(out: &mut String, metric: &Metric) {
    let Metric { name, help, kind, .. } = metric;
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
}

/// One sample line.
pub(super) fn write_sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    out.push_str(name);
    for (i, (label, value)) in labels.iter().enumerate() {
        let _ = write!(out, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escape(value));
    }
    let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

/// A histogram's buckets, sum and count; one without counts has counted nothing yet.
pub(super) fn write_histogram(
    out: &mut String,
    metric: &Metric,
    labels: &[(&str, &str)],
    histogram: &HistogramSnapshot,
) {
    let bounds = metric.buckets;
    let bucket = format!("{}_bucket", metric.name);
    let count_in = |i: usize| histogram.counts.get(i).copied().unwrap_or(0);
    let mut count = 0;
    for (i, bound) in bounds.iter().enumerate() {
        count += count_in(i);
        write_sample(out, &bucket, &[labels, &[("le", &bound.to_string())]].concat(), count);
    }
    count += count_in(bounds.len());
    write_sample(out, &bucket, &[labels, &[("le", "+Inf")]].concat(), count);
    let sum: f64 = histogram.sums.iter().sum();
    write_sample(out, &format!("{}_sum", metric.name), labels, sum);
    write_sample(out, &format!("{}_count", metric.name), labels, count);
}

/// A label's value as the text format wants it.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}
