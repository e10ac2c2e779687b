use proptest::prelude::*;

use super::*;

const LOAN: &str = r#"
/*/ message Skipped { } with "everything" else in a comment. */
syntax = "proto3";
package bank.loans;
import "google/protobuf/wrappers.proto";
import public "bank/parties.proto";
option java_package = "com.example;{";
option (custom.file) = { list: [1, 2], text: 'a\'b"' };
// message Commented { }
enum Status { option allow_alias = true; UNKNOWN = 0; OPEN = 1; OPENED = 1 [deprecated = true]; LOST = -1; reserved 7; }
message Loan {
  reserved 9, 11 to 15; reserved "old";
  option (custom.of_message).level = 0x1F;
  message Client {
    string id = 1 [json_name = "theId", (custom.field) = { a: "b;" }];
    int32 number = 2; int64 long = 3; uint32 count = 4; uint64 big = 5; sint32 delta = 6; sint64 deltas = 7;
    fixed32 four = 8; fixed64 eight = 9; sfixed32 signed_four = 10; sfixed64 signed_eight = 0x0B;
    bool urgent = 12; bytes raw = 13; double rate = 14; .bank.loans.Status status = 15;
    message Deep { string id = 1; }
    Deep deep = 16;
    .bank.parties.Party party = 17;
    bank.missing.Thing thing = 18;
    google.protobuf.StringValue wrapped = 19;
    oneof contact { option (custom.oneof) = 1; string mail = 20; string phone = 21; }
    optional string maybe = 22;
  }
  map<string, Client> by_name = 1;
  Client client = 2;
  repeated Client others = 3;
  enum Status { INNER = 0; }
  Status status = 4;
}
service Loans { rpc Get (Loan) returns (stream Loan) { option deprecated = true; } }
message Second { loans.Loan.Client client = 1; }
;
"#;
const PARTY: &str = "package bank.parties; message Party { string id = 1; } extend Party { string extra = 100; }";

/// Writes values as Protobuf does, independent of the code under test.
#[derive(Default, Clone)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut number: u64) -> Message {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn number(self, field: u64, number: u64) -> Message {
        self.varint(field << 3).varint(number)
    }

    fn raw(mut self, field: u64, form: u64, bytes: &[u8]) -> Message {
        self = self.varint((field << 3) | form);
        self.0.extend(bytes);
        self
    }

    fn counted(mut self, field: u64, bytes: &[u8]) -> Message {
        self = self.varint((field << 3) | 2).varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }
}

fn schema() -> ProtoSchema {
    ProtoSchema::parse(&[PARTY.to_owned()], LOAN).unwrap()
}

/// Finds a field in a value of the message at these indexes.
fn find_in(indexes: &[u8], at: &str, message: &Message) -> Result<Option<String>, AnonymousReason> {
    let path: Vec<String> = at.split('/').skip(1).map(str::to_owned).collect();
    let body = [indexes, &message.0].concat();
    schema().find(&path, None, &body).map(|found| found.map(Cow::into_owned))
}

/// Finds a field of `Loan.client`.
fn find(at: &str, client: &Message) -> Result<Option<String>, AnonymousReason> {
    let loan = Message::default().counted(1, b"\x0a\x01x").number(4, 0).counted(2, &client.0).counted(3, b"");
    find_in(&[0], &format!("/client{at}"), &loan)
}

fn id(text: &str) -> Result<Option<String>, AnonymousReason> {
    Ok(Some(text.to_owned()))
}

