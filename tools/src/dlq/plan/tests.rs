use std::sync::LazyLock;

use proptest::prelude::*;
use watermaster_settings::token::{SharedToken, Token};

use super::*;

const CONFIG: &str = "
[[service]]
name = \"kyc\"
target = \"target\"
dead_letter = \"dead\"
capacity = 2000
[[service.source]]
topic = \"loans\"
";

fn service() -> Service {
    let service = crate::cli::settings(CONFIG).services.remove(0);
    Service { redrive_key: Token::new("the key of the service").ok().map(SharedToken::new), ..service }
}

fn plan(service: &Service) -> FateRules<'_> {
    let (job, topic, key) = ("monday", "dead", service.redrive_key.as_ref().map(SharedToken::get));
    let parked = "dead.parked".to_owned();
    let (others, to) = (vec!["income"], Destination::Source);
    FateRules { service, others, to, max_attempts: Some(5), key, job, topic, parked, beside: &[] }
}

/// Returns the header by which a record counts for the redrive's client, made from the dead letter at offset 9.
fn seal(service: &Service, sent: &Outgoing) -> Header {
    let ticket = Ticket { job: "monday", topic: "dead", partition: 0, offset: 9, client: "redrive" };
    let first = Outgoing { headers: sent.headers[..sent.headers.len() - 1].to_vec(), ..sent.clone() };
    ticket.seal(&service.redrive_key.as_ref().unwrap().get(), &first)
}

fn origin(attempt: u64) -> Origin {
    Origin {
        writer: Writer::Watermaster,
        topic: "loans".to_owned(),
        partition: 3,
        offset: 1042,
        timestamp_ms: Some(77),
        reason: "expired".to_owned(),
        client: "a".to_owned(),
        attempt,
        is_stub: false,
    }
}

fn letter(headers: Vec<Header>) -> Letter {
    let (key, value) = (Some(b"key".to_vec()), Some(b"value".to_vec()));
    Letter { partition: 0, offset: 9, timestamp_ms: 5, key, value, headers }
}

fn header(name: &[u8], value: &str) -> Header {
    (name.to_vec(), Some(value.as_bytes().to_vec()))
}

#[test]
fn a_record_goes_back_with_its_time_its_attempt_and_the_redrives_client() {
    let service = service();
    let Fate::Send(sent) = plan(&service).fate(&letter(vec![header(b"a", "1")]), Some(&origin(4)), None) else {
        panic!("it is sent");
    };
    assert_eq!((&*sent.topic, sent.timestamp_ms), ("loans", 77));
    assert_eq!(sent.headers, [header(b"a", "1"), header(b"throttle-attempt", "4"), seal(&service, &sent)]);
    for (to, topic) in [(Destination::Target, "target"), (Destination::Source, "loans")] {
        let plan = FateRules { to, key: None, ..plan(&service) };
        let Fate::Send(sent) = plan.fate(&letter(Vec::new()), Some(&origin(1)), None) else { panic!("it is sent") };
        assert_eq!((&*sent.topic, sent.headers), (topic, vec![header(b"throttle-attempt", "1")]));
    }
}

#[test]
fn a_loop_ends_in_the_parking_topic() {
    let service = service();
    let letter = letter(vec![header(b"throttle-reason", "expired")]);
    assert_eq!(plan(&service).fate(&letter, Some(&origin(5)), None), Fate::Park(Parked::MaxAttempts));
    let parked = plan(&service).park(&letter, Parked::MaxAttempts);
    assert_eq!((&*parked.topic, parked.timestamp_ms), ("dead.parked", 5));
    let expected = vec![header(b"throttle-reason", "expired"), header(b"throttle-parked", "max_attempts")];
    assert_eq!((parked.headers, parked.key, parked.value), (expected, letter.key, letter.value));
    // Parked dead letters have reached the limit: they are sent if asked for.
    let unlimited = FateRules { max_attempts: None, ..plan(&service) };
    assert!(matches!(unlimited.fate(&self::letter(Vec::new()), Some(&origin(5)), None), Fate::Send(_)));
}

