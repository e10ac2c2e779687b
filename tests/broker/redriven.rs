//! Records that `dlq redrive` sent count for the redrive's client, and no other record does.

use crate::dead_letters::{Desk, keep_redrive_key};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::{Identity, Record};
use crate::support::{broker::Broker, reader::Follower, wait::wait_until, watermaster::Watermaster};

const RECORDS: u64 = 300;
const REDRIVEN: u64 = 20;

/// Returns a plain record with this last header.
fn marked(topic: &str, number: u64, mark: &str) -> Outgoing {
    let mut record = Outgoing::numbered(topic, number, "header");
    record.headers.push(("throttle-redrive".to_owned(), Some(mark.as_bytes().to_vec())));
    record
}

/// A header names the redrive's client, and any program that may write to a source can write one. With
/// `throttle-redrive: redrive` as the last header, 300 of 300 records passed a client's own limit. Now the header counts
/// on the record for which `dlq redrive` made it, with the key of the service, and nowhere else.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn only_a_record_that_a_redrive_sent_counts_for_its_client() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "redriven", 2, 1, TargetTime::Create);
    let keys = "mode = \"reject\"\ncatch_up = \"reject\"\nclient_from = [\"topic\"]";
    let limit = |client: &str| format!("[service.client.{client}.limit]\nrate = 1\nper = \"1h\"\n");
    let tables = ["topic-0", "topic-1"].map(limit).concat();
    let mut config = rig.config(rig.service(10_000, "1s", keys, &tables));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    let own_headers = |record: &Record| record.headers.iter().any(|(name, _)| name == "throttle-redrive");

    // Without a key, the header has no meaning, and a redrive does not write it.
    let mut watermaster = Watermaster::start(&config);
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
    let producer = Producer::to(&broker);
    producer.send_all((0..RECORDS).map(|number| marked(&rig.sources[0], number, "redrive")));
    follower.wait_for(RECORDS, DRAIN_TIMEOUT);
    watermaster.terminate(DRAIN_TIMEOUT);
    assert_eq!(rig.read_target().len(), 1, "of {RECORDS} records whose last header names the redrive's client");
    assert!(rig.read_target().iter().all(own_headers), "a header that says nothing is forwarded");
    let quota = ["throttle-limit", "throttle-used", "throttle-cycle-ms", "throttle-rule"];
    for letter in rig.read_dead_letter() {
        let stated = quota.map(|name| letter.header(name));
        assert_eq!(stated, ["1", "1", "3600000", "client.topic-0"].map(Some), "{letter:?}");
    }
    let select = ["--where", "reason=client_limit", "--limit", "1"];
    let (code, _, err) = Desk::new(&config).run("redrive", &[&select[..], &["--job", "keyless"]].concat());
    assert!(code == Some(0) && err.contains("redrive_key_file"), "{code:?} {err}");
    let sent: Vec<Record> = rig.read_sources().into_iter().skip(RECORDS as usize).collect();
    assert!(sent.len() == 1 && !sent.iter().any(own_headers), "{sent:?}");
    assert_eq!(quota.map(|name| sent[0].header(name)), [None; 4], "a redriven record loses them");

    keep_redrive_key(&mut config);
    let mut watermaster = Watermaster::start(&config);
    let redriven = |watermaster: &Watermaster| {
        watermaster.metric("watermaster_records_total", &["client=\"redrive\"", "decision=\"admitted\""]).unwrap_or(0.0)
    };
    let limit = REDRIVEN.to_string();
    let select = ["--where", "reason=client_limit", "--limit", &limit];
    let done = Desk::new(&config).json("redrive", &[&select[..], &["--job", "keyed"]].concat());
    assert_eq!(done["counts"]["redriven"], REDRIVEN, "{done}");
    wait_until("the redriven records to be admitted", DRAIN_TIMEOUT, || redriven(&watermaster) == REDRIVEN as f64);
    let mut admitted = rig.read_target();
    admitted.retain(|record| record.header("throttle-attempt") == Some("1"));
    assert!(admitted.len() as u64 >= REDRIVEN, "{admitted:?}");
    assert!(!admitted.iter().any(own_headers), "an admitted record can be copied: {admitted:?}");

    // A copied header is worth nothing on another record.
    let source = rig.read_sources();
    let first = source.iter().rev().find(|record| own_headers(record)).expect("a redriven record");
    let copy = Outgoing {
        topic: first.topic.to_string(),
        partition: Some(first.partition),
        timestamp: Some(first.timestamp),
        key: first.key.clone(),
        value: first.value.clone(),
        headers: first.headers.clone(),
    };
    let other_header = ("another".to_owned(), None);
    let copies = [
        Outgoing { topic: rig.sources[1].clone(), ..copy.clone() },
        Outgoing { timestamp: Some(first.timestamp + 1), ..copy.clone() },
        Outgoing { key: None, ..copy.clone() },
        Outgoing { value: Some(b"1001|another".to_vec()), ..copy.clone() },
        Outgoing { headers: [vec![other_header], copy.headers.clone()].concat(), ..copy.clone() },
    ];
    let before = rig.read_target().len() + rig.read_dead_letter().len();
    producer.send_all(copies.clone());
    wait_until("the copies to be decided", DRAIN_TIMEOUT, || {
        rig.read_target().len() + rig.read_dead_letter().len() == before + copies.len()
    });
    assert_eq!(redriven(&watermaster), REDRIVEN as f64, "copies count for the client of their topic");
    watermaster.terminate(DRAIN_TIMEOUT);
    broker.delete(&[format!("{}.parked", rig.dead_letter)]);
}
