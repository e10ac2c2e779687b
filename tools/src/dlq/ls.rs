//! `watermaster dlq ls`: counts dead letters.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use watermaster_kafka::dead_letters::Letter;
use watermaster_kafka::load::OpenError;

use super::origin::Origin;
use super::{DlqError, TopicArgs, read_selected, select::SelectArgs};
use crate::cli::{Output, OutputArg, print, print_json};
use crate::format::printable;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-ls.txt").trim_end())]
pub struct LsArgs {
    #[command(flatten)]
    topic: TopicArgs,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

/// The dead letters with one reason, client and source topic.
#[derive(Debug, Default, Serialize)]
struct Group {
    reason: String,
    client: String,
    source: String,
    records: u64,
    bytes: u64,
    stubs: u64,
    max_attempt: u64,
    /// Milliseconds since 1970.
    oldest_ms: Option<i64>,
    newest_ms: Option<i64>,
}

#[derive(Debug, Serialize)]
struct Listing {
    service: String,
    topic: String,
    records: u64,
    groups: Vec<Group>,
}

pub(super) fn run(args: &LsArgs) -> Result<(), DlqError> {
    let (kafka, service) = args.topic.load()?;
    let topic = args.topic.topic(&service);
    let mut groups: BTreeMap<(String, String, String), Group> = BTreeMap::new();
    let read = read_selected(&kafka, &topic, &args.select, |letter, origin| {
        add(&mut groups, letter, origin);
        Ok(true)
    });
    match read {
        // A redrive makes this topic.
        Err(DlqError::Open(OpenError::MissingTopic { .. })) if args.topic.parked => {}
        other => other?,
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.records));
    let records = groups.iter().map(|group| group.records).sum();
    let listing = Listing { service: service.name, topic, records, groups };
    match args.output.format {
        Output::Json => print_json(&listing),
        Output::Text => print(text(&listing, SystemTime::now())),
    }
    Ok(())
}

fn add(groups: &mut BTreeMap<(String, String, String), Group>, letter: &Letter, origin: Option<&Origin>) {
    let facts = origin.map(|origin| (origin.reason.clone(), origin.client.clone(), origin.topic.clone()));
    let key = facts.unwrap_or_default();
    let group = groups.entry(key.clone()).or_insert_with(|| {
        let (reason, client, source) = key;
        Group { reason, client, source, ..Group::default() }
    });
    group.records += 1;
    group.bytes += letter.bytes() as u64;
    group.stubs += u64::from(origin.is_some_and(|origin| origin.is_stub));
    group.max_attempt = group.max_attempt.max(origin.map_or(0, |origin| origin.attempt));
    if letter.timestamp_ms >= 0 {
        let time = letter.timestamp_ms;
        group.oldest_ms = Some(group.oldest_ms.map_or(time, |oldest| oldest.min(time)));
        group.newest_ms = Some(group.newest_ms.map_or(time, |newest| newest.max(time)));
    }
}

fn text(listing: &Listing, now: SystemTime) -> String {
    let Listing { topic, records, groups, .. } = listing;
    if groups.is_empty() {
        return format!("{topic}: no dead letter is selected");
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["reason", "client", "source topic", "records", "stubs", "attempts", "oldest", "newest"]);
    for column in 3..8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let or =
        |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { printable(text).into_owned() };
    for group in groups {
        let age = |time: Option<i64>| time.map_or_else(|| "-".to_owned(), |time| age(now, time));
        table.add_row([
            or(&group.reason, "(no origin)"),
            or(&group.client, "-"),
            or(&group.source, "-"),
            group.records.to_string(),
            group.stubs.to_string(),
            group.max_attempt.to_string(),
            age(group.oldest_ms),
            age(group.newest_ms),
        ]);
    }
    format!("{table}\n\n{records} dead letters in {topic}")
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
