//! `watermaster rules explain`: what holds for a client, and which rule gave it.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use watermaster_api::{ExplainView, FieldView, RuleRef, rfc3339};
use watermaster_settings::config::instant;

use super::instance::{InstanceArgs, RulesError, RulesInstance};
use crate::cli::{ConfigFile, Exit, Failure, OutputArg, choose};
use crate::endpoint::percent_encoded;
use crate::moment::{millis, moment};

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/rules-explain.txt").trim_end())]
pub struct ExplainArgs {
    /// The client, known or not: its id, or GROUP/CLIENT where records name their group
    #[arg(value_name = "CLIENT", required_unless_present = "group")]
    client: Option<String>,
    /// A group in place of a client
    #[arg(long, value_name = "NAME", conflicts_with = "client")]
    group: Option<String>,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Explain a configuration (TOML, or a folder with *.toml) in place of an instance: without rules of run time
    #[arg(long = "config", value_name = "FILE", conflicts_with_all = ["url", "cacert", "token_file"])]
    files: Vec<PathBuf>,
    /// The time to explain; now by default
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<i64>,
    #[command(flatten)]
    output: OutputArg,
}

/// Parses a time with an offset, or one that any command takes.
fn at(text: &str) -> Result<i64, &'static str> {
    instant(text).or_else(|_| moment(text))
}

/// Prints the values and the rules that gave them.
pub(super) fn run(args: &ExplainArgs) -> Result<Exit, RulesError> {
    let view = if args.files.is_empty() { asked(args)? } else { of_files(args)? };
    args.output.show(&view, || text(&view));
    Ok(Exit::Done)
}

/// Asks the instance, which has the rules of run time as well.
fn asked(args: &ExplainArgs) -> Result<ExplainView, RulesError> {
    let at = args.at.map(|at| rfc3339(u64::try_from(at).unwrap_or_default()));
    let parts = [("client", &args.client), ("group", &args.group), ("at", &at)];
    let query = parts.iter().filter_map(|(key, value)| Some(format!("{key}={}", percent_encoded(value.as_ref()?))));
    RulesInstance::new(&args.instance)?.read(&format!("explain?{}", query.collect::<Vec<_>>().join("&")))
}

/// Explains the configuration.
fn of_files(args: &ExplainArgs) -> Result<ExplainView, RulesError> {
    let config = ConfigFile { paths: args.files.clone() }.load().map_err(Failure::from)?;
    let services = config.settings.services;
    let mut policy = choose(&services, args.instance.service.as_deref())?.policy.clone();
    policy.meet_groups_of(args.client.as_deref().into_iter());
    let policy = policy.at(args.at.unwrap_or_else(|| millis(SystemTime::now())));
    Ok(ExplainView::of(&policy, args.client.as_deref(), args.group.as_deref()))
}

/// Writes a line for each field, and the rules that lost below it.
fn text(view: &ExplainView) -> String {
    let lines = |fields: &[FieldView]| fields.iter().map(line).collect::<String>();
    let mut text = format!("at {}\n", view.at) + &lines(&view.fields);
    if let Some(group) = &view.group {
        text += &format!("of the group {group}:\n{}", lines(&view.of_group));
    }
    (text + "of the service:\n" + &lines(&view.of_service)).trim_end().to_owned()
}

fn line(view: &FieldView) -> String {
    let FieldView { field, value, rule, why, losers } = view;
    let name = |RuleRef { name, origin, priority, .. }: &RuleRef| {
        format!("{name} ({}, priority {priority})", super::shown_origin(origin))
    };
    let reason = rule.as_ref().map_or_else(|| why.clone(), |rule| format!("{}: {why}", name(rule)));
    let loser = |rule: &RuleRef| format!("{:<16}not {:<20} {}\n", "", rule.value, name(rule));
    format!("{field:<15} {value:<24} {reason}\n") + &losers.iter().map(loser).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[service]]
        name = "kyc"
        target = "t"
        dead_letter = "d"
        capacity = 100
        group_from = ["topic"]
        source = [{ topic = "s", client = "credit-card" }]
        [service.group.credit-card]
        weight = 1
        [[service.rule]]
        name = "everyone"
        clients = ["*"]
        limit = { rate = 20, per = "1s", scale = "weight" }
        [[service.rule]]
        name = "summer"
        groups = ["credit-card"]
        weight = 2
        priority = 10
        from = 2026-07-03T00:00:00+02:00
        until = 2026-07-06T00:00:00+02:00
    "#;

    fn explained(client: &str, at: &str) -> String {
        let policy = crate::cli::settings(FILE).services[0].policy.at(super::at(at).unwrap());
        text(&ExplainView::of(&policy, Some(client), None))
    }

    #[test]
    fn each_value_has_the_rule_that_gave_it() {
        let expected = "\
at 2026-07-04T10:00:00.000Z
group           credit-card              the record names it
weight          1                        no rule sets it
limits          20 in 1s, times the weight everyone (file, priority 0): no other rule sets it
max_delay       no limit                 no rule sets it
hold            false                    no rule sets it
expire_before   none                     no rule sets it
of the group credit-card:
weight          2                        summer (file, priority 10): priority 10 before 0 (group.credit-card)
                not 1                    group.credit-card (file, priority 0)
limits          none                     no rule sets it
hold            false                    no rule sets it
expire_before   none                     no rule sets it
of the service:
capacity        100                      no rule sets it
enforce         true                     no rule sets it
pace            as configured            no rule sets it";
        assert_eq!(explained("credit-card/campaign", "2026-07-04T12:00:00+02:00"), expected);
        assert!(explained("credit-card/campaign", "2026-07-06T00:00Z").contains("weight          1 "));
    }
}
