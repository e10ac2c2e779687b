//! Conventions that every command shares: exit codes, the option for the configuration and the service that it names,
//! `--output`.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{error::Error, fmt::Display, path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;
use strum::{EnumMessage, VariantArray, VariantNames};
use watermaster_kafka::preflight::{ConnectError, PreflightClient};
use watermaster_kafka::{KafkaError, ask::AskError};
use watermaster_settings::config::{Config, ConfigErrors};
use watermaster_settings::{Kafka, Service, Settings};

/// The time that the brokers may take to answer at the start.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The width of lines in `--help`, which clap leaves alone in a terminal of at least this width.
const HELP_WIDTH: usize = 80;

/// The way in which a command ended; the value is the process's exit code. `--help` shows the comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantArray, EnumMessage)]
#[repr(u8)]
pub enum Exit {
    /// done; also after SIGTERM or SIGINT, once all services have drained
    Done = 0,
    /// health: the instance is not ready; simulate: --find has no answer, or the live run differs; rules diff: they
    /// differ; rules get, rules rm: there is no such rule; top: no service knows the client
    No = 1,
    /// the command line is wrong
    Usage = 2,
    /// rules put, rules rm: the rule had changed meanwhile
    Changed = 3,
    /// rules put, rules rm: the outcome is unknown; the command can be repeated
    Unknown = 4,
    /// no broker (run --fail-fast, check --connect, dlq, handover, load, trace, work) or instance (health, reload,
    /// rules, top) answered
    Unreachable = 69,
    /// no service is left running: each met a fatal error; load, dlq, handover, trace: the command did not do all
    /// that was asked for; each command: the result can't be written, or this is another librdkafka than the program
    /// was built for
    Stopped = 70,
    /// the configuration is wrong, or its file is missing; health, reload, rules, top: the instance refuses the
    /// token; reload: it refuses the configuration; rules: it refuses the change; simulate: the trace is damaged
    Config = 78,
}

impl Exit {
    /// Returns the table of all exit codes for `--help`.
    pub fn help() -> String {
        let row = |exit: &Exit| {
            let (mut row, mut column) = (format!("\n  {:<3}", *exit as u8), 5);
            for word in exit.get_documentation().unwrap_or_default().split_whitespace() {
                if column + 1 + word.len() > HELP_WIDTH {
                    (row, column) = (row + "\n     ", 5);
                }
                row = row + " " + word;
                column += 1 + word.len();
            }
            row
        };
        format!("Exit codes:{}", Exit::VARIANTS.iter().map(row).collect::<String>())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// The option that names the configuration.
#[derive(Debug, Clone, Args)]
pub struct ConfigFile {
    /// The configuration (TOML), or a folder with *.toml; if repeated, later files add services and override keys
    #[arg(long = "config", value_name = "FILE", required = true)]
    pub paths: Vec<PathBuf>,
}

impl ConfigFile {
    /// Reads the files and the environment.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        Config::load(&self.paths, std::env::vars_os(), watermaster_kafka::PROPERTY_RULES)
    }
}

/// The reason why a command ends early, for people, and its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    pub exit: Exit,
    text: String,
}

impl Failure {
    pub fn new(exit: Exit, text: impl ToString) -> Failure {
        Failure { exit, text: text.to_string() }
    }

    /// Makes a failure with `error:` before its text.
    pub fn error(exit: Exit, text: impl Display) -> Failure {
        Failure::new(exit, format_args!("error: {text}"))
    }

    pub fn usage(problem: impl Display) -> Failure {
        Failure::error(Exit::Usage, problem)
    }

    pub fn config(problem: impl Display) -> Failure {
        Failure::error(Exit::Config, problem)
    }

