//! Hostile records in a source topic: they do not starve or stop the service or exhaust its memory, and none is lost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime, an_hour_ago};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::record::{Header, Identity, Record};
use crate::{
    exactly_once::STOP_TIMEOUT, support::broker::Broker, support::config::Config, support::generator::Random,
    support::reader::Follower, support::wait::wait_until, support::watermaster::Watermaster,
};

const MAX_MESSAGE_BYTES: usize = 100_000;
const MIB: u64 = 1 << 20;

/// Creates topics with the same size limit, and one source partition.
fn rig(broker: &Broker, prefix: &str) -> Rig {
    Rig::with_outputs(broker, prefix, 1, 1, |_, _| {})
}

fn config(rig: &Rig, capacity: u64, keys: &str, tables: &str, delivery: &str) -> Config {
    let mut config = rig.config(rig.service(capacity, "1s", keys, tables));
    config.kafka = format!("delivery = {delivery:?}");
    config
}

/// Returns the record with this number and a timestamp `number` milliseconds after `start`.
fn record(rig: &Rig, start: i64, number: usize, headers: Vec<Header>) -> Outgoing {
    Outgoing {
        topic: rig.sources[0].clone(),
        timestamp: Some(start + number as i64),
        key: Some(format!("key-{number}").into_bytes()),
        value: Some(b"value".to_vec()),
        headers,
        ..Outgoing::default()
    }
}

fn client(id: &str) -> Header {
    ("client-id".to_owned(), Some(id.as_bytes().to_vec()))
}

/// Returns headers named `a` without a value.
fn null_headers(count: usize) -> Vec<Header> {
    vec![("a".to_owned(), None); count]
}

fn follow(broker: &Broker, rig: &Rig, start: i64) -> Follower {
    Follower::of(broker, &[&rig.target, &rig.dead_letter], Identity::TimestampFrom(start))
}

/// Produces records of one client with this many null headers. Returns their topics, the timestamp of the first one,
/// and a configuration with `queue_bytes = "64MiB"`.
fn produce_null_headers(broker: &Broker, prefix: &str, records: usize, headers: usize) -> (Rig, i64, Config) {
    let (rig, start) = (rig(broker, prefix), an_hour_ago());
    let tables = "[service.shape]\nqueue_bytes = \"64MiB\"\noverflow = \"dead_letter\"";
    let config = config(&rig, 1, "client_from = [\"topic\"]", tables, "exactly_once");
    Producer::to(broker).send_all((0..records).map(|n| record(&rig, start, n, null_headers(headers))));
    (rig, start, config)
}

/// Asserts that a record of the dead-letter topic is the stub of the record at this offset of the source.
fn assert_stub(rig: &Rig, record: &Record, offset: usize, reason: &str, key: Option<&[u8]>) {
    let header = |name| record.header(name).unwrap_or_else(|| panic!("no {name}: {:?}", record.headers));
    assert_eq!((record.key.as_deref(), record.value.as_deref()), (key, None));
    assert_eq!((header("throttle-topic"), header("throttle-partition")), (rig.sources[0].as_str(), "0"));
    assert_eq!((header("throttle-offset"), header("throttle-reason")), (offset.to_string().as_str(), reason));
    assert_eq!((header("throttle-client"), header("throttle-service")), ("", "kyc"));
    assert_eq!(record.headers.len(), 12, "{:?}", record.headers);
    assert_eq!(record.headers.last(), Some(&("throttle-stub".to_owned(), Some(b"1".to_vec()))));
}

fn stubs(watermaster: &Watermaster) -> Option<f64> {
    watermaster.metric("watermaster_stubs_total", &[])
}

