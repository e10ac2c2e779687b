//! The log of the changes of rules (`watermaster_core::rules::log`) on one partition of a compacted topic.
//!
//! A thread that owns a [`RulesTopic`] calls `poll` again and again, which reads the topic and sends what the log says.
//! The producer is made at the first change, and dropped after an idle minute. It is idempotent, because a record that
//! came twice could make instances disagree. No attempt is ever sent by two producers.

use std::time::{Duration, Instant};
use std::{collections::HashMap, thread};

use rdkafka::error::RDKafkaErrorCode as Code;
use watermaster_core::delivery::{Failure, SendError};
use watermaster_core::rules::log::{LogAction, RulesLog, WINDOW, WriteRefusal, WriteRequest, WriteTicket};
use watermaster_core::units::Time;
use watermaster_settings as settings;

use crate::client::{self, KafkaError};
use crate::control::{LogReader, LogRecord, Next, SeatLogError, named};
use crate::ffi::{ProducedRecord, TopicHandle};
use crate::login::Login;
use crate::producer::Transactions;

/// The time between two questions for the end of the log. They tell that the brokers answer, and that no records are
/// gone.
const END_INTERVAL: Duration = Duration::from_secs(10);
/// The time after which a producer without a change is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time that librdkafka tries to send a change; its author is told then that the outcome is unknown.
const MESSAGE_TIMEOUT: &str = "5000";
/// Properties of the user that are for the data's producer.
const LEFT_OUT: &[&str] = &["delivery.timeout.ms", "queue.buffering.max.ms", "batch.num.messages"];
const FORCED: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // A record that was given up must not be followed by others: it could still arrive behind them.
    ("enable.gapless.guarantee", "true"),
    ("message.timeout.ms", MESSAGE_TIMEOUT),
    ("linger.ms", "0"),
    ("allow.auto.create.topics", "false"),
    ("delivery.report.only.error", "true"),
];

/// A producer, and the changes that it took. The topic is dropped before its client.
struct ChangeWriter {
    topic: TopicHandle,
    producer: Transactions,
    login: Login,
    used: Instant,
    tickets: HashMap<usize, WriteTicket>,
}

/// The log of rules on a topic.
pub struct RulesTopic {
    kafka: settings::Kafka,
    group: String,
    topic: String,
    timeout: Duration,
    log: RulesLog,
    reader: Option<LogReader>,
    /// The log waits for its end.
    is_end_asked: bool,
    /// The time of the last answer about the end.
    heard: Instant,
    writer: Option<ChangeWriter>,
    /// The number of the last record that was sent.
    sent: usize,
}

impl RulesTopic {
    /// A log that knows nothing yet. No broker is contacted. `seed` is a random number. Nothing joins `group`, which
    /// has to be one that this program may describe. Each question waits up to `timeout`.
    pub fn new(kafka: &settings::Kafka, group: &str, topic: &str, seed: u64, timeout: Duration) -> RulesTopic {
        RulesTopic {
            kafka: kafka.clone(),
            group: group.to_owned(),
            topic: topic.to_owned(),
            timeout,
            log: RulesLog::new(WINDOW, seed),
            reader: None,
            is_end_asked: false,
            heard: Instant::now(),
            writer: None,
            sent: 0,
        }
    }

    /// Returns what the log knows.
    pub fn log(&self) -> &RulesLog {
        &self.log
    }

    /// The time since the brokers last told the end of the log: rules may be older than that.
    pub fn age(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        if let Some(reader) = &self.reader {
            reader.renew_login();
        }
        if let Some(ChangeWriter { producer, login, .. }) = &self.writer {
            producer.renew(login);
        }
    }

    /// Drops the clients and makes others, which take other certificates. Changes on their way have an unknown outcome.
    pub fn reconnect(&mut self) {
        (self.reader, self.writer) = (None, None);
        self.log.read_again();
    }

    /// Asks for a change. `poll` returns its outcome.
    ///
    /// # Errors
    /// The change is refused at once.
    pub fn write(&mut self, now: Time, request: WriteRequest) -> Result<WriteTicket, WriteRefusal> {
        self.log.write(now, request)
    }

    /// Cleans the log, once a second: see [`RulesLog::clean`].
    pub fn clean(&mut self, now: Time, is_first: bool, most: usize) {
        self.log.clean(now, is_first, most);
    }

    /// Goes on with what a log has that lost records.
    pub fn accept_loss(&mut self) {
        self.log.accept_loss();
    }

    /// Reads and sends until there is news, which it returns, or until nothing more is to be done and nothing arrives
    /// for `wait`. News are actions that tell the owner something; this carries out the others.
    ///
    /// # Errors
    /// The brokers do not answer, or they refuse. Rules stay in force. The next call tries again.
    pub fn poll(&mut self, now: Time, wait: Duration) -> Result<Option<LogAction>, SeatLogError> {
        self.log.handle_timeout(now);
        self.take_failures();
        loop {
            while let Some(action) = self.log.poll_action() {
                match action {
                    LogAction::Begin(cause) => {
                        tracing::debug!("{}: reading the rules from the beginning: {cause:?}", self.topic);
                        (self.reader, self.is_end_asked) = (None, false);
                    }
                    LogAction::AskEnd => self.is_end_asked = true,
                    LogAction::Send { key, value, ticket } => self.send(&key, value.as_deref(), ticket),
                    news => {
                        self.forget(&news);
                        return Ok(Some(news));
                    }
                }
            }
            if !self.read(now, wait)? {
                return Ok(None);
            }
        }
    }

