//! Sources with targets and dead-letter topics of their own, under the one capacity of their service.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::dead_letters::{Desk, keep_redrive_key};
use crate::load::{json, load};
use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DEAD_LETTER_PARTITIONS, DRAIN_TIMEOUT, NUMBERED, Rig, TARGET_PARTITIONS, TargetTime};
use crate::support::broker::{Broker, Topic, Topics};
use crate::support::config::{Config, SHORT_SESSION};
use crate::support::generator::Random;
use crate::support::judge::{Judge, Verdict};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::{Identity, Record};
use crate::support::wait::wait_until;
use crate::support::watermaster::{Watermaster, check};
use crate::support::{reader::Follower, reader::read_all};

/// A record in a hundred is of a client that its source does not allow.
const STRANGERS: u64 = 100;
const TOKEN: &str = "the-token-of-the-routes";

/// Two products: the loans with the outputs of the service, and the cards with outputs of their own.
struct Products {
    rig: Rig,
    cards: [String; 2],
    _topics: Topics,
}

impl Products {
    fn new(broker: &Broker, prefix: &str) -> Products {
        let rig = Rig::new(broker, prefix, 2, 2, TargetTime::Append);
        let cards = ["target", "dead-letter"].map(|name| format!("{}.cards.{name}", rig.name));
        let mut target = Topic::new(&cards[0], TARGET_PARTITIONS).with_append_time();
        // Only the target of the cards refuses large records.
        target.set("max.message.bytes", "20000");
        let topics = broker.create(&[target, Topic::new(&cards[1], DEAD_LETTER_PARTITIONS)]);
        Products { rig, cards, _topics: topics }
    }

    fn loans(&self) -> String {
        format!("[[service.source]]\ntopic = {:?}\nallowed_clients = [\"loans\"]\n", self.rig.sources[0])
    }

    fn cards(&self) -> String {
        let [target, dead_letter] = &self.cards;
        format!(
            "[[service.source]]\ntopic_pattern = '^{}$'\nallowed_clients = [\"cards\"]\ntarget = {target:?}\n\
             dead_letter = {dead_letter:?}\n",
            self.rig.sources[1].replace('.', "\\.")
        )
    }

    fn config(&self, delivery: &str, sources: &[String]) -> Config {
        let tables = format!("{TABLES}\n{}", sources.concat());
        let keys = format!("client_from = [\"header:client-id\"]\nconsumer_group = {:?}", self.workers());
        let mut service = self.rig.service(PROMISE.capacity, "2s", &keys, &tables);
        service.sources.clear();
        let mut config = self.rig.config(service);
        config.commit_interval = "20ms";
        config.kafka =
            format!("delivery = {delivery:?}{SHORT_SESSION}\n\"topic.metadata.refresh.interval.ms\" = \"300\"");
        config
    }

    /// Returns the consumer group that reads both targets.
    fn workers(&self) -> String {
        format!("{}.workers", self.rig.name)
    }

    /// Returns record `n`: the even ones are of the loans.
    fn record(&self, n: u64) -> Outgoing {
        let product = (n % 2) as usize;
        let is_strange = (n / 2).is_multiple_of(STRANGERS);
        let client = if is_strange { "stranger" } else { ["loans", "cards"][product] };
        Outgoing::numbered(&self.rig.sources[product], n, client)
    }

    fn send(&self, numbers: std::ops::Range<u64>) {
        Producer::to(&self.rig.broker).send_all(numbers.map(|n| self.record(n)));
    }

    /// Returns a record that is above the limit of one target, even when it is compressed.
    fn large(&self, n: u64) -> Outgoing {
        let value = [format!("{n}|").into_bytes(), Random(n).bytes(100_000)].concat();
        Outgoing { value: Some(value), ..self.record(n) }
    }

    fn follow(&self) -> Follower {
        let topics = [&self.rig.target, &self.rig.dead_letter, &self.cards[0], &self.cards[1]];
        Follower::of(&self.rig.broker, &topics.map(String::as_str), Identity::Value)
    }

    /// Asserts for each product that all its records arrived, and only in its own outputs.
    fn judge(&self, repeats_allowed: u64) -> [Verdict; 2] {
        let judge = Judge {
            reasons: &["unknown_client", "undeliverable"],
            keeps_timestamps: false,
            repeats_allowed,
            ..NUMBERED
        };
        let outputs = [[&self.rig.target, &self.rig.dead_letter], [&self.cards[0], &self.cards[1]]];
        [0, 1].map(|product| {
            let [target, dead_letter] = outputs[product].map(|topic| read_all(&self.rig.broker, topic));
            let verdict = judge.judge(&read_all(&self.rig.broker, &self.rig.sources[product]), &target, &dead_letter);
            let Verdict { admitted, rejected, repeated, reasons, .. } = &verdict;
            eprintln!("product {product}: {admitted} admitted, {rejected} rejected {reasons:?}, {repeated} repeated");
            verdict.assert_right();
            verdict
        })
    }

