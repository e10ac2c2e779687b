//! `watermaster simulate`: what another capacity, mode or lending would have meant for the clients of a trace.
//!
//! - [`replay`]: one simulation, through the core of `run`; `senders`: the clients as the service sees them
//! - [`tally`]: its counts; [`retries`]: rejected records that come back; [`service`]: the service behind the target
//! - [`planned`]: records of a scenario in place of a trace
//! - [`sweep`]: many simulations; [`find`]: the smallest capacity that suffices
//! - [`live`]: a live run beside the simulation of its trace
//! - `report`: the result as text and JSON; `picture`: as SVG

pub mod find;
pub mod live;
mod picture;
pub mod planned;
pub mod replay;
mod report;
pub mod retries;
mod senders;
pub mod service;
pub mod sweep;
pub mod tally;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args};
use indicatif::{ProgressBar, ProgressStyle};
use watermaster_core::policy::{Lending, Mode};
use watermaster_core::rules;
use watermaster_settings::{Service, Settings};

use crate::cli::{self, ConfigFile, Exit, Failure, OutputArg, choose, positive, variant};
use crate::load::scenario::Scenario;
use crate::moment::moment;
use crate::trace_file::{Contents, TraceError, reader::TraceSource};
use find::{Bound, Goal};
use live::LiveRun;
use planned::Planned;
use replay::{Outcome, Replay, ReplayOptions};
use report::{FoundCapacity, Point, WhatIf};
use retries::{Retries, retries};
use senders::Senders;
use service::ServiceModel;
use sweep::{Capacities, Rules, capacities, in_parallel};

/// The longest time that a trace may cover.
const MAX_SPAN_MS: u64 = 10 * 366 * 24 * 3_600_000;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/simulate.txt").trim_end())]
#[command(group = ArgGroup::new("records").required(true).args(["trace", "scenario"]))]
pub struct SimulateArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Lay the [[service.rule]] of this file over those that are configured
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Simulate without rules: the tables of clients and groups alone
    #[arg(long, conflicts_with = "rules")]
    without_rules: bool,
    /// The trace, or a CSV: ms,client,partition,bytes
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Simulate the records that `watermaster load` would send for this scenario, and the retries of its clients
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The service; may be omitted if the trace or the configuration names only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Simulate these capacities: N, N,N or FROM..TO/STEP; as configured by default
    #[arg(long, value_name = "N", value_parser = capacities)]
    capacity: Option<Capacities>,
    /// Simulate these modes; as configured by default
    #[arg(long, value_delimiter = ',', value_parser = variant::<Mode>())]
    mode: Vec<Mode>,
    /// Simulate these lendings; as configured by default
    #[arg(long, value_delimiter = ',', value_parser = variant::<Lending>())]
    lending: Vec<Lending>,
    /// Find the smallest capacity for which --p99 or --rejected holds
    #[arg(long, value_name = "WHAT", value_parser = ["capacity"], requires = "bound", conflicts_with = "capacity")]
    find: Option<String>,
    /// The client that the bound is about; each client by default
    #[arg(long, value_name = "NAME", requires = "find")]
    client: Option<String>,
    /// 99 % of the client's records are to be admitted within this time; a rejected record counts as later
    #[arg(long, value_name = "TIME", group = "bound", requires = "find", value_parser = humantime::parse_duration)]
    p99: Option<Duration>,
    /// The largest part of the client's records that may be rejected, such as 0.1%
    #[arg(long, value_name = "PERCENT", group = "bound", requires = "find", value_parser = millionths)]
    rejected: Option<u32>,
    /// Show for how long a record had waited for more than this time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    delay: Duration,
    /// Keep or drop records that were sent again after a rejection, or model:BACKOFF,ATTEMPTS: in place of them, send
    /// each record that is rejected here again after BACKOFF, which doubles each time to at most 10s, until it has been
    /// sent ATTEMPTS times in all
    #[arg(long, value_name = "HOW", default_value = "keep", value_parser = retries)]
    retries: Retries,
    /// Simulate a service that finishes this many records a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    service_rate: Option<u32>,
    /// While more work than this waits in the service, it becomes slower: by 8 % for each further second of work, to
    /// half its rate
    #[arg(long, value_name = "TIME", requires = "service_rate", value_parser = humantime::parse_duration)]
    service_knee: Option<Duration>,
    /// Compare with a live run: the report of `watermaster load --output json` for the records of the trace
    #[arg(long, value_name = "RUN.json", conflicts_with_all = ["find", "capacity", "mode", "lending", "scenario"])]
    record_at: Option<PathBuf>,
    /// Cycles at the start that are not counted; with --record-at all are
    #[arg(long, value_name = "CYCLES", default_value = "2", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    warm_up: u32,
    /// A time at which a cycle of the live instance began, to compare with it; by default a cycle begins with the first
    /// record
    #[arg(long, value_name = "TIME", value_parser = moment)]
    cycle_start: Option<i64>,
    /// The simulated time between two looks at the backlogs: 1ms to 1s
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = step)]
    step: Duration,
    /// The number of simulations at a time; the number of processors by default
    #[arg(long, value_name = "N", value_parser = positive::<NonZeroUsize>)]
    jobs: Option<NonZeroUsize>,
    /// Print no more clients than this, those with the longest delays and the most rejections first
    #[arg(long, value_name = "N", default_value = "10")]
    top: usize,
    #[command(flatten)]
    output: OutputArg,
    /// Also draw delays and rejections by capacity
    #[arg(long, value_name = "FILE.svg", requires = "capacity")]
    picture: Option<PathBuf>,
}

