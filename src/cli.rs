//! The command line: its arguments, and the function for each command.

mod allocate;
mod check;
mod load;
mod show;
mod top;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use watermaster_core::policy::{Lending, Mode};
use watermaster_core::units::{MAX_CAPACITY, Ratio, Weight};

use crate::demo;
use crate::engine::{self, Job};
use crate::exit::Exit;
use crate::telemetry;
use watermaster_kafka::preflight::Report;
use watermaster_settings::LogFormat;
use watermaster_settings::config::{self, Config};

const ABOUT: &str = "\
Shares the capacity of a service behind Kafka among its clients.

Watermaster reads source topics, admits to the target topic as many records as the service can take in each cycle, and \
shares that capacity by weight. Clients may borrow capacity that others leave unused; its owner gets it back at once. \
Records above a client's share are delayed (mode shape) or go to a dead-letter topic with a reason (mode reject). No \
record is lost.";

const EXAMPLES: &str = "\
Examples:
  watermaster demo                               see it work, without a broker
  watermaster check --config watermaster.toml    list all errors of a configuration
  watermaster config --config watermaster.toml   print the effective values and their origins
  watermaster run --config watermaster.toml      run the throttler
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
                                                 explain how one cycle is shared
  watermaster top                                watch a running instance
  watermaster load --config watermaster.toml --scenario config/scenarios/campaign.toml
                                                 send a campaign to it and report the results

Environment variables set the keys of the configuration outside [[service]]:
WATERMASTER_KAFKA__BOOTSTRAP_SERVERS=broker:9092 sets bootstrap_servers in [kafka].
RUST_LOG sets the log level (info by default); logs go to stderr.";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "watermaster", version, about = ABOUT.split_once('\n').map(|(first, _)| first), long_about = ABOUT)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", Exit::help()), max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the throttler until SIGTERM or SIGINT, then drain and exit; SIGHUP reloads the configuration
    #[command(after_help = Exit::help())]
    Run(Run),
    /// Show a campaign being shaped on an embedded broker: a live table, then a summary
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// List all errors and warnings of a configuration
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Print the effective configuration: each value with its origin, secrets redacted
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(Show),
    /// Explain how one cycle's capacity is shared
    #[command(after_help = ALLOCATE_EXAMPLES)]
    Allocate(Allocate),
    /// Watch a running instance: wants, grants, admissions and backlog of each client
    #[command(after_help = TOP_EXAMPLES)]
    Top(Top),
    /// Send a campaign to a running Watermaster's source topics and report the results
    #[command(after_help = load::EXAMPLES)]
    Load(load::Load),
}

const DEMO_EXAMPLES: &str = "\
Examples:
  watermaster demo                           about 30 seconds, with metrics and the HTTP API on 127.0.0.1:9464
  watermaster demo --mode reject             the same campaign; records above a grant are rejected
  watermaster demo --output json --seconds 10 | jq '.services[0].max_admitted_in_any_cycle'";

const CHECK_EXAMPLES: &str = "\
Examples:
  watermaster check --config watermaster.toml
  watermaster check --config watermaster.toml --connect    also ask the brokers about topics, limits and permissions
  watermaster check --config watermaster.toml --output json | jq '.errors[].key'
  watermaster check --config watermaster.toml --connect --output json | jq '.brokers'

Exits with 78 on errors. Warnings alone exit with 0.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  watermaster config --config watermaster.toml
  WATERMASTER_LOG__FORMAT=json watermaster config --config watermaster.toml | grep format
  watermaster config --config watermaster.toml --output json | jq '.service[0].capacity'

Values of kafka.properties that may be secret are hidden; of kafka.properties_file only the paths are shown.
The output is TOML.";

const ALLOCATE_EXAMPLES: &str = "\
Examples:
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
  watermaster allocate --capacity 40 --wants A=2,B=15 --weight A=2 --lending max_min
  watermaster allocate --capacity 100000 --wants @clients.txt --output json      lines of NAME=N
  some-report | watermaster allocate --capacity 100000 --wants -                 the same, stdin

The default share is capacity x weight / sum of weights. A client that wants less lends the rest,
except for the reserved part. Clients that want more borrow it: in proportion to how much more they
want (proportional), or all equally until each has enough (max_min: a flood gains nothing by asking
for more). All grants add up to the capacity.";

const TOP_EXAMPLES: &str = "\
Examples:
  watermaster top                                 the instance on this machine
  watermaster top --url http://10.0.0.7:9464 --token-file token
  watermaster top --url https://ops.example/watermaster --service kyc
  watermaster top --once                          print one table, as without a terminal
  watermaster top --output json | jq '.services[].clients[] | select(.backlog > 0) | .name'

Rates are measured over the second between two answers. Beyond loopback the instance needs its token (admin.token_file).
NO_COLOR is respected. Keys: s sorts, tab changes the service, ? explains the columns, q quits. --once exits with 69 if
the instance does not answer.";

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    file: ConfigFile,
    /// Accept, this once, offsets that another program committed; records beyond them are read again
    #[arg(long)]
    accept_foreign_offsets: bool,
}

