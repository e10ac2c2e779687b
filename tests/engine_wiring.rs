//! A whole engine against the embedded broker: every committed record has arrived, even if the broker returns errors.
//!
//! These tests cover only faults that the embedded broker can simulate; delivery guarantees need tests on a real Kafka.

#[path = "support/embedded_faults.rs"]
mod embedded_faults;
#[allow(dead_code)] // Other tests use the rest.
#[path = "support/process.rs"]
mod process;
#[path = "../schemas/src/registry/tests/stub.rs"]
mod stub;
#[allow(dead_code)]
#[path = "support/wait.rs"]
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use process::{Process, Signal};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use strum::VariantNames as _;
use wait::{let_the_fault_last, wait_until};
use watermaster::engine::{self, EngineError, Job};
use watermaster::services::ServiceHandle;
use watermaster::snapshot::{RoundOutcome, ServiceSnapshot};
use watermaster_core::policy::{Overflow, Policy};
use watermaster_core::{offset_map, units::Ratio};
use watermaster_kafka::{embedded::Embedded, preflight};
use watermaster_settings::{
    ClientFrom, Delivery, GroupProtocol, Kafka, OnDataLoss, OnForeignOffset, Service, Source, StartFrom,
    secrets::Secrets,
};

/// A limit for every wait, longer than any of them takes.
const TIMEOUT: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(20);

struct Bench {
    broker: Embedded,
    kafka: Kafka,
    service: Service,
}

impl Bench {
    /// Sets up a service that reads `loans`; all its records are of one client.
    fn new(capacity: u64, cycle: Duration) -> Bench {
        let broker = Embedded::start(1).unwrap();
        for topic in ["loans", "target", "dead"] {
            broker.create_topic(topic, 1).unwrap();
        }
        // The embedded broker waits for members to rejoin for the session timeout less one second.
        let properties = [("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "100")];
        let kafka = Kafka {
            bootstrap_servers: broker.bootstrap_servers(),
            group_id: "wm".to_owned(),
            instance_id: "wm-0".to_owned(),
            delivery: Delivery::AtLeastOnce,
            group_protocol: GroupProtocol::Classic,
            min_commit_interval: Duration::from_millis(20),
            commit_interval: Duration::from_millis(50),
            start_from: StartFrom::Earliest,
            on_foreign_offset: OnForeignOffset::Stop,
            on_data_loss: OnDataLoss::Stop,
            properties: properties.map(|(property, value)| (property.to_owned(), value.to_owned())).into(),
            secrets: Secrets::default(),
            property_files: BTreeMap::new(),
            schema_registry: None,
        };
        let source = Source { client: Some("loans".to_owned()), ..Source::new("loans") };
        let service = Service::new("kyc", ClientFrom::Topic, vec![source], policy(capacity, cycle));
        Bench { broker, kafka, service }
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.kafka.bootstrap_servers);
        config
    }

    /// Sends these records; the value of each is its offset.
    fn feed(&self, records: std::ops::Range<usize>) {
        self.feed_values(records.map(|n| (n, n.to_string().into_bytes())));
    }

    /// Sends records with the offsets that they will have, and their values.
    fn feed_values(&self, records: impl Iterator<Item = (usize, Vec<u8>)>) {
        let producer: ThreadedProducer<DefaultProducerContext> = self.client().set("linger.ms", "20").create().unwrap();
        for (n, value) in records {
            let headers = OwnedHeaders::new().insert(Header { key: "n", value: Some(&n.to_string()) });
            producer.send(BaseRecord::<(), [u8]>::to("loans").payload(&value).headers(headers)).unwrap();
        }
        producer.flush(TIMEOUT).unwrap();
    }

    /// Reads all present records of a topic: the source offset of each, and the reason if it was rejected.
    fn read(&self, topic: &str) -> Vec<(i64, Option<String>)> {
        let consumer: BaseConsumer = self.client().set("group.id", "reader").create().unwrap();
        let (low, high) = consumer.fetch_watermarks(topic, 0, TIMEOUT).unwrap();
        assert_eq!(low, 0, "the embedded broker still has all records");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let (mut records, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
        while (records.len() as i64) < high && Instant::now() < deadline {
            let Some(message) = consumer.poll(TICK) else { continue };
            let message = message.unwrap();
            let header = |key: &str| {
                let found = message.headers()?.iter().find(|header| header.key == key)?;
                Some(String::from_utf8_lossy(found.value.unwrap()).into_owned())
            };
            records.push((header("n").unwrap().parse().unwrap(), header("throttle-reason")));
        }
        records
    }

    /// Returns the offsets that the group has committed as completed.
    fn completed(&self) -> BTreeSet<i64> {
        let consumer: BaseConsumer = self.client().set("group.id", "wm.kyc").create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition("loans", 0);
        let list = consumer.committed_offsets(list, TIMEOUT).unwrap();
        let element = &list.elements()[0];
        let Offset::Offset(base) = element.offset() else { return BTreeSet::new() };
        let map = offset_map::decode(base, element.metadata().as_bytes()).unwrap();
        (0..base).chain(map.completed.iter().flat_map(|run| run.start..run.end)).collect()
    }

    fn start(&self) -> Engine {
        let handle = ServiceHandle::new(&self.service);
        // Tests wait for figures and trouble that the engine shows itself.
        handle.cell.set(ServiceSnapshot::default());
        let job = Job {
            kafka: self.kafka.clone(),
            service: self.service.clone(),
            accept_foreign_offsets: false,
            facts: preflight::Report::default(),
            handle: handle.clone(),
        };
        Engine { handle, thread: thread::spawn(move || engine::run(job)) }
    }
}

struct Engine {
    handle: ServiceHandle,
    thread: JoinHandle<Result<(), EngineError>>,
}

impl Engine {
    /// Waits until the engine's snapshot satisfies `shown`.
    fn until(&self, what: &str, shown: impl Fn(&ServiceSnapshot) -> bool) -> Arc<ServiceSnapshot> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let snapshot = self.handle.cell.get();
            if shown(&snapshot) {
                return snapshot;
            }
            assert!(Instant::now() < deadline, "timeout while waiting for {what:?}: {snapshot:?}");
            thread::sleep(TICK);
        }
    }

