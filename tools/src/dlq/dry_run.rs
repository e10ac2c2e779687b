//! `--dry-run` of `watermaster dlq redrive` and `close`: counts, and writes nothing.

use watermaster_kafka::dead_letters::{Job, Positions, Reader};
use watermaster_settings::{Kafka, Service};

use super::origin::Origin;
use super::plan::{Fate, FateRules};
use super::scope::{JobOptions, Scope};
use super::tally::RedriveCounts;
use super::{CONNECT_TIMEOUT, READ_TIMEOUT, read_ledger};
use crate::cli::{Exit, Failure, OutputArg};

/// Counts what a redrive would do from its position on.
pub(super) fn redrive(
    kafka: &Kafka, service: &Service, reader: Reader, options: &JobOptions, plan: &FateRules<'_>, output: OutputArg,
) -> Result<Exit, Failure> {
    let (counts, stubs) = count(kafka, service, reader, options, Some(plan))?;
    output.show(&serde_json::json!({ "dry_run": true, "stubs": stubs, "counts": counts }), || {
        let (redriven, parked, skipped) = (counts.redriven, counts.parked_text(), counts.skipped);
        format!(
            "would redrive {redriven}, fetch the originals of {stubs} stubs, park {parked}; \
             {skipped} are redriven, parked or closed already"
        )
    });
    Ok(Exit::Done)
}

/// Counts what a job would do; without a plan, it closes the selected dead letters. Returns the stubs, whose fate
/// depends on their originals, beside the other counts.
pub(super) fn count(
    kafka: &Kafka, service: &Service, mut reader: Reader, options: &JobOptions, plan: Option<&FateRules<'_>>,
) -> Result<(RedriveCounts, u64), Failure> {
    let (mut counts, mut stubs) = (RedriveCounts::default(), 0_u64);
    let ledger = read_ledger(kafka, service, &mut reader)?;
    let group = Job::group(kafka, service, &options.id);
    let committed = match plan {
        Some(_) => reader.positions(&group, true, CONNECT_TIMEOUT)?,
        None => Positions::new(),
    };
    let scope = Scope::find(&reader, &ledger, options, committed)?;
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
        match plan.map(|plan| plan.fate(&letter, origin.as_ref(), None)) {
            None => counts.closed += 1,
            Some(Fate::Send(_)) => counts.redriven += 1,
            Some(Fate::NeedsOriginal) => stubs += 1,
            Some(Fate::Park(why)) => *counts.parked.entry(why.into()).or_default() += 1,
        }
    }
    Ok((counts, stubs))
}
