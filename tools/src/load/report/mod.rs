//! The result of a run: [`LoadReport`], which is also the JSON, and two forms for people (`text`, `html`).

mod html;
mod text;

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use watermaster_core::policy::{Mode, Policy};
use watermaster_settings::{Delivery, Kafka, Service};

use super::account::{Account, ClientCounts, ClientSeries, Delays, Series};
use super::lost::CompletedError;
pub use html::html;
pub use text::text;

/// The most records of a round.
const MAX_ROUND: u64 = 10_000;
/// The delay that a busy machine adds to a commit interval.
const JITTER: Duration = Duration::from_millis(25);

/// Facts about a run that its account does not hold.
#[derive(Debug)]
pub struct Facts {
    pub run: String,
    /// Microseconds since 1970.
    pub started_us: u64,
    pub ended: Ended,
    /// The time for which records were sent.
    pub sending: Duration,
    pub total: Duration,
    /// The reason why lost records can't be told from waiting ones.
    pub unknown: Option<CompletedError>,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Every record came out.
    AccountedFor,
    /// No record came out for a while.
    NoProgress,
    Interrupted,
    NotReadBack,
}

/// The result of a run, as `--output json` prints it and `docs/load.md` describes it. Times are in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    pub run: String,
    pub scenario: String,
    pub description: String,
    pub seed: u64,
    /// RFC 3339.
    pub started: String,
    pub ended: Ended,
    pub sending_seconds: f64,
    pub total_seconds: f64,
    pub service: ServiceFacts,
    /// No record was lost, or duplicated although the delivery is exactly-once, and the promise was not broken.
    pub ok: bool,
    /// Reasons why the run is not ok.
    pub problems: Vec<String>,
    /// Reasons to doubt the numbers.
    pub doubts: Vec<String>,
    pub window: WindowReport,
    pub generator: Generator,
    pub totals: ClientReport,
    pub clients: Vec<ClientReport>,
    pub series: SeriesReport,
}

/// The service that was loaded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceFacts {
    pub name: String,
    pub target: String,
    pub dead_letter: String,
    pub mode: &'static str,
    pub enforce: bool,
    pub delivery: String,
    pub capacity: u64,
    pub cycle_seconds: f64,
}

/// The lateness of the generator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generator {
    pub late_p99_seconds: f64,
    pub late_max_seconds: f64,
}

/// The result of one client or of all.
#[derive(Debug, Clone, Serialize)]
pub struct ClientReport {
    pub name: String,
    #[serde(flatten)]
    pub counts: ClientCounts,
    /// Rate while records were sent.
    pub sent_per_second: f64,
    /// Rate from the start until the last admission.
    pub admitted_per_second: f64,
    /// Time from the intended time of the first attempt until the record came out of the target.
    pub delay_seconds: Quantiles,
}

/// Quantiles of the delays of admitted records.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Counts over time, one number for each bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesReport {
    pub bucket_seconds: f64,
    pub clients: Vec<ClientSeries>,
    /// `null` for buckets without an admission.
    pub delay_seconds: Vec<Option<Quantiles>>,
}

impl LoadReport {
    pub fn new(account: &Account, kafka: &Kafka, service: &Service, facts: Facts) -> LoadReport {
        let plan = &account.plan;
        let window = WindowReport::new(account, &service.policy, facts.ended != Ended::NotReadBack);
        let totals = account.total();
        let problems = problems(&totals, &window, kafka.delivery);
        let mut doubts = doubts(account, &totals, &window, kafka.delivery);
        doubts.extend(facts.unknown.map(|error| format!("waiting records may be lost: {error}")));
        let clients = plan.clients.iter().zip(&account.clients);
        let Series { width, clients: series, delays } = &account.series;
        let started = UNIX_EPOCH + Duration::from_micros(facts.started_us);
        LoadReport {
            run: facts.run,
            scenario: plan.name.clone(),
            description: plan.description.clone(),
            seed: plan.seed,
            started: humantime::format_rfc3339_seconds(started).to_string(),
            ended: facts.ended,
            sending_seconds: rounded(facts.sending.as_secs_f64()),
            total_seconds: rounded(facts.total.as_secs_f64()),
            service: service_facts(kafka, service),
            ok: problems.is_empty(),
            problems,
            doubts,
            window,
            generator: Generator {
                late_p99_seconds: rounded(account.lateness.quantile(0.99)),
                late_max_seconds: rounded(account.lateness.quantile(1.0)),
            },
            totals: client_report("total", totals, facts.sending),
            clients: clients
                .map(|(client, counts)| client_report(&client.load.id, counts.clone(), facts.sending))
                .collect(),
            series: SeriesReport {
                bucket_seconds: width.as_secs_f64(),
                clients: series.clone(),
                delay_seconds: delays.iter().map(|at| (at.count() > 0).then(|| Quantiles::of(at))).collect(),
            },
        }
    }

    pub fn was_read(&self) -> bool {
        self.ended != Ended::NotReadBack
    }
}

fn service_facts(kafka: &Kafka, service: &Service) -> ServiceFacts {
    let policy = &service.policy;
    ServiceFacts {
        name: service.name.clone(),
        target: service.targets().join(", "),
        dead_letter: service.dead_letters().join(", "),
        mode: policy.mode.into_str(),
        enforce: policy.enforce,
        delivery: kafka.delivery.to_string(),
        capacity: policy.capacity,
        cycle_seconds: policy.cycle.as_secs_f64(),
    }
}

/// The most records admitted in any window of one cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowReport {
    /// Counts the records of this run.
    pub most_admitted: u64,
    /// Counts the records of other producers, too.
    pub most_with_others: u64,
    /// The capacity and a round: the promise is about decisions, and a round may be appended late.
    pub allowed: u64,
    pub by: MeasuredBy,
    pub promise: Promise,
}

