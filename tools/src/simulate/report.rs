//! The result of a simulation: [`WhatIf`], which is also the JSON, and its form for people.

use std::{fmt::Write, iter, time::Duration};

use itertools::Itertools as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use watermaster_api::rfc3339;
use watermaster_settings::Service;

use super::find::{Bound, Goal, SearchResult};
use super::live::{self, Comparison};
use super::replay::{Outcome, ReplayOptions};
use super::sweep::Rules;
use super::tally::ClientResult;
use crate::format::{printable, seconds};
use crate::trace_file::Contents;

/// The result of all simulations of a trace.
#[derive(Serialize)]
pub struct WhatIf {
    service: String,
    #[serde(rename = "cycle_seconds", serialize_with = "in_seconds")]
    cycle: Duration,
    #[serde(rename = "threshold_seconds", serialize_with = "in_seconds")]
    threshold: Duration,
    /// The extent of the trace, for people and as JSON.
    #[serde(skip)]
    extent: String,
    trace: Value,
    /// Reasons to doubt the numbers.
    notes: Vec<String>,
    pub points: Vec<Point>,
    pub answers: Vec<FoundCapacity>,
    /// A live run beside the only point, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<Vec<Comparison>>,
}

/// One simulation.
pub struct Point {
    pub rules: Rules,
    pub capacity: u64,
    pub outcome: Outcome,
}

/// The answer to a goal under some rules.
pub struct FoundCapacity {
    pub rules: Rules,
    pub goal: Goal,
    /// The largest capacity that was tried.
    pub largest: u64,
    pub found: SearchResult,
}

impl WhatIf {
    pub fn new(contents: &Contents, service: &Service, options: &ReplayOptions) -> WhatIf {
        WhatIf {
            service: service.name.clone(),
            cycle: service.policy.cycle,
            threshold: options.threshold,
            extent: contents.extent(),
            trace: json!({
                "records": contents.records(), "clients": contents.clients.len(),
                "partitions": contents.partitions.len(),
                "from": rfc3339(contents.first_ms), "to": rfc3339(contents.last_ms),
            }),
            notes: notes(contents, service, options),
            points: Vec::new(),
            answers: Vec::new(),
            live: None,
        }
    }

    /// Returns a sentence about the trace.
    pub fn title(&self) -> String {
        format!("{}: {}", self.service, self.extent)
    }

    /// Returns whether every question has an answer.
    pub fn has_answers(&self) -> bool {
        self.answers.iter().all(|answer| answer.found.answer.is_some())
    }

    /// Returns whether every number of the live run agrees with the simulated one.
    pub fn agrees(&self) -> bool {
        self.live.iter().flatten().all(|one| one.agrees)
    }
}

fn notes(contents: &Contents, service: &Service, options: &ReplayOptions) -> Vec<String> {
    let (late, gaps, retried) = (contents.sum(|at| at.late), contents.sum(|at| at.gaps), contents.retried);
    let mut topics = contents.partitions.iter().map(|partition| &partition.topic);
    let foreign = topics.find(|topic| service.sources.iter().all(|source| source.topic != **topic));
    let share = 100.0 * retried as f64 / contents.records().max(1) as f64;
    let policy = &service.policy;
    let next = |at: &i64| policy.rules.next_change(*at).filter(|next| *next <= contents.last_ms as i64);
    let times = iter::successors(Some(contents.first_ms as i64), next);
    let notes = [
        (!times.map(|at| policy.at(at).capacity).all_equal())
            .then(|| "rules change the capacity within the trace: the one at its end is shown".to_owned()),
        (!service.policy.enforce).then(|| "enforce = false: the numbers are those of enforcing".to_owned()),
        foreign
            .filter(|_| !contents.service.is_empty())
            .map(|topic| format!("the trace has records of {topic}, which is no source of {}", service.name)),
        (retried > 0 && !options.drop_retried).then(|| {
            format!("{share:.1} % of the records are retries, which other rules might not have caused: --retries drop")
        }),
        (contents.hashed_ids && !service.policy.groups.is_empty())
            .then(|| "the ids of clients are hashed: the groups of the service have none".to_owned()),
        (late > 0).then(|| format!("{late} records were more than 1 s older than the record before them")),
        (gaps > 0).then(|| format!("{gaps} offsets hold no record: removed, or markers of transactions")),
    ];
    notes.into_iter().flatten().collect()
}

// ## JSON

fn in_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    time.as_secs_f64().serialize(serializer)
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Point { rules, capacity, outcome } = self;
        let point = json!({
            "mode": <&str>::from(rules.mode), "lending": <&str>::from(rules.lending), "capacity": capacity,
            "used": outcome.used, "largest_window": outcome.largest_window,
            "service": outcome.service, "all": outcome.total, "clients": outcome.clients,
        });
        point.serialize(serializer)
    }
}

impl Serialize for FoundCapacity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let point = self.point();
        let found = json!({
            "mode": <&str>::from(self.rules.mode), "lending": <&str>::from(self.rules.lending),
            "capacity": point.as_ref().map(|point| point.capacity),
            "largest_tried": self.largest, "simulations": self.found.runs, "monotone": self.found.monotone,
            "point": point,
        });
        found.serialize(serializer)
    }
}

// ## Text

