//! One `[[service]]`.

use std::time::Duration;

use humantime::format_duration;
use watermaster_core::policy::{ClientPolicy, Limit, Mode, Policy};
use watermaster_core::units::Ratio;

use super::{groups, kafka, pace, rule, values};
use crate::model::{ClientFrom, Service, Source, SourcePattern};
use crate::pattern::TopicPattern;
use crate::read_struct;
use crate::reader::{Origin, Section};
use crate::token::SharedToken;

/// The least default of `client_idle_timeout`.
const MIN_IDLE_DEFAULT: Duration = Duration::from_secs(600);
/// The most configured clients to compare with each other.
const MAX_PAIRED_CLIENTS: usize = 200;
/// The most configured clients to compare with those of the sources.
pub(super) const MAX_COMPARED_CLIENTS: usize = 1_000;

/// Reads one service. Some keys of `kafka` hold for every service.
pub fn service(section: &Section<'_>, kafka: &Section<'_>) -> Option<Service> {
    let client_from = section.list("client_from", values::client_from).flatten();
    warn_of_names_like_patterns(section, client_from.as_deref().unwrap_or_default());
    kafka::check_places(section, "client_from", client_from.as_deref().unwrap_or_default(), kafka);
    let group_from = section.list("group_from", values::client_from);
    let group_places = group_from.as_ref().and_then(Option::as_deref).unwrap_or_default();
    kafka::check_places(section, "group_from", group_places, kafka);
    let by_topic = [client_from.as_deref().unwrap_or_default(), group_places].concat().contains(&ClientFrom::Topic);
    let tables = section.tables("source");
    let configured: Vec<_> = section.named_tables("client").into_iter().map(|(name, _)| name).collect();
    let redrive_client = section.text("redrive_client", values::client);
    let outputs = ["target", "dead_letter"].map(|key| section.text(key, values::topic));
    let (mut sources, mut patterns) = (Vec::new(), Vec::new());
    for table in &tables {
        if table.is_set("topic_pattern") {
            patterns.push(source_pattern(table, &configured, outputs.clone()));
        } else {
            sources.push(source(table, by_topic, &configured, outputs.clone()));
        }
    }
    warn_of_pairs(section, &configured);
    let (sources, patterns): (Option<Vec<_>>, Option<Vec<_>>) =
        (sources.into_iter().collect(), patterns.into_iter().collect());
    if let (Some(sources), Some(patterns)) = (&sources, &patterns) {
        groups::warn_of_unreachable(section, group_places, sources, patterns);
    }
    let [target, dead_letter] = outputs;
    read_struct!(Service {
        [section => on_undeliverable, group_silence, dead_letter_headers]
        target, dead_letter, client_from, sources, patterns, redrive_client,
        name: section.text("name", values::service_name),
        group_from: group_from.map(Option::unwrap_or_default),
        control_topic: control_topic(section, kafka),
        group_ahead_time: section.optional_value("group_ahead_time"),
        redrive_key: redrive_key(section, redrive_client.as_deref(), &configured),
        consumer_group: pace::consumer_group(section),
        max_open: pace::max_open(section),
        rules_topic: section.optional("rules_topic", values::topic),
        rules_max_capacity: rules_max_capacity(section, section.get("capacity")),
        pace: pace::pace(section),
        policy: policy(section, kafka),
    })
}

/// Reports names of headers that were probably meant to end where a pattern begins.
fn warn_of_names_like_patterns(section: &Section<'_>, places: &[ClientFrom]) {
    for place in places {
        let ClientFrom::Header(name) = place else { continue };
        if let Some((before, after)) = name.split_once(':').filter(|(_, after)| after.contains('(')) {
            let problem = format!("names the header {name:?}: a pattern begins with ^");
            section.warn("client_from", problem, format!("\"header:{before}:^{after}\""));
        }
    }
}

/// Reads the topic through which instances share one capacity. Its default names the group and the service.
pub fn control_topic(section: &Section<'_>, kafka: &Section<'_>) -> Option<String> {
    let names = kafka.text("group_id", values::group_id).zip(section.text("name", values::service_name));
    let default = names.map(|(group_id, name)| format!("{group_id}.{name}.seats"));
    section.derived_text("control_topic", default, values::topic)
}

