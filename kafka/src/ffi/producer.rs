//! The client of a producer, which looks at each record that it takes for delivered.
//!
//! rdkafka's `BaseProducer` shows such records in reports, which pass through a queue to another thread: that took 3 %
//! of the processor time of a forwarded record. librdkafka shows them to an acknowledgement function in the thread that
//! took the broker's answer, but has to know it when the client is made.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{ptr, time::Duration};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::types::{RDKafkaRespErr, RDKafkaType};
use rdkafka::{bindings as sys, error::KafkaError, error::RDKafkaErrorCode as Code, util::IntoOpaque as _};

use super::{give_token, millis, text, topic_name};

/// A record that was handed to a producer.
pub(in super::super) struct SentRecord<'a>(&'a sys::rd_kafka_message_t);

impl SentRecord<'_> {
    /// Returns the offset that the broker told. Where it told none, librdkafka counts on from a negative number.
    pub fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Returns an address that stands for the topic, and the partition.
    pub fn partition(&self) -> (usize, i32) {
        (self.0.rkt.addr(), self.0.partition)
    }

    pub fn topic(&self) -> String {
        // SAFETY: a message of a producer keeps its topic.
        unsafe { topic_name(self.0.rkt) }
    }

    /// Returns the tag with which the record was handed over.
    pub fn tag(&self) -> usize {
        // SAFETY: the pointer was a tag: see `produce`.
        unsafe { usize::from_ptr(self.0._private) }
    }
}

/// The context of a producer.
pub(in super::super) trait Deliveries: ClientContext {
    /// Takes a record that librdkafka takes for delivered, before a flush returns. The threads of all brokers call
    /// this; the records of one answer come one after the other in one thread.
    fn delivered(&self, record: &SentRecord<'_>);
    /// Takes a record that librdkafka has given up, in the thread that serves the events.
    fn given_up(&self, record: &SentRecord<'_>, error: Code);
    /// Learns that a quota made a broker hold its answers to this client back, in the thread that serves the events.
    fn throttled(&self, broker: &str, millis: i32);
}

/// Makes the client of a producer. Another thread has to serve its events.
pub(in super::super) fn producer<C: Deliveries>(config: &ClientConfig, context: C) -> Result<Client<C>, KafkaError> {
    let native = config.create_native_config()?;
    let events = sys::RD_KAFKA_EVENT_DR
        | sys::RD_KAFKA_EVENT_STATS
        | sys::RD_KAFKA_EVENT_ERROR
        | sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH;
    // SAFETY: the configuration is owned; the name is a C string, which is copied. The only error is that the function
    // is there already.
    unsafe {
        sys::rd_kafka_conf_set_events(native.ptr(), events);
        sys::rd_kafka_conf_set_throttle_cb(native.ptr(), Some(on_throttle::<C>));
        sys::rd_kafka_conf_interceptor_add_on_new(native.ptr(), NAME.as_ptr(), Some(on_new::<C>), ptr::null_mut());
    }
    Client::new(config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)
}

/// The name of the functions that librdkafka calls, for its log.
const NAME: &CStr = c"deliveries";

unsafe extern "C" fn on_new<C: Deliveries>(
    client: *mut sys::rd_kafka_t, _: *const sys::rd_kafka_conf_t, _: *mut c_void, _: *mut c_char, _: usize,
) -> RDKafkaRespErr {
    // SAFETY: librdkafka calls this with the new client, whose opaque pointer is its context.
    unsafe {
        let context = sys::rd_kafka_opaque(client);
        sys::rd_kafka_interceptor_add_on_acknowledgement(client, NAME.as_ptr(), Some(on_acknowledgement::<C>), context)
    }
}

unsafe extern "C" fn on_acknowledgement<C: Deliveries>(
    _: *mut sys::rd_kafka_t, message: *mut sys::rd_kafka_message_t, context: *mut c_void,
) -> RDKafkaRespErr {
    // SAFETY: the message does not change before this returns; a client keeps its context until all its threads ended.
    let (message, context) = unsafe { (&*message, &*context.cast::<C>()) };
    // Any other one is reported, or was not even taken: brokers name broken records only beside an error of the batch.
    if message.err == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        context.delivered(&SentRecord(message));
    }
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

unsafe extern "C" fn on_throttle<C: Deliveries>(
    _: *mut sys::rd_kafka_t, broker: *const c_char, _: i32, millis: c_int, context: *mut c_void,
) {
    // SAFETY: the name of the broker is a C string, which lives until this returns. The opaque pointer of a client is
    // its context, which the client keeps until all its threads ended.
    let (broker, context) = unsafe { (text(broker), &*context.cast::<C>()) };
    // librdkafka also tells the first answer without a delay.
    if millis > 0 {
        context.throttled(&broker.unwrap_or_default(), millis);
    }
}

/// Waits for a producer's next event, at most for `timeout`, and serves it.
pub(in super::super) fn serve<C: Deliveries>(client: &Client<C>, timeout: Duration) {
    // SAFETY: the client lives while it is borrowed. The queue and the event are owned, and destroyed at the end; texts
    // and messages of the event live until then. Texts are C strings.
    unsafe {
        let queue = sys::rd_kafka_queue_get_main(client.native_ptr());
        let event = sys::rd_kafka_queue_poll(queue, millis(timeout));
        sys::rd_kafka_queue_destroy(queue);
        let known = |pointer| text(pointer).unwrap_or_default();
        // No event has the type 0.
        match sys::rd_kafka_event_type(event) {
            sys::RD_KAFKA_EVENT_DR => {
                while let Some(message) = sys::rd_kafka_event_message_next(event).as_ref() {
                    if message.err != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                        client.context().given_up(&SentRecord(message), message.err.into());
                    }
                }
            }
            sys::RD_KAFKA_EVENT_LOG => {
                let (mut facility, mut line, mut level) = (ptr::null(), ptr::null(), 0);
                sys::rd_kafka_event_log(event, &mut facility, &mut line, &mut level);
                client.context().log(log_level(level), known(facility).trim(), known(line).trim());
            }
            sys::RD_KAFKA_EVENT_STATS => {
                client.context().stats_raw(known(sys::rd_kafka_event_stats(event)).as_bytes());
            }
            sys::RD_KAFKA_EVENT_ERROR => {
                let error = KafkaError::Global(sys::rd_kafka_event_error(event).into());
                client.context().error(error, known(sys::rd_kafka_event_error_string(event)).trim());
            }
            sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH => {
                let config = text(sys::rd_kafka_event_config_string(event));
                give_token(client, client.context().generate_oauth_token(config.as_deref()));
            }
            _ => {}
        }
        sys::rd_kafka_event_destroy(event);
    }
}

/// Returns the level of a line of librdkafka's log. It has those of syslog.
fn log_level(syslog: i32) -> RDKafkaLogLevel {
    match syslog {
        ..=2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}

/// Gives up the records that are queued or in flight.
pub(in super::super) fn purge<C: ClientContext>(client: &Client<C>) {
    // SAFETY: the client lives while it is borrowed; purge is thread-safe. The only error is that it is no producer.
    unsafe { sys::rd_kafka_purge(client.native_ptr(), sys::RD_KAFKA_PURGE_F_QUEUE | sys::RD_KAFKA_PURGE_F_INFLIGHT) };
}