    /// Stops the engine; returns its result and the time that stopping took.
    fn stop(self) -> (Result<(), EngineError>, Duration) {
        let told = Instant::now();
        self.handle.stop();
        (self.thread.join().unwrap(), told.elapsed())
    }
}

fn policy(capacity: u64, cycle: Duration) -> Policy {
    Policy {
        reservation: Ratio::ZERO,
        max_clients: 10,
        client_idle_timeout: Duration::from_secs(600),
        queue_capacity: 1_000,
        queue_bytes: 1 << 24,
        burst: Ratio::ZERO,
        commit_interval: Duration::from_millis(50),
        ..Policy::new(capacity, cycle)
    }
}

fn admitted(snapshot: &ServiceSnapshot) -> u64 {
    snapshot.clients.iter().map(|client| client.counts.admitted).sum()
}

fn rejected(snapshot: &ServiceSnapshot) -> u64 {
    snapshot.clients.iter().map(|client| client.counts.rejected.total()).sum()
}

fn rounds(snapshot: &ServiceSnapshot, outcome: &str) -> u64 {
    let index = RoundOutcome::VARIANTS.iter().position(|name| *name == outcome).unwrap();
    snapshot.engine.delivery.rounds[index]
}

/// Asserts that the offsets up to `count` occur once each, in order, and that none was rejected.
fn all_once(records: &[(i64, Option<String>)], count: i64) {
    let expected: Vec<_> = (0..count).map(|n| (n, None)).collect();
    assert_eq!(records, expected, "each record once, in order");
}

