//! Recalls across instances: how soon a client that lent its share gets it back, while the other instances saturate.

use std::time::{Duration, Instant};

use crate::rig::{Rig, TargetTime, now_ms};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::Record;
use crate::{support::broker::Broker, support::watermaster::Watermaster};

/// 1 000 records per second; each of the six clients has a sixth of them.
const CAPACITY: u64 = 10_000;
const SHARE_PER_SECOND: u64 = CAPACITY / 10 / 6;
const FLOOD_PER_SECOND: u64 = 1_200;
/// One of the three lenders comes back in each interval, sends for the first part of it, and rests in the next two.
const INTERVAL: Duration = Duration::from_millis(1_500);
const SENDS_FOR: Duration = Duration::from_millis(1_200);
const LENDER_PER_SECOND: u64 = SHARE_PER_SECOND * 3 / 2;
const WARM_UP: Duration = Duration::from_secs(25);
/// The window in which a client has its full share if it holds 90 % of it.
const MEASURED_OVER: i64 = 200;
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends the flood of three clients all the time, and lets the lenders come back one after the other.
fn send(producer: &Producer, rig: &Rig, recalls: u64) {
    let (began, mut number, mut flooded) = (Instant::now(), 0, 0);
    let mut lent = vec![0; recalls as usize];
    while began.elapsed() < WARM_UP + INTERVAL * recalls as u32 {
        let mut put = |client: String, recall: Option<u64>| {
            let mut record = Outgoing::numbered(&rig.sources[number as usize % 2], number, &client);
            if let Some(recall) = recall {
                (record.topic, record.partition) = (rig.sources[0].clone(), Some((recall % 3) as i32));
                record.headers.push(("recall".to_owned(), Some(recall.to_string().into_bytes())));
            }
            record.headers.push(("sent".to_owned(), Some(now_ms().to_string().into_bytes())));
            producer.send(&record);
            number += 1;
        };
        let due = began.elapsed().as_millis() as u64 * FLOOD_PER_SECOND / 1_000;
        (flooded..due).for_each(|n| put(format!("flood-{}", n % 3), None));
        flooded = flooded.max(due);
        if let Some(since) = began.elapsed().checked_sub(WARM_UP) {
            let recall = (since.as_millis() / INTERVAL.as_millis()) as u64;
            let since = Duration::from_millis((since.as_millis() % INTERVAL.as_millis()) as u64).min(SENDS_FOR);
            if let Some(sent) = lent.get_mut(recall as usize) {
                let due = since.as_millis() as u64 * LENDER_PER_SECOND / 1_000;
                (*sent..due).for_each(|_| put(format!("lender-{}", recall % 3), Some(recall)));
                *sent = due.max(*sent);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    producer.flush();
}

/// The times of the recalls in ms: from the first record until it was appended to the target, and until a window began
/// that holds the client's share.
#[derive(Default)]
struct Recalls {
    first: Vec<i64>,
    full: Vec<i64>,
}

impl Recalls {
    fn of(target: &[Record], recalls: u64) -> Recalls {
        let mut found = Recalls::default();
        for recall in 0..recalls {
            let name = recall.to_string();
            let of_recall = target.iter().filter(|record| record.header("recall") == Some(&name));
            let sent = |record: &Record| record.header("sent").and_then(|at| at.parse::<i64>().ok()).expect("a time");
            let mut times: Vec<(i64, i64)> = of_recall.map(|record| (sent(record), record.timestamp)).collect();
            times.sort_unstable();
            let Some(&(began, first)) = times.first() else { continue };
            found.first.push(first - began);
            let mut appended: Vec<i64> = times.iter().map(|(_, at)| *at).collect();
            appended.sort_unstable();
            let least = (SHARE_PER_SECOND * MEASURED_OVER as u64 / 1_000 * 9 / 10) as usize;
            let full = appended.windows(least).find(|window| window[least - 1] - window[0] <= MEASURED_OVER);
            found.full.push(full.map_or(i64::MAX, |window| window[0] - began));
        }
        found.first.sort_unstable();
        found.full.sort_unstable();
        found
    }
}

/// The value below which `percent` of the sorted values lie.
fn quantile(sorted: &[i64], percent: usize) -> i64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn run(broker: &Broker, name: &str, instances: &[&'static str], scope: &str, recalls: u64) -> Recalls {
    let rig = Rig::new(broker, name, 2, 3, TargetTime::Append);
    let tables = "[service.shape]\nqueue_capacity = 200000\nmax_delay = \"10m\"";
    let keys = format!("client_from = [\"header:client-id\"]\nscope = {scope:?}");
    let mut config = rig.config(rig.service(CAPACITY, "10s", &keys, tables));
    (config.commit_interval, config.kafka) = ("20ms", "delivery = \"exactly_once\"".to_owned());
    let mut running = Watermaster::start_all(&config, instances);
    send(&Producer::to(broker), &rig, recalls);
    for instance in &running {
        let exchange = |part: &str| instance.metric(&format!("watermaster_group_exchange_seconds_{part}"), &[]);
        if let (Some(sum), Some(count @ 1.0..)) = (exchange("sum"), exchange("count")) {
            eprintln!("{name}: {count} states, read back after {:.1} ms on average", sum / count * 1_000.0);
        }
    }
    running.iter_mut().for_each(|instance| _ = instance.terminate(START_TIMEOUT));
    let found = Recalls::of(&rig.read_target(), recalls);
    let of = |sorted: &[i64]| [50, 90, 99].map(|percent| quantile(sorted, percent));
    let (count, first, full) = (found.first.len(), of(&found.first), of(&found.full));
    eprintln!("{name}: {count} recalls; first record after {first:?} ms, full share after {full:?} ms (p50, p90, p99)");
    assert_eq!(count as u64, recalls, "each recall sends a record");
    found
}

mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka, and takes seven minutes: scripts/test --long"]
    fn a_lender_gets_its_share_back_from_other_instances() {
        let broker = Broker::of_this_run();
        let alone = run(&broker, "recall-alone", &["wm-0"], "instance", 60);
        let group = run(&broker, "recall-group", &["wm-0", "wm-1", "wm-2"], "group", 200);
        let [alone, first] = [&alone.first, &group.first].map(|sorted| quantile(sorted, 99));
        assert!(first <= alone + 100, "the first record of a lender waits for {first} ms, in one instance for {alone}");
        let [half, most] = [50, 99].map(|percent| quantile(&group.full, percent));
        assert!(half <= 500 && most <= 2_000, "a lender has its share back after {half} ms (median), {most} ms (p99)");
    }
}
