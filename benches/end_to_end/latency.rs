//! Measures latency: the time from sending a record to reading it, committed, from the target.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Message as _, config::ClientConfig};
use serde_json::json;

use crate::figures::{Spread, quantile, sorted};
use crate::workload::{self, Workload};
use crate::{options::Options, report::Report, runner::Runner, table, topics::Topics, turns::in_turn};

/// Records sent in this time are not counted: a program that has just started is slower.
const WARM_UP: Duration = Duration::from_secs(3);
/// The time without an arrival after which a run counts as failed.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);

const HEADS: [&str; 10] =
    ["commit ms", "load %", "records/s", "", "p50", "p99", "p99.9", "largest", "added p99", "records"];

/// Prints the percentiles of each program over all its runs, for each commit interval and load.
pub fn sweep(broker: &str, options: &Options, report: &Report) {
    let topics = Topics::new(broker, options.workload().partitions);
    let mut rows = Vec::new();
    for &interval in &options.commit_intervals {
        for &load in &options.load {
            let (workload, runners) = (options.steady(load), options.runners(interval));
            eprintln!("commit interval {interval} ms: {workload}");
            let runs = in_turn(options.pairs(), &runners, |runner| {
                let millis = sorted(run(&topics, &workload, Some(runner)).into_iter());
                eprintln!("p50 {:.1} ms, p99 {:.1} ms", quantile(&millis, 0.5), quantile(&millis, 0.99));
                millis
            });
            let hops = (0..options.pairs()).map(|_| run(&topics, &workload, None));
            let all = [percentiles(&runners, runs), vec![Percentiles::of(HOP, interval, hops.flatten())]].concat();
            report.add("latency", json!({ "workload": workload.to_string(), "load": load, "programs": all }));
            let rate = workload.records as f64 / workload.lasts().as_secs_f64();
            let point = [interval.to_string(), load.to_string(), format!("{rate:.0}")];
            rows.extend(all.iter().map(|row| point.iter().cloned().chain(row.cells()).collect::<Vec<_>>()));
        }
    }
    println!("\nMilliseconds from sending a record to reading it, committed, from the target; all runs together.");
    println!("added p99: p99 of a run minus p99 of the loop in the same pair; median (smallest–largest).");
    println!("{HOP}: from sending a record to reading it from the topic to which it was sent.\n");
    table::print(4, &HEADS, &rows);
}

/// The name of the row without a program.
const HOP: &str = "one hop";

/// Latencies of a program in milliseconds, over all its runs.
#[derive(Clone, serde::Serialize)]
struct Percentiles {
    name: String,
    commit_interval_ms: u64,
    p50: f64,
    p99: f64,
    p999: f64,
    largest: f64,
    /// p99 minus that of the loop, pair by pair.
    added_p99: Option<Spread>,
    records: usize,
}

/// Computes the percentiles of each program. The latencies of each run come in ascending order.
fn percentiles(runners: &[Runner], runs: Vec<Vec<Vec<f64>>>) -> Vec<Percentiles> {
    let p99s = |runs: &[Vec<f64>]| runs.iter().map(|millis| quantile(millis, 0.99)).collect::<Vec<_>>();
    let base = runners.iter().position(Runner::bare).map(|n| p99s(&runs[n]));
    let each = runners.iter().zip(runs).map(|(runner, runs)| {
        let compared = base.as_ref().filter(|_| !runner.bare());
        let added = compared.map(|base| Spread::of(p99s(&runs).iter().zip(base).map(|(p99, base)| p99 - base)));
        let all = runs.into_iter().flatten();
        Percentiles { added_p99: added, ..Percentiles::of(&runner.name, runner.commit_interval_ms, all) }
    });
    each.collect()
}

impl Percentiles {
    fn of(name: &str, commit_interval_ms: u64, millis: impl Iterator<Item = f64>) -> Percentiles {
        let all = sorted(millis);
        Percentiles {
            name: name.to_owned(),
            commit_interval_ms,
            p50: quantile(&all, 0.5),
            p99: quantile(&all, 0.99),
            p999: quantile(&all, 0.999),
            largest: quantile(&all, 1.0),
            added_p99: None,
            records: all.len(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let millis = [self.p50, self.p99, self.p999, self.largest].map(|millis| format!("{millis:.1}"));
        let added = self.added_p99.map_or(String::new(), |added| added.text(1));
        [self.name.clone()].into_iter().chain(millis).chain([added, self.records.to_string()]).collect()
    }
}

/// Measures the records' way through a program, or without one, from a source to its reader.
fn run(topics: &Topics, workload: &Workload, runner: Option<&Runner>) -> Vec<f64> {
    let sources = topics.sources(1);
    let (_created, routes) = topics.outputs_for(&sources);
    let _running = runner.map(|runner| runner.start(workload, topics.broker(), &routes));
    let route = &routes[0];
    let end = if runner.is_some() { &route.target } else { &route.source };
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| workload::send(topics.broker(), &route.source, workload, began));
        read(topics.broker(), end, workload.records, began)
    })
}

fn read(broker: &str, target: &str, records: u64, began: Instant) -> Vec<f64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("group.id", format!("{target}-reader"))
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "10")
        .create()
        .expect("the consumer configuration is valid");
    consumer.subscribe(&[target]).expect("the topic can be subscribed");
    let (mut millis, mut read, mut last) = (Vec::new(), 0, Instant::now());
    while read < records {
        assert!(last.elapsed() < ARRIVAL_TIMEOUT, "{read} of {records} records arrived");
        // `poll` also returns nothing after group events.
        let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
        let message = message.expect("the record can be read");
        let sent = workload::sent_at(message.payload().expect("the record has a value"))
            .expect("the value carries its send time");
        if sent > WARM_UP {
            millis.push((began.elapsed().saturating_sub(sent)).as_secs_f64() * 1e3);
        }
        (read, last) = (read + 1, Instant::now());
    }
    assert!(
        !millis.is_empty(),
        "all {records} records were sent within the warm-up of {WARM_UP:?}, which is not counted"
    );
    millis
}
