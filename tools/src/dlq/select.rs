//! The dead letters that a command is about.

use std::ops::Range;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use watermaster_core::reason::Reason;
use watermaster_kafka::dead_letters::{Letter, Ranges, Reader};

use super::origin::Origin;
use crate::{cli::Failure, moment::moment};

/// Options that select dead letters.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Selection")]
pub struct SelectArgs {
    /// Only dead letters with this reason, client or source topic (KEY=VALUE, separated by commas or repeated). Values
    /// of one key are alternatives; all keys must match
    #[arg(long = "where", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = condition)]
    conditions: Vec<Condition>,
    /// Only records of this time or later: a time (2026-11-20T08:00:00Z, 2026-11-20) or an age (2h, 30m)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<i64>,
    /// Only records of before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<i64>,
    /// Only this partition of the dead-letter topic
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Only these offsets of each partition: FROM..TO, without TO itself; each may be left out
    #[arg(long, value_name = "FROM..TO", value_parser = offsets)]
    offsets: Option<Range<i64>>,
    /// Stop after this many dead letters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip)]
    pub limit: Option<u64>,
}

/// One `KEY=VALUE` of `--where`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Condition {
    Reason(String),
    Client(String),
    Topic(String),
}

/// A text is no condition.
#[derive(Debug, Clone, thiserror::Error)]
enum ConditionError {
    #[error("allowed: reason=…, client=…, topic=…")]
    Form,
    #[error("there is no reason {0:?}; allowed: {names}", names = Reason::NAMES.join(", "))]
    Reason(String),
    #[error("there is no key {0:?}; allowed: reason, client, topic")]
    Key(String),
}

fn condition(text: &str) -> Result<Condition, ConditionError> {
    let (key, value) = text.split_once('=').ok_or(ConditionError::Form)?;
    let value = value.to_owned();
    match key {
        // Other programs' reasons are names of classes.
        "reason" if Reason::NAMES.contains(&&*value) || value.contains(['.', ' ']) => Ok(Condition::Reason(value)),
        "reason" => Err(ConditionError::Reason(value)),
        "client" => Ok(Condition::Client(value)),
        "topic" => Ok(Condition::Topic(value)),
        other => Err(ConditionError::Key(other.to_owned())),
    }
}

fn offsets(text: &str) -> Result<Range<i64>, &'static str> {
    const ALLOWED: &str = "allowed: FROM..TO with whole numbers, FROM below TO, such as 100..200, 100.. or ..200";
    let (from, to) = text.split_once("..").ok_or(ALLOWED)?;
    let number = |text: &str, default| match text {
        "" => Ok(default),
        text => text.parse::<i64>().map_err(|_| ALLOWED),
    };
    let range = number(from, 0)?..number(to, i64::MAX)?;
    if range.start < 0 || range.is_empty() { Err(ALLOWED) } else { Ok(range) }
}

impl SelectArgs {
    /// Returns whether a dead letter is selected. One without an origin is, unless a condition asks for it.
    pub fn matches(&self, letter: &Letter, origin: Option<&Origin>) -> bool {
        let in_time = self.since.is_none_or(|since| letter.timestamp_ms >= since)
            && self.until.is_none_or(|until| letter.timestamp_ms < until);
        in_time && self.meets(origin)
    }

    fn meets(&self, origin: Option<&Origin>) -> bool {
        let mut met = [None; 3];
        for condition in &self.conditions {
            let (key, value, found) = match condition {
                Condition::Reason(value) => (0, value, origin.map(|origin| &origin.reason)),
                Condition::Client(value) => (1, value, origin.map(|origin| &origin.client)),
                Condition::Topic(value) => (2, value, origin.map(|origin| &origin.topic)),
            };
            *met[key].get_or_insert(false) |= found == Some(value);
        }
        met.into_iter().all(|met| met != Some(false))
    }

