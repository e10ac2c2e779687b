//! `watermaster dlq redrive`: a job that sends dead letters again, or closes them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use watermaster_kafka::dead_letters::{
    DEFAULT_JOB, DoneState, Holder, Job, JobError, Ledger, Letter, Originals, Outgoing, Positions, Reader,
};
use watermaster_kafka::dead_letters::{ensure_ledger, ensure_parking};
use watermaster_kafka::{ask::AskError, headers};
use watermaster_settings::{Kafka, Service, token::SharedToken};

use super::origin::Origin;
use super::pace::Pace;
use super::plan::{Destination, Fate, FateRules, Parked};
use super::scope::{JobOptions, Scope, is_former};
use super::tally::{BrokerWait, RedriveCounts};
use super::{CONNECT_TIMEOUT, READ_TIMEOUT, TopicArgs, dry_run};
use super::{load_ledger, read_ledger, select::SelectArgs, total};
use crate::cli::{Exit, Failure, OutputArg, positive};
use crate::progress::OffsetProgress;
use crate::signals::{self, Interrupts};

/// The most records and bytes of one transaction.
const MAX_RECORDS: usize = 2_000;
const MAX_BYTES: usize = 4 << 20;
/// The name by which all jobs with one ledger fence each other: no job has it as its id.
const ALL_JOBS: &str = "~all";
const DEFAULT_ATTEMPTS: u64 = 5;

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
    #[arg(long, value_name = "N", value_parser = positive::<NonZeroU32>)]
    rate: Option<NonZeroU32>,
    /// The job, which goes on where it was interrupted, and after its end with later dead letters. The default is the
    /// job "default", or a new one if a selection is given
    #[arg(long, value_name = "ID", value_parser = job_id)]
    job: Option<String>,
    /// Send dead letters that are redriven, parked or closed already, too, in a new job unless --job names one
    #[arg(long)]
    again: bool,
    /// Park a dead letter that was rejected this many times, in <dead_letter>.parked
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ATTEMPTS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    max_attempts: u64,
    /// Count a record for the client that sent it first, as without redrive_key_file, not for redrive_client
    #[arg(long)]
    as_sender: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

impl RedriveArgs {
    /// The options that go on with a job as these began it. A job keeps its conditions, times and offsets; without
    /// `--parked`, the same id would name a new job over the dead-letter topic.
    fn again_with(&self, id: &str) -> String {
        let attempts = (self.max_attempts != DEFAULT_ATTEMPTS).then_some(self.max_attempts);
        let options = [
            self.topic.dead_letter.as_ref().map(|topic| format!(" --dead-letter {topic}")),
            self.topic.parked.then(|| " --parked".to_owned()),
            (self.to != Destination::Source).then(|| " --to target".to_owned()),
            self.rate.map(|rate| format!(" --rate {rate}")),
            self.select.limit.map(|limit| format!(" --limit {limit}")),
            attempts.map(|attempts| format!(" --max-attempts {attempts}")),
            self.as_sender.then(|| " --as-sender".to_owned()),
        ];
        format!("--job {id}{}", options.into_iter().flatten().collect::<String>())
    }
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

pub(super) fn run(args: &RedriveArgs) -> Result<Exit, Failure> {
    let (kafka, service, with_ledger) = args.topic.load_for_job()?;
    let fresh = || if args.select.is_everything() && !args.again { DEFAULT_JOB.to_owned() } else { new_id() };
    let id = args.job.clone().unwrap_or_else(fresh);
    if id == DEFAULT_JOB && !args.select.is_everything() {
        return Err(Failure::usage(
            "the job default is about all dead letters, and is never begun with other options: use another --job",
        ));
    }
    let group = Job::group(&kafka, &service, &id);
    let options = JobOptions { id: id.clone(), select: args.select.clone(), to: args.to, again: args.again };
    let dead_letter = args.topic.dead_letter(&service)?;
    let reader = args.topic.reader(&kafka, dead_letter, &group)?;
    let topic = reader.topic().to_owned();
    let others = with_ledger.iter().map(|other| other.name.as_str()).filter(|name| *name != service.name).collect();
    let plan = plan(args, (&service, others), &id, &topic, Service::parked(dead_letter))?;
    if args.dry_run {
        note_senders(args, &plan);
        return dry_run::redrive(&kafka, &service, reader, &options, &plan, args.output);
    }
    reader.find_topics(&destinations(&plan), CONNECT_TIMEOUT)?;
    if ensure_parking(&kafka, &plan.parked, &reader, CONNECT_TIMEOUT)? {
        eprintln!("made the topic {}", plan.parked);
    }
    let originals = Originals::new(&kafka, &group)?;
    let work = Work::Send { plan, originals, pace: args.rate.map(|rate| Pace::new(rate, MAX_RECORDS)) };
    let mut redrive = Redrive::new(&kafka, &service, &with_ledger[0], reader, options, work)?;
    redrive.begin()?;
    if let Work::Send { plan, .. } = &redrive.work {
        note_senders(args, plan);
    }
    let again = args.again_with(&id);
    eprintln!("job {id}; if it is interrupted, {again} goes on with it");
    let begun = Instant::now();
    let result = redrive.run();
    redrive.report(args.output, begun.elapsed());
    match result? {
        true => Ok(Exit::Done),
        false => Err(Failure::stopped(format_args!("interrupted; {again} goes on with it"))),
    }
}

fn plan<'s>(
    args: &RedriveArgs, (service, others): (&'s Service, Vec<&'s str>), job: &'s str, topic: &'s str, parked: String,
) -> Result<FateRules<'s>, Failure> {
    let client = &service.redrive_client;
    let wanted = args.to == Destination::Source && !args.as_sender;
    let key = service.redrive_key.as_ref().filter(|_| wanted).map(SharedToken::get);
    let forbidding = service.sources.iter().find(|source| !source.allows(client));
    if let (Some(source), Some(_)) = (forbidding, &key) {
        let text = format!("the source {} does not allow the client {client:?}", source.topic);
        return Err(Failure::usage(format_args!("{text}: add it to allowed_clients, or use --as-sender")));
    }
    Ok(FateRules {
        service,
        others,
        to: args.to,
        // Parked dead letters have reached that limit.
        max_attempts: (!args.topic.parked).then_some(args.max_attempts),
        key,
        job,
        topic,
        parked,
        beside: headers::beside(service.dead_letter_headers),
    })
}

