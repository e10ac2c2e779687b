//! The settings that a configuration means: validated, with defaults filled in.
//!
//! `config` reads the configuration as it is written and turns it into these. Nothing is validated a second time.

use std::{borrow::Cow, collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use strum::{Display, EnumString, VariantNames};
use watermaster_core::pace::{Control, PaceParams};
use watermaster_core::policy::Policy;

use crate::pattern::{Pattern, TopicPattern};
use crate::secrets::{Password, Secrets};
use crate::tls::TlsIdentity;
use crate::token::{SharedToken, Token};

/// All settings of the program.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kafka: Kafka,
    pub admin: Admin,
    pub log: LogFormat,
    pub services: Vec<Service>,
    /// True if `kafka.start_from` is written: a first start needs this decision. It is no part of what `kafka` means.
    pub start_from_is_written: bool,
}

/// The cluster, and how to treat it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kafka {
    pub bootstrap_servers: String,
    pub group_id: String,
    pub instance_id: String,
    pub delivery: Delivery,
    pub group_protocol: GroupProtocol,
    /// The shortest time from the start of a round to the start of the next one.
    pub min_commit_interval: Duration,
    /// The longest time from the start of a round to the start of the next one, if there is something to commit.
    pub commit_interval: Duration,
    pub start_from: StartFrom,
    pub on_foreign_offset: OnForeignOffset,
    pub on_data_loss: OnDataLoss,
    /// librdkafka's own properties; never the ones that the protocol owns.
    pub properties: BTreeMap<String, String>,
    /// The values that come from files: those of `kafka.properties_file`, and certificates and keys in PEM.
    pub secrets: Secrets,
    /// The files that properties name, by property. `secrets` has their contents, or librdkafka reads them.
    pub property_files: BTreeMap<String, PathBuf>,
    pub schema_registry: Option<SchemaRegistry>,
}

impl Kafka {
    /// Returns librdkafka's own properties with the values in force.
    pub fn all_properties(&self) -> BTreeMap<String, String> {
        let mut all = self.properties.clone();
        all.extend(self.secrets.values());
        all
    }

    /// Returns the most transactions per second that an instance commits: one each `min_commit_interval`, or none with
    /// `at_least_once`.
    pub fn transactions_per_second(&self) -> f64 {
        match self.delivery {
            Delivery::ExactlyOnce => self.min_commit_interval.as_secs_f64().recip(),
            Delivery::AtLeastOnce => 0.0,
        }
    }
}

/// The registry of the schemas by which values are written.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaRegistry {
    /// The address, perhaps with a path.
    pub url: String,
    pub login: Option<RegistryLogin>,
    /// The certificates that may sign the registry's; otherwise those that the system trusts.
    pub ca_file: Option<PathBuf>,
}

/// A user of the registry, and the password.
#[derive(Debug, Clone, PartialEq)]
pub struct RegistryLogin {
    pub username: String,
    pub password: Password,
}

/// The guarantee for a reader of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

/// The assignment of partitions to the instances of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum GroupProtocol {
    /// By one of the instances, cooperative-sticky. Any broker supports it.
    Classic,
    /// By the broker (KIP-848): Apache Kafka 4.0 or later.
    Consumer,
}

/// The start of a partition without a committed offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum StartFrom {
    Earliest,
    Latest,
}

/// The reaction to a committed offset that another program committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum OnForeignOffset {
    Stop,
    Replay,
}

/// The reaction to records that were deleted before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum OnDataLoss {
    Stop,
    Continue,
}

/// The reaction to a record that the dead-letter topic refuses, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum OnUndeliverable {
    Stop,
    Discard,
}

/// The headers that a dead letter gains beside those of Watermaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum DeadLetterHeaders {
    /// None.
    Native,
    /// The headers of Spring for Apache Kafka, `kafka_dlt-*`.
    Spring,
    /// The headers of Kafka Connect, `__connect.errors.*`.
    Connect,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

/// The HTTP server.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// The tokens that requests may carry.
    pub tokens: Vec<AdminToken>,
    /// `/metrics` needs a token, too.
    pub metrics_token: bool,
    /// The certificate of the server; `None` for plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// The address shows the console, a page for browsers.
    pub console: bool,
    /// Requests from this machine need no token at all. No configuration sets it, only the demo does.
    pub open_on_loopback: bool,
    /// The number of clients with a metric label of their own.
    pub metrics_clients: usize,
}

