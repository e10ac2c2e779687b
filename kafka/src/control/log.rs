//! A reader of the control log, and the openings of seats.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError as ClientError;
use watermaster_core::delivery;
use watermaster_core::group::control::{ControlLog, Event, LogCall, OpeningNumber};
use watermaster_core::group::wire::{self, WireError};
use watermaster_settings as settings;

use super::MAX_MESSAGE_BYTES;
use super::opening::{self, Opener, Order};
use super::reader::{LogReader, LogRecord, Next};
use crate::client::KafkaError;

/// The longest time between two looks after which an end that was seen before the first of them still counts. It is far
/// below the time for which compaction leaves new records alone.
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// The longest wait for the end of the log after a longer time.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// A failure of the control log.
#[derive(Debug, thiserror::Error)]
pub enum SeatLogError {
    #[error(transparent)]
    Client(#[from] KafkaError),
    #[error("the ends of {topic} are not known: {source}")]
    Ends { topic: String, source: ClientError },
    /// Reading failed for good: the log was truncated, deleted, or may not be read.
    #[error("{topic} can't be read: {source}")]
    Read { topic: String, source: ClientError },
    #[error("{topic} is not the topic that it was: it was deleted and made anew")]
    Replaced { topic: String },
    #[error("not allowed to use the topic {topic}: grant READ, WRITE and DESCRIBE on it")]
    Denied { topic: String },
    #[error("{topic} is not read to its end in time")]
    Slow { topic: String },
    #[error(
        "{topic}, offset {offset}: the record is not one of version 0.2; delete the topic once all instances of that \
         version are stopped"
    )]
    NotFormer { topic: String, offset: i64 },
    #[error("{topic}, offset {offset}: {source}")]
    Record { topic: String, offset: i64, source: WireError },
    /// The topic refuses a record. It must not be sent again unchanged.
    #[error("{topic} refuses a record ({source}); its max.message.bytes has to be {MAX_MESSAGE_BYTES} or more")]
    Refused { topic: String, source: delivery::ClientError },
    #[error(
        "can't open a seat: {source}; all instances need WRITE and DESCRIBE on the transactional ids with the prefix \
         {prefix}, or scope = \"instance\""
    )]
    Opening { prefix: String, source: delivery::ClientError },
}

impl SeatLogError {
    /// Returns whether it helps to open the log again: brokers come and go. A record that this program can't read stays
    /// in the log.
    pub fn passes_by(&self) -> bool {
        use SeatLogError::{Ends, Read, Refused, Replaced, Slow};
        matches!(self, Ends { .. } | Read { .. } | Replaced { .. } | Slow { .. } | Refused { .. })
    }
}

/// The outcome of a call in an opening's thread.
pub(super) type Report = Result<Event, SeatLogError>;

/// Returns a record as an event.
fn event(record: &LogRecord<'_>) -> Result<Event, SeatLogError> {
    let decoded = wire::decode(record.key, record.value);
    let LogRecord { topic, offset, .. } = *record;
    let decoded = decoded.map_err(|source| SeatLogError::Record { topic: topic.to_owned(), offset, source })?;
    Ok(Event::Record { offset: offset as u64, record: decoded })
}

/// The control log on a topic of Kafka.
pub struct SeatLog {
    opener: Arc<Opener>,
    /// The openings that are not over, each with the seat and the way to its thread, which ends without it.
    openings: HashMap<OpeningNumber, (Arc<str>, mpsc::Sender<Order>)>,
    reports: mpsc::Receiver<Report>,
    reader: LogReader,
    /// An end that the log had a short time ago; `None` if it has to be asked for.
    seen: Option<u64>,
    /// The last end that `poll` returned.
    told: Option<u64>,
    /// The time of the last look.
    looked: Instant,
}

impl SeatLog {
    /// Opens the log at its beginning. Waits up to `timeout` for the brokers. Nothing joins `group` or commits to it.
    /// librdkafka looks for its coordinator all the time, so it has to be one that this program may describe.
    ///
    /// A seat's transactional id is `id_prefix` with the seat's name.
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, id_prefix: &str, timeout: Duration,
    ) -> Result<SeatLog, SeatLogError> {
        let (reader, end) = LogReader::open(kafka, group, topic, timeout)?;
        let (reporter, reports) = mpsc::channel();
        let opener = Opener { kafka: kafka.clone(), topic: topic.to_owned(), prefix: id_prefix.to_owned(), reporter };
        Ok(SeatLog {
            opener: Arc::new(opener),
            openings: HashMap::new(),
            reports,
            reader,
            seen: Some(end),
            told: None,
            looked: Instant::now(),
        })
    }

    /// Takes a user and a password that were read again. (Openings take them by themselves.)
    pub fn renew_login(&self) {
        self.reader.renew_login();
    }

    /// Returns the next outcome of an opening's thread.
    fn report(&mut self) -> Option<Report> {
        let report = self.reports.try_recv().ok()?;
        if let Ok(Event::Failed { attempt } | Event::Written { attempt, committed: false }) = report {
            self.openings.remove(&attempt);
        }
        Some(report)
    }

    /// Returns the position if it is an end of the log, and was not returned before.
    ///
    /// Between two ends, the last records of the keys do not fit together: of a compacted log, later ones are missing
    /// that had followed an earlier one. librdkafka tells the end of a partition with an answer that holds nothing, so
    /// on a busy log there may be none for minutes. But no record behind an end that was seen a moment ago has been
    /// compacted yet. So once the position has passed such an end, it is as good as one itself.
    fn end(&mut self, is_end: bool) -> Option<Event> {
        let position = self.reader.position();
        if !is_end {
            self.seen = self.seen.or_else(|| self.reader.end(END_TIMEOUT).ok());
            self.seen.filter(|seen| *seen <= position)?;
            self.seen = self.reader.cached_end().or(self.seen);
        }
        let is_new = self.told.replace(position) != Some(position);
        is_new.then_some(Event::End(position))
    }
}

impl ControlLog for SeatLog {
    type Error = SeatLogError;

    fn poll(&mut self) -> Result<Option<Event>, SeatLogError> {
        if let Some(report) = self.report() {
            return report.map(Some);
        }
        if std::mem::replace(&mut self.looked, Instant::now()).elapsed() > MAX_LOOK_INTERVAL {
            self.seen = None;
        }
        loop {
            match self.reader.next(Duration::ZERO, event)? {
                Next::Record(record) => return Ok(Some(record)),
                Next::Nothing => {
                    self.reader.check_topic()?;
                    return Ok(self.end(false));
                }
                Next::End => {
                    if let Some(end) = self.end(true) {
                        return Ok(Some(end));
                    }
                }
            }
        }
    }

    fn call(&mut self, call: LogCall) {
        match call {
            LogCall::Open { seat, attempt } => {
                self.openings.retain(|_, (opened, _)| *opened != seat);
                match opening::start(&self.opener, &seat, attempt) {
                    Ok(thread) => drop(self.openings.insert(attempt, (seat, thread))),
                    Err(error) => {
                        tracing::warn!("control log: no thread to open seat {seat:?}: {error}");
                        self.opener.report(Ok(Event::Failed { attempt }));
                    }
                }
            }
            LogCall::Write { attempt, records } => {
                let order: Order = records.iter().map(wire::encode).collect();
                let sent = self.openings.get(&attempt).is_some_and(|(_, thread)| thread.send(order).is_ok());
                if !sent {
                    self.opener.report(Ok(Event::Written { attempt, committed: false }));
                }
            }
            LogCall::Close { attempt } => drop(self.openings.remove(&attempt)),
        }
    }
}
