//! Runs a configuration: one thread for each service, with HTTP and signals on tokio beside them.
//!
//! [`run`] is `watermaster run`. [`start`] runs the same parts inside another program (the demo), without signals and
//! without asking the brokers about the topics first.

mod discovery;
mod observer;
mod open;
mod pace;
mod rules;
mod signals;
mod target;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tracing::{error, info, warn};

use crate::admin::{self, AdminState};
use crate::fleet::{ANSWER_TIMEOUT, CHECK_INTERVAL, Fleet, wait_for_brokers};
use crate::{metrics::Publisher, reload::Configuration, services::ServiceHandle, shared::Shared};
pub use watch::WatchedFiles;
use watermaster_kafka::preflight::{self, ConnectError};
use watermaster_settings::{Admin, Settings, config::Config};

/// The parts of a running configuration that its threads share.
struct Parts {
    fleet: Arc<Fleet>,
    configuration: Arc<Configuration>,
    /// The services at the start.
    handles: Vec<ServiceHandle>,
}

impl Parts {
    fn new(paths: Option<Vec<PathBuf>>, config: &Config) -> Parts {
        let fleet = Arc::<Fleet>::default();
        let configuration = Configuration::new(paths, config.clone()).with_engines(Arc::clone(&fleet));
        let handles = configuration.services.get();
        Parts { fleet, configuration: Arc::new(configuration), handles }
    }
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
struct HttpServer {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl HttpServer {
    /// Binds `admin.listen` and serves the figures of the engines; `/readyz` reports draining once `stop` is set.
    async fn start(settings: &Settings, parts: &Parts) -> Result<HttpServer, StartError> {
        let (listener, address) = bind(&settings.admin).await?;
        let state = AdminState {
            publisher: Shared::new(Publisher::new(
                &watermaster_kafka::client_version(),
                settings.admin.metrics_clients,
            )),
            configuration: Arc::clone(&parts.configuration),
            draining: Arc::clone(&parts.fleet.stop),
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(admin::serve(listener, Arc::new(state), async { drop(stopped.await) }));
        Ok(HttpServer { address, stop, task })
    }

    /// Answers open requests and ends.
    async fn stop(self) {
        drop(self.stop);
        if let Ok(Err(why)) = self.task.await {
            warn!("HTTP: {why}");
        }
    }
}

async fn bind(admin: &Admin) -> Result<(TcpListener, SocketAddr), StartError> {
    let (listen, scheme) = (admin.listen, if admin.tls.is_some() { "https" } else { "http" });
    let refused = |source| StartError::Bind { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    info!("admin listening on {scheme}://{address}");
    Ok((listener, address))
}

/// The options of `run`.
#[derive(Debug)]
pub struct Options {
    /// Takes over, once, offsets that another program committed.
    pub accept_foreign_offsets: bool,
    /// Ends the program if no broker answers at the start.
    pub fail_fast: bool,
    /// Starts with the rules of the file, before those of run time are known.
    pub without_rules: bool,
    /// The files whose changes reload the configuration, if they are followed.
    pub watched: Option<WatchedFiles>,
}

/// The way in which a run ended; the log tells the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A signal stopped it, and all services have drained.
    Done,
    /// No broker answered.
    Unreachable,
    /// No service is left running, or a second signal came.
    Stopped,
    /// The configuration can't be run.
    Refused,
}

/// Runs the throttler with the files at `paths` until a signal stops it or no service is left running.
pub fn run(paths: Vec<PathBuf>, config: Config, options: Options) -> Ending {
    let runtime = match runtime(2) {
        Ok(runtime) => runtime,
        Err(why) => {
            error!("cannot start: {why}");
            return Ending::Stopped;
        }
    };
    let ending = runtime.block_on(supervise(paths, config, options)).unwrap_or_else(|why| {
        error!("{why}");
        Ending::Refused
    });
    // A preflight check may still be running; it ends with the process.
    runtime.shutdown_background();
    ending
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

async fn supervise(paths: Vec<PathBuf>, config: Config, mut options: Options) -> Result<Ending, StartError> {
    let settings = &config.settings;
    let parts = Parts::new(Some(paths), &config);
    if options.without_rules {
        parts.handles.iter().for_each(|handle| handle.rules.start_without());
    }
    let http = HttpServer::start(settings, &parts).await?;
    log_start(&config);
    signals::reload_on_hangup(&parts.configuration);
    if let Some(files) = options.watched.take() {
        watch::reload_on_change(files, &parts.configuration);
    }
    let ending = tokio::select! {
        ending = work(settings, &parts, &options) => ending,
        () = signals::second_stop_signal(&parts.fleet.stop) => {
            warn!("a second signal: leaving without draining");
            Ending::Stopped
        }
    };
    http.stop().await;
    Ok(ending)
}

fn log_start(config: &Config) {
    let (version, configuration) = (env!("CARGO_PKG_VERSION"), config.effective.hash());
    info!(version, librdkafka = watermaster_kafka::client_version(), configuration, "watermaster starts");
    for service in &config.settings.services {
        let policy = &service.policy;
        info!(
            service = service.name,
            sources = service.sources_text(),
            target = service.targets().join(", "),
            dead_letter = service.dead_letters().join(", "),
            capacity = policy.capacity,
            cycle_seconds = policy.cycle.as_secs_f64(),
            mode = policy.mode.into_str(),
            enforce = policy.enforce,
            "protecting a service"
        );
    }
}

/// Checks the topics, then runs every service until the last one ends.
async fn work(settings: &Settings, parts: &Parts, options: &Options) -> Ending {
    let fail_fast = options.fail_fast;
    let check = {
        let (settings, handles) = (settings.clone(), parts.handles.clone());
        move || wait_for_brokers(&settings, &handles, |unreachable| !fail_fast || unreachable.waited < ANSWER_TIMEOUT)
    };
    // A program that stops meanwhile does not wait for the check.
    let report = tokio::select! {
        report = tokio::task::spawn_blocking(check) => report,
        () = stopped(&parts.fleet.stop) => {
            info!("stopped before any service was started");
            return Ending::Done;
        }
    };
    let report = match report {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            error!("{error}");
            return if matches!(error, ConnectError::Client(_)) { Ending::Refused } else { Ending::Unreachable };
        }
        Err(why) => {
            error!("checking the topics failed: {why}");
            return Ending::Stopped;
        }
    };
    report.names.iter().for_each(|names| parts.configuration.discovered(names.clone()));
    discovery::follow_topics(&settings.kafka, &parts.configuration);
    observer::start(&settings.kafka, parts);
    parts.fleet.start_all(settings, &parts.handles, &report, options.accept_foreign_offsets);
    let failed = parts.fleet.wait().await;
    if !parts.fleet.stop.load(Ordering::Relaxed) {
        error!("no service is left running");
        return Ending::Stopped;
    }
    if failed == 0 {
        info!("drained, leaving");
    }
    Ending::Done
}

/// Works at this interval on a thread that may block, each time with what the work before returned.
fn repeat<T: Send + 'static>(interval: Duration, mut state: T, work: impl Fn(T) -> T + Clone + Send + 'static) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            let work = work.clone();
            let Ok(next) = tokio::task::spawn_blocking(move || work(state)).await else { return };
            state = next;
        }
    });
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// The reason why a configuration can't be run in this process.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("no threads for HTTP: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("admin.listen: {listen} cannot be bound: {source}")]
    Bind { listen: SocketAddr, source: std::io::Error },
}

