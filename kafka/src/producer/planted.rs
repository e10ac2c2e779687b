//! Plants the producer's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::ops::Deref;

use watermaster_core::round::{Failure, SendError};
use watermaster_settings as settings;

use super::config::Limits;
use super::topic_producer::{Destination, Producer};
use crate::client::KafkaError;
use crate::failpoint::{Fault, planted};
use crate::record::Output;

/// A [`Producer`] that makes the planted mistake, if it is one of the producer's.
pub struct PlantedProducer(Producer);

impl Deref for PlantedProducer {
    type Target = Producer;

    fn deref(&self) -> &Producer {
        &self.0
    }
}

impl PlantedProducer {
    pub fn new(
        kafka: &settings::Kafka,
        service: &settings::Service,
        limits: Limits,
    ) -> Result<PlantedProducer, KafkaError> {
        Producer::new(kafka, service, limits).map(PlantedProducer)
    }

    pub fn tainted(&self) -> bool {
        self.0.tainted() && !planted(Fault::NoTaint)
    }

    pub fn failing(&self) -> bool {
        if planted(Fault::IgnoredSendError) {
            self.0.take_failures();
        }
        self.0.failing()
    }

    pub fn take_failures(&self) -> Vec<(usize, Failure)> {
        let failures = self.0.take_failures();
        if planted(Fault::IgnoredSendError) { Vec::new() } else { failures }
    }

    pub fn send(&self, to: Destination<'_>, output: &mut Output<'_>, tag: usize) -> Result<(), SendError> {
        let sent = self.0.send(to, output, tag);
        if planted(Fault::IgnoredSendError) { Ok(()) } else { sent }
    }
}
