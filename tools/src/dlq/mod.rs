//! `watermaster dlq`: lists, shows, exports, sends again and closes the dead letters of a service.
//!
//! - `origin`: where a dead letter came from; `select`: the dead letters that a command is about
//! - `ls`, `show`, `export`: read them
//! - `plan`: the fate of each dead letter in a redrive
//! - `redrive`: the job that carries it out, with its `scope`, `pace` and `tally`; `dry_run`
//! - `close`: a job that only writes in the ledger that they are done

mod close;
mod dry_run;
mod export;
mod ls;
mod origin;
mod pace;
mod plan;
mod redrive;
mod scope;
mod select;
mod show;
mod tally;

use std::time::Duration;

use clap::{Args, Subcommand};
use watermaster_kafka::ask::AskError;
use watermaster_kafka::dead_letters::{DEFAULT_JOB, Job, Ledger, Letter, Ranges, Reader};
use watermaster_settings::{Kafka, Service};

use crate::cli::{CONNECT_TIMEOUT, ConfigFile, Exit, Failure, configured, service_of};
use crate::progress::OffsetProgress;
use origin::Origin;
use select::SelectArgs;

/// The longest wait for the next record before other conditions are checked.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// The group of clients that commit nothing. librdkafka requires one; it is never joined.
const READING_GROUP: &str = "watermaster-dlq";

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq.txt").trim_end())]
pub struct DlqArgs {
    #[command(subcommand)]
    command: DlqCommand,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// Count the dead letters that are open, redriven, parked and closed, by reason, client or source topic
    Ls(ls::LsArgs),
    /// Print one dead letter: its origin, its headers and, if asked for, its payload
    Show(show::ShowArgs),
    /// Write dead letters to stdout as lines of JSON
    Export(export::ExportArgs),
    /// Send dead letters back to their source topics, or to the target, exactly once
    Redrive(redrive::RedriveArgs),
    /// Mark dead letters as closed: they need no redrive
    Close(close::CloseArgs),
}

/// Options that name the topic.
#[derive(Debug, Args)]
struct TopicArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The service; may be omitted if the configuration has only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// The dead-letter topic, if sources of the service have some of their own. Only ls takes all of them without it
    #[arg(long, value_name = "TOPIC")]
    dead_letter: Option<String>,
    /// Read the topic of parked dead letters (<dead_letter>.parked)
    #[arg(long)]
    parked: bool,
}

/// Carries the command out.
pub fn run(args: &DlqArgs) -> Result<Exit, Failure> {
    match &args.command {
        DlqCommand::Ls(args) => ls::run(args),
        DlqCommand::Show(args) => show::run(args),
        DlqCommand::Export(args) => export::run(args),
        DlqCommand::Redrive(args) => redrive::run(args),
        DlqCommand::Close(args) => close::run(args),
    }
}

impl TopicArgs {
    /// Reads the configuration; the sources of the service include the topics that match its patterns now.
    fn load(&self) -> Result<(Kafka, Service), Failure> {
        configured(&self.file, self.service.as_deref())
    }

    /// Reads the configuration for a job, with all services that have the ledger of this one, in the order of the file.
    /// Jobs of all of them fence each other by the name of the first, or one would write over what another has done.
    fn load_for_job(&self) -> Result<(Kafka, Service, Vec<Service>), Failure> {
        let settings = self.file.load()?.settings;
        let mut with_ledger = settings.services.clone();
        let (kafka, service) = service_of(settings, self.service.as_deref())?;
        with_ledger.retain(|other| other.ledger() == service.ledger());
        Ok((kafka, service, with_ledger))
    }

