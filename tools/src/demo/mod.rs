//! `watermaster demo`: shows a campaign on an embedded broker, with nothing installed.
//!
//! The demo starts the real program through a function that it is handed, sends a built-in scenario with `load`'s
//! sender, reads the outputs back with `load`'s watcher, and shows `top`'s table meanwhile.
//!
//! - `summary`: the accounts and the claims that were checked
//! - `view`: the screen while the demo runs

mod summary;
mod view;

use std::time::{Duration, Instant};
use std::{error::Error, fmt::Display, net::SocketAddr, path::Path, sync::mpsc::RecvTimeoutError};

use clap::Args;
use serde_json::json;
use watermaster_core::policy::Mode;
use watermaster_kafka::embedded::Embedded;
use watermaster_settings::{Kafka, Service, config::Config};

use crate::cli::{Exit, Failure, Output, OutputArg, print, print_json, variant};
use crate::endpoint::Endpoint;
use crate::load::session::Session;
use crate::signals::{self, Interrupts};
use crate::top::fetch::{Instance, ServiceStatus};
use crate::{load::account::Event, load::plan::Plan, load::scenario::Scenario, top::App};
use summary::Summary;
use view::View;

/// The time that Watermaster may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that the last records may take until all are accounted for.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval between two requests while records are sent; rates are measured over it.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two requests afterwards.
const SETTLE_INTERVAL: Duration = Duration::from_millis(250);
/// The longest wait for an event.
const EVENT_TIMEOUT: Duration = Duration::from_millis(20);
/// Partitions of each topic.
const PARTITIONS: i32 = 2;

const BY_ITSELF: &str = "watermaster stopped by itself";

const CONFIG: &str = include_str!("watermaster.toml");
const SCENARIO: &str = include_str!("scenario.toml");

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/demo.txt").trim_end())]
pub struct DemoArgs {
    /// Delay or reject records that come too early
    #[arg(long, value_parser = variant::<Mode>(), default_value = "shape")]
    mode: Mode,
    /// Shadow mode: admit every record, and count what enforcing would do (enforce = false)
    #[arg(long, alias = "observe")]
    shadow: bool,
    /// Send for this many seconds: 5 to 600
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
    #[command(flatten)]
    output: OutputArg,
}

/// A Watermaster that runs in this process.
pub trait RunningInstance {
    /// Returns the address of the HTTP API.
    fn address(&self) -> SocketAddr;

    /// Reports whether the service has ended by itself.
    fn has_ended(&self) -> bool;

    /// Drains and stops.
    ///
    /// # Errors
    /// Fails when a service met a fatal error.
    fn stop(self) -> Result<(), AnyError>;
}

/// An error of the Watermaster that runs in this process.
pub type AnyError = Box<dyn Error + Send + Sync>;

fn stopped(problem: impl Display) -> Failure {
    Failure::new(Exit::Stopped, problem)
}

/// Returns the configuration of the demo; the environment does not change it.
pub fn config(mode: Mode, shadow: bool, bootstrap_servers: &str) -> Config {
    let kafka = format!("[kafka]\nbootstrap_servers = {bootstrap_servers:?}");
    let service = format!("[[service]]\nmode = \"{}\"\nenforce = {}", mode.into_str(), !shadow);
    let text = CONFIG.replacen("[kafka]", &kafka, 1).replacen("[[service]]", &service, 1);
    let mut config = Config::parse(&text, Path::new("config/demo.toml"), [], watermaster_kafka::PROPERTY_RULES)
        .unwrap_or_else(|errors| panic!("the configuration of the demo is tested: {errors}"));
    // Nothing but made-up records is at stake, so its rules may be tried without a token.
    config.settings.admin.open_on_loopback = true;
    config
}

fn scenario(length: Duration) -> Scenario {
    Scenario::parse(SCENARIO, Path::new("scenario.toml"))
        .unwrap_or_else(|errors| panic!("the scenario of the demo is tested: {errors}"))
        .stretched(length)
}

/// Shows the demo with the Watermaster that `start` starts.
pub fn run<R: RunningInstance>(
    args: &DemoArgs, start: impl FnOnce(Config) -> Result<R, AnyError>,
) -> Result<Exit, Failure> {
    let interrupts = signals::listen()?;
    let no_broker = |error| stopped(format_args!("can't start the embedded broker: {error}"));
    let broker = Embedded::start(1).map_err(no_broker)?;
    let config = config(args.mode, args.shadow, &broker.bootstrap_servers());
    let (mut kafka, service) = (config.settings.kafka.clone(), config.settings.services[0].clone());
    // The embedded broker answers only after this time if a partition is empty. Late answers would show bunches.
    kafka.properties.insert("fetch.wait.max.ms".to_owned(), "20".to_owned());
    let sources = service.sources.iter().map(|source| &source.topic);
    for topic in sources.chain([&service.target, &service.dead_letter]) {
        broker.create_topic(topic, PARTITIONS).map_err(no_broker)?;
    }
    // The embedded broker makes no topics over the network.
    for topic in [Some(&service.control_topic), service.rules_topic.as_ref()].into_iter().flatten() {
        broker.create_topic(topic, 1).map_err(no_broker)?;
    }
    let running = start(config).map_err(|error| stopped(format_args!("can't start watermaster: {error}")))?;
    let address = running.address();
    let console = format!(
        "http://{address}/ shows this in a browser, and changes its rules; /metrics, /readyz and /v1 are beside it"
    );
    match args.output.format {
        Output::Json => eprintln!("{console}"),
        Output::Text => print(format_args!("{console}")),
    }
    let (url, length) = (format!("http://{address}"), Duration::from_secs(args.seconds));
    let (instance, view) = (Instance::new(Endpoint::new(&url, None), None), View::new(length, args.output.format));
    let stage = Stage { kafka, service, length, interrupts, instance, app: App::new(url, false), view };
    let summary = stage.play(|| running.has_ended());
    let ended = running.stop().map_err(|error| stopped(format_args!("watermaster stopped: {error}")));
    if let Ok(Some(summary)) = &summary {
        match args.output.format {
            Output::Json => {
                print_json(&json!({ "services": [summary] }));
                if !summary.settled {
                    eprintln!("{}", summary::NOT_SETTLED);
                }
            }
            Output::Text => print(format_args!("\n{}\n{}", summary.in_words(), next_steps(args, address))),
        }
    }
    ended.and(summary).map(|_| Exit::Done)
}