/// Each record has 1 KB on the wire, and 6 MB once the client library has parsed its headers.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn records_with_99_000_headers_become_stubs_and_do_not_fill_memory() {
    const RECORDS: usize = 300;
    let broker = Broker::of_this_run();
    let (rig, start, config) = produce_null_headers(&broker, "many-headers", RECORDS, 99_000);
    let mut follower = follow(&broker, &rig, start);
    let mut watermaster = Watermaster::start(&config);
    assert!(stubs(&watermaster).is_some(), "the counter exists from the start");
    let began = Instant::now();
    follower.wait_for(RECORDS as u64, DRAIN_TIMEOUT);
    wait_until("the metrics to count the stubs", DRAIN_TIMEOUT, || stubs(&watermaster) == Some(RECORDS as f64));
    let peak = watermaster.peak_resident_kib() / 1024;
    eprintln!("{RECORDS} stubs after {:.1} s, peak {peak} MiB", began.elapsed().as_secs_f32());
    assert!(peak <= 250, "{peak} MiB");
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    assert_eq!(rig.read_target(), []);
    let mut dead_letter = rig.read_dead_letter();
    dead_letter.sort_by_key(|record| record.timestamp);
    assert_eq!(dead_letter.len(), RECORDS);
    for (n, stub) in dead_letter.iter().enumerate() {
        assert_stub(&rig, stub, n, "undeliverable", Some(format!("key-{n}").as_bytes()));
    }
}

/// Records with 9 900 headers are delivered, so they are delayed until their backlog reaches `queue_bytes`.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn delayed_records_with_9_900_headers_stay_within_queue_bytes() {
    const RECORDS: usize = 400;
    let broker = Broker::of_this_run();
    let (_rig, _, config) = produce_null_headers(&broker, "delayed-headers", RECORDS, 9_900);
    let mut watermaster = Watermaster::start(&config);
    let backlog = || watermaster.metric("watermaster_backlog_bytes", &[]).unwrap_or(0.0) as u64;
    wait_until("all records to be read", DRAIN_TIMEOUT, || {
        watermaster.metric("watermaster_unread_records", &[]) == Some(0.0) && backlog() > 60 * MIB
    });
    let (backlog, peak) = (backlog(), watermaster.peak_resident_kib() / 1024);
    eprintln!("{} MiB of backlog, peak {peak} MiB", backlog / MIB);
    assert!(backlog <= 64 * MIB, "{backlog}");
    assert!(peak <= 250, "{peak} MiB");
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_hundred_records_full_of_throttle_headers_delay_the_next_one_by_less_than_3_s() {
    const BEFORE: usize = 101;
    let broker = Broker::of_this_run();
    let (rig, start) = (rig(&broker, "pairs"), an_hour_ago());
    let empty = |name: &str| (name.to_owned(), Some(Vec::new()));
    let pairs =
        |count: usize| -> Vec<Header> { (0..count).flat_map(|_| [empty("throttle-topic"), empty("b")]).collect() };
    let config = config(&rig, 1_000, "client_from = [\"header:client-id\"]", "", "exactly_once");
    let producer = Producer::to(&broker);
    for n in 0..BEFORE - 1 {
        producer.send(&record(&rig, start, n, pairs(49_000)));
    }
    producer.send(&record(&rig, start, BEFORE - 1, pairs(4_900)));
    producer.send_all([record(&rig, start, BEFORE, vec![client("one")])]);
    let mut follower = follow(&broker, &rig, start);
    let mut watermaster = Watermaster::start(&config);
    let ready = Instant::now();
    follower.wait_for(BEFORE as u64 + 1, DRAIN_TIMEOUT);
    let took = ready.elapsed();
    eprintln!("all records were delivered {took:?} after the service was ready");
    assert!(took <= Duration::from_secs(3), "{took:?}");
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    assert_eq!(rig.read_target().len(), 1);
    let dead_letter = rig.read_dead_letter();
    assert_eq!(dead_letter.len(), BEFORE);
    let whole = dead_letter
        .iter()
        .find(|record| record.timestamp == start + BEFORE as i64 - 1)
        .expect("a dead letter with this number");
    assert_eq!((whole.headers.len(), whole.header("throttle-reason")), (4_900 + 11, Some("anonymous")));
}

