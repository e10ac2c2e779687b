use std::path::Path;

use watermaster_settings::config::Config;
use watermaster_settings::token::{SharedToken, Token};

use super::*;
use crate::dead_letters::{Header, Outgoing};
use crate::headers::{ATTEMPT, REDRIVE};
use crate::record::{NO_TIMESTAMP, Record};
use crate::topics::SourceIndex;

const CONFIG: &str = "
[[service]]
name = \"kyc\"
target = \"target\"
dead_letter = \"dead\"
capacity = 2000
[[service.source]]
topic = \"loans\"
";
const TICKET: Ticket<'_> = Ticket { job: "monday", topic: "dead", partition: 2, offset: 7, client: "redrive" };

fn key(text: &str) -> SharedToken {
    SharedToken::new(Token::new(text).unwrap())
}

fn service() -> Service {
    let config = Config::parse(CONFIG, Path::new("test.toml"), [], crate::PROPERTY_RULES);
    let service = config.unwrap_or_else(|errors| panic!("{errors}")).settings.services.remove(0);
    Service { redrive_key: Some(key("the key of the service")), ..service }
}

fn outgoing() -> Outgoing {
    let headers = vec![(b"a".to_vec(), None), (ATTEMPT.to_vec(), Some(b"1".to_vec()))];
    let (key, value) = (Some(b"key".to_vec()), Some(b"value".to_vec()));
    Outgoing { topic: "loans".to_owned(), key, value, headers, timestamp_ms: 77 }
}

fn seal(service: &Service) -> Header {
    TICKET.seal(&service.redrive_key.as_ref().unwrap().get(), &outgoing())
}

/// Returns the record as `run` reads it from its topic.
fn read(record: &Outgoing, seal: &Header) -> Record<'static> {
    let timestamp_ms = record.timestamp_ms;
    let origin = Origin { source: SourceIndex(0), partition: 0, offset: 3, timestamp_ms, append_time: false };
    let headers = record.headers.iter().chain([seal]).map(|(name, value)| (&name[..], value.as_deref()));
    Record::held(origin, record.key.as_deref(), record.value.as_deref(), headers)
}

fn counts(record: &Record<'_>, service: &Service, topic: &str) -> bool {
    let source = Source { topic: topic.to_owned(), ..service.sources[0].clone() };
    is_redriven(&record.contents().unwrap(), record.origin, service, &source)
}

#[test]
fn a_header_counts_on_the_record_for_which_it_was_made() {
    let service = service();
    let record = read(&outgoing(), &seal(&service));
    assert!(counts(&record, &service, "loans"));
    let rest = record.without_last_header();
    let kept: Vec<_> =
        rest.contents().unwrap().headers.map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
    assert_eq!((rest.key(), rest.value(), kept), (Some(&b"key"[..]), Some(&b"value"[..]), outgoing().headers));
    assert!(!counts(&rest, &service, "loans"));
}

#[test]
fn a_copy_counts_on_no_other_record() {
    let service = service();
    let (own, seal) = (outgoing(), seal(&service));
    let other = |text: &str| Some(text.as_bytes().to_vec());
    let others = [
        Outgoing { timestamp_ms: 78, ..own.clone() },
        Outgoing { timestamp_ms: NO_TIMESTAMP, ..own.clone() },
        Outgoing { key: other("kez"), ..own.clone() },
        Outgoing { key: None, ..own.clone() },
        Outgoing { value: other("valuf"), ..own.clone() },
        Outgoing { value: None, ..own.clone() },
        // The same bytes, cut elsewhere.
        Outgoing { key: other("keyv"), value: other("alue"), ..own.clone() },
        Outgoing { headers: own.headers[1..].to_vec(), ..own.clone() },
        Outgoing { headers: [vec![(b"b".to_vec(), None)], own.headers.clone()].concat(), ..own.clone() },
        Outgoing { headers: vec![(b"a".to_vec(), other("")), own.headers[1].clone()], ..own.clone() },
    ];
    for other in others {
        assert!(!counts(&read(&other, &seal), &service, "loans"), "{other:?}");
    }
    assert!(!counts(&read(&own, &seal), &service, "cards"), "another topic");
    let followed = Outgoing { headers: [own.headers.clone(), vec![seal.clone()]].concat(), ..own };
    assert!(!counts(&read(&followed, &(b"z".to_vec(), None)), &service, "loans"), "another header is the last");
}

#[test]
fn a_changed_field_or_another_key_makes_a_header_void() {
    let service = service();
    let own = outgoing();
    let text = String::from_utf8(seal(&service).1.unwrap()).unwrap();
    assert_eq!(text.matches(';').count(), FIELDS, "{text}");
    let counts_with = |value: &str, service: &Service| {
        counts(&read(&own, &(REDRIVE.to_vec(), Some(value.as_bytes().to_vec()))), service, "loans")
    };
    assert!(counts_with(&text, &service));
    for at in 0..text.len() {
        let changed = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
        let changed = [&text[..at], changed, &text[at + 1..]].concat();
        assert!(!counts_with(&changed, &service), "{changed}");
        assert!(!counts_with(&text[..at], &service), "{}", &text[..at]);
    }
    for forged in ["", "redrive", ";", &format!("{text};"), &format!("{text};redrive"), &"x;".repeat(40_000)] {
        assert!(!counts_with(forged, &service), "{forged}");
    }
    assert!(!counts_with(&text, &Service { redrive_key: Some(key("the key of another")), ..service.clone() }));
    assert!(!counts_with(&text, &Service { redrive_key: None, ..service.clone() }));
    assert!(!counts_with(&text, &Service { redrive_client: "other".to_owned(), ..service }));
}

#[test]
fn a_client_may_have_semicolons() {
    let service = Service { redrive_client: "a;b;".to_owned(), ..service() };
    let seal = Ticket { client: "a;b;", ..TICKET }.seal(&service.redrive_key.as_ref().unwrap().get(), &outgoing());
    assert!(counts(&read(&outgoing(), &seal), &service, "loans"));
}

/// The topic sets its own timestamps, or librdkafka sends the present time in place of 0 and -1.
#[test]
fn a_timestamp_that_is_not_the_senders_is_not_compared() {
    let service = service();
    let mut record = read(&outgoing(), &seal(&service));
    record.origin.timestamp_ms = 1_000;
    assert!(!counts(&record, &service, "loans"));
    record.origin.append_time = true;
    assert!(counts(&record, &service, "loans"));
    for timestamp_ms in [0, NO_TIMESTAMP] {
        let sent = Outgoing { timestamp_ms, ..outgoing() };
        let seal = TICKET.seal(&service.redrive_key.as_ref().unwrap().get(), &sent);
        assert!(counts(&read(&Outgoing { timestamp_ms: 1_000, ..sent }, &seal), &service, "loans"));
    }
}
