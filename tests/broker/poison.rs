//! Records that the target refuses permanently, under `exactly_once`: they go to the dead-letter topic, or stop the
//! service if that topic refuses them too. Their neighbours are delayed by two rounds at most.

use std::time::Duration;

use watermaster_core::reason::Reason;

use crate::exactly_once::{STOP_TIMEOUT, config, follow};
use crate::rig::{DRAIN_TIMEOUT, Rig, an_hour_ago};
use crate::support::broker::{Broker, Topic};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::{Identity, Record};
use crate::{support::generator::Random, support::wait::wait_until, support::watermaster::Watermaster};

/// The number of records around the refused one.
const NEIGHBOURS: u64 = 10;
/// The exit code of a service that stops.
const STOPPED: i32 = 70;

/// Makes the topic refuse large records, records with tomorrow's timestamp and records without a key.
fn make_picky(topic: &mut Topic) {
    topic.set("max.message.bytes", "20000");
    topic.set("message.timestamp.after.max.ms", "3600000");
    topic.set("cleanup.policy", "compact");
}

fn good(rig: &Rig, n: u64) -> Outgoing {
    Outgoing::numbered(&rig.sources[0], n, "one")
}

/// Returns a record that is above the topic's limit, even when it is compressed.
fn too_large(rig: &Rig, n: u64) -> Outgoing {
    let value = [format!("{n}|").into_bytes(), Random(n).bytes(100_000)].concat();
    Outgoing { value: Some(value), ..good(rig, n) }
}

fn of_tomorrow(rig: &Rig, n: u64) -> Outgoing {
    Outgoing { timestamp: Some(an_hour_ago() + 25 * 3_600_000), ..good(rig, n) }
}

fn without_key(rig: &Rig, n: u64) -> Outgoing {
    Outgoing { key: None, ..good(rig, n) }
}

fn numbers(records: &[Record]) -> Vec<u64> {
    let mut numbers: Vec<u64> = records.iter().filter_map(|record| Identity::Value.of(record)).collect();
    numbers.sort_unstable();
    numbers
}

fn committed_rounds(watermaster: &Watermaster) -> f64 {
    watermaster.metric("watermaster_rounds_total", &["outcome=\"committed\""]).unwrap_or(0.0)
}