fn millionths(text: &str) -> Result<u32, &'static str> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or("allowed: 0% to 100%")?;
    Ok((percent * 1e4).round() as u32)
}

fn step(text: &str) -> Result<Duration, &'static str> {
    let step = humantime::parse_duration(text).ok();
    let range = Duration::from_millis(1)..=Duration::from_secs(1);
    step.filter(|step| range.contains(step)).ok_or("allowed: 1ms to 1s")
}

/// Simulates and prints the result.
pub fn run(args: &SimulateArgs) -> Result<Exit, Failure> {
    let report = simulate(args)?;
    args.output.show(&report, || report::text(&report, args.top));
    Ok(if report.has_answers() && report.agrees() { Exit::Done } else { Exit::No })
}

fn simulate(args: &SimulateArgs) -> Result<WhatIf, Failure> {
    let path = args.trace.as_ref().or(args.scenario.as_ref()).cloned().unwrap_or_default();
    let failed = |error: TraceError| Failure::config(format_args!("{}: {error}", path.display()));
    if let Some(path) = &args.picture {
        // A picture that can't be written is better found out now than after minutes.
        write(path, "")?;
    }
    let job = job(args, &path)?;
    let mut report = WhatIf::new(&job.contents, &job.service, &job.options);
    let policy = &job.service.policy;
    let live = args.record_at.as_deref();
    let live = live.map(|path| LiveRun::read(path, job.rules[0], policy.capacity, policy.enforce)).transpose()?;
    match &args.find {
        None => report.points = job.sweep(args.capacity.as_ref()).map_err(failed)?,
        Some(_) => {
            let bound = match (args.p99, args.rejected) {
                (Some(p99), _) => Bound::P99(p99),
                (None, rejected) => Bound::Rejected(rejected.unwrap_or(0)),
            };
            let goal = Goal { client: args.client.clone(), bound };
            let unknown = || match args.client.clone() {
                Some(name) => {
                    let problem = format!("--client: the trace has no record of {name:?} after the first cycles");
                    Failure::usage(problem)
                }
                None => Failure::config(
                    "the trace is too short: it has no record after the first cycles, which are left out",
                ),
            };
            report.answers = job.find(&goal).map_err(failed)?.ok_or_else(unknown)?;
        }
    }
    report.live = live.map(|live| live.compare(&report.points[0].outcome));
    if let Some(path) = &args.picture {
        write(path, &picture::svg(&report))?;
    }
    Ok(report)
}

/// Reads configuration and trace.
fn job(args: &SimulateArgs, path: &Path) -> Result<Job, Failure> {
    let mut file = args.file.clone();
    file.paths.extend(args.rules.clone());
    let mut settings = file.load()?.settings;
    if args.without_rules {
        settings.services.iter_mut().for_each(|service| service.policy.rules = Arc::default());
    }
    let failed = |error: TraceError| Failure::config(format_args!("{}: {error}", path.display()));
    let planned = match &args.scenario {
        Some(path) => {
            let scenario = Scenario::read(path)?;
            let (_, service) = cli::service_of(settings.clone(), args.service.as_deref())?;
            Some(Planned::new(&scenario, &service)?)
        }
        None => None,
    };
    let trace = match &planned {
        Some(planned) => planned.trace.clone(),
        None => TraceSource::find(path).map_err(failed)?,
    };
    let contents = trace.open().map_err(failed)?.contents().clone();
    check(&contents, path)?;
    let mut service = service_of(settings, &contents, args.service.as_deref())?;
    leave_out(&mut service, args.capacity.is_some() || args.find.is_some());
    let all = if let Retries::Model(policy) = args.retries { Some(policy) } else { None };
    let planned = planned.filter(|_| args.retries == Retries::Keep);
    let senders = Senders::new(&contents, &service);
    Ok(Job {
        trace,
        senders: senders.with_retries(all, |name| planned.as_ref()?.retry_of(name)),
        options: ReplayOptions {
            step: args.step,
            warm_up: if args.record_at.is_some() { 0 } else { args.warm_up },
            threshold: args.delay,
            cycle_start_ms: args.cycle_start.map(|at| u64::try_from(at).unwrap_or(0)),
            drop_retried: args.retries != Retries::Keep,
            service: args.service_rate.map(|rate| ServiceModel { rate, knee: args.service_knee }),
        },
        jobs: args.jobs.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN),
        rules: Rules::all(&args.mode, &args.lending, &service.policy),
        service,
        contents,
    })
}

