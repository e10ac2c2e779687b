//! The result of a run: [`Report`], which is also the JSON, and two forms for people (`text`, `html`).

mod html;
mod plot;
mod text;
pub(crate) mod window;

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use watermaster_settings::{Delivery, Kafka, Service};

use super::account::{Account, Counts};
use super::lost::CompletedError;
use super::series::{Delays, Outcomes, Series};
pub use html::html;
pub use text::text;
use window::{Promise, Window};

/// The most points of a plot and rows of its table.
const MAX_POINTS: usize = 120;

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
pub struct Report {
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
    /// No record was lost or duplicated, and the promise was not broken.
    pub ok: bool,
    /// Reasons why the run is not ok.
    pub problems: Vec<String>,
    /// Reasons to doubt the numbers.
    pub doubts: Vec<String>,
    pub window: Window,
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
    pub delivery: &'static str,
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
    pub counts: Counts,
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

/// The records of one client in each bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientSeries {
    pub name: String,
    pub sent: Vec<u64>,
    pub admitted: Vec<u64>,
    pub rejected: Vec<u64>,
}

impl Report {
    /// Sums up an account.
    pub fn new(account: &Account, kafka: &Kafka, service: &Service, facts: Facts) -> Report {
        let plan = &account.plan;
        let read = facts.ended != Ended::NotReadBack;
        let window = Window::new(account, &service.policy, read);
        let client = |(name, counts): (&str, &Counts)| client_report(name, counts, facts.sending);
        let names = plan.clients.iter().map(|client| client.id.as_str());
        let totals = client(("total", &account.total()));
        let problems = problems(&totals, &window, kafka.delivery);
        let started = UNIX_EPOCH + Duration::from_micros(facts.started_us);
        Report {
            run: facts.run.clone(),
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
            doubts: doubts(account, &totals, &window, kafka.delivery, &facts),
            window,
            generator: Generator {
                late_p99_seconds: rounded(account.lateness.quantile(0.99)),
                late_max_seconds: rounded(account.lateness.quantile(1.0)),
            },
            totals,
            clients: names.clone().zip(&account.clients).map(client).collect(),
            series: series_report(&account.series.coarse(MAX_POINTS), names),
        }
    }

    /// Returns the capacity in records per second.
    pub fn capacity_per_second(&self) -> f64 {
        self.service.capacity as f64 / self.service.cycle_seconds
    }
}

fn service_facts(kafka: &Kafka, service: &Service) -> ServiceFacts {
    let policy = &service.policy;
    ServiceFacts {
        name: service.name.clone(),
        target: service.target.clone(),
        dead_letter: service.dead_letter.clone(),
        mode: policy.mode.into_str(),
        enforce: policy.enforce,
        delivery: match kafka.delivery {
            Delivery::ExactlyOnce => "exactly_once",
            Delivery::AtLeastOnce => "at_least_once",
        },
        capacity: policy.capacity,
        cycle_seconds: policy.cycle.as_secs_f64(),
    }
}

fn problems(totals: &ClientReport, window: &Window, delivery: Delivery) -> Vec<String> {
    let mut problems = Vec::new();
    if totals.counts.lost > 0 {
        problems
            .push(format!("{} records were lost: completed by the service, but in neither topic", totals.counts.lost));
    }
    if totals.counts.duplicated > 0 && delivery == Delivery::ExactlyOnce {
        problems.push(format!("{} records came out again", totals.counts.duplicated));
    }
    if window.promise == Promise::Broken {
        problems.push(format!(
            "the promise was broken: {} admitted in one cycle, {} allowed",
            window.most_admitted, window.allowed
        ));
    }
    problems
}

fn doubts(account: &Account, totals: &ClientReport, window: &Window, delivery: Delivery, facts: &Facts) -> Vec<String> {
    let mut doubts = Vec::new();
    if totals.counts.duplicated > 0 && delivery == Delivery::AtLeastOnce {
        doubts.push(format!(
            "{} records came out again, as at_least_once allows after a crash",
            totals.counts.duplicated
        ));
    }
    if totals.counts.not_acknowledged > 0 {
        let reason = account.last_failure.as_deref().unwrap_or("no answer");
        doubts.push(format!(
            "{} records were not acknowledged by the brokers ({reason})",
            totals.counts.not_acknowledged
        ));
    }
    if account.before_due > 0 {
        doubts.push(format!(
            "{} records have timestamps before they were sent: the brokers' clock is behind this machine's, \
             delays are too small",
            account.before_due
        ));
    }
    if window.promise == Promise::NotKnown {
        doubts.push(format!(
            "{} arrived in one cycle, {} allowed: a reader that fell behind sees that, too; \
             message.timestamp.type = LogAppendTime on the target settles it",
            window.most_admitted, window.allowed
        ));
    }
    if !account.foreign_at.is_empty() {
        doubts
            .push(format!("{} records of other producers came out of the target meanwhile", account.foreign_at.len()));
    }
    if let Some(error) = &facts.unknown {
        doubts.push(format!("waiting records may be lost: {error}"));
    }
    doubts
}

fn client_report(name: &str, counts: &Counts, sending: Duration) -> ClientReport {
    let per_second = |count: u64, time: Duration| rounded(count as f64 / time.as_secs_f64().max(0.001));
    ClientReport {
        name: name.to_owned(),
        counts: counts.clone(),
        sent_per_second: per_second(counts.sent, sending),
        admitted_per_second: if counts.admitted == 0 { 0.0 } else { per_second(counts.admitted, counts.last_admitted) },
        delay_seconds: Quantiles::of(&counts.delays),
    }
}

impl Quantiles {
    fn of(delays: &Delays) -> Quantiles {
        let [p50, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|quantile| rounded(delays.quantile(quantile)));
        Quantiles { p50, p95, p99, max }
    }
}

fn series_report<'a>(series: &Series, names: impl Iterator<Item = &'a str>) -> SeriesReport {
    let buckets = &series.buckets;
    let column =
        |client: usize, of: fn(&Outcomes) -> u64| buckets.iter().map(|bucket| of(&bucket.clients[client])).collect();
    let client = |(index, name): (usize, &str)| ClientSeries {
        name: name.to_owned(),
        sent: column(index, |outcomes| outcomes.sent),
        admitted: column(index, |outcomes| outcomes.admitted),
        rejected: column(index, |outcomes| outcomes.rejected),
    };
    let delays = buckets.iter().map(|bucket| (bucket.delays.count() > 0).then(|| Quantiles::of(&bucket.delays)));
    SeriesReport {
        bucket_seconds: series.width.as_secs_f64(),
        clients: names.enumerate().map(client).collect(),
        delay_seconds: delays.collect(),
    }
}

/// Rounds to a thousandth; the result is finite.
fn rounded(number: f64) -> f64 {
    if number.is_finite() { (number * 1_000.0).round() / 1_000.0 } else { 0.0 }
}

#[cfg(test)]
mod tests;
