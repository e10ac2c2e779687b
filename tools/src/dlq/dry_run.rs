//! `watermaster dlq redrive --dry-run`: counts, and sends nothing.

use watermaster_kafka::dead_letters::Reader;
use watermaster_settings::{Kafka, Service};

use super::origin::Origin;
use super::plan::{Fate, FateRules};
use super::scope::{JobOptions, Scope};
use super::tally::RedriveCounts;
use super::{CONNECT_TIMEOUT, DlqError, READ_TIMEOUT, read_ledger};
use crate::cli::{Output, print, print_json};

/// Counts what the job would do from its position on.
pub(super) fn dry_run(
    kafka: &Kafka, service: &Service, mut reader: Reader, options: &JobOptions, plan: &FateRules<'_>, output: Output,
) -> Result<(), DlqError> {
    let (mut counts, mut stubs) = (RedriveCounts::default(), 0_u64);
    let ledger = read_ledger(kafka, service, &mut reader)?;
    let scope = Scope::find(&reader, &ledger, options, reader.committed(CONNECT_TIMEOUT)?)?;
    reader.start(&scope.ranges())?;
    let mut left = scope.select.limit.unwrap_or(u64::MAX);
    while !reader.is_done() && left > 0 {
        let Some(letter) = reader.next(READ_TIMEOUT)? else { continue };
        counts.read += 1;
        let origin = Origin::of(&letter);
        if !scope.select.matches(&letter, origin.as_ref()) {
            continue;
        }
        if !scope.again && ledger.state(letter.partition, letter.offset).is_some() {
            counts.skipped += 1;
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
            let skipped = counts.skipped;
            print(format_args!(
                "would redrive {redriven}, fetch the originals of {stubs} stubs, park {parked}; \
                 {skipped} are redriven, parked or closed already"
            ));
        }
    }
    Ok(())
}
