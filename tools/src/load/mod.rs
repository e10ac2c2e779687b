//! `watermaster load`: sends a scenario to the source topics of a running Watermaster and accounts for every record.
//!
//! Open loop: the seed fixes in advance when each record is sent.
//!
//! - [`scenario`]: the file; `plan`: the scenario fitted to a service
//! - `schedule`: the time of each record
//! - `session`: the threads of a run: one sends, one reads back
//! - `account`: the outcome of every record, also over time; `lost`: the records that never came out
//! - [`report`]: the result

pub(crate) mod account;
mod lost;
pub(crate) mod plan;
pub mod report;
pub mod scenario;
pub(crate) mod schedule;
pub(crate) mod session;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io::IsTerminal as _, sync::mpsc::RecvTimeoutError};

use clap::Args;
use watermaster_settings::{Kafka, Service};

use crate::cli::{ConfigFile, Exit, Failure, OutputArg, service_of};
use crate::format::seconds;
use crate::signals::{self, Interrupts};
use account::{Account, Event};
use plan::Plan;
use report::{Ended, Facts, LoadReport, html, text};
use scenario::Scenario;
use session::Session;

/// The time without any output after which a run ends, unless three cycles are longer. A crashed instance holds a
/// `read_committed` reader back for less time.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for an event before other conditions are checked.
const EVENT_TIMEOUT: Duration = Duration::from_millis(50);

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/load.txt").trim_end())]
pub struct LoadArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The clients, and what each of them sends when (TOML)
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// The service to load; may be omitted if the configuration has only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Stretch or shorten the scenario to this many seconds, at the same rates: 1 to 604800
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: Option<u64>,
    /// Replace the scenario's seed: other arrivals and sizes at the same rates
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=i64::MAX as u64))]
    seed: Option<u64>,
    #[command(flatten)]
    output: OutputArg,
    /// Also write the report as an HTML page with plots, which needs no network
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Send only: don't read target and dead-letter topic (rejected records are not retried then)
    #[arg(long)]
    no_read_back: bool,
}

/// Plays the scenario and prints the report.
pub fn run(args: &LoadArgs) -> Result<Exit, Failure> {
    let settings = args.file.load()?.settings;
    let mut scenario = Scenario::read(&args.scenario)?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    if let Some(seconds) = args.seconds {
        scenario = scenario.stretched(Duration::from_secs(seconds));
    }
    let (kafka, service) = service_of(settings, args.service.as_deref())?;
    if let Some(path) = &args.report {
        // A report that can't be written is better found out now than after minutes.
        write(path, "")?;
    }
    let plan = Plan::new(&scenario, &service)?;
    let interrupts = signals::listen()?;
    let report = measure(&kafka, &service, plan, !args.no_read_back, &interrupts)?;
    args.output.show(&report, || text(&report));
    if let Some(path) = &args.report {
        write(path, &html(&report))?;
        eprintln!("report: {}", path.display());
    }
    Ok(if report.ok { Exit::Done } else { Exit::Stopped })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|source| Failure::stopped(format_args!("the report {} can't be written: {source}", path.display())))
}

/// Sends the plan and reports the outcome. An interrupt ends the sending, a second one the reading.
fn measure(
    kafka: &Kafka, service: &Service, plan: Plan, read_back: bool, interrupts: &Interrupts,
) -> Result<LoadReport, Failure> {
    let mut session = Session::start(kafka, service, plan, read_back)?;
    let patience = NO_PROGRESS_TIMEOUT.max(service.policy.cycle * 3);
    let (ended, sending) = watch(&mut session, read_back, patience, interrupts);
    let (run, start) = (session.run.clone(), session.start);
    let mut account = session.finish()?;
    let unknown = if read_back { lost::find(kafka, service, &mut account).err() } else { None };
    let total = start.instant.elapsed();
    let facts = Facts { run, started_us: start.epoch_us, ended, sending, total, unknown };
    Ok(LoadReport::new(&account, kafka, service, facts))
}

