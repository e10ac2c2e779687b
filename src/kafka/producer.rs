//! Where outputs go.

use std::cell::Cell;
use std::ffi::CString;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext, PurgeConfig};
use watermaster_core::delivery::{ClientError as CoreError, TransactionError};
pub use watermaster_core::delivery::{Failure, Form, SendError};
use watermaster_core::reason::Reason;

use super::client::{self, KafkaError};
use super::consumer::Offsets;
use super::ffi::{self, HeaderList, TopicHandle};
use super::offsets_call::OffsetsCall;
use super::record::{Headers, NO_TIMESTAMP, Output};
use crate::settings::{self, Delivery};

/// What the topics allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest batch, in bytes: at most the smaller `max.message.bytes` of target and dead-letter topic. A single
    /// record may be larger (it may compress); the broker decides.
    pub batch_bytes: u64,
}

impl Limits {
    /// librdkafka's default.
    const DEFAULT_BATCH_BYTES: u64 = 1_000_000;

    /// Limits for topics that take records of up to so many bytes.
    pub fn of_topics(max_message_bytes: impl IntoIterator<Item = u64>) -> Limits {
        let smallest = max_message_bytes.into_iter().min().unwrap_or(u64::MAX);
        Limits { batch_bytes: smallest.clamp(1, Self::DEFAULT_BATCH_BYTES) }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { batch_bytes: Self::DEFAULT_BATCH_BYTES }
    }
}

/// Where an output goes.
#[derive(Debug, Clone, Copy)]
pub enum Destination<'a> {
    Target,
    DeadLetter(DeadLetter<'a>),
}

/// What is told about a rejected record.
#[derive(Debug, Clone, Copy)]
pub struct DeadLetter<'a> {
    pub reason: Reason,
    /// Empty for anonymous.
    pub client: &'a str,
    /// When to try again; 0: no meaning.
    pub retry_after_ms: u64,
    /// How much of the record goes there.
    pub form: Form,
}

/// The one producer of a service.
pub struct Producer {
    /// Before their client.
    topics: Topics,
    inner: Arc<Served>,
    names: Names,
    transactions: Option<Transactions>,
    sending: OffsetsCall,
}

/// A client whose reports and events a thread of its own serves.
///
/// (rdkafka's `ThreadedProducer` spins through the last millisecond of each 100: librdkafka's timeouts are whole milliseconds, and
/// 99.99 ms are 99 and then nothing for a while.)
struct Served {
    base: Arc<BaseProducer<Context>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How long the serving thread waits for an event. A moment more than whole milliseconds, so that nothing is left of it after them.
const SERVE: Duration = Duration::from_micros(100_050);

impl Served {
    fn new(base: BaseProducer<Context>) -> Result<Served, KafkaError> {
        let (base, stop) = (Arc::new(base), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&base), Arc::clone(&stop));
        let thread = thread::Builder::new().name("kafka-reports".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                served.poll(SERVE);
            }
        });
        let thread = thread.map_err(|error| KafkaError::Client(format!("no thread to serve the producer: {error}")))?;
        Ok(Served { base, stop, thread: Some(thread) })
    }

    fn client(&self) -> &Client<Context> {
        self.base.client()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, which was told.
            let _ = thread.join();
        }
    }
}

/// What a producer needs to know of its transactions.
struct Transactions {
    id: String,
    timeout: Duration,
    initialised: Cell<bool>,
    open: Cell<bool>,
}

/// Where outputs go.
struct Topics {
    target: TopicHandle,
    dead_letter: TopicHandle,
}

/// The names that go into outputs.
struct Names {
    service: String,
    target: String,
    dead_letter: String,
    sources: Vec<String>,
}

/// What the user may change.
const DEFAULTS: &[(&str, &str)] = &[
    // A round waits for its last batch: 1 ms forwarded 9 % more records a second than 5, with the same processor time.
    ("linger.ms", "1"),
    ("compression.type", "lz4"),
    // For ever: librdkafka repeats in order and without doubles, while what timed out and is sent once more may arrive
    // twice and behind its successors. A drain gives up by itself.
    ("message.timeout.ms", "0"),
    // What gets CONCURRENT_TRANSACTIONS or meets a new leader waits this long; the default is 100.
    ("retry.backoff.ms", "10"),
    ("retry.backoff.max.ms", "50"),
    // The broker decides what is too large: it sees the compressed size, librdkafka does not.
    ("message.max.bytes", "1000000000"),
];

