//! A client with a thread that serves its reports and events.
//!
//! (rdkafka's `ThreadedProducer` waits 99.99 ms as 99 ms and then spins through the last millisecond of each 100.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::{sync::Arc, thread, time::Duration};

use rdkafka::client::Client;
use rdkafka::producer::{BaseProducer, Producer as _, PurgeConfig};

use super::context::DeliveryContext;
use crate::{client::KafkaError, ffi};

/// The longest wait for an event. It is a little more than whole milliseconds, so that no remainder of a millisecond is
/// left afterwards: librdkafka's timeouts are whole milliseconds.
const SERVE_TIMEOUT: Duration = Duration::from_micros(100_050);
const THREAD: &str = "kafka-reports";

pub(super) struct PolledProducer {
    base: Arc<BaseProducer<DeliveryContext>>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PolledProducer {
    pub fn new(base: BaseProducer<DeliveryContext>) -> Result<PolledProducer, KafkaError> {
        let (base, stop) = (Arc::new(base), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&base), Arc::clone(&stop));
        let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                served.poll(SERVE_TIMEOUT);
            }
        });
        let thread = thread.map_err(|source| KafkaError::Thread { name: THREAD, source })?;
        Ok(PolledProducer { base, stop, thread: Some(thread) })
    }

    pub fn client(&self) -> &Client<DeliveryContext> {
        self.base.client()
    }

    pub fn serve_waiting(&self) {
        for _ in 0..ffi::waiting_events(self.client()) {
            self.base.poll(Duration::ZERO);
        }
    }

    /// Gives up queued records and those in flight.
    pub fn purge(&self) {
        self.base.purge(PurgeConfig::default().queue().inflight());
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The only error is a panic, which was logged.
            let _ = thread.join();
        }
    }
}
