//! The Prometheus page.
//!
//! [`table`] names every metric together with the function that reads its value from the newest snapshots;
//! [`Publisher`] keeps these snapshots and writes the page. It is written when Prometheus asks for it, so nothing
//! ticks, the hot path never meets a registry, and the series of a revoked partition or of a client that lost its
//! label vanish.
//!
//! Metrics of the operating system's process are the exception: the crate that collects them speaks the `metrics`
//! facade, so [`process`] lets the facade's exporter write them. The program's own metrics don't go through the
//! facade, because the exporter can't drop a series, and takes a histogram value by value although the core has
//! counted it.

mod client_labels;
mod process;
mod rules;
pub mod table;
mod text;

use std::{collections::BTreeMap, sync::Arc};

pub use rules::RulesFigures;

use client_labels::{ClientLabels, CounterSet};
use process::ProcessMetrics;
use table::{SampleSource, TABLE};
use text::Samples;

use watermaster_api::PastChange;
use watermaster_core::pace::PaceView;

use crate::reload::LastReload;
use crate::snapshot::{Levels, Observed, ServiceSnapshot, SnapshotCell};

/// The content type of the text that [`Publisher::render`] returns.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Holds the figures of all services and writes them. A process has one; call `keep_only`, `publish` for
/// each service and `render` at each scrape.
#[derive(Debug)]
pub struct Publisher {
    librdkafka: String,
    /// The hash of the configuration in force, the last attempt to take one over, and the last changes.
    configuration: String,
    last_reload: LastReload,
    past_changes: Vec<PastChange>,
    process: ProcessMetrics,
    /// The number of clients of a service that get a label of their own; configured clients always do.
    metrics_clients: usize,
    services: BTreeMap<String, ServiceMetrics>,
}

/// The figures of one service.
#[derive(Debug, Default)]
pub struct ServiceMetrics {
    /// The place from which the figures come.
    cell: SnapshotCell,
    clients: ClientLabels,
    newest: Arc<ServiceSnapshot>,
    /// The engine does not hang.
    is_alive: bool,
    observed: Arc<Observed>,
    pace: Option<Arc<PaceView>>,
    /// The most open records, and their number.
    pub open: [Option<u64>; 2],
    pub rules: RulesFigures,
}

/// The figures of one client label.
struct LabelFigures<'a> {
    service: &'a str,
    client: &'a str,
    /// The capacity of the service.
    capacity: u64,
    counters: CounterSet,
    levels: Levels,
}

impl Publisher {
    /// Makes a publisher for an instance that runs with this version of librdkafka.
    pub fn new(librdkafka: &str, metrics_clients: usize) -> Publisher {
        Publisher {
            librdkafka: librdkafka.to_owned(),
            configuration: String::new(),
            last_reload: LastReload::at_start(),
            past_changes: Vec::new(),
            process: ProcessMetrics::new(),
            metrics_clients,
            services: BTreeMap::new(),
        }
    }

    /// Forgets the services for which `is_kept` returns false: their series vanish. A service that was removed and came
    /// back has another cell, and counts anew.
    pub fn keep_only(&mut self, is_kept: impl Fn(&str, &SnapshotCell) -> bool) {
        self.services.retain(|name, metrics| is_kept(name, &metrics.cell));
    }

    /// Takes over the newest figures of a service, and whether its engine does not hang; taking over a snapshot twice
    /// changes nothing. Returns all figures of the service: the others are set there.
    pub fn publish(&mut self, service: &str, cell: &SnapshotCell, is_alive: bool) -> &mut ServiceMetrics {
        let clients = || ClientLabels::new(self.metrics_clients);
        let new = || ServiceMetrics { cell: cell.clone(), clients: clients(), ..ServiceMetrics::default() };
        let metrics = self.services.entry(service.to_owned()).or_insert_with(new);
        let snapshot = cell.get();
        if !Arc::ptr_eq(&metrics.newest, &snapshot) {
            metrics.clients.update(&snapshot);
            metrics.newest = snapshot;
        }
        (metrics.is_alive, metrics.observed, metrics.pace) = (is_alive, cell.observed.get(), cell.pace.get());
        metrics
    }

    /// Takes over the result of the last attempt to read the configuration, of which the start is one, the hash of
    /// the configuration in force, and the last changes.
    pub fn publish_reload(&mut self, last: LastReload, configuration: String, past: Vec<PastChange>) {
        (self.last_reload, self.configuration, self.past_changes) = (last, configuration, past);
    }

    /// Returns everything in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut page = self.process.render();
        let clients = self.label_figures();
        for metric in TABLE {
            if !matches!(metric.source, SampleSource::Process) {
                text::push_head(&mut page, metric);
            }
            match metric.source {
                SampleSource::Instance(write) => write(self, &mut Samples::new(&mut page, metric, &[])),
                SampleSource::Service(write) => {
                    for (name, service) in &self.services {
                        write(service, &mut Samples::new(&mut page, metric, &[name]));
                    }
                }
                SampleSource::Client(write) => {
                    for figures in &clients {
                        let values = [figures.service, figures.client];
                        write(figures, &mut Samples::new(&mut page, metric, &values));
                    }
                }
                SampleSource::Process => {}
            }
        }
        page
    }

    /// Returns the figures of all client labels, summed up once for all families.
    fn label_figures(&self) -> Vec<LabelFigures<'_>> {
        let labels = self.services.iter().flat_map(|(service, metrics)| {
            let capacity = metrics.newest.figures.capacity;
            let figures =
                move |(client, counters, levels)| LabelFigures { service, client, capacity, counters, levels };
            metrics.clients.iter().map(figures)
        });
        labels.collect()
    }
}

#[cfg(test)]
mod tests;
