//! `watermaster dlq close`: marks dead letters as closed.

use clap::Args;
use watermaster_kafka::dead_letters::Job;

use super::plan::Destination;
use super::redrive::{Redrive, Work, new_id};
use super::scope::JobOptions;
use super::tally::RedriveCounts;
use super::{TopicArgs, dry_run, select::SelectArgs};
use crate::cli::{Exit, Failure, OutputArg};

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-close.txt").trim_end())]
pub struct CloseArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// Close all open dead letters of the topic, in place of a selection
    #[arg(long, conflicts_with = "SelectArgs")]
    all: bool,
    /// Count what would be closed, and close nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

pub(super) fn run(args: &CloseArgs) -> Result<Exit, Failure> {
    if !args.all && args.select.is_everything() && args.select.limit.is_none() {
        return Err(Failure::usage(
            "nothing is selected: add a selection, such as --where reason=anonymous, or --all for all that are open",
        ));
    }
    let (kafka, service, with_ledger) = args.topic.load_for_job()?;
    let id = format!("close-{}", new_id());
    let reader = args.topic.reader(&kafka, args.topic.dead_letter(&service)?, &Job::group(&kafka, &service, &id))?;
    let topic = reader.topic().to_owned();
    let options = JobOptions { id, select: args.select.clone(), to: Destination::Source, again: false };
    let report = |counts: &RedriveCounts| {
        let RedriveCounts { closed, skipped, read, .. } = counts;
        let json = serde_json::json!({
            "service": service.name, "topic": topic, "dry_run": args.dry_run,
            "closed": closed, "skipped": skipped, "read": read,
        });
        args.output.show(&json, || {
            let done = if args.dry_run { "would be closed" } else { "closed" };
            format!(
                "{closed} dead letters {done} in {topic}; {read} read, \
                 {skipped} of them skipped: redriven, parked or closed already"
            )
        });
    };
    if args.dry_run {
        let (counts, _) = dry_run::count(&kafka, &service, reader, &options, None)?;
        report(&counts);
        return Ok(Exit::Done);
    }
    let mut job = Redrive::new(&kafka, &service, &with_ledger[0], reader, options, Work::Close)?;
    job.begin()?;
    let result = job.run();
    report(&job.counts);
    match result? {
        true => Ok(Exit::Done),
        false => Err(Failure::stopped("interrupted; the same command goes on with it")),
    }
}