/// What the protocol owns.
const OWNED: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // Java's.
    ("partitioner", "murmur2_random"),
    // Success costs no report.
    ("delivery.report.only.error", "true"),
];

/// What transactions ask for, and the user may change. (`message.timeout.ms` and `socket.timeout.ms` then follow from it.)
const TRANSACTIONS_TIMEOUT: (&str, &str) = ("transaction.timeout.ms", "10000");

impl Producer {
    /// A producer for the target and the dead-letter topic of `service`. Contacts nobody yet.
    pub fn new(kafka: &settings::Kafka, service: &settings::Service, limits: Limits) -> Result<Producer, KafkaError> {
        let batch = limits.batch_bytes.to_string();
        let mut defaults: Vec<_> = DEFAULTS.iter().copied().chain([("batch.size", batch.as_str())]).collect();
        let mut owned = OWNED.to_vec();
        let transactions = Transactions::of(kafka, service);
        if let Some(transactions) = &transactions {
            // No longer than a transaction, and librdkafka sees to that if it is left alone.
            defaults.retain(|(property, _)| *property != "message.timeout.ms");
            defaults.push(TRANSACTIONS_TIMEOUT);
            // The log tells of broken connections, which taint a producer.
            owned.extend([("transactional.id", transactions.id.as_str()), ("log.connection.close", "true")]);
        }
        let config = client::config(kafka, &defaults, &owned);
        let names = Names {
            service: service.name.clone(),
            target: service.target.clone(),
            dead_letter: service.dead_letter.clone(),
            sources: service.sources.iter().map(|source| source.topic.clone()).collect(),
        };
        let inner = Served::new(config.create_with_context(Context::default())?)?;
        let topics = Topics {
            target: topic(inner.client(), &names.target)?,
            dead_letter: topic(inner.client(), &names.dead_letter)?,
        };
        Ok(Producer { topics, inner: Arc::new(inner), names, transactions, sending: OffsetsCall::default() })
    }

    // ## Transactions: init, then (begin, send, send_offsets, commit | abort) for each

    /// The `transactional.id`; empty without transactions.
    pub fn transactional_id(&self) -> &str {
        self.transactions.as_ref().map_or("", |transactions| &transactions.id)
    }

    /// How long the coordinator leaves a transaction open.
    pub fn transaction_timeout(&self) -> Duration {
        self.transactions.as_ref().map_or(Duration::MAX, |transactions| transactions.timeout)
    }

    /// Whether [`init`](Producer::init) succeeded.
    pub fn is_initialised(&self) -> bool {
        self.transactions.as_ref().is_some_and(|transactions| transactions.initialised.get())
    }

    /// Whether a transaction was begun and neither committed nor aborted.
    pub fn in_transaction(&self) -> bool {
        self.transactions.as_ref().is_some_and(|transactions| transactions.open.get())
    }

    /// A connection broke or a request timed out: a copy of a commit may still be on its way, and would end the *next*
    /// transaction (KAFKA-17754). Another producer gets another epoch, which makes that copy void.
    ///
    /// What librdkafka has said by now is heard first: the polling thread may not have got to it yet.
    pub fn tainted(&self) -> bool {
        for _ in 0..ffi::waiting_events(self.client()) {
            self.inner.base.poll(Duration::ZERO);
        }
        self.client().context().tainted.load(Ordering::Acquire)
    }

    /// Something failed: the open transaction can't be committed any more.
    pub fn failing(&self) -> bool {
        let context = self.client().context();
        let [record, transaction] =
            [&context.failed, &context.transaction_failed].map(|flag| flag.load(Ordering::Acquire));
        record || transaction || self.client().fatal_error().is_some()
    }

    /// Fences and aborts whatever went before under the same id. After a retriable error: the same call again.
    pub fn init(&self, timeout: Duration) -> Result<(), TransactionError> {
        ffi::init_transactions(self.client(), timeout).map_err(|error| self.with_advice(error))?;
        self.mark(|transactions| transactions.initialised.set(true));
        Ok(())
    }

    /// What broke before the epoch came can't have carried a commit of this producer.
    pub fn forgive(&self) {
        self.client().context().tainted.store(false, Ordering::Release);
    }

