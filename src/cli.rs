//! The command line, and the function that carries out each command.

mod check;
mod instance;
mod missing;
mod shell;
mod show;
mod version;

use std::io::ErrorKind;
use std::net::SocketAddr;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use watermaster_settings::{LogFormat, config::Config};
use watermaster_tools::allocate::{self, AllocateArgs};
use watermaster_tools::cli::{ConfigFile, Exit, fail, written};
use watermaster_tools::demo::{self, DemoArgs};
use watermaster_tools::dlq::{self, DlqArgs};
use watermaster_tools::handover::{self, HandoverArgs};
use watermaster_tools::load::{self, LoadArgs};
use watermaster_tools::rules::{self, RulesArgs};
use watermaster_tools::simulate::{self, SimulateArgs};
use watermaster_tools::top::{self, TopArgs};
use watermaster_tools::trace::{self, TraceArgs};
use watermaster_tools::work::{self, WorkArgs};

use watermaster::run::{self, Ending, Options, Running, StartError, WatchedFiles};
use watermaster::telemetry;

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
  watermaster run --config watermaster.toml      run the throttler; a folder or several files are taken, too
  watermaster allocate --capacity 40 --reservation 0.1 --wants A=2,B=15,C=10,D=10
                                                 explain how one cycle is shared
  watermaster top                                watch a running instance
  watermaster load --config watermaster.toml --scenario config/scenarios/campaign.toml
                                                 send a campaign to it and report the results
  watermaster trace --config watermaster.toml --from 24h --out kyc.trace
                                                 record the traffic of a day, without contents
  watermaster simulate --config watermaster.toml --trace kyc.trace --capacity 1600..5000/200
                                                 show what other capacities would have meant for it
  watermaster dlq ls --config watermaster.toml   count the dead letters; dlq redrive sends them again
  watermaster handover --config watermaster.toml --service kyc --to kyc-workers
                                                 let the service read its sources itself

Environment variables set keys of the configuration:
WATERMASTER_KAFKA__BOOTSTRAP_SERVERS=broker:9092 sets bootstrap_servers in [kafka],
WATERMASTER_SERVICE__KYC__CAPACITY=3000 sets capacity of the service \"kyc\".
RUST_LOG sets the log level (info by default); logs go to stderr.";

#[derive(Debug, Parser)]
#[command(name = "watermaster", version, about = ABOUT.split_once('\n').map(|(first, _)| first), long_about = ABOUT)]
#[command(long_version = version::LONG.as_str())]
#[command(after_help = format!("{EXAMPLES}\n\n{}", Exit::help()), max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the throttler until SIGTERM or SIGINT, then drain and exit; SIGHUP reloads the configuration
    Run(RunArgs),
    /// Show a campaign being shaped on an embedded broker: a live table, then a summary
    Demo(DemoArgs),
    /// List all errors and warnings of a configuration
    Check(check::CheckArgs),
    /// Print the effective configuration: each value with its origin, secrets redacted
    Config(show::ConfigArgs),
    /// Explain how one cycle's capacity is shared
    Allocate(AllocateArgs),
    /// Tell whether a running instance is ready, for probes
    Health(instance::HealthArgs),
    /// Make a running instance read its configuration again
    Reload(instance::ReloadArgs),
    /// Watch a running instance: wants, grants, admissions and backlog of each client
    Top(TopArgs),
    /// Send a campaign to a running Watermaster's source topics and report the results
    Load(LoadArgs),
    /// Stand in for a protected service: read its target at a rate, and become slow when too much waits
    Work(WorkArgs),
    /// Record when which client sent how much: one pass over the source topics, without their contents
    Trace(TraceArgs),
    /// Show what another capacity, mode or lending would have meant for the records of a trace
    Simulate(SimulateArgs),
    /// List, put, delete and explain the rules of a running instance: weights, limits and holds for a time
    Rules(RulesArgs),
    /// List, show, export and send again the dead letters of a service
    Dlq(DlqArgs),
    /// Hand the source topics over to the service's own consumers, or back to Watermaster
    Handover(HandoverArgs),
    /// Print a script by which a shell completes commands and options
    Completions(shell::CompletionsArgs),
    /// Write the manual pages into a folder
    Man(shell::ManArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  watermaster run --config watermaster.toml
  watermaster run --config /etc/watermaster --config site.toml --watch
  WATERMASTER_KAFKA__INSTANCE_ID=wm-1 watermaster run --config watermaster.toml";

#[derive(Debug, Args)]
#[command(after_help = format!("{RUN_EXAMPLES}\n\n{}", Exit::help()))]
struct RunArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Accept, this once, offsets that another program committed: records are repeated, or skipped where they are ahead
    #[arg(long)]
    accept_foreign_offsets: bool,
    /// Exit with 69 if no broker answers within 10 s at the start, instead of waiting for one
    #[arg(long)]
    fail_fast: bool,
    /// Start with the rules of the file alone if the topic of the rules does not answer, instead of waiting for it
    #[arg(long)]
    without_rules: bool,
    /// Reload the configuration when a file of it changes, or one that it names, such as a certificate
    #[arg(long)]
    watch: bool,
}

