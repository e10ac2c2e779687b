//! `watermaster dlq redrive`: a job that sends dead letters again.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use watermaster_kafka::dead_letters::ensure_parking;
use watermaster_kafka::dead_letters::{DEFAULT_JOB, Job, JobError, Letter, Originals, Outgoing, Positions, Reader};
use watermaster_kafka::{headers, load::OpenError, load::find_topics};
use watermaster_settings::Service;

use super::dry_run::dry_run;
use super::origin::Origin;
use super::pace::Pace;
use super::plan::{Destination, Fate, FateRules, Parked};
use super::progress::{OffsetProgress, total};
use super::scope::Scope;
use super::tally::{BrokerWait, RedriveCounts};
use super::{CONNECT_TIMEOUT, DlqError, READ_TIMEOUT, TopicArgs, select::SelectArgs};
use crate::cli::{Output, OutputArg, print, print_json};
use crate::signals::{self, Interrupts};

/// The most records and bytes of one transaction.
const MAX_RECORDS: usize = 2_000;
const MAX_BYTES: usize = 4 << 20;
/// The number of times that another process may take the job over.
const MAX_FENCES: u32 = 3;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-redrive.txt").trim_end())]
pub struct RedriveArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// The topic to which a dead letter goes
    #[arg(long, value_enum, default_value = "source")]
    to: Destination,
    /// Count what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Send at most this many records a second
    #[arg(long, value_name = "N")]
    rate: Option<NonZeroU32>,
    /// The job, which goes on where it was interrupted, and after its end with later dead letters. The default is the
    /// job "default", or a new one if a selection is given
    #[arg(long, value_name = "ID", value_parser = job_id)]
    job: Option<String>,
    /// Park a dead letter that was rejected this many times, in <dead_letter>.parked
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u64).range(1..))]
    max_attempts: u64,
    /// Count a record for the client that sent it first, as without redrive_key_file, not for redrive_client
    #[arg(long)]
    as_sender: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

fn job_id(text: &str) -> Result<String, &'static str> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let length = (1..=100).contains(&text.len());
    if length && text.chars().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err("allowed: 1 to 100 of A-Z a-z 0-9 . _ -")
    }
}

pub(super) fn run(args: &RedriveArgs) -> Result<(), DlqError> {
    let (kafka, service) = args.topic.load()?;
    let fresh = || if args.select.is_everything() { DEFAULT_JOB.to_owned() } else { new_id() };
    let id = args.job.clone().unwrap_or_else(fresh);
    let topic = args.topic.topic(&service);
    let plan = plan(args, &service, &id, &topic)?;
    let group = Job::group(&kafka, &service, &id);
    if args.dry_run {
        return dry_run(&kafka, (&group, &topic), &args.select, &plan, args.output.format);
    }
    let interrupts = signals::listen().map_err(DlqError::Signals)?;
    let reader = Reader::open(&kafka, &group, &topic, CONNECT_TIMEOUT)?;
    find_topics(&kafka, &destinations(&plan), CONNECT_TIMEOUT)?;
    if ensure_parking(&kafka, &service.parked(), &reader, CONNECT_TIMEOUT)? {
        eprintln!("made the topic {}", service.parked());
    }
    eprintln!("job {id}; if it is interrupted, --job {id} goes on with it");
    let job = Job::new(&kafka, &group, &reader)?;
    let originals = Originals::new(&kafka, &group)?;
    let begun = Instant::now();
    let mut redrive = Redrive::new(args, plan, reader, job, originals, interrupts);
    let result = redrive.run();
    redrive.report(&id, begun.elapsed());
    match result? {
        true => Ok(()),
        false => Err(DlqError::Stopped(format!("interrupted; --job {id} goes on with it"))),
    }
}

