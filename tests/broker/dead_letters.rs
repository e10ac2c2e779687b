//! `watermaster dlq` on a real Kafka: each dead letter comes back once, as it was.

use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Output};

use serde_json::Value;

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::broker::Broker;
use crate::support::producer::{Outgoing, Producer};
use crate::support::reader::{Follower, read_all};
use crate::support::record::{Header, Identity, Record};
use crate::support::watermaster::{Watermaster, short_command};
use crate::support::{config::Config, wait::wait_until};

/// Every reason, as headers state it.
const REASONS: [&str; 9] = [
    "anonymous", "unknown_client", "too_many_clients", "client_limit", "over_allocation", "capacity_in_use",
    "queue_full", "expired", "undeliverable",
];

/// The folder of a configuration, for commands that end by themselves.
pub(super) struct Desk {
    config: Config,
    dir: tempfile::TempDir,
}

impl Desk {
    pub(super) fn new(config: &Config) -> Desk {
        Desk { config: config.clone(), dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(super) fn command(&self, subcommand: &str, options: &[&str]) -> Command {
        self.any_command(&format!("dlq {subcommand}"), options)
    }

    /// Returns a command beside those of `dlq`.
    pub(super) fn any_command(&self, subcommand: &str, options: &[&str]) -> Command {
        short_command(&self.config, &self.dir, subcommand, options)
    }

    /// Runs a command beside those of `dlq`; returns its exit code, stdout and stderr.
    pub(super) fn any(&self, subcommand: &str, options: &[&str]) -> (Option<i32>, String, String) {
        output(&mut self.any_command(subcommand, options))
    }

    /// Runs a command; returns its exit code, stdout and stderr.
    pub(super) fn run(&self, subcommand: &str, options: &[&str]) -> (Option<i32>, String, String) {
        output(&mut self.command(subcommand, options))
    }

    /// Runs a command that has to succeed, and returns the JSON that it prints.
    pub(super) fn json(&self, subcommand: &str, options: &[&str]) -> Value {
        let (code, out, err) = self.run(subcommand, &[options, &["--output", "json"]].concat());
        assert_eq!(code, Some(0), "dlq {subcommand} {options:?}: {out}{err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("watermaster runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// Gives the service the key by which `run` knows the records of `dlq redrive`.
pub(super) fn keep_redrive_key(config: &mut Config) {
    let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/redrive-key");
    // Renamed into place: a program of another test may read it at this moment.
    let new = format!("{path}.{:?}", std::thread::current().id());
    std::fs::write(&new, "the key of the tests for redriven records\n").expect("a key");
    std::fs::rename(new, path).expect("the key is there");
    config.services[0].keys += &format!("\nredrive_key_file = {path:?}");
}

/// A record as its producer sent it, with headers of every kind.
pub(super) fn first(number: u64, topic: &str, timestamp: i64) -> Outgoing {
    let mut record = Outgoing::numbered(topic, number, "redriven-client");
    record.timestamp = Some(timestamp);
    record.headers.push(("repeated".to_owned(), Some(b"1".to_vec())));
    record.headers.push(("repeated".to_owned(), None));
    record.headers.push(("throttle-of-another-kind".to_owned(), Some(vec![0xff, 0])));
    if number % 10 == 3 {
        record.key = None;
    }
    record
}

/// Returns the dead letter of a record that was rejected `attempt` times, as `run` writes it.
pub(super) fn dead_letter(rig: &Rig, first: &Outgoing, place: (i32, i64), reason: &str, attempt: u64) -> Outgoing {
    let timestamp = first.timestamp.expect("a test's record has a time");
    let own: [(&str, String); 13] = [
        ("reason", reason.to_owned()),
        ("service", "kyc".to_owned()),
        ("client", "redriven-client".to_owned()),
        ("topic", first.topic.clone()),
        ("partition", place.0.to_string()),
        ("offset", place.1.to_string()),
        ("timestamp-ms", timestamp.to_string()),
        ("retry-after-ms", "0".to_owned()),
        ("limit", "100".to_owned()),
        ("used", "100".to_owned()),
        ("cycle-ms", "1000".to_owned()),
        ("rule", "night".to_owned()),
        ("attempt", attempt.to_string()),
    ];
    let own = own.map(|(name, value)| (format!("throttle-{name}"), Some(value.into_bytes())));
    Outgoing {
        topic: rig.dead_letter.clone(),
        headers: first.headers.iter().cloned().chain(own).collect(),
        ..first.clone()
    }
}

/// Returns the stub of a dead letter, with a client of its own.
pub(super) fn stub(letter: Outgoing) -> Outgoing {
    let own = |(name, _): &Header| name.starts_with("throttle-") && name != "throttle-of-another-kind";
    let mut headers: Vec<Header> = letter.headers.iter().filter(|header| own(header)).cloned().collect();
    for (_, value) in headers.iter_mut().filter(|(name, _)| name == "throttle-client") {
        *value = Some(b"stubbed".to_vec());
    }
    headers.push(("throttle-stub".to_owned(), Some(b"1".to_vec())));
    Outgoing { value: None, headers, ..letter }
}

/// Checks that exactly these records came back to the sources, each once and as it was first, with the attempt and a
/// header for the redrive's client behind the first headers.
pub(super) fn assert_back(rig: &Rig, expected: &HashMap<u64, (Outgoing, u64)>) {
    let came_back = |record: &Record| record.header("throttle-redrive").is_some();
    let mut back: BTreeMap<u64, Record> = BTreeMap::new();
    for record in rig.read_sources().into_iter().filter(came_back) {
        let number = Identity::Value.of(&record).expect("a numbered record");
        let twice = back.insert(number, record);
        assert!(twice.is_none(), "record {number} came back twice: {twice:?}");
    }
    assert_eq!(back.len(), expected.len(), "the number of records that came back");
    for (number, (first, attempt)) in expected {
        let record = back.get(number).unwrap_or_else(|| panic!("record {number} did not come back"));
        let attempt = ("throttle-attempt".to_owned(), Some(attempt.to_string().into_bytes()));
        let headers: Vec<Header> = first.headers.iter().cloned().chain([attempt]).collect();
        let (last, rest) = record.headers.split_last().expect("headers");
        assert_eq!((rest, &*last.0), (&headers[..], "throttle-redrive"), "the headers of record {number}");
        let fields = (&*record.topic, &record.key, &record.value, Some(record.timestamp));
        assert_eq!(fields, (&*first.topic, &first.key, &first.value, first.timestamp), "record {number}");
    }
}

/// Produces records to a source and returns their positions by number.
pub(super) fn produce_to_sources(rig: &Rig, records: &[Outgoing]) -> HashMap<u64, (i32, i64)> {
    Producer::to(&rig.broker).send_all(records.iter().cloned());
    let place = |record: Record| Some((Identity::Value.of(&record)?, (record.partition, record.offset)));
    rig.read_sources().into_iter().filter_map(place).collect()
}

/// Makes two sources with two partitions each, and the outputs.
fn rig(broker: &Broker, prefix: &str) -> Rig {
    Rig::new(broker, prefix, 2, 2, TargetTime::Create)
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn dead_letters_are_listed_shown_exported_and_sent_back_once() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq");
    let now = crate::rig::an_hour_ago();
    // Records 0 to 899 are dead letters; of 0 to 8 there are stubs, whose originals are in their source.
    let record = |number: u64| first(number, &rig.sources[(number % 2) as usize], now + number as i64);
    let originals: Vec<Outgoing> = (0..9).map(record).collect();
    let places = produce_to_sources(&rig, &originals);
    let producer = Producer::to(&broker);
    let letter = |number: u64| {
        let reason = REASONS[number as usize % REASONS.len()];
        let place = places.get(&number).copied().unwrap_or((0, 1_000_000 + number as i64));
        dead_letter(&rig, &record(number), place, reason, 1 + number % 4)
    };
    producer.send_all((0..900).map(|number| if number < 9 { stub(letter(number)) } else { letter(number) }));
    // One that was rejected five times, and one that names no origin.
    producer.send_all([dead_letter(&rig, &record(900), (0, 7), "expired", 5)]);
    producer.send_all([Outgoing { topic: rig.dead_letter.clone(), ..record(901) }]);

    let mut config = rig.config(rig.service(1_000, "1s", "", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    let desk = Desk::new(&config);
    let listing = desk.json("ls", &[]);
    assert_eq!(listing["records"], 902, "{listing}");
    let expired = desk.json("ls", &["--where", "reason=expired,reason=queue_full"]);
    assert_eq!(expired["records"], 201, "{expired}");
    let shown = desk.json("show", &["--where", "client=stubbed", "--payload"]);
    assert_eq!((&shown["stub"], shown["original"]["value"].is_string()), (&Value::Bool(true), true), "{shown}");
    let (code, lines, _) = desk.run("export", &["--where", "reason=expired", "--payload", "text"]);
    assert_eq!((code, lines.lines().count()), (Some(0), 101), "{lines}");

    let dry = desk.json("redrive", &["--dry-run"]);
    assert_eq!((&dry["counts"]["redriven"], &dry["stubs"]), (&891.into(), &9.into()), "{dry}");
    let options = ["--job", "quick", "--where", "topic=nothing"];
    assert_eq!(desk.json("redrive", &options)["counts"]["redriven"], 0);
    let done = desk.json("redrive", &["--job", "all"]);
    let parked = serde_json::json!({ "max_attempts": 1, "no_origin": 1 });
    assert_eq!((&done["counts"]["redriven"], &done["counts"]["parked"]), (&900.into(), &parked), "{done}");
    // The job is done: there is nothing to go on with.
    assert_eq!(desk.json("redrive", &["--job", "all"])["counts"]["read"], 0);

    let expected = (0..900).map(|number| (number, (record(number), 1 + number % 4))).collect();
    assert_back(&rig, &expected);
    let parked = format!("{}.parked", rig.dead_letter);
    let mut reasons: Vec<String> = read_all(&broker, &parked)
        .iter()
        .filter_map(|record| record.header("throttle-parked").map(str::to_owned))
        .collect();
    reasons.sort();
    assert_eq!(reasons, ["max_attempts", "no_origin"]);
    broker.delete(&[parked]);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_redrive_counts_for_its_own_client_and_mistakes_move_nothing() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-client");
    let now = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[0], now + number as i64);
    let producer = Producer::to(&broker);
    producer.send_all((0..50).map(|number| dead_letter(&rig, &record(number), (0, 7), "expired", 1)));
    let mut config = rig.config(rig.service(1_000, "1s", "client_from = [\"header:client-id\"]", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);

    let mut missing = config.clone();
    missing.services[0].sources[1].0 = format!("{}.absent", rig.name);
    let (code, _, err) = Desk::new(&missing).run("redrive", &["--job", "a"]);
    assert!(code == Some(78) && err.contains(".absent: does not exist"), "{code:?} {err}");
    let mut unreachable = config.clone();
    unreachable.bootstrap = "127.0.0.1:1".to_owned();
    let (code, _, err) = Desk::new(&unreachable).run("ls", &[]);
    assert!(code == Some(69) && err.contains("127.0.0.1:1"), "{code:?} {err}");
    let mut closed = config.clone();
    closed.services[0].tables = "[[service.source]]\ntopic = \"closed\"\nallowed_clients = [\"a\"]\n".to_owned();
    let (code, _, err) = Desk::new(&closed).run("redrive", &["--job", "b"]);
    assert!(code == Some(2) && err.contains("does not allow the client \"redrive\""), "{code:?} {err}");
    let desk = Desk::new(&config);
    for options in [["--where", "reason=late"], ["--where", "colour=red"], ["--since", "soon"], ["--job", "a b"]] {
        let (code, _, err) = desk.run("redrive", &options);
        assert!(code == Some(2) && err.contains("allowed:") || err.contains("there is no reason"), "{code:?} {err}");
    }
    assert_eq!(rig.read_sources().len(), 0, "nothing was moved");

    // A job that is not done goes on with its own options, and with what came later only after its end.
    assert_eq!(desk.json("redrive", &["--limit", "20"])["counts"]["redriven"], 20);
    let (code, _, err) = desk.run("redrive", &["--job", "default", "--where", "reason=expired"]);
    assert!(code == Some(2) && err.contains("begun with other options"), "{code:?} {err}");
    producer.send_all((50..60).map(|number| dead_letter(&rig, &record(number), (0, 7), "expired", 1)));
    assert_eq!(desk.json("redrive", &[])["counts"]["redriven"], 30);
    assert_eq!(desk.json("redrive", &["--dry-run"])["counts"]["redriven"], 10);
    assert_eq!(desk.json("redrive", &[])["counts"]["redriven"], 10);
    assert_eq!(desk.json("redrive", &["--dry-run"])["counts"]["redriven"], 0);
    let mut watermaster = Watermaster::start(&config);
    wait_until("the redriven records to be admitted", DRAIN_TIMEOUT, || {
        watermaster.metric("watermaster_records_total", &["client=\"redrive\"", "decision=\"admitted\""]) == Some(60.0)
    });
    watermaster.terminate(DRAIN_TIMEOUT);
    broker.delete(&[format!("{}.parked", rig.dead_letter)]);
}

#[path = "dead_letters_long.rs"]
mod long;

#[path = "dead_letters_ledger.rs"]
mod ledger;