#[derive(Debug, Args)]
struct Demo {
    /// Delay or reject records above a client's share
    #[arg(long, value_enum, default_value = "shape")]
    mode: ModeArg,
    /// Shadow mode: admit everything and only count the decisions (enforce = false)
    #[arg(long)]
    observe: bool,
    /// Seconds to send for: 5 to 3600
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    file: ConfigFile,
    /// Also ask the brokers whether the topics exist, their limits fit and permissions suffice
    #[arg(long)]
    connect: bool,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Allocate {
    /// Records that the service can take in one cycle
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_CAPACITY))]
    capacity: u64,
    /// The part of its default share that a client never lends: 0 to 1, at most six decimals
    #[arg(long, value_name = "R", default_value = "0.1", value_parser = ratio)]
    reservation: Ratio,
    /// Wants of clients: NAME=N,NAME=N (repeatable), @FILE or - with a NAME=N on each line
    #[arg(long, value_name = "NAME=N", required = true, allow_hyphen_values = true)]
    wants: Vec<String>,
    /// A client's weight (repeatable): 0.001 to 1000000, at most three decimals; 1 by default
    #[arg(long, value_name = "NAME=W", value_parser = named_weight)]
    weight: Vec<(String, Weight)>,
    /// The rule by which lent records are shared
    #[arg(long, value_enum, default_value = "proportional")]
    lending: LendingArg,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Top {
    /// The address of the instance (admin.listen) or of the ingress before it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464", value_parser = crate::top::url)]
    url: String,
    /// Show this service only
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// The file with the instance's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration file (TOML)
    #[arg(long = "config", value_name = "FILE")]
    path: PathBuf,
}

impl ConfigFile {
    fn load(&self) -> Result<Config, config::ConfigErrors> {
        Config::load(&self.path, std::env::vars_os(), watermaster_kafka::PROPERTY_RULES)
    }
}

#[derive(Debug, Args)]
struct OutputArg {
    /// The output format, for people or for programs
    #[arg(long = "output", value_name = "FORMAT", value_enum, default_value = "text")]
    format: Output,
}

/// The reader of the result: a person or a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeArg {
    Shape,
    Reject,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Shape => Mode::Shape,
            ModeArg::Reject => Mode::Reject,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum LendingArg {
    Proportional,
    MaxMin,
}

impl From<LendingArg> for Lending {
    fn from(lending: LendingArg) -> Lending {
        match lending {
            LendingArg::Proportional => Lending::Proportional,
            LendingArg::MaxMin => Lending::MaxMin,
        }
    }
}

/// Runs the command. A wrong command line ends the process with [`Exit::Usage`].
pub fn main() -> Exit {
    match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Demo(args) => demo(&args),
        Command::Check(args) => check::check(&args),
        Command::Config(args) => show::show(&args),
        Command::Allocate(args) => allocate::allocate(&args),
        Command::Top(args) => top::top(&args),
        Command::Load(args) => load::load(&args),
    }
}

fn run(args: &Run) -> Exit {
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return refuse(&errors),
    };
    start_logging(config.settings.log, tracing::Level::INFO);
    for warning in &config.warnings {
        tracing::warn!(key = %warning.key, origin = %warning.origin, "{} {}", warning.title(), warning.problem);
    }
    let options = crate::run::RunOptions { accept_foreign_offsets: args.accept_foreign_offsets };
    crate::run::run(args.file.path.clone(), config, options)
}

fn demo(args: &Demo) -> Exit {
    // Only errors are logged, beside the table.
    start_logging(LogFormat::Text, tracing::Level::ERROR);
    let output = if args.output.format == Output::Json { demo::Output::Json } else { demo::Output::Text };
    let length = Duration::from_secs(args.seconds);
    let options = demo::Options { mode: args.mode.into(), observe: args.observe, length, output };
    match demo::run(&options, &watermaster_kafka::client_version(), start_engine) {
        Ok(()) => Exit::Done,
        Err(why) => {
            eprintln!("{why}");
            Exit::Stopped
        }
    }
}

/// Starts the demo's engine without asking its embedded broker about the topics, which has no such requests.
fn start_engine(start: demo::EngineStart) -> Result<demo::StopEngine, String> {
    let stop = Arc::new(AtomicBool::new(false));
    let job = Job {
        kafka: start.kafka,
        service: start.service,
        accept_foreign_offsets: false,
        facts: Report::default(),
        cell: start.cell,
        heartbeat: start.heartbeat,
        policies: Arc::default(),
        shutdown: Arc::clone(&stop),
    };
    let engine = std::thread::spawn(|| engine::run(job));
    Ok(Box::new(move || {
        stop.store(true, Ordering::Relaxed);
        engine
            .join()
            .map_or_else(|_| Err("the engine panicked".to_owned()), |ended| ended.map_err(|error| error.to_string()))
    }))
}

fn start_logging(format: LogFormat, default: tracing::Level) {
    if let Err(error) = telemetry::init(format, default) {
        eprintln!("logging cannot be started: {error}");
    }
}

/// Prints a line to stdout. The reader may have closed the pipe (`| head`), which is no failure.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints the errors of the configuration.
fn refuse(errors: &config::ConfigErrors) -> Exit {
    eprintln!("{errors}");
    Exit::Config
}

fn ratio(text: &str) -> Result<Ratio, String> {
    config::ratio(text).map_err(|_| "allowed: 0 to 1, with at most six decimals".to_owned())
}

fn named_weight(text: &str) -> Result<(String, Weight), String> {
    let (name, weight) = text.rsplit_once('=').ok_or("allowed: NAME=WEIGHT")?;
    let weight = config::weight(weight).map_err(|_| "allowed: 0.001 to 1000000, with at most three decimals")?;
    Ok((name.to_owned(), weight))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_names_every_exit_code() {
        let help = Cli::command().render_help().to_string();
        for (exit, meaning) in Exit::TABLE {
            assert!(help.contains(meaning), "{exit:?}");
        }
    }
}
