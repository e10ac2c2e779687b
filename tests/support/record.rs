//! A Kafka record as a test reads it: all its bytes and its position.

use std::sync::Arc;

/// A header: a name and a value, which may be null.
pub type Header = (String, Option<Vec<u8>>);

/// One record, as read from a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since 1970, set by the producer or by the broker.
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<Header>,
}

impl Record {
    /// Returns the values of all headers of this name.
    pub fn headers_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_deref())
    }

    /// Returns the text of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// The part of a record that identifies it within a test.
#[derive(Debug, Clone, Copy)]
pub enum Identity {
    /// The timestamp, counted from this one: also for records that have no other content.
    TimestampFrom(i64),
    /// The digits at the start of the value: also for topics in which the broker sets the timestamps.
    Value,
}

impl Identity {
    /// Returns the record's number; `None` if it has none and therefore is not a record of the test.
    pub fn of(self, record: &Record) -> Option<u64> {
        match self {
            Identity::TimestampFrom(start) => u64::try_from(record.timestamp - start).ok(),
            Identity::Value => {
                let value = record.value.as_deref()?;
                let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
                std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
            }
        }
    }
}
