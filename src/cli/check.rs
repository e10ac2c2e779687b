//! `watermaster check`.

use std::{collections::BTreeMap, fmt, thread};

use super::missing::{self, TopicTool};
use clap::Args;
use serde_json::{Value, json};
use watermaster_kafka::preflight::{self, ConnectError, Finding};
use watermaster_schemas::registry::{RegistryClient, RegistryError};
use watermaster_settings::config::{Config, ConfigError, ConfigErrors};
use watermaster_settings::{Service, Settings};
use watermaster_tools::cli::{CONNECT_TIMEOUT, ConfigFile, Exit, Output, OutputArg, fail, print};

const EXAMPLES: &str = "\
Examples:
  watermaster check --config watermaster.toml
  watermaster check --config watermaster.toml --connect    also ask the brokers about topics and their limits
  watermaster check --config watermaster.toml --connect --create --topics strimzi    how to make the missing topics
  watermaster check --config watermaster.toml --connect --strict    in a pipeline
  watermaster check --config watermaster.toml --output json | jq '.errors[].key'
  watermaster check --config watermaster.toml --connect --output json | jq '.brokers'

Exits with 78 on errors. Warnings alone exit with 0, with --strict with 78.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Also ask the brokers whether the topics exist and may be seen and their limits fit, and the schema registry
    #[arg(long)]
    connect: bool,
    /// Print the commands that make the missing topics to stdout, and all else to stderr
    #[arg(long, requires = "connect")]
    create: bool,
    /// The tool that makes them
    #[arg(long, value_enum, default_value = "kafka", requires = "create")]
    topics: TopicTool,
    /// Count warnings as errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    output: OutputArg,
}

/// The answers of the brokers and of the schema registry, if they were asked.
#[derive(Default)]
struct Answers {
    brokers: Option<Result<preflight::Report, ConnectError>>,
    registry: Option<Result<(), RegistryError>>,
}

