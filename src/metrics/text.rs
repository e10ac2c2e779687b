//! Prometheus' text format.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use super::table::Metric;
use crate::snapshot::PartitionSnapshot;
use watermaster_core::delays::Histogram;

/// Writes the samples of one family, all with the same values of the first labels.
#[derive(Debug)]
pub(super) struct Samples<'a> {
    out: &'a mut String,
    metric: &'a Metric,
    /// The values of the first labels, such as the service.
    values: &'a [&'a str],
}

impl<'a> Samples<'a> {
    pub(super) fn new(out: &'a mut String, metric: &'a Metric, values: &'a [&'a str]) -> Samples<'a> {
        Samples { out, metric, values }
    }

    /// Writes the one sample of a family without further labels.
    pub(super) fn put(&mut self, value: impl Display) {
        self.put_with(&[], value);
    }

    /// Writes a sample; `more` are the values of the remaining labels.
    pub(super) fn put_with(&mut self, more: &[&str], value: impl Display) {
        self.write("", more, None, value);
    }

    /// Writes a sample for each value of the last label.
    pub(super) fn put_each<V: Display>(&mut self, values: impl IntoIterator<Item = V>) {
        for (name, value) in self.last_names().iter().zip(values) {
            self.put_with(&[name], value);
        }
    }

    /// Writes 1 for this value of the last label, 0 for the others.
    pub(super) fn put_one_of(&mut self, one: &str) {
        self.put_each(self.last_names().iter().map(|name| u8::from(*name == one)));
    }

    /// Writes a sample for each pair of values of the last two labels.
    pub(super) fn put_each_pair<V: Display, const N: usize>(&mut self, values: &[[V; N]]) {
        for (first, values) in self.metric.values[0].1.iter().zip(values) {
            for (second, value) in self.last_names().iter().zip(values) {
                self.put_with(&[first, second], value);
            }
        }
    }

    fn last_names(&self) -> &'static [&'static str] {
        self.metric.values.last().expect("the table has the values of the label").1
    }

    /// Writes the sample of a partition.
    pub(super) fn put_partition(&mut self, partition: &PartitionSnapshot, value: u64) {
        self.put_with(&[&partition.topic, &partition.partition.to_string()], value);
    }

    /// Writes a histogram of the core.
    pub(super) fn put_histogram(&mut self, more: &[&str], histogram: &Histogram) {
        self.put_buckets(more, &histogram.counts, histogram.sums.iter().sum());
    }

    /// Writes a histogram's buckets, sum and count.
    pub(super) fn put_buckets(&mut self, more: &[&str], counts: &[u64], sum: f64) {
        let bounds = self.metric.buckets().iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, counted) in bounds.zip(counts) {
            count += counted;
            self.write("_bucket", more, Some(&bound), count);
        }
        self.write("_sum", more, None, sum);
        self.write("_count", more, None, count);
    }

    fn write(&mut self, suffix: &str, more: &[&str], bound: Option<&str>, value: impl Display) {
        let Samples { out, metric, values } = self;
        debug_assert_eq!(metric.labels.len(), values.len() + more.len(), "{}: a value for each label", metric.name);
        out.push_str(metric.name);
        out.push_str(suffix);
        let labels = metric.labels.iter().copied().zip(values.iter().chain(more).copied());
        let mut separator = '{';
        for (label, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(out, "{separator}{label}=\"{}\"", escaped(value));
            separator = ',';
        }
        out.push_str(if separator == ',' { "} " } else { " " });
        let _ = writeln!(out, "{value}");
    }
}

/// Writes the head of a family. The help texts of the table need no escaping (its tests see to that).
pub(super) fn push_head(out: &mut String, metric: &Metric) {
    let Metric { name, help, kind, .. } = metric;
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", kind.into_str());
}

fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
