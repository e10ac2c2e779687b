//! The settings that a configuration means: validated, with defaults filled in.
//!
//! `config` reads the configuration as it is written and turns it into these. Nothing is validated a second time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use watermaster_core::policy::Policy;

use crate::choices;

/// All settings of the program.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kafka: Kafka,
    pub admin: Admin,
    pub log: LogFormat,
    pub services: Vec<Service>,
}

/// The cluster, and how to treat it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kafka {
    pub bootstrap_servers: String,
    pub group_id: String,
    pub instance_id: String,
    pub delivery: Delivery,
    pub group_protocol: GroupProtocol,
    pub commit_interval: Duration,
    pub start_from: StartFrom,
    pub on_foreign_offset: OnForeignOffset,
    pub on_data_loss: OnDataLoss,
    /// librdkafka's own properties, including those from files; never the ones that the protocol owns.
    pub properties: BTreeMap<String, String>,
}

choices! {
    /// The guarantee for a reader of the target.
    pub enum Delivery {
        AtLeastOnce = "at_least_once",
        ExactlyOnce = "exactly_once",
    }

    /// The assignment of partitions to the instances of a group.
    pub enum GroupProtocol {
        /// By one of the instances, cooperative-sticky. Any broker supports it.
        Classic = "classic",
        /// By the broker (KIP-848): Apache Kafka 4.0 or later.
        Consumer = "consumer",
    }

    /// The start of a partition without a committed offset.
    pub enum StartFrom {
        Earliest = "earliest",
        Latest = "latest",
    }

    /// The reaction to a committed offset that another program committed.
    pub enum OnForeignOffset {
        Stop = "stop",
        Replay = "replay",
    }

    /// The reaction to records that were deleted before they were read.
    pub enum OnDataLoss {
        Stop = "stop",
        Continue = "continue",
    }

    /// The reaction to a record that the dead-letter topic refuses, too.
    pub enum OnUndeliverable {
        Stop = "stop",
        Discard = "discard",
    }

    /// The format of log lines.
    pub enum LogFormat {
        /// Text on a terminal, JSON elsewhere.
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
}

/// The HTTP server.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    pub token_file: Option<PathBuf>,
    /// The number of clients with a metric label of their own.
    pub metrics_clients: usize,
}

/// One protected service.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: String,
    pub target: String,
    pub dead_letter: String,
    pub on_undeliverable: OnUndeliverable,
    /// Tried in order.
    pub client_from: Vec<ClientFrom>,
    pub sources: Vec<Source>,
    /// The settings that the core needs.
    pub policy: Policy,
}

/// A place in a record that holds the client id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrom {
    /// The value of the header with this name.
    Header(String),
    /// The string at this JSON pointer (RFC 6901) in the record's value; unescaped reference tokens.
    Json(Vec<String>),
    /// The record's key.
    Key,
    /// The `client` of the source.
    Topic,
}

/// One source topic.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub topic: String,
    /// The client id that `client_from = ["topic"]` yields.
    pub client: Option<String>,
    /// The clients that may send to this topic; `None` for all.
    pub allowed_clients: Option<Vec<String>>,
}