#[test]
fn fields_of_every_type_are_read() {
    let minus = (-7_i64) as u64;
    let client = Message::default()
        .counted(1, "acmé".as_bytes())
        .number(2, minus)
        .number(3, minus)
        .number(4, u64::from(u32::MAX))
        .number(5, u64::MAX)
        .number(6, 13)
        .number(7, 13)
        .raw(8, 5, &[1, 0, 0, 0x80])
        .raw(9, 1, &[1, 0, 0, 0, 0, 0, 0, 0x80])
        .raw(10, 5, &[0xf9, 0xff, 0xff, 0xff])
        .raw(11, 1, &[0xf9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
        .number(12, 1)
        .number(15, 1)
        .counted(16, &Message::default().counted(1, b"deep").0)
        .counted(17, &Message::default().counted(1, b"party").0)
        .counted(18, b"?")
        .counted(19, &Message::default().counted(1, b"wrapped").0)
        .counted(20, b"mail")
        .counted(22, b"maybe");
    for (at, expected) in [
        ("/id", "acmé"),
        ("/number", "-7"),
        ("/long", "-7"),
        ("/count", "4294967295"),
        ("/big", "18446744073709551615"),
        ("/delta", "-7"),
        ("/deltas", "-7"),
        ("/four", "2147483649"),
        ("/eight", "9223372036854775809"),
        ("/signed_four", "-7"),
        ("/signed_eight", "-7"),
        ("/status", "OPEN"),
        ("/deep/id", "deep"),
        ("/party/id", "party"),
        ("/wrapped/value", "wrapped"),
        ("/mail", "mail"),
        ("/maybe", "maybe"),
    ] {
        assert_eq!(find(at, &client), id(expected), "{at}");
    }
    for wrong in ["/urgent", "/thing", "/deep", "", "/party"] {
        assert_eq!(find(wrong, &client), Err(AnonymousReason::NotAField), "{wrong:?}");
    }
    for absent in ["/raw", "/nothing", "/id/x", "/phone", "/thing/x", "/rate"] {
        assert_eq!(find(absent, &client), Ok(None), "{absent}");
    }
    assert_eq!(find("/status", &Message::default().number(15, minus)), Err(AnonymousReason::NotAField));
    assert_eq!(find("/status", &Message::default().number(15, u64::MAX)), id("LOST"));
    assert_eq!(find("/id", &Message::default().counted(1, b"\xff")), Err(AnonymousReason::NotUtf8));
    assert_eq!(find_in(&[0], "/others/id", &Message::default().counted(3, b"")), Ok(None));
    assert_eq!(find_in(&[0], "/status", &Message::default().number(4, 0)), id("INNER"), "the innermost enum");
}

#[test]
fn the_indexes_lead_to_the_message() {
    let client = Message::default().counted(1, b"acme");
    assert_eq!(find_in(&[2, 2], "/client/id", &Message::default().counted(1, &client.0)), id("acme"), "Second");
    assert_eq!(find_in(&[4, 0, 0], "/id", &client), id("acme"), "Loan.Client");
    assert_eq!(find_in(&[6, 0, 0, 0], "/id", &client), id("acme"), "Loan.Client.Deep");
    assert_eq!(find_in(&[2, 0], "/client/id", &Message::default().counted(2, &client.0)), id("acme"), "Loan");
    for wrong in [&[][..], &[2], &[2, 4], &[1], &[2, 1], &[4, 0, 2], &[8, 0, 0, 0, 0], &[0xff; 12], &[0x80, 1, 0]] {
        assert_eq!(find_in(wrong, "/id", &Message::default()), Err(BROKEN), "{wrong:?}");
    }
}

/// Readers merge or take the last, and other members of a `oneof` unset the first one.
#[test]
fn a_field_that_readers_could_read_differently_is_refused() {
    let client = Message::default().counted(1, b"a");
    let repeated = Err(AnonymousReason::RepeatedField);
    assert_eq!(find("/id", &client.clone().counted(1, b"a")), repeated);
    let twice = Message::default().counted(2, &client.0).counted(2, b"");
    assert_eq!(find_in(&[0], "/client/id", &twice), repeated);
    for (first, second) in [(20, 21), (21, 20)] {
        let both = Message::default().counted(first, b"a").counted(second, b"b");
        assert_eq!(find("/mail", &both), repeated);
    }
    assert_eq!(find("/maybe", &Message::default().counted(22, b"a").counted(20, b"b")), id("a"));
    // A number in place of a text is an unknown field.
    assert_eq!(find("/id", &client.clone().number(1, 5)), id("a"));
    assert_eq!(find("/id", &Message::default().number(1, 5)), Ok(None));
}

#[test]
fn a_value_that_does_not_fit_is_broken() {
    let client = Message::default().counted(1, b"acme").counted(20, b"mail");
    let loan = Message::default().counted(2, &client.0);
    for length in 1..loan.0.len() {
        let cut = Message(loan.0[..length].to_vec());
        assert_eq!(find_in(&[0], "/client/id", &cut), Err(BROKEN), "{length} bytes");
    }
    for wrong in [&[0x00, 0x00][..], &[0x06], &[0x07], &[0x0c], &[0xff; 11], &[0x0b]] {
        assert_eq!(find_in(&[0], "/client/id", &Message(wrong.to_vec())), Err(BROKEN), "{wrong:?}");
    }
}

#[test]
fn groups_are_skipped_however_they_are_nested() {
    let group = |inner: &[u8]| Message([&[0x2b][..], inner, &[0x2c]].concat());
    let with = |group: Message| Message([group.0, Message::default().counted(1, b"acme").0].concat());
    assert_eq!(find("/id", &with(group(&Message::default().counted(1, b"no").number(7, 7).0))), id("acme"));
    assert_eq!(find("/id", &with(group(&group(b"").0))), id("acme"));
    assert_eq!(find("/id", &with(group(&[0x34]))), Err(BROKEN), "another group ends");
    assert_eq!(find("/id", &Message(vec![0x2b; 1_000_000])), Err(BROKEN), "too deep");
}

#[test]
fn texts_of_proto2_and_of_editions_are_read() {
    let old = "message A { required string id = 1 [default = \"x\"]; extensions 100 to max; \
               repeated group Part = 3 { optional string id = 1; } \
               optional group Other = 4 {} extend A { optional int32 b = 100; } \
               optional B b = 5; message B { optional string c = 1; } }";
    let new = "edition = \"2024\"; export message A { string id = 1 [features.field_presence = IMPLICIT]; \
               local message B { string c = 1; } B b = 5; }";
    for text in [old, new] {
        let schema = ProtoSchema::parse(&[], text).unwrap();
        let value = [&[0][..], &Message::default().counted(5, b"\x0a\x01d").counted(1, b"acme").0].concat();
        let find = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
            schema.find(&path, None, &value).map(|found| found.map(Cow::into_owned))
        };
        assert_eq!((find(&["id"]), find(&["b", "c"])), (id("acme"), id("d")), "{text}");
    }
}

#[test]
fn a_text_that_is_no_file_is_refused() {
    let deep = "message A { ".repeat(40) + &"}".repeat(40);
    for wrong in [
        "message", "message A", "message A {", "message A { string id 1; }", "message A { string id = x; }", "}", "\"",
        "/*", "/*/", "enum A { B = 1", "message A { oneof b { string c = 1;", "option a", "message A { map<a", &deep,
    ] {
        assert!(ProtoSchema::parse(&[], wrong).is_err(), "{wrong}");
    }
    assert!(ProtoSchema::parse(&[], "").is_ok(), "a file may be empty");
}

/// Each field of a value was compared with each field of its message when the path led into a `oneof`: a mebibyte took
/// 36 s with 60 000 members, and the record took the program down, one owner after the other.
#[test]
fn the_members_of_a_oneof_do_not_multiply_with_the_fields_of_a_value() {
    let schema_of = |members: u32| {
        let members = (0..members).map(|n| format!("string f{n} = {};", 20_000 + n)).collect::<String>();
        ProtoSchema::parse(&[], &format!("message A {{ oneof o {{ string id = 1; {members} }} }}")).unwrap()
    };
    let strangers = (0..5_000).fold(Message::default(), |message, n| message.number(90_000 + n, 0));
    let value = [&[0][..], &strangers.counted(1, b"acme").0].concat();
    let path = ["id".to_owned()];
    let fastest = |schema: &ProtoSchema| {
        let took = (0..5).map(|_| {
            let began = std::time::Instant::now();
            assert_eq!(schema.find(&path, None, &value), Ok(Some("acme".into())));
            began.elapsed()
        });
        took.min().unwrap()
    };
    let (few, many) = (fastest(&schema_of(20)), fastest(&schema_of(60_000)));
    assert!(many < 20 * few, "{few:?} with 20 members, {many:?} with 60 000");
}

#[test]
fn a_schema_that_takes_too_much_memory_is_refused() {
    let refused = |text: &str| ProtoSchema::parse(&[], text).unwrap_err();
    let fields = (1..100_000).map(|n| format!("string f{n} = {n};")).collect::<String>();
    assert!(matches!(refused(&format!("message A {{ {fields} }}")), SchemaError::TooLarge));
    // Each message keeps the name of its package.
    let packaged = format!("package {}; {}", "p".repeat(1_000), "message A {} ".repeat(2_000));
    assert!(matches!(refused(&packaged), SchemaError::TooLarge));
    let named = format!("package {}; message A {{}}", "p.".repeat(1_000));
    assert!(matches!(refused(&named), SchemaError::LongName));
}

proptest! {
    #[test]
    fn any_bytes_end_without_a_panic(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..32], 0..200), at in "(/[a-z]{0,6}){0,4}",
    ) {
        for at in [at.as_str(), "/client/id", "/client/deep/id", "/status"] {
            _ = find_in(&bytes, at, &Message::default());
            _ = find_in(&[0], at, &Message(bytes.clone()));
        }
    }

    #[test]
    fn any_text_is_a_file_or_none(
        text in "(message |enum |oneof |map<|A|[{}();=<>\\[\\]'\"]| |1|string |//|/\\*|\\PC){0,30}",
    ) {
        _ = ProtoSchema::parse(&[], &text);
    }

    #[test]
    fn any_client_is_found_among_any_fields(
        before in prop::collection::vec((30_u64..1_000, any::<u64>()), 0..5), client in "\\PC{1,40}",
        number in any::<i32>(),
    ) {
        let message = before.iter().fold(Message::default(), |message, (field, value)| message.number(*field, *value));
        let message = message.counted(1, client.as_bytes()).number(2, i64::from(number) as u64);
        prop_assert_eq!(find("/id", &message), id(&client));
        prop_assert_eq!(find("/number", &message), id(&number.to_string()));
    }
}
