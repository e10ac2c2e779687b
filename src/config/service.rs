//! One `[[service]]`.

use std::num::NonZeroU32;
use std::time::Duration;

use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{CatchUp, ClientPolicy, Lending, Limit, Mode, Overflow, Policy, Window};
use watermaster_core::units::Ratio;

use super::section::{Section, count, duration};
use super::values;
use crate::settings::{ClientFrom, OnUndeliverable, Service, Source};

/// The shortest time in which a client that is not configured is forgotten, unless two cycles are longer.
const IDLE_DEFAULT: Duration = Duration::from_secs(600);

/// What a service takes over from the section `kafka`; `None` where that is wrong.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    pub group_id: Option<&'a str>,
    pub commit_interval: Option<Duration>,
    pub map_budget: Option<MapBudget>,
}

/// A service as far as it could be read: what the rules across services need, wrong parts left out.
pub struct Draft<'a> {
    pub section: Section<'a>,
    pub name: Option<String>,
    pub target: Option<String>,
    pub dead_letter: Option<String>,
    pub control_topic: Option<String>,
    pub cycle: Option<Duration>,
    /// Each source's section with its topic.
    pub sources: Vec<(Section<'a>, Option<String>)>,
    /// The service, if nothing in it is wrong.
    pub service: Option<Service>,
}

/// Reads one service.
pub fn service<'a>(section: Section<'a>, shared: Shared<'_>) -> Draft<'a> {
    let name = section.value("name", |text, _| values::name(text, 64, "_-"));
    let target = section.topic("target");
    let dead_letter = section.topic("dead_letter");
    let start = policy_start(&section);
    let cycle = start.cycle;
    let scope = section.value("scope", |text, _| scope(text));
    let control_topic = control_topic(&section, shared.group_id, name.as_deref());
    let on_undeliverable =
        section.choice("on_undeliverable", &[("stop", OnUndeliverable::Stop), ("discard", OnUndeliverable::Discard)]);
    let client_from = section.list("client_from", values::client_from).flatten();
    let policy = policy(&section, start, shared);

    let (sources, source_sections) = sources(&section, client_from.as_deref());
    let service = (|| {
        scope?;
        Some(Service {
            name: name.clone()?,
            target: target.clone()?,
            dead_letter: dead_letter.clone()?,
            on_undeliverable: on_undeliverable?,
            client_from: client_from?,
            sources: sources?,
            policy: policy?,
        })
    })();
    Draft { section, name, target, dead_letter, control_topic, cycle, sources: source_sections, service }
}

/// The keys of a policy that come first on the page.
struct PolicyStart {
    capacity: Option<u64>,
    cycle: Option<Duration>,
    reservation: Option<Ratio>,
    lending: Option<Lending>,
    mode: Option<Mode>,
    enforce: Option<bool>,
    window: Option<Window>,
    catch_up: Option<CatchUp>,
}

fn policy_start(section: &Section<'_>) -> PolicyStart {
    PolicyStart {
        capacity: section.count("capacity"),
        cycle: section.duration("cycle"),
        reservation: section.ratio("reservation"),
        lending: section.choice("lending", &[("proportional", Lending::Proportional), ("max_min", Lending::MaxMin)]),
        mode: section.choice("mode", &[("shape", Mode::Shape), ("reject", Mode::Reject)]),
        enforce: section.flag("enforce"),
        window: section.choice("window", &[("sliding", Window::Sliding), ("fixed", Window::Fixed)]),
        catch_up: section.choice("catch_up", &[("delay", CatchUp::Delay), ("reject", CatchUp::Reject)]),
    }
}

fn policy(section: &Section<'_>, start: PolicyStart, shared: Shared<'_>) -> Option<Policy> {
    let max_clients = section.count("max_clients");
    let unlisted_weight = section.weight("unlisted_weight");
    let client_idle_timeout = client_idle_timeout(section, start.cycle);
    let shape = section.table("shape");
    let queue_capacity = shape.count("queue_capacity");
    let queue_bytes = shape.value("queue_bytes", count);
    let max_delay = shape.duration("max_delay");
    let overflow = shape.choice("overflow", &[("dead_letter", Overflow::DeadLetter), ("pause", Overflow::Pause)]);
    let burst = shape.ratio("burst");
    let clients = clients(section);
    room_for_clients(section, start.capacity, max_clients, clients.as_ref().map(Vec::len));
    Some(Policy {
        capacity: start.capacity?,
        cycle: start.cycle?,
        reservation: start.reservation?,
        lending: start.lending?,
        mode: start.mode?,
        enforce: start.enforce?,
        window: start.window?,
        catch_up: start.catch_up?,
        max_clients: usize::try_from(max_clients?).ok()?,
        unlisted_weight: unlisted_weight?,
        client_idle_timeout: client_idle_timeout?,
        clients: clients?,
        queue_capacity: queue_capacity?,
        queue_bytes: queue_bytes?,
        max_delay: max_delay?,
        overflow: overflow?,
        burst: burst?,
        commit_interval: shared.commit_interval?,
        map_budget: shared.map_budget?,
    })
}