/// Carries out the command of the command line. An invalid command line ends the process with [`Exit::Usage`].
pub fn main() -> Exit {
    let command = Cli::parse().command;
    use Command::{Demo, Dlq, Handover, Load, Trace, Work};
    if matches!(command, Demo(_) | Load(_) | Work(_) | Trace(_) | Dlq(_) | Handover(_)) {
        // The report matters there: only errors are logged.
        start_logging(LogFormat::Text, tracing::Level::ERROR);
    }
    if let Err(error) = watermaster_kafka::check_library() {
        return fail(Exit::Stopped, error);
    }
    let ended = match command {
        Command::Run(args) => Ok(run(&args)),
        Command::Demo(args) => demo::run(&args, |config| Ok(InProcess(start_for_demo(config)?))),
        Command::Check(args) => Ok(check::check(&args)),
        Command::Config(args) => Ok(show::show(&args)),
        Command::Allocate(args) => allocate::run(&args),
        Command::Health(args) => Ok(instance::health(&args)),
        Command::Reload(args) => Ok(instance::reload(&args)),
        Command::Top(args) => top::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Work(args) => work::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Rules(args) => rules::run(&args),
        Command::Dlq(args) => dlq::run(&args),
        Command::Handover(args) => handover::run(&args),
        Command::Completions(args) => Ok(shell::completions(&args, Cli::command())),
        Command::Man(args) => Ok(shell::man(&args, Cli::command())),
    };
    written(ended.unwrap_or_else(|failure| fail(failure.exit, failure)))
}

fn run(args: &RunArgs) -> Exit {
    // Before the files are loaded, so that no change between the two is missed.
    let watched = args.watch.then(|| WatchedFiles::new(args.file.paths.clone()));
    let config = match args.file.load() {
        Ok(config) => config,
        Err(errors) => return fail(Exit::Config, errors),
    };
    start_logging(config.settings.log, tracing::Level::INFO);
    for warning in &config.warnings {
        tracing::warn!(key = %warning.key, origin = %warning.origin, "{} {}", warning.title(), warning.problem);
    }
    let RunArgs { accept_foreign_offsets, fail_fast, without_rules, .. } = *args;
    let options = Options { accept_foreign_offsets, fail_fast, without_rules, watched };
    match run::run(args.file.paths.clone(), config, options) {
        Ending::Done => Exit::Done,
        Ending::Unreachable => Exit::Unreachable,
        Ending::Stopped => Exit::Stopped,
        Ending::Refused => Exit::Config,
    }
}

/// The throttler that the demo runs in this process.
struct InProcess(Running);

impl demo::RunningInstance for InProcess {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn stop(self) -> Result<(), demo::AnyError> {
        Ok(self.0.stop()?)
    }
}

/// Starts the configuration of the demo, on a free port if its address is taken.
fn start_for_demo(mut config: Config) -> Result<Running, StartError> {
    match run::start(&config) {
        Err(StartError::Bind { listen, source }) if source.kind() == ErrorKind::AddrInUse => {
            eprintln!("{listen} is taken; a free port is used instead");
            config.settings.admin.listen.set_port(0);
            run::start(&config)
        }
        started => started,
    }
}

fn start_logging(format: LogFormat, default: tracing::Level) {
    if let Err(error) = telemetry::init(format, default) {
        eprintln!("logging cannot be started: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_names_every_exit_code() {
        let help = Cli::command().render_help().to_string();
        for code in [
            "0   done", "1   health", "2   the command line", "69  no broker", "70  no service",
            "78  the configuration",
        ] {
            assert!(help.contains(code), "{code}: {help}");
        }
        let (_, rows) = help.split_once("Exit codes:\n").expect("a table");
        for row in rows.trim_end().lines() {
            let starts = |at: &str| row.strip_prefix(at).is_some_and(|rest| !rest.starts_with(' '));
            assert!(row.len() <= 80 && (starts("  ") || starts("      ")), "{row:?}");
        }
    }
}
