//! The control topic of version 0.2, which shared the capacity by another protocol. This file goes with version 0.4.

use std::time::{Duration, Instant};

use watermaster_core::delivery::{Failure, SendError};
use watermaster_core::group::former::FormerGroup;
use watermaster_core::units::Time;
use watermaster_settings as settings;

use super::log::SeatLogError;
use super::named;
use super::reader::{LogReader, LogRecord};
use crate::producer::Transactions;
use crate::{client, ffi::ProducedRecord};

/// The reads of one look: one before each of the two records that end the group, and one behind them.
const MAX_PASSES: u32 = 3;

/// A reader of the former version's control topic, which ends the group there once no member is live.
pub struct FormerLog {
    kafka: settings::Kafka,
    topic: String,
    reader: LogReader,
    group: FormerGroup,
    timeout: Duration,
}

impl FormerLog {
    /// Opens the log at its beginning. Waits up to `timeout` for the brokers, here and in each look. Nothing joins
    /// `group` or commits to it.
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, timeout: Duration,
    ) -> Result<FormerLog, SeatLogError> {
        let (reader, _) = LogReader::open(kafka, group, topic, timeout)?;
        let (kafka, topic, group) = (kafka.clone(), topic.to_owned(), FormerGroup::default());
        Ok(FormerLog { kafka, topic, reader, group, timeout })
    }

    /// Reads on to the log's end. Returns the instance ids of the live members; without any, the group has ended.
    ///
    /// # Errors
    /// The log can't be read to its end or written, or holds a record of another program.
    pub fn look(&mut self, now: impl Fn() -> Time) -> Result<Vec<String>, SeatLogError> {
        self.reader.renew_login();
        for _ in 0..MAX_PASSES {
            self.read(&now)?;
            let live = self.group.live(now());
            let Some((key, value)) = self.group.next_end().filter(|_| live.is_empty()) else { return Ok(live) };
            self.append(key, value)?;
        }
        Err(self.slow())
    }

    fn read(&mut self, now: impl Fn() -> Time) -> Result<(), SeatLogError> {
        let (end, deadline) = (self.reader.end(self.timeout)?, Instant::now() + self.timeout);
        while self.reader.position() < end {
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(self.slow());
            }
            // The clock is read after the record: a lease must not seem to have begun earlier.
            let group = &mut self.group;
            let decode = |record: &LogRecord<'_>| {
                let LogRecord { topic, offset, key, value } = *record;
                let taken = group.handle_record(now(), key, value);
                taken.map_err(|_| SeatLogError::NotFormer { topic: topic.to_owned(), offset })
            };
            self.reader.next(wait, decode)?;
        }
        Ok(())
    }

    fn slow(&self) -> SeatLogError {
        SeatLogError::Slow { topic: self.topic.clone() }
    }

    /// Appends a record. Reading on tells whether it has arrived.
    fn append(&self, key: &str, value: &[u8]) -> Result<(), SeatLogError> {
        // Without `enable.idempotence`, which takes half a second: a second copy of the record does no harm.
        let forced = [("acks", "all"), ("allow.auto.create.topics", "false")];
        let config = named(client::config(&self.kafka, &[], &forced));
        let producer = Transactions::new(&config, self.timeout)?;
        let handle = producer.topic(&self.topic)?;
        let (key, value) = (Some(key.as_bytes()), Some(value));
        let record = ProducedRecord { key, value, timestamp_ms: 0, headers: None, tag: 0 };
        let sent = producer.send(&handle, record);
        producer.flush(self.timeout);
        let is_denied = matches!(sent, Err(SendError::Denied(_)))
            || producer.take_failures().iter().any(|(_, failure)| matches!(failure, Failure::Denied(_)));
        if is_denied { Err(SeatLogError::Denied { topic: self.topic.clone() }) } else { Ok(()) }
    }
}