    pub fn stopped(problem: impl Display) -> Failure {
        Failure::error(Exit::Stopped, problem)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Failure {
        Failure::new(Exit::Config, errors)
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Failure {
        Failure::error(if error.is_silence() { Exit::Unreachable } else { Exit::Config }, error)
    }
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Failure {
        AskError::from(error).into()
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let exit = if matches!(error, ConnectError::Unreachable(_)) { Exit::Unreachable } else { Exit::Config };
        Failure::error(exit, error)
    }
}

/// Chooses the service of this name, or the only one.
pub fn choose<'s>(services: &'s [Service], name: Option<&str>) -> Result<&'s Service, Failure> {
    let known = || services.iter().map(|service| service.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = match (name, services) {
        (Some(name), _) => {
            let found = services.iter().find(|service| service.name == name);
            found.ok_or_else(|| format!("--service: there is no {name:?}; the configuration has {}", known()))
        }
        (None, [only]) => Ok(only),
        (None, _) => Err(format!("--service is needed: the configuration has {}", known())),
    };
    found.map_err(Failure::usage)
}

/// Reads the configuration, and chooses the service like [`service_of`].
pub fn configured(file: &ConfigFile, name: Option<&str>) -> Result<(Kafka, Service), Failure> {
    service_of(file.load()?.settings, name)
}

/// Chooses the service of this name, or the only one. Its sources include the topics that match its patterns; without
/// patterns, no broker is asked.
pub fn service_of(settings: Settings, name: Option<&str>) -> Result<(Kafka, Service), Failure> {
    let service = choose(&settings.services, name)?.clone();
    if service.patterns.is_empty() {
        return Ok((settings.kafka, service));
    }
    let client = PreflightClient::connect_within(&settings.kafka, CONNECT_TIMEOUT)?;
    let names = client.topic_names(CONNECT_TIMEOUT).map_err(|error| {
        Failure::error(Exit::Unreachable, format_args!("the topics that match a pattern are not known: {error}"))
    })?;
    let settings = settings.with_matches(&names);
    let service = choose(&settings.services, Some(&service.name))?.clone();
    Ok((settings.kafka, service))
}

/// Parses a number of a type without 0.
///
/// # Errors
/// The text is no such number, or the number is too large for the type.
pub fn positive<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "allowed: a whole number, 1 or more")
}

/// Parses the name of a variant; `--help` lists all names.
pub fn variant<T>() -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + VariantNames + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(T::VARIANTS).try_map(|name| name.parse())
}

/// The option that chooses the format of the result.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArg {
    /// For people or for programs
    #[arg(long = "output", value_name = "FORMAT", value_enum, default_value = "text")]
    pub format: Output,
}

impl OutputArg {
    /// Prints the result as JSON, or its text for people.
    pub fn show<T: Display>(self, result: &impl Serialize, text: impl FnOnce() -> T) {
        match self.format {
            Output::Text => print(text()),
            Output::Json => print_json(result),
        }
    }
}

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// True once a line of the result could not be written to stdout.
static UNWRITTEN: AtomicBool = AtomicBool::new(false);

/// Prints a line of the result to stdout. A reader that hung up (`| head`) is no failure. A disk that is full is one,
/// which [`written`] tells at the end: what a command has begun, it ends.
pub fn print(line: impl Display) {
    let Err(error) = writeln!(std::io::stdout(), "{line}") else { return };
    if error.kind() != ErrorKind::BrokenPipe && !UNWRITTEN.swap(true, Ordering::Relaxed) {
        eprintln!("error: the result can't be written: {error}");
    }
}

/// Returns the exit code of a command that ended so, with regard to its result.
pub fn written(exit: Exit) -> Exit {
    let is_missing = UNWRITTEN.load(Ordering::Relaxed);
    if is_missing && matches!(exit, Exit::Done | Exit::No) { Exit::Stopped } else { exit }
}

/// Prints the result for programs to stdout.
pub fn print_json(result: &impl Serialize) {
    match serde_json::to_string_pretty(result) {
        Ok(json) => print(json),
        Err(error) => eprintln!("error: {error}"),
    }
}

/// Reports an error that ends the command.
pub fn fail(exit: Exit, error: impl Display) -> Exit {
    eprintln!("{error}");
    exit
}

/// Reads the configuration of a test.
#[cfg(test)]
pub fn settings(text: &str) -> watermaster_settings::Settings {
    let config = Config::parse(text, std::path::Path::new("w.toml"), [], watermaster_kafka::PROPERTY_RULES);
    config.unwrap_or_else(|errors| panic!("{errors}")).settings
}
