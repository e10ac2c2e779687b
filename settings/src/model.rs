//! The configuration as it is meant: validated, defaults filled in, nothing optional that has a default.
//!
//! `config` holds it as written and turns it into this; below this nothing is validated twice.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use watermaster_core::policy::Policy;

/// Everything that the program was told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kafka: Kafka,
    pub admin: Admin,
    pub log: LogFormat,
    pub services: Vec<Service>,
}

/// How to reach Kafka and how to treat it.
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
    /// librdkafka's own properties, those from files included; never the ones that the protocol owns.
    pub properties: BTreeMap<String, String>,
}

/// What a reader of the target may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

/// How the instances of a group share out partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupProtocol {
    /// Among themselves, cooperative-sticky: any broker.
    Classic,
    /// The broker does (KIP-848): Apache Kafka 4.0 or later.
    Consumer,
}

/// Where a partition without a committed offset starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFrom {
    Earliest,
    Latest,
}

/// What to do about a committed offset that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnForeignOffset {
    Stop,
    Replay,
}

/// What to do when records were deleted before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDataLoss {
    Stop,
    Continue,
}

/// What to do with a record that the dead-letter topic refuses too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUndeliverable {
    Stop,
    Discard,
}

/// The HTTP side.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    pub token_file: Option<PathBuf>,
    /// How many clients get a metric label of their own.
    pub metrics_clients: usize,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
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
    /// What the core needs to know.
    pub policy: Policy,
}

/// Where a record's client id is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrom {
    /// The value of the header with this name.
    Header(String),
    /// The string at this JSON pointer (RFC 6901) in the record's value; unescaped reference tokens.
    Json(Vec<String>),
    /// The record's key.
    Key,
    /// The `client` given for the source.
    Topic,
}

/// One source topic.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub topic: String,
    /// What `client_from = ["topic"]` yields.
    pub client: Option<String>,
    /// Who may send here; `None`: anybody.
    pub allowed_clients: Option<Vec<String>>,
}
