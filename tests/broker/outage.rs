//! Kafka is unreachable or refuses writes: only the affected services stop or wait, and no record is lost.

use std::time::{Duration, Instant, SystemTime};

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::config::{Config, Service};
use crate::support::own_broker::{OwnBroker, free_port};
use crate::support::producer::{Outgoing, Producer};
use crate::{
    support::broker::Broker,
    support::reader::Follower,
    support::record::Identity,
    support::wait::wait_until,
    support::watermaster::{START_TIMEOUT, Watermaster},
};

const CLIENT_FROM: &str = "client_from = [\"header:client-id\"]";
const CAPACITY: u64 = 500;
/// An upper bound for the records of a round: those of 100 ms at [`CAPACITY`] per second, and as many of burst.
const ROUND: u64 = 100;

fn service(rig: &Rig) -> Service {
    rig.service(CAPACITY, "1s", CLIENT_FROM, "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"")
}

fn produce(broker: &Broker, rig: &Rig, numbers: std::ops::Range<u64>) {
    Producer::to(broker).send_all(numbers.map(|n| Outgoing::numbered(&rig.sources[0], n, "one")));
}

fn follow(broker: &Broker, rig: &Rig) -> Follower {
    Follower::of(broker, &[&rig.target, &rig.dead_letter], Identity::Value)
}

/// Asserts that every record reached the target and at most one round was repeated.
fn assert_complete(rig: &Rig, records: u64) {
    assert_eq!(rig.read_dead_letter().len(), 0);
    let repeated = rig.read_target().len() as u64 - records;
    assert!(repeated <= ROUND, "{repeated} records repeated");
}

/// Returns a configuration with a broker's address at which no program listens.
fn without_broker() -> Config {
    let service = Service {
        name: "kyc".to_owned(),
        target: "target".to_owned(),
        dead_letter: "dead-letter".to_owned(),
        capacity: 10,
        cycle: "10s",
        sources: vec![("source".to_owned(), "one".to_owned())],
        keys: CLIENT_FROM.to_owned(),
        tables: String::new(),
    };
    Config::new(&format!("127.0.0.1:{}", free_port()), "no-broker", vec![service])
}

#[test]
fn no_broker_at_start_is_exit_69_within_15_s_if_the_program_is_to_fail_fast() {
    let config = without_broker();
    let mut watermaster = Watermaster::spawn_with(&config, &["--fail-fast"]);
    let status = watermaster.wait(Duration::from_secs(15));
    assert_eq!(status.code(), Some(69), "{}", watermaster.log());
    assert!(
        watermaster.log().contains(&config.bootstrap),
        "the log does not name the unreachable broker: {}",
        watermaster.log()
    );
}

#[test]
fn without_brokers_the_program_is_alive_and_says_what_it_waits_for() {
    let config = without_broker();
    let mut watermaster = Watermaster::spawn(&config);
    wait_until("/readyz to name the reason", START_TIMEOUT, || {
        watermaster.assert_running();
        let (status, body) = watermaster.get("/readyz").unwrap_or_default();
        status == 503 && body.contains("no broker can be reached") && body.contains("refused")
    });
    assert_eq!(watermaster.get("/livez").map(|(status, _)| status), Some(200));
    // No fatal error stopped it: the alert about that, and not the one about services that wait, would fire.
    assert_eq!(watermaster.metric("watermaster_service_up", &[]), Some(1.0));
    let waits = || -> Vec<SystemTime> {
        let log = watermaster.log();
        let lines = log.lines().filter(|line| line.contains(&config.bootstrap));
        let time = |line: &str| humantime::parse_rfc3339(line.split(' ').next()?).ok();
        lines.map(|line| time(line).unwrap_or_else(|| panic!("no time: {line}"))).collect()
    };
    wait_until("a second line about the brokers", Duration::from_secs(60), || waits().len() > 1);
    let between = waits()[1].duration_since(waits()[0]).unwrap();
    assert!(between > Duration::from_secs(9), "{between:?}: {}", watermaster.log());
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
}

#[test]
fn a_watched_file_is_reloaded_and_a_broken_one_is_refused() {
    let mut config = without_broker();
    let mut watermaster = Watermaster::spawn_with(&config, &["--watch"]);
    let count = |watermaster: &Watermaster, text: &str| watermaster.log().matches(text).count();
    wait_until("the start", START_TIMEOUT, || watermaster.get("/livez").is_some());
    for (capacity, text, times) in [
        (20, "the configuration is reloaded", 1),
        (0, "the new configuration is refused", 1),
        (30, "the configuration is reloaded", 2),
    ] {
        config.services[0].capacity = capacity;
        watermaster.rewrite(&config.to_toml());
        wait_until(text, START_TIMEOUT, || count(&watermaster, text) == times);
    }
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
    assert_eq!(count(&watermaster, "is refused"), 1, "{}", watermaster.log());
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn the_service_starts_when_brokers_come() {
    let mut broker = OwnBroker::start();
    let rig = Rig::new(&broker, "late", 1, 4, TargetTime::Create);
    produce(&broker, &rig, 0..1_000);
    broker.kill();
    let mut watermaster = Watermaster::spawn(&rig.config(service(&rig)));
    wait_until("/readyz to say 503", START_TIMEOUT, || {
        watermaster.assert_running();
        watermaster.get("/readyz").is_some_and(|(_, body)| body.contains("no broker can be reached"))
    });
    broker.start_again();
    watermaster.wait_ready(Duration::from_secs(60));
    follow(&broker, &rig).wait_for(1_000, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
    assert_complete(&rig, 1_000);
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn the_service_waits_for_a_broker_that_goes_away() {
    let mut broker = OwnBroker::start();
    let rig = Rig::new(&broker, "away", 1, 4, TargetTime::Create);
    produce(&broker, &rig, 0..2_000);
    let mut watermaster = Watermaster::start(&rig.config(service(&rig)));
    let mut follower = follow(&broker, &rig);
    follower.wait_for(700, DRAIN_TIMEOUT);
    let logged = watermaster.log().len();
    broker.kill();
    wait_until("/readyz to say 503", Duration::from_secs(30), || {
        watermaster.assert_running();
        watermaster.get("/readyz").is_some_and(|(status, _)| status == 503)
    });
    let (alive, _) = watermaster.get("/livez").expect("the admin API answers");
    assert_eq!(alive, 200, "an instance that waits for a broker must not be restarted");
    let news = watermaster.log()[logged..].to_lowercase();
    assert!(news.contains("broker") || news.contains("kafka"), "no log line reports the outage: {news:?}");
    broker.start_again();
    watermaster.wait_ready(Duration::from_secs(60));
    produce(&broker, &rig, 2_000..2_500);
    follower.wait_for(2_500, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
    assert_complete(&rig, 2_500);
}

/// With no topic that has to exist, the look for one asked no broker, so the brokers counted as back once a second:
/// `/readyz` said 200 in 29 of 200 polls.
#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn an_idle_service_with_patterns_is_not_ready_while_its_broker_is_away() {
    const POLLS: usize = 100;
    let mut broker = OwnBroker::start();
    let rig = Rig::new(&broker, "pattern-away", 1, 2, TargetTime::Create);
    produce(&broker, &rig, 0..100);
    for (pattern, records) in [("source-.*", 100), ("nothing", 0)] {
        let mut service = service(&rig);
        service.tables += &format!("\n[[service.source]]\ntopic_pattern = '{}\\.{pattern}'", rig.name);
        service.sources.clear();
        let mut watermaster = Watermaster::start(&rig.config(service));
        follow(&broker, &rig).wait_for(records, DRAIN_TIMEOUT);
        // An instance in the middle of a round asks no broker.
        let is_idle = || records == 0 || rig.lag_of_committed(&rig.sources[0], 2) == Some(0);
        wait_until("the records to be committed", DRAIN_TIMEOUT, is_idle);
        let back = |watermaster: &Watermaster| watermaster.log().matches("the brokers are back").count();
        broker.kill();
        let status = |watermaster: &Watermaster| watermaster.get("/readyz").map(|(status, _)| status);
        wait_until("/readyz to say 503", Duration::from_secs(30), || status(&watermaster) == Some(503));
        let ready = (0..POLLS).filter(|_| {
            std::thread::sleep(Duration::from_millis(100));
            status(&watermaster) != Some(503)
        });
        assert_eq!((ready.count(), back(&watermaster)), (0, 0), "{pattern}: {}", watermaster.log());
        broker.start_again();
        watermaster.wait_ready(Duration::from_secs(60));
        assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
    }
}

/// Properties of a broker with an authorizer.
pub const WITH_ACLS: [&str; 3] = [
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
    "super.users=User:unused",
];

/// Denies writes to a topic (`--add`) or allows them again (`--remove`); all other rights stay.
fn deny_writes(broker: &OwnBroker, verb: &str, topic: &str) {
    let arguments = [verb, "--deny-principal", "User:ANONYMOUS", "--operation", "Write", "--topic", topic];
    let forced = ["--force"].into_iter().filter(|_| verb == "--remove");
    broker.tool("org.apache.kafka.tools.AclCommand", &arguments.into_iter().chain(forced).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn a_target_that_refuses_writes_stops_only_its_service() {
    let broker = OwnBroker::with(&WITH_ACLS);
    let refused = Rig::new(&broker, "refused", 1, 2, TargetTime::Create);
    let other = Rig::new(&broker, "other", 1, 2, TargetTime::Create);
    let everything = ["--add", "--allow-principal", "User:ANONYMOUS", "--operation", "All", "--topic", &refused.target];
    broker.tool("org.apache.kafka.tools.AclCommand", &everything);
    // More records than the service sends in the seconds that Kafka's tool takes to deny the writes.
    const RECORDS: u64 = 8_000;
    produce(&broker, &refused, 0..RECORDS);
    let mut config = refused.config(service(&refused));
    config.services.push(Service { name: "other".to_owned(), ..service(&other) });
    let mut watermaster = Watermaster::start(&config);
    let mut from_refused = follow(&broker, &refused);
    from_refused.wait_for(600, DRAIN_TIMEOUT);
    deny_writes(&broker, "--add", &refused.target);
    let up = |watermaster: &Watermaster, service: &str| {
        watermaster.metric("watermaster_service_up", &[&format!("service=\"{service}\"")])
    };
    let began = Instant::now();
    wait_until("the refused service to stop", Duration::from_secs(60), || {
        watermaster.assert_running();
        up(&watermaster, "kyc") == Some(0.0)
    });
    eprintln!("the refused service stopped after {:.1} s", began.elapsed().as_secs_f32());
    assert_eq!(up(&watermaster, "other"), Some(1.0));
    assert_eq!(watermaster.get("/readyz").map(|(status, _)| status), Some(503));
    assert!(watermaster.log().contains(&refused.target), "the log does not name the topic: {}", watermaster.log());
    produce(&broker, &other, 0..1_000);
    follow(&broker, &other).wait_for(1_000, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());

    deny_writes(&broker, "--remove", &refused.target);
    config.services[0].capacity = 5_000;
    let mut watermaster = Watermaster::start(&config);
    from_refused.wait_for(RECORDS, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(Duration::from_secs(10)).code(), Some(0), "{}", watermaster.log());
    assert_complete(&refused, RECORDS);
    assert_complete(&other, 1_000);
}
