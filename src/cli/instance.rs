//! `watermaster health` and `watermaster reload`: commands to a running instance.

use clap::Args;
use serde_json::Value;
use watermaster_api::{ChangeView, NextCycle, ReloadView};
use watermaster_tools::cli::{Exit, OutputArg, fail, print};
use watermaster_tools::endpoint::{EndpointError, Reply, TokenArg, UrlArg};

const HEALTH_EXAMPLES: &str = "\
Examples:
  watermaster health                           is the instance on this machine ready?
  watermaster health --live                    is it alive? It may still wait for the brokers
  watermaster health --url http://10.0.0.7:9464

Exits with 0 if the instance is ready, with 1 and the reasons if it is not, and with 69 if none answers. Without --url,
the variable WATERMASTER_ADMIN__LISTEN gives the address, if it is set, and TLS with any certificate is tried, too.";

const RELOAD_EXAMPLES: &str = "\
Examples:
  watermaster reload --token-file token --dry-run   what would change, and how many records would be admitted?
  watermaster reload --token-file token
  watermaster reload --url http://10.0.0.7:9464 --token-file token

Exits with 78 if the instance refuses the token, or the new configuration: the one in force stays.
Without --url, the variable WATERMASTER_ADMIN__LISTEN gives the address, if it is set.";

