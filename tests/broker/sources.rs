//! Sources and services that come and go by reload while records flow.

use std::time::Duration;

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::record::Identity;
use crate::{
    support::broker::Broker, support::broker::Topic, support::config::Config, support::config::Service,
    support::judge::Judge, support::reader::Follower, support::wait::wait_until, support::watermaster::Watermaster,
    support::watermaster::check,
};

const TOKEN: &str = "the-token-of-the-sources";
const KEYS: &str = "scope = \"instance\"";
const TABLES: &str = "[service.shape]\nqueue_capacity = 1000000\nmax_delay = \"10m\"";

/// The topics of three services, and the file of the token.
struct Stage {
    broker: Broker,
    kyc: Rig,
    steady: Rig,
    late: Rig,
    token: tempfile::NamedTempFile,
    /// More lines of `[kafka]`.
    kafka: &'static str,
}

impl Stage {
    fn new(kafka: &'static str) -> Stage {
        let broker = Broker::of_this_run();
        let [kyc, steady, late] =
            [("kyc", 2), ("steady", 1), ("late", 1)].map(|(name, n)| Rig::new(&broker, name, n, 2, TargetTime::Create));
        let token = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(token.path(), TOKEN).expect("the token is written");
        Stage { broker, kyc, steady, late, token, kafka }
    }

    /// Returns a configuration with these sources of the service `kyc`, and with `late` or without.
    fn config(&self, capacity: u64, sources: &[usize], late: bool) -> Config {
        let named = |name: &str, rig: &Rig, capacity| Service {
            name: name.to_owned(),
            ..rig.service(capacity, "500ms", KEYS, TABLES)
        };
        let mut kyc = named("kyc", &self.kyc, capacity);
        kyc.sources = sources.iter().map(|&source| kyc.sources[source].clone()).collect();
        let mut services = vec![kyc, named("steady", &self.steady, 100_000)];
        // The positions of the other services shift.
        services.splice(0..0, late.then(|| named("late", &self.late, 100_000)));
        let mut config = Config::new(&self.broker.bootstrap, &self.kyc.name, services);
        config.kafka = self.kafka.to_owned();
        config.admin = format!("token_file = {:?}", self.token.path().display().to_string());
        config
    }

    fn reload(&self, watermaster: &Watermaster, config: &Config) -> String {
        let (status, body) = watermaster.reload(&config.to_toml(), TOKEN);
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Returns the test's clients by source: the first source of `kyc` has the client `one`.
    fn load(&self) -> Load {
        let topics = [&self.kyc.sources[0], &self.kyc.sources[1], &self.steady.sources[0], &self.late.sources[0]];
        let topics = topics.map(String::clone);
        let client = ["one", "two", "three", "four"];
        Load::start(&self.broker, 400, move |n| Outgoing::numbered(&topics[n as usize % 4], n, client[n as usize % 4]))
    }

    /// Asserts that each record of a service arrived once, and in the order of its client.
    fn assert_once(&self, service: &str, rig: &Rig) -> u64 {
        let judge = Judge { service, ..NUMBERED };
        judge.judge(&rig.read_sources(), &rig.read_target(), &rig.read_dead_letter()).assert_right().admitted
    }
}

fn come_and_go(kafka: &'static str) {
    let stage = Stage::new(kafka);
    let mut watermaster = Watermaster::start(&stage.config(30, &[0], false));
    let load = stage.load();
    let mut follower =
        Follower::of(&stage.broker, &[&stage.kyc.target, &stage.steady.target, &stage.late.target], Identity::Value);
    follower.wait_for(50, DRAIN_TIMEOUT);
    let metric = |name: &str, labels: &[&str]| watermaster.metric(name, labels);
    let admitted = |client: &str| {
        metric("watermaster_records_total", &["decision=\"admitted\"", &format!("client=\"{client}\"")]).unwrap_or(0.0)
    };
    let backlog = || metric("watermaster_backlog_records", &["client=\"one\""]).unwrap_or(0.0);

    let answer = stage.reload(&watermaster, &stage.config(30, &[0, 1], true));
    assert!(answer.contains("[\"service[0]\",\"service[1].source[1]\"]"), "{answer}");
    wait_until("the new source and the new service to flow", DRAIN_TIMEOUT, || {
        admitted("two") > 0.0 && admitted("four") > 0.0 && backlog() > 50.0
    });

    stage.reload(&watermaster, &stage.config(30, &[1], false));
    // Delayed records of the topic that left are dropped, not committed: they are read again below.
    wait_until("the source and the service to leave", DRAIN_TIMEOUT, || backlog() == 0.0);
    assert_eq!(watermaster.get("/v1/services/late").map(|(status, _)| status), Some(404));
    assert_eq!(metric("watermaster_service_up", &["service=\"late\""]), None);
    assert!(stage.kyc.lag_of_committed(&stage.kyc.sources[0], 2).is_some_and(|lag| lag > 50));

    // The former engine of the service may still be leaving.
    stage.reload(&watermaster, &stage.config(100_000, &[1, 0], true));
    wait_until("all services to be ready", DRAIN_TIMEOUT, || watermaster.is_ready());
    let sent = load.stop();
    follower.wait_for(sent, DRAIN_TIMEOUT);
    let steady = &["service=\"steady\""];
    assert_eq!(
        metric("watermaster_rebalances_total", steady),
        Some(1.0),
        "no reload costs another service a rebalance"
    );
    let expected = (sent / 4) as f64 + f64::from(u8::from(sent % 4 > 2));
    wait_until("the figures of a service that was not touched", DRAIN_TIMEOUT, || admitted("three") == expected);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0));

    let services = [("kyc", &stage.kyc), ("steady", &stage.steady), ("late", &stage.late)];
    let counts = services.map(|(service, rig)| stage.assert_once(service, rig));
    assert_eq!(counts.iter().sum::<u64>(), sent, "{counts:?}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn sources_and_services_come_and_go_by_reload() {
    come_and_go("");
}