/// No thread follows the topic of the rules here, as if it never answered.
#[test]
fn an_engine_waits_for_its_rules_unless_it_starts_without_them() {
    let mut bench = Bench::new(10_000, Duration::from_secs(1));
    bench.service.rules_topic = Some("rules".to_owned());
    bench.feed(0..50);
    let engine = bench.start();
    engine.until("waiting", |shown| shown.figures.trouble.as_deref() == Some("waiting for the rules in rules"));
    engine.handle.rules.start_without();
    engine.until("all admitted", |shown| admitted(shown) == 50);
    engine.stop().0.unwrap();
}

#[test]
fn admitted_records_arrive_in_order_and_are_committed() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    bench.feed(0..500);
    let engine = bench.start();
    let shown = engine.until("all admitted", |shown| admitted(shown) == 500);
    assert!(shown.figures.ready && shown.up && shown.figures.trouble.is_none());
    let (ended, took) = engine.stop();
    ended.unwrap();
    assert!(took < Duration::from_secs(10), "{took:?}");
    all_once(&bench.read("target"), 500);
    assert_eq!(bench.completed(), (0..500).collect());
}

#[test]
fn records_that_a_drain_commits_have_arrived() {
    let mut bench = Bench::new(10, Duration::from_secs(10));
    // All but a few records are rejected as soon as they are read.
    (bench.service.policy.queue_capacity, bench.service.policy.overflow) = (10, Overflow::DeadLetter);
    bench.feed(0..30_000);
    let engine = bench.start();
    engine.until("any rejected", |shown| rejected(shown) > 0);
    engine.stop().0.unwrap();
    let arrived: BTreeMap<i64, usize> =
        bench.read("target").into_iter().chain(bench.read("dead")).fold(BTreeMap::new(), |mut seen, (offset, _)| {
            *seen.entry(offset).or_default() += 1;
            seen
        });
    let lost: Vec<_> = bench.completed().into_iter().filter(|offset| !arrived.contains_key(offset)).collect();
    assert!(lost.is_empty(), "{} committed records have not arrived, from {:?} on", lost.len(), lost.first());
    assert!(arrived.values().all(|&times| times == 1), "no record is delivered twice");
}

#[test]
fn a_record_that_the_target_refuses_goes_to_the_dead_letter_topic() {
    let bench = Bench::new(100, Duration::from_secs(1));
    bench.feed(0..1);
    embedded_faults::refuse_next_batch(&bench.broker);
    let engine = bench.start();
    engine.until("rejected", |shown| rejected(shown) == 1);
    engine.stop().0.unwrap();
    assert_eq!(bench.read("target"), []);
    assert_eq!(bench.read("dead"), [(0, Some("undeliverable".to_owned()))]);
    assert_eq!(bench.completed(), [0].into());
}

/// librdkafka reports the records of such a batch as delivered; they were committed without being in the target.
#[test]
fn a_batch_that_the_broker_takes_for_a_repeat_is_sent_again() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    bench.feed(0..100);
    embedded_faults::take_next_batch_for_a_repeat(&bench.broker);
    let engine = bench.start();
    engine.until("all admitted", |shown| admitted(shown) == 100);
    engine.stop().0.unwrap();
    all_once(&bench.read("target"), 100);
    assert_eq!(bench.completed(), (0..100).collect());
}

#[test]
fn a_refused_batch_is_halved_and_only_the_refused_record_is_rejected() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    bench.feed(0..100);
    embedded_faults::refuse_next_batch(&bench.broker);
    let engine = bench.start();
    engine.until("all admitted", |shown| admitted(shown) + rejected(shown) == 100);
    engine.stop().0.unwrap();
    let arrived: BTreeSet<i64> =
        bench.read("target").into_iter().chain(bench.read("dead")).map(|(offset, _)| offset).collect();
    assert_eq!(arrived, (0..100).collect());
    assert!(bench.read("dead").len() <= 1);
}

