//! The engines of a process: one thread for each service.

use std::time::{Duration, Instant};
use std::{sync::Arc, thread};

use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::Parts;
use crate::engine::{self, EngineError, Job, StopCause};
use crate::snapshot::{ServiceSnapshot, SnapshotCell};
use crate::{admin::ServiceHandle, heartbeat::Heartbeat};
use watermaster_kafka::preflight::{Report, Severity};
use watermaster_settings::{Service, Settings};

/// The longest silence of an engine that works. The longest of its calls take far less together: offsets of a
/// transaction (6 s), resolved positions (3 s), high watermarks (2 s), a replaced producer (1 s), leaving a group (2
/// s).
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Returns the handle of each service's engine, which is about to start.
pub(super) fn handles(settings: &Settings) -> Vec<ServiceHandle> {
    let handle = |service: &Service| {
        let trouble = Some("starting".to_owned());
        let cell = SnapshotCell::default();
        cell.set(ServiceSnapshot { trouble, ..ServiceSnapshot::new(&service.name, &service.policy) });
        let heartbeat = Arc::new(Heartbeat::new(Instant::now(), MAX_SILENCE));
        ServiceHandle { name: service.name.clone(), cell, heartbeat }
    };
    settings.services.iter().map(handle).collect()
}

/// Marks a service that can't be started.
fn never_ran(handle: &ServiceHandle, why: String) -> EngineError {
    let mut shown = (*handle.cell.get()).clone();
    shown.trouble = Some(why.clone());
    handle.cell.set(shown);
    handle.heartbeat.stop();
    EngineError { service: handle.name.clone(), cause: Box::new(StopCause::NotStarted(why)) }
}

/// The running engines.
#[derive(Debug)]
pub(super) struct Fleet {
    running: usize,
    ends: mpsc::UnboundedReceiver<Result<(), EngineError>>,
}

impl Fleet {
    /// Starts an engine for each service, except for services with an error in the report.
    pub(super) fn start(settings: &Settings, parts: &Parts, report: &Report, accept_foreign_offsets: bool) -> Fleet {
        let (ended, ends) = mpsc::unbounded_channel();
        let engines = parts.handles.iter().zip(parts.configuration.inboxes());
        for (service, (handle, policies)) in settings.services.iter().zip(engines) {
            if let Some(why) = log_findings(report, &service.name) {
                let _ = ended.send(Err(never_ran(handle, why)));
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
            let on_end = ended.clone();
            let name = format!("engine-{}", service.name);
            let thread = thread::Builder::new().name(name).spawn(move || drop(on_end.send(engine::run(job))));
            if let Err(why) = thread {
                let why = format!("service {}: no thread: {why}", service.name);
                error!("{why}");
                let _ = ended.send(Err(never_ran(handle, why)));
            }
        }
        Fleet { running: settings.services.len(), ends }
    }

    /// Reports whether every engine has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ends.len() >= self.running
    }

    /// Waits until all engines have ended and returns the number of those that failed.
    pub(super) async fn wait(&mut self) -> usize {
        let mut failed = 0;
        while self.running > 0 {
            match self.ends.recv().await {
                Some(ended) => {
                    self.running -= 1;
                    failed += usize::from(ended.is_err());
                }
                // All senders are gone, so the remaining threads ended without a result.
                None => failed += std::mem::take(&mut self.running),
            }
        }
        failed
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