/// Writes the report for a terminal, with at most `top` clients for each point.
pub fn text(report: &WhatIf, top: usize) -> String {
    let mut text = report.title() + "\n";
    for points in report.points.chunk_by(|one, other| one.rules == other.rules) {
        let _ = write!(text, "\n{}\n{}\n", title(points[0].rules, report), table(points, report, top));
        points.iter().for_each(|point| text.extend(beside(point, report)));
    }
    for answer in &report.answers {
        let _ = write!(text, "\n{}: {}\n", title(answer.rules, report), answer.sentence());
        if let Some(point) = answer.point() {
            let _ = writeln!(text, "{}", table(std::slice::from_ref(&point), report, top));
            text.extend(beside(&point, report));
        }
    }
    if let Some(live) = &report.live {
        let _ = write!(text, "\nbeside the live run\n{}\n", live::text(live));
    }
    for note in &report.notes {
        let _ = write!(text, "\nnote: {note}");
    }
    text.truncate(text.trim_end().len());
    text
}

fn title(rules: Rules, report: &WhatIf) -> String {
    let cycle = humantime::format_duration(report.cycle);
    format!("{}, {}, capacity per {cycle}", <&str>::from(rules.mode), <&str>::from(rules.lending))
}

impl FoundCapacity {
    /// Returns the simulation of the answer.
    fn point(&self) -> Option<Point> {
        let (capacity, outcome) = self.found.answer.clone()?;
        Some(Point { rules: self.rules, capacity, outcome })
    }

    fn sentence(&self) -> String {
        let client = self.goal.client.as_deref().map_or("each client".into(), printable);
        let goal = match self.goal.bound {
            Bound::P99(bound) => {
                format!("99 % of the records of {client} within {}", humantime::format_duration(bound))
            }
            Bound::Rejected(millionths) => format!("at most {} % of {client} rejected", f64::from(millionths) / 1e4),
        };
        let SearchResult { answer, runs, monotone } = &self.found;
        let doubt = if *monotone { "" } else { "; a step beside it does not agree: look at a sweep around it" };
        match answer {
            Some((capacity, _)) => format!("{capacity} is the smallest for {goal} ({runs} simulations){doubt}"),
            None => format!("no capacity up to {}, the largest window of the trace, keeps {goal}", self.largest),
        }
    }
}

fn table(points: &[Point], report: &WhatIf, top: usize) -> String {
    let above = format!("above {}", humantime::format_duration(report.threshold));
    let titles = [
        "capacity", "used", "window", "client", "records", "delayed", "rejected", "p50", "p99", "max", "backlog",
        &above,
    ];
    let mut table = crate::format::table(titles, Some(2), |index| index != 3);
    for point in points {
        let outcome = &point.outcome;
        let mut first =
            [point.capacity.to_string(), format!("{:.1} %", 100.0 * outcome.used), outcome.largest_window.to_string()];
        let (shown, hidden) = worst(&outcome.clients, top);
        for client in shown.into_iter().chain([&outcome.total]) {
            table.add_row(first.into_iter().chain(cells(client)));
            first = Default::default();
        }
        if hidden > 0 {
            table.add_row(first.into_iter().chain([format!("({hidden} clients are not shown)")]));
        }
    }
    table.trim_fmt()
}

/// Says what the table has no column for: retries, and the modelled service.
fn beside(point: &Point, report: &WhatIf) -> Option<String> {
    let (capacity, retries) = (point.capacity, point.outcome.total.retries);
    let mut parts = Vec::new();
    if retries > 0 {
        parts.push(format!("{retries} retries"));
    }
    if let Some(service) = &point.outcome.service {
        let delay = |delay: Option<f64>| delay.map_or("-".to_owned(), seconds);
        let above = humantime::format_duration(report.threshold);
        parts.push(format!(
            "records were in the service for {} (p99), {} at most, for more than {above} during {}; \
             at most {} at a time; it fell to {} % of its rate",
            delay(service.wait_seconds.p99),
            delay(service.wait_seconds.max),
            seconds(service.seconds_above),
            service.most_open,
            (100.0 * service.slowest).round(),
        ));
    }
    (!parts.is_empty()).then(|| format!("{capacity}: {}\n", parts.join("; ")))
}

/// Returns the clients with the longest delays and the most rejections, in their order, and the number of the others.
pub fn worst(clients: &[ClientResult], top: usize) -> (Vec<&ClientResult>, usize) {
    let mut order: Vec<usize> = (0..clients.len()).collect();
    let rank = |client: &ClientResult| {
        let millis = (client.delay_seconds.p99.unwrap_or(0.0) * 1e3) as u64;
        (std::cmp::Reverse((client.rejected_total(), millis)), client.name.clone())
    };
    order.sort_by_cached_key(|index| rank(&clients[*index]));
    order.truncate(top);
    order.sort_unstable();
    let hidden = clients.len() - order.len();
    (order.into_iter().map(|index| &clients[index]).collect(), hidden)
}

fn cells(client: &ClientResult) -> [String; 9] {
    let delay = |delay: Option<f64>| delay.map_or("-".to_owned(), seconds);
    let delays = &client.delay_seconds;
    [
        printable(&client.name).into_owned(),
        client.records.to_string(),
        client.delayed.to_string(),
        client.rejected_total().to_string(),
        delay(delays.p50),
        delay(delays.p99),
        delay(delays.max),
        client.backlog.records.to_string(),
        client.seconds_above.map_or(String::new(), seconds),
    ]
}