/// The record alone is within the dead-letter topic's limit; with the headers of the rejection it is above it.
fn a_record_just_below_the_limit_becomes_a_stub(delivery: &'static str) {
    let broker = Broker::of_this_run();
    let start = an_hour_ago();
    let limit: &'static str = "100000";
    let rig = Rig::with_topics(&broker, &format!("limit-{delivery}"), |topic| topic.set("max.message.bytes", limit));
    // A batch header has 61 bytes, a record header about ten.
    let most = MAX_MESSAGE_BYTES - 150 - 75;
    let large_value = Outgoing { value: Some(Random(1).bytes(most - 5)), ..record(&rig, start, 0, vec![]) };
    let large_key = Random(2).bytes(most - 5);
    let large_key = Outgoing { key: Some(large_key), ..record(&rig, start, 2, vec![]) };
    let good = |n| record(&rig, start, n, vec![client("one")]);
    let config = config(&rig, 1_000, "client_from = [\"header:client-id\"]", "", delivery);
    let mut follower = follow(&broker, &rig, start);
    // Each record is sent in its own batch: two of them together are above the limit of the source.
    for record in [large_value, good(1), large_key, good(3)] {
        Producer::to(&broker).send_all([record]);
    }
    let mut watermaster = Watermaster::start(&config);
    follower.wait_for(4, DRAIN_TIMEOUT);
    wait_until("the metrics to count two stubs", DRAIN_TIMEOUT, || stubs(&watermaster) == Some(2.0));
    assert!(watermaster.is_ready(), "{}", watermaster.log());
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    assert_eq!(rig.read_target().len(), 2);
    let mut dead_letter = rig.read_dead_letter();
    dead_letter.sort_by_key(|record| record.timestamp);
    let [of_value, of_key] = &dead_letter[..] else { panic!("two stubs: {dead_letter:?}") };
    assert_stub(&rig, of_value, 0, "anonymous", Some(b"key-0"));
    assert_stub(&rig, of_key, 2, "anonymous", None);
    let named = format!("a stub goes to the dead-letter topic in place of {}/0 offset 0: ", rig.sources[0]);
    assert!(watermaster.log().contains(&named), "{}", watermaster.log());
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_just_below_the_limit_becomes_a_stub_exactly_once() {
    a_record_just_below_the_limit_becomes_a_stub("exactly_once");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_just_below_the_limit_becomes_a_stub_at_least_once() {
    a_record_just_below_the_limit_becomes_a_stub("at_least_once");
}

/// The client library hands over no headers at all for a record with this many.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_record_with_131_000_headers_is_never_forwarded_without_them() {
    let broker = Broker::of_this_run();
    for (prefix, keys) in [("enforced", ""), ("shadow", "\nenforce = false")] {
        let (rig, start) = (rig(&broker, prefix), an_hour_ago());
        let keys = format!("client_from = [\"header:client-id\", \"topic\"]{keys}");
        let config = config(&rig, 1_000, &keys, "", "exactly_once");
        let many = [vec![client("one")], null_headers(131_000)].concat();
        let records = [vec![client("one")], many, vec![client("one")]];
        let records = records.into_iter().enumerate().map(|(n, headers)| record(&rig, start, n, headers));
        Producer::to(&broker).send_all(records);
        let mut follower = follow(&broker, &rig, start);
        let mut watermaster = Watermaster::start(&config);
        follower.wait_for(3, DRAIN_TIMEOUT);
        wait_until("the metrics to count the stub", DRAIN_TIMEOUT, || stubs(&watermaster) == Some(1.0));
        let rejected = watermaster.metric("watermaster_rejected_total", &["reason=\"undeliverable\""]);
        assert_eq!(rejected, Some(1.0), "{prefix}");
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        let mut numbers: Vec<i64> = rig.read_target().iter().map(|record| record.timestamp - start).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 2], "{prefix}");
        let dead_letter = rig.read_dead_letter();
        assert_eq!(dead_letter.len(), 1, "{prefix}");
        assert_stub(&rig, &dead_letter[0], 1, "undeliverable", Some(b"key-1"));
    }
}