    /// What people can do about an error of [`init`](Producer::init), where they can.
    fn with_advice(&self, mut error: ffi::CallError) -> TransactionError {
        let advice = match error.code {
            Code::TransactionalIdAuthorizationFailed => {
                format!("grant WRITE and DESCRIBE on the transactional id {}", self.transactional_id())
            }
            Code::ClusterAuthorizationFailed => "grant IDEMPOTENT_WRITE on the cluster".to_owned(),
            Code::InvalidTransactionTimeout => {
                "transaction.timeout.ms is more than the brokers' transaction.max.timeout.ms".to_owned()
            }
            Code::UnsupportedFeature | Code::UnsupportedVersion => {
                "the brokers know no transactions: kafka.delivery = \"at_least_once\" works with them".to_owned()
            }
            _ => return error.into(),
        };
        error.text = format!("{}: {advice}", error.text);
        error.into()
    }

    /// Begins a transaction.
    pub fn begin(&self) -> Result<(), TransactionError> {
        // Reports of what an abort gave up.
        self.take_failures();
        self.client().context().transaction_failed.store(false, Ordering::Release);
        ffi::begin_transaction(self.client())?;
        self.mark(|transactions| transactions.open.set(true));
        Ok(())
    }

    /// Makes the offsets part of the transaction. False: not answered yet; the same call goes on with it. If librdkafka never
    /// comes back, this producer has to go: what it still wants is void once another has its id.
    pub fn send_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, TransactionError> {
        let (inner, Offsets(offsets), timeout) = (Arc::clone(&self.inner), offsets.clone(), self.transaction_timeout());
        self.sending.go_on(wait, move || {
            let mut lists = offsets.lists.iter();
            lists.try_for_each(|list| Ok(ffi::send_offsets(inner.client(), list, &offsets.group, timeout)?))
        })
    }

    /// Commits. After a retriable error nothing but the same call again.
    pub fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        ffi::commit_transaction(self.client(), timeout)?;
        self.mark(|transactions| transactions.open.set(false));
        Ok(())
    }

    /// Aborts. After a retriable error: the same call again.
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.sending.end(timeout)?;
        ffi::abort_transaction(self.client(), timeout)?;
        self.mark(|transactions| transactions.open.set(false));
        Ok(())
    }

    fn mark(&self, mark: impl FnOnce(&Transactions)) {
        if let Some(transactions) = &self.transactions {
            mark(transactions);
        }
    }

    // ## Sending

    /// Takes an output; it is on its way after this, and arrived when [`flush`](Producer::flush) says true and
    /// [`take_failures`](Producer::take_failures) does not name its tag.
    ///
    /// Key, value, headers and timestamp go as they came, with one exception: a timestamp of exactly 0 (1970)
    /// becomes the time of sending, which is what 0 means to librdkafka.
    ///
    /// The headers of a fresh record are handed over, not copied; it makes them anew if it is sent again.
    pub fn send(&self, to: Destination<'_>, output: &mut Output<'_>, tag: usize) -> Result<(), SendError> {
        let (topic, headers, form) = match to {
            Destination::Target => (&self.topics.target, output.take_headers(), Form::Whole),
            Destination::DeadLetter(letter) => {
                (&self.topics.dead_letter, Some(self.dead_letter_headers(output, &letter)), letter.form)
            }
        };
        let key = output.key().filter(|_| form != Form::KeylessStub);
        let value = output.value().filter(|_| form == Form::Whole);
        let timestamp_ms = output.timestamp_ms().unwrap_or(NO_TIMESTAMP);
        let sent = ffi::produce(self.client(), topic, ffi::Outgoing { key, value, timestamp_ms, headers, tag });
        sent.map_err(|code| {
            let name = match to {
                Destination::Target => &self.names.target,
                Destination::DeadLetter(_) => &self.names.dead_letter,
            };
            self.send_error(name, ClientError::MessageProduction(code))
        })
    }

    fn send_error(&self, topic: &str, error: ClientError) -> SendError {
        let code = error.rdkafka_error_code();
        match (code, failure(topic, error)) {
            (Some(Code::QueueFull), _) => SendError::QueueFull,
            // librdkafka remembers what a broker said of the topic, and says so at once.
            (_, Failure::Denied(error)) => SendError::Denied(error),
            (Some(Code::Fatal | Code::State | Code::Fenced), failure) => {
                SendError::Fatal(self.fatal().unwrap_or_else(|| failure.into_cause()))
            }
            (_, failure) => SendError::Refused(failure.into_cause()),
        }
    }

    /// Sends what lingers and waits until nothing is in flight; false if that took longer.
    pub fn flush(&self, timeout: Duration) -> bool {
        ffi::flush(self.client(), timeout)
    }

    /// What did not arrive, by tag, since the last call.
    pub fn take_failures(&self) -> Vec<(usize, Failure)> {
        let context = self.client().context();
        if !context.failed.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *context.failures.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Gives up what is in flight: each becomes a failure of unknown outcome.
    pub fn purge(&self) {
        self.inner.base.purge(PurgeConfig::default().queue().inflight());
    }

    /// Why this producer is of no use any more, if so.
    pub fn fatal(&self) -> Option<CoreError> {
        let (code, text) = self.client().fatal_error()?;
        Some(CoreError::new(ProducerFailed { service: self.names.service.clone(), code, text }))
    }

    fn client(&self) -> &Client<Context> {
        self.inner.client()
    }

    /// Returns the record's own headers (a stub keeps none) without earlier `throttle-*`, then those of this rejection.
    fn dead_letter_headers(&self, output: &mut Output<'_>, letter: &DeadLetter<'_>) -> HeaderList {
        let earlier = Earlier::of(output.contents().headers);
        let stub = letter.form != Form::Whole;
        let mut headers = if stub {
            HeaderList::with_capacity(throttle::ALL.len())
        } else if earlier.any {
            output.copy_headers(|name| !throttle::ALL.contains(&name))
        } else {
            output.take_headers().unwrap_or_else(|| HeaderList::with_capacity(throttle::ALL.len()))
        };
        let attempt = earlier.attempt.map_or(1, |attempt| attempt.saturating_add(1));
        let [partition, offset] = [i64::from(output.partition()), output.offset()].map(Number::new);
        let timestamp_ms = Number::new(output.timestamp_ms().unwrap_or(NO_TIMESTAMP));
        let [retry_after_ms, attempt] = [letter.retry_after_ms, attempt].map(Number::new);
        let values: [(&[u8], &[u8]); 9] = [
            (throttle::REASON, letter.reason.as_str().as_bytes()),
            (throttle::SERVICE, self.names.service.as_bytes()),
            (throttle::CLIENT, letter.client.as_bytes()),
            (throttle::TOPIC, self.names.sources[output.source().index()].as_bytes()),
            (throttle::PARTITION, partition.text()),
            (throttle::OFFSET, offset.text()),
            (throttle::TIMESTAMP_MS, timestamp_ms.text()),
            (throttle::RETRY_AFTER_MS, retry_after_ms.text()),
            (throttle::ATTEMPT, attempt.text()),
        ];
        for (name, value) in values {
            headers.add(name, Some(value));
        }
        if stub {
            headers.add(throttle::STUB, Some(b"1"));
        }
        headers
    }
}