/// Returns the number of committed rounds, once the metrics show a lag of 0: they follow a commit within a second.
fn settled_rounds(watermaster: &Watermaster) -> f64 {
    let lag = || watermaster.metric("watermaster_consumer_lag_records", &[]);
    wait_until("all records to be committed", DRAIN_TIMEOUT, || lag() == Some(0.0));
    committed_rounds(watermaster)
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_kind_of_refused_record_is_rejected_within_two_rounds() {
    let broker = Broker::of_this_run();
    let rig = Rig::with_target(&broker, "poison", 1, 1, make_picky);
    let kinds: [fn(&Rig, u64) -> Outgoing; 3] = [too_large, of_tomorrow, without_key];
    let mut follower = follow(&broker, &rig);
    let mut watermaster = Watermaster::start(&config(&rig, 10_000, "only"));
    let producer = Producer::to(&broker);
    // The first round also commits the start position, so it is not measured.
    producer.send_all([good(&rig, 0)]);
    follower.wait_for(1, DRAIN_TIMEOUT);
    let mut poisoned = Vec::new();
    let mut n = 1;
    for make in kinds {
        for neighbours in [0, NEIGHBOURS] {
            let (from, at, to) = (n, n + neighbours / 2, n + neighbours + 1);
            let before = settled_rounds(&watermaster);
            producer.send_all((from..to).map(|n| if n == at { make(&rig, n) } else { good(&rig, n) }));
            follower.wait_for(to, Duration::from_secs(20));
            let decided = |decision: &str| watermaster.metric("watermaster_records_total", &[decision]).unwrap_or(0.0);
            poisoned.push(at);
            wait_until("the metrics to count the decisions", DRAIN_TIMEOUT, || {
                decided("decision=\"rejected\"") == poisoned.len() as f64
                    && decided("decision=\"admitted\"") == (to as usize - poisoned.len()) as f64
            });
            let rounds = settled_rounds(&watermaster) - before;
            eprintln!("record {at} among {neighbours}: {rounds} rounds committed");
            assert!(rounds <= 2.0, "{rounds} rounds were committed");
            n = to;
        }
    }
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    let dead_letter = rig.read_dead_letter();
    assert_eq!(numbers(&dead_letter), poisoned);
    let reasons: Vec<_> = dead_letter.iter().map(|record| record.header("throttle-reason")).collect();
    assert!(reasons.iter().all(|reason| *reason == Some("undeliverable")), "{reasons:?}");
    let all: Vec<u64> = (0..n).filter(|n| !poisoned.contains(n)).collect();
    assert_eq!(numbers(&rig.read_target()), all);
}

/// A record that is too large for both topics becomes a stub. A stub keeps its record's timestamp, so the stub of a
/// record of tomorrow is refused, too: the service stops and names the record, or discards it if configured so.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_that_both_topics_refuse_stops_the_service_or_is_discarded() {
    const LARGE: u64 = 3;
    const OF_TOMORROW: u64 = 5;
    let broker = Broker::of_this_run();
    let rig = Rig::with_outputs(&broker, "poison-all", 1, 1, |target, dead_letter| {
        make_picky(target);
        make_picky(dead_letter);
    });
    let make = |n| match n {
        LARGE => too_large(&rig, n),
        OF_TOMORROW => of_tomorrow(&rig, n),
        _ => good(&rig, n),
    };
    Producer::to(&broker).send_all((0..NEIGHBOURS).map(make));
    let mut stopping = Watermaster::spawn(&config(&rig, 10_000, "only"));
    assert_eq!(stopping.wait(DRAIN_TIMEOUT).code(), Some(STOPPED), "{}", stopping.log());
    let named = format!("the dead-letter topic refuses {}/0 offset 5: ", rig.sources[0]);
    assert!(stopping.log().contains(&named), "the log does not contain {named:?}:\n{}", stopping.log());
    assert!(stopping.log().contains("on_undeliverable = \"discard\""), "{}", stopping.log());

    let mut discard = config(&rig, 10_000, "only");
    discard.services[0].keys.push_str("\non_undeliverable = \"discard\"");
    let mut follower = follow(&broker, &rig);
    let mut watermaster = Watermaster::start(&discard);
    follower.wait_for(NEIGHBOURS - 2, DRAIN_TIMEOUT);
    let named = format!("discarded: the dead-letter topic refuses {}/0 offset {OF_TOMORROW}: ", rig.sources[0]);
    wait_until("the log to name the discarded record", DRAIN_TIMEOUT, || watermaster.log().contains(&named));
    let stubs = || watermaster.metric("watermaster_stubs_total", &[]);
    wait_until("the metrics to count one stub", DRAIN_TIMEOUT, || stubs() == Some(1.0));
    assert!(watermaster.is_ready());
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    let good: Vec<u64> = (0..NEIGHBOURS).filter(|n| ![LARGE, OF_TOMORROW].contains(n)).collect();
    assert_eq!(numbers(&rig.read_target()), good);
    let dead_letter = rig.read_dead_letter();
    let told = |name| dead_letter.iter().map(|record| record.header(name).unwrap_or("none")).collect::<Vec<_>>();
    assert_eq!(told("throttle-reason"), ["undeliverable"]);
    let message = told("throttle-message")[0];
    assert!(message.starts_with(&format!("{}: ", Reason::Undeliverable.message())), "{message}");
    assert!(message.contains("Broker: "), "{message}");
    assert_eq!((told("throttle-offset"), told("throttle-stub")), (vec!["3"], vec!["1"]));
    assert_eq!((&dead_letter[0].value, dead_letter[0].key.is_some()), (&None, true));
}
