//! Tries whether transactions work.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::{BaseProducer, Producer as _};
use watermaster_settings::{Delivery, Kafka, Service, Settings};

use super::{Report, problem::Problem};
use crate::client::{self, LoggingContext};
use crate::{ffi, producer};

/// Registers a transactional id beside each service's own, which a running instance may hold, and adds findings about
/// transactions and permissions. Leaves an unused id at the brokers, which they forget after a week.
pub fn probe_transactions(settings: &Settings, timeout: Duration, report: &mut Report) {
    if settings.kafka.delivery != Delivery::ExactlyOnce || report.has_errors() {
        return;
    }
    for service in &settings.services {
        if let Err(problem) = probe(&settings.kafka, service, timeout) {
            report.findings.push(problem.of_service(&service.name));
        }
    }
}

fn probe(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<(), Problem> {
    let id = producer::transactional_id(kafka, service);
    let probe = format!("{id}.check");
    let transaction_timeout = producer::transaction_timeout(kafka).as_millis();
    let forced = [
        ("transactional.id", probe.as_str()),
        ("transaction.timeout.ms", &transaction_timeout.to_string()),
        ("enable.idempotence", "true"),
    ];
    let producer: BaseProducer<LoggingContext> =
        client::config(kafka, &[], &forced).create_with_context(LoggingContext).map_err(Problem::NoProducer)?;
    let Err(error) = ffi::transaction(producer.client(), ffi::TransactionStep::Init, timeout) else {
        return Ok(());
    };
    Err(match error.code {
        Code::TransactionalIdAuthorizationFailed => Problem::TransactionalIdDenied { probe, id },
        Code::ClusterAuthorizationFailed => Problem::IdempotentWriteDenied,
        Code::InvalidTransactionTimeout => Problem::TransactionTimeoutRefused { timeout: transaction_timeout },
        Code::UnsupportedFeature | Code::UnsupportedVersion => Problem::NoTransactions,
        code => Problem::TransactionFailed { seconds: timeout.as_secs(), reason: error.text, code },
    })
}