/// Suggests the variants of the demo that were not shown.
fn next_steps(args: &DemoArgs, address: SocketAddr) -> String {
    let other_mode = match args.mode {
        Mode::Shape => "watermaster demo --mode reject (within a share records wait shortly, the rest is rejected)",
        Mode::Reject => "watermaster demo (records that come too early wait)",
    };
    let shadow = "watermaster demo --shadow (all records pass; the table counts what enforcing would do)";
    let shadow = if args.shadow { String::new() } else { format!("\n      {shadow}") };
    format!(
        "Next: {other_mode}{shadow}\n      watermaster demo --seconds 300, and meanwhile:\n      \
         curl http://{address}/v1/services/kyc"
    )
}

/// Everything around the throttler: what is sent to it, and what is seen of it.
struct Stage {
    kafka: Kafka,
    service: Service,
    length: Duration,
    interrupts: Interrupts,
    instance: Instance,
    app: App,
    view: View,
}

impl Stage {
    /// Sends the scenario and accounts for it. Returns `None` if it was interrupted before the first record.
    fn play(mut self, has_ended: impl Fn() -> bool) -> Result<Option<Summary>, Failure> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.ask().is_none_or(|status| !status.figures.ready) {
            if has_ended() {
                return Err(stopped(BY_ITSELF));
            }
            if Instant::now() > deadline {
                return Err(stopped(format_args!("watermaster was not ready within {} s", READY_TIMEOUT.as_secs())));
            }
            if self.interrupts.recv_timeout(EVENT_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
                return Ok(None);
            }
        }
        let plan = Plan::new(&scenario(self.length), &self.service)
            .unwrap_or_else(|errors| panic!("the scenario of the demo fits its service: {errors}"));
        let mut sent_at = vec![Vec::new(); plan.clients.len()];
        let mut session = Session::start(&self.kafka, &self.service, plan, true).map_err(stopped)?;
        self.send(&mut session, &mut sent_at, has_ended);
        session.stop_sending();
        let settled = self.settle(&mut session);
        let account = session.finish()?;
        let Some(status) = self.ask().cloned() else { return Err(stopped(BY_ITSELF)) };
        self.view.finish(&status);
        Ok(Some(Summary::new(&status, &account, &sent_at, settled)))
    }

    /// Shows the scenario until its end, an interrupt, or a reader that hung up. Notes when each client sent.
    fn send(&mut self, session: &mut Session, sent_at: &mut [Vec<Duration>], has_ended: impl Fn() -> bool) {
        let mut next_ask = Instant::now();
        while !session.account.played && self.view.is_watched() && !has_ended() && self.interrupts.try_recv().is_err() {
            if let Ok(Event::Sent { attempt, at }) = session.next_event(EVENT_TIMEOUT) {
                sent_at[attempt.client].push(at);
            }
            if Instant::now() >= next_ask {
                next_ask = Instant::now() + ASK_INTERVAL;
                let at = session.start.instant.elapsed();
                if let Some(status) = self.ask().cloned() {
                    self.view.show(at, &status);
                }
            }
        }
    }

    /// Waits until the throttler has decided on every record and the account has its decisions. Returns `false` on
    /// timeout or interrupt.
    fn settle(&mut self, session: &mut Session) -> bool {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let (mut next_ask, mut decided) = (Instant::now(), None);
        while Instant::now() < deadline && self.interrupts.try_recv().is_err() {
            let _ = session.next_event(EVENT_TIMEOUT);
            if decided.is_none() && Instant::now() >= next_ask {
                next_ask = Instant::now() + SETTLE_INTERVAL;
                let status = self.ask().filter(|status| summary::has_decided(status, &session.account));
                decided = status.cloned();
            }
            if decided.as_ref().is_some_and(|status| summary::has_seen(status, &session.account)) {
                return true;
            }
        }
        false
    }

    /// Asks the instance. Returns the last answer if there is none now.
    fn ask(&mut self) -> Option<&ServiceStatus> {
        self.app.receive(self.instance.ask());
        self.app.services.first()
    }
}

#[cfg(test)]
mod tests;
