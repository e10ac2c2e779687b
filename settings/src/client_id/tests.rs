use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A record of one header, a key and a value.
#[derive(Default)]
struct Sample<'a> {
    headers: Vec<(&'a str, Option<&'a [u8]>)>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl Fields for Sample<'_> {
    fn header(&self, name: &str) -> HeaderLookup<'_> {
        let mut named = self.headers.iter().filter(|(other, _)| *other == name);
        match (named.next(), named.next()) {
            (None, _) => HeaderLookup::Absent,
            (Some((_, value)), None) => HeaderLookup::Once(*value),
            (Some(_), Some(_)) => HeaderLookup::Repeated,
        }
    }

    fn key(&self) -> Option<&[u8]> {
        self.key
    }

    fn value(&self) -> Option<&[u8]> {
        self.value
    }
}

fn source(client: Option<&str>) -> Source {
    Source { client: client.map(str::to_owned), ..Source::new("loans") }
}

fn path(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect()
}

/// Returns the client id that a JSON text yields at a pointer.
fn at(pointer: &str, text: &[u8]) -> Result<String, AnonymousReason> {
    let record = Sample { value: Some(text), ..Sample::default() };
    match identify(&[ClientFrom::Json(path(pointer))], &record, &source(None), &NoSchemas) {
        Identity::Client(client) => Ok(client.into_owned()),
        Identity::Anonymous(reason) => Err(reason),
        Identity::Unknown(schema) => panic!("{schema:?}"),
    }
}

const LARGE: &str = "184467440737095516161844674407370955161618446744073709551616";

