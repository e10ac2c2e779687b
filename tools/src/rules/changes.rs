//! `watermaster rules ls | get | put | rm | export | diff | accept-loss`: the rules of a running instance.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Map, Value, json};
use watermaster_api::{RuleDryRun, RuleView, TakenOver};
use watermaster_core::rules::log::record::RuleVersion;
use watermaster_core::units::LAST_MS;
use watermaster_settings::config::{rule_of_json, rule_to_json, rules_of_text, toml_value};

use super::instance::{InstanceArgs, RulesError, RulesInstance};
use crate::cli::{Exit, Failure, OutputArg, print, print_json};
use crate::endpoint::percent_encoded;
use crate::moment::{millis, moment};

/// The longest wait until all instances have a rule that was put.
const WAIT: &str = "2s";

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// Only rules that match this client
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    #[command(flatten)]
    output: OutputArg,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The name of the rule
    name: String,
    #[command(flatten)]
    instance: InstanceArgs,
}

/// Arguments of `put`.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/rules-put.txt").trim_end())]
pub struct PutArgs {
    /// The name of the rule
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Put all [[service.rule]] of a file, such as `rules export` prints, one after the other; the command can be
    /// repeated
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = [
        "clients", "in_groups", "groups", "set", "weight", "from", "until", "note", "if_match",
    ])]
    file: Option<PathBuf>,
    /// With --file: delete the rules of run time that are not in it, once all that are in it were put
    #[arg(long, requires = "file")]
    prune: bool,
    /// The clients: ids, or patterns with * (repeatable, or with commas)
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    clients: Vec<String>,
    /// Only clients in these groups (repeatable, or with commas)
    #[arg(long, value_name = "ID", requires = "clients", value_delimiter = ',')]
    in_groups: Vec<String>,
    /// The groups (repeatable, or with commas)
    #[arg(long, value_name = "ID", conflicts_with = "clients", value_delimiter = ',')]
    groups: Vec<String>,
    /// Fields of the rule: KEY=VALUE, such as weight=2, hold=true or limit.rate=20 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The weight
    #[arg(long, value_name = "W")]
    weight: Option<f64>,
    /// The start: a time, or +2d for two days from now
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// The end, written like the start
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// The reason, for people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Change only this version, as `rules get` prints it
    #[arg(long, value_name = "VERSION", value_parser = version)]
    if_match: Option<String>,
    /// Show the effect, and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `rm`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The name of the rule
    name: String,
    #[command(flatten)]
    instance: InstanceArgs,
    /// Delete only this version, as `rules get` prints it
    #[arg(long, value_name = "VERSION", value_parser = version)]
    if_match: Option<String>,
    /// Show the effect, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportRulesArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    /// Also the rules of the file that are in force
    #[arg(long)]
    all: bool,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// A file with [[service.rule]], such as `rules export` prints
    file: PathBuf,
    #[command(flatten)]
    instance: InstanceArgs,
}

/// Lists the rules.
pub(super) fn list(args: &ListArgs) -> Result<Exit, RulesError> {
    let query = args.client.as_ref().map(|client| format!("&client={}", percent_encoded(client))).unwrap_or_default();
    let rules = RulesInstance::new(&args.instance)?.rules(&query)?;
    let row = |rule: &RuleView| {
        let RuleView { name, origin, state, etag, by, .. } = rule;
        let origin = super::shown_origin(origin);
        let by = by.as_ref().map(|by| format!("  by {by}")).unwrap_or_default();
        format!("{name:<24} {origin:<8} {state:<14} {etag:<24}{by}\n    {}", rule.rule)
    };
    args.output.show(&rules, || match rules.is_empty() {
        true => "no rules".to_owned(),
        false => rules.iter().map(row).collect::<Vec<_>>().join("\n"),
    });
    Ok(Exit::Done)
}

/// Prints one rule.
pub(super) fn get(args: &GetArgs) -> Result<Exit, RulesError> {
    let rule: Value = RulesInstance::new(&args.instance)?.read(&format!("rules/{}", percent_encoded(&args.name)))?;
    print_json(&rule);
    Ok(Exit::Done)
}

