//! Sends the outputs of a service to its target and dead-letter topic, in transactions if so configured.

mod config;
mod context;
mod dead_letter;
mod offsets_call;
mod polled;

use std::{cell::Cell, sync::Arc, sync::atomic::Ordering, time::Duration};

use rdkafka::{client::Client, error::RDKafkaErrorCode as Code};
use watermaster_core::delivery::{ClientError, TransactionError};
pub use watermaster_core::delivery::{Failure, Form, Rejected, SendError};
use watermaster_settings as settings;

use crate::ffi::{self, TopicHandle, TransactionStep};
use crate::{client::KafkaError, consumer::Offsets, login::Login, record::Record, topics::Topics};
pub(crate) use config::config;
pub use config::{DEFAULT_BATCH_BYTES, transaction_timeout, transactional_id};
use context::{DeliveryContext, send_error};
use {offsets_call::OffsetsCall, polled::PolledProducer};

/// The one producer of a service.
pub struct Producer {
    /// Dropped before their client.
    target: TopicHandle,
    dead_letter: TopicHandle,
    inner: Arc<PolledProducer>,
    kafka: settings::Kafka,
    login: Login,
    service: settings::Service,
    topics: Arc<Topics>,
    initialised: Cell<bool>,
    in_transaction: Cell<bool>,
    offsets_call: OffsetsCall,
}

impl Producer {
    /// Makes a producer for the target and the dead-letter topic of `service`, with batches of up to `batch_bytes`.
    /// Dead letters name the source `topics`. No broker is contacted yet.
    pub fn new(
        kafka: &settings::Kafka, service: &settings::Service, topics: &Arc<Topics>, batch_bytes: u64,
    ) -> Result<Producer, KafkaError> {
        let login = Login::new(kafka);
        let base = config(kafka, service, batch_bytes).create_with_context(DeliveryContext::default())?;
        let inner = PolledProducer::new(base)?;
        Ok(Producer {
            target: topic(inner.client(), &service.target)?,
            dead_letter: topic(inner.client(), &service.dead_letter)?,
            inner: Arc::new(inner),
            kafka: kafka.clone(),
            login,
            service: service.clone(),
            topics: Arc::clone(topics),
            initialised: Cell::new(false),
            in_transaction: Cell::new(false),
            offsets_call: OffsetsCall::default(),
        })
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        self.login.renew(self.client());
    }

    // ## Transactions: init, then (begin, send, send_offsets, commit | abort) for each

    /// Returns true after [`init`](Producer::init) has succeeded.
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

    /// Forgets connections that broke before the epoch was received: they can't have carried a commit of this producer.
    pub fn forgive(&self) {
        self.context().tainted.store(false, Ordering::Release);
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
        let id = transactional_id(&self.kafka, &self.service);
        let grant = format!("grant WRITE and DESCRIBE on the transactional id {id}");
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
        let (inner, offsets) = (Arc::clone(&self.inner), offsets.clone());
        let timeout = transaction_timeout(&self.kafka);
        let sent = self.offsets_call.poll(wait, move || {
            let mut lists = offsets.lists.iter();
            lists.try_for_each(|list| Ok(ffi::send_offsets(inner.client(), list, &offsets.group, timeout)?))
        });
        // librdkafka says only that the transaction has failed.
        sent.map_err(|error| self.context().denial().unwrap_or(error))
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
        self.context().denial().map_or(Ok(()), Err)
    }

    // ## Sending

    /// Takes a record for the target, or a rejected one for the dead-letter topic. It has arrived when
    /// [`flush`](Producer::flush) returns true and [`take_failures`](Producer::take_failures) does not contain its tag.
    ///
    /// Key, value, headers and timestamp stay unchanged, with one exception: librdkafka replaces a timestamp of
    /// exactly 0 (1970) by the time of sending.
    ///
    /// The headers of a fresh record are handed over, not copied; the record makes them anew if it is sent again.
    pub fn send(
        &self, record: &mut Record<'_>, rejected: Option<(&Rejected, Form)>, tag: usize,
    ) -> Result<(), SendError> {
        let (topic, name, headers, form) = match rejected {
            None => (&self.target, &self.service.target, record.take_headers(), Form::Whole),
            Some((rejected, form)) => {
                let headers = dead_letter::headers(record, rejected, form, &self.service.name, &self.topics);
                (&self.dead_letter, &self.service.dead_letter, Some(headers), form)
            }
        };
        let key = record.key().filter(|_| form != Form::KeylessStub);
        let value = record.value().filter(|_| form == Form::Whole);
        let record = ffi::ProducedRecord { key, value, timestamp_ms: record.origin.timestamp_ms, headers, tag };
        ffi::produce(self.client(), topic, record).map_err(|code| match send_error(name, code) {
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

    fn client(&self) -> &Client<DeliveryContext> {
        self.inner.client()
    }

    fn context(&self) -> &DeliveryContext {
        self.client().context()
    }
}

fn topic(client: &Client<DeliveryContext>, name: &str) -> Result<TopicHandle, KafkaError> {
    TopicHandle::new(client, name).ok_or_else(|| KafkaError::TopicName { name: name.to_owned() })
}