/// Prints a line for people.
type Say = fn(fmt::Arguments<'_>);

/// Prints errors and warnings, or that the configuration is valid.
pub fn check(args: &CheckArgs) -> Exit {
    let config = args.file.load();
    let asked = match &config {
        Ok(config) if args.connect => ask(config),
        _ => Answers::default(),
    };
    let exit = match exit_of(&config, &asked) {
        Exit::Done if args.strict && has_warnings(&config, &asked) => Exit::Config,
        exit => exit,
    };
    if args.output.format == Output::Json {
        print(format_args!("{:#}", report(args, &config, &asked, exit)));
        return exit;
    }
    // Commands alone can be handed to a shell.
    let say: Say = if args.create { |line| eprintln!("{line}") } else { |line| print(line) };
    let settings = match config {
        Err(errors) => return fail(Exit::Config, errors),
        Ok(config) => {
            print_text(&config, say);
            config.settings
        }
    };
    match asked.registry {
        None => {}
        Some(Ok(())) => say(format_args!("the schema registry answers")),
        Some(Err(error)) => eprintln!("error: the schema registry: {error}"),
    }
    match asked.brokers {
        None => {}
        Some(Err(error)) => eprintln!("error: {error}"),
        Some(Ok(report)) => {
            print_matches(&settings, &report, say);
            print_findings(&report, say);
            if args.create {
                commands(args, &settings, &report).iter().for_each(print);
            }
        }
    }
    exit
}

fn has_warnings(config: &Result<Config, ConfigErrors>, asked: &Answers) -> bool {
    let of_brokers = asked.brokers.iter().flatten().any(preflight::Report::has_warnings);
    of_brokers || config.as_ref().is_ok_and(|config| !config.warnings.is_empty())
}

/// Asks the brokers as `run` does at its start, and tries a transaction. Asks the schema registry, if there is one.
fn ask(config: &Config) -> Answers {
    let settings = &config.settings;
    thread::scope(|scope| {
        let registry = settings.kafka.schema_registry.clone();
        let registry = registry.map(|registry| scope.spawn(|| RegistryClient::new(registry).check()));
        let brokers = preflight::check(settings, CONNECT_TIMEOUT).map(|mut report| {
            preflight::check_further(settings, CONNECT_TIMEOUT, &mut report);
            report
        });
        let registry = registry.map(|asked| asked.join().expect("the thread does not panic"));
        Answers { brokers: Some(brokers), registry }
    })
}

fn exit_of(config: &Result<Config, ConfigErrors>, asked: &Answers) -> Exit {
    match (config, &asked.brokers) {
        (Err(_), _) => Exit::Config,
        (Ok(_), Some(Err(ConnectError::Unreachable(_)))) => Exit::Unreachable,
        (Ok(_), Some(Err(ConnectError::Client(_)))) => Exit::Config,
        (Ok(_), Some(Ok(report))) if report.has_errors() => Exit::Config,
        (Ok(_), _) => match &asked.registry {
            Some(Err(error)) if error.is_unreachable() => Exit::Unreachable,
            Some(Err(_)) => Exit::Config,
            _ => Exit::Done,
        },
    }
}

/// Returns what makes the missing topics, a text for each.
fn commands(args: &CheckArgs, settings: &Settings, report: &preflight::Report) -> Vec<String> {
    let brokers = missing::brokers(&settings.kafka.bootstrap_servers, &settings.kafka.all_properties());
    missing::texts(args.topics, &brokers, &report.missing_topics(settings))
}

fn report(args: &CheckArgs, config: &Result<Config, ConfigErrors>, asked: &Answers, exit: Exit) -> Value {
    let mut report = match config {
        Ok(config) => {
            let warnings: Vec<_> = config.warnings.iter().map(ConfigError::to_json).collect();
            json!({"errors": [], "warnings": warnings, "hash": config.effective.hash()})
        }
        Err(errors) => json!({"errors": errors.to_json(), "warnings": []}),
    };
    report["ok"] = json!(exit == Exit::Done);
    if let Some(registry) = &asked.registry {
        report["registry"] = json!({"error": registry.as_ref().err().map(ToString::to_string)});
    }
    if let Some(asked) = &asked.brokers {
        report["brokers"] = match asked {
            Ok(report) => json!({
                "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
                "matches": config.as_ref().map(|config| matches(&config.settings, report)).unwrap_or_default(),
            }),
            Err(error) => json!({"unreachable": error.to_string()}),
        };
        if let (true, Ok(config), Ok(asked)) = (args.create, config, asked) {
            report["brokers"]["create"] = json!(commands(args, &config.settings, asked));
        }
    }
    report
}

/// Returns the topics that match the patterns of each service that has some.
fn matches(settings: &Settings, report: &preflight::Report) -> BTreeMap<String, Vec<String>> {
    let services = settings.with_matches(report.names.as_deref().unwrap_or_default()).services;
    let topics = |service: &Service| {
        let matched = service.sources.iter().filter(|source| source.by_pattern);
        matched.map(|source| source.topic.clone()).collect()
    };
    let with_patterns = services.iter().filter(|service| !service.patterns.is_empty());
    with_patterns.map(|service| (service.name.clone(), topics(service))).collect()
}

fn print_matches(settings: &Settings, report: &preflight::Report, say: Say) {
    for (service, topics) in matches(settings, report) {
        let topics = if topics.is_empty() { "none".to_owned() } else { topics.join(", ") };
        say(format_args!("topics that match the patterns of service {service}: {topics}"));
    }
}

fn finding(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.into_str(),
        "service": finding.service,
        "topic": finding.topic,
        "text": finding.problem.to_string(),
    })
}

fn print_findings(report: &preflight::Report, say: Say) {
    for finding in &report.findings {
        let text = finding.problem.to_string();
        let parts = [Some(finding.severity.into_str()), finding.service.as_deref(), finding.topic.as_deref()];
        let parts: Vec<&str> = parts.into_iter().flatten().chain([text.as_str()]).collect();
        say(format_args!("{}", parts.join(": ")));
    }
    if !report.has_errors() && !report.lacks_topics() {
        say(format_args!("the brokers have what the configuration needs"));
    }
}

fn print_text(config: &Config, say: Say) {
    for warning in &config.warnings {
        say(format_args!("warning: {} {}", warning.title(), warning.problem));
        say(format_args!("    better: {}", warning.allowed));
        say(format_args!("    from:   {}\n", warning.origin));
    }
    say(format_args!("the configuration is valid (hash {})", config.effective.hash()));
    for service in &config.settings.services {
        say(format_args!(
            "  service {}: {} -> {} (rejected: {}), {} records per {}",
            service.name,
            service.sources_text(),
            service.targets().join(", "),
            service.dead_letters().join(", "),
            service.policy.capacity,
            humantime::format_duration(service.policy.cycle)
        ));
        say(format_args!("    {}", service.flood_text()));
        service
            .backlog_text()
            .into_iter()
            .chain(service.group_texts())
            .for_each(|text| say(format_args!("    {text}")));
    }
    say(format_args!("an instance needs up to {} MiB of memory", config.settings.memory() >> 20));
}