    /// Reads what there is. Returns whether there may be more.
    fn read(&mut self, now: Time, wait: Duration) -> Result<bool, SeatLogError> {
        if self.log.is_lost() {
            // The topic is read again from its beginning, once the loss is accepted.
            self.reader = None;
            thread::sleep(wait);
            return Ok(false);
        }
        let Some(reader) = &mut self.reader else {
            let (reader, end) = LogReader::open(&self.kafka, &self.group, &self.topic, self.timeout)?;
            self.heard = Instant::now();
            self.reader = Some(reader);
            self.log.handle_begin(now, end);
            return Ok(true);
        };
        if self.is_end_asked || self.heard.elapsed() > END_INTERVAL {
            if let Err(SeatLogError::Replaced { .. }) = reader.check_topic() {
                self.log.handle_loss();
                return Ok(true);
            }
            let end = reader.end(self.timeout)?;
            (self.is_end_asked, self.heard) = (false, Instant::now());
            self.log.handle_end(now, end);
            return Ok(true);
        }
        let log = &mut self.log;
        let take = |record: &LogRecord<'_>| {
            log.handle_record(now, record.offset as u64, record.key, record.value);
            Ok(())
        };
        match reader.next(wait, take) {
            Ok(Next::Record(())) => Ok(true),
            Ok(Next::End) => {
                let position = reader.position();
                self.log.handle_position(now, position);
                Ok(true)
            }
            Ok(Next::Nothing) => Ok(false),
            Err(SeatLogError::Read { source, .. })
                if matches!(source.rdkafka_error_code(), Some(Code::OffsetOutOfRange | Code::AutoOffsetReset)) =>
            {
                self.log.handle_loss();
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a record. A record that the producer does not take is never sent.
    fn send(&mut self, key: &str, value: Option<&[u8]>, ticket: Option<WriteTicket>) {
        self.sent += 1;
        let record =
            ProducedRecord { key: Some(key.as_bytes()), value, timestamp_ms: 0, headers: None, tag: self.sent };
        let writer = match self.writer.take() {
            Some(writer) => Ok(writer),
            None => ChangeWriter::new(&self.kafka, &self.topic, self.timeout),
        };
        let error = match writer {
            Ok(mut writer) => {
                let sent = writer.send(record, ticket);
                self.writer = Some(writer);
                sent.err().map(|error| error.to_string())
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = error {
            self.refuse(ticket, &error);
        }
    }

    /// Takes the failures of the producer, and drops one that is broken or not needed.
    fn take_failures(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let mut is_over = writer.used.elapsed() > IDLE_TIMEOUT || writer.producer.fatal().is_some();
        let mut refused = Vec::new();
        for (tag, failure) in writer.producer.take_failures() {
            match failure {
                Failure::Refused(error) | Failure::Denied(error) => refused.push((writer.tickets.remove(&tag), error)),
                // The record may have arrived, or may still do so. The log tells, or the time does.
                Failure::Unknown(_) | Failure::Fatal(_) => is_over = true,
            }
        }
        if is_over {
            self.writer = None;
        }
        refused.iter().for_each(|(ticket, error)| self.refuse(*ticket, &error.to_string()));
    }

    /// Notes that a record is not in the topic, and never will be.
    fn refuse(&mut self, ticket: Option<WriteTicket>, error: &str) {
        tracing::warn!("rules: a record is not written: {error}");
        ticket.into_iter().for_each(|ticket| self.log.handle_unsent(ticket));
    }

    /// Forgets the record of a change whose outcome is known.
    fn forget(&mut self, news: &LogAction) {
        if let (LogAction::Done(ticket, _), Some(writer)) = (news, &mut self.writer) {
            writer.tickets.retain(|_, other| other != ticket);
        }
    }
}

impl ChangeWriter {
    fn new(kafka: &settings::Kafka, topic: &str, timeout: Duration) -> Result<ChangeWriter, KafkaError> {
        let mut config = named(client::config(kafka, &[], FORCED));
        for property in LEFT_OUT {
            config.remove(property);
        }
        let login = Login::new(kafka);
        let producer = Transactions::new(&config, timeout)?;
        let topic = producer.topic(topic)?;
        Ok(ChangeWriter { topic, producer, login, used: Instant::now(), tickets: HashMap::new() })
    }

    fn send(&mut self, record: ProducedRecord<'_>, ticket: Option<WriteTicket>) -> Result<(), SendError> {
        self.used = Instant::now();
        self.tickets.extend(ticket.map(|ticket| (record.tag, ticket)));
        self.producer.send(&self.topic, record)
    }
}