/// Tells that records count for their senders because the service has no key.
fn note_senders(args: &RedriveArgs, plan: &FateRules<'_>) {
    if plan.to == Destination::Source && !args.as_sender && plan.key.is_none() {
        let name = &plan.service.name;
        eprintln!("records count for the clients that sent them first: service {name} has no redrive_key_file");
    }
}

fn destinations<'p>(plan: &'p FateRules<'_>) -> Vec<&'p str> {
    match plan.to {
        Destination::Target => plan.service.targets(),
        Destination::Source => plan.service.sources.iter().map(|source| source.topic.as_str()).collect(),
    }
}

/// Makes the name of a job from the time.
pub(super) fn new_id() -> String {
    let now = SystemTime::now();
    let second: String = humantime::format_rfc3339_seconds(now).to_string().replace([':', '-'], "");
    let nanos = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    format!("{second}-{nanos:08x}")
}

/// The work of a job on the dead letters that it selects.
#[expect(clippy::large_enum_variant, reason = "a process has one of them")]
pub(super) enum Work<'s> {
    /// Send them again, or park them.
    Send { plan: FateRules<'s>, originals: Originals, pace: Option<Pace> },
    /// Close them.
    Close,
}

impl Work<'_> {
    fn pace(&self) -> Option<&Pace> {
        match self {
            Work::Send { pace, .. } => pace.as_ref(),
            Work::Close => None,
        }
    }
}

/// A job in progress.
pub(super) struct Redrive<'s> {
    kafka: &'s Kafka,
    service: &'s Service,
    options: JobOptions,
    work: Work<'s>,
    reader: Reader,
    job: Job,
    ledger: Ledger,
    /// The last transaction that this process began.
    own: Holder,
    /// The last transaction that the ledger is known to have.
    known: Option<Holder>,
    interrupts: Interrupts,
    interrupted: bool,
    /// The number of dead letters to send one by one, because one of them is refused.
    single: usize,
    /// The dead letter that is refused.
    refused: Option<(i32, i64)>,
    scope: Scope,
    pub(super) counts: RedriveCounts,
}

