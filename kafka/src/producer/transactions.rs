//! The calls of a producer that concern all records of a transaction, or of a round without one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{cell::Cell, sync::Arc, thread, time::Duration};

use rdkafka::ClientConfig;
use rdkafka::client::Client;
use rdkafka::error::{KafkaError as RdkafkaError, RDKafkaErrorCode as Code};
use watermaster_core::delivery::{ClientError, Failure, SendError, TransactionError};

use super::context::{DeliveryContext, send_error};
use super::offsets_call::OffsetsCall;
use crate::client::KafkaError;
use crate::consumer::Offsets;
use crate::ffi::{self, ProducedRecord, TopicHandle, TransactionStep};
use crate::{login::Login, oauth};

/// The most producers in a row that may lose a connection before they have their epoch; the next one may keep it.
const MAX_TAINTED_STARTS: u32 = 3;

/// The number of producers in a row that lost a connection before they had their epoch.
#[derive(Default)]
pub struct TaintedStarts(u32);

impl TaintedStarts {
    /// Returns whether a producer that has its epoch may be used, or has to be replaced by another one.
    ///
    /// librdkafka logs a broken connection once in 30 s: one that broke before could hide one that breaks now. A new
    /// client starts without that past. Where each one begins so (at an address where no Kafka answers), the last one
    /// has to do: a connection that broke before the epoch was received can't have carried a commit of this producer.
    pub fn accept(&mut self, producer: &Transactions) -> bool {
        if self.0 < MAX_TAINTED_STARTS && producer.tainted() {
            self.0 += 1;
            return false;
        }
        self.0 = 0;
        producer.context().tainted.store(false, Ordering::Release);
        true
    }
}

/// A producer that makes records and offsets visible together.
///
/// In each transaction: begin, send, send the offsets, commit or abort. [`init`](Transactions::init) comes first.
pub struct Transactions {
    inner: Arc<PolledProducer>,
    /// The `transactional.id`; empty without transactions.
    id: String,
    timeout: Duration,
    initialised: Cell<bool>,
    in_transaction: Cell<bool>,
    offsets_call: OffsetsCall,
}

impl Transactions {
    /// Makes a producer with these properties, whose transactions end after `timeout`. No broker is contacted yet.
    pub(crate) fn new(config: &ClientConfig, timeout: Duration) -> Result<Transactions, KafkaError> {
        Ok(Transactions {
            inner: Arc::new(PolledProducer::new(config)?),
            id: config.get("transactional.id").unwrap_or_default().to_owned(),
            timeout,
            initialised: Cell::new(false),
            in_transaction: Cell::new(false),
            offsets_call: OffsetsCall::default(),
        })
    }

    /// Looks a topic up. To be dropped before this.
    pub(crate) fn topic(&self, name: &str) -> Result<TopicHandle, KafkaError> {
        TopicHandle::new(self.client(), name).ok_or_else(|| KafkaError::TopicName { name: name.to_owned() })
    }

    /// Returns true after [`init`](Transactions::init) has succeeded.
    pub fn is_initialised(&self) -> bool {
        self.initialised.get()
    }

