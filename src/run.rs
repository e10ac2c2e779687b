//! `watermaster run`: one thread per service, and beside them HTTP and signals on tokio.

mod in_process;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::admin::{self, AdminState, ServiceHandle, Shown};
use crate::engine::{self, Job, Stopped};
use crate::heartbeat::Heartbeat;
use crate::metrics::Publisher;
use crate::reload::{Configuration, Inbox};
use crate::snapshot::{ServiceSnapshot, SnapshotCell};
use watermaster_kafka::preflight::{self, Severity};
use watermaster_settings::config::Config;
use watermaster_settings::token::{Token, TokenFile};
use watermaster_settings::{Service, Settings};
use watermaster_tools::cli::Exit;

pub use in_process::InProcess;

/// The longest wait for the brokers at the start.
const REACH: Duration = Duration::from_secs(10);
/// An engine that was silent for longer hangs: the longest of its calls, offsets of a transaction (6 s), settled partitions (3 s), high
/// watermarks (2 s), a replaced producer (1 s) and a group that is left (2 s), come to far less.
const SILENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether to stop, before the engines do.
const LOOK: Duration = Duration::from_millis(100);
/// Signals closer together than this are one.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// What the command line says beside the configuration.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Take committed offsets of others for ours, once.
    pub accept_foreign_offsets: bool,
}

/// Runs the throttler with the configuration at `path` until it is told to stop or no service is left running.
pub fn run(path: PathBuf, config: Config, options: RunOptions) -> Exit {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            error!("cannot start: {why}");
            return Exit::Stopped;
        }
    };
    let exit = runtime.block_on(supervise(path, config, options));
    // A look at the topics that nobody waits for any more ends with the process.
    runtime.shutdown_background();
    exit
}