#[test]
fn a_commit_that_fails_is_repeated_and_no_record_is_sent_twice() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    embedded_faults::refuse_next_commits(&bench.broker, &[true, false, true, true, false]);
    let began = Instant::now();
    bench.feed(0..100);
    let engine = bench.start();
    engine.until("all admitted", |shown| admitted(shown) == 100);
    assert!(began.elapsed() > Duration::from_millis(300), "five refused commits cost some backoff");
    engine.stop().0.unwrap();
    all_once(&bench.read("target"), 100);
    assert_eq!(bench.completed(), (0..100).collect());
}

#[test]
fn a_producer_that_fails_is_replaced_and_no_record_is_lost() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    bench.feed(0..500);
    embedded_faults::refuse_next_producers(&bench.broker, 2);
    let engine = bench.start();
    let shown = engine.until("all admitted", |shown| admitted(shown) == 500);
    assert_eq!(shown.engine.delivery.producer_recreations.iter().sum::<u64>(), 2);
    engine.stop().0.unwrap();
    all_once(&bench.read("target"), 500);
    assert_eq!(bench.completed(), (0..500).collect());
}

#[test]
fn a_service_whose_producers_all_fail_stops() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    bench.feed(0..5);
    embedded_faults::refuse_next_producers(&bench.broker, 20);
    let engine = bench.start();
    let shown = engine.until("stopped", |shown| !shown.up && shown.figures.trouble.is_some());
    assert!(!shown.figures.ready);
    assert_eq!(rounds(&shown, "failed"), 1);
    assert!(engine.stop().0.unwrap_err().to_string().contains("producers failed"));
    assert!(bench.completed().is_empty(), "only records that arrived are committed");
}

#[test]
fn a_target_that_forbids_writes_stops_the_service() {
    let mut bench = Bench::new(10_000, Duration::from_secs(1));
    bench.kafka.properties.insert("topic.metadata.refresh.interval.ms".to_owned(), "50".to_owned());
    bench.feed(0..50);
    let engine = bench.start();
    engine.until("all admitted", |shown| admitted(shown) == 50);
    embedded_faults::forbid_topic(&bench.broker, "target");
    // Records arrive until the producer learns that writes are forbidden.
    let (mut next, deadline) = (50, Instant::now() + TIMEOUT);
    while engine.handle.cell.get().up && Instant::now() < deadline {
        bench.feed(next..next + 1);
        next += 1;
    }
    let shown = engine.handle.cell.get();
    assert!(!shown.up && shown.target_refusing, "{shown:?}");
    assert!(engine.stop().0.unwrap_err().to_string().contains("target"));
    assert_eq!(bench.read("dead"), []);
}

#[test]
fn a_broker_outage_loses_no_record_and_keeps_the_capacity() {
    let bench = Bench::new(20, Duration::from_secs(1));
    bench.feed(0..120);
    let engine = bench.start();
    engine.until("some admitted", |shown| admitted(shown) >= 20);
    embedded_faults::broker_down(&bench.broker);
    engine.until("not ready", |shown| !shown.figures.ready && shown.up && shown.figures.trouble.is_some());
    let before = admitted(&engine.handle.cell.get());
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert!(admitted(&engine.handle.cell.get()) <= before, "only records that arrived are shown as admitted");
        thread::sleep(TICK);
    }
    embedded_faults::broker_up(&bench.broker);
    // The counters cannot show this, because records that are read again are counted again.
    let shown = engine.until("all committed", |shown| {
        shown.figures.ready && shown.partitions.iter().any(|partition| partition.lag == 0 && partition.held == 0)
    });
    assert!(shown.figures.window_admitted_max <= 20, "{}", shown.figures.window_admitted_max);
    engine.stop().0.unwrap();
    let arrived: BTreeSet<_> = bench.read("target").into_iter().map(|(offset, _)| offset).collect();
    assert_eq!(arrived, (0..120).collect());
    assert_eq!(bench.completed(), (0..120).collect());
}

