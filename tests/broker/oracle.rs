//! Tests of the oracle: it reports each kind of damage and accepts an undamaged run.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crate::support::generator::{CLIENTS, Generator, client_of};
use crate::support::judge::{Judge, Verdict, gained_headers};
use crate::support::murmur::{java_partition, murmur2};
use crate::support::promise::Promise;
use crate::support::record::{Identity, Record};

const START: i64 = 1_000;

/// The topics of a faithful throttler that rejected every third record.
struct Run {
    source: Vec<Record>,
    target: Vec<Record>,
    dead_letter: Vec<Record>,
    repeats_allowed: u64,
}

fn faithful() -> Run {
    let source: Vec<Record> = (0..60).map(source_record).collect();
    let (dead_letter, target): (Vec<&Record>, Vec<&Record>) = source.iter().partition(|r| r.offset % 3 == 0);
    let target = target.into_iter().map(|record| moved(record, "target", 4)).collect();
    let dead_letter = dead_letter.into_iter().map(rejected).collect();
    Run { source, target, dead_letter, repeats_allowed: 0 }
}

fn source_record(n: i64) -> Record {
    Record {
        topic: Arc::from("source"),
        partition: 0,
        offset: n,
        timestamp: START + n,
        key: Some(b"always the same".to_vec()),
        value: (n % 5 != 0).then(|| format!("value {n}").into_bytes()),
        headers: vec![("a".to_owned(), None), ("a".to_owned(), Some(Vec::new()))],
    }
}

fn moved(record: &Record, topic: &str, partitions: i32) -> Record {
    let partition = java_partition(record.key.as_deref().expect("these records have keys"), partitions);
    Record { topic: Arc::from(topic), partition, ..record.clone() }
}

fn rejected(record: &Record) -> Record {
    let mut rejected = moved(record, "dead-letter", 2);
    let (partition, offset, at) =
        (record.partition.to_string(), record.offset.to_string(), record.timestamp.to_string());
    let (message, time) = ("The record was not processed: …", "2026-11-26T01:02:03.456Z");
    let values = ["over_allocation", message, "kyc", "one", "source", &partition, &offset, &at, time, "250"];
    let values = values.into_iter().chain(["20", "20", "1000", "1"]);
    let gained = gained_headers("over_allocation", false).zip(values);
    rejected.headers.extend(gained.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec()))));
    rejected
}

impl Run {
    fn judge(&self) -> Verdict {
        let judge = Judge {
            identity: Identity::TimestampFrom(START),
            service: "kyc",
            client_of: &|_| Some("one".to_owned()),
            reasons: &["over_allocation"],
            admits_all: false,
            target_partitions: 4,
            dead_letter_partitions: 2,
            keeps_timestamps: true,
            repeats_allowed: self.repeats_allowed,
        };
        judge.judge(&self.source, &self.target, &self.dead_letter)
    }
}

/// Damages a faithful run and asserts that the oracle reports it with the text `expected`.
fn check(damage: impl FnOnce(&mut Run), expected: &str) {
    let mut run = faithful();
    damage(&mut run);
    let wrong = run.judge().wrong;
    assert!(wrong.iter().any(|text| text.contains(expected)), "expected {expected:?} among {wrong:?}");
}

#[test]
fn a_faithful_run_is_accepted() {
    let verdict = faithful().judge();
    verdict.assert_right();
    assert_eq!((verdict.admitted, verdict.rejected, verdict.repeated), (40, 20, 0));
    assert_eq!(verdict.reasons["over_allocation"], 20);
}

#[test]
fn damage_is_reported() {
    check(|run| _ = run.target.remove(7), "lost: source[0]@11");
    check(|run| _ = run.dead_letter.remove(0), "lost: source[0]@0");
    check(|run| run.target.push(run.target[0].clone()), "repeated: source[0]@1");
    check(|run| run.dead_letter.push(rejected(&run.source[1])), "repeated: source[0]@1");
    check(|run| run.target.swap(3, 4), "out of order");
    check(|run| run.target[3].timestamp -= 100_000, "not in a source");
    check(|run| run.target[3].value = Some(Vec::new()), "value altered");
    check(|run| run.target[3].key = None, "key altered");
    check(|run| run.target[3].headers.reverse(), "headers altered");
    check(|run| run.target[3].partition ^= 1, "not in Java's partition");
    check(|run| run.dead_letter[3].headers[0].1 = Some(vec![]), "headers altered");
    check(|run| run.dead_letter[3].headers.swap(2, 3), "throttle-reason of source[0]@9");
    check(|run| run.dead_letter[3].headers[8].1 = Some(b"10".to_vec()), "throttle-offset of source[0]@9");
    check(|run| _ = run.dead_letter[3].headers.pop(), "throttle-attempt of source[0]@9");
    check(|run| run.dead_letter[3].headers.push(("more".to_owned(), None)), "throttle-attempt of source[0]@9");
}

