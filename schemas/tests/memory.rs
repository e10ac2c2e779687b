//! The memory of parsed schemas, by the bytes that the process has. It is the only test in its process.

#![cfg(target_os = "linux")]

use std::fmt::Write as _;

use watermaster_schemas::Schema;

const COPIES: usize = 24;

fn avro(fields: usize) -> String {
    let field = |n| format!(r#"{{"name": "field_{n}", "type": ["null", {{"type": "array", "items": "string"}}]}}"#);
    let fields = (0..fields).map(field).collect::<Vec<_>>().join(",");
    format!(r#"{{"type": "record", "name": "R", "fields": [{fields}]}}"#)
}

fn protobuf(fields: usize) -> String {
    let mut text = "enum E {".to_owned();
    (0..fields / 4).for_each(|n| _ = write!(text, "VALUE_{n} = {n};"));
    text += "} message M { oneof o {";
    (0..fields / 2).for_each(|n| _ = write!(text, "string field_{n} = {};", n + 1));
    text += "}";
    (0..fields / 4).for_each(|n| _ = write!(text, "message N{n} {{ int64 id = 1; }} N{n} n{n} = {};", n + fields));
    text + "}"
}

/// Returns the memory of the process that is in use, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("the second number") * 4096
}

/// The cache is bounded by what its schemas take, which was up to sixteen times the length of their texts.
#[test]
fn a_schema_says_what_it_takes() {
    let mut kept = Vec::new();
    for (format, text) in [(Some("PROTOBUF"), protobuf(4_000)), (None, avro(4_000))] {
        let parse = || Schema::parse(format, &[], &text).expect("it is right");
        // The first one takes the memory that parsing needs in passing.
        let first = parse();
        let before = resident();
        let copies: Vec<Schema> = (0..COPIES).map(|_| parse()).collect();
        let (taken, said) = ((resident() - before) / COPIES, first.bytes());
        println!("{format:?}: {} bytes of text, {taken} bytes taken, {said} counted", text.len());
        assert!(2 * said > taken && said < 2 * taken, "{format:?}: {taken} bytes, and {said} counted");
        kept.extend(copies);
    }
}
