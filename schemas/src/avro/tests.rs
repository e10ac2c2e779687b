use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::MAX_SCHEMA_BYTES;

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

/// Items without bytes, and fields without bytes in items of one byte, took steps that no byte paid for: 88 ms for a
/// mebibyte.
#[test]
fn types_without_bytes_take_no_time() {
    let array = |items: serde_json::Value| {
        json!({"type": "record", "name": "R", "fields": [
            {"name": "many", "type": {"type": "array", "items": items}}, {"name": "id", "type": "string"},
        ]})
    };
    let fastest = |items: serde_json::Value, value: &Value| {
        let schema = AvroSchema::parse(&[], &array(items).to_string()).unwrap();
        let took = (0..5).map(|_| {
            let began = std::time::Instant::now();
            assert_eq!(schema.find(&path("/id"), &value.0), Ok(Some("acme".into())));
            began.elapsed()
        });
        took.min().unwrap()
    };
    const BYTES: usize = 100_000;
    let numbers = Value::default().long(BYTES as i64).raw(&[2; BYTES]).long(0).text("acme");
    let fair = fastest(json!("int"), &numbers);
    // Each block of 30 nulls has one byte, the count.
    let nulls = Value::default().raw(&[60; BYTES]).long(0).text("acme");
    // Each item has one byte, and thirty fields without any or thirty records around it.
    let hollow = (0..30).map(|n| json!({"name": format!("f{n}"), "type": "null"}));
    let hollow = hollow.chain([json!({"name": "n", "type": "int"})]).collect::<Vec<_>>();
    let hollow = json!({"type": "record", "name": "H", "fields": hollow});
    let nested = (0..30).fold(
        json!("int"),
        |inner, n| json!({"type": "record", "name": format!("N{n}"), "fields": [{"name": "a", "type": inner}]}),
    );
    for (name, items, value) in
        [("nulls", json!("null"), &nulls), ("hollow", hollow, &numbers), ("nested", nested, &numbers)]
    {
        let took = fastest(items, value);
        assert!(took < 6 * fair, "{name}: {took:?}, and {fair:?} for numbers");
    }
    let endless = Value::default().long(i64::MAX).long(0).text("acme");
    assert_eq!(find(&array(json!("null")), "/id", &endless), id("acme"));
    assert_eq!(find(&array(json!("boolean")), "/id", &endless), Err(BROKEN));
    // A record with two records with two records, and so on.
    let doubling = |innermost: &str| {
        (0..30).fold(json!(innermost), |inner, n| {
            let again = if n == 0 { inner.clone() } else { json!(format!("D{}", n - 1)) };
            let fields = json!([{"name": "a", "type": inner}, {"name": "b", "type": again}]);
            json!({"type": "record", "name": format!("D{n}"), "fields": fields})
        })
    };
    assert_eq!(find(&array(doubling("null")), "/id", &endless), id("acme"));
    assert_eq!(find(&array(doubling("double")), "/id", &endless), Err(BROKEN));
    assert_eq!(find(&array(doubling("int")), "/id", &Value::default().long(9).raw(&[2; BYTES])), Err(BROKEN));
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

#[test]
fn a_schema_that_takes_too_much_memory_is_refused() {
    let of = |fields: usize| {
        let fields = (0..fields).map(|n| json!({"name": format!("f{n}"), "type": ["null", "int"]}));
        let schema = json!({"type": "record", "name": "R", "fields": fields.collect::<Vec<_>>()});
        AvroSchema::parse(&[], &schema.to_string())
    };
    assert!(of(20_000).is_ok_and(|schema| schema.bytes < MAX_SCHEMA_BYTES));
    assert!(matches!(of(50_000), Err(SchemaError::TooLarge)));
    let named = json!({"type": "fixed", "name": "a".repeat(2_000), "size": 1});
    assert!(matches!(AvroSchema::parse(&[], &named.to_string()), Err(SchemaError::LongName)));
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
