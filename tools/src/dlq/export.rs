//! `watermaster dlq export`: dead letters as lines of JSON.

use std::io::{self, BufWriter, ErrorKind, Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use watermaster_kafka::dead_letters::Letter;

use super::origin::Origin;
use super::{READING_GROUP, TopicArgs, read_selected, select::SelectArgs};
use crate::cli::{Exit, Failure};

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-export.txt").trim_end())]
pub struct ExportArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// The form of keys and values
    #[arg(long, value_name = "FORM", value_enum, default_value = "base64")]
    payload: Encoding,
    #[command(flatten)]
    select: SelectArgs,
}

/// The form of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// key_base64 and value_base64
    Base64,
    /// key and value as text; those that are not UTF-8 as base64
    Text,
    /// their sizes only
    None,
}

pub(super) fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    let (kafka, service) = args.topic.load()?;
    let reader = args.topic.reader(&kafka, args.topic.dead_letter(&service)?, READING_GROUP)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    // Returns false to a reader that hung up (`| head`), which is no failure.
    let check = |written: io::Result<()>| match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::stopped(format_args!("the result can't be written: {error}"))),
    };
    let read = read_selected(reader, &args.select, |letter, origin| {
        check(writeln!(out, "{}", Value::Object(line(letter, origin, args.payload))))
    });
    check(out.flush()).and(read.map(|()| Exit::Done))
}

/// Returns a record as an object.
pub(super) fn line(letter: &Letter, origin: Option<&Origin>, encoding: Encoding) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("partition".to_owned(), letter.partition.into());
    line.insert("offset".to_owned(), letter.offset.into());
    line.insert("timestamp_ms".to_owned(), letter.timestamp_ms.into());
    if let Some(origin) = origin {
        let Origin { topic, partition, offset, .. } = origin;
        line.insert("origin".to_owned(), json!({ "topic": topic, "partition": partition, "offset": offset }));
        line.insert("reason".to_owned(), origin.reason.clone().into());
        line.insert("client".to_owned(), origin.client.clone().into());
        line.insert("attempt".to_owned(), origin.attempt.into());
        line.insert("stub".to_owned(), origin.is_stub.into());
    }
    insert(&mut line, "key", letter.key.as_deref(), encoding);
    insert(&mut line, "value", letter.value.as_deref(), encoding);
    let header = |(name, value): &(Vec<u8>, Option<Vec<u8>>)| {
        let mut header = Map::new();
        insert(&mut header, "name", Some(name), Encoding::Text);
        insert(&mut header, "value", value.as_deref(), Encoding::Text);
        Value::Object(header)
    };
    line.insert("headers".to_owned(), letter.headers.iter().map(header).collect());
    line
}

/// Inserts bytes under `name`, or under `name_base64` or `name_bytes`. Null stays null.
fn insert(line: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>, encoding: Encoding) {
    let (name, value) = match (bytes, encoding) {
        (None, _) => (name.to_owned(), Value::Null),
        (Some(bytes), Encoding::None) => (format!("{name}_bytes"), bytes.len().into()),
        (Some(bytes), encoding) => match std::str::from_utf8(bytes) {
            Ok(text) if encoding == Encoding::Text => (name.to_owned(), text.into()),
            _ => (format!("{name}_base64"), STANDARD.encode(bytes).into()),
        },
    };
    line.insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_in_every_form() {
        let letter = Letter {
            partition: 1,
            offset: 2,
            timestamp_ms: 3,
            key: Some(vec![0xff]),
            value: None,
            headers: vec![(b"a".to_vec(), Some(Vec::new())), (vec![0xfe], None)],
        };
        let text = |encoding| Value::Object(line(&letter, None, encoding)).to_string();
        let expected = concat!(
            r#"{"headers":[{"name":"a","value":""},{"name_base64":"/g==","value":null}],"#,
            r#""key_base64":"/w==","offset":2,"partition":1,"timestamp_ms":3,"value":null}"#
        );
        assert_eq!(text(Encoding::Base64), expected);
        assert_eq!(text(Encoding::Text), expected);
        assert_eq!(text(Encoding::None), expected.replace(r#""key_base64":"/w==""#, r#""key_bytes":1"#));
    }
}
