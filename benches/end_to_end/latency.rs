//! How long a record is on its way: from sending it to reading it from the target, committed.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::measure::Running;
use crate::options::Options;
use crate::results::sorted;
use crate::runner::{Route, Runner};
use crate::topics::Topics;
use crate::workload::{self, Workload};

/// What a program does first takes longer; those records are not counted.
const WARM_UP: Duration = Duration::from_secs(3);
/// The longest time that nothing arrives.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints percentiles of each program, all runs together.
pub fn compare(broker: &str, options: &Options, runners: &[Runner]) {
    let workload = options.workload();
    let topics = Topics::new(broker, workload.partitions);
    let mut all = vec![Vec::new(); runners.len()];
    for pair in 0..options.pairs {
        for step in 0..runners.len() {
            let n = if pair % 2 == 0 { step } else { runners.len() - 1 - step };
            eprintln!("pair {} of {}: {}", pair + 1, options.pairs, runners[n].name);
            all[n].extend(run(broker, &topics, &workload, &runners[n], &format!("latency-{pair}-{n}")));
        }
    }
    println!("\n{workload}");
    println!("Milliseconds from sending to reading from the target, committed.\n");
    println!("{:<28} {:>8} {:>8} {:>8} {:>8} {:>10}", "", "p50", "p99", "p99.9", "largest", "records");
    for (runner, millis) in runners.iter().zip(all) {
        let millis = sorted(millis.into_iter());
        let at = |part: f64| millis[((millis.len() - 1) as f64 * part) as usize];
        println!(
            "{:<28} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>10}",
            runner.name,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            millis.len()
        );
    }
}

fn run(broker: &str, topics: &Topics, workload: &Workload, runner: &Runner, name: &str) -> Vec<f64> {
    let target = format!("bench-{}-{name}", std::process::id());
    let (source, dead_letter) = (format!("{target}-source"), format!("{target}-dead"));
    [&target, &source, &dead_letter].into_iter().for_each(|topic| topics.create(topic));
    let route = Route { broker, source: &source, target: &target, dead_letter: &dead_letter };
    let mut start = runner.start(workload, route);
    let child = Running(start.command.spawn().expect("the forwarder starts"));
    let began = Instant::now();
    let millis = thread::scope(|scope| {
        scope.spawn(|| workload::send(broker, &source, workload, began));
        read(broker, &target, workload.records, began)
    });
    drop(child);
    [&target, &source, &dead_letter].into_iter().for_each(|topic| topics.delete(topic));
    millis
}

fn read(broker: &str, target: &str, records: u64, began: Instant) -> Vec<f64> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("group.id", format!("{target}-reader"))
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "10")
        .create()
        .expect("a consumer");
    consumer.subscribe(&[target]).expect("a subscription");
    let (mut millis, mut read, mut last) = (Vec::new(), 0, Instant::now());
    while read < records {
        assert!(last.elapsed() < PATIENCE, "{read} of {records} records arrived");
        // Nothing also means that the group did something.
        let Some(message) = consumer.poll(Duration::from_secs(1)) else { continue };
        let message = message.expect("a record");
        let sent = workload::sent_at(message.payload().expect("a value")).expect("a value of ours");
        if sent > WARM_UP {
            millis.push((began.elapsed().saturating_sub(sent)).as_secs_f64() * 1e3);
        }
        (read, last) = (read + 1, Instant::now());
    }
    millis
}
