pub mod stub;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;
use watermaster_settings::client_id::{HeaderLookup, Schemas, UnknownSchema};
use watermaster_settings::{RegistryLogin, SchemaFormat, secrets::Password};

use super::*;
use crate::cache::{RETRY_INTERVAL, SchemaCache, Trouble};
use crate::wire;
use stub::{StubRegistry, not_found, stored};

const AVRO: &str = r#"{"type": "record", "name": "Loan", "fields": [{"name": "client", "type": "string"}]}"#;
const PROTOBUF: &str = "syntax = \"proto3\"; import \"client.proto\"; message Loan { bank.Client client = 1; }";
/// The values of schema 7, in Avro, and of schema 8, in Protobuf, with the client `acme`.
const AVRO_VALUE: &[u8] = b"\0\0\0\0\x07\x08acme";
const PROTOBUF_VALUE: &[u8] = b"\0\0\0\0\x08\0\x0a\x06\x0a\x04acme";

fn settings(url: &str) -> SchemaRegistry {
    SchemaRegistry { url: url.to_owned(), login: None, ca_file: None }
}

fn bank(path: &str) -> (u16, String) {
    match path {
        "/schemas/ids/7" => (200, stored("AVRO", AVRO, &json!([]))),
        "/schemas/ids/8" => {
            let reference = json!([{"name": "client.proto", "subject": "bank/client", "version": 3}]);
            (200, stored("PROTOBUF", PROTOBUF, &reference))
        }
        "/subjects/bank%2Fclient/versions/3?deleted=true" => {
            let reference = json!([{"name": "base.proto", "subject": "base", "version": 1}]);
            (200, stored("PROTOBUF", "package bank; message Client { string id = 1; }", &reference))
        }
        // This schema refers back, which a registry never does.
        "/subjects/base/versions/1?deleted=true" => {
            let reference = json!([{"name": "client.proto", "subject": "bank/client", "version": 3}]);
            (200, stored("PROTOBUF", "package base;", &reference))
        }
        "/schemas/ids/9" => (200, stored("JSON", "{}", &json!([]))),
        "/schemas/ids/10" => (200, stored("AVRO", "{", &json!([]))),
        "/schemas/ids/11" => (200, stored("AVRO", AVRO, &json!([{"name": "x", "subject": "gone", "version": 1}]))),
        _ => (404, not_found()),
    }
}

fn find(cache: &SchemaCache, format: SchemaFormat, path: &[&str], value: &[u8]) -> Result<String, UnknownSchema> {
    let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
    let found = cache.find(format, &path, HeaderLookup::Absent, Some(value))?;
    Ok(found.map_or_else(|error| error.to_string(), |id| id.unwrap_or_default().into_owned()))
}