/// Reads the original of a stub; waits for brokers that are away.
fn read_original(
    originals: &Originals, origin: &Origin, mut see_interrupt: impl FnMut() -> bool,
) -> Result<Option<Letter>, Failure> {
    let mut waiting = BrokerWait::new();
    loop {
        match originals.read(&origin.topic, origin.partition, origin.offset, CONNECT_TIMEOUT) {
            Ok(original) => return Ok(original),
            Err(error) if waiting.goes_on(&error) && !see_interrupt() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The dead letters of one transaction.
struct Batch {
    records: Vec<Outgoing>,
    /// The place of each dead letter, for one that is refused.
    places: Vec<(i32, i64)>,
    positions: BTreeMap<i32, i64>,
    bytes: usize,
    counts: RedriveCounts,
}

impl<'s> Redrive<'s> {
    /// Makes the clients of a job, and the topic of the ledger if it is missing.
    pub(super) fn new(
        kafka: &'s Kafka, service: &'s Service, first_with_ledger: &Service, reader: Reader, options: JobOptions,
        work: Work<'s>,
    ) -> Result<Redrive<'s>, Failure> {
        let interrupts = signals::listen()?;
        if ensure_ledger(kafka, &service.ledger(), &reader, CONNECT_TIMEOUT)? {
            eprintln!("made the topic {}", service.ledger());
        }
        let process = format!("{}-{}", new_id(), std::process::id());
        Ok(Redrive {
            kafka,
            service,
            work,
            job: Job::new(kafka, &Job::group(kafka, first_with_ledger, ALL_JOBS), &reader)?,
            ledger: Ledger::new(service, &reader),
            own: Holder { process, job: options.id.clone(), transaction: 0 },
            known: None,
            reader,
            interrupts,
            interrupted: false,
            single: 0,
            refused: None,
            scope: Scope::of(&options),
            options,
            counts: RedriveCounts::default(),
        })
    }

    /// Begins the job, or goes on with it. Nothing is done yet when this fails, such as for other options than those
    /// that the job was begun with.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        self.start_job()?;
        self.read_ledger()?;
        self.known = self.ledger.holder().cloned();
        if self.ledger.former() > 0 {
            let (topic, letters) = (self.ledger.topic(), self.reader.topic());
            eprintln!("{letters} was made anew: what {topic} has about the earlier topic does not count");
        }
        let committed = match &self.work {
            Work::Send { .. } => self.committed()?,
            Work::Close => Positions::new(),
        };
        self.scope = Scope::find(&self.reader, &self.ledger, &self.options, committed)?;
        if self.options.select.is_everything() && !self.scope.select.is_everything() {
            eprintln!("the job goes on with the selection that it was begun with");
        }
        Ok(())
    }

    /// Does all dead letters of a job that has begun. Returns false if it was interrupted.
    pub(super) fn run(&mut self) -> Result<bool, Failure> {
        let ranges = self.scope.ranges();
        let progress = OffsetProgress::new("done", total(&ranges));
        self.reader.start(&ranges)?;
        // From now on, earlier jobs see that this one took over.
        self.deliver(self.empty_batch(), &progress)?;
        while !self.interrupted && !self.is_done() {
            let batch = self.read_batch()?;
            if batch.positions != self.scope.positions {
                self.deliver(batch, &progress)?;
            }
            let (counts, left) = (&self.counts, total(&self.scope.ranges()));
            let more = match self.work {
                Work::Send { .. } => format!("{} redriven, {} parked", counts.redriven, counts.parked_text()),
                Work::Close => format!("{} closed", counts.closed),
            };
            progress.set(total(&ranges) - left, &more);
        }
        progress.finish();
        Ok(self.is_done())
    }

    fn is_done(&self) -> bool {
        let limited = self.scope.select.limit.is_some_and(|limit| self.counts.decided() >= limit);
        limited || self.scope.is_at_end()
    }

    /// Returns the committed positions of the job.
    fn committed(&mut self) -> Result<Positions, Failure> {
        let group = Job::group(self.kafka, self.service, &self.options.id);
        let read = |job: &mut Self| job.reader.positions(&group, true, CONNECT_TIMEOUT);
        let committed = self.patiently("the positions of the job", read)?;
        if !is_former(&committed) {
            return Ok(committed);
        }
        let former = Job::new(self.kafka, &group, &self.reader)?;
        let all = std::mem::replace(&mut self.job, former);
        self.start_job()?;
        self.job = all;
        self.patiently("the positions of the job", read)
    }

    /// Reads the ledger anew.
    fn read_ledger(&mut self) -> Result<(), Failure> {
        self.ledger = self.patiently("the ledger", |job| read_ledger(job.kafka, job.service, &mut job.reader))?;
        Ok(())
    }

    /// Asks until there is an answer; waits for brokers that are away.
    fn patiently<T>(
        &mut self, what: &str, mut ask: impl FnMut(&mut Self) -> Result<T, AskError>,
    ) -> Result<T, Failure> {
        let mut waiting = BrokerWait::new();
        loop {
            match ask(self) {
                Ok(answer) => return Ok(answer),
                Err(error @ (AskError::Unreachable { .. } | AskError::Topic { .. } | AskError::Client(_))) => {
                    if !waiting.goes_on(&error) || self.see_interrupt() {
                        return Err(Failure::error(Exit::Unreachable, format_args!("{what}: {error}")));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn start_job(&mut self) -> Result<(), Failure> {
        let (mut waiting, interrupts) = (BrokerWait::new(), &self.interrupts);
        let started = self.job.start(|error| waiting.goes_on(error) && interrupts.try_recv().is_err());
        started.map_err(|error| match error {
            JobError::Unknown(error) => Failure::error(Exit::Unreachable, error),
            other => Failure::stopped(other),
        })
    }

    fn see_interrupt(&mut self) -> bool {
        self.interrupted |= self.interrupts.try_recv().is_ok();
        self.interrupted
    }

    fn empty_batch(&self) -> Batch {
        let (positions, counts) = (self.scope.positions.clone(), RedriveCounts::default());
        Batch { records: Vec::new(), places: Vec::new(), positions, bytes: 0, counts }
    }

    /// Reads and decides as many dead letters as go into one transaction.
    fn read_batch(&mut self) -> Result<Batch, Failure> {
        let mut batch = self.empty_batch();
        let most = if self.single > 0 { 1 } else { self.work.pace().map_or(MAX_RECORDS, Pace::transaction) };
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
                if let Some(from) = batch.positions.insert(*partition, *end) {
                    let state = self.ledger.state(*partition, from - 1).unwrap_or(DoneState::Closed);
                    self.ledger.fill(*partition, from..*end, state);
                }
            }
        }
        Ok(batch)
    }

    fn decide(&mut self, letter: Letter, batch: &mut Batch) -> Result<(), Failure> {
        let (partition, offset) = (letter.partition, letter.offset);
        let from = batch.positions.insert(partition, offset + 1).unwrap_or(offset);
        batch.counts.read += 1;
        let origin = Origin::of(&letter);
        if !self.scope.select.matches(&letter, origin.as_ref()) {
            return Ok(());
        }
        let done = self.ledger.state(partition, offset).filter(|_| !self.scope.again);
        let state = match done {
            Some(state) => {
                batch.counts.skipped += 1;
                state
            }
            None => {
                batch.places.push((partition, offset));
                let (state, record) = self.outcome(&letter, origin.as_ref(), &mut batch.counts)?;
                // The original of a stub is much larger than the stub.
                batch.bytes += record.as_ref().map_or(letter.bytes(), Outgoing::bytes);
                batch.records.extend(record);
                state
            }
        };
        self.ledger.mark(partition, offset, state);
        // Before it are the marks of transactions, if anything.
        self.ledger.fill(partition, from..offset, state);
        Ok(())
    }

    /// Decides on a selected dead letter, and counts it. Returns its state, and the record to send.
    fn outcome(
        &mut self, letter: &Letter, origin: Option<&Origin>, counts: &mut RedriveCounts,
    ) -> Result<(DoneState, Option<Outgoing>), Failure> {
        let Work::Send { plan, originals, .. } = &self.work else {
            counts.closed += 1;
            return Ok((DoneState::Closed, None));
        };
        let fate = match (plan.fate(letter, origin, None), origin) {
            _ if self.refused == Some((letter.partition, letter.offset)) => Fate::Park(Parked::Refused),
            (Fate::NeedsOriginal, Some(from)) => {
                let original = read_original(originals, from, || {
                    self.interrupted |= self.interrupts.try_recv().is_ok();
                    self.interrupted
                })?;
                plan.fate(letter, origin, Some(original.as_ref()))
            }
            (decided, _) => decided,
        };
        Ok(match fate {
            Fate::Send(record) => {
                counts.redriven += 1;
                (DoneState::Redriven, Some(record))
            }
            Fate::Park(why) => {
                *counts.parked.entry(why.into()).or_default() += 1;
                (DoneState::Parked, Some(plan.park(letter, why)))
            }
            Fate::NeedsOriginal => unreachable!("the original was looked for"),
        })
    }

    /// Sends a batch with its positions and the changes of the ledger.
    fn deliver(&mut self, batch: Batch, progress: &OffsetProgress) -> Result<(), Failure> {
        let text = |(partition, offset): (&i32, &i64)| (*partition, (*offset, self.scope.extents[partition].1.clone()));
        let positions: Positions = match &self.work {
            Work::Send { .. } => batch.positions.iter().map(text).collect(),
            // A closed dead letter is skipped the next time, so no position is needed.
            Work::Close => Positions::new(),
        };
        self.own.transaction += 1;
        let changes = self.ledger.take_changes(&self.own);
        let pace = self.work.pace();
        pace.iter().for_each(|pace| pace.begin(batch.records.len()));
        let records = batch.records.iter().cloned().inspect(|_| pace.iter().for_each(|pace| pace.wait()));
        match self.job.deliver(&positions, records.chain(changes)) {
            Ok(()) => {
                self.accept(batch);
                Ok(())
            }
            Err(JobError::Refused { refused, error }) if refused.iter().any(|at| *at >= batch.records.len()) => {
                Err(Failure::stopped(format_args!("{} refuses an entry: {error}", self.ledger.topic())))
            }
            Err(JobError::Refused { error, .. }) => {
                self.take_refused(&batch, &error)?;
                self.recover(batch)
            }
            Err(JobError::Unknown(error)) => {
                self.see_takeover()?;
                progress.note(&format!("begins again from the last commit: {error}"));
                self.recover(batch)
            }
            Err(error @ JobError::Final(_)) => Err(Failure::stopped(error)),
        }
    }

    fn accept(&mut self, batch: Batch) {
        self.known = Some(self.own.clone());
        self.single = self.single.saturating_sub(batch.places.len());
        self.scope.positions = batch.positions;
        self.counts.add(batch.counts);
    }

    /// Finds the refused dead letter, by sending those of the batch one by one, and has it parked.
    fn take_refused(&mut self, batch: &Batch, error: &impl Display) -> Result<(), Failure> {
        let [only] = &batch.places[..] else {
            self.single = batch.places.len();
            return Ok(());
        };
        if self.refused.replace(*only) == Some(*only) || batch.counts.redriven == 0 {
            let (partition, offset) = only;
            let topic = &batch.records[0].topic;
            let place = format!("partition {partition}, offset {offset}");
            return Err(Failure::stopped(format_args!("{topic} refuses the dead letter at {place}: {error}")));
        }
        Ok(())
    }

    /// Looks for another process before a new producer of this one fences it.
    fn see_takeover(&mut self) -> Result<(), Failure> {
        self.ledger = self.patiently("the ledger", |job| load_ledger(job.service, &mut job.reader))?;
        self.check_holder()
    }

    /// Fails if another process has begun since this one did.
    fn check_holder(&self) -> Result<(), Failure> {
        match self.ledger.holder() {
            Some(holder) if self.known.as_ref() != Some(holder) && holder.process != self.own.process => {
                let other = &holder.job;
                let again = match self.work {
                    Work::Send { .. } => format!(", with --job {}", self.options.id),
                    Work::Close => String::new(),
                };
                Err(Failure::stopped(format_args!(
                    "the job {other} of this service took over: start this one again after it{again}; \
                     nothing is sent twice"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Takes another producer, and goes on behind the last commit.
    fn recover(&mut self, batch: Batch) -> Result<(), Failure> {
        self.job.replace().map_err(Failure::stopped)?;
        self.start_job()?;
        self.read_ledger()?;
        self.check_holder()?;
        if self.ledger.holder() == Some(&self.own) {
            // The commit had succeeded.
            self.accept(batch);
        }
        let ranges = self.scope.ranges();
        Ok(self.reader.start(&ranges)?)
    }

    fn report(&self, output: OutputArg, time: Duration) {
        let (id, counts, complete) = (&self.options.id, &self.counts, self.scope.is_at_end());
        let seconds = time.as_millis() as f64 / 1_000.0;
        let json = serde_json::json!({ "job": id, "complete": complete, "seconds": seconds, "counts": counts });
        output.show(&json, || {
            let RedriveCounts { read, redriven, skipped, .. } = counts;
            let rate = *redriven as f64 / seconds.max(0.001);
            let parked = counts.parked_text();
            format!(
                "job {id}: {redriven} redriven in {seconds:.1} s ({rate:.0}/s), parked: {parked}; {read} read, \
                 {skipped} of them skipped: redriven, parked or closed already"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct RedriveCommand {
        #[command(flatten)]
        redrive: RedriveArgs,
    }

    /// A job that went on without its rate flooded the service; one without --parked was another job.
    #[test]
    fn a_job_goes_on_with_the_options_that_it_does_not_keep() {
        let again = |options: &[&str]| {
            let all = ["redrive", "--config", "w.toml"].iter().chain(options);
            RedriveCommand::parse_from(all).redrive.again_with("monday")
        };
        assert_eq!(again(&["--where", "reason=expired"]), "--job monday");
        let options =
            ["--parked", "--to", "target", "--rate", "5", "--limit", "10", "--max-attempts", "20", "--as-sender"];
        assert_eq!(again(&options), format!("--job monday {}", options.join(" ")));
    }
}
