//! Sends the outputs of a service to its target and dead-letter topic, in transactions if so configured.

mod config;
mod context;
mod dead_letter;
mod offsets_call;
mod transactions;

use std::sync::Arc;

pub use watermaster_core::delivery::{Failure, Form, Rejected, SendError};
use watermaster_settings as settings;

use crate::ffi::{self, TopicHandle};
use crate::{client::KafkaError, login::Login, record::Record, topics::Topics};
pub use config::{DEFAULT_BATCH_BYTES, seat_id_prefix, transaction_timeout, transactional_id};
pub(crate) use config::{config, seat_transaction_timeout, transactional_config};
use dead_letter::IsoClock;
pub use transactions::{TaintedStarts, Transactions};

/// The one producer of a service.
pub struct Producer {
    /// The outputs of each source, by its index. Dropped before their client.
    routes: Vec<Route>,
    transactions: Transactions,
    login: Login,
    service: settings::Service,
    topics: Arc<Topics>,
    clock: IsoClock,
}

/// The topics of a source's records.
struct Route {
    target: TopicHandle,
    dead_letter: TopicHandle,
}

impl Producer {
    /// Makes a producer for the targets and the dead-letter topics of `sources`, which have the same order as their
    /// `topics`, with batches of up to `batch_bytes`. No broker is contacted yet.
    pub fn new(
        kafka: &settings::Kafka, service: &settings::Service, sources: &[settings::Source], topics: &Arc<Topics>,
        batch_bytes: u64,
    ) -> Result<Producer, KafkaError> {
        let login = Login::new(kafka);
        let transactions = Transactions::new(&config(kafka, service, batch_bytes), transaction_timeout(kafka))?;
        let route = |source: &settings::Source| {
            let (target, dead_letter) = (transactions.topic(&source.target)?, transactions.topic(&source.dead_letter)?);
            Ok(Route { target, dead_letter })
        };
        Ok(Producer {
            routes: sources.iter().map(route).collect::<Result<_, KafkaError>>()?,
            transactions,
            login,
            service: service.clone(),
            topics: Arc::clone(topics),
            clock: IsoClock::default(),
        })
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        self.transactions.renew(&self.login);
    }

    /// Returns the calls that concern all records of a round.
    pub fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// Takes a record for its source's target, or a rejected one for its dead-letter topic. It has arrived when
    /// [`flush`](Transactions::flush) returns true and [`take_failures`](Transactions::take_failures) does not contain
    /// its tag.
    ///
    /// Key, value, headers and timestamp stay unchanged, with one exception: librdkafka replaces a timestamp of
    /// exactly 0 (1970) by the time of sending.
    ///
    /// The headers of a fresh record are handed over, not copied; the record makes them anew if it is sent again.
    pub fn send(
        &self, record: &mut Record<'_>, rejected: Option<(&Rejected, Form)>, tag: usize,
    ) -> Result<(), SendError> {
        let route = &self.routes[record.origin.source.index()];
        let (output, headers, form) = match rejected {
            None => (&route.target, record.take_headers(), Form::Whole),
            Some((rejected, form)) => {
                let headers = dead_letter::headers(record, rejected, form, &self.service, &self.topics, &self.clock);
                (&route.dead_letter, Some(headers), form)
            }
        };
        let key = record.key().filter(|_| form != Form::KeylessStub);
        let value = record.value().filter(|_| form == Form::Whole);
        let record = ffi::ProducedRecord { key, value, timestamp_ms: record.origin.timestamp_ms, headers, tag };
        self.transactions.send(output, record)
    }
}
