//! A look at each record that a producer takes for delivered, in the thread that took the broker's answer.
//!
//! A report of each such record would pass through a queue to another thread, which took 3.6 % of the processor time of
//! a forwarded record.

use std::ffi::{CStr, c_void};

use rdkafka::client::{Client, ClientContext};
use rdkafka::{bindings as sys, types::RDKafkaRespErr, util::IntoOpaque as _};

/// A record that the producer takes for delivered.
pub(in super::super) struct Acknowledged<'a>(&'a sys::rd_kafka_message_t);

impl Acknowledged<'_> {
    /// Returns the offset that the broker told; a negative number or the ones after it if it told none.
    pub fn offset(&self) -> i64 {
        self.0.offset
    }

    /// Returns the partition, and an address that stands for its topic.
    pub fn partition(&self) -> (usize, i32) {
        (self.0.rkt.addr(), self.0.partition)
    }

    pub fn topic(&self) -> String {
        // SAFETY: a message of a producer keeps its topic, whose name is a C string that never changes.
        unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.0.rkt)).to_string_lossy().into_owned() }
    }

    /// Returns the tag with which the record was handed over.
    pub fn tag(&self) -> usize {
        // SAFETY: the pointer was a tag: see `produce`.
        unsafe { usize::from_ptr(self.0._private) }
    }
}

/// Takes the records that a producer takes for delivered, each before a flush returns. The calls come from all threads
/// that talk to brokers; the records of one answer come one after the other in one thread.
pub(in super::super) trait Acknowledgements: ClientContext {
    fn acknowledged(&self, record: &Acknowledged<'_>);
}

/// Lets the producer's context see each record that is taken for delivered. To be called once, before the first record.
pub(in super::super) fn watch_acknowledged<C: Acknowledgements>(client: &Client<C>) {
    unsafe extern "C" fn call<C: Acknowledgements>(
        _: *mut sys::rd_kafka_t, message: *mut sys::rd_kafka_message_t, context: *mut c_void,
    ) -> RDKafkaRespErr {
        // SAFETY: librdkafka changes the message no more before this returns; the context is that of the client.
        let (message, context) = unsafe { (&*message, &*context.cast::<C>()) };
        // A failed one is reported.
        if message.err == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            context.acknowledged(&Acknowledged(message));
        }
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
    }
    let context: *const C = &**client.context();
    // SAFETY: the client lives while it is borrowed, and no other thread looks at the list of these functions before
    // there is a record. A client keeps its context until all its threads have ended. The name is a C string, which is
    // copied. The only error is that the function is there already.
    unsafe {
        let (client, context) = (client.native_ptr(), context.cast_mut().cast());
        sys::rd_kafka_interceptor_add_on_acknowledgement(client, c"offsets".as_ptr(), Some(call::<C>), context);
    }
}
