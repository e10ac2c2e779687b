//! `watermaster load`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{ConfigFile, Output, OutputArg, refuse, say, start_logging};
use crate::exit::Exit;
use crate::load::report::{Report, html, text};
use crate::load::scenario::{Scenario, ScenarioErrors};
use crate::load::{self, Failure};
use crate::trial::signals;
use watermaster_kafka::load::OpenError;
use watermaster_settings::{LogFormat, Service};

pub const EXAMPLES: &str = "\
Examples:
  watermaster load --config watermaster.toml --scenario config/scenarios/campaign.toml
  watermaster load --config watermaster.toml --scenario steady.toml --seconds 20 --report r.html
  watermaster load --config watermaster.toml --scenario steady.toml --output json | jq .totals

Sends to the source topics of a running Watermaster, reads its target and dead-letter topic back,
and reports. When what is sent is fixed by the scenario and the seed, whatever the throttler does
(open loop); a delay counts from when a record was meant to be sent. Topics, brokers and properties
are those of the configuration. The records are real: the service behind the target gets them.

What a scenario says (docs/load.md has all of it):

  [[client]]
  id = \"credit-card\"
  retry = { backoff = \"500ms\", attempts = 5 }   # what is rejected is sent again
  [[client.phase]]
  kind = \"campaign\"                             # or steady, ramp, burst
  base = 5                                      # records per second …
  peak = \"400%\"                                 # … or of what the service takes
  plateau = \"30s\"

Exits with 0 if nothing was lost or duplicated and the promise was not broken, else with 70; with 78
also when the scenario is wrong or a topic is missing, with 69 when no broker answers. Ctrl-c ends
the sending, a second one the reading.";

#[derive(Debug, Args)]
pub struct Load {
    #[command(flatten)]
    file: ConfigFile,
    /// What is sent, by whom and when (TOML)
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// The service to load; may be left out where the configuration has one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Stretch or shorten the scenario to so many seconds, at the same rates: 1 to 604800
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: Option<u64>,
    /// Another seed than the scenario's: other arrivals and sizes at the same rates
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=i64::MAX as u64))]
    seed: Option<u64>,
    #[command(flatten)]
    output: OutputArg,
    /// Also write the report as an HTML page with plots, which needs nothing from a network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Send only: don't read target and dead-letter topic (nothing is retried then)
    #[arg(long)]
    no_read_back: bool,
}

/// Plays the scenario and reports.
pub fn load(args: &Load) -> Exit {
    // The report is the show: only what goes wrong is logged.
    start_logging(LogFormat::Text, tracing::Level::ERROR);
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return refuse(&errors),
    };
    let scenario = match read(&args.scenario) {
        Ok(scenario) => adjusted(scenario, args),
        Err(exit) => return exit,
    };
    let settings = &config.settings;
    let service = match choose(&settings.services, args.service.as_deref()) {
        Ok(service) => service,
        Err(why) => {
            eprintln!("error: {why}");
            return Exit::Usage;
        }
    };
    // Found out before minutes are spent on a report that can't be written.
    if let Some(exit) = args.report.as_deref().and_then(|path| write(path, "").err()) {
        return exit;
    }
    let options = load::Options { read_back: !args.no_read_back };
    let played = signals::listen()
        .map_err(Failure::Machine)
        .and_then(|interrupts| load::run(&settings.kafka, service, &scenario, options, &interrupts));
    match played {
        Ok(report) => tell(&report, args),
        Err(failure) => {
            eprintln!("error: {failure}");
            exit_of(&failure)
        }
    }
}

fn read(path: &Path) -> Result<Scenario, Exit> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        eprintln!("error: the scenario {} can't be read: {error}", path.display());
        Exit::Config
    })?;
    Scenario::parse(&text, path).map_err(|errors: ScenarioErrors| {
        eprintln!("{errors}");
        Exit::Config
    })
}

fn adjusted(mut scenario: Scenario, args: &Load) -> Scenario {
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    match args.seconds {
        Some(seconds) => scenario.stretched(std::time::Duration::from_secs(seconds)),
        None => scenario,
    }
}

fn choose<'s>(services: &'s [Service], name: Option<&str>) -> Result<&'s Service, String> {
    let names = || services.iter().map(|service| service.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, services) {
        (Some(name), _) => {
            let found = services.iter().find(|service| service.name == name);
            found.ok_or_else(|| format!("--service: there is no {name:?}; the configuration has {}", names()))
        }
        (None, [only]) => Ok(only),
        (None, _) => Err(format!("--service is needed: the configuration has {}", names())),
    }
}

fn tell(report: &Report, args: &Load) -> Exit {
    match args.output.format {
        Output::Text => say(text(report)),
        Output::Json => match serde_json::to_string_pretty(report) {
            Ok(json) => say(json),
            Err(error) => eprintln!("error: {error}"),
        },
    }
    if let Some(path) = &args.report {
        if let Err(exit) = write(path, &html(report)) {
            return exit;
        }
        eprintln!("report: {}", path.display());
    }
    if report.ok { Exit::Done } else { Exit::Stopped }
}

fn write(path: &Path, text: &str) -> Result<(), Exit> {
    std::fs::write(path, text).map_err(|error| {
        eprintln!("error: the report {} can't be written: {error}", path.display());
        Exit::Usage
    })
}

fn exit_of(failure: &Failure) -> Exit {
    match failure {
        Failure::Scenario(_) | Failure::Open(OpenError::Topic { .. } | OpenError::Client(_)) => Exit::Config,
        Failure::Open(OpenError::Unreachable { .. }) => Exit::Unreachable,
        Failure::Machine(_) => Exit::Stopped,
    }
}