#[derive(Debug, Args)]
#[command(after_help = HEALTH_EXAMPLES)]
pub struct HealthArgs {
    #[command(flatten)]
    instance: UrlArg,
    /// Ask whether the instance is alive (/livez), not whether it is ready (/readyz)
    #[arg(long)]
    live: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub struct ReloadArgs {
    #[command(flatten)]
    instance: UrlArg,
    #[command(flatten)]
    token: TokenArg,
    /// Only show the changes: the configuration in force stays
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArg,
}

/// Prints whether the instance is ready, or alive, and the reasons why not.
pub fn health(args: &HealthArgs) -> Exit {
    let (path, word) = if args.live { ("/livez", "alive") } else { ("/readyz", "ready") };
    let endpoint = match args.instance.endpoint(None) {
        Ok(endpoint) => endpoint,
        Err(error) => return fail(Exit::Config, error),
    };
    // Only the configuration, which is not read here, tells whether the instance speaks TLS.
    let reply = endpoint.get(path).or_else(|error| {
        let by_tls = args.instance.local_by_tls().and_then(|endpoint| endpoint.get(path).ok());
        by_tls.ok_or(error)
    });
    let (status, answer) = match parsed(reply) {
        Ok(answer) => answer,
        Err(error) => return fail(error.exit(), format_args!("{}: {error}", args.instance.url)),
    };
    match answer[word].as_bool() {
        Some(true) => print(word),
        Some(false) => {
            print(format_args!("not {word}"));
            for service in list(&answer["services"]) {
                // While the program drains, a reason may belong to no service.
                let name = service["name"].as_str().map(|name| format!("{name}: ")).unwrap_or_default();
                print(format_args!("  {name}{}", text(&service["reason"])));
            }
            return Exit::No;
        }
        None => return no_answer(&args.instance, status),
    }
    Exit::Done
}

/// Makes the instance read its configuration again, and prints the changes or the errors.
pub fn reload(args: &ReloadArgs) -> Exit {
    let endpoint = match args.token.read().and_then(|token| args.instance.endpoint(token.as_deref())) {
        Ok(endpoint) => endpoint,
        Err(error) => return fail(Exit::Config, error),
    };
    let path = if args.dry_run { "/v1/reload?dry_run=true" } else { "/v1/reload" };
    let (status, answer) = match parsed(endpoint.post(path)) {
        Ok(answer) => answer,
        Err(error) => return fail(error.exit(), format_args!("{}: {error}", args.instance.url)),
    };
    match status {
        200 => {
            let Ok(view) = serde_json::from_value::<ReloadView>(answer) else {
                return no_answer(&args.instance, status);
            };
            args.output.show(&view, || described(&view));
            Exit::Done
        }
        409 | 422 => {
            let error = |error: &Value| {
                let [key, problem, allowed, origin] =
                    ["key", "problem", "allowed", "origin"].map(|name| text(&error[name]));
                let service = error["service"].as_str().map(|name| format!(" (service {name})")).unwrap_or_default();
                format!("\n\n{key}{service} {problem}\n    allowed: {allowed}\n    from:    {origin}")
            };
            let errors: String = list(&answer["errors"]).map(error).collect();
            fail(Exit::Config, format_args!("{}{errors}", text(&answer["error"])))
        }
        status => no_answer(&args.instance, status),
    }
}

/// Describes the changes, a line for each.
fn described(view: &ReloadView) -> String {
    let ReloadView { hash, dry_run, changes, next_cycle, warnings, .. } = view;
    let change = |change: &ChangeView| {
        let ChangeView { key, service, from, to, origin, doubtful_factor } = change;
        let [from, to] = [from, to].map(|value| if value.is_null() { "not set".to_owned() } else { value.to_string() });
        let service = service.as_ref().map(|name| format!(" (service {name})")).unwrap_or_default();
        let doubt = doubtful_factor.map(|factor| format!("\n    warning: {factor:.3} times the former value"));
        format!("{key}{service}: {from} -> {to}\n    from: {origin}{}\n", doubt.unwrap_or_default())
    };
    let effect = |cycle: &NextCycle| {
        let NextCycle { service, wanted, admits, cycle_seconds, would_admit, would_last, .. } = cycle;
        if *wanted > 0 {
            return format!(
                "service {service}: of {wanted} records that are wanted here, up to {would_admit} are admitted in \
                 {would_last} s ({admits} in {cycle_seconds} s before)\n"
            );
        }
        let [before, after] = [cycle.admits_at_most, cycle.would_admit_at_most]
            .map(|most| most.map_or("any number of".to_owned(), |most| format!("up to {most}")));
        format!(
            "service {service}: {after} records can be admitted in {would_last} s ({before} in {cycle_seconds} s \
             before); none is wanted here now\n"
        )
    };
    let warning = |warning: &String| format!("\nwarning: {warning}");
    let end = match (changes.is_empty(), dry_run) {
        (true, _) => format!("nothing differs (hash {hash})"),
        (false, true) => format!("a dry run: nothing was taken over (hash {hash} afterwards)"),
        (false, false) => format!("taken over (hash {hash})"),
    };
    let lines = changes.iter().map(change).chain(next_cycle.iter().map(effect)).chain([end]);
    lines.chain(warnings.iter().map(warning)).collect()
}

/// Reads the answer as JSON. Any other text becomes null.
fn parsed(reply: Result<Reply, EndpointError>) -> Result<(u16, Value), EndpointError> {
    reply.map(|(status, body)| (status, serde_json::from_str(&body).unwrap_or_default()))
}

fn no_answer(instance: &UrlArg, status: u16) -> Exit {
    fail(Exit::Unreachable, format_args!("{}: it answers with status {status}", instance.url))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle service wants nothing, so its next cycle says nothing about a capacity.
    #[test]
    fn the_effect_on_an_idle_service_is_what_it_could_admit() {
        let cycle = |wanted: u64, would_admit_at_most: Option<u64>| NextCycle {
            service: "kyc".to_owned(),
            wanted,
            admits: wanted.min(2_000),
            admits_at_most: Some(2_000),
            cycle_seconds: 10.0,
            would_admit: would_admit_at_most.map_or(wanted, |most| most.min(wanted)),
            would_admit_at_most,
            would_last: 10.0,
        };
        let cases = [
            (
                cycle(5_210, Some(3_600)),
                "of 5210 records that are wanted here, up to 3600 are admitted in 10 s (2000 in 10 s before)",
            ),
            (
                cycle(0, Some(3_600)),
                "up to 3600 records can be admitted in 10 s (up to 2000 in 10 s before); none is wanted here now",
            ),
            (
                cycle(0, None),
                "any number of records can be admitted in 10 s (up to 2000 in 10 s before); none is wanted here now",
            ),
        ];
        for (cycle, expected) in cases {
            let view = ReloadView::new("a".to_owned(), false, Vec::new(), vec![cycle], Vec::new());
            let said = described(&view);
            assert_eq!(said.lines().next(), Some(&*format!("service kyc: {expected}")), "{said}");
        }
    }
}
