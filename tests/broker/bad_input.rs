//! Malformed input: each record is admitted or rejected with the right reason, and other clients are unaffected.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::rig::{DEAD_LETTER_PARTITIONS, DRAIN_TIMEOUT, Rig, TARGET_PARTITIONS, TargetTime, an_hour_ago};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::{Header, Identity, Record};
use crate::{
    support::broker::Broker, support::judge::Judge, support::reader::Follower, support::watermaster::Watermaster,
};

const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The expected outcome of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Admitted(&'static str),
    Anonymous,
    Unknown(&'static str),
}

/// One case: its name, its headers, its value and its expected outcome.
type Case = (&'static str, Vec<Header>, Option<Vec<u8>>, Expected);

fn id(value: &[u8]) -> Header {
    ("client-id".to_owned(), Some(value.to_vec()))
}

fn json(what: &'static str, value: impl AsRef<[u8]>, expected: Expected) -> Case {
    (what, vec![], Some(value.as_ref().to_vec()), expected)
}

fn header_cases() -> Vec<Case> {
    use Expected::{Admitted, Anonymous};
    let none = || Some(b"not JSON".to_vec());
    vec![
        ("a good header", vec![id(b"home-loan")], none(), Admitted("home-loan")),
        ("no header and no value", vec![], None, Anonymous),
        ("an empty header", vec![id(b"")], None, Anonymous),
        ("a null header", vec![("client-id".to_owned(), None)], None, Anonymous),
        ("not UTF-8", vec![id(b"home\xff")], none(), Anonymous),
        ("one byte too long", vec![id(&[b'x'; 129])], none(), Anonymous),
        ("an id of one megabyte", vec![id(&vec![b'x'; 1 << 20])], none(), Anonymous),
        ("the same header twice", vec![id(b"home-loan"), id(b"home-loan")], none(), Anonymous),
        ("a header name in other case", vec![("Client-Id".to_owned(), Some(b"home-loan".to_vec()))], None, Anonymous),
    ]
}

fn json_cases() -> Vec<Case> {
    use Expected::{Admitted, Anonymous};
    let home = || Admitted("home-loan");
    let digits = "7".repeat(100_000);
    let deep = |open: &str, times: usize| open.repeat(times);
    let nested = format!("{{\"x\":{}{},\"client\":{{\"id\":\"home-loan\"}}}}", "[".repeat(64), "]".repeat(64));
    vec![
        json("good", r#"{"client":{"id":"home-loan"}}"#, home()),
        json("escaped", r#"{"client":{"id":"h\u006fme-lo\u0061n"}}"#, home()),
        json("an escaped key", r#"{"cl\u0069ent":{"id":"home-loan"}}"#, home()),
        json("deeply nested sibling", nested, home()),
        json("huge sibling numbers", format!(r#"{{"a":1e400,"b":-{digits},"client":{{"id":"home-loan"}}}}"#), home()),
        json("repeated keys off the path", r#"{"a":1,"a":2,"client":{"x":1,"x":2,"id":"home-loan"}}"#, home()),
        json("not JSON", "home-loan", Anonymous),
        json("a key in other case", r#"{"client":{"ID":"home-loan"}}"#, Anonymous),
        json("cut off", r#"{"client":{"id":"home-loan""#, Anonymous),
        json("trailing text", r#"{"client":{"id":"home-loan"}} x"#, Anonymous),
        json("an integer", r#"{"client":{"id":5}}"#, Admitted("5")),
        json("a number with a fraction", r#"{"client":{"id":5.0}}"#, Anonymous),
        json("a huge number", format!(r#"{{"client":{{"id":{digits}}}}}"#), Anonymous),
        json("an array", r#"{"client":{"id":["home-loan"]}}"#, Anonymous),
        json("repeated key", r#"{"client":{"id":"home-loan","id":"home-loan"}}"#, Anonymous),
        json("repeated parent key", r#"{"client":{"id":"home-loan"},"client":{"id":"home-loan"}}"#, Anonymous),
        json("repeated key, once escaped", r#"{"client":{"id":"home-loan"},"cl\u0069ent":{}}"#, Anonymous),
        json("an unpaired surrogate", r#"{"client":{"id":"\ud83c"}}"#, Anonymous),
        json("not UTF-8", b"{\"client\":{\"id\":\"home\xff\"}}", Anonymous),
        json("a number that JSON does not allow", r#"{"a":NaN,"client":{"id":"home-loan"}}"#, Anonymous),
        json("too long", format!(r#"{{"client":{{"id":"{}"}}}}"#, "x".repeat(129)), Anonymous),
        json("deep arrays", deep("[", 500_000), Anonymous),
        json("deep objects", deep("{\"client\":", 100_000), Anonymous),
        json("an unterminated string", format!("{{\"client\":{{\"id\":\"{}", "x".repeat(1 << 20)), Anonymous),
    ]
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn bad_ids_are_rejected_with_their_reason() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "bad", 2, 2, TargetTime::Create);
    let strict = vec![
        ("an unlisted id", vec![id(b"stranger")], None, Expected::Unknown("stranger")),
        ("a listed id", vec![id(b"home-loan")], None, Expected::Admitted("home-loan")),
        ("no id, where ids are listed", vec![], None, Expected::Anonymous),
    ];
    let open = header_cases().into_iter().chain(json_cases()).map(|case| (0, case));
    let cases: Vec<(usize, Case)> = open.chain(strict.into_iter().map(|case| (1, case))).collect();
    let start = an_hour_ago();
    let outgoing = |(n, (source, (_, headers, value, _))): (usize, &(usize, Case))| Outgoing {
        topic: rig.sources[*source].clone(),
        timestamp: Some(start + n as i64),
        key: Some(format!("key {n}").into_bytes()),
        value: value.clone(),
        headers: headers.clone(),
        ..Outgoing::default()
    };
    Producer::to(&broker).send_all(cases.iter().enumerate().map(outgoing));

    let identity = Identity::TimestampFrom(start);
    let mut service = rig.service(1_000, "1s", "client_from = [\"header:client-id\", \"json:/client/id\"]", "");
    let (strict_topic, _) = service.sources.pop().expect("the second source");
    service.tables = format!("[[service.source]]\ntopic = {strict_topic:?}\nallowed_clients = [\"home-loan\"]\n");
    let mut watermaster = Watermaster::start(&rig.config(service));
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], identity);
    follower.wait_for(cases.len() as u64, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let case = |record: &Record| &cases[identity.of(record).expect("a record of this test") as usize].1;
    let client_of = |record: &Record| match case(record).3 {
        Expected::Admitted(client) | Expected::Unknown(client) => Some(client.to_owned()),
        Expected::Anonymous => None,
    };
    let judge = Judge {
        identity,
        service: "kyc",
        client_of: &client_of,
        reasons: &["unknown_client"],
        admits_all: false,
        target_partitions: TARGET_PARTITIONS,
        dead_letter_partitions: DEAD_LETTER_PARTITIONS,
        keeps_timestamps: true,
        repeats_allowed: 0,
    };
    let (target, dead_letter) = (rig.read_target(), rig.read_dead_letter());
    judge.judge(&rig.read_sources(), &target, &dead_letter).assert_right();
    let misplaced = |records: &[Record], admitted: bool| -> Vec<&str> {
        let wrong = records.iter().filter(|record| matches!(case(record).3, Expected::Admitted(_)) != admitted);
        wrong.map(|record| case(record).0).collect()
    };
    assert_eq!(misplaced(&target, true), Vec::<&str>::new(), "these records should be rejected");
    assert_eq!(misplaced(&dead_letter, false), Vec::<&str>::new(), "these records should be admitted");
}

/// Each record carries a new id, except those of two configured clients.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn new_ids_neither_grow_memory_nor_affect_configured_clients() {
    let fresh: u64 = if std::env::var_os("WATERMASTER_TEST_LONG").is_some() { 1_000_000 } else { 100_000 };
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "fresh", 1, 4, TargetTime::Create);
    let client = |n: u64| match n % 100 {
        0 => "home-loan".to_owned(),
        50 => "credit-card".to_owned(),
        _ => format!("fresh-{n}"),
    };
    let is_configured = |n: u64| n.is_multiple_of(50);
    let tables = "[service.shape]\nqueue_bytes = \"32MiB\"\n[service.client.home-loan]\nweight = 5.0\n\
                  [service.client.credit-card]\nweight = 5.0\n";
    let keys = "client_from = [\"header:client-id\"]\nmax_clients = 1000";
    let mut watermaster = Watermaster::start(&rig.config(rig.service(20_000, "1s", keys, tables)));
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    let producer = Producer::to(&broker);
    let began = Instant::now();
    // Resident MiB after each tenth of the records.
    let mut memory = Vec::new();
    for tenth in 0..10 {
        let (from, to) = (fresh / 10 * tenth, fresh / 10 * (tenth + 1));
        producer.send_all((from..to).map(|n| Outgoing::numbered(&rig.sources[0], n, &client(n))));
        follower.wait_for(to, DRAIN_TIMEOUT);
        memory.push(watermaster.resident_kib() / 1024);
    }
    let took = began.elapsed();
    eprintln!("{fresh} ids in {:.1} s, memory in MiB: {memory:?}", took.as_secs_f32());
    assert!(took < Duration::from_secs(60), "{fresh} ids took {took:?}");
    assert!(memory[9] < memory[3] + 32, "memory grows with the number of ids: {memory:?} MiB");
    assert!(memory[9] < 512, "{memory:?} MiB");
    assert!(watermaster.is_ready());
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let mut reasons: HashMap<String, u64> = HashMap::new();
    for record in rig.read_dead_letter() {
        let number = Identity::Value.of(&record).expect("a record of this test");
        assert!(!is_configured(number), "a configured client's record {number} was rejected: {:?}", record.headers);
        *reasons.entry(record.header("throttle-reason").unwrap_or_default().to_owned()).or_default() += 1;
    }
    let target = rig.read_target();
    eprintln!("{} admitted, rejected: {reasons:?}", target.len());
    let rejected: u64 = reasons.values().sum();
    assert_eq!(target.len() as u64 + rejected, fresh, "records are lost or repeated");
    assert!(reasons.keys().all(|reason| ["too_many_clients", "queue_full"].contains(&reason.as_str())), "{reasons:?}");
    assert!(reasons["too_many_clients"] > fresh * 9 / 10, "{reasons:?}");
}