#[test]
fn dead_letters_that_cannot_go_back_are_parked() {
    let service = service();
    let letter = letter(Vec::new());
    assert_eq!(plan(&service).fate(&letter, None, None), Fate::Park(Parked::NoOrigin));
    let elsewhere = Origin { topic: "other".to_owned(), ..origin(1) };
    assert_eq!(plan(&service).fate(&letter, Some(&elsewhere), None), Fate::Park(Parked::UnknownSource));
    let to_target = FateRules { to: Destination::Target, ..plan(&service) };
    assert!(matches!(to_target.fate(&letter, Some(&elsewhere), None), Fate::Send(_)));
    // The bug: a record that another service had rejected into the same topic went to the target of this one.
    let of_other = self::letter(vec![header(b"throttle-service", "income")]);
    assert_eq!(to_target.fate(&of_other, Some(&elsewhere), None), Fate::Park(Parked::UnknownSource));
    let of_former = self::letter(vec![header(b"throttle-service", "former")]);
    assert!(matches!(to_target.fate(&of_former, Some(&elsewhere), None), Fate::Send(_)));
    // With several targets, only its source tells that of a record.
    let mut service = service.clone();
    service.sources[0].target = "loans.target".to_owned();
    let to_target = FateRules { to: Destination::Target, ..plan(&service) };
    assert_eq!(to_target.fate(&letter, Some(&elsewhere), None), Fate::Park(Parked::UnknownSource));
    let Fate::Send(sent) = to_target.fate(&letter, Some(&origin(1)), None) else { panic!("it is sent") };
    assert_eq!(sent.topic, "loans.target");
}

#[test]
fn a_stub_sends_its_original_and_no_other_record() {
    let service = service();
    let origin = Origin { is_stub: true, ..origin(2) };
    let stub = Letter { value: None, ..letter(vec![header(b"throttle-stub", "1")]) };
    let original = Letter { timestamp_ms: 77, offset: 1042, partition: 3, ..letter(vec![header(b"own", "h")]) };
    let fate = |original: Option<Option<&Letter>>| plan(&service).fate(&stub, Some(&origin), original);
    assert_eq!(fate(None), Fate::NeedsOriginal);
    assert_eq!(fate(Some(None)), Fate::Park(Parked::OriginalGone));
    let Fate::Send(sent) = fate(Some(Some(&original))) else { panic!("it is sent") };
    assert!(sent.bytes() > original.bytes(), "a transaction is bounded by the bytes that it carries");
    let headers = vec![header(b"own", "h"), header(b"throttle-attempt", "2"), seal(&service, &sent)];
    assert_eq!((sent.value, sent.timestamp_ms, sent.headers), (original.value.clone(), 77, headers));
    // The topic was made anew: another record is at this offset.
    for other in
        [Letter { timestamp_ms: 78, ..original.clone() }, Letter { key: Some(b"other".to_vec()), ..original.clone() }]
    {
        assert_eq!(fate(Some(Some(&other))), Fate::Park(Parked::OriginalGone));
    }
}

fn any_headers() -> impl Strategy<Value = Vec<Header>> {
    let own = proptest::sample::select(&headers::ALL[..]).prop_map(<[u8]>::to_vec);
    let name = prop_oneof![own, proptest::collection::vec(any::<u8>(), 0..4)];
    proptest::collection::vec((name, proptest::option::of(proptest::collection::vec(any::<u8>(), 0..4))), 0..6)
}

/// Reading a configuration takes longer than all else that a case does.
static SERVICE: LazyLock<Service> = LazyLock::new(service);

proptest! {
    /// The law of a redrive: the first headers, in order, then the attempt and the client.
    #[test]
    fn first_headers_stay_as_they_are(headers in any_headers(), attempt in 1_u64..5) {
        let first: Vec<Header> = headers.iter().filter(|(name, _)| !headers::ALL.contains(&&name[..])).cloned().collect();
        let origin = origin(attempt);
        let fate = plan(&SERVICE).fate(&letter(headers), Some(&origin), None);
        let Fate::Send(sent) = fate else { panic!("it is sent") };
        let attempt = attempt.to_string();
        let added = [header(b"throttle-attempt", &attempt), seal(&SERVICE, &sent)];
        prop_assert_eq!(sent.headers, [first, added.to_vec()].concat());
    }
}