/// Polls at a time of the cache's clock until the requests that are under way have been answered.
fn settle(cache: &mut SchemaCache, now: Duration, requests: u64) -> Vec<Trouble> {
    let (mut troubles, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while cache.counts.iter().sum::<u64>() < requests {
        assert!(Instant::now() < deadline, "{:?}", cache.counts);
        troubles.extend(cache.poll(now, |_| true));
        std::thread::sleep(Duration::from_millis(1));
    }
    troubles
}

#[test]
fn schemas_come_with_those_that_they_refer_to() {
    let stub = StubRegistry::start(|question| bank(&question.path));
    let mut registry = RegistryClient::new(settings(&format!("{}/", stub.url)));
    assert!(matches!(registry.schema(SchemaId::Number(7)).unwrap(), Answer::Schema(Schema::Avro(_))));
    let Answer::Schema(protobuf) = registry.schema(SchemaId::Number(8)).unwrap() else { panic!("it is there") };
    let path = ["client", "id"].map(str::to_owned);
    let value = wire::named(HeaderLookup::Absent, Some(PROTOBUF_VALUE)).unwrap().unwrap();
    assert_eq!(protobuf.find(SchemaFormat::Protobuf, &path, &value), Ok(Some("acme".into())));
    assert_eq!(protobuf.find(SchemaFormat::Avro, &path, &value), Ok(None));
    assert!(matches!(registry.schema(SchemaId::Number(9)).unwrap(), Answer::Schema(Schema::Other)));
    assert!(matches!(registry.schema(SchemaId::Number(10)).unwrap(), Answer::Unusable(SchemaError::Json(_))));
    assert!(matches!(
        registry.schema(SchemaId::Number(11)).unwrap(),
        Answer::Unusable(SchemaError::NoReference { .. })
    ));
    assert!(matches!(registry.schema(SchemaId::Number(12)).unwrap(), Answer::Missing));
    registry.check().unwrap();
    let of_8 =
        ["/schemas/ids/8", "/subjects/bank%2Fclient/versions/3?deleted=true", "/subjects/base/versions/1?deleted=true"];
    assert_eq!(stub.paths()[1..4], of_8);
}

/// Only the registry's own word that there is no schema lets a record go on without one.
#[test]
fn a_registry_that_refuses_is_not_one_without_the_schema() {
    let answers = [
        (401, "", "does not accept the user or the password of kafka.schema_registry (401)"),
        (403, "", "does not let this user read schemas (403)"),
        (404, "<html>", "gives no answer of a schema registry"),
        (404, r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#, "gives no answer of a schema registry"),
        (200, "<html>", "gives no answer of a schema registry"),
        (500, " busy\n", "answers 500: busy"),
        (503, "", "answers 503: "),
    ];
    for (status, body, expected) in answers {
        let stub = StubRegistry::start(move |_| (status, body.to_owned()));
        let login = RegistryLogin { username: "wm".to_owned(), password: Password::Text("hush".to_owned()) };
        let mut registry = RegistryClient::new(SchemaRegistry { login: Some(login), ..settings(&stub.url) });
        let error = registry.schema(SchemaId::Number(7)).unwrap_err();
        assert!(error.to_string().contains(expected) && !error.is_unreachable(), "{error}");
        assert!(error.to_string().starts_with(&stub.url) && !error.to_string().contains("hush"), "{error}");
    }
    let stub = StubRegistry::start(|_| (401, String::new()));
    let error = RegistryClient::new(settings(&stub.url)).check().unwrap_err().to_string();
    assert!(error.contains("asks for a user and a password (401)"), "{error}");
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = RegistryClient::new(settings(&format!("http://{refusing}"))).check().unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("can't be reached"), "{error}");
}

/// Producers choose the ids. A registry without a lookup by GUID, or one that refuses the id as a path, held a
/// partition up for good.
#[test]
fn an_id_that_a_registry_does_not_take_does_not_exist() {
    let guid = SchemaId::split(b"\x01\x89\x79\x17\x62\x23\x36\x41\x86\x9f\x0c\xff\x9a\xeb\x34\x5e\x41").unwrap().0;
    let path = "/schemas/guids/89791762-2336-4186-9f0c-ff9aeb345e41";
    let refusals = [
        (404, r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#),
        (404, "<html>"),
        (405, ""),
        (400, r#"{"error_code": 400}"#),
    ];
    for (status, body) in refusals {
        let stub = StubRegistry::start(move |question| match &*question.path {
            "/schemas/ids/0" => (404, not_found()),
            _ => (status, body.to_owned()),
        });
        let mut registry = RegistryClient::new(settings(&stub.url));
        assert!(matches!(registry.schema(guid), Ok(Answer::Missing)), "{status}: {body}");
        assert_eq!(stub.paths(), [path, "/schemas/ids/0"]);
        // No registry gives a number that large to a schema, and some take it for no number.
        assert!(matches!(registry.schema(SchemaId::Number(u32::MAX)), Ok(Answer::Missing)), "{status}: {body}");
        assert!(registry.schema(SchemaId::Number(7)).is_err(), "every registry looks this id up");
    }
    for status in [401, 403, 408, 429, 500, 503] {
        let stub = StubRegistry::start(move |question| match &*question.path {
            "/schemas/ids/0" => (404, not_found()),
            _ => (status, String::new()),
        });
        assert!(RegistryClient::new(settings(&stub.url)).schema(guid).is_err(), "{status} may end");
    }
    let stub = StubRegistry::start(|question| match &*question.path {
        "/schemas/guids/89791762-2336-4186-9f0c-ff9aeb345e41" => (200, stored("AVRO", AVRO, &json!([]))),
        _ => (404, not_found()),
    });
    assert!(matches!(RegistryClient::new(settings(&stub.url)).schema(guid), Ok(Answer::Schema(Schema::Avro(_)))));
}

/// References had no bound in bytes, and an answer that was too long counted as none, so that its id was asked for
/// again and again.
#[test]
fn a_schema_that_is_too_large_with_its_references_is_not_used() {
    let padded = |megabytes: usize| format!("// {}\nmessage A {{ string id = 1; }}", "x".repeat(megabytes << 20));
    let answer = move |path: &str| match path {
        "/schemas/ids/1" => stored("PROTOBUF", &padded(3), &json!([])),
        "/schemas/ids/2" => stored("PROTOBUF", &padded(5), &json!([])),
        "/schemas/ids/3" => stored("PROTOBUF", &padded(9), &json!([])),
        "/schemas/ids/4" => stored("PROTOBUF", &padded(2), &json!([{"name": "b", "subject": "b", "version": 1}])),
        "/subjects/b/versions/1?deleted=true" => stored("PROTOBUF", &padded(3), &json!([])),
        path => panic!("{path}"),
    };
    let stub = StubRegistry::start(move |question| (200, answer(&question.path)));
    let mut registry = RegistryClient::new(settings(&stub.url));
    assert!(matches!(registry.schema(SchemaId::Number(1)).unwrap(), Answer::Schema(_)));
    for id in [2, 3, 4] {
        let answer = registry.schema(SchemaId::Number(id)).unwrap();
        assert!(matches!(answer, Answer::Unusable(SchemaError::TooLarge)), "{id}: {answer:?}");
    }
}

#[test]
fn a_password_from_a_file_is_the_one_that_is_there_now() {
    let stub = StubRegistry::start(|question| bank(&question.path));
    let file = std::env::temp_dir().join(format!("watermaster-registry-{}", std::process::id()));
    let login = RegistryLogin { username: "wm".to_owned(), password: Password::File(file.clone()) };
    let mut registry = RegistryClient::new(SchemaRegistry { login: Some(login), ..settings(&stub.url) });
    for password in ["hush\n", "murmur"] {
        std::fs::write(&file, password).unwrap();
        registry.check().unwrap();
    }
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(registry.check(), Err(RegistryError::File { .. })));
    let sent: Vec<_> = stub.questions().into_iter().filter_map(|question| question.authorization).collect();
    assert_eq!(sent, ["Basic d206aHVzaA==", "Basic d206bXVybXVy"]);
}

/// The question at the other address lacked the login, so a right password counted as a wrong one.
#[test]
fn the_login_goes_to_another_address_of_the_registry_and_to_no_other_host() {
    let login = || RegistryLogin { username: "wm".to_owned(), password: Password::Text("hush".to_owned()) };
    let other = StubRegistry::start(|question| bank(&question.path));
    let elsewhere = other.url.replace("127.0.0.1", "localhost");
    for (host, sent) in [(&other.url, Some("Basic d206aHVzaA==".to_owned())), (&elsewhere, None)] {
        let host = host.clone();
        let stub = StubRegistry::start(move |question| (302, format!("{host}{}", question.path)));
        let mut registry = RegistryClient::new(SchemaRegistry { login: Some(login()), ..settings(&stub.url) });
        assert!(matches!(registry.schema(SchemaId::Number(7)), Ok(Answer::Schema(Schema::Avro(_)))));
        assert_eq!(other.questions().last().unwrap().authorization, sent);
    }
}

#[test]
fn authorities_come_from_a_file_of_certificates() {
    let file = std::env::temp_dir().join(format!("watermaster-authority-{}", std::process::id()));
    let check = || {
        RegistryClient::new(SchemaRegistry { ca_file: Some(file.clone()), ..settings("https://127.0.0.1:1") }).check()
    };
    assert!(matches!(check(), Err(RegistryError::File { .. })), "no file");
    std::fs::write(&file, "no certificate").unwrap();
    assert!(matches!(check(), Err(RegistryError::File { .. })), "no certificate");
    // After a failure the next question reads the file again: it may have been renewed.
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n").unwrap();
    let mut registry =
        RegistryClient::new(SchemaRegistry { ca_file: Some(file.clone()), ..settings("https://127.0.0.1:1") });
    assert!(registry.check().is_err_and(|error| error.is_unreachable()));
    std::fs::write(&file, "no certificate").unwrap();
    assert!(matches!(registry.check(), Err(RegistryError::File { .. })), "it is not the former one that counts");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn the_engine_never_waits_for_a_slow_registry() {
    let (open, gate) = channel::<()>();
    let stub = StubRegistry::start(move |question| {
        gate.recv().expect("the test opens the gate");
        bank(&question.path)
    });
    let mut cache = SchemaCache::new(Some(settings(&stub.url)));
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], AVRO_VALUE), Err(UnknownSchema(SchemaId::Number(7))));
    for _ in 0..3 {
        cache.ask(SchemaId::Number(7), Duration::ZERO);
        assert!(cache.poll(Duration::ZERO, |_| true).is_empty() && !cache.knows(SchemaId::Number(7)));
    }
    open.send(()).unwrap();
    assert!(settle(&mut cache, Duration::ZERO, 1).is_empty());
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], AVRO_VALUE), Ok("acme".to_owned()));
    assert_eq!(find(&cache, SchemaFormat::Protobuf, &["client"], AVRO_VALUE), Ok(String::new()), "another format");
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], b"plain"), Ok(String::new()), "no schema is named");
    assert_eq!((cache.counts, stub.paths().len()), ([1, 0, 0], 1), "one question for one id");
}

