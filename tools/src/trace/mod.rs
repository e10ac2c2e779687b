//! `watermaster trace`: reads the source topics of a service once, and records when which client sent how much.
//!
//! The command reads without a group and commits nothing, so a running Watermaster does not notice it.

mod merge;

use std::io::BufWriter;
use std::{fs::File, path::Path, path::PathBuf};

use clap::Args;
use serde_json::json;
use watermaster_api::rfc3339;
use watermaster_kafka::source_log::SourceLog;
use watermaster_settings::ClientFrom;

use crate::cli::{CONNECT_TIMEOUT, ConfigFile, Exit, Failure, OutputArg, configured};
use crate::moment::moment;
use crate::signals;
use crate::trace_file::{Contents, TraceError, TraceWriter, TracedPartition};
use merge::Merge;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/trace.txt").trim_end())]
pub struct TraceArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The service; may be omitted if the configuration has only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// The first record: 2026-11-20T00:00Z, 2026-11-20, or 24h for a day before now; the first that is left by default
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<i64>,
    /// The end of the trace, likewise; the last record that the topics have now by default
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<i64>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write hashes in place of client ids
    #[arg(long)]
    hash_ids: bool,
    #[command(flatten)]
    output: OutputArg,
}

/// Records a trace and prints facts about it.
pub fn run(args: &TraceArgs) -> Result<Exit, Failure> {
    let contents = record(args)?;
    let bytes = std::fs::metadata(&args.out).map_or(0, |file| file.len());
    args.output.show(&as_json(bytes, &contents), || text(&args.out, bytes, &contents));
    Ok(Exit::Done)
}

fn unwritable(path: &Path, error: &TraceError) -> Failure {
    Failure::stopped(format_args!("{} can't be written: {error}", path.display()))
}

fn record(args: &TraceArgs) -> Result<Contents, Failure> {
    let (kafka, service) = configured(&args.file, args.service.as_deref())?;
    let (from, to) = (args.from, args.to);
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Failure::usage("--from is not before --to"));
    }
    let wrong = |problem: &str| Failure::config(format_args!("service {}: {problem}", service.name));
    let mut places = service.client_from.iter().chain(&service.group_from);
    if places.any(|place| matches!(place, ClientFrom::Schema(..))) {
        return Err(wrong("client_from has avro or protobuf: trace does not ask a schema registry"));
    }
    if service.sources.is_empty() {
        return Err(wrong("no topic matches the patterns of its sources"));
    }
    let unwritable = |error: TraceError| unwritable(&args.out, &error);
    // A file that can't be written is better found out now than after minutes. A former trace in it stays until the
    // brokers have answered.
    let file = File::options().write(true).create(true).truncate(false).open(&args.out);
    let file = file.map_err(|error| unwritable(error.into()))?;
    let topics: Vec<&str> = service.sources.iter().map(|source| source.topic.as_str()).collect();
    let log = SourceLog::open(&kafka, &topics, (from, to), CONNECT_TIMEOUT)?;
    file.set_len(0).map_err(|error| unwritable(error.into()))?;
    let contents = Contents {
        service: service.name.clone(),
        hashed_ids: args.hash_ids,
        partitions: log.partitions().iter().map(traced).collect(),
        ..Contents::default()
    };
    let writer = TraceWriter::new(BufWriter::new(file), contents).map_err(unwritable)?;
    let interrupts = signals::listen()?;
    let written = Merge::new(&log, &service, from.unwrap_or(0), writer).write(&interrupts, &args.out)?;
    let (_, contents) = written.finish().map_err(unwritable)?;
    Ok(contents)
}

fn traced(log: &watermaster_kafka::source_log::LogPartition) -> TracedPartition {
    TracedPartition {
        topic: log.topic.clone(),
        number: log.number,
        first_offset: log.start,
        ..TracedPartition::default()
    }
}

fn text(path: &Path, bytes: u64, contents: &Contents) -> String {
    let records = contents.records();
    if records == 0 {
        return format!("{}: no record in {} partitions in this time", path.display(), contents.partitions.len());
    }
    let mut lines = vec![format!("{}: {}", path.display(), contents.extent())];
    let clock = match contents.sum(|partition| partition.append_time.into()) {
        all if all == contents.partitions.len() as u64 => "brokers (LogAppendTime)",
        0 => "producers (CreateTime)",
        _ => "producers and brokers, by topic",
    };
    lines.push(format!("{:.1} bytes a record; times are those of the {clock}", bytes as f64 / records as f64));
    let notes = [
        (contents.retried, "records had been rejected before (header throttle-attempt)"),
        (
            contents.sum(|at| at.late),
            "records are more than 1 s older than the record before them: they count as that one's time",
        ),
        (contents.sum(|at| at.gaps), "offsets hold no record: removed, or markers of transactions"),
    ];
    lines.extend(notes.iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("note: {count} {text}")));
    lines.join("\n")
}

fn as_json(bytes: u64, contents: &Contents) -> serde_json::Value {
    json!({
        "service": contents.service, "records": contents.records(), "bytes": bytes,
        "from": rfc3339(contents.first_ms), "to": rfc3339(contents.last_ms),
        "clients": contents.clients.len(), "partitions": contents.partitions, "retried": contents.retried,
        "late": contents.sum(|at| at.late), "gaps": contents.sum(|at| at.gaps), "hashed_ids": contents.hashed_ids,
    })
}
