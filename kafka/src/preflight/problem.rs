//! Findings of the checks, with their severity and text.

use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};

/// A finding of a check.
#[derive(Debug, Clone)]
pub struct Finding {
    pub severity: Severity,
    /// The service that it is about, unless it is about the brokers.
    pub service: Option<String>,
    pub topic: Option<String>,
    pub problem: Problem,
}

impl Finding {
    /// Returns whether the brokers may answer otherwise when they are asked again.
    pub fn may_pass(&self) -> bool {
        use Code::{BrokerNotAvailable, LeaderNotAvailable, ReplicaNotAvailable, RequestTimedOut};
        match self.problem {
            Problem::TopicUnanswered(_) => true,
            Problem::TopicRefused(code) => {
                matches!(code, BrokerNotAvailable | LeaderNotAvailable | ReplicaNotAvailable | RequestTimedOut)
            }
            _ => false,
        }
    }
}

/// The severity of a finding. With an error, its service can't work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Severity {
    #[strum(serialize = "note")]
    Info,
    Warning,
    Error,
}

/// A problem that was found. The text says how to resolve it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Problem {
    #[error("does not exist: create it")]
    MissingTopic,
    #[error("can't be looked up: {0}")]
    TopicUnanswered(#[source] ClientError),
    #[error("can't be looked up: {0}")]
    TopicRefused(Code),
    #[error(
        "no topic of the cluster matches topic_pattern = {pattern:?}{}",
        .nearest.as_ref().map(|topic| format!(": the nearest is {topic}")).unwrap_or_default()
    )]
    NothingMatches { pattern: String, nearest: Option<String> },
    #[error("does not exist: it is made at the start, if this program may make topics")]
    ControlMissing,
    /// Any other problem: the program reacts by its severity alone.
    #[error("{1}")]
    Other(Severity, String),
}

impl Problem {
    pub(super) fn note(text: impl Into<String>) -> Problem {
        Problem::Other(Severity::Info, text.into())
    }

    pub(super) fn warning(text: impl Into<String>) -> Problem {
        Problem::Other(Severity::Warning, text.into())
    }

    pub(super) fn error(text: impl Into<String>) -> Problem {
        Problem::Other(Severity::Error, text.into())
    }

    fn severity(&self) -> Severity {
        match self {
            Problem::ControlMissing => Severity::Info,
            Problem::NothingMatches { .. } => Severity::Warning,
            Problem::MissingTopic | Problem::TopicUnanswered(_) | Problem::TopicRefused(_) => Severity::Error,
            Problem::Other(severity, _) => *severity,
        }
    }

    pub(super) fn of_brokers(self) -> Finding {
        Finding { severity: self.severity(), service: None, topic: None, problem: self }
    }

    pub(super) fn of_service(self, service: &str) -> Finding {
        Finding { service: Some(service.to_owned()), ..self.of_brokers() }
    }

    pub(super) fn of_topic(self, service: &str, topic: &str) -> Finding {
        Finding { topic: Some(topic.to_owned()), ..self.of_service(service) }
    }
}
