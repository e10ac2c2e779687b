//! The series of one service: those of the service as a whole in the exporter's registry, made once and set from each
//! snapshot; those of its clients in a [`Fold`], since a client can lose its label and the exporter forgets no series.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;
use watermaster_core::delivery::{ErrorClass, Phase};
use watermaster_core::policy::Mode;

use crate::admin::mode_name;
use crate::snapshot::{ALLOCATION_CAUSES, PAUSE_REASONS, PRODUCER_CAUSES, RESYNCED, ROUND_OUTCOMES, ServiceSnapshot};

use super::fold::{Fold, Levels, Tally};
use super::table::{self, Metric};

/// Makes series; the same labels give the same series.
#[derive(Clone, Copy)]
pub(super) struct Registry<'a>(pub(super) &'a PrometheusRecorder);

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

impl Registry<'_> {
    /// Makes a gauge exist at 0.
    fn declare_gauge(self, metric: &Metric, labels: &[&str]) {
        let _ = self.gauge(metric, labels);
    }

    /// Makes a counter exist at 0.
    fn declare_counter(self, metric: &Metric, labels: &[&str]) {
        let _ = self.counter(metric, labels);
    }

    pub(super) fn gauge(self, metric: &Metric, labels: &[&str]) -> Gauge {
        self.0.register_gauge(&key(metric, labels), &METADATA)
    }

    pub(super) fn counter(self, metric: &Metric, labels: &[&str]) -> Counter {
        self.0.register_counter(&key(metric, labels), &METADATA)
    }
}

fn key(metric: &Metric, values: &[&str]) -> Key {
    assert_eq!(metric.labels.len(), values.len(), "{}: a value for each label", metric.name);
    let labels: Vec<Label> =
        metric.labels.iter().zip(values).map(|(label, v)| Label::new(*label, pre_escape(v))).collect();
    Key::from_parts(metric.name, labels)
}

/// The exporter takes a backslash for the start of an escape that is already there, so that `a\b` and `a\\b` become
/// one series; doubled, each comes out as it is.
fn pre_escape(value: &str) -> String {
    value.replace('\\', "\\\\")
}

/// Every series of one service, and the snapshot that they show.
#[derive(Debug)]
pub(super) struct ServiceSeries {
    fold: Fold,
    totals: Totals,
    newest: Arc<ServiceSnapshot>,
}

impl ServiceSeries {
    pub(super) fn new<'a>(
        registry: Registry<'_>,
        service: &str,
        metrics_clients: usize,
        configured: impl IntoIterator<Item = Arc<str>>,
        topics: impl IntoIterator<Item = &'a str>,
    ) -> ServiceSeries {
        let fold = Fold::new(metrics_clients, configured);
        for topic in topics {
            registry.declare_gauge(&table::SOURCE_RETENTION, &[service, topic]);
        }
        ServiceSeries {
            fold,
            totals: Totals::new(registry, service),
            newest: Arc::new(ServiceSnapshot { name: service.to_owned(), ..Default::default() }),
        }
    }

    pub(super) fn newest(&self) -> &ServiceSnapshot {
        &self.newest
    }

    /// Every client label with what it counts, `_other` last.
    pub(super) fn clients(&self) -> impl Iterator<Item = (&str, Tally, Levels)> {
        self.fold.iter()
    }

    pub(super) fn publish(&mut self, registry: Registry<'_>, service: &str, snapshot: &Arc<ServiceSnapshot>) {
        if Arc::ptr_eq(&self.newest, snapshot) {
            return;
        }
        self.newest = Arc::clone(snapshot);
        self.fold.update(snapshot);
        self.totals.set(registry, service, snapshot);
    }
}

const MODES: [Mode; 2] = [Mode::Shape, Mode::Reject];

/// Where a gauge's value is found.
type ValueOf = fn(&ServiceSnapshot) -> f64;

/// The series of a service as a whole.
#[derive(Debug)]
struct Totals {
    gauges: Vec<(Gauge, ValueOf)>,
    modes: [(Mode, Gauge); 2],
    allocations: Vec<Counter>,
    consumer_recreations: Counter,
    lost_records: Counter,
    stubs: Counter,
    rebalances: Counter,
    resyncs: Counter,
    /// Found committed, found not.
    resynced: [Counter; 2],
    /// By phase, then class.
    transaction_errors: Vec<Counter>,
    paused: BTreeMap<&'static str, Gauge>,
}

