//! `watermaster dlq close`: marks dead letters as closed.

use clap::Args;
use watermaster_kafka::dead_letters::Job;

use super::plan::Destination;
use super::redrive::{Redrive, Work, new_id};
use super::scope::JobOptions;
use super::{DlqError, TopicArgs, select::SelectArgs};
use crate::cli::{Output, OutputArg, print, print_json};

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-close.txt").trim_end())]
pub struct CloseArgs {
    #[command(flatten)]
    topic: TopicArgs,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

pub(super) fn run(args: &CloseArgs) -> Result<(), DlqError> {
    let (kafka, service) = args.topic.load()?;
    let id = format!("close-{}", new_id());
    let reader = args.topic.reader(&kafka, args.topic.dead_letter(&service)?, &Job::group(&kafka, &service, &id))?;
    let topic = reader.topic().to_owned();
    let options = JobOptions { id, select: args.select.clone(), to: Destination::Source, again: false };
    let mut job = Redrive::new(&kafka, &service, reader, options, Work::Close)?;
    let result = job.run();
    let (closed, skipped, read) = (job.counts.closed, job.counts.skipped, job.counts.read);
    match args.output.format {
        Output::Json => print_json(&serde_json::json!({
            "service": service.name, "topic": topic, "closed": closed, "skipped": skipped, "read": read,
        })),
        Output::Text => print(format_args!(
            "{closed} dead letters closed in {topic}; {read} read, \
             {skipped} of them skipped: redriven, parked or closed already"
        )),
    }
    match result? {
        true => Ok(()),
        false => Err(DlqError::Stopped("interrupted; the same command goes on with it".to_owned())),
    }
}
