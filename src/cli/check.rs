//! `watermaster check`.

use std::time::Duration;

use serde_json::json;

use super::{Check, Output, refuse};
use crate::config::{Config, ConfigError, ConfigErrors};
use crate::exit::Exit;
use crate::kafka::preflight::{self, Severity};

/// The longest wait for the brokers.
const CONNECT: Duration = Duration::from_secs(10);

/// Says what is wrong, what is doubtful, or that all is well.
pub fn check(args: &Check) -> Exit {
    let result = args.file.load();
    if args.output.format == Output::Json {
        println!("{:#}", report(&result));
    }
    match result {
        Err(errors) if args.output.format == Output::Text => refuse(&errors),
        Err(_) => Exit::Config,
        Ok(config) => {
            if args.output.format == Output::Text {
                print_text(&config);
            }
            if args.connect { connect(&config, args.output.format) } else { Exit::Done }
        }
    }
}

/// Asks the brokers about topics, their limits and permissions.
fn connect(config: &Config, format: Output) -> Exit {
    let report = match preflight::check(&config.settings, CONNECT) {
        Ok(report) => report,
        Err(unreachable) => {
            eprintln!("{unreachable}");
            return Exit::Unreachable;
        }
    };
    for finding in &report.findings {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "note",
        };
        let place = [finding.service.as_deref(), finding.topic.as_deref()];
        let place: Vec<&str> = place.into_iter().flatten().collect();
        match format {
            Output::Text => println!("{severity}: {}: {}", place.join(": "), finding.text),
            Output::Json => println!(
                "{}",
                json!({"severity": severity, "service": finding.service, "topic": finding.topic, "text": finding.text})
            ),
        }
    }
    if report.has_errors() {
        return Exit::Config;
    }
    if format == Output::Text {
        println!("the brokers know all topics");
    }
    Exit::Done
}

fn report(result: &Result<Config, ConfigErrors>) -> serde_json::Value {
    match result {
        Ok(config) => {
            let warnings: Vec<_> = config.warnings.iter().map(ConfigError::to_json).collect();
            json!({"ok": true, "errors": [], "warnings": warnings, "hash": config.effective.hash()})
        }
        Err(errors) => json!({"ok": false, "errors": errors.to_json(), "warnings": []}),
    }
}

fn print_text(config: &Config) {
    for warning in &config.warnings {
        println!("warning: {} {}", warning.title(), warning.problem);
        println!("    better: {}", warning.allowed);
        println!("    from:   {}\n", warning.origin);
    }
    println!("the configuration is valid (hash {})", config.effective.hash());
    for service in &config.settings.services {
        let sources: Vec<_> = service.sources.iter().map(|source| source.topic.as_str()).collect();
        println!(
            "  service {}: {} -> {} (rejected: {}), {} records per {}",
            service.name,
            sources.join(", "),
            service.target,
            service.dead_letter,
            service.policy.capacity,
            humantime::format_duration(service.policy.cycle)
        );
    }
}