fn scope(text: &str) -> Result<(), values::Why> {
    match text {
        "instance" => Ok(()),
        "group" => {
            Err("one capacity for all instances of a group is not built yet; each instance has its own".to_owned())
        }
        _ => Err(values::Why::new()),
    }
}

fn control_topic(section: &Section<'_>, group_id: Option<&str>, name: Option<&str>) -> Option<String> {
    let default = group_id.zip(name).map(|(group_id, name)| format!("{group_id}.{name}.control"));
    section.derived("control_topic", default.as_deref(), |text, _| values::topic(text))
}

fn client_idle_timeout(section: &Section<'_>, cycle: Option<Duration>) -> Option<Duration> {
    let two_cycles = cycle.map(|cycle| cycle * 2);
    let default = two_cycles.map(|two| humantime::format_duration(two.max(IDLE_DEFAULT)).to_string());
    let timeout = section.derived("client_idle_timeout", default.as_deref(), duration)?;
    match two_cycles {
        Some(two) if timeout < two => {
            let shown = humantime::format_duration(timeout);
            let two = humantime::format_duration(two);
            section.refuse(
                "client_idle_timeout",
                format!("is \"{shown}\", below two cycles"),
                format!("{two} or more"),
            );
            None
        }
        _ => Some(timeout),
    }
}

/// The registry has to hold every configured client, and should not hold more clients than the capacity has records.
fn room_for_clients(section: &Section<'_>, capacity: Option<u64>, max_clients: Option<u64>, configured: Option<usize>) {
    let Some(max_clients) = max_clients else {
        return;
    };
    if let Some(configured) = configured.filter(|&count| count as u64 > max_clients) {
        section.refuse(
            "max_clients",
            format!("is {max_clients}, but {configured} clients are configured"),
            format!("{configured} or more"),
        );
    }
    if let Some(capacity) = capacity.filter(|&capacity| capacity < max_clients) {
        section.warn(
            "capacity",
            format!("is {capacity}, less than max_clients ({max_clients}): with that many clients some get no record in a cycle"),
            format!("a capacity of at least {max_clients}, or max_clients of at most {capacity}"),
        );
    }
}

fn clients(section: &Section<'_>) -> Option<Vec<ClientPolicy>> {
    let clients: Vec<_> =
        section.named_tables("client").into_iter().map(|(name, client)| one_client(section, name, &client)).collect();
    clients.into_iter().collect()
}

fn one_client(section: &Section<'_>, name: &str, client: &Section<'_>) -> Option<ClientPolicy> {
    let valid = values::client(name);
    if let Err(why) = &valid {
        section.refuse("client", format!("has the name {name:?}: {why}"), "a client id of 1 to 128 bytes");
    }
    let weight = client.weight("weight");
    let limit = client.table("limit");
    let limit = if limit.is_written() { one_limit(&limit).map(Some) } else { Some(None) };
    Some(ClientPolicy { name: valid.ok()?, weight: weight?, limit: limit? })
}

fn one_limit(section: &Section<'_>) -> Option<Limit> {
    let non_zero = |number: u64| u32::try_from(number).ok().and_then(NonZeroU32::new);
    let rate = section.count("rate").and_then(non_zero);
    let per = section.duration("per");
    let default = rate.map(|rate| rate.to_string());
    let burst = section.derived("burst", default.as_deref(), count).and_then(non_zero);
    Some(Limit { rate: rate?, per: per?, burst: burst? })
}

/// The sources, and the section of each with its topic.
#[expect(clippy::type_complexity, reason = "two views of one list, taken apart at once")]
fn sources<'a>(
    service: &Section<'a>,
    client_from: Option<&[ClientFrom]>,
) -> (Option<Vec<Source>>, Vec<(Section<'a>, Option<String>)>) {
    let sections = service.tables("source", |_| None);
    let by_topic = client_from.is_some_and(|from| from.contains(&ClientFrom::Topic));
    let mut sources = Vec::new();
    let mut topics = Vec::new();
    for section in sections {
        let topic = section.topic("topic");
        sources.push(source(&section, topic.clone(), by_topic));
        topics.push((section, topic));
    }
    (sources.into_iter().collect(), topics)
}

fn source(section: &Section<'_>, topic: Option<String>, by_topic: bool) -> Option<Source> {
    let client = section.optional("client", |text, _| values::client(text));
    let allowed_clients = section.list("allowed_clients", values::client);
    if by_topic && client == Some(None) {
        section.refuse("client", "is missing, but client_from has \"topic\"", "the client id of this topic's records");
        return None;
    }
    if let (Some(Some(client)), Some(Some(allowed))) = (&client, &allowed_clients)
        && !allowed.contains(client)
    {
        section.warn(
            "client",
            format!("is {client:?}, which is not in allowed_clients: records that get it by topic are unknown_client"),
            "one of allowed_clients",
        );
    }
    Some(Source { topic: topic?, client: client?, allowed_clients: allowed_clients? })
}
