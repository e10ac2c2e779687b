//! Tries transactions with ids that no instance has.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::{BaseProducer, Producer as _};
use watermaster_settings::{Delivery, Kafka, Service};

use super::{is_grouped, problem::Problem};
use crate::client::{LoggingContext, config, create};
use crate::{ffi, producer};

/// The seat of the id that is tried. No instance can have this name, so a running one is not fenced. An ACL for the id
/// of one instance does not cover it: that would not do, since an instance also opens the bank and the seats of others.
const SEAT: &str = "~check";

/// Initialises an id for each kind of transactions that a service needs.
///
/// # Errors
/// Returns the first problem. The grant that is proposed for seats covers the other id, too.
pub(super) fn probe(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<(), Problem> {
    let own = producer::transactional_id(kafka, service);
    if is_grouped(service) {
        let id = format!("{}{SEAT}", producer::seat_id_prefix(kafka, service));
        initialise(kafka, &id, producer::seat_transaction_timeout(kafka), timeout, |probe| {
            let prefix = format!("{}.{}.", kafka.group_id, service.name);
            let command = format!(
                "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:NAME --operation Write --operation \
                 Describe --transactional-id {prefix} --resource-pattern-type prefixed",
                kafka.bootstrap_servers
            );
            Problem::error(format!(
                "not allowed to use the transactional id {probe}: instances with scope = \"group\" open the seats of \
                 each other, with both deliveries, and need WRITE and DESCRIBE on all ids that begin with {prefix}; \
                 grant them with\n  {command}\nor set scope = \"instance\""
            ))
        })?;
    }
    if kafka.delivery == Delivery::ExactlyOnce {
        let id = format!("{own}.check");
        initialise(kafka, &id, producer::transaction_timeout(kafka), timeout, |probe| {
            Problem::warning(format!(
                "not allowed to use the transactional id {probe}: exactly_once needs WRITE and DESCRIBE on {own} or, \
                 better, on all that begin so"
            ))
        })?;
    }
    Ok(())
}

fn initialise(
    kafka: &Kafka, id: &str, transaction_timeout: Duration, timeout: Duration, denied: impl FnOnce(String) -> Problem,
) -> Result<(), Problem> {
    let transaction_timeout = transaction_timeout.as_millis();
    let forced = [
        ("transactional.id", id),
        ("transaction.timeout.ms", &transaction_timeout.to_string()),
        ("enable.idempotence", "true"),
    ];
    let config = config(kafka, &[], &forced);
    let producer: BaseProducer<_> = create(&config, LoggingContext::default(), BaseProducer::client)
        .map_err(|error| Problem::error(format!("a transactional producer can't be made: {error}")))?;
    let Err(error) = ffi::transaction(producer.client(), ffi::TransactionStep::Init, timeout) else {
        return Ok(());
    };
    Err(match error.code {
        Code::TransactionalIdAuthorizationFailed => denied(id.to_owned()),
        Code::ClusterAuthorizationFailed => {
            Problem::error("not allowed to write idempotently: grant IDEMPOTENT_WRITE on the cluster")
        }
        Code::InvalidTransactionTimeout => Problem::error(format!(
            "transaction.timeout.ms is {transaction_timeout}, more than the brokers allow (transaction.max.timeout.ms)"
        )),
        Code::UnsupportedFeature | Code::UnsupportedVersion => Problem::error(
            "the brokers know no transactions: neither kafka.delivery = \"exactly_once\" nor scope = \"group\" works \
             with them",
        ),
        _ => Problem::error(format!("no transaction could be prepared within {} s: {error}", timeout.as_secs())),
    })
}