async fn supervise(path: PathBuf, config: Config, options: RunOptions) -> Exit {
    let settings = &config.settings;
    let (listener, token) = match (bind(settings).await, read_token(settings)) {
        (Ok(listener), Ok(token)) => (listener, token),
        (Err(why), _) | (_, Err(why)) => {
            error!("{why}");
            return Exit::Config;
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let configuration = Arc::new(Configuration::new(path, config.clone()));
    let services = settings.services.iter().zip(configuration.inboxes());
    let engines: Vec<Prepared> = services.map(|(service, inbox)| Prepared::new(service, inbox)).collect();
    tell_start(&config);
    let (end_http, http_ends) = tokio::sync::oneshot::channel::<()>();
    let state = admin_state(settings, &configuration, &engines, token, Arc::clone(&stop));
    let http = tokio::spawn(admin::serve(listener, state, async { drop(http_ends.await) }));

    reload_on_hangup(&configuration);
    let mut signals = Signals::new(&stop);
    let exit = tokio::select! {
        exit = work(settings, engines, options, &stop) => exit,
        () = signals.second() => {
            warn!("a second signal: leaving without draining");
            Exit::Stopped
        }
    };
    drop(end_http);
    if let Ok(Err(why)) = http.await {
        warn!("HTTP: {why}");
    }
    exit
}

/// Who runs, and what it protects.
fn tell_start(config: &Config) {
    let (version, configuration) = (env!("CARGO_PKG_VERSION"), config.effective.hash());
    info!(version, librdkafka = watermaster_kafka::client_version(), configuration, "watermaster starts");
    for service in &config.settings.services {
        let sources: Vec<&str> = service.sources.iter().map(|source| source.topic.as_str()).collect();
        let policy = &service.policy;
        info!(
            service = service.name,
            sources = sources.join(", "),
            target = service.target,
            dead_letter = service.dead_letter,
            capacity = policy.capacity,
            cycle_seconds = policy.cycle.as_secs_f64(),
            mode = policy.mode.as_str(),
            enforce = policy.enforce,
            "protecting a service"
        );
    }
}

/// Looks at the topics, then runs every service until the last one ends.
async fn work(settings: &Settings, engines: Vec<Prepared>, options: RunOptions, stop: &Arc<AtomicBool>) -> Exit {
    let asked = settings.clone();
    let looked = tokio::select! {
        looked = tokio::task::spawn_blocking(move || preflight::check(&asked, REACH)) => looked,
        () = told_to_stop(stop) => {
            info!("told to stop before anything was started");
            return Exit::Done;
        }
    };
    let report = match looked {
        Ok(Ok(report)) => report,
        Ok(Err(unreachable)) => {
            error!("{unreachable}");
            return Exit::Unreachable;
        }
        Err(why) => {
            error!("looking at the topics failed: {why}");
            return Exit::Stopped;
        }
    };
    let mut fleet = Fleet::start(settings, engines, &report, options, stop);
    let failed = fleet.wait().await;
    match (stop.load(Ordering::Relaxed), failed) {
        (true, 0) => {
            info!("drained, leaving");
            Exit::Done
        }
        (true, _) => Exit::Done,
        (false, _) => {
            error!("no service is left running");
            Exit::Stopped
        }
    }
}

async fn told_to_stop(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}

/// What an engine shares with the rest of the process.
#[derive(Clone)]
pub struct Prepared {
    pub name: String,
    pub cell: SnapshotCell,
    pub heartbeat: Arc<Heartbeat>,
    pub policies: Arc<Inbox>,
}

impl Prepared {
    /// For the engine of this service, which finds its later policies in `policies`.
    pub fn new(service: &Service, policies: &Arc<Inbox>) -> Prepared {
        let heartbeat = Arc::new(Heartbeat::new(Instant::now(), SILENCE));
        let cell = SnapshotCell::default();
        cell.set(ServiceSnapshot {
            name: service.name.clone(),
            mode: service.policy.mode,
            enforce: service.policy.enforce,
            capacity: service.policy.capacity,
            cycle_seconds: service.policy.cycle.as_secs_f64(),
            trouble: Some("starting".to_owned()),
            ..ServiceSnapshot::default()
        });
        Prepared { name: service.name.clone(), cell, heartbeat, policies: Arc::clone(policies) }
    }

    /// Its service can't even start.
    fn never_ran(&self, why: String) -> Stopped {
        let mut shown = (*self.cell.get()).clone();
        shown.trouble = Some(why.clone());
        self.cell.set(shown);
        self.heartbeat.stop();
        Stopped(why)
    }
}

/// The engines of a process.
pub struct Fleet {
    running: usize,
    ends: mpsc::UnboundedReceiver<Result<(), Stopped>>,
}

impl Fleet {
    /// Starts an engine for each service whose topics are as they should be; the others are stopped from the start.
    pub fn start(
        settings: &Settings,
        engines: Vec<Prepared>,
        report: &preflight::Report,
        options: RunOptions,
        stop: &Arc<AtomicBool>,
    ) -> Fleet {
        let (ended, ends) = mpsc::unbounded_channel();
        for (service, prepared) in settings.services.iter().zip(engines) {
            let ended = ended.clone();
            if let Some(why) = tell_findings(report, &service.name) {
                let _ = ended.send(Err(prepared.never_ran(why)));
                continue;
            }
            let job = Job {
                kafka: settings.kafka.clone(),
                service: service.clone(),
                accept_foreign_offsets: options.accept_foreign_offsets,
                facts: report.clone(),
                cell: prepared.cell.clone(),
                heartbeat: Arc::clone(&prepared.heartbeat),
                policies: Arc::clone(&prepared.policies),
                shutdown: Arc::clone(stop),
            };
            let thread = thread::Builder::new().name(format!("engine-{}", service.name));
            let spawned = thread.spawn({
                let ended = ended.clone();
                move || drop(ended.send(engine::run(job)))
            });
            if let Err(why) = spawned {
                let why = format!("service {}: no thread: {why}", service.name);
                error!("{why}");
                let _ = ended.send(Err(prepared.never_ran(why)));
            }
        }
        Fleet { running: settings.services.len(), ends }
    }

    /// Waits until all have ended; how many of them failed.
    pub async fn wait(&mut self) -> usize {
        let mut failed = 0;
        while self.running > 0 {
            // `None`: a thread ended without a word, and with it went the last sender.
            match self.ends.recv().await {
                Some(Ok(())) => self.running -= 1,
                Some(Err(_)) => {
                    self.running -= 1;
                    failed += 1;
                }
                None => return failed + std::mem::take(&mut self.running),
            }
        }
        failed
    }
}

/// Logs what was found about a service's topics; why it can't run, if so.
fn tell_findings(report: &preflight::Report, service: &str) -> Option<String> {
    let mut fatal: Option<String> = None;
    for finding in
        report.findings.iter().filter(|finding| finding.service.as_deref().is_none_or(|name| name == service))
    {
        let text = match &finding.topic {
            Some(topic) => format!("{topic}: {}", finding.text),
            None => finding.text.clone(),
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

async fn bind(settings: &Settings) -> Result<TcpListener, String> {
    let listen = settings.admin.listen;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|why| format!("admin.listen: {listen} cannot be bound: {why}"))?;
    let bound = listener.local_addr().map_err(|why| format!("admin.listen: {why}"))?;
    info!("admin listening on http://{bound}");
    Ok(listener)
}

fn read_token(settings: &Settings) -> Result<Option<Token>, String> {
    let Some(path) = &settings.admin.token_file else { return Ok(None) };
    // Checked with the rest of the configuration, but it may have changed since.
    let file = TokenFile::read(path).map_err(|why| format!("admin.token_file is {:?}: {why}", path.display()))?;
    Ok(Some(file.token))
}

/// The HTTP side of these engines.
fn admin_state(
    settings: &Settings,
    configuration: &Arc<Configuration>,
    engines: &[Prepared],
    token: Option<Token>,
    stop: Arc<AtomicBool>,
) -> Arc<AdminState> {
    let mut publisher = Publisher::new(&watermaster_kafka::client_version(), settings.admin.metrics_clients);
    settings.services.iter().for_each(|service| publisher.declare(service));
    let handle = |engine: &Prepared| ServiceHandle {
        name: engine.name.clone(),
        cell: engine.cell.clone(),
        heartbeat: Arc::clone(&engine.heartbeat),
    };
    Arc::new(AdminState {
        services: engines.iter().map(handle).collect(),
        publisher: Mutex::new(publisher),
        configuration: Shown::Loaded(Arc::clone(configuration)),
        token,
        draining: stop,
    })
}

/// SIGHUP: the configuration is read again.
fn reload_on_hangup(configuration: &Arc<Configuration>) {
    use tokio::signal::unix::{SignalKind, signal};
    let configuration = Arc::clone(configuration);
    match signal(SignalKind::hangup()) {
        Ok(mut hangups) => drop(tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                let configuration = Arc::clone(&configuration);
                // It says itself how that ended.
                let _ = tokio::task::spawn_blocking(move || configuration.reload()).await;
            }
        })),
        Err(why) => warn!("SIGHUP can't be listened to: {why}"),
    }
}

/// SIGTERM and SIGINT. The first one drains, a second one is in a hurry.
struct Signals {
    seen: mpsc::UnboundedReceiver<()>,
}

impl Signals {
    fn new(stop: &Arc<AtomicBool>) -> Signals {
        use tokio::signal::unix::{SignalKind, signal};
        let (tell, seen) = mpsc::unbounded_channel();
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let (tell, stop) = (tell.clone(), Arc::clone(stop));
            match signal(kind) {
                Ok(mut signals) => drop(tokio::spawn(async move {
                    while signals.recv().await.is_some() {
                        if !stop.swap(true, Ordering::Relaxed) {
                            info!("told to stop: finishing the round");
                        }
                        let _ = tell.send(());
                    }
                })),
                Err(why) => warn!("a signal can't be listened to: {why}"),
            }
        }
        Signals { seen }
    }

    /// A second signal, but not the same one told twice: `timeout` and some supervisors signal the process and its group.
    async fn second(&mut self) {
        let mut first: Option<Instant> = None;
        while self.seen.recv().await.is_some() {
            match first {
                None => first = Some(Instant::now()),
                Some(first) if first.elapsed() > IMPATIENCE => return,
                Some(_) => {}
            }
        }
        std::future::pending::<()>().await;
    }
}