#[test]
fn a_failure_is_tried_again_and_is_never_an_absent_schema() {
    let failed = std::sync::atomic::AtomicBool::new(false);
    let stub = StubRegistry::start(move |question| {
        let first = !failed.swap(true, std::sync::atomic::Ordering::Relaxed);
        if first { (500, "busy".to_owned()) } else { bank(&question.path) }
    });
    let mut cache = SchemaCache::new(Some(settings(&stub.url)));
    cache.ask(SchemaId::Number(7), Duration::ZERO);
    let troubles = settle(&mut cache, Duration::ZERO, 1);
    assert!(
        matches!(
            troubles.as_slice(),
            [Trouble::Failed(SchemaId::Number(7), RegistryError::Status { status: 500, .. })]
        ),
        "{troubles:?}"
    );
    assert!(cache.failure().unwrap().contains("schema 7 is not known yet"), "{:?}", cache.failure());
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], AVRO_VALUE), Err(UnknownSchema(SchemaId::Number(7))));
    cache.poll(RETRY_INTERVAL - Duration::from_nanos(1), |_| true);
    assert_eq!(stub.paths().len(), 1, "not yet");
    assert!(settle(&mut cache, RETRY_INTERVAL, 2).is_empty());
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], AVRO_VALUE), Ok("acme".to_owned()));
    assert_eq!((cache.counts, cache.failure()), ([1, 0, 1], None));
}

