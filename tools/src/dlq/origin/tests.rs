use super::*;

fn header(name: &str, value: &[u8]) -> Header {
    (name.as_bytes().to_vec(), Some(value.to_vec()))
}

fn letter(headers: Vec<Header>) -> Letter {
    Letter { partition: 0, offset: 9, timestamp_ms: 5, key: None, value: None, headers }
}

fn own_headers(attempt: &str) -> Vec<Header> {
    [
        ("throttle-reason", "expired"),
        ("throttle-service", "kyc"),
        ("throttle-client", "home-loan"),
        ("throttle-topic", "home-loan.kyc"),
        ("throttle-partition", "3"),
        ("throttle-offset", "1042"),
        ("throttle-timestamp-ms", "1700000000000"),
        ("throttle-retry-after-ms", "0"),
        ("throttle-limit", "100"),
        ("throttle-used", "100"),
        ("throttle-cycle-ms", "1000"),
        ("throttle-rule", "night"),
        ("throttle-attempt", attempt),
    ]
    .map(|(name, value)| header(name, value.as_bytes()))
    .into()
}

/// The record's own headers: a repeated name, a null value, a name that is no text, and the likeness of one of ours.
fn first() -> Vec<Header> {
    vec![header("a", b"1"), (b"a".to_vec(), None), (vec![0xff], Some(Vec::new())), header("throttle-own", b"x")]
}

#[test]
fn the_headers_of_a_rejection_are_read_and_taken_off() {
    let letter = letter([first(), own_headers("2")].concat());
    let origin = Origin::of(&letter).expect("an origin");
    let expected = Origin {
        writer: Writer::Watermaster,
        topic: "home-loan.kyc".to_owned(),
        partition: 3,
        offset: 1042,
        timestamp_ms: Some(1_700_000_000_000),
        reason: "expired".to_owned(),
        client: "home-loan".to_owned(),
        attempt: 2,
        is_stub: false,
    };
    assert_eq!(origin, expected);
    assert_eq!(origin.first_headers(&letter, &[]), first());
}

#[test]
fn headers_that_were_written_beside_ours_are_taken_off_and_the_records_own_stay() {
    let beside: [&[u8]; 2] = [b"kafka_dlt-original-topic", b"kafka_dlt-original-offset"];
    let written = beside.map(|name| (name.to_vec(), Some(b"x".to_vec())));
    // The record itself had died in a Spring application before.
    let own = [first(), vec![header("kafka_dlt-original-topic", b"older")]].concat();
    let letter = letter([own.clone(), written.to_vec(), own_headers("1")].concat());
    let origin = Origin::of(&letter).expect("an origin");
    assert_eq!((origin.writer, origin.first_headers(&letter, &beside)), (Writer::Watermaster, own));
}

/// The encodings of `DeadLetterPublishingRecoverer.addHeaders` in spring-kafka: big-endian `int` and `long`.
#[test]
fn spring_s_headers_are_read_and_taken_off() {
    let spring = vec![
        header("kafka_dlt-original-topic", b"older"),
        header("kafka_dlt-original-topic", b"loans"),
        header("kafka_dlt-original-partition", &[0, 0, 0, 7]),
        header("kafka_dlt-original-offset", &[0, 0, 0, 0, 0, 1, 0, 2]),
        header("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
    ];
    let letter = letter([first(), spring].concat());
    let origin = Origin::of(&letter).expect("an origin");
    assert_eq!((origin.writer, &*origin.topic, origin.partition, origin.offset), (Writer::Spring, "loans", 7, 65_538));
    assert_eq!((&*origin.reason, origin.attempt), ("java.lang.IllegalStateException", 1));
    assert_eq!(origin.first_headers(&letter, &[]), first());
}

/// The encodings of Connect's `DeadLetterQueueReporter`, Streams' `ExceptionHandlerUtils` and the share groups'
/// `ShareGroupDLQStateManager`: text.
#[test]
fn headers_of_connect_streams_and_share_groups_are_read_and_taken_off() {
    for (prefix, writer, is_stub) in [
        ("__connect.errors.", Writer::Connect, false),
        ("__streams.errors.", Writer::Streams, false),
        ("__dlq.errors.", Writer::ShareGroup, true),
    ] {
        let own = ["topic", "partition", "offset"].into_iter().zip(["loans", "7", "65538"]);
        let own = own.map(|(name, value)| header(&format!("{prefix}{name}"), value.as_bytes()));
        let counted = header("throttle-attempt", b"4");
        let letter = letter(first().into_iter().chain(own).chain([counted]).collect());
        let origin = Origin::of(&letter).expect("an origin");
        assert_eq!((origin.writer, &*origin.topic, origin.partition, origin.offset), (writer, "loans", 7, 65_538));
        assert_eq!((origin.attempt, origin.is_stub), (5, is_stub));
        assert_eq!(origin.first_headers(&letter, &[]), first());
    }
}

#[test]
fn headers_that_name_no_origin_yield_none() {
    assert_eq!(Origin::of(&letter(first())), None);
    for broken in ["throttle-topic", "throttle-partition", "throttle-offset", "throttle-reason"] {
        let mut headers = own_headers("1");
        headers.retain(|(name, _)| name != broken.as_bytes());
        assert_eq!(Origin::of(&letter(headers)), None, "without {broken}");
    }
    let short = vec![
        header("kafka_dlt-original-topic", b"loans"),
        header("kafka_dlt-original-partition", &[7]),
        header("kafka_dlt-original-offset", b""),
    ];
    assert_eq!(Origin::of(&letter(short)), None);
}