fn plan<'s>(args: &RedriveArgs, service: &'s Service, job: &'s str, topic: &'s str) -> Result<FateRules<'s>, DlqError> {
    let client = &service.redrive_client;
    let wanted = args.to == Destination::Source && !args.as_sender;
    let key = service.redrive_key.as_ref().filter(|_| wanted);
    if wanted && key.is_none() {
        let name = &service.name;
        eprintln!("records count for the clients that sent them first: service {name} has no redrive_key_file");
    }
    let forbids = |allowed: &Option<Vec<String>>| allowed.as_ref().is_some_and(|allowed| !allowed.contains(client));
    let forbidding = service.sources.iter().find(|source| forbids(&source.allowed_clients));
    if let (Some(source), Some(_)) = (forbidding, key) {
        let text = format!("the source {} does not allow the client {client:?}", source.topic);
        return Err(DlqError::Usage(format!("{text}: add it to allowed_clients, or use --as-sender")));
    }
    Ok(FateRules {
        service,
        to: args.to,
        // Parked dead letters have reached that limit.
        max_attempts: (!args.topic.parked).then_some(args.max_attempts),
        key,
        job,
        topic,
        beside: headers::beside(service.dead_letter_headers),
    })
}

fn destinations<'p>(plan: &'p FateRules<'_>) -> Vec<&'p str> {
    match plan.to {
        Destination::Target => vec![&plan.service.target],
        Destination::Source => plan.service.sources.iter().map(|source| source.topic.as_str()).collect(),
    }
}

/// Makes the name of a job from the time.
fn new_id() -> String {
    let now = SystemTime::now();
    let second: String = humantime::format_rfc3339_seconds(now).to_string().replace([':', '-'], "");
    let nanos = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    format!("{second}-{nanos:08x}")
}

/// A redrive in progress.
struct Redrive<'s> {
    plan: FateRules<'s>,
    output: Output,
    reader: Reader,
    job: Job,
    originals: Originals,
    interrupts: Interrupts,
    interrupted: bool,
    pace: Option<Pace>,
    /// The number of dead letters to send one by one, because one of them is refused.
    single: usize,
    /// The dead letter that is refused.
    refused: Option<(i32, i64)>,
    fences: u32,
    scope: Scope,
    counts: RedriveCounts,
}

/// The dead letters of one transaction.
struct Batch {
    records: Vec<Outgoing>,
    /// The place of each record, for one that is refused.
    places: Vec<(i32, i64)>,
    positions: BTreeMap<i32, i64>,
    bytes: usize,
    counts: RedriveCounts,
}