#[test]
fn a_drain_without_brokers_takes_less_than_ten_seconds() {
    let bench = Bench::new(20, Duration::from_secs(1));
    bench.feed(0..1_000);
    let engine = bench.start();
    engine.until("some admitted", |shown| admitted(shown) >= 20);
    embedded_faults::broker_down(&bench.broker);
    engine.until("not ready", |shown| !shown.figures.ready);
    let cell = engine.handle.cell.clone();
    let (ended, took) = engine.stop();
    ended.unwrap();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(rounds(&cell.get(), "failed") <= 1);
}

/// The first signal would end the program with 0 after the drain.
#[test]
fn a_second_signal_ends_a_drain() {
    let bench = Bench::new(20, Duration::from_secs(1));
    bench.feed(0..1_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watermaster.toml");
    let servers = &bench.kafka.bootstrap_servers;
    let text = format!(
        r#"
        kafka = {{ bootstrap_servers = "{servers}", delivery = "at_least_once", start_from = "earliest" }}
        admin = {{ listen = "127.0.0.1:0" }}
        [[service]]
        name = "kyc"
        target = "target"
        dead_letter = "dead"
        capacity = 20
        cycle = "1s"
        scope = "instance"
        source = [{{ topic = "loans", client = "loans" }}]
        "#
    );
    std::fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_watermaster"));
    let mut run = Process::start(command.args(["run", "--config"]).arg(&path).env_clear());
    wait_until("some admitted", TIMEOUT, || bench.read("target").len() >= 20);
    embedded_faults::broker_down(&bench.broker);
    // Meanwhile a round begins that can't end.
    let_the_fault_last(Duration::from_secs(2));
    run.signal(Signal::Term);
    let_the_fault_last(Duration::from_millis(1_500));
    run.signal(Signal::Term);
    assert_eq!(run.wait(TIMEOUT).code(), Some(70));
}

#[test]
fn a_service_that_cannot_start_reports_the_cause() {
    let mut bench = Bench::new(20, Duration::from_secs(1));
    bench.kafka.properties.insert("session.timeout.ms".to_owned(), "soon".to_owned());
    let engine = bench.start();
    let shown = engine.until("stopped", |shown| shown.figures.trouble.is_some());
    assert!(!shown.up && !shown.figures.ready);
    assert!(shown.figures.trouble.as_ref().unwrap().contains("session.timeout.ms"), "{shown:?}");
    assert!(engine.stop().0.is_err());
}

/// The broker asks for no secret here; a change alone replaces the clients.
#[test]
fn new_secrets_replace_the_clients_and_no_record_is_lost() {
    let bench = Bench::new(10_000, Duration::from_secs(1));
    let key = |value: &str| BTreeMap::from([("ssl.key.password".to_owned(), value.to_owned())]);
    bench.kafka.secrets.renew(key("old"), false);
    bench.feed(0..100);
    let engine = bench.start();
    engine.until("the first admitted", |shown| admitted(shown) == 100);
    bench.kafka.secrets.renew(key("new"), false);
    engine.until("another consumer", |shown| shown.engine.consumer_recreations == 1);
    bench.feed(100..200);
    engine.until("all admitted", |shown| admitted(shown) == 200);
    engine.stop().0.unwrap();
    all_once(&bench.read("target"), 200);
    assert_eq!(bench.completed(), (0..200).collect());
}

#[test]
fn an_instance_without_partitions_is_ready_too() {
    let bench = Bench::new(20, Duration::from_secs(1));
    let engines = [bench.start(), bench.start()];
    for engine in &engines {
        engine.until("ready", |shown| shown.figures.ready);
    }
    for engine in engines {
        engine.stop().0.unwrap();
    }
}

/// Without a replacement, a consumer that cannot rejoin its group would leave its instance idle for ever.
#[test]
fn a_consumer_that_does_not_get_into_its_group_is_replaced() {
    let mut bench = Bench::new(10_000, Duration::from_secs(1));
    let short = [("heartbeat.interval.ms", "200"), ("session.timeout.ms", "1000"), ("max.poll.interval.ms", "1000")];
    for (property, millis) in short {
        bench.kafka.properties.insert(property.to_owned(), millis.to_owned());
    }
    bench.feed(0..100);
    let engine = bench.start();
    engine.until("the first admitted", |shown| admitted(shown) == 100);
    embedded_faults::refuse_joins(&bench.broker, 100_000);
    embedded_faults::expel_a_member(&bench.broker);
    let shown = engine.until("another consumer", |shown| shown.engine.consumer_recreations == 1);
    assert!(!shown.figures.ready && shown.partitions.is_empty(), "{shown:?}");
    embedded_faults::allow_joins(&bench.broker);
    bench.feed(100..200);
    // The counters continue: only the consumer was replaced.
    let shown = engine.until("all admitted", |shown| admitted(shown) == 200);
    assert!(shown.figures.ready, "{shown:?}");
    engine.stop().0.unwrap();
    all_once(&bench.read("target"), 200);
    assert_eq!(bench.completed(), (0..200).collect());
}

/// Clients in values with schemas.
mod schemas {
    use watermaster_core::policy::Mode;
    use watermaster_settings::{SchemaFormat, SchemaRegistry};

    use super::*;

    /// A registry that refuses all questions until the flag is set. It has the schema 7, in which a value is one string.
    fn registry_of(bench: &mut Bench) -> (stub::StubRegistry, Arc<AtomicBool>) {
        const CLIENT: &str = r#"{"type": "record", "name": "R", "fields": [{"name": "client", "type": "string"}]}"#;
        let answers = Arc::new(AtomicBool::new(false));
        let open = Arc::clone(&answers);
        let registry = stub::StubRegistry::start(move |question| match question.path.as_str() {
            _ if !open.load(Ordering::Relaxed) => (503, "starting".to_owned()),
            "/schemas/ids/7" => (200, stub::stored("AVRO", CLIENT, &serde_json::json!([]))),
            _ => (404, stub::not_found()),
        });
        bench.service.client_from =
            vec![ClientFrom::Schema(SchemaFormat::Avro, vec!["client".to_owned()]), ClientFrom::Topic];
        bench.kafka.schema_registry = Some(SchemaRegistry { url: registry.url.clone(), login: None, ca_file: None });
        (registry, answers)
    }

    /// A value with the schema 7 and the client `acme`.
    const OF_ACME: &[u8] = b"\0\0\0\0\x07\x08acme";

    /// Record 50 has a schema that the registry has, record 100 one that it does not have; the others name none.
    #[test]
    fn a_partition_waits_for_its_schema_and_goes_on_in_order() {
        let mut bench = Bench::new(10_000, Duration::from_secs(1));
        bench.service.policy.burst = Ratio::ONE;
        let (registry, answers) = registry_of(&mut bench);
        bench.feed_values((0..150).map(|n| match n {
            50 => (n, OF_ACME.to_vec()),
            100 => (n, b"\0\0\0\0\x0c\x08acme".to_vec()),
            _ => (n, n.to_string().into_bytes()),
        }));
        let waits = |shown: &ServiceSnapshot| {
            let names_schema =
                shown.figures.trouble.as_ref().is_some_and(|trouble| trouble.contains("schema 7 is not known yet"));
            admitted(shown) == 50 && names_schema && shown.sources.paused == [0, 0, 0, 0, 1] && !shown.figures.ready
        };
        let first = bench.start();
        first.until("wait", waits);
        let (ended, took) = first.stop();
        ended.unwrap();
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(bench.completed(), (0..50).collect(), "nothing behind the record is decided");
        let second = bench.start();
        second.until("wait again", |shown| shown.sources.paused == [0, 0, 0, 0, 1]);
        answers.store(true, Ordering::Relaxed);
        let shown = second.until("the rest admitted", |shown| admitted(shown) == 100);
        let clients: BTreeMap<_, _> =
            shown.clients.iter().map(|client| (&*client.name, client.counts.admitted)).collect();
        assert_eq!(clients, BTreeMap::from([("acme", 1), ("loans", 99)]));
        second.until("ready", |shown| shown.figures.ready && shown.sources.paused == [0; 5]);
        let requests = second.handle.cell.get().engine.schema_requests;
        assert_eq!(requests[..2], [1, 1], "one schema is found, one is missing: {requests:?}, {:?}", registry.paths());
        second.stop().0.unwrap();
        all_once(&bench.read("target"), 150);
        assert_eq!(bench.completed(), (0..150).collect());
    }

    /// Each record of a stranger named another schema, and held its partition up for a question to the registry.
    #[test]
    fn a_flood_of_unknown_schemas_is_asked_for_a_hundred_times() {
        const STRANGE: usize = 2_000;
        const SLOW: Duration = Duration::from_secs(110);
        let mut bench = Bench::new(100_000, Duration::from_secs(1));
        bench.service.policy.burst = Ratio::ONE;
        let (registry, answers) = registry_of(&mut bench);
        answers.store(true, Ordering::Relaxed);
        let began = Instant::now();
        bench.feed_values((0..STRANGE + 2).map(|n| match n {
            0 => (n, OF_ACME.to_vec()),
            n if n > STRANGE => (n, OF_ACME.to_vec()),
            n => (n, [&[0][..], &(1_000 + n as u32).to_be_bytes(), b"\x08acme"].concat()),
        }));
        let engine = bench.start();
        // Where an answer and the next fetch take longer than 0.6 s together, the questions never come to their bound.
        let is_slow = || began.elapsed() > SLOW;
        let all = STRANGE as u64 + 2;
        let shown = engine.until("all admitted", |shown| admitted(shown) == all || is_slow());
        let clients: BTreeMap<_, _> =
            shown.clients.iter().map(|client| (&*client.name, client.counts.admitted)).collect();
        let (acme, loans) = if admitted(&shown) == all { (2, all - 2) } else { (1, admitted(&shown) - 1) };
        assert_eq!(clients, BTreeMap::from([("acme", acme), ("loans", loans)]));
        assert!(loans >= 50, "{loans} records within {SLOW:?}");
        engine.stop().0.unwrap();
        let (asked, minutes) = (registry.paths().len(), began.elapsed().as_secs_f64() / 60.0);
        assert!(asked as f64 <= 102.0 + 100.0 * minutes, "{asked} questions in {minutes:.1} minutes");
    }

    /// The records behind the first one come while the partition waits: in reject mode, their clients are not to blame.
    #[test]
    fn records_that_piled_up_behind_an_unknown_schema_are_not_rejected() {
        let cycle = Duration::from_millis(200);
        let mut bench = Bench::new(50, cycle);
        bench.service.policy.mode = Mode::Reject;
        let (_registry, answers) = registry_of(&mut bench);
        bench.feed_values([(0, OF_ACME.to_vec())].into_iter());
        let engine = bench.start();
        engine.until("wait", |shown| shown.sources.paused == [0, 0, 0, 0, 1]);
        bench.feed(1..300);
        thread::sleep(3 * cycle);
        answers.store(true, Ordering::Relaxed);
        let shown = engine.until("all decided", |shown| admitted(shown) + rejected(shown) == 300);
        assert_eq!((admitted(&shown), rejected(&shown)), (300, 0));
        engine.stop().0.unwrap();
        assert_eq!(bench.completed(), (0..300).collect());
    }
}
