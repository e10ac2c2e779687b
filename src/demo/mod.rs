//! `watermaster demo`: a campaign is shaped, on an embedded broker, with nothing installed.
//!
//! [`run`] sets the stage (broker, topics, HTTP, products, a reader of the target), starts the engine that it is
//! handed, shows what happens and accounts for every record at the end.

mod scenario;
pub mod setup;
mod stage;
mod summary;
mod table;
mod traffic;
mod view;

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use watermaster_core::policy::Mode;

use crate::heartbeat::Heartbeat;
use crate::snapshot::{ServiceSnapshot, SnapshotCell};
use crate::trial::signals::Interrupts;
use scenario::Scenario;
use stage::{Reader, Web};
use summary::{Summary, in_words, is_settled};
use traffic::Sent;
use view::{REDRAW, View};
use watermaster_settings::{Kafka, Service};

pub use stage::ADDRESS;

/// The same story each time.
const SEED: u64 = 2026;
/// How long the engine may take to join its group.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long the accounts may take once sending has stopped.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// How often a condition is looked at while it is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub mode: Mode,
    /// Passthrough: everything is admitted, and what would have been decided is counted.
    pub observe: bool,
    /// How long traffic flows, at least 1 s.
    pub length: Duration,
    pub output: Output,
}

/// Who reads the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

/// What the engine of the demo's service is started with.
#[derive(Debug)]
pub struct EngineStart {
    pub kafka: Kafka,
    pub service: Service,
    pub cell: SnapshotCell,
    pub heartbeat: Arc<Heartbeat>,
}

/// Stops a running engine: drains, leaves the group and waits for its thread.
pub type StopEngine = Box<dyn FnOnce() -> Result<(), String>>;

/// Runs the demo to its end, or to an interrupt; the summary is printed in both cases.
///
/// `librdkafka` is the version for `build_info`.
///
/// # Errors
/// In words, when the stage can't be set or the engine fails.
pub fn run(
    options: &Options,
    librdkafka: &str,
    start_engine: impl FnOnce(EngineStart) -> Result<StopEngine, String>,
) -> Result<(), String> {
    let service = setup::service(options.mode, !options.observe);
    let broker = stage::broker(&service)?;
    let (interrupts, interrupted) = mpsc::channel();
    let cell = SnapshotCell::default();
    let heartbeat = Arc::new(Heartbeat::new(Instant::now(), READY_LIMIT));
    let web = Web::start(&service, &cell, &heartbeat, librdkafka, interrupts)?;
    eprintln!("HTTP on http://{0}: /metrics, /readyz, /v1/services/{1}", web.address(), service.name);

    let kafka = setup::kafka(&broker.bootstrap_servers());
    let reader = Reader::start(&kafka.bootstrap_servers, &service.target)?;
    let start = EngineStart { kafka: kafka.clone(), service, cell: cell.clone(), heartbeat };
    let stop_engine = start_engine(start)?;
    let told = tell(options, &kafka.bootstrap_servers, &cell, &reader, &interrupted);
    web.drain();
    let stopped = stop_engine();
    web.stop();
    told.and_then(|ending| ending.print(options.output)).and(stopped)
}

/// How the story ended.
struct Ending {
    snapshot: Arc<ServiceSnapshot>,
    summary: Summary,
    settled: bool,
}

/// The story itself: wait for the engine, let the products send, look on, settle the accounts.
fn tell(
    options: &Options,
    bootstrap_servers: &str,
    cell: &SnapshotCell,
    reader: &Reader,
    interrupted: &Interrupts,
) -> Result<Ending, String> {
    let scenario = Scenario::new(options.length);
    let mut view = View::new(&scenario, options.output);
    let mut sent = Sent::default();
    if wait_for(READY_LIMIT, interrupted, || cell.get().ready || !still_hopeful(&cell.get())) {
        if !still_hopeful(&cell.get()) {
            return Err(cell.get().trouble.clone().unwrap_or_default());
        }
        let start = Instant::now();
        let products = stage::Products::start(scenario.schedule(SEED), bootstrap_servers, start)?;
        look_on(&scenario, start, cell, &mut view, interrupted, &products);
        sent = products.stop()?;
    }
    let settled = wait_for(SETTLE_LIMIT, interrupted, || is_settled(&cell.get(), &sent));
    let snapshot = cell.get();
    let admitted = snapshot.clients.iter().map(|client| client.counts.admitted).sum();
    let seen = wait_for(SETTLE_LIMIT, interrupted, || reader.total() >= admitted);
    view.finish(&snapshot);
    let summary = Summary::new(&snapshot, &sent, reader.largest_window());
    Ok(Ending { snapshot, summary, settled: settled && seen })
}

/// False once a fatal error stopped the engine; before its first snapshot there is no trouble to tell.
fn still_hopeful(snapshot: &ServiceSnapshot) -> bool {
    snapshot.up || snapshot.trouble.is_none()
}

/// Shows the scenario until its end, an interrupt, the products' early end, or until nobody watches.
fn look_on(
    scenario: &Scenario,
    start: Instant,
    cell: &SnapshotCell,
    view: &mut View,
    interrupted: &Interrupts,
    products: &stage::Products,
) {
    while start.elapsed() < scenario.length() && !products.ended() && view.is_watched() {
        view.show(scenario, start.elapsed(), &cell.get());
        if interrupted.recv_timeout(REDRAW) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    view.show(scenario, start.elapsed(), &cell.get());
}

/// Looks until it is so, for at most `limit`; an interrupt ends the wait.
fn wait_for(limit: Duration, interrupted: &Receiver<()>, is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_so() {
        if Instant::now() >= end || interrupted.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
    }
    true
}

impl Ending {
    /// Results go to stdout.
    fn print(&self, output: Output) -> Result<(), String> {
        let text = match output {
            Output::Json => serde_json::to_string_pretty(&self.summary).map_err(|error| error.to_string())?,
            Output::Text => format!(
                "\n{}\nNext: {}\n      watermaster demo --seconds 300, and meanwhile:\n      \
                 curl http://{ADDRESS}/v1/services/kyc",
                in_words(&self.summary, &self.snapshot, self.settled),
                others(&self.snapshot).join("\n      ")
            ),
        };
        // Whoever reads may have hung up; that is no failure of the demo.
        let _ = writeln!(std::io::stdout(), "{text}");
        if output == Output::Json && !self.settled {
            eprintln!("not everything that was sent has been read: the numbers do not add up to what was sent");
        }
        Ok(())
    }
}

/// The demos that were not shown this time.
fn others(shown: &ServiceSnapshot) -> Vec<&'static str> {
    let mut others = vec![match shown.mode {
        Mode::Shape => "watermaster demo --mode reject (nothing waits, the rest is rejected)",
        Mode::Reject => "watermaster demo (what comes too early waits)",
    }];
    if shown.enforce {
        others.push("watermaster demo --observe (all passes; what would have been is counted)");
    }
    others
}

#[cfg(test)]
mod tests;
