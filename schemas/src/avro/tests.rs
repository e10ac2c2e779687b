use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Writes values as Avro does, independent of the code under test.
#[derive(Default)]
struct Value(Vec<u8>);

impl Value {
    fn long(mut self, number: i64) -> Value {
        let mut rest = ((number << 1) ^ (number >> 63)) as u64;
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
        self
    }

    fn text(self, text: &str) -> Value {
        self.long(text.len() as i64).raw(text.as_bytes())
    }

    fn raw(mut self, bytes: &[u8]) -> Value {
        self.0.extend(bytes);
        self
    }
}

fn path(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(str::to_owned).collect()
}

fn find(schema: &serde_json::Value, at: &str, value: &Value) -> Result<Option<String>, AnonymousReason> {
    let schema = AvroSchema::parse(&[], &schema.to_string()).unwrap();
    schema.find(&path(at), &value.0).map(|found| found.map(Cow::into_owned))
}

fn id(text: &str) -> Result<Option<String>, AnonymousReason> {
    Ok(Some(text.to_owned()))
}

/// A record in which every type stands before the client.
fn loan() -> serde_json::Value {
    json!({"type": "record", "name": "Loan", "namespace": "bank.loans", "fields": [
        {"name": "number", "type": "long"},
        {"name": "urgent", "type": "boolean"},
        {"name": "rate", "type": "double"},
        {"name": "part", "type": "float"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "again", "type": "Hash"},
        {"name": "none", "type": "null"},
        {"name": "note", "type": ["null", "string"], "default": null},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "parts", "type": {"type": "array", "items": ["null", "Loan"]}},
        {"name": "client", "type": ["null", {"type": "record", "name": "Client", "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["HOME", "CAR"]}},
            {"name": "id", "type": ["int", {"type": "string", "logicalType": "uuid"}]},
            {"name": "flag", "type": {"type": "boolean"}},
        ]}]},
    ]})
}

fn before_client(inner: bool) -> Value {
    let value = Value::default().long(-300).raw(&[1]).raw(&[0; 8]).raw(&[0; 4]).raw(b"hash").raw(b"hash");
    let value = value.long(1).text("a note").text("12");
    // One block of a map with its size, and one without.
    let value = value.long(-1).long(5).text("a").long(1).long(7).long(0);
    let value = value.long(1).text("b").long(0).long(0);
    if inner {
        let whole = before_client(false).long(0);
        return value.long(2).long(0).long(1).raw(&whole.0).long(0);
    }
    value.long(0)
}

#[test]
fn fields_of_every_type_are_skipped() {
    let value = before_client(true).long(1).long(1).long(1).text("acme").raw(&[0]);
    assert_eq!(find(&loan(), "/client/id", &value), id("acme"));
    assert_eq!(find(&loan(), "/client/kind", &value), id("CAR"));
    assert_eq!(find(&loan(), "/number", &value), id("-300"));
    assert_eq!(find(&loan(), "/note", &value), id("a note"));
    let with_number = before_client(false).long(1).long(0).long(0).long(42);
    assert_eq!(find(&loan(), "/client/id", &with_number), id("42"));
}

#[test]
fn a_field_that_is_not_there_differs_from_one_that_is_no_id() {
    let no_client = before_client(false).long(0);
    for absent in ["/client/id", "/client", "/none", "/nothing", "/number/id", "/tags/a", "/parts/0"] {
        assert_eq!(find(&loan(), absent, &no_client), Ok(None), "{absent}");
    }
    for wrong in ["/urgent", "/rate", "/hash", "/amount", "/tags", "/parts"] {
        assert_eq!(find(&loan(), wrong, &no_client), Err(AnonymousReason::NotAField), "{wrong}");
    }
    assert_eq!(find(&loan(), "/client", &before_client(false).long(1)), Err(AnonymousReason::NotAField));
    assert_eq!(find(&json!("string"), "", &Value::default().text("acme")), id("acme"));
}

#[test]
fn a_value_that_does_not_fit_its_schema_is_broken() {
    let whole = before_client(true).long(1).long(1).long(1).text("acme");
    for length in 0..whole.0.len() {
        let cut = Value(whole.0[..length].to_vec());
        assert_eq!(find(&loan(), "/client/id", &cut), Err(BROKEN), "{length} bytes");
    }
    for wrong in [2, -1, i64::MIN] {
        let value = before_client(false).long(wrong);
        assert_eq!(find(&loan(), "/client/id", &value), Err(BROKEN));
    }
    let not_text = Value::default().long(1).raw(&[0xff]);
    assert_eq!(find(&json!("string"), "", &not_text), Err(AnonymousReason::NotUtf8));
    assert_eq!(find(&json!("string"), "", &Value::default().long(i64::MAX)), Err(BROKEN));
}

