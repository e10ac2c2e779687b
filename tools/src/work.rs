//! `watermaster work`: stands in for a protected service, so that a capacity has something to protect.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use watermaster_kafka::load::Worker;
use watermaster_settings::reader::FromText as _;

use crate::cli::{CONNECT_TIMEOUT, ConfigFile, Exit, Failure, OutputArg, configured};
use crate::load::scenario::{RATE, Rate};
use crate::signals;
use crate::simulate::service::next_speed;

/// The time between two looks at the backlog and at the file with the rate.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The number of looks between two lines of progress.
const PROGRESS_LOOKS: u64 = 10;
/// The longest pause, so that a signal and a changed rate are noticed.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// The time that the service makes up for after a busy machine had stopped it.
const MAX_ARREARS: Duration = Duration::from_millis(500);
/// The work in seconds from which on the service becomes slower.
const KNEE_SECONDS: f64 = 4.0;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("help/work.txt").trim_end())]
pub struct WorkArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The service to stand in for; may be omitted if the configuration has only one
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Records per second (200), or a part of the service's capacity ("125%"); with 0 the service stands still
    #[arg(long, value_name = "RATE", default_value = "125%", value_parser = rate)]
    rate: Rate,
    /// A file with a rate, read once a second; --rate counts while it holds none
    #[arg(long, value_name = "FILE")]
    rate_file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArg,
}

fn rate(text: &str) -> Result<Rate, &'static str> {
    Rate::from_text(text.trim(), RATE).map_err(|_| "a number of records per second, or a percentage")
}

/// The result of a run.
#[derive(Debug, Serialize)]
struct WorkReport {
    service: String,
    finished: u64,
    /// The most offsets by which the service was behind the end of its target at a look.
    most_behind: u64,
    /// The least part of its rate at which the service worked, because of its backlog.
    slowest: f64,
}

/// Works until ctrl-c or SIGTERM, and reports.
pub fn run(args: &WorkArgs) -> Result<Exit, Failure> {
    let report = work(args)?;
    args.output.show(&report, || {
        let WorkReport { service, finished, most_behind, slowest } = &report;
        let slowest = slowest * 100.0;
        format!("{service}: {finished} finished; {most_behind} behind, slowed to {slowest:.0} % at worst")
    });
    Ok(Exit::Done)
}

fn work(args: &WorkArgs) -> Result<WorkReport, Failure> {
    let (kafka, service) = configured(&args.file, args.service.as_deref())?;
    let no_group = || format!("the service {:?} has no consumer_group to read as", service.name);
    let group = service.consumer_group.ok_or_else(|| Failure::config(no_group()))?;
    let capacity = service.policy.capacity as f64 / service.policy.cycle.as_secs_f64();
    let wanted =
        || args.rate_file.as_deref().and_then(read_rate).unwrap_or(args.rate).per_second(LOOK_INTERVAL, capacity);
    let interrupts = signals::listen()?;
    let worker = Worker::join(&kafka, &group, &service.target, CONNECT_TIMEOUT)?;

    let mut report = WorkReport { service: service.name, finished: 0, most_behind: 0, slowest: 1.0 };
    let mut turns = Turns { rate: wanted(), part: 1.0, next: Instant::now() };
    let (mut look_at, mut finished_before) = (Instant::now(), 0);
    for look in 1.. {
        look_at += LOOK_INTERVAL;
        while Instant::now() < look_at {
            if interrupts.try_recv().is_ok() {
                return Ok(report);
            }
            match turns.next.checked_duration_since(Instant::now()) {
                Some(pause) => thread::sleep(pause.min(MAX_PAUSE)),
                None if worker.finish_next() => {
                    report.finished += 1;
                    turns.take(Instant::now());
                }
                None => {}
            }
        }
        turns.change(wanted(), Instant::now());
        if let Some(behind) = worker.behind() {
            turns.degrade(behind);
            report.most_behind = report.most_behind.max(behind);
            report.slowest = report.slowest.min(turns.part);
            if look % PROGRESS_LOOKS == 0 {
                let Turns { rate, part, .. } = turns;
                let finished = (report.finished - finished_before) / PROGRESS_LOOKS;
                finished_before = report.finished;
                let percent = part * 100.0;
                eprintln!("{}: {finished} finished/s, {behind} behind, at {percent:.0} % of {rate}/s", report.service);
            }
        }
    }
    Ok(report)
}

/// Returns the rate in a file; `None` if there is no file, or no rate in it.
fn read_rate(path: &Path) -> Option<Rate> {
    rate(&std::fs::read_to_string(path).ok()?).ok()
}

/// The times at which records are finished.
struct Turns {
    /// Records per second of a service that is not slowed down.
    rate: f64,
    /// The part of the rate that the service has left.
    part: f64,
    next: Instant,
}

impl Turns {
    /// Takes the time for a record.
    fn take(&mut self, now: Instant) {
        let earliest = now.checked_sub(MAX_ARREARS).unwrap_or(now);
        let takes = (1.0 / (self.rate * self.part)).min(LOOK_INTERVAL.as_secs_f64());
        self.next = self.next.max(earliest) + Duration::from_secs_f64(takes);
    }

    /// Sets the rate. A service that stands still gets its next turn after the next look.
    fn change(&mut self, rate: f64, now: Instant) {
        self.rate = rate;
        if rate == 0.0 {
            self.next = now + LOOK_INTERVAL * 2;
        }
    }

    /// Becomes slower the more work waits, and recovers.
    fn degrade(&mut self, behind: u64) {
        let work = if self.rate > 0.0 { behind as f64 / self.rate } else { 0.0 };
        self.part = next_speed(self.part, work - KNEE_SECONDS, LOOK_INTERVAL.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::service::LEAST_SPEED;

    #[test]
    fn a_service_with_much_work_becomes_slower_and_recovers() {
        let mut turns = Turns { rate: 100.0, part: 1.0, next: Instant::now() };
        let parts = [300, 5_000, 5_000, 5_000, 0, 0].map(|behind| {
            turns.degrade(behind);
            turns.part
        });
        assert_eq!(parts[0], 1.0);
        assert!(parts[1..4].is_sorted_by(|a, b| a > b) && parts[3] >= LEAST_SPEED, "{parts:?}");
        assert!(parts[3..].is_sorted_by(|a, b| a < b), "{parts:?}");
    }

    #[test]
    fn records_are_finished_at_the_rate_and_not_in_a_heap_after_a_pause() {
        let start = Instant::now();
        let mut turns = Turns { rate: 100.0, part: 0.5, next: start };
        (0..100).for_each(|_| turns.take(start));
        assert_eq!(turns.next - start, Duration::from_secs(2));
        let later = start + Duration::from_secs(60);
        turns.take(later);
        assert_eq!(later - turns.next, MAX_ARREARS - Duration::from_millis(20));
        turns.change(0.0, later);
        assert!(turns.next > later + LOOK_INTERVAL);
    }

    #[test]
    fn a_file_holds_a_rate_or_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in
            [("120\n", Some(Rate::PerSecond(120.0))), ("80%", Some(Rate::OfCapacity(0.8))), ("fast", None)]
        {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(read_rate(file.path()), expected, "{text}");
        }
        assert_eq!(read_rate(Path::new("/nowhere/rate")), None);
    }
}
