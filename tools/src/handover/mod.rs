//! `watermaster handover`: hands a service's source topics to the service's own consumers, and takes them back.
//!
//! - `plan`: the offset with which each partition begins
//! - `report`: the result for people and for programs

mod plan;
mod report;

use std::collections::BTreeMap;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use watermaster_core::delivery::Commit;
use watermaster_core::offset_map;
use watermaster_kafka::consumer::group_id;
use watermaster_kafka::handover::{Handover, HandoverError};
use watermaster_kafka::topics::SourcePartition;
use watermaster_settings::Delivery;

use crate::cli::{CONNECT_TIMEOUT, ConfigFile, Exit, Failure, OutputArg, configured};
use plan::{Direction, GroupOffsets, Note};
use report::{HandoverReport, PartitionRow};

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/handover.txt").trim_end())]
#[command(group(ArgGroup::new("direction").required(true).args(["to", "from"])))]
pub struct HandoverArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The service; may be omitted if the configuration has only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Give Watermaster's offsets of the source topics to this consumer group
    #[arg(long, value_name = "GROUP", value_parser = NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Give this consumer group's offsets of the source topics to Watermaster
    #[arg(long, value_name = "GROUP", value_parser = NonEmptyStringValueParser::new())]
    from: Option<String>,
    /// Commit the offsets
    #[arg(long)]
    execute: bool,
    /// Set the taking group back where it is ahead: the records between are done twice
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl From<HandoverError> for Failure {
    fn from(error: HandoverError) -> Failure {
        match error {
            HandoverError::Ask(error) => error.into(),
            other => Failure::stopped(other),
        }
    }
}

