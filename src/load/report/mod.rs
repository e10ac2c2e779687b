//! What came of a run: numbers first ([`Report`], which is also the JSON), then the same for people (`text`, `html`).

mod html;
mod plot;
mod text;
mod window;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::account::{Account, Counts};
use super::series::{Series, What};
pub use html::html;
pub use text::text;
use watermaster_settings::{Delivery, Kafka, Service};
pub use window::{Promise, Window};

/// So many points a plot has at most, and its table so many rows.
const POINTS: usize = 120;

/// What is known beside the books.
#[derive(Debug, Clone)]
pub struct Facts {
    pub run: String,
    /// Microseconds since 1970.
    pub started_us: u64,
    pub ended: Ended,
    /// Until the schedule was played, or interrupted.
    pub sending: Duration,
    pub total: Duration,
    /// Why it is not known whether what waits is lost.
    pub unknown: Option<String>,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All that was sent came out.
    AccountedFor,
    /// Nothing came out any more.
    NoProgress,
    Interrupted,
    NotReadBack,
}

/// What `--output json` prints; `docs/load.md` describes it. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Nothing was lost or duplicated, and the promise was not broken.
    pub ok: bool,
    /// Everything that makes it not ok, and everything that makes the numbers doubtful, in words.
    pub problems: Vec<String>,
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

/// How well the generator kept to its schedule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generator {
    pub late_p99_seconds: f64,
    pub late_max_seconds: f64,
}

/// One client, or all of them: sent = admitted + rejected + waiting + lost + not_acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientReport {
    pub name: String,
    pub sent: u64,
    pub retries: u64,
    pub admitted: u64,
    pub rejected: BTreeMap<String, u64>,
    pub waiting: u64,
    pub lost: u64,
    pub not_acknowledged: u64,
    pub duplicated: u64,
    /// While it was sent.
    pub sent_per_second: f64,
    /// From the start until the last was admitted.
    pub admitted_per_second: f64,
    /// From the intended time of the first attempt until it was in the target.
    pub delay_seconds: Quantiles,
}

/// Delays of what was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// What happened over time, one number for each bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeriesReport {
    pub bucket_seconds: f64,
    pub clients: Vec<ClientSeries>,
    /// Of what was admitted in each; `null` where nothing was.
    pub delay_seconds: Vec<Option<Quantiles>>,
}

/// One client's records in each bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientSeries {
    pub name: String,
    pub sent: Vec<u64>,
    pub admitted: Vec<u64>,
    pub rejected: Vec<u64>,
}

impl Report {
    /// Sums up.
    pub fn new(account: &Account, kafka: &Kafka, service: &Service, facts: Facts) -> Report {
        let plan = account.plan();
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
                late_p99_seconds: rounded(account.lag().quantile(0.99)),
                late_max_seconds: rounded(account.lag().quantile(1.0)),
            },
            totals,
            clients: names.clone().zip(account.clients()).map(client).collect(),
            series: series_report(&account.series().coarse(POINTS), names),
        }
    }

    /// Records per second that the service takes.
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
        mode: policy.mode.as_str(),
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
    if totals.lost > 0 {
        problems.push(format!("{} records were lost: completed by the service, but in neither topic", totals.lost));
    }
    if totals.duplicated > 0 && delivery == Delivery::ExactlyOnce {
        problems.push(format!("{} records came out again", totals.duplicated));
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
    if totals.duplicated > 0 && delivery == Delivery::AtLeastOnce {
        doubts.push(format!("{} records came out again, as at_least_once allows after a crash", totals.duplicated));
    }
    if totals.not_acknowledged > 0 {
        let why = account.last_trouble().unwrap_or("no answer");
        doubts.push(format!("{} records were not acknowledged by the brokers ({why})", totals.not_acknowledged));
    }
    if account.before_sent() > 0 {
        doubts.push(format!(
            "{} records were stamped before they were sent: the brokers' clock is behind this machine's, delays are too small",
            account.before_sent()
        ));
    }
    if window.promise == Promise::NotKnown {
        doubts.push(format!(
            "{} arrived in one cycle, {} allowed: a reader that fell behind sees that too; \
             message.timestamp.type = LogAppendTime on the target would tell",
            window.most_admitted, window.allowed
        ));
    }
    if !account.foreign_at().is_empty() {
        doubts.push(format!("{} records of others came out of the target meanwhile", account.foreign_at().len()));
    }
    if let Some(why) = &facts.unknown {
        doubts.push(format!("whether what waits is lost is not known: {why}"));
    }
    doubts
}

fn client_report(name: &str, counts: &Counts, sending: Duration) -> ClientReport {
    let per_second = |count: u64, time: Duration| rounded(count as f64 / time.as_secs_f64().max(0.001));
    ClientReport {
        name: name.to_owned(),
        sent: counts.sent,
        retries: counts.retries,
        admitted: counts.admitted,
        rejected: counts.rejected.clone(),
        waiting: counts.waiting,
        lost: counts.lost,
        not_acknowledged: counts.not_acknowledged,
        duplicated: counts.duplicated,
        sent_per_second: per_second(counts.sent, sending),
        admitted_per_second: if counts.admitted == 0 { 0.0 } else { per_second(counts.admitted, counts.last_admitted) },
        delay_seconds: Quantiles::of(&counts.delays),
    }
}

impl Quantiles {
    fn of(delays: &super::series::Delays) -> Quantiles {
        let [p50, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|quantile| rounded(delays.quantile(quantile)));
        Quantiles { p50, p95, p99, max }
    }
}

fn series_report<'a>(series: &Series, names: impl Iterator<Item = &'a str>) -> SeriesReport {
    let buckets = series.buckets();
    let column =
        |client: usize, what: What| buckets.iter().map(|bucket| bucket.counts[client][what as usize]).collect();
    let client = |(index, name): (usize, &str)| ClientSeries {
        name: name.to_owned(),
        sent: column(index, What::Sent),
        admitted: column(index, What::Admitted),
        rejected: column(index, What::Rejected),
    };
    let delays = buckets.iter().map(|bucket| (bucket.delays.count() > 0).then(|| Quantiles::of(&bucket.delays)));
    SeriesReport {
        bucket_seconds: series.width().as_secs_f64(),
        clients: names.enumerate().map(client).collect(),
        delay_seconds: delays.collect(),
    }
}

/// To a thousandth; finite.
fn rounded(number: f64) -> f64 {
    if number.is_finite() { (number * 1_000.0).round() / 1_000.0 } else { 0.0 }
}

#[cfg(test)]
mod tests;