    /// Returns the offsets that have to be read: those that exist now, without those that are surely not selected.
    ///
    /// # Errors
    /// No broker answers in time, or no dead letter can ever be selected.
    pub fn ranges(&self, reader: &Reader, timeout: Duration) -> Result<Ranges, Failure> {
        if self.since.zip(self.until).is_some_and(|(since, until)| since >= until) {
            return Err(Failure::usage("--since is not before --until: this selects no dead letter"));
        }
        let mut ranges = reader.bounds(timeout)?;
        if let Some(only) = self.partition.filter(|only| !ranges.contains_key(only)) {
            let known: Vec<String> = ranges.keys().map(i32::to_string).collect();
            let known = known.join(", ");
            return Err(Failure::usage(format_args!("--partition {only}: the partitions with a leader are {known}")));
        }
        ranges.retain(|partition, _| self.partition.is_none_or(|only| only == *partition));
        if let Some(offsets) = &self.offsets {
            for range in ranges.values_mut() {
                *range = range.start.max(offsets.start)..range.end.min(offsets.end);
            }
        }
        if let Some(since) = self.since {
            // All records before the first one of that time are older.
            let first = reader.first_since(since, timeout)?;
            for (partition, range) in &mut ranges {
                range.start = range.start.max(first.get(partition).copied().unwrap_or(range.end));
            }
        }
        Ok(ranges)
    }

    /// Returns whether all dead letters are selected, except for a limit.
    pub fn is_everything(&self) -> bool {
        let SelectArgs { conditions, since, until, partition, offsets, limit: _ } = self;
        conditions.is_empty() && since.or(*until).is_none() && partition.is_none() && offsets.is_none()
    }

    /// Returns whether this selection, of a command that goes on with a job, may be the one that the job was begun
    /// with: each option may be left out. An age means another time by now.
    pub fn continues(&self, begun: &SelectArgs) -> bool {
        (self.conditions.is_empty() || self.conditions == begun.conditions)
            && (self.since.is_none() || begun.since.is_some())
            && (self.until.is_none() || begun.until.is_some())
            && (self.partition.is_none() || self.partition == begun.partition)
            && (self.offsets.is_none() || self.offsets == begun.offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(reason: &str, client: &str, topic: &str) -> Origin {
        Origin {
            writer: super::super::origin::Writer::Watermaster,
            topic: topic.to_owned(),
            partition: 0,
            offset: 0,
            timestamp_ms: Some(0),
            reason: reason.to_owned(),
            client: client.to_owned(),
            attempt: 1,
            is_stub: false,
        }
    }

    fn select(conditions: &[&str]) -> SelectArgs {
        let conditions = conditions.iter().map(|text| condition(text).unwrap()).collect();
        SelectArgs { conditions, since: None, until: None, partition: None, offsets: None, limit: None }
    }

    #[test]
    fn values_of_one_key_are_alternatives_and_all_keys_must_match() {
        let letter = origin("expired", "a", "loans");
        let matches = |conditions: &[&str]| select(conditions).meets(Some(&letter));
        assert!(matches(&[]));
        assert!(matches(&["reason=queue_full", "reason=expired"]));
        assert!(matches(&["reason=expired", "client=a", "topic=loans"]));
        assert!(!matches(&["reason=expired", "client=b"]));
        assert!(!matches(&["topic=cards"]));
        assert!(select(&[]).meets(None));
        assert!(!select(&["client=a"]).meets(None));
    }

    #[test]
    fn mistakes_are_named_with_the_allowed_values() {
        for (text, expected) in [
            ("reason", "allowed: reason=…, client=…, topic=…"),
            ("reason=late", "there is no reason \"late\"; allowed: anonymous, unknown_client,"),
            ("colour=red", "there is no key \"colour\"; allowed: reason, client, topic"),
        ] {
            let error = condition(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for text in ["", "5", "9..5", "a..b", "-1..3"] {
            assert!(offsets(text).is_err(), "{text}");
        }
        assert_eq!(offsets("5.."), Ok(5..i64::MAX));
        assert_eq!(offsets("..9"), Ok(0..9));
    }
}