fn topic(client: &Client<Context>, name: &str) -> Result<TopicHandle, KafkaError> {
    let handle = CString::new(name).ok().and_then(|name| TopicHandle::new(client, &name));
    handle.ok_or_else(|| KafkaError::Client(format!("librdkafka does not take the topic's name {name:?}")))
}

/// A number in decimal, without an allocation.
struct Number {
    digits: [u8; 20],
    length: usize,
}

impl Number {
    fn new(number: impl std::fmt::Display) -> Number {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        write!(rest, "{number}").expect("no integer of 64 bits takes more than 20 characters");
        let length = 20 - rest.len();
        Number { digits, length }
    }

    fn text(&self) -> &[u8] {
        &self.digits[..self.length]
    }
}

/// The `transactional.id` of a service's producer.
pub(super) fn transactional_id(kafka: &settings::Kafka, service: &settings::Service) -> String {
    format!("{}.{}.{}", kafka.group_id, service.name, kafka.instance_id)
}

/// How long the coordinator is asked to leave a transaction open.
pub(super) fn transaction_timeout(kafka: &settings::Kafka) -> Duration {
    client::time(kafka, TRANSACTIONS_TIMEOUT)
}

impl Transactions {
    /// What the delivery of `kafka` asks for.
    fn of(kafka: &settings::Kafka, service: &settings::Service) -> Option<Transactions> {
        if kafka.delivery != Delivery::ExactlyOnce {
            return None;
        }
        Some(Transactions {
            id: transactional_id(kafka, service),
            timeout: transaction_timeout(kafka),
            initialised: Cell::new(false),
            open: Cell::new(false),
        })
    }
}

/// Headers of earlier rejections that a record still carries.
struct Earlier {
    /// Whether there are any that are to be replaced.
    any: bool,
    /// The last attempt, if it is a number.
    attempt: Option<u64>,
}

