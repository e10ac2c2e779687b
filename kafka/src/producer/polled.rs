//! A client with a thread that serves its events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{sync::Arc, thread, time::Duration};

use rdkafka::{ClientConfig, client::Client};

use super::context::DeliveryContext;
use crate::{client::KafkaError, ffi, oauth};

/// The longest wait for an event, and so for the end of the thread.
const SERVE_TIMEOUT: Duration = Duration::from_millis(100);
const THREAD: &str = "kafka-reports";

pub(super) struct PolledProducer {
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
