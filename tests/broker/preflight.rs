//! Brokers that do not support `exactly_once` or the group protocol are reported by `check --connect` and at the start.

use watermaster_kafka::control::ensure_topic;

use crate::control::kafka;
use crate::dead_letters::Desk;
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime, an_hour_ago};
use crate::support::broker::{Broker, Topic};
use crate::support::config::{Config, Service};
use crate::support::own_broker::{OwnBroker, tool};
use crate::support::producer::{Outgoing, Producer};
use crate::support::wait::wait_until;
use crate::support::watermaster::{Watermaster, check, check_with};

fn config(rig: &Rig, lines: &str) -> Config {
    let mut config = rig.config(rig.service(1_000, "1s", "client_from = [\"header:client-id\"]", ""));
    config.kafka = lines.to_owned();
    config
}

/// Properties of a broker with an authorizer.
pub const WITH_ACLS: [&str; 2] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
];

/// Asserts that `check` reports all `texts`, and that `run` ends with the same words.
fn refused(config: &Config, texts: &[&str]) {
    let (code, said) = check(config);
    assert_eq!(code, Some(78), "{said}");
    let mut watermaster = Watermaster::spawn(config);
    let status = watermaster.wait(DRAIN_TIMEOUT);
    let log = watermaster.log();
    assert_ne!(status.code(), Some(0), "{log}");
    for text in texts {
        assert!(said.contains(text), "check does not report {text:?}:\n{said}");
        assert!(log.contains(text), "run does not report {text:?}:\n{log}");
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_capable_broker_passes_the_check() {
    let broker = Broker::of_this_run();
    let rig = Rig::with_target(&broker, "preflight", 1, 1, |topic| topic.set("min.insync.replicas", "2"));
    for kafka in ["delivery = \"exactly_once\"", "delivery = \"exactly_once\"\ngroup_protocol = \"consumer\""] {
        let (code, said) = check(&config(&rig, kafka));
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.contains(&format!("{}: min.insync.replicas is 2, more than its 1 replicas", rig.target)),
            "{said}"
        );
        assert_eq!(said.contains("group.consumer.session.timeout.ms"), kafka.contains("consumer"), "{said}");
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_retention_shorter_than_the_time_to_drain_is_named() {
    let broker = Broker::of_this_run();
    let rig = Rig::with_topics(&broker, "retention", |topic| topic.set("retention.ms", "60000"));
    let producer = Producer::to(&broker);
    producer.send_all((0..500).map(|number| Outgoing::numbered(&rig.sources[0], number, "a")));
    // With one client its part is the whole capacity.
    let (code, said) = check(&rig.config(rig.service(100, "10s", "client_from = [\"topic\"]", "")));
    assert_eq!((code, said.contains("holds 500 records")), (Some(0), false), "{said}");
    let (code, said) = check(&rig.config(rig.service(10, "10s", "client_from = [\"topic\"]", "")));
    assert_eq!(code, Some(0), "{said}");
    let warned = "holds 500 records, which take 8m 20s at the part of the capacity that topic-0 always has, and deletes \
                  them after 1m: set retention.ms to 500000 or more";
    assert!(said.contains(warned), "{said}");
    assert!(said.contains("when a client floods, its records wait in Kafka, and none is rejected"), "{said}");
}

/// The commands that `--create` prints are run as they are printed; stdout has nothing else.
#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn missing_topics_are_made_by_the_commands_that_the_check_prints() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "missing", 1, 2, TargetTime::Create);
    let new = format!("{}.new", rig.name);
    let service = rig.service(1_000, "1s", "client_from = [\"topic\"]\nscope = \"instance\"", "");
    let config = rig.config(Service { target: new.clone(), ..service });
    let desk = Desk::new(&config);
    let (code, commands, said) = desk.any("check", &["--connect", "--create"]);
    assert_eq!((code, said.contains(&format!("{new}: does not exist: create it"))), (Some(78), true), "{said}");
    let (_, report, _) = desk.any("check", &["--connect", "--create", "--output", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
    assert_eq!(report["brokers"]["create"], serde_json::json!([commands.trim_end()]));
    let commands = commands.replace(" \\\n", " ");
    for command in commands.lines() {
        let command = command.strip_prefix("kafka-topics.sh ").unwrap_or_else(|| panic!("no command: {command}"));
        tool("org.apache.kafka.tools.TopicCommand", &command.split_whitespace().collect::<Vec<_>>());
    }
    assert_eq!(commands.lines().count(), 1, "{commands}");
    let (code, said) = check_with(&config, &["--create"]);
    assert!(code == Some(0) && said.contains("the brokers have what the configuration needs"), "{said}");
    assert!(!said.contains("kafka-topics.sh"), "{said}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn dead_letters_that_are_deleted_within_a_day_or_refused_fail_a_strict_check() {
    let broker = Broker::of_this_run();
    let rig = Rig::with_topics(&broker, "short", |topic| {
        topic.set("retention.ms", "60000");
        topic.set("message.timestamp.before.max.ms", "30000");
    });
    let config = rig.config(rig.service(1_000, "1s", "client_from = [\"topic\"]", ""));
    let (code, said) = check(&config);
    let warned = "deletes dead letters after 1m, before a person can look at them: set retention.ms to 604800000";
    assert_eq!((code, said.contains(&format!("{}: {warned}", rig.dead_letter))), (Some(0), true), "{said}");
    for topic in [&rig.target, &rig.dead_letter] {
        let warned = "refuses records that are 30s old by their timestamp, and the sources keep records for longer";
        assert!(said.contains(&format!("{topic}: {warned}")), "{said}");
    }
    assert_eq!(check_with(&config, &["--strict"]).0, Some(78));
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_control_topic_that_a_group_can_not_trust_is_refused() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "preflight-control", 1, 1, TargetTime::Create);
    let grouped = |topic: &str| {
        let keys = format!("client_from = [\"topic\"]\nscope = \"group\"\ncontrol_topic = {topic:?}");
        rig.config(rig.service(1_000, "1s", &keys, ""))
    };
    let new = format!("{}.new", rig.name);
    let (code, said) = check(&grouped(&new));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("does not exist: it is made at the start"), "{said}");
    ensure_topic(&kafka(&broker, 0), &new, "", None, DRAIN_TIMEOUT).expect("the topic is made");
    let (code, said) = check(&grouped(&new));
    assert!(code == Some(0) && !said.contains(&new), "{said}");

    let [wide, lossy, small] = ["wide", "lossy", "small"].map(|kind| format!("{}.{kind}", rig.name));
    let mut unclean = Topic::new(&lossy, 1);
    unclean.set("cleanup.policy", "compact");
    unclean.set("unclean.leader.election.enable", "true");
    let mut short = Topic::new(&small, 1);
    short.set("cleanup.policy", "compact");
    short.set("max.message.bytes", "1048575");
    let _topics = broker.create(&[Topic::new(&wide, 2), unclean, short]);
    refused(&grouped(&wide), &["has 2 partitions: it needs exactly one", "cleanup.policy is delete"]);
    refused(&grouped(&lossy), &["unclean.leader.election.enable is true"]);
    // A group works with smaller records, less fairly, and compaction seldom comes between two looks.
    let (code, said) = check(&grouped(&small));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("warning: kyc: {small}: min.compaction.lag.ms is 0")), "{said}");
    assert!(said.contains(&format!("warning: kyc: {small}: max.message.bytes is 1048575")), "{said}");
}

/// A first start with a new group used to send the whole history of the topics to the service and to the dead-letter
/// topic, without a word before.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_fresh_group_takes_no_history_unless_the_configuration_says_so() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "history", 2, 2, TargetTime::Create);
    let day_ago = an_hour_ago() - 23 * 3_600_000;
    let old = |n: u64| Outgoing { timestamp: Some(day_ago), ..Outgoing::numbered(&rig.sources[0], n, "one") };
    Producer::to(&broker).send_all((0..50).map(old));
    let config = config(&rig, "delivery = \"exactly_once\"");
    let undecided = Config { start_from: None, ..config.clone() };
    let told = ["has committed nothing", "hold 50 records, the oldest 1day", "start_from = \"earliest\"", "\"latest\""];
    // A restart asks again.
    for _ in 0..2 {
        refused(&undecided, &told);
    }
    assert_eq!((rig.read_target().len(), rig.read_dead_letter().len()), (0, 0));

    let (code, said) = check(&config);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("start_from is \"earliest\", and the sources hold 50 records, the oldest 1day"), "{said}");
    let mut watermaster = Watermaster::start(&config);
    wait_until("the history", DRAIN_TIMEOUT, || rig.read_target().len() == 50);
    // An instance that joins a group with offsets needs no decision, nor does a restart.
    let mut second = Watermaster::start(&Config { instance: "second", ..undecided.clone() });
    for instance in [&mut watermaster, &mut second] {
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
    let (code, said) = check(&undecided);
    assert!(code == Some(0) && !said.contains("has committed nothing"), "{said}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_fresh_group_in_shadow_mode_or_without_history_starts() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "no-history", 1, 1, TargetTime::Create);
    let undecided = Config { start_from: None, ..config(&rig, "delivery = \"exactly_once\"") };
    let (code, said) = check(&undecided);
    assert!(code == Some(0) && !said.contains("has committed nothing"), "{said}");
    Producer::to(&broker).send_all((0..50).map(|n| Outgoing::numbered(&rig.sources[0], n, "one")));
    let mut shadow = undecided;
    shadow.services[0].keys.push_str("\nenforce = false");
    let (code, said) = check(&shadow);
    assert!(code == Some(0) && said.contains("in shadow mode the service reads them all"), "{said}");
    let mut watermaster = Watermaster::start(&shadow);
    wait_until("the history", DRAIN_TIMEOUT, || rig.read_target().len() == 50);
    assert_eq!(watermaster.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", watermaster.log());
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn an_own_kafka_without_support_is_refused() {
        let own = ["group.coordinator.rebalance.protocols=classic", "transaction.max.timeout.ms=5000"];
        let broker = OwnBroker::with(&[&own[..], &WITH_ACLS].concat());
        let rig = Rig::new(&broker, "preflight-not", 1, 1, TargetTime::Create);
        refused(
            &config(&rig, "delivery = \"at_least_once\"\ngroup_protocol = \"consumer\""),
            &["do not know kafka.group_protocol = \"consumer\"", "is \"classic\"", "set it to \"classic\""],
        );
        refused(
            &config(&rig, "delivery = \"exactly_once\""),
            &["transaction.timeout.ms is 10000, the brokers allow 5000", "[kafka.properties]"],
        );
        // The seats of a group need transactions in any case.
        refused(
            &config(&rig, "delivery = \"at_least_once\""),
            &["transaction.timeout.ms is 10000, the brokers allow 5000", "[kafka.properties]"],
        );
        for delivery in ["exactly_once", "at_least_once"] {
            let shorter = "[kafka.properties]\n\"transaction.timeout.ms\" = \"4000\"";
            let (code, said) = check(&config(&rig, &format!("delivery = \"{delivery}\"\n{shorter}")));
            assert_eq!(code, Some(0), "{said}");
        }
    }

    /// Transactional ids were tried only for `exactly_once`, while the seats of a group need them in any case.
    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn transactional_ids_of_others_are_refused() {
        let broker = OwnBroker::with(&WITH_ACLS);
        let rig = Rig::new(&broker, "preflight-ids", 1, 1, TargetTime::Create);
        let of_scope = |delivery: &str, scope: &str| {
            let mut config = config(&rig, &format!("delivery = {delivery:?}"));
            config.services[0].keys.push_str(&format!("\nscope = {scope:?}"));
            config
        };
        let ids = format!("{}.kyc.", rig.name);
        let acl = |user: &str, id: &[&str]| {
            let user = format!("User:{user}");
            let grant = ["--add", "--allow-principal", &user, "--operation", "Write", "--transactional-id"];
            broker.tool("org.apache.kafka.tools.AclCommand", &[&grant[..], id].concat());
        };
        // An ACL for another user takes the default permission for the ids away from all others.
        acl("other", &[&ids, "--resource-pattern-type", "prefixed"]);
        let stops = |config: &Config, text: &str| {
            let mut watermaster = Watermaster::spawn(config);
            let status = watermaster.wait(DRAIN_TIMEOUT);
            let log = watermaster.log();
            assert!(status.code() != Some(0) && log.contains(text), "{status}: {log}");
        };
        let own = of_scope("exactly_once", "instance");
        let (code, said) = check(&own);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(&format!("not allowed to use the transactional id {ids}only.check")), "{said}");
        stops(&own, &format!("grant WRITE and DESCRIBE on the transactional id {ids}only"));
        // A grant of an instance's own seat does not cover those of the others.
        acl("ANONYMOUS", &[&format!("{ids}seat.only")]);
        for delivery in ["exactly_once", "at_least_once"] {
            let grouped = of_scope(delivery, "group");
            let (code, said) = check(&grouped);
            assert_eq!(code, Some(78), "{said}");
            assert!(said.contains(&format!("not allowed to use the transactional id {ids}seat.~check")), "{said}");
            let grant = format!("--transactional-id {ids} --resource-pattern-type prefixed");
            assert!(said.contains(&grant) && said.contains("scope = \"instance\""), "{said}");
        }
        let grouped = of_scope("at_least_once", "group");
        stops(&grouped, &format!("WRITE and DESCRIBE on the transactional ids with the prefix {ids}seat."));
        acl("ANONYMOUS", &[&ids, "--resource-pattern-type", "prefixed"]);
        wait_until("the grant to take effect", DRAIN_TIMEOUT, || check(&grouped).0 == Some(0));
        let (code, said) = check(&of_scope("at_least_once", "instance"));
        assert!(code == Some(0) && !said.contains("transactional"), "{said}");
    }

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test"]
    fn a_transaction_log_that_may_not_be_described_is_only_a_warning() {
        let mut broker = OwnBroker::with(&WITH_ACLS);
        let rig = Rig::new(&broker, "preflight-hidden", 1, 1, TargetTime::Create);
        let config = config(&rig, "delivery = \"exactly_once\"");
        let (code, said) = check(&config);
        assert_eq!(code, Some(0), "{said}");
        // The check has created the transaction log with one replica. After the restart, the broker wants three.
        let hide = [
            "--add", "--deny-principal", "User:ANONYMOUS", "--operation", "Describe", "--topic", "__transaction_state",
        ];
        broker.tool("org.apache.kafka.tools.AclCommand", &hide);
        broker.kill();
        broker.start_again_with("transaction.state.log.replication.factor=3");
        let (code, said) = check(&config);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("want 3 replicas") && said.contains("DESCRIBE on __transaction_state"), "{said}");
        let mut watermaster = Watermaster::start(&config);
        assert_eq!(watermaster.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    }
}