    /// Asserts that no window of a cycle has more admissions to both targets together than the capacity allows.
    fn assert_promise(&self, kills: u64) {
        let mut admitted = self.rig.read_target();
        admitted.extend(read_all(&self.rig.broker, &self.cards[0]));
        PROMISE.assert_kept(&admitted, kills);
    }
}

/// Kills the program in the middle of a flood of both products.
fn kill(delivery: &str, repeats_allowed: u64) {
    let broker = Broker::of_this_run();
    let products = Products::new(&broker, "routes");
    let records = PROMISE.capacity * 6;
    let large = [1_003, 1_004];
    let record = |n| if large.contains(&n) { products.large(n) } else { products.record(n) };
    Producer::to(&broker).send_all((0..records).map(record));
    let config = products.config(delivery, &[products.loans(), products.cards()]);
    let mut watermaster = Watermaster::start(&config);
    let mut follower = products.follow();
    follower.wait_for(PROMISE.capacity * 2, DRAIN_TIMEOUT);
    watermaster.kill();
    watermaster = Watermaster::start(&config);
    follower.wait_for(records, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let strangers = records / 2 / STRANGERS;
    let verdicts = products.judge(repeats_allowed);
    assert!(verdicts.iter().map(|verdict| verdict.repeated).sum::<u64>() <= repeats_allowed, "of both together");
    for (verdict, undeliverable) in verdicts.into_iter().zip([0, 1]) {
        assert_eq!(verdict.admitted, records / 2 - strangers - undeliverable);
        assert_eq!(verdict.reasons.get("unknown_client"), Some(&strangers));
        assert_eq!(verdict.reasons.get("undeliverable").copied().unwrap_or(0), undeliverable, "of the cards alone");
    }
    products.assert_promise(1);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_record_takes_the_route_of_its_source_exactly_once() {
    kill("exactly_once", 0);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_record_takes_the_route_of_its_source_at_least_once() {
    kill("at_least_once", PROMISE.round());
}

/// A source that comes by reload brings its outputs. A missing one is refused, as is another one of an old source.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_new_source_brings_its_outputs() {
    let broker = Broker::of_this_run();
    let products = Products::new(&broker, "route-reload");
    let token = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(token.path(), TOKEN).expect("the token is written");
    let config = |cards: &str| {
        let mut config = products.config("exactly_once", &[products.loans(), cards.to_owned()]);
        config.admin = format!("token_file = {:?}", token.path().display().to_string());
        config.to_toml()
    };
    let mut first = products.config("exactly_once", &[products.loans()]);
    first.admin = format!("token_file = {:?}", token.path().display().to_string());
    let mut watermaster = Watermaster::start(&first);
    let mut follower = products.follow();
    products.send(0..400);
    follower.wait_for(200, DRAIN_TIMEOUT);

    let cards = products.cards();
    let (status, body) = watermaster.reload(&config(&cards.replace("cards.target", "cards.missing")), TOKEN);
    assert!(status == 422 && body.contains("cards.missing") && body.contains("does not exist"), "{status} {body}");
    let (status, body) = watermaster.reload(&config(&cards), TOKEN);
    assert_eq!(status, 200, "{body}");
    follower.wait_for(400, DRAIN_TIMEOUT);
    let (status, body) = watermaster.reload(&config(&cards.replace("cards.target", "cards.other")), TOKEN);
    assert!(status == 422 && body.contains("source[1].target") && body.contains("restart"), "{status} {body}");
    // The topic becomes that of another source, with other outputs.
    let named = format!("[[service.source]]\ntopic = {:?}\n", products.rig.sources[1]);
    let (status, body) = watermaster.reload(&config(&named), TOKEN);
    assert_eq!(status, 200, "{body}");
    products.send(400..500);
    follower.wait_for(500, DRAIN_TIMEOUT);
    wait_until("the service to be ready", Duration::from_secs(20), || watermaster.is_ready());
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let [target, of_cards] = [&products.rig.target, &products.cards[0]].map(|topic| read_all(&broker, topic));
    let [dead, dead_cards] = [&products.rig.dead_letter, &products.cards[1]].map(|topic| read_all(&broker, topic));
    let number = |record: &Record| Identity::Value.of(record).expect("a numbered record");
    assert!(of_cards.iter().chain(&dead_cards).all(|record| number(record) % 2 == 1 && number(record) < 400));
    assert_eq!(of_cards.len() + dead_cards.len(), 200);
    assert_eq!(target.len() + dead.len(), 300);
}

/// Each product has its dead letters sent back, or closed, by itself. One ledger of the service tells the states of all.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_dead_letter_topic_is_redriven_and_closed_by_itself() {
    let broker = Broker::of_this_run();
    let products = Products::new(&broker, "route-dlq");
    products.send(0..800);
    let mut config = products.config("exactly_once", &[products.loans(), products.cards()]);
    keep_redrive_key(&mut config);
    let mut watermaster = Watermaster::start(&config);
    products.follow().wait_for(800, DRAIN_TIMEOUT);
    watermaster.terminate(STOP_TIMEOUT);
    let (desk, [target, cards]) = (Desk::new(&config), &products.cards);
    let states = |options: &[&str]| {
        let listing = desk.json("ls", options);
        ["open", "redriven", "parked", "closed"].map(|state| listing[state].as_u64().expect("a number"))
    };
    assert_eq!((states(&[]), states(&["--limit", "5"])), ([8, 0, 0, 0], [5, 0, 0, 0]));
    assert_eq!(states(&["--dead-letter", cards, "--where", "client=stranger"]), [4, 0, 0, 0]);
    for command in [&["show"][..], &["export"], &["redrive"], &["close", "--all"]] {
        let (code, _, err) = desk.run(command[0], &command[1..]);
        assert!(code == Some(2) && err.contains(cards) && err.contains(&products.rig.dead_letter), "{code:?} {err}");
    }
    let (code, _, err) = desk.run("close", &["--all", "--dead-letter", target]);
    assert!(code == Some(2) && err.contains(cards), "{code:?} {err}");

    let of_cards = ["--dead-letter", cards, "--as-sender"];
    let done = desk.json("redrive", &[&of_cards[..], &["--limit", "1"]].concat());
    assert_eq!(done["counts"]["redriven"], 1, "{done}");
    assert_eq!(desk.json("close", &["--all", "--dead-letter", &products.rig.dead_letter])["closed"], 4);
    // The position of the job is one for each topic.
    let done = desk.json("redrive", &[&of_cards[..], &["--max-attempts", "1"]].concat());
    assert_eq!(done["counts"]["parked"]["max_attempts"], 3, "{done}");
    assert_eq!((states(&[]), states(&["--parked"])), ([0, 1, 3, 4], [3, 0, 0, 0]));
    let back = read_all(&broker, &products.rig.sources[1]);
    assert_eq!(back.iter().filter(|record| record.header("throttle-attempt").is_some()).count(), 1);
    assert_eq!(products.rig.read_sources().len(), 801);
    let to_target = ["--dead-letter", cards, "--parked", "--to", "target"];
    assert_eq!(desk.json("redrive", &to_target)["counts"]["redriven"], 3);
    let arrived = read_all(&broker, target);
    assert_eq!(arrived.iter().filter(|record| record.header("throttle-attempt").is_some()).count(), 3);
    let made = [format!("{cards}.parked"), format!("{}.ledger", products.rig.dead_letter)];
    broker.delete(&made);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_output_is_checked_and_read_back() {
    let broker = Broker::of_this_run();
    let products = Products::new(&broker, "route-check");
    let config = |cards: &str| products.config("exactly_once", &[products.loans(), cards.to_owned()]);
    let cards = products.cards();
    let (code, said) = check(&config(&cards));
    assert_eq!(code, Some(0), "{said}");
    let outputs = format!("{}, {}", products.rig.target, products.cards[0]);
    let small = format!("{}: max.message.bytes is 20000", products.cards[0]);
    assert!(said.contains(&outputs) && said.contains(&small), "{said}");
    assert!(!said.contains(&format!("{}: max.message.bytes", products.rig.target)), "{said}");
    let (code, said) = check(&config(&cards.replace("cards.dead-letter", "cards.missing")));
    assert!(code == Some(78) && said.contains("cards.missing: does not exist"), "{code:?} {said}");

    let watermaster = Watermaster::start(&config(&cards));
    let clients = ["loans", "cards"].map(|client| {
        format!("[[client]]\nid = {client:?}\n[[client.phase]]\nkind = \"steady\"\nrate = \"30%\"\nfor = \"3s\"\n")
    });
    let (output, _) = load(&config(&cards), &clients.concat(), &[]);
    let report = json(&output);
    assert_eq!((&report["ended"], &report["ok"]), (&"accounted_for".into(), &true.into()), "{report:#}");
    assert_eq!(report["service"]["target"], outputs);
    let of_cards = read_all(&broker, &products.cards[0]).len();
    assert_eq!(report["clients"][1]["admitted"], of_cards, "{report:#}");

    let worker: BaseConsumer = broker.client().set("group.id", products.workers()).create().expect("a consumer");
    let (mut begin, mut offsets) = (TopicPartitionList::new(), 0);
    for (topic, partition) in [&products.rig.target, &products.cards[0]]
        .into_iter()
        .flat_map(|topic| (0..TARGET_PARTITIONS).map(move |partition| (topic, partition)))
    {
        begin.add_partition_offset(topic, partition, Offset::Offset(0)).expect("an offset");
        offsets += worker.fetch_watermarks(topic, partition, DRAIN_TIMEOUT).expect("the ends").1;
    }
    worker.commit(&begin, CommitMode::Sync).expect("the group has no members");
    wait_until("the lag of both targets together", DRAIN_TIMEOUT, || {
        watermaster.metric("watermaster_target_lag_records", &[]) == Some(offsets as f64)
    });
}