/// A reload that the brokers object to changes nothing; without brokers, a new service waits for them.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_service_without_topics_is_refused() {
    let stage = Stage::new("");
    let watermaster = Watermaster::start(&stage.config(30, &[0], false));
    let mut config = stage.config(30, &[0], true);
    config.services[0].dead_letter = format!("{}.missing", stage.late.name);
    let (status, body) = watermaster.reload(&config.to_toml(), TOKEN);
    assert!(status == 422 && body.contains("service[0].dead_letter") && body.contains("does not exist"), "{body}");
    assert_eq!(watermaster.get("/v1/services/late").map(|(status, _)| status), Some(404));
    assert_eq!(watermaster.metric("watermaster_config_last_reload_successful", &[]), Some(0.0));
    assert!(watermaster.is_ready());
}

/// Records are deleted while no instance runs. `check` found nothing wrong, and with `"continue"` no line of the log
/// named the offsets.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn records_that_are_deleted_before_a_start_are_named() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "deleted", 1, 1, TargetTime::Create);
    let mut config = rig.config(rig.service(1_000, "1s", KEYS, ""));
    let send = |numbers: std::ops::Range<u64>| {
        Producer::to(&broker).send_all(numbers.map(|number| Outgoing::numbered(&rig.sources[0], number, "one")));
    };
    send(0..20);
    let mut instance = Watermaster::start(&config);
    wait_until("the first records to be delivered", DRAIN_TIMEOUT, || rig.read_target().len() == 20);
    assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    assert!(!check(&config).1.contains("an instance that starts"));
    send(20..50);
    broker.delete_records(&rig.sources[0]);
    let lost = "offset 20 is next, but the topic holds 50 to 50: records were deleted before they were read";
    let (code, warned) = check(&config);
    assert!(code == Some(0) && warned.contains("an instance that starts stops") && warned.contains(lost), "{warned}");
    config.kafka = "on_data_loss = \"continue\"".to_owned();
    let instance = Watermaster::start(&config);
    wait_until("the loss to be counted", DRAIN_TIMEOUT, || {
        instance.metric("watermaster_lost_records_total", &[]) == Some(30.0)
    });
    let errors = instance.log();
    assert!(errors.lines().any(|line| line.contains(lost) && line.contains("ERROR")), "{errors}");
}