/// Reads the key of redriven records. Without it, a table of the redrive's client has no effect on them.
fn redrive_key(section: &Section<'_>, client: Option<&str>, configured: &[&str]) -> Option<Option<SharedToken>> {
    let key = section.optional("redrive_key_file", |path| kafka::token(section, "redrive_key_file", path))?;
    if let Some(client) = client.filter(|client| key.is_none() && configured.contains(client)) {
        let problem = format!("is not set, so redriven records count for their senders, not for the client {client:?}");
        section.warn("redrive_key_file", problem, "the path of a file with a key for run and dlq redrive");
    }
    Some(key.map(SharedToken::new))
}

fn policy(section: &Section<'_>, kafka: &Section<'_>) -> Option<Policy> {
    let shape = section.table("shape");
    if section.get::<Ratio>("reservation").is_some_and(|reservation| reservation.millionths() == 1_000_000) {
        let problem = "is 1: no client lends, so the capacity that a client leaves unused stays idle";
        section.warn("reservation", problem, "a part below 1, such as 0.1");
    }
    check_fence(section);
    read_struct!(Policy {
        [section => capacity, cycle, reservation, lending, scope, mode, enforce]
        [section => window, catch_up, max_clients, unlisted_weight]
        [shape => queue_capacity, queue_bytes, overflow, burst]
        [kafka => commit_interval]
        max_delay: max_delay(&shape, mode),
        map_budget: kafka.text("map_budget", values::map_budget),
        client_idle_timeout: client_idle_timeout(section, cycle),
        clients: clients(section, capacity, max_clients),
        groups: groups::groups(section),
        names_groups: Some(section.is_set("group_from")),
        rules: rule::rules(section, rules_max_capacity(section, capacity)),
        rules_at_ms: Some(0),
        all_alone: Some(false),
        made_groups: Some(0),
        met_groups: Some(Vec::new()),
    })
}

/// Reads the largest capacity that a rule may set: by default the service's own, or the ceiling of its search.
fn rules_max_capacity(section: &Section<'_>, capacity: Option<u64>) -> Option<u64> {
    let pace = section.table("pace");
    let ceiling = if pace.is_written() { pace.optional_value::<u64>("ceiling").flatten() } else { None };
    let most: Option<u64> = section.optional_value("rules_max_capacity")?;
    if let (Some(most), Some(ceiling)) = (most, ceiling)
        && most > ceiling
    {
        let problem = format!("is {most}, above the ceiling of pace ({ceiling}), which no rule exceeds");
        section.refuse("rules_max_capacity", problem, format!("{ceiling} or less"));
    }
    most.or(capacity.max(ceiling))
}

/// Checks the capacity against its fence: a digit too many would admit ten times as much within seconds.
fn check_fence(section: &Section<'_>) {
    let value = |section: &Section<'_>, key| section.optional_value::<u64>(key).flatten();
    let [least, most] = ["capacity_min", "capacity_max"].map(|key| value(section, key));
    if let (Some(least), Some(most)) = (least, most)
        && least > most
    {
        let problem = format!("is {least}, above capacity_max ({most})");
        section.refuse("capacity_min", problem, format!("{most} or less"));
        return;
    }
    let pace = section.table("pace");
    let written = |section: &Section<'_>, key| section.is_set(key).then(|| value(section, key)).flatten();
    // capacity_min does not bind rules.
    let keys = [
        (section, "capacity", least),
        (&pace, "floor", least),
        (&pace, "ceiling", least),
        (section, "rules_max_capacity", None),
    ];
    for (section, key, least) in keys {
        let Some(value) = written(section, key) else { continue };
        if let Some(most) = most.filter(|most| value > *most) {
            section.refuse(key, format!("is {value}, above capacity_max ({most})"), format!("{most} or less"));
        }
        if let Some(least) = least.filter(|least| value < *least) {
            section.refuse(key, format!("is {value}, below capacity_min ({least})"), format!("{least} or more"));
        }
    }
}

/// Reads the longest time that a record may wait. A flood of shape mode is to be delayed rather than dropped, so only
/// reject mode has a default, for records that are catching up.
fn max_delay(shape: &Section<'_>, mode: Option<Mode>) -> Option<Option<Duration>> {
    match mode? {
        Mode::Shape => shape.optional_value("max_delay"),
        Mode::Reject => shape.derived("max_delay", Some("60s")).map(Some),
    }
}