/// Applies events until every record is accounted for or no more come out. Also returns how long the sending took.
fn watch(session: &mut Session, read_back: bool, patience: Duration, interrupts: &Interrupts) -> (Ended, Duration) {
    let mut progress = ProgressLines::new(read_back);
    let mut last_progress = Instant::now();
    let (mut interrupted, mut sending) = (false, Duration::ZERO);
    loop {
        let event = session.next_event(EVENT_TIMEOUT);
        if matches!(&event, Ok(event) if !matches!(event, Event::Foreign { .. })) {
            last_progress = Instant::now();
        }
        let now = session.start.instant.elapsed();
        progress.update(now, &session.account);
        if !interrupted && !session.account.played {
            sending = now;
        }
        if interrupts.try_recv().is_ok() {
            if interrupted || !read_back {
                return (Ended::Interrupted, sending);
            }
            eprintln!("interrupted: sending stops; interrupt again to stop reading, too");
            interrupted = true;
            session.stop_sending();
        }
        let open = session.account.open();
        let is_over = !session.is_sending() && (open == 0 || !read_back || last_progress.elapsed() > patience);
        if is_over || event == Err(RecvTimeoutError::Disconnected) {
            let ended = match (interrupted, read_back, open) {
                (true, ..) => Ended::Interrupted,
                (false, false, _) => Ended::NotReadBack,
                (false, true, 0) => Ended::AccountedFor,
                (false, true, _) => Ended::NoProgress,
            };
            return (ended, sending);
        }
    }
}

/// Prints the progress of a run on stderr: a line each second on a terminal, otherwise one every ten seconds.
struct ProgressLines {
    interval: Duration,
    next: Duration,
    /// Outcomes are known.
    read_back: bool,
    /// Time, records sent and records admitted when the last line was printed.
    before: (Duration, u64, u64),
}

impl ProgressLines {
    fn new(read_back: bool) -> ProgressLines {
        let interval = Duration::from_secs(if std::io::stderr().is_terminal() { 1 } else { 10 });
        ProgressLines { interval, next: interval, read_back, before: (Duration::ZERO, 0, 0) }
    }

    fn update(&mut self, now: Duration, account: &Account) {
        if now >= self.next {
            self.next = now + self.interval;
            eprintln!("{}", self.line(now, account));
        }
    }

    fn line(&mut self, now: Duration, account: &Account) -> String {
        let total = account.total();
        let (then, sent, admitted) = std::mem::replace(&mut self.before, (now, total.sent, total.admitted));
        let elapsed = now.saturating_sub(then).as_secs_f64().max(0.001);
        let rate = |now: u64, then: u64| (now - then) as f64 / elapsed;
        let stage = match account.played {
            true => " (all sent)".to_owned(),
            false => format!(" of {}", account.plan.length.as_secs()),
        };
        let mut line = format!("{:>4} s{stage}: {} sent ({:.0}/s)", now.as_secs(), total.sent, rate(total.sent, sent));
        if self.read_back {
            line += &format!(
                ", {} admitted ({:.0}/s), {} rejected, {} waiting, delay p99 {}",
                total.admitted,
                rate(total.admitted, admitted),
                total.rejected_total(),
                total.waiting,
                seconds(total.delays.quantile(0.99)),
            );
        }
        line + &format!(", generator late by {} at most", seconds(account.lateness.quantile(1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::plan::tests::plan;
    use super::*;

    /// The bug: the line showed "0 admitted, 0 rejected" for records that were not read back.
    #[test]
    fn unknown_outcomes_are_not_shown() {
        let account = Account::new(plan(
            "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"steady\"\nrate = 10\nfor = \"60s\"\n",
        ));
        let line = |read_back| ProgressLines::new(read_back).line(Duration::from_secs(10), &account);
        assert_eq!(line(false), "  10 s of 60: 0 sent (0/s), generator late by 0 s at most");
        assert!(line(true).contains(", 0 admitted (0/s), 0 rejected, 0 waiting, "), "{}", line(true));
    }
}
