//! The command line: what may be typed, and which function answers it.

mod allocate;
mod check;
mod load;
mod show;
mod top;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use watermaster_core::policy::{Lending, Mode};
use watermaster_core::units::{MAX_CAPACITY, Ratio, Weight};

use crate::demo;
use crate::exit::Exit;
use crate::telemetry;
use watermaster_settings::LogFormat;
use watermaster_settings::config::{self, Config};

const ABOUT: &str = "\
Shares the capacity of a service behind Kafka among its clients.

Watermaster reads source topics, admits to the target topic what the service can take in each cycle, and shares that \
capacity out by weight. What one client does not use another may borrow; its owner gets it back at once. What comes too \
early waits its turn (mode shape) or goes to a dead-letter topic with a reason (mode reject). Nothing is lost.";

const EXAMPLES: &str = "\
Examples:
  watermaster demo                               see it work; nothing else is needed
  watermaster check --config watermaster.toml    everything that is wrong, at once
  watermaster config --config watermaster.toml   what takes effect, and why
  watermaster run --config watermaster.toml      run the throttler
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
                                                 explain how one cycle is shared out
  watermaster top                                look at a running instance, live
  watermaster load --config watermaster.toml --scenario config/scenarios/campaign.toml
                                                 send a campaign to it, and see what came out

A key of the configuration outside [[service]] can be set by the environment:
WATERMASTER_KAFKA__BOOTSTRAP_SERVERS=broker:9092 sets bootstrap_servers in [kafka].
RUST_LOG chooses what is logged (info by default); logs go to stderr.";

/// What was typed.
#[derive(Debug, Parser)]
#[command(name = "watermaster", version, about = ABOUT.split_once('\n').map(|(first, _)| first), long_about = ABOUT)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", Exit::table()), max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the throttler until SIGTERM or SIGINT, then drain and leave; SIGHUP reloads the configuration
    #[command(after_help = Exit::table())]
    Run(Run),
    /// Show everything at work on an embedded broker: a campaign's burst, a live table, a summary
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// Say everything that is wrong with a configuration, and what is doubtful in it
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Print the configuration that takes effect, each value with its origin, secrets redacted
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(Show),
    /// Explain how one cycle's capacity is shared out
    #[command(after_help = ALLOCATE_EXAMPLES)]
    Allocate(Allocate),
    /// Look at a running instance, live: what each client wants, is granted, sends and has waiting
    #[command(after_help = TOP_EXAMPLES)]
    Top(Top),
    /// Send a campaign to a running Watermaster's source topics, and report what came out
    #[command(after_help = load::EXAMPLES)]
    Load(load::Load),
}

const DEMO_EXAMPLES: &str = "\
Examples:
  watermaster demo                           about 30 seconds; metrics and the HTTP API on 127.0.0.1:9464 meanwhile
  watermaster demo --mode reject             the same campaign, but what is over its grant is rejected
  watermaster demo --output json --seconds 10 | jq '.services[0].max_admitted_in_any_cycle'";

const CHECK_EXAMPLES: &str = "\
Examples:
  watermaster check --config watermaster.toml
  watermaster check --config watermaster.toml --connect    also asks the brokers about topics, limits and permissions
  watermaster check --config watermaster.toml --output json | jq '.errors[].key'
  watermaster check --config watermaster.toml --connect --output json | jq '.brokers'

Exits with 78 if anything is wrong; what is only doubtful is printed and exits with 0.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  watermaster config --config watermaster.toml
  WATERMASTER_LOG__FORMAT=json watermaster config --config watermaster.toml | grep format
  watermaster config --config watermaster.toml --output json | jq '.service[0].capacity'

Of kafka.properties, values that might be secret are not shown; of kafka.properties_file, only the paths are.
The output is TOML again.";

const ALLOCATE_EXAMPLES: &str = "\
Examples:
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
  watermaster allocate --capacity 40 --wants A=2,B=15 --weight A=2 --lending max_min
  watermaster allocate --capacity 100000 --wants @clients.txt --output json      lines of NAME=N
  some-report | watermaster allocate --capacity 100000 --wants -                 the same, stdin