/// Puts a rule, or the rules of a file.
pub(super) fn put(args: &PutArgs) -> Result<Exit, RulesError> {
    let target = RulesInstance::new(&args.instance)?;
    if let Some(file) = &args.file {
        put_file(&target, file, args)?;
        return Ok(Exit::Done);
    }
    // Without a file the name is required.
    let (name, body) = (args.name.as_deref().unwrap_or_default(), body(args)?);
    let answer = target.change(name, Some(&body), args.if_match.as_deref(), args.dry_run, Some(WAIT))?;
    print(told(&answer, args.dry_run));
    Ok(Exit::Done)
}

/// The rule that the options describe.
fn body(args: &PutArgs) -> Result<Value, Failure> {
    let mut body = Map::new();
    let list = |ids: &[String]| Value::from(ids.to_vec());
    for (key, ids) in [("clients", &args.clients), ("in_groups", &args.in_groups), ("groups", &args.groups)] {
        if !ids.is_empty() {
            body.insert(key.to_owned(), list(ids));
        }
    }
    if let Some(weight) = args.weight {
        body.insert("weight".to_owned(), json!(weight));
    }
    if let Some(note) = &args.note {
        body.insert("note".to_owned(), note.as_str().into());
    }
    for (key, text) in [("from", &args.from), ("until", &args.until)] {
        if let Some(text) = text {
            body.insert(key.to_owned(), time(key, text)?.into());
        }
    }
    for text in &args.set {
        let wrong = || Failure::usage(format_args!("--set {text:?}: allowed: KEY=VALUE"));
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let value: Value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        match key.split_once('.') {
            None => _ = body.insert(key.to_owned(), value),
            Some((outer, inner)) => {
                let table = body.entry(outer).or_insert_with(|| json!({}));
                table.as_object_mut().ok_or_else(wrong)?.insert(inner.to_owned(), value);
            }
        }
    }
    Ok(body.into())
}

/// A time, or one from now on.
fn time(key: &str, text: &str) -> Result<String, Failure> {
    let wrong = || Failure::usage(format_args!("--{key} {text:?}: allowed: a time, or +2d"));
    let at = match text.strip_prefix('+') {
        Some(later) => {
            let later = humantime::parse_duration(later).map_err(|_| wrong())?;
            SystemTime::now().checked_add(later).map(millis).filter(|at| *at <= LAST_MS).ok_or_else(wrong)?
        }
        None if text.contains('T') && !text.ends_with('Z') => return Ok(text.to_owned()),
        // An age, such as 2d, would be a time before now.
        None if !text.contains('-') => return Err(wrong()),
        None => moment(text).map_err(|_| wrong())?,
    };
    let at = UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap_or_default());
    Ok(humantime::format_rfc3339_seconds(at).to_string())
}

fn told(answer: &Value, dry_run: bool) -> String {
    if !dry_run {
        let Some(etag) = answer["etag"].as_str() else { return "deleted".to_owned() };
        let name = answer["name"].as_str().unwrap_or_default();
        let instances = serde_json::from_value(answer["instances"].clone());
        let instances = instances.map(|TakenOver { live, same_rules }| format!(" at {same_rules} of {live} instances"));
        let warnings = answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let warnings: String = warnings.map(|warning| format!("\nwarning: {warning}")).collect();
        return format!("{name} is in force{}, version {etag}{warnings}", instances.unwrap_or_default());
    }
    let Ok(RuleDryRun { changed, clients, warnings, .. }) = serde_json::from_value(answer.clone()) else {
        return answer.to_string();
    };
    let client = |effect: &watermaster_api::ClientEffect| {
        let fields = effect.before.iter().zip(&effect.after);
        let fields = fields.map(|(before, after)| format!(", {} {} -> {}", before.field, before.value, after.value));
        // A limit does not change the grant.
        let granted = |granted: u64, limit: Option<f64>| match limit.filter(|limit| *limit < granted as f64) {
            Some(limit) => format!("{limit:.1}"),
            None => granted.to_string(),
        };
        let before = granted(effect.granted_before, effect.limit_before);
        let after = granted(effect.granted_after, effect.limit_after);
        let fields: String = fields.collect();
        format!("\n{}: wants {}, may send {before} -> {after} in a cycle{fields}", effect.name, effect.wants)
    };
    let rows: String = clients.iter().map(client).collect();
    let warnings: String = warnings.iter().map(|warning| format!("\n{warning}")).collect();
    format!("a dry run, by the clients of this instance: {changed} clients change{rows}{warnings}")
}

