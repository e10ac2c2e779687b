//! `watermaster dlq ls`: counts dead letters.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use serde::Serialize;
use watermaster_kafka::ask::AskError;
use watermaster_kafka::dead_letters::{DEFAULT_JOB, DoneState, Job, Letter};

use super::origin::Origin;
use super::{TopicArgs, read_ledger, read_selected, select::SelectArgs};
use crate::cli::{Exit, Failure, OutputArg};
use crate::format::printable;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-ls.txt").trim_end())]
pub struct LsArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// The properties that make a row: one or more, separated by commas
    #[arg(long, value_name = "PROPERTY", value_enum, value_delimiter = ',', default_value = "reason")]
    by: Vec<Property>,
    /// Show only the N rows with the most open dead letters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    top: Option<u64>,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

/// A property of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Property {
    /// The reason for the rejection
    Reason,
    /// The client
    Client,
    /// The source topic
    #[value(alias = "source")]
    Topic,
}

/// Dead letters by state, all of which are `records`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
struct States {
    records: u64,
    open: u64,
    redriven: u64,
    parked: u64,
    closed: u64,
}

impl States {
    fn add(&mut self, state: Option<DoneState>) {
        self.records += 1;
        *match state {
            None => &mut self.open,
            Some(DoneState::Redriven) => &mut self.redriven,
            Some(DoneState::Parked) => &mut self.parked,
            Some(DoneState::Closed) => &mut self.closed,
        } += 1;
    }
}

/// The dead letters of one row. A property that makes no rows is left out.
#[derive(Debug, Default, Serialize)]
struct Group {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(flatten)]
    states: States,
    bytes: u64,
    stubs: u64,
    max_attempt: u64,
    /// Milliseconds since 1970.
    oldest_ms: Option<i64>,
    newest_ms: Option<i64>,
    oldest_open_ms: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Listing {
    service: String,
    topic: String,
    #[serde(flatten)]
    states: States,
    groups: Vec<Group>,
    /// The number of rows that `--top` leaves out.
    more_groups: usize,
}

pub(super) fn run(args: &LsArgs) -> Result<Exit, Failure> {
    let (kafka, service) = args.topic.load()?;
    let (states, groups, more_groups) = (States::default(), Vec::new(), 0);
    let mut listing = Listing { service: service.name.clone(), topic: String::new(), states, groups, more_groups };
    let mut groups: BTreeMap<[Option<String>; 3], Group> = BTreeMap::new();
    let (mut topics, limit) = (Vec::new(), args.select.limit.unwrap_or(u64::MAX));
    for dead_letter in args.topic.dead_letters(&service)? {
        match args.topic.reader(&kafka, dead_letter, &Job::group(&kafka, &service, DEFAULT_JOB)) {
            Ok(mut reader) => {
                topics.push(reader.topic().to_owned());
                let ledger = read_ledger(&kafka, &service, &mut reader)?;
                read_selected(reader, &args.select, |letter, origin| {
                    if listing.states.records == limit {
                        return Ok(false);
                    }
                    let state = ledger.state(letter.partition, letter.offset);
                    listing.states.add(state);
                    add(&mut groups, &args.by, letter, origin, state);
                    Ok(true)
                })?;
            }
            // A redrive makes this topic.
            Err(AskError::MissingTopic { topic }) if args.topic.parked => topics.push(topic),
            Err(error) => return Err(error.into()),
        }
    }
    listing.topic = topics.join(", ");
    listing.groups = groups.into_values().collect();
    listing.groups.sort_by_key(|group| std::cmp::Reverse((group.states.open, group.states.records)));
    let top = args.top.and_then(|top| usize::try_from(top).ok()).unwrap_or(usize::MAX);
    listing.more_groups = listing.groups.len().saturating_sub(top);
    listing.groups.truncate(top);
    args.output.show(&listing, || text(&listing, &args.by, SystemTime::now()));
    Ok(Exit::Done)
}

fn add(
    groups: &mut BTreeMap<[Option<String>; 3], Group>, by: &[Property], letter: &Letter, origin: Option<&Origin>,
    state: Option<DoneState>,
) {
    let key = [Property::Reason, Property::Client, Property::Topic].map(|property| {
        let value = origin.map(|origin| match property {
            Property::Reason => origin.reason.clone(),
            Property::Client => origin.client.clone(),
            Property::Topic => origin.topic.clone(),
        });
        by.contains(&property).then(|| value.unwrap_or_default())
    });
    let group = groups.entry(key.clone()).or_insert_with(|| {
        let [reason, client, source] = key;
        Group { reason, client, source, ..Group::default() }
    });
    group.states.add(state);
    group.bytes += letter.bytes() as u64;
    group.stubs += u64::from(origin.is_some_and(|origin| origin.is_stub));
    group.max_attempt = group.max_attempt.max(origin.map_or(0, |origin| origin.attempt));
    if letter.timestamp_ms >= 0 {
        let time = Some(letter.timestamp_ms);
        group.oldest_ms = group.oldest_ms.into_iter().chain(time).min();
        group.newest_ms = group.newest_ms.max(time);
        if state.is_none() {
            group.oldest_open_ms = group.oldest_open_ms.into_iter().chain(time).min();
        }
    }
}

fn text(listing: &Listing, by: &[Property], now: SystemTime) -> String {
    let Listing { topic, states, groups, more_groups, .. } = listing;
    if groups.is_empty() {
        return format!("{topic}: no dead letter is selected");
    }
    let title = |property: &Property| match property {
        Property::Reason => "reason",
        Property::Client => "client",
        Property::Topic => "source topic",
    };
    let figures = ["open", "redriven", "parked", "closed", "stubs", "attempts", "oldest open"];
    let mut table = crate::format::table(by.iter().map(title).chain(figures), None, |index| index >= by.len());
    for group in groups {
        let name = |property: &Property| match property {
            Property::Reason => or(group.reason.as_deref(), "(no origin)"),
            Property::Client => or(group.client.as_deref(), "-"),
            Property::Topic => or(group.source.as_deref(), "-"),
        };
        let States { open, redriven, parked, closed, .. } = group.states;
        let numbers = [open, redriven, parked, closed, group.stubs, group.max_attempt].map(|number| number.to_string());
        let oldest = group.oldest_open_ms.map_or_else(|| "-".to_owned(), |time| age(now, time));
        table.add_row(by.iter().map(name).chain(numbers).chain([oldest]));
    }
    let more = if *more_groups > 0 { format!("\n{more_groups} more rows") } else { String::new() };
    let States { records, open, redriven, parked, closed } = states;
    format!(
        "{table}{more}\n\n{records} dead letters in {topic}: \
         {open} open, {redriven} redriven, {parked} parked, {closed} closed"
    )
}

/// Returns a text that may be shown, or `default` if it is empty.
fn or(text: Option<&str>, default: &str) -> String {
    match text {
        None | Some("") => default.to_owned(),
        Some(text) => printable(text).into_owned(),
    }
}

/// Writes how long ago a time was, to the second.
pub(super) fn age(now: SystemTime, time_ms: i64) -> String {
    let then = UNIX_EPOCH + Duration::from_millis(u64::try_from(time_ms).unwrap_or(0));
    let age = now.duration_since(then).unwrap_or_default();
    let shown = match age.as_secs() {
        seconds @ 0..3600 => seconds,
        seconds => seconds - seconds % 60,
    };
    format!("{} ago", humantime::format_duration(Duration::from_secs(shown)))
}