fn check(contents: &Contents, path: &Path) -> Result<(), Failure> {
    if contents.records() == 0 {
        return Err(Failure::config(format_args!("{} holds no record", path.display())));
    }
    // The simulated clock counts nanoseconds in 64 bits, and goes on after the last record.
    if contents.last_ms.saturating_sub(contents.first_ms) > MAX_SPAN_MS || contents.last_ms > u64::MAX / 4_000_000 {
        let path = path.display();
        return Err(Failure::config(format_args!("{path} covers more than 10 years: its times are not milliseconds")));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::write(path, text);
    written.map_err(|error| Failure::stopped(format_args!("{} can't be written: {error}", path.display())))
}

/// Chooses the service: the named one, or else that of the trace. Patterns match the topics of the trace.
fn service_of(settings: Settings, contents: &Contents, name: Option<&str>) -> Result<Service, Failure> {
    let topics: Vec<String> = contents.partitions.iter().map(|partition| partition.topic.clone()).collect();
    let settings = settings.with_matches(&topics);
    let traced = settings.services.iter().any(|service| service.name == contents.service);
    let name = name.or_else(|| traced.then_some(contents.service.as_str()));
    Ok(choose(&settings.services, name)?.clone())
}

/// Leaves out of the rules of the service that which is simulated otherwise: shadow mode, and the capacity if others
/// are tried.
fn leave_out(service: &mut Service, capacities: bool) {
    let rules = service.policy.rules.iter().map(|rule| {
        let mut rule = rule.clone();
        rule.effects.enforce = None;
        if capacities {
            rule.effects.capacity = None;
        }
        rule
    });
    service.policy.rules = Arc::new(rules::Rules::new(rules.collect()));
}

/// All that the simulations of one call have in common.
struct Job {
    trace: TraceSource,
    contents: Contents,
    service: Service,
    senders: Senders,
    options: ReplayOptions,
    rules: Vec<Rules>,
    jobs: NonZeroUsize,
}

impl Job {
    fn simulate(&self, rules: Rules, capacity: u64) -> Result<Outcome, TraceError> {
        let policy = rules.policy(capacity, &self.service.policy);
        Replay::new(&policy, &self.contents, &self.senders, self.options).run(&mut self.trace.open()?)
    }

    fn sweep(&self, capacities: Option<&Capacities>) -> Result<Vec<Point>, TraceError> {
        let configured = [self.service.policy.capacity];
        let capacities = capacities.map_or(&configured[..], |capacities| &capacities.0);
        let count = self.rules.len() * capacities.len();
        let bar = progress(Some(count as u64));
        let points = in_parallel(self.jobs, count, |index| {
            let (rules, capacity) = (self.rules[index / capacities.len()], capacities[index % capacities.len()]);
            let outcome = self.simulate(rules, capacity)?;
            bar.inc(1);
            // As configured, rules may set another one.
            let capacity = rules.policy(capacity, &self.service.policy).at(self.contents.last_ms as i64).capacity;
            Ok(Point { rules, capacity, outcome })
        });
        bar.finish_and_clear();
        points
    }

    /// Finds an answer for each combination of rules; `None` if no record of the client was counted.
    fn find(&self, goal: &Goal) -> Result<Option<Vec<FoundCapacity>>, TraceError> {
        let largest = self.largest_window()?;
        let bar = progress(None);
        let answers = in_parallel(self.jobs, self.rules.len(), |index| {
            let rules = self.rules[index];
            let found = find::find(goal, largest, |capacity| {
                bar.inc(1);
                self.simulate(rules, capacity)
            });
            Ok::<_, TraceError>(found?.map(|found| FoundCapacity { rules, goal: goal.clone(), largest, found }))
        });
        bar.finish_and_clear();
        Ok(answers?.into_iter().collect())
    }

    /// Returns the largest number of records in any window of one cycle.
    fn largest_window(&self) -> Result<u64, TraceError> {
        let cycle_ms = self.service.policy.cycle.as_millis() as u64;
        let (mut trace, mut block) = (self.trace.open()?, Vec::new());
        // The times of the records in the window.
        let (mut window, mut largest) = (VecDeque::<u64>::new(), 0);
        while trace.next_block(&mut block)? {
            for record in block.iter().filter(|record| !(record.retried && self.options.drop_retried)) {
                while window.front().is_some_and(|at| at + cycle_ms <= record.at_ms) {
                    window.pop_front();
                }
                window.push_back(record.at_ms);
                largest = largest.max(window.len());
            }
        }
        Ok(largest as u64)
    }
}

/// Shows the number of finished simulations on a terminal.
fn progress(count: Option<u64>) -> ProgressBar {
    let template = if count.is_some() { "{bar:40} {pos} of {len} simulations" } else { "{pos} simulations" };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    count.map_or_else(ProgressBar::no_length, ProgressBar::new).with_style(style)
}
