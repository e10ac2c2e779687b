//! An opening of a seat: a transactional producer, and the thread that makes its calls.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use rdkafka::ClientConfig;
use watermaster_core::delivery::{ErrorKind, Failure, SendError};
use watermaster_core::group::control::{Event, OpeningNumber};
use watermaster_settings as settings;

use super::log::{Report, SeatLogError};
use super::named;
use super::reader::PARTITION;
use crate::ffi::{ProducedRecord, TopicHandle};
use crate::login::Login;
use crate::producer::{self, TaintedStarts, Transactions};

/// The longest wait for the brokers in each call. After that the opening is over.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two looks for broken connections and a new login, while nothing is written.
const IDLE_INTERVAL: Duration = Duration::from_millis(250);
const THREAD: &str = "kafka-seat";

const PROPERTIES: &[(&str, &str)] = &[
    ("linger.ms", "0"),
    ("allow.auto.create.topics", "false"),
    // For the end of the log: a transaction of another seat that is still open must not hide a record of this one.
    ("isolation.level", "read_uncommitted"),
];

/// Properties of the user that are for the data's producer. librdkafka derives the timeouts from the transaction's.
const LEFT_OUT: &[&str] =
    &["message.timeout.ms", "delivery.timeout.ms", "socket.timeout.ms", "request.timeout.ms", "queue.buffering.max.ms"];

/// Keys and values of records for one transaction.
pub(super) type Order = Vec<(String, Option<Vec<u8>>)>;

/// The settings of a log's openings, and their way to its reader.
pub(super) struct Opener {
    pub kafka: settings::Kafka,
    pub topic: String,
    /// The beginning of all seats' transactional ids.
    pub prefix: String,
    pub reporter: mpsc::Sender<Report>,
}

impl Opener {
    /// Passes an outcome to the reader's `poll`.
    pub fn report(&self, report: Report) {
        // The only error is that the log was dropped.
        let _ = self.reporter.send(report);
    }

    fn config(&self, seat: &str) -> ClientConfig {
        let id = format!("{}{seat}", self.prefix);
        let mut config = named(producer::transactional_config(&self.kafka, &id));
        for property in LEFT_OUT {
            config.remove(property);
        }
        for (property, value) in PROPERTIES {
            config.set(*property, *value);
        }
        let timeout = producer::seat_transaction_timeout(&self.kafka).as_millis();
        config.set("transaction.timeout.ms", timeout.to_string());
        config
    }
}

/// Starts to open a seat. The thread takes orders until the sender is dropped, or until a call fails.
pub(super) fn start(opener: &Arc<Opener>, seat: &str, attempt: OpeningNumber) -> io::Result<mpsc::Sender<Order>> {
    let (orders, taken) = mpsc::channel();
    let (opener, seat) = (Arc::clone(opener), seat.to_owned());
    thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
        // The producer is gone now: it must not go on to ask for an epoch while the next opening asks for one.
        if let Err(error) = run(&opener, &seat, attempt, &taken) {
            opener.report(error.map_or(Ok(Event::Failed { attempt }), Err));
        }
    })?;
    Ok(orders)
}

/// Opens a seat and writes what is ordered.
///
/// # Errors
/// A call of the opening failed. The reason is returned if it lasts.
fn run(
    opener: &Opener, seat: &str, attempt: OpeningNumber, orders: &mpsc::Receiver<Order>,
) -> Result<(), Option<SeatLogError>> {
    let login = Login::new(&opener.kafka);
    let opening = Opening::new(opener, seat)?;
    let end = opening.transactions.end(&opener.topic, PARTITION, CALL_TIMEOUT);
    let end = end.ok().and_then(|end| u64::try_from(end).ok()).ok_or(None)?;
    opener.report(Ok(Event::Opened { attempt, end }));
    loop {
        match orders.recv_timeout(IDLE_INTERVAL) {
            Ok(order) => {
                let written = opening.write(&opener.topic, &order);
                opener.report(Ok(Event::Written { attempt, committed: written.is_ok() }));
                match written {
                    Ok(()) => {}
                    Err(None) => return Ok(()),
                    Err(lasting) => return Err(lasting),
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => opening.transactions.renew(&login),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
        }
        // A second copy of the commit may be on its way, and would end the next transaction.
        if opening.transactions.tainted() {
            opener.report(Ok(Event::Failed { attempt }));
            return Ok(());
        }
    }
}

/// A producer that has the epoch of a seat.
struct Opening {
    /// Dropped before its client.
    topic: TopicHandle,
    transactions: Transactions,
}

impl Opening {
    /// Gets an epoch, which ends a transaction that is still open and fences other producers of the seat.
    ///
    /// # Errors
    /// The brokers do not answer, or refuse it for the reason that is returned.
    fn new(opener: &Opener, seat: &str) -> Result<Opening, Option<SeatLogError>> {
        let config = opener.config(seat);
        let (deadline, mut tainted_starts) = (Instant::now() + CALL_TIMEOUT, TaintedStarts::default());
        loop {
            let transactions = Transactions::new(&config, CALL_TIMEOUT).map_err(|error| Some(error.into()))?;
            let left = || deadline.saturating_duration_since(Instant::now());
            // Without a connection, librdkafka waits half a second before it looks for the coordinator again.
            transactions.end(&opener.topic, PARTITION, left()).map_err(|_| None)?;
            let initialised = transactions.init(left());
            initialised.map_err(|error| {
                tracing::debug!("control log: seat {seat:?} is not opened: {error}");
                let prefix = opener.prefix.clone();
                let is_refused = error.kind == ErrorKind::Denied;
                is_refused.then_some(SeatLogError::Opening { prefix, source: error.source })
            })?;
            if tainted_starts.accept(&transactions) {
                let topic = transactions.topic(&opener.topic).map_err(|error| Some(error.into()))?;
                return Ok(Opening { topic, transactions });
            }
        }
    }

    /// Writes records in one transaction.
    ///
    /// # Errors
    /// The records are not committed, or it is not known whether they are. The reason is returned if it lasts.
    fn write(&self, topic: &str, order: &Order) -> Result<(), Option<SeatLogError>> {
        let transactions = &self.transactions;
        if transactions.tainted() {
            return Err(None);
        }
        let refused = |source| SeatLogError::Refused { topic: topic.to_owned(), source };
        let unknown = |error: &dyn std::error::Error| {
            tracing::debug!("control log: a state is in doubt: {error}");
            None
        };
        transactions.begin().map_err(|error| unknown(&error))?;
        for (tag, (key, value)) in order.iter().enumerate() {
            let (key, value) = (Some(key.as_bytes()), value.as_deref());
            let record = ProducedRecord { key, value, timestamp_ms: 0, headers: None, tag };
            transactions.send(&self.topic, record).map_err(|error| match error {
                SendError::Refused(source) => Some(refused(source)),
                error => unknown(&error),
            })?;
        }
        let committed = transactions.commit(CALL_TIMEOUT);
        if transactions.denial().is_some() {
            return Err(Some(SeatLogError::Denied { topic: topic.to_owned() }));
        }
        match transactions.take_failures().into_iter().next() {
            Some((_, Failure::Refused(source))) => return Err(Some(refused(source))),
            Some((_, failure)) => return Err(unknown(&failure)),
            None => {}
        }
        committed.map_err(|error| unknown(&error))
    }
}
