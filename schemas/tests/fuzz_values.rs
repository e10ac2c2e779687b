//! Damaged and forged values: finding a client in one ends soon and without a panic, and a value that was cut off
//! yields the client that its serializer wrote, or none.
//!
//! The suite tries some thousand; `scripts/fuzz` goes on for as long as its arguments say, one format at a time.

#[path = "../../core/tests/support/random.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod random;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::{Value, json};
use watermaster_schemas::{Schema, wire};
use watermaster_settings::client_id::{
    Fields, Found, HeaderLookup, Identity, MAX_CLIENT_BYTES, SCHEMA_ID_HEADER, SchemaId, Schemas, UnknownSchema,
    identify,
};
use watermaster_settings::{ClientFrom, SchemaFormat, Source};

/// Number of inputs in the suite.
const SMOKE: u64 = 20_000;
const MAX_VALUE_BYTES: usize = 1 << 20;
/// The longest time for one value: a hundredth of the time after which an engine counts as stuck. A build without
/// optimisation gets more.
const LIMIT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1_000 } else { 20 });
const FORMATS: [&str; 3] = ["avro", "protobuf", "json"];

/// A record, with the header that names its schema.
#[derive(Clone)]
struct Input {
    header: Option<Vec<u8>>,
    value: Vec<u8>,
    /// The client in the record that a serializer wrote; `None` if the record may yield any.
    written: Option<String>,
    whole: bool,
}

impl Fields for Input {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        let header = self.header.as_deref().filter(|_| name == SCHEMA_ID_HEADER);
        header.map_or(HeaderLookup::Absent, |header| HeaderLookup::Once(Some(header)))
    }

    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn value(&self) -> Option<&[u8]> {
        Some(&self.value)
    }
}

struct Known(HashMap<SchemaId, Schema>);

impl Schemas for Known {
    fn find<'r>(
        &self, format: SchemaFormat, path: &[String], header: HeaderLookup<'r>, value: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema> {
        match wire::named(header, value) {
            Ok(Some(named)) => match self.0.get(&named.id) {
                Some(schema) => Ok(schema.find(format, path, &named)),
                None => Err(UnknownSchema(named.id)),
            },
            Ok(None) => Ok(Ok(None)),
            Err(broken) => Ok(Err(broken)),
        }
    }
}

/// Recorded and hostile schemas and values.
struct Corpus {
    schemas: Known,
    /// The records that the serializers of the formats wrote.
    records: [Vec<Input>; 3],
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().expect("hex").as_bytes();
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// Parses the answer of a registry, with the schemas that it refers to.
fn parsed(answers: &Value, answer: &Value) -> Schema {
    let text = |answer: &Value| answer["schema"].as_str().expect("a text").to_owned();
    let references = answer["references"].as_array().expect("a list").iter();
    let path = |it: &Value| format!("/subjects/{}/versions/{}", it["subject"].as_str().expect("a name"), it["version"]);
    let references: Vec<String> = references.map(|it| text(&answers[path(it)])).collect();
    Schema::parse(answer["schemaType"].as_str(), &references, &text(answer)).expect("a schema")
}

/// Schemas with values that took long, or that may: many members of a `oneof`, items and fields without bytes,
/// recursion.
fn hostile() -> [Vec<Schema>; 2] {
    let members = (2..50_000).map(|n| format!("string f{n} = {n};")).collect::<String>();
    let inner = "message Client { Client client = 2; map<string, Client> m = 3; string id = 1; }";
    let protobuf = [
        format!("message A {{ oneof o {{ Client client = 1; {members} }} message Client {{ string id = 1; }} }}"),
        format!("message A {{ Client client = 1; }} message Client {{ oneof o {{ string id = 1; {members} }} }}"),
        format!("{inner} message A {{ optional Client client = 1; repeated Client c = 4; }}"),
    ];
    let hollow = (0..40).map(|n| json!({"name": format!("f{n}"), "type": "null"})).collect::<Vec<_>>();
    let nested = (0..40).fold(
        json!("int"),
        |inner, n| json!({"type": "record", "name": format!("N{n}"), "fields": [{"name": "a", "type": inner}]}),
    );
    let skipped = [
        json!({"type": "array", "items": "null"}),
        json!({"type": "array", "items": {"type": "array", "items": "boolean"}}),
        json!({"type": "array", "items": {"type": "record", "name": "H", "fields": hollow}}),
        json!({"type": "map", "values": {"type": "array", "items": nested}}),
        json!({"type": "record", "name": "L", "fields": [
            {"name": "a", "type": {"type": "array", "items": ["null", "L", "int"]}},
            {"name": "b", "type": ["L", "null"]},
        ]}),
    ];
    let avro = skipped.map(|skipped| {
        json!({"type": "record", "name": "A", "fields": [
            {"name": "before", "type": skipped},
            {"name": "client", "type": {"type": "record", "name": "C", "fields": [{"name": "id", "type": "string"}]}},
        ]})
    });
    let parse = |format, text: String| Schema::parse(format, &[], &text).expect("a schema");
    [
        avro.map(|schema| parse(None, schema.to_string())).into(),
        protobuf.map(|text| parse(Some("PROTOBUF"), text)).into(),
    ]
}

/// The number of the first hostile schema of each format.
const HOSTILE: u32 = 1_000;

impl Corpus {
    fn read() -> Corpus {
        let mut lines = include_str!("serializers/recorded.jsonl").lines();
        let mut next = || lines.next().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let answers = next().expect("the answers of the registry");
        let mut schemas = HashMap::new();
        for (path, answer) in answers.as_object().expect("a table") {
            if let Some(number) = path.strip_prefix("/schemas/ids/") {
                schemas.insert(SchemaId::Number(number.parse().expect("a number")), parsed(&answers, answer));
            } else if let Some(guid) = path.strip_prefix("/schemas/guids/") {
                let guid = u128::from_str_radix(&guid.replace('-', ""), 16).expect("a GUID");
                schemas.insert(SchemaId::Guid(guid), parsed(&answers, answer));
            }
        }
        for (format, hostile) in hostile().into_iter().enumerate() {
            for (n, schema) in hostile.into_iter().enumerate() {
                schemas.insert(SchemaId::Number(HOSTILE * (format as u32 + 1) + n as u32), schema);
            }
        }
        let mut records: [Vec<Input>; 3] = Default::default();
        while let Some(line) = next() {
            let format = FORMATS.iter().position(|format| line[0].as_str().expect("a kind").starts_with(format));
            let header = line[2].get(0).map(|pair| bytes(&pair[1]));
            let written = line[1].as_str().map(str::to_owned);
            let input = Input { header, value: bytes(&line[3]), written, whole: true };
            records[format.expect("a format")].push(input);
        }
        Corpus { schemas: Known(schemas), records }
    }

