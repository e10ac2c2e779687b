//! Values that Confluent's serializers wrote: each yields the client that went into it.
//!
//! The suite reads recorded ones. `scripts/test --long` makes others, 10 000 for each format and each place of the
//! schema's id, with `serializers/make.py`.

#[path = "../src/registry/tests/stub.rs"]
#[expect(dead_code, reason = "the other tests use the rest of it")]
mod stub;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::Value;
use watermaster_schemas::cache::SchemaCache;
use watermaster_settings::client_id::{Fields, HeaderLookup, Identity, UnknownSchema, identify};
use watermaster_settings::{ClientFrom, SchemaFormat, SchemaRegistry, Source};

struct Record {
    headers: Vec<(String, Vec<u8>)>,
    value: Vec<u8>,
}

impl Fields for Record {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        let value = self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        value.map_or(HeaderLookup::Absent, |value| HeaderLookup::Once(Some(value)))
    }

    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn value(&self) -> Option<&[u8]> {
        Some(&self.value)
    }
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().expect("hex").as_bytes();
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// Finds the client of a record, once the registry has answered.
fn client(record: &Record, places: &[ClientFrom], source: &Source, cache: &mut SchemaCache) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match identify(places, record, source, cache) {
            Identity::Client(client) => return client.into_owned(),
            Identity::Anonymous(why) => return format!("(anonymous: {why})"),
            Identity::Unknown(UnknownSchema(id)) => {
                assert!(Instant::now() < deadline, "no answer about schema {id}");
                cache.ask(id, Duration::ZERO);
                let troubles = cache.poll(Duration::ZERO, |_| true);
                assert!(troubles.is_empty(), "{troubles:?}");
            }
        }
    }
}

#[test]
fn each_value_yields_the_client_that_went_into_it() {
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serializers/recorded.jsonl");
    let file = std::env::var("WATERMASTER_TEST_SERIALIZED").unwrap_or_else(|_| recorded.to_owned());
    let mut lines = BufReader::new(std::fs::File::open(&file).expect(&file)).lines();
    let mut next = || lines.next().map(|line| serde_json::from_str::<Value>(&line.expect("text")).expect("JSON"));
    let answers = next().expect("the answers of the registry");
    let registry = stub::StubRegistry::start(move |question| {
        let path = question.path.trim_end_matches("?deleted=true").replace("%2E", ".");
        answers.get(&path).map_or_else(|| (404, stub::not_found()), |answer| (200, answer.to_string()))
    });
    let settings = SchemaRegistry { url: registry.url.clone(), login: None, ca_file: None };
    let mut cache = SchemaCache::new(Some(settings));
    let path = ["client", "id"].map(str::to_owned).to_vec();
    let places = [
        ClientFrom::Schema(SchemaFormat::Avro, path.clone()),
        ClientFrom::Schema(SchemaFormat::Protobuf, path.clone()),
        ClientFrom::Json(path),
    ];
    let source = Source::new("loans");
    // The numbers of right, anonymous and wrong records for each format and place of the id.
    let mut counts: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    while let Some(line) = next() {
        let headers = line[2].as_array().expect("a list").iter();
        let headers = headers.map(|pair| (pair[0].as_str().expect("a name").to_owned(), bytes(&pair[1])));
        let record = Record { headers: headers.collect(), value: bytes(&line[3]) };
        let (found, expected) = (client(&record, &places, &source, &mut cache), line[1].as_str().expect("a client"));
        let outcome = if found == expected { 0 } else { 1 + usize::from(!found.starts_with("(anonymous")) };
        if outcome > 0 {
            println!("{found:?} in place of {expected:?}: {line}");
        }
        counts.entry(line[0].as_str().expect("a kind").to_owned()).or_default()[outcome] += 1;
    }
    println!("{counts:?}");
    assert_eq!(counts.len(), 6, "three formats, two places");
    assert!(counts.values().all(|[right, anonymous, wrong]| *right > 0 && anonymous + wrong == 0), "{counts:?}");
}
