//! The series that queries can use, derived from the table of metrics, with their labels and the known label values.

use watermaster::metrics::table::{Metric, MetricKind, TABLE};

/// Labels that a scrape adds; some only in Kubernetes.
const SCRAPED: [&str; 5] = ["cluster", "namespace", "job", "instance", "pod"];

/// A series of a metric; a histogram has three.
#[derive(Clone, Copy)]
pub struct Series {
    pub metric: &'static Metric,
    is_bucket: bool,
}

impl Series {
    /// Returns the series with this name, or `None` if no metric of the table has it.
    pub fn find(name: &str) -> Option<Series> {
        let find = |name: &str, histogram: bool| {
            TABLE.iter().find(|m| m.name == name && (m.kind == MetricKind::Histogram) == histogram)
        };
        if let Some(metric) = find(name, false) {
            return Some(Series { metric, is_bucket: false });
        }
        let (bare, suffix) = name.rsplit_once('_')?;
        let metric = find(bare, true).filter(|_| ["bucket", "sum", "count"].contains(&suffix))?;
        Some(Series { metric, is_bucket: suffix == "bucket" })
    }

    pub fn labels(self) -> impl Iterator<Item = &'static str> {
        self.metric.labels.iter().copied().chain(SCRAPED).chain(self.is_bucket.then_some("le"))
    }

    /// Returns whether only the growth of the series is meaningful.
    pub fn grows(self) -> bool {
        self.metric.kind != MetricKind::Gauge
    }

    /// Returns all values of a label, if they are known.
    pub fn values(self, label: &str) -> Option<Vec<String>> {
        if label == "le" && self.is_bucket {
            // Prometheus 3 writes a whole bound with a decimal.
            let bounds = self.metric.buckets().iter().flat_map(|bound| [bound.to_string(), format!("{bound}\\.0")]);
            return Some(bounds.chain(["+Inf".to_owned()]).collect());
        }
        let (_, known) = self.metric.values.iter().find(|(name, _)| *name == label)?;
        Some(known.iter().map(|value| (*value).to_owned()).collect())
    }
}

/// Returns the labels of all metrics, each of which a recorded series may have.
pub fn all_labels() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|metric| metric.labels.iter().copied()).chain(SCRAPED)
}

#[test]
fn series_are_found_by_the_names_that_a_scrape_shows() {
    assert!(Series::find("watermaster_ready").is_some());
    assert!(Series::find("watermaster_delay_seconds").is_none(), "a histogram has no series with its own name");
    assert!(Series::find("watermaster_delay_seconds_bucket").unwrap().labels().any(|label| label == "le"));
    assert!(Series::find("watermaster_ready_count").is_none());
    let rejected = Series::find("watermaster_rejected_total").unwrap();
    assert!(rejected.grows() && rejected.values("reason").unwrap().contains(&"queue_full".to_owned()));
    assert!(rejected.values("client").is_none());
}