#[test]
fn an_id_that_no_partition_needs_is_not_asked_for_again() {
    let stub = StubRegistry::start(|_| (503, String::new()));
    let mut cache = SchemaCache::new(Some(settings(&stub.url)));
    cache.ask(SchemaId::Number(7), Duration::ZERO);
    settle(&mut cache, Duration::ZERO, 1);
    cache.poll(RETRY_INTERVAL, |_| false);
    assert_eq!((stub.paths().len(), cache.failure()), (1, None));
    cache.ask(SchemaId::Number(7), RETRY_INTERVAL);
    settle(&mut cache, RETRY_INTERVAL, 2);
}

#[test]
fn an_absent_schema_is_remembered_for_a_minute() {
    let stub = StubRegistry::start(|question| bank(&question.path));
    let mut cache = SchemaCache::new(Some(settings(&stub.url)));
    let value = b"\0\0\0\0\x0cx";
    for (id, requests) in [(12, 1), (10, 2)] {
        cache.ask(SchemaId::Number(id), Duration::ZERO);
        let troubles = settle(&mut cache, Duration::ZERO, requests);
        assert!(
            matches!(
                troubles.as_slice(),
                [Trouble::Missing(SchemaId::Number(12)) | Trouble::Unusable(SchemaId::Number(10), _)]
            ),
            "{troubles:?}"
        );
    }
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], value), Ok(String::new()));
    assert_eq!((cache.counts, cache.failure()), ([0, 2, 0], None));
    cache.poll(Duration::from_secs(59), |_| true);
    assert!(cache.knows(SchemaId::Number(12)));
    cache.poll(Duration::from_secs(60), |_| true);
    assert_eq!(find(&cache, SchemaFormat::Avro, &["client"], value), Err(UnknownSchema(SchemaId::Number(12))));
}

#[test]
fn without_a_registry_every_schema_stays_unknown() {
    let mut cache = SchemaCache::new(None);
    cache.ask(SchemaId::Number(7), Duration::ZERO);
    assert!(cache.poll(RETRY_INTERVAL, |_| true).is_empty() && !cache.knows(SchemaId::Number(7)));
}
