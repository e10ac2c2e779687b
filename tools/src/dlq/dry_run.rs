//! `watermaster dlq redrive --dry-run`: counts, and sends nothing.

use watermaster_kafka::dead_letters::Reader;
use watermaster_settings::Kafka;

use super::origin::Origin;
use super::plan::{Fate, FateRules};
use super::scope::Scope;
use super::tally::RedriveCounts;
use super::{CONNECT_TIMEOUT, DlqError, READ_TIMEOUT, select::SelectArgs};
use crate::cli::{Output, print, print_json};

/// Counts what the job would do to the topic from its position on.
pub(super) fn dry_run(
    kafka: &Kafka, (group, topic): (&str, &str), select: &SelectArgs, plan: &FateRules<'_>, output: Output,
) -> Result<(), DlqError> {
    let (mut counts, mut stubs) = (RedriveCounts::default(), 0_u64);
    let mut reader = Reader::open(kafka, group, topic, CONNECT_TIMEOUT)?;
    let scope = Scope::find(&reader, select, plan.to, reader.committed(CONNECT_TIMEOUT)?)?;
    reader.start(&scope.ranges())?;
    let mut left = select.limit.unwrap_or(u64::MAX);
    while !reader.is_done() && left > 0 {
        let Some(letter) = reader.next(READ_TIMEOUT)? else { continue };
        counts.read += 1;
        let origin = Origin::of(&letter);
        if !scope.select.matches(&letter, origin.as_ref()) {
            continue;
        }
        left -= 1;
        match plan.fate(&letter, origin.as_ref(), None) {
            Fate::Send(_) => counts.redriven += 1,
            Fate::NeedsOriginal => stubs += 1,
            Fate::Park(why) => *counts.parked.entry(why.into()).or_default() += 1,
        }
    }
    match output {
        Output::Json => print_json(&serde_json::json!({ "dry_run": true, "stubs": stubs, "counts": counts })),
        Output::Text => {
            let (redriven, parked) = (counts.redriven, counts.parked_text());
            print(format_args!("would redrive {redriven}, fetch the originals of {stubs} stubs, park {parked}"));
        }
    }
    Ok(())
}