/// The rules of a file, by name, as requests write them. Variables in them stand for the same as in a file that `run`
/// reads.
fn of_file(file: &Path, service: &str) -> Result<Vec<(String, Value)>, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::Config, format_args!("{} can't be read: {error}", file.display())))?;
    let rules = rules_of_text((file, &text), service, std::env::vars_os())?;
    Ok(rules.iter().map(|rule| (rule.name.to_string(), rule_to_json(rule))).collect())
}

fn put_file(target: &RulesInstance, file: &Path, args: &PutArgs) -> Result<(), RulesError> {
    let wanted = of_file(file, &target.service)?;
    if wanted.is_empty() {
        let why = format!("{} has no [[service.rule]] of the service {:?}", file.display(), target.service);
        return Err(Failure::new(Exit::Config, why).into());
    }
    let known = run_time(target)?;
    let tell = |name: &str, change: Result<Value, RulesError>, is_deleted: bool| {
        let said = change.as_ref().map_or_else(ToString::to_string, |answer| told(answer, args.dry_run));
        let would = if is_deleted && args.dry_run { "would be deleted: " } else { "" };
        print(format_args!("{name}: {would}{said}"));
        change.map(drop)
    };
    let in_force = |(name, body): &(String, Value)| {
        let rule = known.iter().find(|rule| rule.name == *name);
        (rule, rule.is_some_and(|rule| same(&rule.rule, body, name)))
    };
    let in_force: Vec<_> = wanted.iter().map(in_force).collect();
    // An instance that has the last change has all.
    let last = in_force.iter().rposition(|(_, is_same)| !is_same);
    let mut done = Ok(());
    for (at, ((name, body), (rule, is_same))) in wanted.iter().zip(in_force).enumerate() {
        if is_same {
            print(format_args!("{name}: unchanged"));
            continue;
        }
        let (etag, wait) = (rule.map(|rule| rule.etag.as_str()), (Some(at) == last).then_some(WAIT));
        done = done.and(tell(name, target.change(name, Some(body), etag, args.dry_run, wait), false));
    }
    if args.prune && done.is_err() {
        // The missing rule may be in the place of one with another name.
        print("nothing is deleted, because not all rules of the file are known to be in force");
        return done;
    }
    for rule in known.iter().filter(|rule| args.prune && wanted.iter().all(|(name, _)| *name != rule.name)) {
        done = done.and(tell(&rule.name, target.change(&rule.name, None, Some(&rule.etag), args.dry_run, None), true));
    }
    done
}

fn run_time(target: &RulesInstance) -> Result<Vec<RuleView>, RulesError> {
    target.rules("&origin=run_time")
}

/// Reads a version of a rule, or the word for the version in the file.
fn version(text: &str) -> Result<String, &'static str> {
    let stated = text.trim_matches('"');
    match stated == "file" || RuleVersion::parse(stated).is_some() {
        true => Ok(stated.to_owned()),
        false => Err("allowed: a version such as 1-4d99b7d373c4b06b, or file for a rule of the file"),
    }
}

/// Returns whether two texts are one rule.
fn same(one: &Value, other: &Value, name: &str) -> bool {
    let plain = |value: &Value| {
        let object = value.as_object().cloned().unwrap_or_default();
        rule_of_json(name, &object, u64::MAX).ok()
    };
    plain(one) == plain(other)
}

/// Deletes a rule.
pub(super) fn remove(args: &RemoveArgs) -> Result<Exit, RulesError> {
    let target = RulesInstance::new(&args.instance)?;
    let answer = target.change(&args.name, None, args.if_match.as_deref(), args.dry_run, None)?;
    print(told(&answer, args.dry_run));
    Ok(Exit::Done)
}