    fn any_input(&self, random: &mut Random, format: usize) -> Input {
        let records = &self.records[format];
        let mut input = records[random.index(records.len())].clone();
        match random.below(16) {
            0 => {}
            1..6 => {
                let cut = random.index(input.value.len());
                input.value.truncate(cut);
                input.whole = false;
            }
            6 if input.header.is_some() => {
                let header = input.header.as_mut().expect("it has one");
                header.truncate(random.index(header.len()));
                input.whole = false;
            }
            7 if random.once_in(16) => self.hostile_value(random, format, &mut input),
            8 if random.once_in(16) => inflate(random, &mut input),
            kind => {
                if kind == 15 {
                    input.header = records[random.index(records.len())].header.clone();
                }
                (0..=random.below(4)).for_each(|_| damage(random, &mut input.value));
                input.written = None;
            }
        }
        input
    }

    /// Makes a large value of few different bytes, with a schema that makes much of them.
    fn hostile_value(&self, random: &mut Random, format: usize, input: &mut Input) {
        let alphabets: [&[u8]; 9] = [
            &[0, 1, 2, 4],
            &[2],
            &[60],
            &[0xfe, 0xff, 0x01],
            &[0x0a, 0x00],
            &[0x12, 0x02, 0x0a, 0x00],
            &[0xba, 0xff, 0x0b, 0x00, 0x1b, 0x1c],
            b"{\"[]client:id,0e-\\u",
            b"9e+-.,[",
        ];
        let (alphabet, in_turn) = (random.one_of(&alphabets), random.once_in(2));
        let length = 1 + random.magnitude(20) as usize;
        let byte = |at: usize, random: &mut Random| {
            alphabet[if in_turn { at % alphabet.len() } else { random.index(alphabet.len()) }]
        };
        input.value = (0..length).map(|at| byte(at, random)).collect();
        if format == 2 {
            let begun: &[u8] = random.one_of(&[&b""[..], b"{\"client\":", b"{\"client\":{\"id\":", b"[", b"\""]);
            input.value.splice(0..0, begun.iter().copied());
        } else {
            let number = HOSTILE * (format as u32 + 1) + random.below(5) as u32;
            let header = [&[0][..], &number.to_be_bytes(), &[0]].concat();
            input.header = Some(header);
        }
        input.written = None;
    }
}

/// Repeats a piece of the value up to a mebibyte.
fn inflate(random: &mut Random, input: &mut Input) {
    let value = &mut input.value;
    let from = random.index(value.len());
    let to = (from + 1 + random.magnitude(5) as usize).min(value.len());
    let piece = value[from..to].to_vec();
    let times = (MAX_VALUE_BYTES - value.len()) / piece.len();
    value.splice(from..from, piece.repeat(times));
    input.written = None;
}

/// Makes one change to the bytes.
fn damage(random: &mut Random, value: &mut Vec<u8>) {
    let at = random.index(value.len() + 1);
    let to = (at + random.magnitude(6) as usize).min(value.len());
    match random.below(6) {
        0 | 1 if at < value.len() => value[at] ^= 1 << random.below(8),
        2 => value.truncate(at),
        3 => _ = value.drain(at..to),
        4 => {
            let piece = value[at..to].to_vec();
            let here = random.index(value.len() + 1);
            value.splice(here..here, piece);
        }
        _ => {
            let piece: Vec<u8> = (0..random.magnitude(4)).map(|_| random.word() as u8).collect();
            value.splice(at..to, piece);
        }
    }
}

/// Counts of the results.
#[derive(Debug, Default)]
struct Counts {
    clients: u64,
    anonymous: u64,
    unknown: u64,
    /// The longest time, and the length of that value.
    slowest: (Duration, usize),
}

fn check(corpus: &Corpus, places: &[ClientFrom], source: &Source, input: &Input, counts: &mut Counts) {
    let began = Instant::now();
    let found = identify(places, input, source, &corpus.schemas);
    let mut took = began.elapsed();
    // Other programs may have held this one up.
    for _ in 0..100 {
        if took > LIMIT {
            let began = Instant::now();
            _ = identify(places, input, source, &corpus.schemas);
            took = took.min(began.elapsed());
        }
    }
    assert!(took <= LIMIT, "{took:?} for {} bytes", input.value.len());
    counts.slowest = counts.slowest.max((took, input.value.len()));
    match &found {
        Identity::Client(_) => counts.clients += 1,
        Identity::Anonymous(_) => counts.anonymous += 1,
        Identity::Unknown(_) => counts.unknown += 1,
    }
    if let Identity::Client(client) = &found {
        assert!((1..=MAX_CLIENT_BYTES).contains(&client.len()));
        assert!(input.written.as_ref().is_none_or(|written| written == client), "{client:?} was never written");
    }
}

#[test]
fn damaged_and_forged_values_do_no_harm() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("WATERMASTER_FUZZ_SEED").unwrap_or(1);
    let from = number("WATERMASTER_FUZZ_FROM").unwrap_or(0);
    let time = number("WATERMASTER_FUZZ_SECONDS").map(Duration::from_secs);
    let only = std::env::var("WATERMASTER_FUZZ_FORMAT").ok();
    let corpus = Corpus::read();
    let path = ["client", "id"].map(str::to_owned).to_vec();
    let places = [
        ClientFrom::Schema(SchemaFormat::Avro, path.clone()),
        ClientFrom::Schema(SchemaFormat::Protobuf, path.clone()),
        ClientFrom::Json(path),
    ];
    let source = Source::new("loans");
    for (format, name) in
        FORMATS.into_iter().enumerate().filter(|(_, name)| only.as_deref().is_none_or(|it| it == *name))
    {
        println!("{name}: seed {seed}, from input {from}");
        let (began, mut counts, mut index, mut printed) = (Instant::now(), Counts::default(), from, Duration::ZERO);
        while time.map_or(index < from + SMOKE, |time| began.elapsed() < time) {
            let mut random = Random::stream(seed, index);
            let input = corpus.any_input(&mut random, format);
            let mut places = places.clone();
            // The place `json` refuses the values of other formats, so it comes last for a value that must be found.
            places.rotate_left(if input.whole && input.written.is_some() { 0 } else { random.index(3) });
            let tried = catch_unwind(AssertUnwindSafe(|| {
                check(&corpus, &places, &source, &input, &mut counts);
                if input.whole
                    && let Some(written) = &input.written
                {
                    let found = identify(&places, &input, &source, &corpus.schemas);
                    assert_eq!(found, Identity::Client(written.into()));
                }
            }));
            if tried.is_err() {
                let shown = input.value[..input.value.len().min(2_000)].escape_ascii();
                panic!(
                    "input {index} of seed {seed} (scripts/fuzz {name} --seed {seed} --from {index}): {:?}, {} bytes: \
                     {shown}",
                    input.header,
                    input.value.len()
                );
            }
            index += 1;
            if began.elapsed() >= printed + Duration::from_secs(60) {
                printed = began.elapsed();
                println!("{:>4} s: {} inputs, {counts:?}", printed.as_secs(), index - from);
            }
        }
        println!("{} inputs in {:.1} s: {counts:?}", index - from, began.elapsed().as_secs_f32());
        assert!(counts.clients > 1000 && counts.anonymous > 1000, "{counts:?}");
    }
}
