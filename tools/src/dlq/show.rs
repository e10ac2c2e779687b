//! `watermaster dlq show`: prints one dead letter.

use std::fmt::Write as _;
use std::time::SystemTime;

use clap::Args;
use watermaster_api::rfc3339;
use watermaster_kafka::dead_letters::{Letter, Originals};
use watermaster_settings::Kafka;

use super::export::{self, Encoding};
use super::origin::{Origin, integer};
use super::{CONNECT_TIMEOUT, READING_GROUP, TopicArgs, ls::age, read_selected, select::SelectArgs};
use crate::cli::{Exit, Failure, OutputArg};
use crate::format::printable;

/// Arguments of the command.
#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/dlq-show.txt").trim_end())]
pub struct ShowArgs {
    #[command(flatten)]
    topic: TopicArgs,
    /// Print key and value, too: they may be personal data
    #[arg(long)]
    payload: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    select: SelectArgs,
}

pub(super) fn run(args: &ShowArgs) -> Result<Exit, Failure> {
    let (kafka, service) = args.topic.load()?;
    let reader = args.topic.reader(&kafka, args.topic.dead_letter(&service)?, READING_GROUP)?;
    let topic = reader.topic().to_owned();
    let mut found = None;
    read_selected(reader, &args.select, |letter, origin| {
        found = Some((letter.clone(), origin.cloned()));
        Ok(false)
    })?;
    let Some((letter, origin)) = found else {
        return Err(Failure::usage(format_args!("{topic}: no dead letter is selected")));
    };
    let original = match &origin {
        Some(origin) if origin.is_stub => Some(original(&kafka, origin)?),
        _ => None,
    };
    let (origin, original) = (origin.as_ref(), original.as_ref().map(Option::as_ref));
    let encoding = if args.payload { Encoding::Text } else { Encoding::None };
    let mut shown = export::line(&letter, origin, encoding);
    let whole = original.flatten().map(|original| export::line(original, None, encoding));
    shown.insert("original".to_owned(), whole.into());
    args.output.show(&shown, || text(&topic, &letter, origin, original, args.payload));
    Ok(Exit::Done)
}

/// Reads the record for which a stub stands; `None` if its topic does not keep it any more.
fn original(kafka: &Kafka, origin: &Origin) -> Result<Option<Letter>, Failure> {
    let originals = Originals::new(kafka, READING_GROUP)?;
    Ok(originals.read(&origin.topic, origin.partition, origin.offset, CONNECT_TIMEOUT)?)
}

fn text(
    topic: &str, letter: &Letter, origin: Option<&Origin>, original: Option<Option<&Letter>>, payload: bool,
) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &str| _ = writeln!(text, "{name:<12}{value}");
    row("dead letter", &format!("{topic}, partition {}, offset {}", letter.partition, letter.offset));
    if let Some(origin) = origin {
        let source = printable(&origin.topic);
        row("origin", &format!("{source}, partition {}, offset {}", origin.partition, origin.offset));
        row("reason", &printable(&origin.reason));
        let client: &str = if origin.client.is_empty() { "-" } else { &origin.client };
        row("client", &printable(client));
        row("attempt", &origin.attempt.to_string());
        row("written by", origin.writer.into());
    } else {
        row("origin", "no header names one");
    }
    if letter.timestamp_ms >= 0 {
        let (time, age) = (rfc3339(letter.timestamp_ms as u64), age(SystemTime::now(), letter.timestamp_ms));
        row("time", &format!("{time} ({age})"));
    }
    match original {
        None => {}
        Some(None) => row("original", "this is a stub, and the source topic does not keep its original any more"),
        Some(Some(_)) => row("original", "this is a stub; key, value and headers below are those of its original"),
    }
    let record = original.flatten().unwrap_or(letter);
    row("key", &bytes(record.key.as_deref(), payload));
    row("value", &bytes(record.value.as_deref(), payload));
    for (name, value) in
        record.headers.iter().chain(original.flatten().map(|_| &letter.headers[..]).unwrap_or_default())
    {
        let value = spring_number(name, value.as_deref()).unwrap_or_else(|| bytes(value.as_deref(), true));
        row("header", &format!("{} = {value}", printable(&String::from_utf8_lossy(name))));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Writes a number of Spring's, which is a big-endian int or long; a time as ISO 8601.
fn spring_number(name: &[u8], value: Option<&[u8]>) -> Option<String> {
    let name = name.strip_prefix(b"kafka_dlt-original-")?;
    let number = integer(value?)?;
    match name {
        b"partition" | b"offset" => Some(number.to_string()),
        b"timestamp" => Some(u64::try_from(number).map_or_else(|_| number.to_string(), rfc3339)),
        _ => None,
    }
}

/// Writes bytes as text if they are text, else their number alone.
fn bytes(bytes: Option<&[u8]>, shown: bool) -> String {
    match bytes.map(|bytes| (bytes.len(), std::str::from_utf8(bytes))) {
        None => "null".to_owned(),
        Some((_, Ok(text))) if shown => printable(text).into_owned(),
        Some((length, Err(_))) if shown => format!("{length} bytes that are no text; `dlq export` writes them"),
        Some((length, _)) => format!("{length} bytes (--payload shows them)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::origin::Writer;
    use super::*;

    /// A sender chooses the client id of its records.
    #[test]
    fn an_origin_cannot_control_the_terminal() {
        let (key, value, headers) = (None, None, Vec::new());
        let letter = Letter { partition: 0, offset: 1, timestamp_ms: -1, key, value, headers };
        let origin = Origin {
            writer: Writer::Connect,
            topic: "lo\u{1b}ans".to_owned(),
            partition: 2,
            offset: 3,
            timestamp_ms: None,
            reason: "expired".to_owned(),
            client: "a\u{1b}[2Jb".to_owned(),
            attempt: 1,
            is_stub: false,
        };
        let shown = text("dead", &letter, Some(&origin), None, false);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        for row in ["lo·ans, partition 2, offset 3\n", "client      a·[2Jb\n"] {
            assert!(shown.contains(row), "{shown:?}");
        }
    }

    #[test]
    fn numbers_of_spring_are_shown_as_numbers_and_times() {
        let shown = |name: &str, value: &[u8]| spring_number(format!("kafka_dlt-{name}").as_bytes(), Some(value));
        assert_eq!(shown("original-partition", &[0, 0, 0, 7]).as_deref(), Some("7"));
        assert_eq!(shown("original-offset", &[0, 0, 0, 0, 0, 1, 0, 2]).as_deref(), Some("65538"));
        let time = 1_700_000_000_123_i64.to_be_bytes();
        assert_eq!(shown("original-timestamp", &time).as_deref(), Some("2023-11-14T22:13:20.123Z"));
        assert_eq!(shown("original-timestamp", &(-1_i64).to_be_bytes()).as_deref(), Some("-1"));
        for (name, value) in
            [("original-topic", &b"loan"[..]), ("original-partition", b"7"), ("exception-fqcn", b"java")]
        {
            assert_eq!(shown(name, value), None, "{name}");
        }
    }
}