/// Returns whether a rule belongs in an export: one of run time also before it begins, or while it is disabled. An
/// expired one is kept for thirty days, and can't be put again.
fn is_exported(rule: &RuleView) -> bool {
    match &*rule.origin {
        "run_time" => rule.state != "expired",
        _ => rule.state == "in_force",
    }
}

/// Prints the rules of run time as a file.
pub(super) fn export(args: &ExportRulesArgs) -> Result<Exit, RulesError> {
    let target = RulesInstance::new(&args.instance)?;
    let rules = if args.all { target.rules("")? } else { run_time(&target)? };
    print(format_args!("[[service]]\nname = {:?}", target.service));
    for rule in rules.into_iter().filter(is_exported) {
        let object = rule.rule.as_object().cloned().unwrap_or_default();
        let fields = object.iter().filter(|(key, _)| *key != "name");
        let fields: String = fields.map(|(key, value)| format!("{key} = {}\n", toml(value))).collect();
        print(format_args!("\n[[service.rule]]\nname = {:?}\n{}", rule.name, fields.trim_end()));
    }
    Ok(Exit::Done)
}

/// Writes a value of JSON in TOML.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let fields = table.iter().map(|(key, value)| format!("{key} = {}", toml(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        scalar => toml_value(scalar),
    }
}

/// Prints the differences between a file and the rules of run time.
pub(super) fn diff(args: &DiffArgs) -> Result<Exit, RulesError> {
    let target = RulesInstance::new(&args.instance)?;
    let (wanted, known) = (of_file(&args.file, &target.service)?, run_time(&target)?);
    let mut exit = Exit::Done;
    let mut tell = |sign: char, name: &str, rule: &Value| {
        exit = Exit::No;
        print(format_args!("{sign} {name} {rule}"));
    };
    for (name, body) in &wanted {
        match known.iter().find(|rule| rule.name == *name) {
            Some(rule) if same(&rule.rule, body, name) => {}
            Some(rule) => {
                tell('-', name, &rule.rule);
                tell('+', name, body);
            }
            None => tell('+', name, body),
        }
    }
    let is_more = |rule: &&RuleView| is_exported(rule) && wanted.iter().all(|(name, _)| *name != rule.name);
    for rule in known.iter().filter(is_more) {
        tell('-', &rule.name, &rule.rule);
    }
    Ok(exit)
}