/// Services that ended with an error; the log and `/readyz` name the causes.
#[derive(Debug, thiserror::Error)]
#[error("{0} services stopped with an error")]
pub struct ServicesFailed(pub usize);

/// A configuration that runs in this process.
#[derive(Debug)]
pub struct Running {
    fleet: Arc<Fleet>,
    http: HttpServer,
    runtime: tokio::runtime::Runtime,
}

/// Starts every service of a configuration, and its HTTP side.
///
/// # Errors
/// Fails when `admin.listen` can't be bound, or the system has no threads left.
pub fn start(config: &Config) -> Result<Running, StartError> {
    let runtime = runtime(1).map_err(StartError::Runtime)?;
    let settings = &config.settings;
    let parts = Parts::new(None, config);
    let http = runtime.block_on(HttpServer::start(settings, &parts))?;
    observer::start(&settings.kafka, &parts);
    parts.fleet.start_all(settings, &parts.handles, &preflight::Report::default(), false);
    Ok(Running { fleet: parts.fleet, http, runtime })
}

impl Running {
    /// Returns the address of the HTTP API.
    pub fn address(&self) -> SocketAddr {
        self.http.address
    }

    /// Reports whether every service has ended, which happens without a stop only after fatal errors.
    pub fn has_ended(&self) -> bool {
        self.fleet.has_ended()
    }

    /// Drains every service, leaves the groups, and ends the HTTP side. `/readyz` answers 503 meanwhile.
    ///
    /// # Errors
    /// Services met fatal errors.
    pub fn stop(self) -> Result<(), ServicesFailed> {
        self.fleet.stop.store(true, Ordering::Relaxed);
        let failed = self.runtime.block_on(async {
            let failed = self.fleet.wait().await;
            self.http.stop().await;
            failed
        });
        if failed == 0 { Ok(()) } else { Err(ServicesFailed(failed)) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;
    use watermaster_core::policy::Mode;
    use watermaster_kafka::embedded::Embedded;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_configuration_runs_in_this_process_until_it_is_stopped() {
        let mut config = crate::tests::config(Mode::Shape, true);
        let service = &config.settings.services[0];
        let broker = Embedded::start(1).unwrap();
        let sources = service.sources.iter().map(|source| &source.topic);
        let topics = sources.chain([&service.target, &service.dead_letter, &service.control_topic]);
        topics.for_each(|topic| broker.create_topic(topic, 1).unwrap());
        config.settings.kafka.bootstrap_servers = broker.bootstrap_servers();
        config.settings.admin.listen = (Ipv4Addr::LOCALHOST, 0).into();
        let running = start(&config).unwrap();
        let address = running.address();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !get(address, "/readyz").starts_with("HTTP/1.0 200") {
            assert!(Instant::now() < deadline, "{}", get(address, "/readyz"));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(get(address, "/metrics").contains("watermaster_ready{service=\"kyc\"} 1\n"));
        running.stop().unwrap();
        assert!(TcpStream::connect(address).is_err());
    }
}