/// A token for the HTTP API.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminToken {
    /// The name by which the log calls it.
    pub name: String,
    pub role: Role,
    /// The services of which it may change rules; empty for all.
    pub services: Vec<String>,
    pub token: Token,
}

/// The requests that a token allows; each role allows what those before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    /// Reads `/v1` and `/metrics`, and tries rules in dry runs.
    Read,
    /// Writes rules of run time for clients and groups.
    Write,
    /// Changes everything else, such as by a reload, and writes rules for the service.
    Operate,
}

/// One protected service.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: String,
    /// The outputs of the sources that name none of their own.
    pub target: String,
    pub dead_letter: String,
    pub on_undeliverable: OnUndeliverable,
    /// Tried in order.
    pub client_from: Vec<ClientFrom>,
    /// The places of the client's group, tried in order; none if records name no groups.
    pub group_from: Vec<ClientFrom>,
    /// The sources that are named, and those that match a pattern once the topics of the cluster are known.
    pub sources: Vec<Source>,
    pub patterns: Vec<SourcePattern>,
    /// The topic through which the instances share one capacity, with `scope = "group"`.
    pub control_topic: String,
    /// The time for which an instance may use what it has announced in the control topic; `None` if it follows from the
    /// cycle.
    pub group_ahead_time: Option<Duration>,
    /// The silence after which the other instances take over the part of one.
    pub group_silence: Duration,
    pub dead_letter_headers: DeadLetterHeaders,
    /// The client of dead letters that `dlq redrive` sends again.
    pub redrive_client: String,
    /// The key by which such a record is known; without it, the record counts for the client that sent it first.
    pub redrive_key: Option<SharedToken>,
    /// The consumer group that reads the target, if its lag is to be shown.
    pub consumer_group: Option<String>,
    /// The most admitted records that `consumer_group`, which is set then, has not committed.
    pub max_open: Option<u64>,
    /// The topic of the rules that change while the program runs; `None` if no rule does.
    pub rules_topic: Option<String>,
    /// The largest capacity that a rule may set.
    pub rules_max_capacity: u64,
    /// The search for the capacity, if it is wanted; `consumer_group` is set then.
    pub pace: Option<PaceSettings>,
    /// The settings that the core needs.
    pub policy: Policy,
}

impl Service {
    /// Returns a service with nothing configured but this.
    pub fn new(name: &str, client_from: ClientFrom, sources: Vec<Source>, policy: Policy) -> Service {
        Service {
            name: name.to_owned(),
            target: "target".to_owned(),
            dead_letter: "dead".to_owned(),
            on_undeliverable: OnUndeliverable::Stop,
            client_from: vec![client_from],
            group_from: Vec::new(),
            sources,
            patterns: Vec::new(),
            control_topic: "control".to_owned(),
            group_ahead_time: None,
            group_silence: Duration::from_secs(6),
            dead_letter_headers: DeadLetterHeaders::Native,
            redrive_client: "redrive".to_owned(),
            redrive_key: None,
            consumer_group: None,
            max_open: None,
            rules_topic: None,
            rules_max_capacity: policy.capacity,
            pace: None,
            policy,
        }
    }

    /// Returns the client to which all records of a source belong, by its full name.
    pub fn sole_client<'s>(&self, source: &'s Source) -> Option<Cow<'s, str>> {
        let client = sole_client(source.client.as_deref(), source.allowed_clients.as_deref(), &self.client_from)?;
        match (&self.group_from[..], &source.client) {
            ([], _) => Some(Cow::Borrowed(client)),
            ([ClientFrom::Topic], Some(group)) if !group.contains('/') => Some(self.policy.full_name(group, client)),
            _ => None,
        }
    }

    /// Returns the topics of admitted records: the service's own, then those of its sources.
    pub fn targets(&self) -> Vec<&str> {
        distinct(&self.target, self.outputs_of_sources().map(|(target, _)| target))
    }

    /// Returns the topics of rejected records: the service's own, then those of its sources.
    pub fn dead_letters(&self) -> Vec<&str> {
        distinct(&self.dead_letter, self.outputs_of_sources().map(|(_, dead_letter)| dead_letter))
    }

    fn outputs_of_sources(&self) -> impl Iterator<Item = (&str, &str)> {
        let by_pattern = self.patterns.iter().map(|pattern| &pattern.source);
        self.sources.iter().chain(by_pattern).map(|source| (&*source.target, &*source.dead_letter))
    }

    /// Returns the topic for dead letters of this topic that are not sent again.
    pub fn parked(dead_letter: &str) -> String {
        format!("{dead_letter}.parked")
    }

    /// Returns the topic that tells which dead letters are done, in all topics of dead letters.
    pub fn ledger(&self) -> String {
        Service::ledger_beside(&self.dead_letter)
    }

    /// Returns the ledger of a service with this `dead_letter`.
    pub(crate) fn ledger_beside(dead_letter: &str) -> String {
        format!("{dead_letter}.ledger")
    }

    /// Returns the default name of version 0.2 for its control topic.
    pub fn former_control_topic(&self, group_id: &str) -> String {
        format!("{group_id}.{}.control", self.name)
    }
}