/// Goes on with what the topic of the rules has.
pub(super) fn accept_loss(args: &InstanceArgs) -> Result<Exit, RulesError> {
    let target = RulesInstance::new(args)?;
    target.asked(target.endpoint.post(&target.path("rules/accept-loss")))?;
    print("the rules are those that the topic has now");
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use clap::Parser as _;

    use super::*;
    use crate::endpoint::Endpoint;

    #[derive(clap::Parser)]
    struct PutCommand {
        #[command(flatten)]
        put: PutArgs,
    }

    /// A file has a rule under another name than before. The bug: the new one was refused, and the former one deleted.
    #[test]
    fn nothing_is_deleted_after_a_rule_was_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let mut methods = Vec::new();
            while methods.last().is_none_or(|method| method != "STOP") {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let (mut line, mut length) = (String::new(), 0);
                stream.read_line(&mut line).unwrap();
                methods.push(line.split(' ').next().unwrap().to_owned());
                let lists = line.contains("/rules?");
                while line != "\r\n" {
                    line.clear();
                    stream.read_line(&mut line).unwrap();
                    let header = line.to_lowercase();
                    length = header.strip_prefix("content-length:").map_or(length, |size| size.trim().parse().unwrap());
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                let (status, body) = match methods.last().map(String::as_str) {
                    Some("GET") if lists => {
                        let rule = json!({"name": "cap-low", "origin": "run_time", "state": "in_force", "etag": "1-0",
                            "rule": {"service": true, "capacity": 800}});
                        (200, json!({"service": "kyc", "rules": [rule]}))
                    }
                    Some("GET") => (404, json!({"error": "no such rule"})),
                    _ => (422, json!({"error": "refused"})),
                };
                let body = body.to_string();
                let head =
                    format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
            }
            methods
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules.toml");
        let text =
            "[[service]]\nname = \"kyc\"\n[[service.rule]]\nname = \"cap-night\"\nservice = true\ncapacity = 9000\n";
        std::fs::write(&file, text).unwrap();
        let target = RulesInstance { endpoint: Endpoint::new(&url, None), url: url.clone(), service: "kyc".to_owned() };
        let parsed = PutCommand::parse_from(["put", "--file", file.to_str().unwrap(), "--prune"]);
        let error = put_file(&target, &file, &parsed.put).unwrap_err();
        let mut stop = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stop.write_all(b"STOP / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(server.join().unwrap(), ["GET", "GET", "PUT", "STOP"]);
        assert_eq!(error.exit() as u8, Exit::Config as u8, "{error}");
    }

    #[test]
    fn a_file_takes_no_options_of_a_rule() {
        let options =
            [("--from", "+1h"), ("--until", "+2h"), ("--weight", "2"), ("--note", "x"), ("--if-match", "file")];
        for (option, value) in options {
            let parsed = PutCommand::try_parse_from(["put", "--file", "rules.toml", option, value]);
            assert!(parsed.is_err(), "{option}");
        }
    }

    #[test]
    fn an_exported_rule_is_read_back_as_it_was() {
        let limit = json!({"rate": 3, "per": "2s", "scale": "weight"});
        let rule = json!({"groups": ["a*"], "limits": [limit], "note": "\"x\"\u{7f}\n$$ ${A} $a"});
        let fields: String =
            rule.as_object().unwrap().iter().map(|(key, value)| format!("{key} = {}\n", toml(value))).collect();
        let text = format!("[[service]]\nname = \"kyc\"\n\n[[service.rule]]\nname = \"r\"\n{fields}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules.toml");
        std::fs::write(&file, &text).unwrap();
        let [(name, read)] = &of_file(&file, "kyc").unwrap()[..] else { panic!("one rule") };
        assert_eq!(name, "r");
        assert!(same(&rule, read, "r"), "{read}");
        // The second rule replaced the first one, or was refused for its version.
        std::fs::write(&file, format!("{text}\n[[service.rule]]\nname = \"r\"\n{fields}")).unwrap();
        let refused = of_file(&file, "kyc").unwrap_err();
        assert!(refused.to_string().contains("another rule"), "{refused}");
    }

    /// The bug: with `--all`, a rule of run time that had not begun was left out. A `put --file --prune` of such an export
    /// would have deleted it.
    #[test]
    fn rules_of_run_time_are_exported_before_they_begin() {
        let is_exported = |origin: &str, state: &str| {
            let view = json!({"name": "r", "origin": origin, "state": state, "etag": "", "rule": {}});
            is_exported(&serde_json::from_value(view).unwrap())
        };
        let states = ["in_force", "not_yet", "disabled", "not_understood", "expired"];
        let exported = |origin| states.into_iter().filter(|state| is_exported(origin, state)).collect::<Vec<_>>();
        assert_eq!(exported("run_time"), states[..4]);
        assert_eq!(exported("file"), states[..1]);
    }

    #[test]
    fn options_describe_a_rule() {
        let parsed = PutCommand::parse_from([
            "put", "partner", "--clients", "acme", "--set", "limit.rate=20", "--set", "limit.per=1s", "--set",
            "hold=true", "--from", "2026-07-04", "--until", "2026-07-06T00:00:00+02:00", "--note", "why",
        ]);
        let expected = json!({
            "clients": ["acme"], "limit": {"rate": 20, "per": "1s"}, "hold": true,
            "from": "2026-07-04T00:00:00Z", "until": "2026-07-06T00:00:00+02:00", "note": "why",
        });
        assert_eq!(body(&parsed.put).unwrap(), expected);
        for wrong in ["+9999y", "+500000000000y", "2d"] {
            assert!(time("until", wrong).is_err(), "{wrong}");
        }
        let later = time("until", "+2d").unwrap();
        let parsed = humantime::parse_rfc3339(&later).unwrap();
        assert!(parsed > SystemTime::now() + Duration::from_secs(86_400));
    }
}
