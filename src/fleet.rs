//! The engines of a process: one thread for each service.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::engine::{self, Job};
use crate::services::{STARTING, ServiceHandle};
use crate::shared::Shared;
use watermaster_kafka::log_limiter::LogLimiter;
use watermaster_kafka::preflight::{self, ConnectError, Report, Severity, Unreachable};
use watermaster_settings::Settings;

/// The interval at which the shutdown flag, or the end of the engines, is looked for.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The longest wait for a broker during a reload; a new service then waits by itself.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for one answer about the topics and, with `--fail-fast`, for the first answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The engines, running or ended.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    /// Set when the program begins to stop.
    pub(super) stop: Arc<AtomicBool>,
    threads: Shared<Vec<EngineThread>>,
}

/// The thread of an engine. It returns whether the engine ended without an error.
#[derive(Debug)]
struct EngineThread {
    handle: ServiceHandle,
    /// `None` if the system had no thread left.
    thread: Option<JoinHandle<bool>>,
}

impl EngineThread {
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end, and returns whether it was without an error.
    fn join(self) -> bool {
        self.thread.is_some_and(|thread| thread.join().unwrap_or(false))
    }
}

impl Fleet {
    /// Starts the engine of each service that a reload has not removed meanwhile.
    pub(super) fn start_all(
        &self, settings: &Settings, handles: &[ServiceHandle], report: &Report, accept_foreign_offsets: bool,
    ) {
        for handle in handles.iter().filter(|handle| !handle.is_stopped()) {
            self.launch(settings, handle, Some(report.clone()), accept_foreign_offsets);
        }
    }

    /// Asks the brokers about the topics of all services; `None` if no broker answers.
    pub(super) fn check(&self, settings: &Settings) -> Option<Report> {
        let report = preflight::check(settings, RELOAD_TIMEOUT);
        report.inspect_err(|why| warn!("the topics of the new configuration were not checked: {why}")).ok()
    }

    /// Starts the engine of one of the services. Without a report it waits for the brokers first.
    pub(super) fn launch(
        &self, settings: &Settings, handle: &ServiceHandle, report: Option<Report>, accept_foreign_offsets: bool,
    ) {
        let mut threads = self.threads.lock();
        let (name, settings, launched) = (&handle.name, settings.clone(), handle.clone());
        // A service may come back while its former engine still leaves.
        let former = threads.iter().position(|thread| thread.handle.name == *name).map(|at| threads.swap_remove(at));
        let work = move || {
            former.map(EngineThread::join);
            operate(settings, launched, report, accept_foreign_offsets)
        };
        let thread = thread::Builder::new().name(format!("engine-{name}")).spawn(work);
        if let Err(why) = &thread {
            error!("service {name}: no thread: {why}");
            mark_not_started(handle, format!("no thread: {why}"));
        }
        threads.push(EngineThread { handle: handle.clone(), thread: thread.ok() });
    }

    /// Reports whether every engine has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.threads.lock().iter().all(EngineThread::has_ended)
    }

    /// Waits until all engines have ended and returns the number of those that failed.
    pub(super) async fn wait(&self) -> usize {
        loop {
            if let Some(ended) = self.take_ended() {
                return ended.into_iter().map(EngineThread::join).filter(|ended| !ended).count();
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns all engines once all have ended. Before, tells them if the program has begun to stop.
    fn take_ended(&self) -> Option<Vec<EngineThread>> {
        let mut threads = self.threads.lock();
        if threads.iter().all(EngineThread::has_ended) {
            return Some(std::mem::take(&mut *threads));
        }
        if self.stop.load(Ordering::Relaxed) {
            threads.iter().for_each(|thread| thread.handle.stop());
        }
        None
    }
}

/// Runs the engine until it ends. Returns whether it ended without an error.
fn operate(settings: Settings, handle: ServiceHandle, report: Option<Report>, accept_foreign_offsets: bool) -> bool {
    let wait = || wait_for_brokers(&settings, std::slice::from_ref(&handle), |_| !handle.is_stopped());
    let facts = match report.map_or_else(wait, Ok) {
        _ if handle.is_stopped() => return true,
        Ok(report) => report,
        Err(why) => {
            error!(service = handle.name, "{why}");
            mark_not_started(&handle, why.to_string());
            return false;
        }
    };
    if let Some(why) = log_findings(&facts, &handle.name) {
        mark_not_started(&handle, why);
        return false;
    }
    let services = settings.with_matches(facts.names.as_deref().unwrap_or_default()).services;
    let service = services.into_iter().find(|service| service.name == handle.name);
    let job = Job {
        service: service.expect("the service is configured"),
        kafka: settings.kafka,
        accept_foreign_offsets,
        facts,
        handle,
    };
    engine::run(job).is_ok()
}

/// Checks the topics once a broker answers: the services wait for as long as that takes, unless `keeps_waiting` returns
/// false.
pub(super) fn wait_for_brokers(
    settings: &Settings, handles: &[ServiceHandle], keeps_waiting: impl Fn(&Unreachable) -> bool,
) -> Result<Report, ConnectError> {
    let mut log_limiter = LogLimiter::default();
    let report = preflight::check_patiently(settings, ANSWER_TIMEOUT, |unreachable| {
        for handle in handles {
            // Another start of the process would bring no broker back.
            handle.heartbeat.beat(Instant::now());
            handle.cell.show_trouble(format!("no broker can be reached: {}", unreachable.last_error));
        }
        log_limiter.warn("unreachable", |_| warn!("{unreachable}; waiting for the brokers"));
        keeps_waiting(unreachable)
    });
    handles.iter().for_each(|handle| handle.cell.show_trouble(STARTING.to_owned()));
    report
}

fn mark_not_started(handle: &ServiceHandle, why: String) {
    handle.cell.show_stopped(why);
    handle.heartbeat.stop();
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