/// Each gauge that has no label but the service, and where its value is found.
const GAUGES: &[(&Metric, ValueOf)] = &[
    (&table::CAPACITY, |s| s.capacity as f64),
    (&table::CYCLE, |s| s.cycle_seconds),
    (&table::WINDOW_ADMITTED, |s| s.window_admitted as f64),
    (&table::WINDOW_ADMITTED_MAX, |s| s.window_admitted_max as f64),
    (&table::CLIENTS, |s| s.clients.known() as f64),
    (&table::ENFORCED, |s| f64::from(s.enforce)),
    (&table::BACKLOG_BYTES, |s| s.backlog_bytes as f64),
    (&table::BACKLOG_LIMIT_RECORDS, |s| s.backlog_limit_records as f64),
    (&table::BACKLOG_LIMIT_BYTES, |s| s.backlog_limit_bytes as f64),
    (&table::OLDEST_HELD_AGE, |s| s.oldest_held_seconds),
    (&table::MAP_USED, |s| s.map_used_ratio),
    (&table::MAP_CHARACTERS, |s| f64::from(s.map_characters)),
    (&table::MAP_SPAN, |s| s.map_span as f64),
    (&table::READY, |s| f64::from(s.ready)),
    (&table::SERVICE_UP, |s| f64::from(s.up)),
    (&table::TARGET_REFUSING, |s| f64::from(s.target_refusing)),
];

impl Totals {
    fn new(registry: Registry<'_>, service: &str) -> Totals {
        for outcome in ROUND_OUTCOMES {
            registry.declare_counter(&table::ROUNDS, &[service, outcome]);
        }
        for cause in PRODUCER_CAUSES {
            registry.declare_counter(&table::PRODUCER_RECREATIONS, &[service, cause]);
        }
        let paused = |reason: &&'static str| (*reason, registry.gauge(&table::PAUSED_PARTITIONS, &[service, reason]));
        Totals {
            gauges: GAUGES.iter().map(|(metric, of)| (registry.gauge(metric, &[service]), *of)).collect(),
            modes: MODES.map(|mode| (mode, registry.gauge(&table::MODE, &[service, mode_name(mode)]))),
            allocations: ALLOCATION_CAUSES
                .iter()
                .map(|cause| registry.counter(&table::ALLOCATIONS, &[service, cause]))
                .collect(),
            consumer_recreations: registry.counter(&table::CONSUMER_RECREATIONS, &[service]),
            lost_records: registry.counter(&table::LOST_RECORDS, &[service]),
            stubs: registry.counter(&table::STUBS, &[service]),
            rebalances: registry.counter(&table::REBALANCES, &[service]),
            resyncs: registry.counter(&table::RESYNCS, &[service]),
            resynced: RESYNCED.map(|found| registry.counter(&table::RESYNCED, &[service, found])),
            transaction_errors: Phase::NAMES
                .iter()
                .flat_map(|phase| ErrorClass::NAMES.map(|class| (*phase, class)))
                .map(|(phase, class)| registry.counter(&table::TRANSACTION_ERRORS, &[service, phase, class]))
                .collect(),
            paused: PAUSE_REASONS.iter().map(paused).collect(),
        }
    }

    fn set(&mut self, registry: Registry<'_>, service: &str, snapshot: &ServiceSnapshot) {
        self.gauges.iter().for_each(|(gauge, of)| gauge.set(of(snapshot)));
        self.modes.iter().for_each(|(mode, gauge)| gauge.set(f64::from(*mode == snapshot.mode)));
        for (counter, count) in self.allocations.iter().zip(snapshot.allocations) {
            counter.absolute(count);
        }
        self.consumer_recreations.absolute(snapshot.consumer_recreations);
        self.lost_records.absolute(snapshot.lost_records);
        self.stubs.absolute(snapshot.stubs);
        self.rebalances.absolute(snapshot.rebalances);
        self.resyncs.absolute(snapshot.resyncs);
        self.resynced.iter().zip(snapshot.resynced).for_each(|(counter, count)| counter.absolute(count));
        for (counter, count) in self.transaction_errors.iter().zip(snapshot.transaction_errors.iter().flatten()) {
            counter.absolute(*count);
        }
        for (outcome, count) in &snapshot.rounds {
            registry.counter(&table::ROUNDS, &[service, outcome]).absolute(*count);
        }
        for (cause, count) in &snapshot.producer_recreations {
            registry.counter(&table::PRODUCER_RECREATIONS, &[service, cause]).absolute(*count);
        }
        for (topic, seconds) in &snapshot.source_retention_seconds {
            registry.gauge(&table::SOURCE_RETENTION, &[service, topic]).set(*seconds);
        }
        self.set_paused(registry, service, snapshot);
    }

    /// A reason that the snapshot does not name has no partition.
    fn set_paused(&mut self, registry: Registry<'_>, service: &str, snapshot: &ServiceSnapshot) {
        self.paused.values().for_each(|gauge| gauge.set(0.0));
        for &(reason, partitions) in &snapshot.paused {
            let make = || registry.gauge(&table::PAUSED_PARTITIONS, &[service, reason]);
            self.paused.entry(reason).or_insert_with(make).set(partitions as f64);
        }
    }
}