    /// Returns the dead-letter topics that the options name.
    fn dead_letters<'s>(&self, service: &'s Service) -> Result<Vec<&'s str>, Failure> {
        let mut topics = service.dead_letters();
        let all = topics.join(", ");
        topics.retain(|topic| self.dead_letter.as_ref().is_none_or(|only| only == topic));
        if topics.is_empty() {
            return Err(Failure::usage(format_args!("--dead-letter: allowed for the service {}: {all}", service.name)));
        }
        Ok(topics)
    }

    /// Returns the only dead-letter topic that the options name.
    fn dead_letter<'s>(&self, service: &'s Service) -> Result<&'s str, Failure> {
        match self.dead_letters(service)?[..] {
            [only] => Ok(only),
            ref all => {
                let (name, all) = (&service.name, all.join(", "));
                Err(Failure::usage(format_args!("the service {name} has several: add --dead-letter with one of {all}")))
            }
        }
    }

    /// Makes a client that reads a dead-letter topic, or that of its parked ones. It may read the offsets of `group`.
    fn reader(&self, kafka: &Kafka, dead_letter: &str, group: &str) -> Result<Reader, AskError> {
        let topic = if self.parked { Service::parked(dead_letter) } else { dead_letter.to_owned() };
        Reader::open(kafka, group, &topic, CONNECT_TIMEOUT)
    }
}

/// Reads the ledger for the topic of `reader`, without what the job `default` of former versions has passed. A ledger
/// that compaction has not reached yet may take longer than any one answer.
fn load_ledger(service: &Service, reader: &mut Reader) -> Result<Ledger, AskError> {
    let mut ledger = Ledger::new(service, reader);
    loop {
        let before = ledger.read_to();
        match ledger.load(reader, CONNECT_TIMEOUT) {
            Ok(()) => return Ok(ledger),
            Err(error) if error.is_silence() && ledger.read_to() > before => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads the ledger for the topic of `reader`.
fn read_ledger(kafka: &Kafka, service: &Service, reader: &mut Reader) -> Result<Ledger, AskError> {
    let mut ledger = load_ledger(service, reader)?;
    let default = reader.positions(&Job::group(kafka, service, DEFAULT_JOB), true, CONNECT_TIMEOUT)?;
    ledger.pass(&default, &reader.bounds(CONNECT_TIMEOUT)?);
    Ok(ledger)
}

/// Returns the number of offsets in these ranges.
fn total(ranges: &Ranges) -> u64 {
    ranges.values().map(|range| u64::try_from(range.end - range.start).unwrap_or(0)).sum()
}

/// Reads the selected dead letters until `visit` returns false.
fn read_selected(
    mut reader: Reader, select: &SelectArgs, mut visit: impl FnMut(&Letter, Option<&Origin>) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let ranges = select.ranges(&reader, CONNECT_TIMEOUT)?;
    let progress = OffsetProgress::new("read", total(&ranges));
    reader.start(&ranges)?;
    let mut left = select.limit.unwrap_or(u64::MAX);
    let mut read = 0;
    while !reader.is_done() && left > 0 {
        let Some(letter) = reader.next(READ_TIMEOUT)? else { continue };
        read += 1;
        progress.set(read, "");
        let origin = Origin::of(&letter);
        if select.matches(&letter, origin.as_ref()) {
            left -= 1;
            if !visit(&letter, origin.as_ref())? {
                break;
            }
        }
    }
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_services_with_one_ledger_fence_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let service = |(name, dead_letter): (&str, &str)| {
            format!(
                "[[service]]\nname = {name:?}\ntarget = \"{name}.target\"\ndead_letter = {dead_letter:?}\n\
                 capacity = 10\n[[service.source]]\ntopic = {name:?}\n"
            )
        };
        let services = [("a", "dead"), ("b", "dead"), ("c", "rejected")].map(service);
        std::fs::write(file.path(), services.concat()).unwrap();
        let with_ledger = |name: &str| {
            let (file, service) = (ConfigFile { paths: vec![file.path().to_owned()] }, Some(name.to_owned()));
            let topic = TopicArgs { file, service, dead_letter: None, parked: false };
            let (_, service, with_ledger) = topic.load_for_job().unwrap();
            let names: Vec<String> = with_ledger.into_iter().map(|service| service.name).collect();
            format!("{}: {}", service.name, names.join(" "))
        };
        assert_eq!(["a", "b", "c"].map(with_ledger), ["a: a b", "b: a b", "c: c"]);
    }
}