/// Carries the command out.
pub fn run(args: &HandoverArgs) -> Result<Exit, Failure> {
    let (kafka, service) = configured(&args.file, args.service.as_deref())?;
    let ours = group_id(&kafka, &service);
    let (direction, theirs) = match (&args.to, &args.from) {
        (Some(to), _) => (Direction::To, to.clone()),
        (None, from) => (Direction::From, from.clone().unwrap_or_default()),
    };
    if theirs == ours {
        return Err(Failure::usage(format_args!("{ours} is the group of Watermaster itself")));
    }
    let (gives, takes) = match direction {
        Direction::To => (&ours, &theirs),
        Direction::From => (&theirs, &ours),
    };
    let topics: Vec<&str> = service.sources.iter().map(|source| source.topic.as_str()).collect();
    let handover = Handover::open(&kafka, takes, &topics, CONNECT_TIMEOUT)?;
    let marks = match direction {
        Direction::To => Some(Handover::open(&kafka, &ours, &topics, CONNECT_TIMEOUT)?),
        Direction::From => None,
    };
    // In this order: members that leave now have committed before.
    for group in [gives, takes] {
        check_at_rest(&handover, group)?;
    }
    let committed = [handover.committed(&ours)?, handover.committed(&theirs)?];
    if committed[usize::from(direction == Direction::From)].is_empty() {
        return Err(Failure::stopped(format_args!(
            "the group {gives} has no offset of any source topic: is this its name?"
        )));
    }
    let bounds = handover.bounds()?;
    let mut steps = Vec::new();
    for (at, topic) in handover.partitions() {
        let [ours, theirs] = committed.each_ref().map(|offsets| offsets.get(&at));
        let position = GroupOffsets {
            ours: ours.map(|(offset, metadata)| (*offset, offset_map::decode(*offset, metadata))),
            theirs: theirs.map(|(offset, _)| *offset),
            bounds: bounds.get(&at).copied().unwrap_or_default(),
        };
        let step = plan::plan(&position, direction, service.policy.map_budget);
        let step = step.map_err(|error| Failure::stopped(format_args!("an offset map does not fit: {error}")))?;
        let twice = handover.count(at, &step.twice)?;
        let offset = |of: Option<&(i64, Vec<u8>)>| of.map(|(offset, _)| *offset);
        let row = PartitionRow::new(topic, at.1, [offset(ours), offset(theirs)], position.bounds.1, &step, twice);
        steps.push((at, step, row));
    }
    let has =
        |note: fn(&Note) -> bool| steps.iter().filter(|(_, step, _)| step.note.as_ref().is_some_and(note)).count();
    let (ahead, beyond_end) = (has(|note| matches!(note, Note::Ahead(_))), has(|note| *note == Note::BeyondEnd));
    let refusal = match (beyond_end, ahead) {
        (1.., _) => Some(format!("{beyond_end} partitions can't be handed over: see their notes")),
        (_, 1..) if !args.force => Some(format!(
            "{takes} is ahead in {ahead} partitions. If its consumers did these records, the handover was done \
             before. If they did not, or if you are in doubt, add --force: the group is set back, and no record is lost"
        )),
        _ => None,
    };
    let mut target_lag = Vec::new();
    if let (Direction::To, Some(group)) = (direction, &service.consumer_group) {
        for target in service.targets() {
            match handover.lag(group, target) {
                Ok(lag) => target_lag.push((target.to_owned(), lag)),
                // The offsets do not depend on it.
                Err(error) => eprintln!("warning: the lag of {group} is not known: {error}"),
            }
        }
    }
    let commits = commits(steps.iter().map(|(at, step, _)| (*at, step.offset, step.commit.clone())));
    if let Some(marks) = &marks {
        marks.check_commit()?;
    }
    let executes = args.execute && refusal.is_none();
    match executes {
        _ if commits.is_empty() => {}
        true => handover.commit(&commits)?,
        false => handover.check_commit()?,
    }
    let report = HandoverReport {
        service: &service.name,
        watermaster: &ours,
        group: &theirs,
        to_group: direction == Direction::To,
        executed: executes,
        commits: commits.len(),
        twice: steps.iter().map(|(_, _, row)| row.twice).sum(),
        twice_is_upper_bound: ahead > 0,
        left: steps.iter().map(|(_, _, row)| row.left).sum(),
        may_repeat_a_round: direction == Direction::To && kafka.delivery == Delivery::AtLeastOnce,
        consumer_group: service.consumer_group.as_deref(),
        target_lag,
        partitions: steps.into_iter().map(|(_, _, row)| row).collect(),
    };
    args.output.show(&report, || report.text(refusal.is_some()));
    if let Some(refusal) = refusal {
        return Err(Failure::stopped(refusal));
    }
    if executes {
        check_at_rest(&handover, gives)?;
        let before = &committed[usize::from(direction == Direction::From)];
        if handover.committed(gives)? != *before {
            let problem = "was used during the handover: stop its members, and run this again";
            return Err(Failure::stopped(format_args!("the group {gives} {problem}")));
        }
        if let Some(marks) = marks {
            mark(&marks, before)?;
        }
    }
    Ok(Exit::Done)
}

/// Marks Watermaster's offsets: an instance that starts by itself stops, and repeats no record that the service's own
/// consumers have done.
fn mark(ours: &Handover, committed: &BTreeMap<SourcePartition, (i64, Vec<u8>)>) -> Result<(), HandoverError> {
    let marked =
        |(at, (offset, metadata)): (&SourcePartition, &(i64, Vec<u8>))| (*at, *offset, offset_map::hand_over(metadata));
    let commits = commits(committed.iter().map(marked));
    if commits.is_empty() { Ok(()) } else { ours.commit(&commits) }
}

/// Returns the commits of those offsets that have metadata to commit.
fn commits(offsets: impl Iterator<Item = (SourcePartition, i64, Option<String>)>) -> Vec<(SourcePartition, Commit)> {
    let commit = |(partition, (at, offset, metadata)): (u32, (_, _, Option<String>))| {
        Some((at, Commit { partition, offset, metadata: metadata? }))
    };
    (0..).zip(offsets).filter_map(commit).collect()
}

fn check_at_rest(handover: &Handover, group: &str) -> Result<(), Failure> {
    let members = handover.members(group)?;
    match members.is_empty() {
        true => Ok(()),
        false => Err(Failure::stopped(format_args!(
            "the group {group} has members: {}. Stop them, and run this again; a killed one leaves after its \
             session.timeout.ms, Watermaster's by default after 10 s",
            members.join(", ")
        ))),
    }
}
