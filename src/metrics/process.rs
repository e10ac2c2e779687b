//! Metrics of the operating system's process: CPU, memory, file descriptors, threads.

use metrics::{Recorder, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::table::{SampleSource, TABLE};

/// Collects the metrics through the `metrics` facade, which is not installed globally, and writes them.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    collector: metrics_process::Collector,
}

impl ProcessMetrics {
    pub(super) fn new() -> ProcessMetrics {
        let recorder = PrometheusBuilder::new().build_recorder();
        for metric in TABLE.iter().filter(|metric| matches!(metric.source, SampleSource::Process)) {
            recorder.describe_gauge(metric.name.into(), None, metric.help.into());
        }
        ProcessMetrics { handle: recorder.handle(), recorder, collector: metrics_process::Collector::default() }
    }

    /// Returns the metrics in Prometheus' text format, but for the processor time, which the collector knows in whole
    /// seconds only.
    pub(super) fn render(&self) -> String {
        with_local_recorder(&self.recorder, || self.collector.collect());
        let page = self.handle.render();
        page.split_inclusive('\n').filter(|line| !line.contains("process_cpu_seconds_total")).collect()
    }
}