/// Returns a name and the others that differ, in order.
fn distinct<'t>(own: &'t str, others: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut names = vec![own];
    for other in others {
        if !names.contains(&other) {
            names.push(other);
        }
    }
    names
}

/// The search for the capacity in the commits of the service's consumer group.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceSettings {
    pub params: PaceParams,
    /// The time between two questions for offsets.
    pub poll: Duration,
}

impl PaceSettings {
    /// Returns whether the limit follows the search.
    pub fn applies(&self) -> bool {
        self.params.control == Control::Apply
    }
}

/// A place in a record that holds the client id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientFrom {
    /// The value of the header with this name.
    Header(String),
    /// The part of that header's value that the pattern finds.
    HeaderPart(String, Pattern),
    /// The string or the integer at this JSON pointer (RFC 6901) in the record's value; unescaped reference tokens.
    Json(Vec<String>),
    /// The string, the integer or the symbol of an enum at this path of fields in a value that names its schema.
    Schema(SchemaFormat, Vec<String>),
    /// The record's key.
    Key,
    /// The part of the record's key that the pattern finds.
    KeyPart(Pattern),
    /// The `client` of the source.
    Topic,
}

/// A format of values that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[strum(serialize_all = "snake_case")]
pub enum SchemaFormat {
    Avro,
    Protobuf,
}

/// One source topic.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub topic: String,
    /// The client id that `client_from = ["topic"]` yields; always set if `client_from` has `topic`.
    pub client: Option<String>,
    /// The clients that may send to this topic; `None` for all.
    pub allowed_clients: Option<Vec<String>>,
    /// The topic of its admitted records: its own, or that of the service.
    pub target: String,
    /// The topic of its rejected records: its own, or that of the service.
    pub dead_letter: String,
    /// The topic is read because it matches a pattern: it may be deleted at any time.
    pub by_pattern: bool,
}

impl Source {
    /// Returns a source with nothing configured but this, of a service that [`Service::new`] makes.
    pub fn new(topic: &str) -> Source {
        Source {
            topic: topic.to_owned(),
            client: None,
            allowed_clients: None,
            target: "target".to_owned(),
            dead_letter: "dead".to_owned(),
            by_pattern: false,
        }
    }

    /// Returns whether the client with this id may send to the topic.
    pub fn allows(&self, client: &str) -> bool {
        self.allowed_clients.as_ref().is_none_or(|allowed| allowed.iter().any(|one| one == client))
    }
}

/// The sources that match one pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePattern {
    pub pattern: TopicPattern,
    /// The source that each topic makes, but for its name. Without a client, that is the capture `client` of the topic,
    /// or else its name.
    pub source: Source,
}

/// Returns the client to which all records of a topic belong that has this client and allows these: the only one that
/// may send, or the topic's own, unless a record names another one by a place of `client_from` before `topic`.
pub(crate) fn sole_client<'s>(
    client: Option<&'s str>, allowed: Option<&'s [String]>, client_from: &[ClientFrom],
) -> Option<&'s str> {
    let by_topic = client.filter(|_| client_from.contains(&ClientFrom::Topic));
    match allowed {
        None => by_topic,
        Some([only]) => Some(only),
        Some(allowed) => by_topic
            .filter(|_| client_from == [ClientFrom::Topic])
            .filter(|client| allowed.iter().any(|one| one == client)),
    }
}