/// Topics that match a pattern are read as they come, and no longer when they are gone.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn topics_that_match_a_pattern_come_and_go() {
    let broker = Broker::of_this_run();
    // The target and the dead-letter topic match, too.
    let rig = Rig::new(&broker, "pattern", 0, 2, TargetTime::Create);
    let pattern = format!("[[service.source]]\ntopic_pattern = '^{}\\.(?<client>.*)$'", rig.name);
    let keys = format!("{KEYS}\nclient_from = [\"topic\"]");
    let mut config = rig.config(rig.service(100_000, "500ms", &keys, &format!("{TABLES}\n{pattern}")));
    config.kafka = "[kafka.properties]\n\"topic.metadata.refresh.interval.ms\" = \"300\"".to_owned();
    let mut watermaster = Watermaster::start(&config);
    assert!(watermaster.log().contains("no topic matches"), "{}", watermaster.log());

    let [loans, cards] = ["loans", "cards"].map(|name| format!("{}.{name}", rig.name));
    let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
    let send = |topic: &str, numbers: std::ops::Range<u64>| {
        Producer::to(&broker).send_all(numbers.map(|n| Outgoing::numbered(topic, n, "")))
    };
    let lag = |topic: &str| watermaster.metric("watermaster_consumer_lag_records", &[&format!("topic=\"{topic}\"")]);
    let _loans = broker.create(&[Topic::new(&loans, 2)]);
    send(&loans, 0..100);
    follower.wait_for(100, DRAIN_TIMEOUT);
    let created = broker.create(&[Topic::new(&cards, 2)]);
    send(&cards, 100..200);
    follower.wait_for(200, DRAIN_TIMEOUT);
    wait_until("both topics to be done", DRAIN_TIMEOUT, || lag(&loans) == Some(0.0) && lag(&cards) == Some(0.0));
    drop(created);
    wait_until("the deleted topic to leave", DRAIN_TIMEOUT, || lag(&cards).is_none());
    send(&loans, 200..300);
    follower.wait_for(300, DRAIN_TIMEOUT);
    for client in ["loans", "cards"] {
        let labels = ["decision=\"admitted\"", &format!("client=\"{client}\"")];
        let expected = if client == "loans" { 200.0 } else { 100.0 };
        assert_eq!(watermaster.metric("watermaster_records_total", &labels), Some(expected), "{client}");
    }
    assert!(watermaster.is_ready());
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0));
    let mut numbers: Vec<u64> = rig.read_target().iter().filter_map(|record| Identity::Value.of(record)).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<u64>>());
}

mod long {
    use watermaster_kafka::control::ensure_topic;

    use super::*;
    use crate::{control::kafka, support::own_broker::OwnBroker};

    #[test]
    #[ignore = "takes longer than a CI run should: scripts/test --long"]
    fn sources_and_services_come_and_go_in_a_group_of_the_brokers() {
        come_and_go("group_protocol = \"consumer\"");
    }

    #[test]
    #[ignore = "takes longer than a CI run should: scripts/test --long"]
    fn sources_and_services_come_and_go_at_least_once() {
        come_and_go("delivery = \"at_least_once\"");
    }

    /// After its leader has changed, a source topic is deleted and made anew. librdkafka takes the first leader epoch of
    /// the new topic for one that is out of date: no record came, and no error.
    #[test]
    #[ignore = "needs Kafka's jars: scripts/test --long"]
    fn a_source_that_is_made_anew_after_its_leader_changed_is_read() {
        let mut own = OwnBroker::start();
        let rig = Rig::new(&own, "anew", 1, 1, TargetTime::Create);
        let mut instance = Watermaster::start(&rig.config(rig.service(10_000, "1s", KEYS, "")));
        let mut sent = 0;
        let mut send = |broker: &Broker, count: u64| {
            let numbers = sent..sent + count;
            sent += count;
            Producer::to(broker).send_all(numbers.map(|number| Outgoing::numbered(&rig.sources[0], number, "one")));
            sent
        };
        for _ in 0..3 {
            let all = send(&own, 100);
            wait_until("the records to be delivered", DRAIN_TIMEOUT, || rig.read_target().len() as u64 == all);
            own.kill();
            own.start_again();
        }
        own.delete(&rig.sources);
        wait_until("the topic to be made anew", DRAIN_TIMEOUT, || {
            let made = ensure_topic(&kafka(&own, 0), &rig.sources[0], "", None, DRAIN_TIMEOUT);
            made.is_ok_and(|topic| topic.created)
        });
        let all = send(&own, 20);
        wait_until("the new topic's records to be delivered", DRAIN_TIMEOUT, || rig.read_target().len() as u64 == all);
        assert!(instance.log().contains("a source was made anew"), "{}", instance.log());
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }

    /// A topic that matches a pattern is deleted while records of it are delayed. No broker takes its offsets any more:
    /// the round waited, and the records of all other topics with it, until librdkafka asked about its topics again,
    /// which it does each five minutes.
    #[test]
    #[ignore = "takes longer than a CI run should: scripts/test --long"]
    fn a_topic_of_a_pattern_that_is_deleted_with_delayed_records_does_not_hold_up_the_others() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "pattern-deleted", 0, 1, TargetTime::Create);
        let pattern = format!("[[service.source]]\ntopic_pattern = '^{}\\.(?<client>.*)$'", rig.name);
        let keys = format!("{KEYS}\nclient_from = [\"topic\"]");
        let [loans, cards] = ["loans", "cards"].map(|name| format!("{}.{name}", rig.name));
        let _loans = broker.create(&[Topic::new(&loans, 1)]);
        let created = broker.create(&[Topic::new(&cards, 1)]);
        let service = rig.service(50, "1s", &keys, &format!("{TABLES}\n{pattern}"));
        let mut instance = Watermaster::start(&rig.config(service));
        let send = |topic: &str, numbers: std::ops::Range<u64>| {
            Producer::to(&broker).send_all(numbers.map(|number| Outgoing::numbered(topic, number, "")));
        };
        send(&cards, 0..20_000);
        wait_until("the first records to be delivered", DRAIN_TIMEOUT, || rig.read_target().len() >= 50);
        drop(created);
        send(&loans, 20_000..20_010);
        wait_until("the other topic's records to be delivered", DRAIN_TIMEOUT, || {
            let target = rig.read_target();
            let numbers = target.iter().filter_map(|record| Identity::Value.of(record));
            numbers.filter(|number| *number >= 20_000).count() == 10
        });
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }

    /// A source topic is deleted and made anew while records of it are delayed. Their round waits for the new topic and
    /// commits the former offsets to it: the new topic's first records were skipped, without a sign.
    #[test]
    #[ignore = "takes longer than a CI run should: scripts/test --long"]
    fn a_source_that_is_made_anew_while_records_are_delayed_is_read_from_its_first_record() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "delayed-anew", 1, 1, TargetTime::Create);
        let mut config = rig.config(rig.service(50, "1s", KEYS, TABLES));
        let mut instance = Watermaster::start(&config);
        let send = |numbers: std::ops::Range<u64>| {
            Producer::to(&broker).send_all(numbers.map(|number| Outgoing::numbered(&rig.sources[0], number, "one")));
        };
        send(0..500);
        wait_until("the first records to be delivered", DRAIN_TIMEOUT, || rig.read_target().len() >= 50);
        broker.delete(&rig.sources);
        wait_until("the topic to be made anew", DRAIN_TIMEOUT, || {
            let made = ensure_topic(&kafka(&broker, 0), &rig.sources[0], "", None, DRAIN_TIMEOUT);
            made.is_ok_and(|topic| topic.created)
        });
        // The position lies beyond the new topic's end, which stops the service.
        assert_eq!(instance.wait(DRAIN_TIMEOUT).code(), Some(70), "{}", instance.log());
        send(500..1_500);
        let mut instance = Watermaster::spawn(&config);
        assert_eq!(instance.wait(DRAIN_TIMEOUT).code(), Some(70), "{}", instance.log());
        assert!(instance.log().contains("is one of a former topic of this name"), "{}", instance.log());
        config.kafka = "on_data_loss = \"continue\"".to_owned();
        let mut instance = Watermaster::start(&config);
        let of_new = || {
            let mut numbers: Vec<u64> = rig.read_target().iter().filter_map(|one| Identity::Value.of(one)).collect();
            numbers.retain(|number| *number >= 500);
            numbers.sort_unstable();
            numbers
        };
        wait_until("the last record to be delivered", DRAIN_TIMEOUT, || of_new().last() == Some(&1_499));
        assert_eq!(of_new(), (500..1_500).collect::<Vec<u64>>(), "{}", instance.log());
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
}