impl<'s> Redrive<'s> {
    fn new(
        args: &RedriveArgs, plan: FateRules<'s>, reader: Reader, job: Job, originals: Originals, interrupts: Interrupts,
    ) -> Redrive<'s> {
        Redrive {
            plan,
            output: args.output.format,
            reader,
            job,
            originals,
            interrupts,
            interrupted: false,
            pace: args.rate.map(|rate| Pace::new(rate, MAX_RECORDS)),
            single: 0,
            refused: None,
            fences: 0,
            scope: Scope { select: args.select.clone(), extents: BTreeMap::new(), positions: BTreeMap::new() },
            counts: RedriveCounts::default(),
        }
    }

    /// Sends all dead letters of the job. Returns false if it was interrupted.
    fn run(&mut self) -> Result<bool, DlqError> {
        self.start_job()?;
        let committed = self.committed()?;
        self.scope = Scope::find(&self.reader, &self.scope.select, self.plan.to, committed)?;
        let ranges = self.scope.ranges();
        let progress = OffsetProgress::new("done", total(&ranges));
        self.reader.start(&ranges)?;
        while !self.interrupted && !self.is_done() {
            let batch = self.read_batch()?;
            if batch.positions != self.scope.positions {
                self.deliver(batch, &progress)?;
            }
            let more = format!("{} redriven, {} parked", self.counts.redriven, self.counts.parked_text());
            progress.set(total(&ranges) - total(&self.scope.ranges()), &more);
        }
        progress.finish();
        Ok(self.is_done())
    }

    fn is_done(&self) -> bool {
        let limited = self.scope.select.limit.is_some_and(|limit| self.counts.decided() >= limit);
        limited || self.scope.is_at_end()
    }

    /// Reads the committed positions; waits for brokers that are away.
    fn committed(&mut self) -> Result<Positions, DlqError> {
        let mut waiting = BrokerWait::new();
        loop {
            match self.reader.committed(CONNECT_TIMEOUT) {
                Ok(committed) => return Ok(committed),
                Err(error @ OpenError::RefusedGroup { .. }) => return Err(error.into()),
                Err(error) if waiting.goes_on(&error) && !self.see_interrupt() => {}
                Err(error) => return Err(DlqError::Unreachable(format!("the positions of the job: {error}"))),
            }
        }
    }

    fn start_job(&mut self) -> Result<(), DlqError> {
        let (mut waiting, interrupts) = (BrokerWait::new(), &self.interrupts);
        let started = self.job.start(|error| waiting.goes_on(error) && interrupts.try_recv().is_err());
        started.map_err(|error| match error {
            JobError::Unknown(error) => DlqError::Unreachable(error.to_string()),
            other => DlqError::Job(other),
        })
    }

    fn see_interrupt(&mut self) -> bool {
        self.interrupted |= self.interrupts.try_recv().is_ok();
        self.interrupted
    }

    /// Reads and decides as many dead letters as go into one transaction.
    fn read_batch(&mut self) -> Result<Batch, DlqError> {
        let mut batch = Batch {
            records: Vec::new(),
            places: Vec::new(),
            positions: self.scope.positions.clone(),
            bytes: 0,
            counts: RedriveCounts::default(),
        };
        let paced = || self.pace.as_ref().map_or(MAX_RECORDS, Pace::transaction);
        let most = if self.single > 0 { 1 } else { paced() };
        while batch.places.len() < most && batch.bytes < MAX_BYTES && !self.reader.is_done() && !self.see_interrupt() {
            let decided = self.counts.decided() + batch.counts.decided();
            if self.scope.select.limit.is_some_and(|limit| decided >= limit) {
                break;
            }
            match self.reader.next(READ_TIMEOUT)? {
                Some(letter) => self.decide(letter, &mut batch)?,
                None if batch.counts.read > 0 => break,
                None => {}
            }
        }
        for (partition, (end, _)) in &self.scope.extents {
            if !self.reader.is_open(*partition) {
                // Nothing but the marks of transactions is left up to the end.
                batch.positions.insert(*partition, *end);
            }
        }
        Ok(batch)
    }

    fn decide(&mut self, letter: Letter, batch: &mut Batch) -> Result<(), DlqError> {
        let place = (letter.partition, letter.offset);
        batch.positions.insert(letter.partition, letter.offset + 1);
        batch.counts.read += 1;
        let origin = Origin::of(&letter);
        if !self.scope.select.matches(&letter, origin.as_ref()) {
            return Ok(());
        }
        let fate = match self.plan.fate(&letter, origin.as_ref(), None) {
            _ if self.refused == Some(place) => Fate::Park(Parked::Refused),
            Fate::NeedsOriginal => {
                let original = origin.as_ref().map(|origin| self.read_original(origin)).transpose()?.flatten();
                self.plan.fate(&letter, origin.as_ref(), Some(original.as_ref()))
            }
            decided => decided,
        };
        let record = match fate {
            Fate::Send(record) => {
                batch.counts.redriven += 1;
                record
            }
            Fate::Park(why) => {
                *batch.counts.parked.entry(why.into()).or_default() += 1;
                self.plan.park(&letter, why)
            }
            Fate::NeedsOriginal => unreachable!("the original was looked for"),
        };
        batch.bytes += letter.bytes();
        batch.records.push(record);
        batch.places.push(place);
        Ok(())
    }

    fn read_original(&mut self, origin: &Origin) -> Result<Option<Letter>, DlqError> {
        let mut waiting = BrokerWait::new();
        loop {
            match self.originals.read(&origin.topic, origin.partition, origin.offset, CONNECT_TIMEOUT) {
                Ok(original) => return Ok(original),
                Err(error) if waiting.goes_on(&error) && !self.see_interrupt() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn deliver(&mut self, batch: Batch, progress: &OffsetProgress) -> Result<(), DlqError> {
        let text = |(partition, offset): (&i32, &i64)| (*partition, (*offset, self.scope.extents[partition].1.clone()));
        let positions: Positions = batch.positions.iter().map(text).collect();
        let pace = &self.pace;
        pace.iter().for_each(|pace| pace.begin(batch.records.len()));
        let records = batch.records.iter().cloned().inspect(|_| pace.iter().for_each(Pace::wait));
        let error = match self.job.deliver(&positions, records) {
            Ok(()) => {
                self.accept(batch);
                return Ok(());
            }
            Err(error) => error,
        };
        match &error {
            JobError::Final(_) => return Err(DlqError::Job(error)),
            JobError::Fenced(_) if self.fences == MAX_FENCES => {
                return Err(DlqError::Stopped("another process runs this job".to_owned()));
            }
            JobError::Fenced(_) => self.fences += 1,
            JobError::Refused { error, .. } => self.take_refused(&batch, error)?,
            JobError::Unknown(error) => progress.note(&format!("begins again from the committed positions: {error}")),
        }
        self.recover(batch)
    }

    fn accept(&mut self, batch: Batch) {
        self.single = self.single.saturating_sub(batch.places.len());
        self.scope.positions = batch.positions;
        self.counts.add(batch.counts);
    }

    /// Finds the refused dead letter, by sending those of the batch one by one, and has it parked.
    fn take_refused(&mut self, batch: &Batch, error: &impl std::fmt::Display) -> Result<(), DlqError> {
        let [only] = &batch.places[..] else {
            self.single = batch.places.len();
            return Ok(());
        };
        if self.refused.replace(*only) == Some(*only) || batch.counts.redriven == 0 {
            let (partition, offset) = only;
            let parked = self.plan.service.parked();
            let text = format!("{parked} refuses the dead letter at partition {partition}, offset {offset}: {error}");
            return Err(DlqError::Stopped(text));
        }
        Ok(())
    }

    /// Takes another producer, and goes on from the committed positions.
    fn recover(&mut self, batch: Batch) -> Result<(), DlqError> {
        self.job.replace().map_err(|error| DlqError::Job(JobError::Final(error)))?;
        self.start_job()?;
        let committed: BTreeMap<i32, i64> =
            self.committed()?.into_iter().map(|(partition, (offset, _))| (partition, offset)).collect();
        if committed == batch.positions {
            // The commit had succeeded.
            self.accept(batch);
        } else {
            for (partition, offset) in committed {
                // Before the first commit of an extent, the position of the former one stands there.
                self.scope.positions.entry(partition).and_modify(|position| *position = offset.max(*position));
            }
        }
        let ranges = self.scope.ranges();
        Ok(self.reader.start(&ranges)?)
    }

    fn report(&self, id: &str, time: Duration) {
        let (counts, complete) = (&self.counts, self.scope.is_at_end());
        let seconds = time.as_millis() as f64 / 1_000.0;
        match self.output {
            Output::Json => print_json(&serde_json::json!({
                "job": id, "complete": complete, "seconds": seconds, "counts": counts,
            })),
            Output::Text => {
                let RedriveCounts { read, redriven, .. } = counts;
                let rate = *redriven as f64 / seconds.max(0.001);
                let parked = counts.parked_text();
                print(format_args!(
                    "job {id}: {redriven} redriven in {seconds:.1} s ({rate:.0}/s), parked: {parked}; {read} read"
                ));
            }
        }
    }
}