#[test]
fn json_pointers_are_followed() {
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(129));
    let escaped = format!(r#"{{"a":"\u0041{}"}}"#, "x".repeat(128));
    let digits = format!(r#"{{"a":{}}}"#, "9".repeat(129));
    let deep = format!(r#"{{"b":{}{},"a":"x"}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let on_path = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    let unclosed = "[".repeat(100_000);
    let cases: &[(&str, &str, Result<&str, AnonymousReason>)] = &[
        ("/a", r#"{"a":"acme"}"#, Ok("acme")),
        ("/a/b", r#"{"x":[1,{"b":2}],"a":{"c":null,"b":"acme"},"y":1e999}"#, Ok("acme")),
        ("/a/1", r#"{"a":["x","acme",{}]}"#, Ok("acme")),
        ("/a~1b/m~0n", r#"{"a/b":{"m~n":"acme"}}"#, Ok("acme")),
        ("", r#" "acme" "#, Ok("acme")),
        ("/", r#"{"":"acme"}"#, Ok("acme")),
        ("/a", r#"{"\u0061":"ac\u006de"}"#, Ok("acme")),
        ("/a", r#"{"a":""}"#, Err(AnonymousReason::Missing)),
        ("/a", r#"{"b":"acme"}"#, Err(AnonymousReason::Missing)),
        ("/a/b", r#"{"a":"acme"}"#, Err(AnonymousReason::Missing)),
        ("/a/b", r#"{"a":17}"#, Err(AnonymousReason::Missing)),
        ("/a/01", r#"{"a":["x","acme"]}"#, Err(AnonymousReason::Missing)),
        ("/a/-", r#"{"a":["x"]}"#, Err(AnonymousReason::Missing)),
        ("/a/9", r#"{"a":["x"]}"#, Err(AnonymousReason::Missing)),
        ("/a/99999999999999999999", r#"{"a":["x"]}"#, Err(AnonymousReason::Missing)),
        ("/a", "", Err(AnonymousReason::Missing)),
        ("/a", r#"{"a":null}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":42}"#, Ok("42")),
        ("/a", r#"{"a":0}"#, Ok("0")),
        ("/a", r#"{"a":-7,"b":[]}"#, Ok("-7")),
        ("/a", r#"{"a":-0}"#, Ok("-0")),
        ("/a", r#"{"a":9007199254740993}"#, Ok("9007199254740993")),
        ("/a/1", r#"{"a":[0, 184467440737095516161844674407370955161618446744073709551616 ]}"#, Ok(LARGE)),
        ("", " 42 ", Ok("42")),
        ("/a", &digits, Err(AnonymousReason::TooLong)),
        ("/a", r#"{"a":42.0}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":42e0}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":1844674407370955161618446744073709551616.5}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":042}"#, Err(AnonymousReason::NotJson)),
        ("/a", r#"{"a":42"#, Err(AnonymousReason::NotJson)),
        ("/a", r#"{"a":42,"a":42}"#, Err(AnonymousReason::DuplicateKey)),
        ("/a", r#"{"a":true}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":{"b":"x"}}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":["x"]}"#, Err(AnonymousReason::NotAnId)),
        ("/a", r#"{"a":"x","a":"x"}"#, Err(AnonymousReason::DuplicateKey)),
        ("/a", r#"{"a":"x","\u0061":"y"}"#, Err(AnonymousReason::DuplicateKey)),
        ("/a/b", r#"{"a":{"b":"x","b":"y"}}"#, Err(AnonymousReason::DuplicateKey)),
        ("/a/b", r#"{"a":{},"a":{"b":"y"}}"#, Err(AnonymousReason::DuplicateKey)),
        ("/a", r#"{"b":1,"b":2,"a":"acme"}"#, Ok("acme")),
        ("/a", r#"{"a":"acme"} x"#, Err(AnonymousReason::NotJson)),
        ("/a", r#"{"a":"acme""#, Err(AnonymousReason::NotJson)),
        ("/a", r#"{"a":"acme",}"#, Err(AnonymousReason::NotJson)),
        ("/a", r#"{"a":"acme","b":tru}"#, Err(AnonymousReason::NotJson)),
        ("/a", "plain", Err(AnonymousReason::NotJson)),
        ("/a", " ", Err(AnonymousReason::NotJson)),
        ("/a", &unclosed, Err(AnonymousReason::NotJson)),
        ("/a", &deep, Ok("x")),
        ("/a/a/a", &on_path, Err(AnonymousReason::NotAnId)),
        ("/a", &long, Err(AnonymousReason::TooLong)),
        ("/a", &escaped, Err(AnonymousReason::TooLong)),
    ];
    for (pointer, text, expected) in cases {
        let shown: String = text.chars().take(80).collect();
        assert_eq!(at(pointer, text.as_bytes()), expected.map(str::to_owned), "{pointer} in {shown}");
    }
}

#[test]
fn json_must_be_utf8_everywhere() {
    assert_eq!(at("/a", b"{\"b\":\"\xff\",\"a\":\"acme\"}"), Err(AnonymousReason::NotJson));
}

/// Confluent's serializer for JSON Schema writes the id of the schema in front of the text. Such records were
/// anonymous.
#[test]
fn a_text_stands_behind_the_id_of_its_schema() {
    let guid = [&[1; 17][..], br#"{"a":"acme"}"#].concat();
    let cases: &[(&[u8], Result<&str, AnonymousReason>)] = &[
        (b"\0\0\0\0\x07{\"a\":\"acme\"}", Ok("acme")),
        (b"\0\xff\xff\xff\xff {\"a\": 42} ", Ok("42")),
        (&guid, Ok("acme")),
        (b"\0\0\0\0\x07{\"b\":1}", Err(AnonymousReason::Missing)),
        (b"\0\0\0\0\x07{\"a\":1,\"a\":1}", Err(AnonymousReason::DuplicateKey)),
        (b"\0\0\0\0\x07{\"a\":\"acme\"", Err(AnonymousReason::BrokenJson)),
        (b"\0\0\0\0\x07{\"a\":\"acme\",\"b\":\"\xff\"}", Err(AnonymousReason::BrokenJson)),
        (b"\0\0\0\0\x07\0\0\0\0\x07{\"a\":\"acme\"}", Err(AnonymousReason::BrokenJson)),
        (b"\0\0\0\0\x07", Err(AnonymousReason::BrokenJson)),
        (b"\0\0\0\x07{}", Err(AnonymousReason::BrokenJson)),
        (b"\0\0\0{", Err(AnonymousReason::NotJson)),
    ];
    for (value, expected) in cases {
        assert_eq!(at("/a", value), expected.map(str::to_owned), "{}", value.escape_ascii());
    }
}

/// A value in another format has its client in another place, whatever the order of the places is.
#[test]
fn a_value_that_is_not_json_counts_as_absent_unless_the_id_of_a_schema_is_in_front() {
    let places = [ClientFrom::Json(path("/a")), ClientFrom::Json(path("/b")), ClientFrom::Key];
    let of = |value: &'static [u8], key: &'static [u8]| {
        let record = Sample { key: Some(key), value: Some(value), ..Sample::default() };
        match identify(&places, &record, &source(None), &NoSchemas) {
            Identity::Client(client) => client.into_owned(),
            other => format!("{other:?}"),
        }
    };
    for value in [&b"plain"[..], b"\xff", b"\x02\x06abc", b"{\"a\":\"acme\"", b"\0\0\x02{", b" "] {
        assert_eq!(of(value, b"k"), "k", "{}", value.escape_ascii());
        assert_eq!(of(value, b""), "Anonymous(NotJson)", "{}", value.escape_ascii());
    }
    assert_eq!(of(b"\0\0\0\0\x07plain", b"k"), "Anonymous(BrokenJson)");
    assert_eq!(of(b"\0\0\0\0\x07{\"a\":null,\"b\":\"acme\"}", b"k"), "Anonymous(NotAnId)");
    assert_eq!(of(b"\0\0\0\0\x07{\"b\":\"acme\"}", b"k"), "acme");
    assert_eq!(of(b"{\"a\":true}", b"k"), "Anonymous(NotAnId)");
    assert_eq!(of(b"{\"a\":1,\"a\":1}", b"k"), "Anonymous(DuplicateKey)");
}

#[test]
fn recursion_on_the_path_is_bounded() {
    let pointer = "/a".repeat(100_000);
    let text = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    assert_eq!(at(&pointer, text.as_bytes()), Err(AnonymousReason::NotJson));
}

#[test]
fn sources_of_the_id_are_tried_in_order() {
    let all = [ClientFrom::Header("id".to_owned()), ClientFrom::Json(path("/id")), ClientFrom::Key, ClientFrom::Topic];
    const LONG: &[u8] = &[b'x'; 129];
    let header = |value: Option<&'static [u8]>| vec![("id", value)];
    let cases: Vec<(Sample<'_>, Result<&str, AnonymousReason>)> = vec![
        (Sample { headers: header(Some(b"h")), key: Some(b"k"), value: Some(b"broken") }, Ok("h")),
        (Sample { headers: header(Some(b"")), key: Some(b"k"), value: Some(br#"{"id":"j"}"#) }, Ok("j")),
        (Sample { headers: header(None), key: Some(b"k"), value: None }, Ok("k")),
        (Sample { key: Some(b"k"), value: Some(b"{}"), ..Sample::default() }, Ok("k")),
        (Sample { key: Some(b""), ..Sample::default() }, Ok("t")),
        (Sample::default(), Ok("t")),
        (Sample { headers: header(Some(b"\xff")), key: Some(b"k"), value: None }, Err(AnonymousReason::NotUtf8)),
        (Sample { headers: header(Some(LONG)), key: Some(b"k"), value: None }, Err(AnonymousReason::TooLong)),
        (
            Sample { headers: header(Some(&LONG[1..])), ..Sample::default() },
            Ok(std::str::from_utf8(&LONG[1..]).unwrap()),
        ),
        (
            Sample { headers: vec![("id", Some(b"h")), ("id", Some(b"h"))], ..Sample::default() },
            Err(AnonymousReason::RepeatedHeader),
        ),
        (
            Sample { headers: vec![("id", None), ("id", None)], ..Sample::default() },
            Err(AnonymousReason::RepeatedHeader),
        ),
        (Sample { value: Some(b"broken"), key: Some(b"k"), ..Sample::default() }, Ok("k")),
        (Sample { key: Some(b"\xff"), ..Sample::default() }, Err(AnonymousReason::NotUtf8)),
    ];
    let named = source(Some("t"));
    for (record, expected) in &cases {
        let found = match identify(&all, record, &named, &NoSchemas) {
            Identity::Client(client) => Ok(client.into_owned()),
            Identity::Anonymous(reason) => Err(reason),
            Identity::Unknown(schema) => panic!("{schema:?}"),
        };
        assert_eq!(found, expected.map(str::to_owned));
    }
    assert_eq!(
        identify(&all, &Sample::default(), &source(None), &NoSchemas),
        Identity::Anonymous(AnonymousReason::Missing)
    );
}

#[test]
fn a_pattern_that_finds_nothing_passes_on_to_the_next_place() {
    let places = [
        ClientFrom::HeaderPart("tenant".to_owned(), "^([a-z]+)-".parse().unwrap()),
        ClientFrom::KeyPart("^([^:]*):".parse().unwrap()),
        ClientFrom::Topic,
    ];
    let (named, long) = (source(Some("t")), [b'x'; MAX_SEARCHED_BYTES + 1]);
    let id = |headers: &[&'static [u8]], key: &[u8]| {
        let headers = headers.iter().map(|value| ("tenant", Some(*value))).collect();
        match identify(&places, &Sample { headers, key: Some(key), value: None }, &named, &NoSchemas) {
            Identity::Client(client) => Ok(client.into_owned()),
            Identity::Anonymous(reason) => Err(reason),
            Identity::Unknown(schema) => panic!("{schema:?}"),
        }
    };
    assert_eq!(id(&[b"acme-eu"], b"other:1"), Ok("acme".to_owned()));
    assert_eq!(id(&[b"acme"], b"other:1"), Ok("other".to_owned()));
    assert_eq!(id(&[b"\xff-"], b"other:\xff"), Ok("other".to_owned()));
    assert_eq!(id(&[], b":1"), Ok("t".to_owned()));
    assert_eq!(id(&[], b"\xff:"), Ok("t".to_owned()));
    assert_eq!(id(&[b"acme-", b"acme-"], b"other:1"), Err(AnonymousReason::RepeatedHeader));
    assert_eq!(id(&[], &[&long[..129], b":1"].concat()), Err(AnonymousReason::TooLong));
    assert_eq!(id(&[], &[b"other:", &long[7..]].concat()), Ok("other".to_owned()));
    assert_eq!(id(&[], &long), Err(AnonymousReason::TooLongToSearch));
}

/// Generates documents with few different keys, so that pointers often match.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e300..1e300).prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~\"]{0,1}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn pointer() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["[a-c\"]{0,1}", Just("~0".to_owned()), Just("~1".to_owned()), "[0-3]"], 0..4)
        .prop_map(|tokens| tokens.iter().map(|token| format!("/{token}")).collect())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<Vec<u8>>(),
        "\\PC{0,150}".prop_map(String::into_bytes),
        "[a-c:]{0,6}".prop_map(String::into_bytes)
    ]
}

proptest! {
    #[test]
    fn pointers_agree_with_a_parsed_tree(document in document(), pointer in pointer(), pretty: bool) {
        let text = if pretty { serde_json::to_vec_pretty(&document) } else { serde_json::to_vec(&document) }.unwrap();
        let expected = match document.pointer(&pointer) {
            None => Err(AnonymousReason::Missing),
            Some(Value::String(name)) if name.is_empty() => Err(AnonymousReason::Missing),
            Some(Value::String(name)) => Ok(name.clone()),
            Some(Value::Number(number)) if number.is_i64() => Ok(number.to_string()),
            Some(_) => Err(AnonymousReason::NotAnId),
        };
        prop_assert_eq!(at(&pointer, &text), expected);
    }

    #[test]
    fn an_integer_keeps_its_digits(integer in "-?(0|[1-9][0-9]{0,126})", rest in "[,.e}\\]]?[0-9]?") {
        let text = format!("{{\"b\":[{{\"c\":{integer}}}]}}");
        prop_assert_eq!(at("/b/0/c", text.as_bytes()), Ok(integer.clone()));
        let other = at("/b/0/c", format!("{{\"b\":[{{\"c\":{integer}{rest}}}]}}").as_bytes());
        prop_assert!(other.is_err() || rest.bytes().all(|byte| byte.is_ascii_digit()), "{:?}", other);
    }

    #[test]
    fn any_record_yields_a_valid_id_or_an_error(
        pattern in prop::sample::select(vec!["^([^:]+):", "^(?s-u:.(.*))", "^(..?)|x", "^(.*)$"]),
        key in prop::option::of(bytes()),
        header in prop::option::of(bytes()),
        value: Vec<u8>,
    ) {
        let record = Sample { headers: vec![("h", header.as_deref())], key: key.as_deref(), value: Some(&value) };
        let pattern: Pattern = pattern.parse().unwrap();
        let header = ClientFrom::HeaderPart("h".to_owned(), pattern.clone());
        for place in [ClientFrom::Key, ClientFrom::KeyPart(pattern), header, ClientFrom::Json(path("/a"))] {
            if let Identity::Client(client) = identify(&[place], &record, &source(None), &NoSchemas) {
                prop_assert!((1..=MAX_CLIENT_BYTES).contains(&client.len()));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_yield_a_valid_id_or_an_error(bytes: Vec<u8>, pointer in pointer()) {
        if let Ok(client) = at(&pointer, &bytes) {
            prop_assert!((1..=MAX_CLIENT_BYTES).contains(&client.len()));
        }
    }

    #[test]
    fn damaged_documents_yield_no_other_client(
        document in document(),
        pointer in pointer(),
        cut in any::<prop::sample::Index>(),
    ) {
        use AnonymousReason::{NotJson, DuplicateKey, Missing, NotAnId};
        // A cut document is broken, unless only a number lost digits.
        let text = json!({ "a": document }).to_string();
        let cut = cut.index(text.len());
        let found = at(&format!("/a{pointer}"), &text.as_bytes()[..cut]);
        prop_assert!(matches!(found, Err(NotJson | NotAnId | DuplicateKey | Missing)));
        prop_assert!(found != Err(Missing) || cut == 0);
    }
}

/// Knows the schema 1, in which each value has one id, and no other.
struct OneSchema;

impl Schemas for OneSchema {
    fn find<'r>(
        &self, format: SchemaFormat, path: &[String], _: HeaderLookup<'r>, value: Option<&'r [u8]>,
    ) -> Result<Found<'r>, UnknownSchema> {
        match value {
            Some([1, id @ ..]) if format == SchemaFormat::Avro && path == ["id"] => Ok(from_bytes(Some(id))),
            Some([2, ..]) => Err(UnknownSchema(SchemaId::Number(2))),
            _ => Ok(Ok(None)),
        }
    }
}

#[test]
fn a_record_waits_for_an_unknown_schema_only_if_no_earlier_place_names_its_client() {
    let places = [
        ClientFrom::Header("id".to_owned()),
        ClientFrom::Schema(SchemaFormat::Avro, vec!["id".to_owned()]),
        ClientFrom::Topic,
    ];
    let topic = source(Some("by-topic"));
    let of = |headers: &[(&'static str, Option<&'static [u8]>)], value: &'static [u8]| {
        let record = Sample { headers: headers.to_vec(), value: Some(value), ..Sample::default() };
        match identify(&places, &record, &topic, &OneSchema) {
            Identity::Client(client) => client.into_owned(),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(of(&[], b"\x01acme"), "acme");
    assert_eq!(of(&[], b"\x02acme"), "Unknown(UnknownSchema(Number(2)))");
    assert_eq!(of(&[("id", Some(b"first"))], b"\x02acme"), "first");
    assert_eq!(of(&[], b"\x01"), "by-topic");
    assert_eq!(of(&[], b"\x01\xff"), "Anonymous(NotUtf8)");
    assert_eq!(of(&[], b"{}"), "by-topic");
}

/// The bug: a value that was not JSON made the record anonymous, where one without the key was the client's alone.
#[test]
fn a_record_that_names_no_group_is_of_its_client() {
    let text = r#"[[service]]
name = "kyc"
target = "kyc.requests"
dead_letter = "kyc.dead-letter"
capacity = 2000
group_from = ["json:/group"]
source = [{ topic = "loans" }]
"#;
    let rules = crate::config::PropertyRules { version: || "0".to_owned(), check: |_, _| Ok(()), clients: |_| Ok(()) };
    let config = crate::config::Config::parse(text, std::path::Path::new("w.toml"), [], rules).expect("no errors");
    let service = &config.settings.services[0];
    let cases = [
        ("loans", r#"{"group":"web"}"#, Some((Some("web"), "loans"))),
        ("loans", r#"{"other":"web"}"#, Some((None, "loans"))),
        ("loans", "no JSON", Some((None, "loans"))),
        ("loans", r#"{"group":"a/b"}"#, None),
        ("a/b", "no JSON", None),
    ];
    for (client, value, expected) in cases {
        let (record, source) = (Sample { value: Some(value.as_bytes()), ..Sample::default() }, source(Some(client)));
        let found = match sender_of(service, &record, &source, &NoSchemas) {
            NamedSender::Client(client) => Some((None, client.into_owned())),
            NamedSender::InGroup { group, client } => Some((Some(group.into_owned()), client.into_owned())),
            NamedSender::Anonymous(_) => None,
            other => panic!("{other:?}"),
        };
        let found = found.as_ref().map(|(group, client)| (group.as_deref(), &**client));
        assert_eq!(found, expected, "{client} {value}");
    }
}