#[test]
fn names_are_found_in_their_namespaces_and_in_references() {
    let client = json!({"type": "record", "name": "bank.Client", "fields": [{"name": "id", "type": "string"}]});
    let loan = json!({"type": "record", "name": "Loan", "namespace": "bank", "fields": [
        {"name": "a", "type": "Client"}, {"name": "b", "type": "bank.Client"},
    ]});
    let schema = AvroSchema::parse(&[client.to_string()], &loan.to_string()).unwrap();
    let value = Value::default().text("x").text("acme");
    assert_eq!(schema.find(&path("/b/id"), &value.0), Ok(Some("acme".into())));
    assert!(matches!(AvroSchema::parse(&[], &loan.to_string()), Err(SchemaError::AvroType(_))));
}

/// The types of these values take no bytes, so that the length of the value bounds nothing.
#[test]
fn a_value_cannot_make_the_walk_long() {
    let nulls = json!({"type": "record", "name": "R", "fields": [
        {"name": "many", "type": {"type": "array", "items": "null"}}, {"name": "id", "type": "string"},
    ]});
    assert_eq!(find(&nulls, "/id", &Value::default().long(i64::MAX)), Err(BROKEN));
    assert_eq!(find(&nulls, "/id", &Value::default().long(500).long(0).text("acme")), id("acme"));
    let mut doubling = json!("null");
    for depth in 0..30 {
        doubling = json!({"type": "record", "name": format!("R{depth}"), "fields": [
            {"name": "a", "type": doubling}, {"name": "b", "type": if depth == 0 { json!("null") } else {
                json!(format!("R{}", depth - 1)) }},
        ]});
    }
    let schema = json!({"type": "record", "name": "Top", "fields": [
        {"name": "a", "type": doubling}, {"name": "id", "type": "string"},
    ]});
    assert_eq!(find(&schema, "/id", &Value::default().text("acme")), Err(BROKEN));
}

/// A list of its own kind, nested as deeply as the value says, must not use up the stack.
#[test]
fn recursion_is_bounded() {
    let list = json!({"type": "record", "name": "List", "fields": [
        {"name": "next", "type": ["null", "List"]}, {"name": "id", "type": "string"},
    ]});
    assert_eq!(find(&list, "/id", &Value(vec![2; 1_000_000])), Err(BROKEN));
    assert_eq!(find(&list, "/id", &Value::default().long(1).long(0).text("x").text("acme")), id("acme"));
    let itself = json!({"type": "record", "name": "R", "fields": [
        {"name": "r", "type": "R"}, {"name": "id", "type": "string"}]});
    assert_eq!(find(&itself, "/id", &Value::default()), Err(BROKEN));
    let deep = "{\"type\": \"array\", \"items\": ".repeat(120) + "\"int\"" + &"}".repeat(120);
    assert!(AvroSchema::parse(&[], &deep).is_err());
}

#[test]
fn a_schema_that_is_none_is_refused() {
    for wrong in [
        "",
        "{}",
        "7",
        "\"Loan\"",
        "{\"type\": \"record\", \"name\": \"A\"}",
        "{\"type\": \"record\", \"fields\": []}",
        "{\"type\": \"record\", \"name\": \"A\", \"fields\": [{\"name\": \"a\"}]}",
        "{\"type\": \"enum\", \"name\": \"A\", \"symbols\": [1]}",
        "{\"type\": \"fixed\", \"name\": \"A\", \"size\": -1}",
        "{\"type\": \"array\"}",
    ] {
        assert!(AvroSchema::parse(&[], wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn any_bytes_and_any_path_end_without_a_panic(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..4], 0..200), at in "(/[a-z]{0,6}){0,4}",
    ) {
        for at in [at.as_str(), "/client/id", "/parts"] {
            _ = find(&loan(), at, &Value(bytes.clone()));
        }
    }

    #[test]
    fn any_text_is_a_schema_or_none(text in r#"[\[{]?("type"|:|"record"|"name"|"a"|"fields"|[\]\[{},"]){0,20}"#) {
        _ = AvroSchema::parse(&[], &text);
    }

    #[test]
    fn any_client_is_found_behind_any_fields(
        number in any::<i64>(), note in ".{0,20}", client in ".{1,40}", symbol in 0_i64..2,
    ) {
        let schema = json!({"type": "record", "name": "R", "fields": [
            {"name": "number", "type": ["long", "null"]}, {"name": "note", "type": "bytes"},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
            {"name": "client", "type": "string"},
        ]});
        let value = Value::default().long(0).long(number).text(&note).long(symbol).text(&client);
        prop_assert_eq!(find(&schema, "/client", &value), id(&client));
        prop_assert_eq!(find(&schema, "/number", &value), id(&number.to_string()));
        prop_assert_eq!(find(&schema, "/kind", &value), id(["A", "B"][symbol as usize]));
    }
}
