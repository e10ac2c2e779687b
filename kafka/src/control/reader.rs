//! A reader of the one partition of a control topic, or of a topic of rules.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use watermaster_settings as settings;

use super::log::SeatLogError;
use super::{ends_reading, named};
use crate::client::{self, KafkaError, LoggingContext};
use crate::{assign, ffi, login::Login};

/// The only partition of the topic.
pub(super) const PARTITION: i32 = 0;

/// A log without news for this long may be another one by now. The members of a group write every second.
const SILENCE: Duration = Duration::from_secs(3);
/// The longest wait for the answer whether it is.
const ID_TIMEOUT: Duration = Duration::from_millis(200);

const CONSUMER_DEFAULTS: &[(&str, &str)] = &[
    // A broker answers as soon as there is a record; without one, two questions a second are enough.
    ("fetch.wait.max.ms", "500"),
    ("queued.max.messages.kbytes", "4096"),
];

/// A reader that began at the first record.
pub(crate) struct LogReader {
    topic: String,
    consumer: BaseConsumer<LoggingContext>,
    login: Login,
    /// The partition, to ask for its position.
    partition: TopicPartitionList,
    position: u64,
    /// The id of the topic; empty where the brokers tell none, or have not told it yet.
    id: String,
    /// The time of the last record or end, or of the last look at the topic's id.
    heard: Instant,
}

/// A record, borrowed from its fetch.
pub(crate) struct LogRecord<'r> {
    pub topic: &'r str,
    pub offset: i64,
    pub key: &'r [u8],
    pub value: Option<&'r [u8]>,
}

/// The next thing that librdkafka has.
pub(crate) enum Next<R> {
    Record(R),
    /// The position is the end of the stable records.
    End,
    /// All answers of the brokers were read.
    Nothing,
}

impl LogReader {
    /// Begins to read, and returns the end that the log has now. Waits up to `timeout` for the brokers. Nothing joins
    /// `group` or commits to it.
    pub fn open(
        kafka: &settings::Kafka, group: &str, topic: &str, timeout: Duration,
    ) -> Result<(LogReader, u64), SeatLogError> {
        let login = Login::new(kafka);
        let consumer = client::consumer(&named(client::reader_config(kafka, group, "error", CONSUMER_DEFAULTS)))?;
        let failed = |source| SeatLogError::Ends { topic: topic.to_owned(), source };
        // The id is asked for first: that of a later topic would hide that this one is another. Without an answer, the
        // next silence tells it.
        let ask_id = || assign::topic_id(&consumer, topic, timeout.min(ID_TIMEOUT));
        let ask_ends = || consumer.fetch_watermarks(topic, PARTITION, timeout).map_err(failed);
        let (mut id, (mut low, mut end)) = (ask_id(), ask_ends()?);
        if id.is_err() {
            // To connect may take longer than an answer. Now there is a connection, and a group may never be silent.
            (id, (low, end)) = (ask_id(), ask_ends()?);
        }
        let id = id.unwrap_or_default();
        let mut partition = TopicPartitionList::new();
        // The offset and not Offset::Beginning: if records vanish meanwhile, reading fails.
        let beginning = partition.add_partition_offset(topic, PARTITION, Offset::Offset(low));
        beginning.and_then(|()| consumer.assign(&partition)).map_err(KafkaError::from)?;
        let (topic, heard) = (topic.to_owned(), Instant::now());
        Ok((LogReader { topic, consumer, login, partition, position: low as u64, id, heard }, end as u64))
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        self.login.renew(self.consumer.client());
    }

    /// Reads on; waits up to `timeout` for a record, which `decode` takes.
    ///
    /// # Errors
    /// Reading failed for good, or `decode` did.
    pub fn next<R>(
        &mut self, timeout: Duration, decode: impl FnOnce(&LogRecord<'_>) -> Result<R, SeatLogError>,
    ) -> Result<Next<R>, SeatLogError> {
        let topic = || self.topic.clone();
        loop {
            match self.consumer.poll(timeout) {
                None => return Ok(Next::Nothing),
                Some(Ok(message)) => {
                    self.heard = Instant::now();
                    let (key, value) = (message.key().unwrap_or_default(), message.payload());
                    let record = LogRecord { topic: &self.topic, offset: message.offset(), key, value };
                    return decode(&record).map(Next::Record);
                }
                Some(Err(ClientError::PartitionEOF(_))) => {
                    self.heard = Instant::now();
                    return Ok(Next::End);
                }
                Some(Err(error)) if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) => {
                    return Err(SeatLogError::Denied { topic: topic() });
                }
                Some(Err(source)) if ends_reading(&source) => {
                    return Err(SeatLogError::Read { topic: topic(), source });
                }
                // The error passes by itself.
                Some(Err(_)) => {}
            }
        }
    }

    /// Looks at the topic's id if there has been no news for some seconds. librdkafka does not notice a topic that was
    /// made anew if the former one had changed its leader: the leader epoch of the new one is lower, so it counts as
    /// out of date, and the old one is asked for records for ever.
    ///
    /// # Errors
    /// The topic is another one than at the beginning.
    pub fn check_topic(&mut self) -> Result<(), SeatLogError> {
        if self.heard.elapsed() < SILENCE {
            return Ok(());
        }
        let id = assign::topic_id(&self.consumer, &self.topic, ID_TIMEOUT);
        self.heard = Instant::now();
        match id {
            Ok(id) if self.id.is_empty() => {
                self.id = id;
                Ok(())
            }
            Ok(id) if !id.is_empty() && id != self.id => Err(SeatLogError::Replaced { topic: self.topic.clone() }),
            // Without an answer nothing is known.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns the offset below which everything was read.
    pub fn position(&mut self) -> u64 {
        let position = ffi::position(self.consumer.client(), &mut self.partition);
        self.position = position.map_or(self.position, |position| position.max(self.position));
        self.position
    }

    /// Asks for the end that the log has now.
    pub fn end(&self, timeout: Duration) -> Result<u64, SeatLogError> {
        let ends = self.consumer.fetch_watermarks(&self.topic, PARTITION, timeout);
        let (_, end) = ends.map_err(|source| SeatLogError::Ends { topic: self.topic.clone(), source })?;
        Ok(end as u64)
    }

    /// Returns the end that came with the last fetch, without asking a broker.
    pub fn cached_end(&self) -> Option<u64> {
        ffi::cached_high(self.consumer.client(), &self.topic, PARTITION).map(|high| high as u64)
    }
}
