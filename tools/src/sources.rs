//! The service that a command is about, with the topics that match its patterns now.

use std::io;

use watermaster_kafka::preflight::{ConnectError, TopicList};
use watermaster_kafka::{KafkaError, ask::AskError};
use watermaster_settings::{Kafka, Service, Settings, config::ConfigErrors};

use crate::cli::{CONNECT_TIMEOUT, ChoiceError, ConfigFile, Exit, choose};

/// A command on a service can't begin.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error("error: {0}")]
    Connect(#[from] ConnectError),
    #[error("error: the topics that match a pattern are not known: {0}")]
    Names(#[source] KafkaError),
    #[error("error: {0}")]
    Open(#[source] AskError),
    #[error("error: can't listen for signals: {0}")]
    Signals(#[source] io::Error),
}

impl ServiceError {
    pub fn exit(&self) -> Exit {
        match self {
            ServiceError::Choice(_) => Exit::Usage,
            ServiceError::Connect(ConnectError::Unreachable(_)) | ServiceError::Names(_) => Exit::Unreachable,
            ServiceError::Open(error) if error.is_silence() => Exit::Unreachable,
            ServiceError::Config(_) | ServiceError::Connect(_) | ServiceError::Open(_) => Exit::Config,
            ServiceError::Signals(_) => Exit::Stopped,
        }
    }
}

/// Reads the configuration, and chooses the service like [`service_of`].
///
/// # Errors
/// The configuration is wrong, or those of [`service_of`].
pub fn configured(file: &ConfigFile, name: Option<&str>) -> Result<(Kafka, Service), ServiceError> {
    service_of(file.load()?.settings, name)
}

/// Chooses the service of this name, or the only one. Its sources include the topics that match its patterns; without
/// patterns, no broker is asked.
///
/// # Errors
/// There is no such service, several and no name, or no broker tells its topics.
pub fn service_of(settings: Settings, name: Option<&str>) -> Result<(Kafka, Service), ServiceError> {
    let service = choose(&settings.services, name)?.clone();
    if service.patterns.is_empty() {
        return Ok((settings.kafka, service));
    }
    let list = TopicList::connect(&settings.kafka, CONNECT_TIMEOUT)?;
    let settings = settings.with_matches(&list.names(CONNECT_TIMEOUT).map_err(ServiceError::Names)?);
    let service = choose(&settings.services, Some(&service.name))?.clone();
    Ok((settings.kafka, service))
}