fn client_idle_timeout(section: &Section<'_>, cycle: Option<Duration>) -> Option<Duration> {
    let two_cycles = cycle.map(|cycle| cycle * 2);
    let default = two_cycles.map(|two| format_duration(two.max(MIN_IDLE_DEFAULT)));
    let timeout: Duration = section.derived("client_idle_timeout", default)?;
    if let Some(two) = two_cycles.filter(|two| timeout < *two) {
        let problem = format!("is \"{}\", below two cycles", format_duration(timeout));
        section.refuse("client_idle_timeout", problem, format!("{} or more", format_duration(two)));
        return None;
    }
    Some(timeout)
}

/// Reads the configured clients. The registry needs room for all of them, and the capacity should be a record for each
/// client that may be known.
fn clients(section: &Section<'_>, capacity: Option<u64>, max_clients: Option<usize>) -> Option<Vec<ClientPolicy>> {
    let clients = section.named_tables("client");
    let clients: Vec<_> = clients.into_iter().map(|(name, client)| one_client(section, name, &client)).collect();
    let clients: Option<Vec<_>> = clients.into_iter().collect();
    if let (Some(configured), Some(max_clients)) = (clients.as_ref().map(Vec::len), max_clients)
        && configured > max_clients
    {
        section.refuse(
            "max_clients",
            format!("is {max_clients}, but {configured} clients are configured"),
            format!("{configured} or more"),
        );
    }
    // The default of max_clients says nothing about the number of clients.
    let expected = max_clients.filter(|_| section.is_set("max_clients")).or(clients.as_ref().map(Vec::len));
    if let (Some(capacity), Some(expected)) = (capacity, expected)
        && capacity < expected as u64
    {
        let problem =
            format!("is {capacity}, less than {expected} clients: with so many some get no record in a cycle");
        section.warn("capacity", problem, format!("a capacity of at least {expected}, or fewer clients"));
    }
    clients
}

fn one_client(service: &Section<'_>, name: &str, section: &Section<'_>) -> Option<ClientPolicy> {
    let name = values::client(name).map_err(|error| {
        service.refuse("client", format!("has the name {name:?}: {error}"), "a client id of 1 to 128 bytes");
    });
    read_struct!(ClientPolicy {
        weight: section.optional_value("weight").map(Option::unwrap_or_default),
        name: name.ok(),
        limits: limit_of_table(section).map(|limit| limit.into_iter().collect()),
    })
}

/// Reads the limit in the table of a client or of a group, if it has one. The outer `None` says that it is wrong.
pub(super) fn limit_of_table(section: &Section<'_>) -> Option<Option<Limit>> {
    let limit = section.table("limit");
    if limit.is_written() { one_limit(&limit).map(Some) } else { Some(None) }
}

pub(super) fn one_limit(section: &Section<'_>) -> Option<Limit> {
    read_struct!(Limit {
        [section => rate, per]
        burst: section.derived("burst", rate),
    })
}

/// A target and a dead-letter topic.
type Outputs = [Option<String>; 2];

fn source(section: &Section<'_>, by_topic: bool, configured: &[&str], of_service: Outputs) -> Option<Source> {
    let topic = section.optional("topic", values::topic);
    if topic == Some(None) {
        section.refuse("topic", "is missing", "a topic's name, or topic_pattern in its place");
    }
    let topic = topic.flatten();
    section.show("topic_pattern", None, Origin::Default);
    let client = if by_topic {
        section.derived_text("client", topic.as_ref(), values::client).map(Some)
    } else {
        section.optional("client", values::client)
    };
    with_other_keys(section, topic, client, false, configured, of_service)
}

/// Reads the keys that sources by name and by pattern have. The outputs that a source does not name are the service's.
fn with_other_keys(
    section: &Section<'_>, topic: Option<String>, client: Option<Option<String>>, by_pattern: bool,
    configured: &[&str], [target, dead_letter]: Outputs,
) -> Option<Source> {
    let allowed_clients = allowed_clients(section, client.as_ref().and_then(Option::as_ref), configured);
    let output = |key, of_service| section.optional(key, values::topic)?.or(of_service);
    let (target, dead_letter) = (output("target", target), output("dead_letter", dead_letter));
    read_struct!(Source { topic, client, allowed_clients, target, dead_letter, by_pattern: Some(by_pattern) })
}

