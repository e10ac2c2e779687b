//! What the program tells Prometheus.
//!
//! [`table`] names every metric; [`Publisher`] turns snapshots into text. Snapshots are pulled when somebody scrapes,
//! so nothing ticks, and the hot path never meets a registry. Counters and gauges of a service as a whole live in the
//! exporter's registry; series that can vanish (of clients and partitions) or arrive already counted are written by
//! `text`.

mod clients;
mod docs;
mod fold;
mod series;
pub mod table;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{Recorder, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use watermaster_core::delivery::Phase;

pub use docs::markdown;
use series::{Registry, ServiceSeries};
use table::{Kind, Metric, TABLE};

use crate::reload::LastReload;
use crate::settings::Service;
use crate::snapshot::{HistogramSnapshot, PartitionSnapshot, ServiceSnapshot};

/// The content type of [`Publisher::render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Holds every series and renders them. One per process; call `declare` for each service, then `publish` and
/// `render` at each scrape.
#[derive(Debug)]
pub struct Publisher {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    process: metrics_process::Collector,
    /// How many clients of a service get a label of their own; configured ones always do.
    metrics_clients: usize,
    services: BTreeMap<String, ServiceSeries>,
}

impl Publisher {
    /// A publisher with the process-wide metrics. It installs nothing globally.
    pub fn new(librdkafka: &str, metrics_clients: usize) -> Publisher {
        // No idle_timeout: it would lose what is counted through held handles.
        let recorder = PrometheusBuilder::new().build_recorder();
        TABLE.iter().for_each(|metric| describe(&recorder, metric));
        Registry(&recorder).gauge(&table::BUILD_INFO, &[env!("CARGO_PKG_VERSION"), librdkafka]).set(1.0);
        let publisher = Publisher {
            handle: recorder.handle(),
            recorder,
            process: metrics_process::Collector::default(),
            metrics_clients,
            services: BTreeMap::new(),
        };
        publisher.publish_reload(LastReload::at_start());
        publisher
    }

    /// Makes every series of a service exist, at 0, before its engine has shown anything.
    pub fn declare(&mut self, service: &Service) {
        let configured = service.policy.clients.iter().map(|client| Arc::from(client.name.as_str()));
        let topics = service.sources.iter().map(|source| source.topic.as_str());
        let series =
            ServiceSeries::new(Registry(&self.recorder), &service.name, self.metrics_clients, configured, topics);
        self.services.insert(service.name.clone(), series);
    }

    /// Takes over a service's newest snapshot; the same one again changes nothing. The name is given apart, since
    /// before the first snapshot there is none in it.
    pub fn publish(&mut self, service: &str, snapshot: &Arc<ServiceSnapshot>) {
        let registry = Registry(&self.recorder);
        if !self.services.contains_key(service) {
            let series = ServiceSeries::new(registry, service, self.metrics_clients, [], []);
            self.services.insert(service.to_owned(), series);
        }
        if let Some(series) = self.services.get_mut(service) {
            series.publish(registry, service, snapshot);
        }
    }

    /// Takes over how the last reload of the configuration ended; the start is one.
    pub fn publish_reload(&self, last: LastReload) {
        let registry = Registry(&self.recorder);
        registry.gauge(&table::CONFIG_RELOADED, &[]).set(f64::from(last.successful));
        registry.gauge(&table::CONFIG_RELOADED_AT, &[]).set(last.success_at.as_secs_f64());
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self) -> String {
        with_local_recorder(&self.recorder, || self.process.collect());
        let mut out = self.handle.render();
        clients::write(&mut out, self.services.iter());
        self.render_histogram(&mut out, &table::DELAY, |snapshot| &snapshot.delay);
        self.render_histogram(&mut out, &table::END_TO_END, |snapshot| &snapshot.end_to_end);
        self.render_histogram(&mut out, &table::ROUND, |snapshot| &snapshot.round);
        self.render_phases(&mut out);
        self.render_partitions(&mut out, &table::CONSUMER_LAG, |partition| partition.lag);
        self.render_partitions(&mut out, &table::UNREAD, |partition| partition.unread);
        self.render_partitions(&mut out, &table::HELD, |partition| partition.held);
        out
    }

    fn render_histogram(&self, out: &mut String, metric: &Metric, of: impl Fn(&ServiceSnapshot) -> &HistogramSnapshot) {
        text::write_head(out, metric);
        for (name, series) in &self.services {
            text::write_histogram(out, metric, &[("service", name)], of(series.newest()));
        }
    }

    fn render_phases(&self, out: &mut String) {
        text::write_head(out, &table::ROUND_PHASE);
        let none = HistogramSnapshot::default();
        for (name, series) in &self.services {
            for (index, phase) in Phase::NAMES.iter().enumerate() {
                let histogram = series.newest().round_phases.get(index).unwrap_or(&none);
                text::write_histogram(out, &table::ROUND_PHASE, &[("service", name), ("phase", phase)], histogram);
            }
        }
    }

    fn render_partitions(&self, out: &mut String, metric: &Metric, of: impl Fn(&PartitionSnapshot) -> u64) {
        text::write_head(out, metric);
        for (name, series) in &self.services {
            for partition in &series.newest().partitions {
                let number = partition.partition.to_string();
                let labels = [("service", name.as_str()), ("topic", &partition.topic), ("partition", &number)];
                text::write_sample(out, metric.name, &labels, of(partition));
            }
        }
    }
}

fn describe(recorder: &PrometheusRecorder, metric: &Metric) {
    match metric.kind {
        Kind::Counter => recorder.describe_counter(metric.name.into(), None, metric.help.into()),
        Kind::Gauge => recorder.describe_gauge(metric.name.into(), None, metric.help.into()),
        // Written by `text`, its head included.
        Kind::Histogram => {}
    }
}

#[cfg(test)]
mod tests;