#[test]
fn a_lost_tombstone_is_not_an_empty_value() {
    check(|run| run.target.iter_mut().find(|r| r.value.is_none()).unwrap().value = Some(vec![]), "value altered");
}

#[test]
fn allowed_repeats_are_counted() {
    let mut run = faithful();
    run.repeats_allowed = 2;
    run.target.extend_from_within(0..2);
    assert_eq!(run.judge().assert_right().repeated, 2);
    run.target.push(run.target[0].clone());
    assert!(run.judge().wrong.iter().any(|text| text.starts_with("repeated: 3 records")));
}

#[test]
fn a_broken_promise_is_reported() {
    let promise = Promise {
        capacity: 100,
        cycle: Duration::from_secs(1),
        commit_interval: Duration::from_millis(20),
        burst_percent: 1,
    };
    // A bucket depth of 4 records and 4.5 that drain during a commit interval: a round has up to 9 records.
    assert_eq!((promise.bound(0), promise.bound(1), promise.bound(2)), (109, 118, 118));
    let every_10_ms: Vec<Record> = (0..300).map(|n| Record { timestamp: n * 10, ..source_record(n) }).collect();
    assert_eq!(promise.most_in_any_window(&every_10_ms), 100);
    promise.assert_kept(&every_10_ms, 0);
    let mut with_a_burst = every_10_ms.clone();
    with_a_burst.extend((0..10).map(|n| Record { timestamp: 1_555, ..source_record(n) }));
    assert_eq!(promise.most_in_any_window(&with_a_burst), 110);
    assert!(std::panic::catch_unwind(|| promise.assert_kept(&with_a_burst, 0)).is_err());
    assert!(std::panic::catch_unwind(|| promise.assert_kept(&every_10_ms[..80], 0)).is_err());
}

#[test]
fn partitions_match_javas_partitioner() {
    // The vectors of Kafka's UtilsTest.
    let vectors: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];
    for (key, hash) in vectors {
        assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
    }
}

/// A fidelity test covers only the record shapes that the generator makes.
#[test]
fn the_generator_makes_every_shape() {
    let topics = ["a".to_owned(), "b".to_owned()];
    let records: Vec<Record> = Generator::new(7, &topics, 4, START).take(100_000).map(as_read).collect();
    let some = |what: &str, shape: &dyn Fn(&Record) -> bool| {
        let count = records.iter().filter(|record| shape(record)).count();
        assert!(count >= 3, "{count} of 100 000 records are {what}");
    };
    some("tombstones", &|r| r.value.is_none());
    some("of an empty value", &|r| r.value.as_deref() == Some(&[]));
    some("of 1 MiB", &|r| r.value.as_ref().is_some_and(|value| value.len() == 1 << 20));
    some("without a key", &|r| r.key.is_none());
    some("of an empty key", &|r| r.key.as_deref() == Some(&[]));
    some("of a key that is not UTF-8", &|r| std::str::from_utf8(r.key.as_deref().unwrap_or_default()).is_err());
    some("without headers", &|r| r.headers.is_empty());
    some("with 64 headers", &|r| r.headers.len() >= 64);
    some("with a null header", &|r| r.headers.iter().any(|(_, value)| value.is_none()));
    some("with an empty header", &|r| r.headers.iter().any(|(_, value)| value.as_deref() == Some(&[])));
    some("with a repeated header", &|r| r.headers_named("trace").count() > 1);
    some("with a header that is not UTF-8", &|r| {
        r.headers.iter().any(|(_, value)| std::str::from_utf8(value.as_deref().unwrap_or_default()).is_err())
    });
    some("with a unicode header name", &|r| r.headers.iter().any(|(name, _)| !name.is_ascii()));
    some("with a header without a name", &|r| r.headers.iter().any(|(name, _)| name.is_empty()));
    some("retries of a rejected record", &|r| r.header("throttle-attempt") == Some("3"));
    some("anonymous", &|r| client_of(r, "topic").is_none());
    some("of the client of their topic", &|r| client_of(r, "topic") == Some("topic"));
    let clients: BTreeSet<&str> = records.iter().filter_map(|record| client_of(record, "topic")).collect();
    assert!(CLIENTS.iter().all(|client| clients.contains(client)));
    assert!(clients.iter().any(|client| client.starts_with("account-")));
}

fn as_read(outgoing: crate::support::producer::Outgoing) -> Record {
    Record {
        topic: Arc::from(outgoing.topic),
        partition: outgoing.partition.unwrap_or_default(),
        offset: 0,
        timestamp: outgoing.timestamp.unwrap_or_default(),
        key: outgoing.key,
        value: outgoing.value,
        headers: outgoing.headers,
    }
}