/// The clock that tells when a record was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredBy {
    /// The append time of the target.
    AppendTime,
    /// The arrival at the watcher.
    Arrival,
}

/// The judgement on the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    Kept,
    Broken,
    /// Too many records arrived at once, but a slow watcher sees that, too.
    NotKnown,
    /// `enforce = false` promises nothing.
    NotGiven,
    NotRead,
}

impl WindowReport {
    pub fn new(account: &Account, policy: &Policy, read: bool) -> WindowReport {
        let own = &account.admitted_at;
        let most_admitted = busiest(policy.cycle, own.iter().copied());
        let most_with_others = busiest(policy.cycle, own.iter().chain(&account.foreign_at).copied());
        let by = if account.by_arrival { MeasuredBy::Arrival } else { MeasuredBy::AppendTime };
        let allowed = policy.capacity.saturating_add(round(policy));
        let promise = match (read, policy.enforce, most_admitted <= allowed, by) {
            (false, ..) => Promise::NotRead,
            (_, false, ..) => Promise::NotGiven,
            (.., true, _) => Promise::Kept,
            (.., MeasuredBy::AppendTime) => Promise::Broken,
            (.., MeasuredBy::Arrival) => Promise::NotKnown,
        };
        WindowReport { most_admitted, most_with_others, allowed, by, promise }
    }
}

/// Returns the largest number of times in any window (t − length, t]. Append times are cut to milliseconds, so two of
/// them that are less than `length` apart really were.
pub fn busiest(length: Duration, times: impl Iterator<Item = Duration>) -> u64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let (mut first, mut most) = (0, 0);
    for (last, at) in times.iter().enumerate() {
        while *at - times[first] >= length {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

/// Returns the most records of one round. In shape mode, the leaky bucket lets its depth through at once, and more
/// while it drains until the next commit. In reject mode, all records that the window has room for may be admitted at
/// once.
pub fn round(policy: &Policy) -> u64 {
    let records_in = |time: Duration| {
        let records = u128::from(policy.capacity) * time.as_nanos();
        u64::try_from(records.div_ceil(policy.cycle.as_nanos().max(1))).unwrap_or(u64::MAX)
    };
    let burst = (u128::from(policy.capacity) * u128::from(policy.burst.millionths())).div_ceil(1_000_000);
    let depth = u64::try_from(burst).unwrap_or(u64::MAX).max(records_in(policy.commit_interval * 2)).max(1);
    let most = match policy.mode {
        Mode::Shape => depth.saturating_add(records_in(policy.commit_interval + JITTER)),
        Mode::Reject => policy.capacity,
    };
    most.min(MAX_ROUND)
}

fn problems(totals: &ClientCounts, window: &WindowReport, delivery: Delivery) -> Vec<String> {
    let ClientCounts { lost, duplicated, .. } = totals;
    let WindowReport { most_admitted, allowed, promise, .. } = window;
    applicable([
        (*lost > 0, format!("{lost} records were lost: completed by the service, but in neither topic")),
        (*duplicated > 0 && delivery == Delivery::ExactlyOnce, format!("{duplicated} records came out again")),
        (
            *promise == Promise::Broken,
            format!("the promise was broken: {most_admitted} admitted in one cycle, {allowed} allowed"),
        ),
    ])
}

fn doubts(account: &Account, totals: &ClientCounts, window: &WindowReport, delivery: Delivery) -> Vec<String> {
    let ClientCounts { duplicated, not_acknowledged, .. } = totals;
    let WindowReport { most_admitted, allowed, promise, .. } = window;
    let (before_due, foreign) = (account.before_due, account.foreign_at.len());
    let reason = account.last_failure.as_deref().unwrap_or("no answer");
    applicable([
        (
            *duplicated > 0 && delivery == Delivery::AtLeastOnce,
            format!("{duplicated} records came out again, as at_least_once allows after a crash"),
        ),
        (*not_acknowledged > 0, format!("{not_acknowledged} records were not acknowledged by the brokers ({reason})")),
        (
            before_due > 0,
            format!(
                "{before_due} records have timestamps before they were sent: the brokers' clock is behind this \
                 machine's, delays are too small"
            ),
        ),
        (
            *promise == Promise::NotKnown,
            format!(
                "{most_admitted} arrived in one cycle, {allowed} allowed: a reader that fell behind sees that, too; \
                 message.timestamp.type = LogAppendTime on the target settles it"
            ),
        ),
        (foreign > 0, format!("{foreign} records of other producers came out of the target meanwhile")),
    ])
}

fn applicable<const N: usize>(sentences: [(bool, String); N]) -> Vec<String> {
    sentences.into_iter().filter(|(applies, _)| *applies).map(|(_, sentence)| sentence).collect()
}

fn client_report(name: &str, counts: ClientCounts, sending: Duration) -> ClientReport {
    let per_second = |count: u64, time: Duration| rounded(count as f64 / time.as_secs_f64().max(0.001));
    ClientReport {
        name: name.to_owned(),
        sent_per_second: per_second(counts.sent, sending),
        admitted_per_second: per_second(counts.admitted, counts.last_admitted),
        delay_seconds: Quantiles::of(&counts.delays),
        counts,
    }
}

impl Quantiles {
    fn of(delays: &Delays) -> Quantiles {
        let [p50, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|quantile| rounded(delays.quantile(quantile)));
        Quantiles { p50, p95, p99, max }
    }
}

/// Rounds to a thousandth; the result is finite.
fn rounded(number: f64) -> f64 {
    if number.is_finite() { (number * 1_000.0).round() / 1_000.0 } else { 0.0 }
}

#[cfg(test)]
mod tests;