    /// Returns true if a transaction was begun and neither committed nor aborted.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction.get()
    }

    /// Returns true if a connection broke or a request timed out: a copy of a commit may still be on its way, and would
    /// end the *next* transaction (KAFKA-17754). Another producer gets another epoch, which makes that copy void.
    ///
    /// Serves waiting events first, since the polling thread may not have got to them yet.
    pub fn tainted(&self) -> bool {
        self.inner.serve_waiting();
        self.context().tainted.load(Ordering::Acquire)
    }

    /// Returns true if the open transaction can't be committed any more.
    pub fn failing(&self) -> bool {
        let DeliveryContext { failed, transaction_failed, .. } = self.context();
        let reported = failed.load(Ordering::Acquire) || transaction_failed.load(Ordering::Acquire);
        reported || self.client().fatal_error().is_some()
    }

    /// Gets an epoch; fences and aborts predecessors with the same id. After a retriable error, call it again.
    pub fn init(&self, timeout: Duration) -> Result<(), TransactionError> {
        ffi::transaction(self.client(), TransactionStep::Init, timeout).map_err(|error| self.init_error(error))?;
        self.initialised.set(true);
        Ok(())
    }

    fn init_error(&self, mut error: ffi::CallError) -> TransactionError {
        let grant = format!("grant WRITE and DESCRIBE on the transactional id {}", self.id);
        let advice = match error.code {
            Code::TransactionalIdAuthorizationFailed => &grant,
            Code::ClusterAuthorizationFailed => "grant IDEMPOTENT_WRITE on the cluster",
            Code::InvalidTransactionTimeout => {
                "transaction.timeout.ms is more than the brokers' transaction.max.timeout.ms"
            }
            Code::UnsupportedFeature | Code::UnsupportedVersion => {
                "the brokers know no transactions: kafka.delivery = \"at_least_once\" works with them"
            }
            _ => return error.into(),
        };
        error.text = format!("{}: {advice}", error.text);
        error.into()
    }

    /// Begins a transaction.
    pub fn begin(&self) -> Result<(), TransactionError> {
        // Drops reports of records that an abort gave up.
        self.take_failures();
        self.context().begin();
        ffi::transaction(self.client(), TransactionStep::Begin, Duration::ZERO)?;
        self.in_transaction.set(true);
        Ok(())
    }

    /// Adds the offsets to the transaction. Returns false if there is no answer yet; the next call waits for it.
    ///
    /// librdkafka may never return. Then this producer has to be replaced: its late requests are void once another
    /// producer has its id.
    pub fn send_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, TransactionError> {
        let (inner, offsets, timeout) = (Arc::clone(&self.inner), offsets.clone(), self.timeout);
        let sent = self.offsets_call.poll(wait, move || {
            let mut lists = offsets.lists.iter();
            lists.try_for_each(|list| Ok(ffi::send_offsets(inner.client(), list, &offsets.group, timeout)?))
        });
        // librdkafka says only that the transaction has failed.
        sent.map_err(|error| self.denial().unwrap_or(error))
    }

    /// Takes the error for a topic that the transaction may not write to, if there is one.
    pub fn denial(&self) -> Option<TransactionError> {
        self.context().denial()
    }

    /// Commits. After a retriable error, only the same call is allowed.
    pub fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        ffi::transaction(self.client(), TransactionStep::Commit, timeout)?;
        self.in_transaction.set(false);
        Ok(())
    }

    /// Aborts. After a retriable error, call it again.
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.offsets_call.finish(timeout)?;
        ffi::transaction(self.client(), TransactionStep::Abort, timeout)?;
        self.in_transaction.set(false);
        // Without its reason, each transaction would fail in the same way.
        self.denial().map_or(Ok(()), Err)
    }

    /// Takes a record for a topic of this producer.
    pub(crate) fn send(&self, topic: &TopicHandle, record: ProducedRecord<'_>) -> Result<(), SendError> {
        ffi::produce(self.client(), topic, record).map_err(|code| match send_error(topic, code) {
            SendError::Fatal(error) => SendError::Fatal(self.fatal().unwrap_or(error)),
            other => other,
        })
    }

    /// Sends lingering records and waits until none is in flight; false if that took longer.
    pub fn flush(&self, timeout: Duration) -> bool {
        ffi::flush(self.client(), timeout)
    }

    /// Takes the failures since the last call, by tag.
    pub fn take_failures(&self) -> Vec<(usize, Failure)> {
        self.context().take_failures()
    }

    /// Gives up the records in flight: each becomes a failure of unknown outcome.
    pub fn purge(&self) {
        self.inner.purge();
    }

    /// Returns the error after which this producer can't be used any more, if there is one.
    pub fn fatal(&self) -> Option<ClientError> {
        let (code, text) = self.client().fatal_error()?;
        Some(ClientError::new(format!("the producer failed: {text} ({code})")))
    }

    /// Returns the offset after the last record of a partition, as the producer's `isolation.level` counts.
    pub(crate) fn end(&self, topic: &str, partition: i32, timeout: Duration) -> Result<i64, RdkafkaError> {
        self.client().fetch_watermarks(topic, partition, timeout).map(|(_, end)| end)
    }

    /// Gives the producer the user and the password if they have changed.
    pub(crate) fn renew(&self, login: &Login) {
        login.renew(self.client());
    }

    pub(super) fn client(&self) -> &Client<DeliveryContext> {
        self.inner.client()
    }

    fn context(&self) -> &DeliveryContext {
        self.client().context()
    }
}

/// The longest wait for an event, and so for the end of the thread.
const SERVE_TIMEOUT: Duration = Duration::from_millis(100);
const THREAD: &str = "kafka-reports";

/// A client with a thread that serves its events.
struct PolledProducer {
    client: Arc<Client<DeliveryContext>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PolledProducer {
    pub fn new(config: &ClientConfig) -> Result<PolledProducer, KafkaError> {
        let client = ffi::producer(config, DeliveryContext::default())?;
        oauth::give_first_token(&client, config);
        let (client, stop) = (Arc::new(client), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&client), Arc::clone(&stop));
        let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                ffi::serve(&served, SERVE_TIMEOUT);
            }
        });
        let thread = thread.map_err(|source| KafkaError::Thread { name: THREAD, source })?;
        Ok(PolledProducer { client, stop, thread: Some(thread) })
    }

    pub fn client(&self) -> &Client<DeliveryContext> {
        &self.client
    }

    pub fn serve_waiting(&self) {
        for _ in 0..ffi::waiting_events(&self.client) {
            ffi::serve(&self.client, Duration::ZERO);
        }
    }

    /// Gives up queued records and those in flight.
    pub fn purge(&self) {
        ffi::purge(&self.client);
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The only error is a panic, which was logged.
            let _ = thread.join();
        }
        // Otherwise librdkafka would send queued records before the client ends.
        self.purge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: an acknowledgement function was added after the client had been made, and librdkafka ended the process
    /// where it was built with its assertions, as without the feature `oidc`.
    #[test]
    fn a_producer_is_made_by_a_librdkafka_with_assertions() {
        PolledProducer::new(&ClientConfig::new()).expect("a producer");
    }
}