/// The configured clients, each with a weight of 1.
const CONFIGURED: [&str; 3] = ["one", "two", "three"];

/// Each configured client sends 40 records a second, which is 0.8 of its default share: 50 of 200, because all other
/// ids together have a weight of 1. Beside them, 400 records a second carry ids that are used once.
fn ids_that_are_used_once_leave_configured_clients_their_share(max_clients: u32) {
    const CAPACITY: u64 = 200;
    /// Of 13 records, one is from each configured client and ten carry unique ids.
    const PER_SECOND: u64 = 40 * 13;
    const LOAD: Duration = Duration::from_secs(20);
    const GRACE: Duration = Duration::from_secs(2);
    const MAX_DELAY_MS: i64 = 2_000;
    let client_of =
        |n: u64| CONFIGURED.get((n % 13) as usize).map_or_else(|| format!("once-{n}"), |id| (*id).to_owned());
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "used-once", 1, 4, TargetTime::Append);
    let clients = CONFIGURED.map(|id| format!("[service.client.{id}]\n")).concat();
    let keys = format!("client_from = [\"header:client-id\"]\nmax_clients = {max_clients}");
    let config = config(&rig, CAPACITY, &keys, &clients, "exactly_once");
    let mut watermaster = Watermaster::start(&config);
    let source = rig.sources[0].clone();
    let load = Load::start(&broker, PER_SECOND, move |n| Outgoing::numbered(&source, n, &client_of(n)));
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    follower.read_on(LOAD);
    let sent = load.stop();
    let end = crate::rig::now_ms() + GRACE.as_millis() as i64;
    follower.read_on(GRACE);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let number = |record: &Record| Identity::Value.of(record).expect("a record of this test");
    // The client library sets a source record's timestamp when the record is sent.
    let times: HashMap<u64, i64> = rig.read_sources().iter().map(|record| (number(record), record.timestamp)).collect();
    assert_eq!(times.len() as u64, sent);
    let target = rig.read_target();
    let (mut configured_sent, mut configured_admitted) = (0, 0);
    for (n, id) in CONFIGURED.iter().enumerate() {
        let is_its = |number: u64| number % 13 == n as u64;
        let its = target.iter().filter(|record| is_its(number(record)) && record.timestamp <= end);
        let mut delays: Vec<i64> = its.map(|record| record.timestamp - times[&number(record)]).collect();
        delays.sort_unstable();
        let sent = times.keys().filter(|number| is_its(**number)).count();
        let (admitted, longest) = (delays.len(), *delays.last().expect("records were admitted"));
        let [median, p99] = [50, 99].map(|percent| delays[(admitted - 1) * percent / 100]);
        eprintln!(
            "{id}: {admitted} of {sent} admitted, delayed by {median} ms (median), {p99} ms (p99), {longest} ms (most)"
        );
        assert!(longest <= MAX_DELAY_MS, "a record of {id} was delayed by {longest} ms");
        (configured_sent, configured_admitted) = (configured_sent + sent, configured_admitted + admitted);
    }
    let others = target.len() - configured_admitted;
    eprintln!("max_clients = {max_clients}: {configured_admitted} of {configured_sent}, and {others} with other ids");
    assert!(configured_admitted * 100 >= configured_sent * 95, "{configured_admitted} of {configured_sent}");
    assert!(others > 0, "other ids use the rest of the capacity");
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    /// Every id has its own backlog.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn ids_that_are_used_once_leave_configured_clients_their_share_beside_thousands_of_backlogs() {
        ids_that_are_used_once_leave_configured_clients_their_share(100_000);
    }

    /// The registry is full after a few seconds: most records of other ids are rejected as too_many_clients.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn ids_that_are_used_once_leave_configured_clients_their_share_in_a_full_registry() {
        ids_that_are_used_once_leave_configured_clients_their_share(1_000);
    }
}