The default share is capacity x weight / sum of weights. A client that wants less lends what it
leaves, except for the reserved part. Those that want more borrow it: in proportion to how much more
they want (proportional), or all equally until each has enough (max_min: a flood gains nothing by
asking for more). All grants add up to the capacity.";

const TOP_EXAMPLES: &str = "\
Examples:
  watermaster top                                 the instance on this machine
  watermaster top --url http://10.0.0.7:9464 --token-file token
  watermaster top --url https://ops.example/watermaster --service kyc
  watermaster top --once                          one table; so it is too where stdout is no terminal
  watermaster top --output json | jq '.services[].clients[] | select(.backlog > 0) | .name'

Rates are those of the second between two answers. Beyond loopback the instance wants its token (admin.token_file).
NO_COLOR is respected. Keys: s sorts, tab changes the service, ? explains the columns, q quits. --once exits with 69 if
the instance does not answer.";

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    file: ConfigFile,
    /// Accept, this once, offsets that somebody else committed: what lies beyond them is read again
    #[arg(long)]
    accept_foreign_offsets: bool,
}

#[derive(Debug, Args)]
struct Demo {
    /// What happens to records that come too early: they wait, or they are rejected
    #[arg(long, value_enum, default_value = "shape")]
    mode: ModeArg,
    /// Admit everything, and count what would have been done (enforce = false)
    #[arg(long)]
    observe: bool,
    /// How long to send for: 5 to 3600
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    file: ConfigFile,
    /// Also ask the brokers: do the topics exist, do their limits fit, are we allowed to use them
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
    /// What clients want: NAME=N,NAME=N (repeatable), @FILE or - with a NAME=N on each line
    #[arg(long, value_name = "NAME=N", required = true, allow_hyphen_values = true)]
    wants: Vec<String>,
    /// A client's weight (repeatable): 0.001 to 1000000, at most three decimals; 1 for those not named
    #[arg(long, value_name = "NAME=W", value_parser = named_weight)]
    weight: Vec<(String, Weight)>,
    /// How lent records are shared out
    #[arg(long, value_enum, default_value = "proportional")]
    lending: LendingArg,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct Top {
    /// Where the instance listens (admin.listen), or the ingress before it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464", value_parser = crate::top::url)]
    url: String,
    /// Only this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// A file that holds the instance's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print one table and leave
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: OutputArg,
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The configuration (TOML)
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
    /// For people or for programs
    #[arg(long = "output", value_name = "FORMAT", value_enum, default_value = "text")]
    format: Output,
}

/// Who reads the result.
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

/// Does what was typed. A command line that makes no sense ends the process with [`Exit::Usage`].
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
    crate::run::run(
        args.file.path.clone(),
        config,
        crate::run::RunOptions { accept_foreign_offsets: args.accept_foreign_offsets },
    )
}

fn demo(args: &Demo) -> Exit {
    // The table is the show: only what goes wrong is logged.
    start_logging(LogFormat::Text, tracing::Level::ERROR);
    let output = if args.output.format == Output::Json { demo::Output::Json } else { demo::Output::Text };
    let length = Duration::from_secs(args.seconds);
    let options = demo::Options { mode: args.mode.into(), observe: args.observe, length, output };
    match demo::run(&options, &watermaster_kafka::client_version(), crate::run::start_one) {
        Ok(()) => Exit::Done,
        Err(why) => {
            eprintln!("{why}");
            Exit::Stopped
        }
    }
}

fn start_logging(format: LogFormat, default: tracing::Level) {
    if let Err(error) = telemetry::init(format, default) {
        eprintln!("logging can't be started: {error}");
    }
}

/// Prints a line to stdout. Whoever reads may have hung up (`| head`); that is no failure.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Says what is wrong with the configuration.
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
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{exit:?}");
        }
    }
}
