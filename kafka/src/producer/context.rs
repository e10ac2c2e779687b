//! Collects failed deliveries, failed transactions and broken connections from librdkafka's callbacks.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdkafka::error::{KafkaError as RdkafkaError, RDKafkaErrorCode as Code};
use rdkafka::{client::ClientContext, config::RDKafkaLogLevel};
use watermaster_core::delivery::{ClientError, ErrorClass, ErrorKind, Failure, SendError, TransactionError};

use crate::client;
use crate::ffi::{Deliveries, SentRecord, TopicHandle};

#[derive(Default)]
pub(super) struct DeliveryContext {
    /// True if `failures` is not empty.
    pub failed: AtomicBool,
    failures: Mutex<Vec<(usize, Failure)>>,
    /// True if a connection broke or a request timed out.
    pub tainted: AtomicBool,
    /// True if the open transaction has to be aborted.
    pub transaction_failed: AtomicBool,
    /// A line of librdkafka's log about a topic that the open transaction may not write to.
    denial: Mutex<Option<String>>,
}

impl DeliveryContext {
    fn fail(&self, tag: usize, failure: Failure) {
        self.failures.lock().push((tag, failure));
        self.failed.store(true, Ordering::Release);
    }

    pub fn take_failures(&self) -> Vec<(usize, Failure)> {
        if !self.failed.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.failures.lock())
    }

    /// Forgets the former transaction.
    pub fn begin(&self) {
        self.transaction_failed.store(false, Ordering::Release);
        *self.denial.lock() = None;
    }

    /// Returns the error for a topic that the last transaction may not write to. librdkafka mentions the topic only in
    /// its log.
    pub fn denial(&self) -> Option<TransactionError> {
        let denial = self.denial.lock().take()?;
        let source = ClientError::new(format!("{denial}: grant WRITE and DESCRIBE on the topic"));
        Some(TransactionError { class: ErrorClass::Fatal, kind: ErrorKind::Denied, source })
    }
}

/// Returns true if a line of librdkafka's log reports a request that may have been sent and was not answered.
///
/// No event reports that, so the text has to do.
fn taints(facility: &str, message: &str) -> bool {
    match facility {
        "REQTMOUT" => true,
        "FAIL" => !message.contains("Connect to ") && !message.contains("Failed to resolve"),
        _ => false,
    }
}

impl ClientContext for DeliveryContext {
    crate::oauth::makes_tokens!();

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if taints(facility, message) {
            self.tainted.store(true, Ordering::Release);
        }
        // The line about another topic of the same transaction names no cause of its own.
        if facility == "ADDPARTS" && message.contains("Topic authorization failed") {
            *self.denial.lock() = Some(message.to_owned());
        }
        if facility == "TXNERR" {
            self.transaction_failed.store(true, Ordering::Release);
        }
        client::log(level, facility, message);
    }

    fn error(&self, error: RdkafkaError, reason: &str) {
        // An error that affects a record is reported with the record.
        tracing::debug!("producer: {error}: {reason}");
    }
}

impl Deliveries for DeliveryContext {
    #[inline(always)]
    fn delivered(&self, record: &SentRecord<'_>) {
        if is_unplaced(record) {
            let why = "the broker took the record for a repeat of one that it does not have";
            self.fail(record.tag(), Failure::Unknown(ClientError::new(format!("{}: {why}", record.topic()))));
        }
    }

    fn given_up(&self, record: &SentRecord<'_>, error: Code) {
        self.fail(record.tag(), failure(&record.topic(), RdkafkaError::MessageProduction(error)));
    }

    fn throttled(&self, broker: &str, millis: i32) {
        let why =
            format!("[thrd:{broker}]: a quota of the broker delays its answers to this client, now by {millis} ms");
        client::log(RDKafkaLogLevel::Warning, "THROTTLE", &why);
    }
}

/// Classifies an error of a record that was handed to librdkafka.
fn failure(topic: &str, error: RdkafkaError) -> Failure {
    let code = error.rdkafka_error_code();
    let error = ClientError::new(format!("{topic}: {error}"));
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

/// Classifies an error of a record that librdkafka did not take.
pub(super) fn send_error(topic: &TopicHandle, code: Code) -> SendError {
    if code == Code::QueueFull {
        return SendError::QueueFull;
    }
    match (code, failure(&topic.name(), RdkafkaError::MessageProduction(code))) {
        // librdkafka remembers a broker's answer about a topic, and refuses further records with it.
        (_, Failure::Denied(error)) => SendError::Denied(error),
        (Code::Fatal | Code::State | Code::Fenced, failure) => SendError::Fatal(failure.into_cause()),
        (_, failure) => SendError::Refused(failure.into_cause()),
    }
}

/// Returns true for a record that librdkafka takes for delivered although the broker knows no offset of it.
///
/// A broker that does not know a producer yet takes any of its batches for the first. It may refuse the first batch,
/// because it does not lead the partition yet, and take the second. When the first one comes again, the broker holds it
/// for a repeat (DUPLICATE_SEQUENCE_NUMBER), and librdkafka takes that for a success: no record of the batch is in the
/// log, with transactions or without. Batches that were really stored get their offset, even when they are repeated.
///
/// librdkafka counts on from the number of the first record, which is negative. The thread of a broker serves one
/// producer, and shows the records of a batch one after the other.
#[inline(always)]
fn is_unplaced(record: &SentRecord<'_>) -> bool {
    (record.offset() < 0 || NEXT.get().is_some()) && belongs_to_unplaced(record)
}

thread_local! {
    /// Partition and number of the record that would continue the unplaced batch of this thread's last record.
    static NEXT: Cell<Option<((usize, i32), i64)>> = const { Cell::new(None) };
}

#[cold]
fn belongs_to_unplaced(record: &SentRecord<'_>) -> bool {
    let (partition, number) = (record.partition(), record.offset());
    let is_unplaced = number < 0 || NEXT.get() == Some((partition, number));
    NEXT.set(is_unplaced.then_some((partition, number + 1)));
    is_unplaced
}

#[cfg(test)]
mod tests {
    use super::taints;

    #[test]
    fn requests_without_an_answer_taint() {
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
