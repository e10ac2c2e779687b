//! The engines of a process: one thread for each service.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, info, warn};

use super::{CHECK_INTERVAL, Parts, observer};
use crate::engine::{self, EngineError, Job};
use crate::snapshot::{ServiceSnapshot, SnapshotCell};
use crate::{admin::ServiceHandle, heartbeat::Heartbeat};
use watermaster_kafka::preflight::{Report, Severity};
use watermaster_settings::{Service, Settings};

/// The longest silence of an engine that works. The longest of its calls take far less together: offsets of a
/// transaction (6 s), resolved positions (3 s), high watermarks (2 s), a replaced producer (1 s), leaving a group (2
/// s).
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The reason why a service is not ready before its engine says more.
pub(super) const STARTING: &str = "starting";

/// Returns the handle of each service's engine, which is about to start.
pub(super) fn handles(settings: &Settings) -> Vec<ServiceHandle> {
    let handle = |service: &Service| {
        let trouble = Some(STARTING.to_owned());
        let cell = SnapshotCell::default();
        cell.set(ServiceSnapshot { trouble, ..ServiceSnapshot::new(&service.name, &service.policy) });
        let heartbeat = Arc::new(Heartbeat::new(Instant::now(), MAX_SILENCE));
        ServiceHandle { name: service.name.clone(), cell, heartbeat }
    };
    settings.services.iter().map(handle).collect()
}

/// The running engines.
#[derive(Debug)]
pub(super) struct Fleet {
    not_started: usize,
    threads: Vec<JoinHandle<Result<(), EngineError>>>,
}

impl Fleet {
    /// Starts an engine for each service, except for services with an error in the report. The observer follows them
    /// all.
    pub(super) fn start(settings: &Settings, parts: &Parts, report: &Report, accept_foreign_offsets: bool) -> Fleet {
        observer::start(settings, parts);
        let mut fleet = Fleet { not_started: 0, threads: Vec::new() };
        let engines = parts.handles.iter().zip(&parts.configuration.inboxes);
        for (service, (handle, policies)) in settings.services.iter().zip(engines) {
            if let Some(why) = log_findings(report, &service.name) {
                fleet.mark_not_started(handle, why);
                continue;
            }
            let job = Job {
                kafka: settings.kafka.clone(),
                service: service.clone(),
                accept_foreign_offsets,
                facts: report.clone(),
                cell: handle.cell.clone(),
                heartbeat: Arc::clone(&handle.heartbeat),
                policies: Arc::clone(policies),
                shutdown: Arc::clone(&parts.stop),
            };
            match thread::Builder::new().name(format!("engine-{}", service.name)).spawn(move || engine::run(job)) {
                Ok(thread) => fleet.threads.push(thread),
                Err(why) => {
                    error!("service {}: no thread: {why}", service.name);
                    fleet.mark_not_started(handle, format!("no thread: {why}"));
                }
            }
        }
        fleet
    }

    fn mark_not_started(&mut self, handle: &ServiceHandle, why: String) {
        handle.show_trouble(why);
        handle.heartbeat.stop();
        self.not_started += 1;
    }

    /// Reports whether every engine has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all engines have ended and returns the number of those that failed.
    pub(super) async fn wait(&mut self) -> usize {
        while !self.has_ended() {
            sleep(CHECK_INTERVAL).await;
        }
        let ended = self.threads.drain(..).map(JoinHandle::join);
        self.not_started + ended.filter(|end| !matches!(end, Ok(Ok(())))).count()
    }
}

/// Logs the findings about a service's topics and returns the first error, with which the service can't run.
fn log_findings(report: &Report, service: &str) -> Option<String> {
    let concerns = |name: Option<&str>| name.is_none_or(|name| name == service);
    let mut fatal: Option<String> = None;
    for finding in report.findings.iter().filter(|finding| concerns(finding.service.as_deref())) {
        let text = match &finding.topic {
            Some(topic) => format!("{topic}: {}", finding.problem),
            None => finding.problem.to_string(),
        };
        match finding.severity {
            Severity::Error => {
                error!(service, "{text}; this service does not start");
                fatal.get_or_insert(text);
            }
            Severity::Warning => warn!(service, "{text}"),
            Severity::Info => info!(service, "{text}"),
        }
    }
    fatal
}
