//! A Kafka record as a test sees it: every byte of it, and where it was found.

use std::sync::Arc;

/// A header: its name and its value, which may be null.
pub type Header = (String, Option<Vec<u8>>);

/// One record, as read from a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since 1970, whoever set it.
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<Header>,
}

impl Record {
    /// The values of all headers of this name.
    pub fn headers_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.headers.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_deref())
    }

    /// The text of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(found, _)| found == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }
}

/// What tells a record apart from all others of a test.
#[derive(Debug, Clone, Copy)]
pub enum Identity {
    /// Its timestamp, counted from this one: works for records that have nothing else.
    TimestampFrom(i64),
    /// The digits at the start of its value: works where the broker sets the timestamp.
    Value,
}

impl Identity {
    /// The record's number; `None` if it has none, so it is not one of ours.
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