fn source_pattern(section: &Section<'_>, configured: &[&str], of_service: Outputs) -> Option<SourcePattern> {
    if section.is_set("topic") {
        section.refuse("topic_pattern", "stands beside topic", "one of the two");
    }
    section.show("topic", None, Origin::Default);
    let pattern = section.optional("topic_pattern", values::topic_pattern).flatten();
    let client = section.optional("client", values::client);
    if matches!((&pattern, &client), (Some(pattern), Some(Some(_))) if pattern.captures_client()) {
        section.refuse("client", "stands beside a capture of the client in topic_pattern", "one of the two");
    }
    if pattern.as_ref().is_some_and(TopicPattern::captures_something_else) {
        let problem = "has a group that names no client: the client of each topic is its name, or `client`";
        section.warn("topic_pattern", problem, "(?<client>…), or (?:…) for a group that captures nothing");
    }
    let source = with_other_keys(section, Some(String::new()), client, true, configured, of_service);
    read_struct!(SourcePattern { pattern, source })
}

/// Reads the clients that may send to a source with this client by its topic.
fn allowed_clients(section: &Section<'_>, client: Option<&String>, configured: &[&str]) -> Option<Option<Vec<String>>> {
    let allowed_clients = section.list("allowed_clients", values::client);
    warn_of_likeness(section, client, allowed_clients.as_ref()?.as_deref(), configured);
    if let (Some(client), Some(Some(allowed))) = (client, &allowed_clients)
        && section.origin("client") != Origin::Default
        && !allowed.contains(client)
    {
        section.warn(
            "client",
            format!("is {client:?}, which is not in allowed_clients: records that get it by topic are unknown_client"),
            "one of allowed_clients",
        );
    }
    allowed_clients
}

/// Reports a client of a source that is not configured, while a client with almost this name is. Among very many
/// clients the search would take seconds.
fn warn_of_likeness(section: &Section<'_>, client: Option<&String>, allowed: Option<&[String]>, configured: &[&str]) {
    if configured.len() > MAX_COMPARED_CLIENTS {
        return;
    }
    let allowed = allowed.into_iter().flatten().map(|name| ("allowed_clients", name));
    for (key, name) in client.into_iter().map(|name| ("client", name)).chain(allowed) {
        let like = configured.iter().find(|other| is_like(name, other));
        if let Some(like) = like.filter(|_| !configured.contains(&name.as_str())) {
            let problem = format!("has {name:?}, which is not configured, but {like:?} is");
            section.warn(key, problem, format!("{like:?}, or a table [service.client.{name:?}]"));
        }
    }
}

/// Reports two configured clients with one letter of difference in a long word: they may be meant as one. Words of
/// three letters or fewer are often codes, such as those of countries.
fn warn_of_pairs(section: &Section<'_>, configured: &[&str]) {
    fn words(name: &str) -> impl Iterator<Item = &str> {
        name.split(|c: char| !c.is_alphanumeric())
    }
    let names = configured.get(..MAX_PAIRED_CLIENTS.min(configured.len())).unwrap_or_default();
    for (at, name) in names.iter().enumerate() {
        let differ = |other: &&&str| {
            let is_long = |word: &str| word.len() > 3 && word.chars().all(char::is_alphabetic);
            let mut differing = words(name).zip(words(other)).filter(|(word, other)| word != other);
            strsim::hamming(name, other) == Ok(1)
                && differing.all(|(word, other)| word.len() == other.len() && is_long(word) && is_long(other))
        };
        if let Some(other) = names[at + 1..].iter().find(differ) {
            let problem = format!("has {name:?} and {other:?}: are they two clients?");
            section.warn("client", problem, "one name for each client");
        }
    }
}

/// Returns whether two names may be one client's: they differ in case, in marks such as `-`, or by one letter too few
/// or at the wrong place. Names that differ in a digit or in another letter (`team-a`, `team-b`) are common.
fn is_like(name: &str, other: &str) -> bool {
    let plain = |name: &str| name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let (name, other) = (plain(name), plain(other));
    let slip = || strsim::osa_distance(&name, &other) == 1 && strsim::hamming(&name, &other) != Ok(1);
    name == other || (name.len().min(other.len()) >= 4 && digits(&name) == digits(&other) && slip())
}