impl Earlier {
    fn of(headers: Headers<'_>) -> Earlier {
        let mut earlier = Earlier { any: false, attempt: None };
        for (name, value) in headers.iter().filter(|(name, _)| name.starts_with(throttle::PREFIX)) {
            earlier.any |= throttle::ALL.contains(&name);
            if name == throttle::ATTEMPT {
                earlier.attempt = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            }
        }
        earlier
    }
}

/// The headers of a rejected record.
mod throttle {
    /// The beginning of each name.
    pub const PREFIX: &[u8] = b"throttle-";

    pub const REASON: &[u8] = b"throttle-reason";
    pub const SERVICE: &[u8] = b"throttle-service";
    pub const CLIENT: &[u8] = b"throttle-client";
    pub const TOPIC: &[u8] = b"throttle-topic";
    pub const PARTITION: &[u8] = b"throttle-partition";
    pub const OFFSET: &[u8] = b"throttle-offset";
    pub const TIMESTAMP_MS: &[u8] = b"throttle-timestamp-ms";
    pub const RETRY_AFTER_MS: &[u8] = b"throttle-retry-after-ms";
    pub const ATTEMPT: &[u8] = b"throttle-attempt";
    /// Only stubs have it.
    pub const STUB: &[u8] = b"throttle-stub";

    pub const ALL: [&[u8]; 10] =
        [REASON, SERVICE, CLIENT, TOPIC, PARTITION, OFFSET, TIMESTAMP_MS, RETRY_AFTER_MS, ATTEMPT, STUB];
}

/// Collects failures on the polling thread.
#[derive(Default)]
struct Context {
    failed: AtomicBool,
    failures: Mutex<Vec<(usize, Failure)>>,
    /// A connection broke or a request timed out since the producer was made.
    tainted: AtomicBool,
    /// The open transaction has to be aborted.
    transaction_failed: AtomicBool,
}

/// Whether a line of librdkafka's log says that a request may have been sent and not answered.
fn taints(facility: &str, message: &str) -> bool {
    match facility {
        "REQTMOUT" => true,
        "FAIL" => !message.contains("Connect to ") && !message.contains("Failed to resolve"),
        _ => false,
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if taints(facility, message) {
            self.tainted.store(true, Ordering::Release);
        }
        if facility == "TXNERR" {
            self.transaction_failed.store(true, Ordering::Release);
        }
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        // What it means for a record comes with the record.
        tracing::debug!("producer: {error}: {reason}");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        if let Err((error, message)) = result {
            let failure = failure(rdkafka::Message::topic(message), error.clone());
            self.failures.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((tag, failure));
            self.failed.store(true, Ordering::Release);
        }
    }
}

/// The error of a record, with the topic that it was for.
#[derive(Debug, thiserror::Error)]
#[error("{topic}: {source}")]
struct TopicError {
    topic: String,
    source: ClientError,
}

/// The error after which librdkafka's producer sends nothing any more.
#[derive(Debug, thiserror::Error)]
#[error("the producer of service {service} failed: {text} ({code})")]
struct ProducerFailed {
    service: String,
    code: Code,
    text: String,
}

fn failure(topic: &str, error: ClientError) -> Failure {
    let code = error.rdkafka_error_code();
    let error = CoreError::new(TopicError { topic: topic.to_owned(), source: error });
    match code {
        Some(
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidDifferentRecord
            | Code::InvalidTimestamp
            | Code::UnsupportedForMessageFormat,
        ) => Failure::Refused(error),
        Some(
            Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::UnsupportedCompressionType,
        ) => Failure::Denied(error),
        Some(Code::Fatal | Code::Fenced | Code::ProducerFenced) => Failure::Fatal(error),
        _ => Failure::Unknown(error),
    }
}

#[cfg(test)]
mod tests {
    use super::taints;

    #[test]
    fn what_may_have_been_sent_and_not_answered_taints() {
        let lines = [
            (
                "FAIL",
                "[thrd:TxnCoordinator]: TxnCoordinator: 127.0.0.1:9092: Disconnected (after 12ms in state UP)",
                true,
            ),
            (
                "FAIL",
                "[thrd:TxnCoordinator]: TxnCoordinator: 1 request(s) timed out: disconnect (average rtt 2ms)",
                true,
            ),
            ("REQTMOUT", "[thrd:TxnCoordinator]: TxnCoordinator: Timed out EndTxnRequest in flight (after 9s)", true),
            ("FAIL", "[thrd:x]: x/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms)", false),
            ("TXNERR", "Current transaction failed in state BeginCommit", false),
        ];
        for (facility, line, expected) in lines {
            assert_eq!(taints(facility, line), expected, "{line}");
        }
    }
}
