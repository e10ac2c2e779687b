//! The table of keys: what may be written, and what holds where it is not.

use std::time::Duration;
use strum::VariantNames;

use watermaster_core::pace::Control;
use watermaster_core::policy::{CatchUp, Lending, MAX_CLIENTS, Mode, Overflow, Scope, Window};
use watermaster_core::units::MAX_CAPACITY;

use super::values::{RulePace, Scale};
use crate::model::{
    DeadLetterHeaders, Delivery, GroupProtocol, LogFormat, OnDataLoss, OnForeignOffset, OnUndeliverable, Role,
    StartFrom,
};
use crate::reader::Fallback::{Derived, Required, Text, Unset};
use crate::reader::Kind::{Addresses, Choice, Count, Decimal, Flag, Size, Texts};
use crate::reader::{Key, Kind, Schema, SectionSchema, Shape, key, reloaded_key, section};

/// librdkafka's properties that the protocol owns, by every name that they have, or that have a key of their own.
pub const REFUSED_PROPERTIES: &[(&str, &str)] = &[
    ("group.id", "kafka.group_id names it"),
    ("group.instance.id", "membership is dynamic"),
    ("transactional.id", "kafka.instance_id is part of it"),
    ("enable.idempotence", "the delivery guarantee needs it on"),
    ("acks", "the delivery guarantee needs \"all\""),
    ("request.required.acks", "the delivery guarantee needs \"all\""),
    ("isolation.level", "only committed records are read"),
    ("enable.auto.commit", "offsets are committed in rounds"),
    ("auto.commit.enable", "offsets are committed in rounds"),
    ("enable.auto.offset.store", "offsets are committed in rounds"),
    ("auto.offset.reset", "kafka.start_from and kafka.on_data_loss say it"),
    ("partition.assignment.strategy", "it is cooperative-sticky, or the brokers' with group_protocol = \"consumer\""),
    ("group.protocol", "kafka.group_protocol names it"),
    ("group.protocol.type", "librdkafka knows one only"),
    ("partitioner", "records keep the partition that Java's partitioner gives them"),
    ("delivery.report.only.error", "a round waits for each delivery"),
    ("bootstrap.servers", "kafka.bootstrap_servers names them"),
    ("metadata.broker.list", "kafka.bootstrap_servers names them"),
];

/// librdkafka's properties that the brokers set with `group_protocol = "consumer"`, and the setting of the broker.
pub const BROKER_SIDE_PROPERTIES: &[(&str, &str)] = &[
    ("session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
];

/// The beginnings of variables for tests, benchmarks and planted faults, which tests inside one process share with the
/// configuration.
const OTHER_VARIABLES: &[&str] = &[
    "BENCH_", "FAILPOINT", "FUZZ_", "GROUP_SEED", "KAFKA_CLASSES", "KAFKA_FEATURE", "KAFKA_HEAP", "KAFKA_JARS",
    "KAFKA_SCRAM", "PLANT", "RULES_SEED", "SIM_", "TEST_",
];

/// Keys of former versions.
const FORMER_KEYS: &[(&str, &str)] =
    &[("group_lease", "nothing: no lease is needed any more (group_ahead_time and group_silence have good defaults)")];

/// Times in milliseconds.
const SECOND: u64 = 1_000;
const DAY: u64 = 86_400 * SECOND;
/// Allows two of the longest cycles.
const MAX_IDLE_TIMEOUT: u64 = 30 * DAY;
/// Kafka's usual retention: a record that waits longer is lost at its source.
const MAX_DELAY: u64 = 7 * DAY;

/// Returns the kind of a duration from `min` to `max` milliseconds.
const fn millis(min: u64, max: u64) -> Kind {
    Kind::Duration(Duration::from_millis(min), Duration::from_millis(max))
}

const RATIO: Kind = Decimal("0 to 1, with at most six decimals");
const WEIGHT: Kind = Decimal("0.001 to 1000000, with at most three decimals");
const FILE: Kind = Kind::File("the path of a file of UTF-8 text that can be read");
const TOKEN_FILE: Kind = Kind::File(
    "the path of a file that can be read, that not every user may write, with a token of at least 16 characters and at \
     most 4096 bytes",
);
const SERVERS: Kind = Addresses("host:port of one or more brokers, separated by commas");
const INSTANCE_ID: Kind =
    Kind::Text("1 to 128 letters, digits, dots, dashes or underscores, and not \"seat.\" at the beginning");
const LISTEN: Kind = Kind::Text("an IP address and a port, such as \"127.0.0.1:9464\" or \"[::1]:9464\"");
const CLIENT_ID: Kind = Kind::Text("a client id of 1 to 128 bytes");
const CLIENT_IDS: Kind = Texts("a list of one or more client ids of 1 to 128 bytes, in which * stands for any text");
const CONSUMER_GROUP: Kind = Kind::Text("the id of a consumer group, 1 to 255 bytes");
const TOPIC: Kind = Kind::Text("1 to 249 letters, digits, dots, dashes or underscores, as Kafka has it");

/// The tables of a service by name, each of which counts without any key set.
pub const NAMED_TABLES: [&str; 2] = ["client", "group"];

/// Every key, in the order in which they are shown.
pub static SCHEMA: Schema = Schema {
    subject: "configuration",
    variable_prefix: "WATERMASTER_",
    other_variables: OTHER_VARIABLES,
    former_keys: FORMER_KEYS,
    root: section(
        "",
        Shape::Table,
        &[],
        &[
            section("kafka", Shape::Table, KAFKA, &PROPERTIES),
            section("admin", Shape::Table, ADMIN, &[section("token", Shape::OptionalList, ADMIN_TOKEN, &[])]),
            section("log", Shape::Table, LOG, &[]),
            section("service", Shape::Services, SERVICE, &SERVICE_SECTIONS),
        ],
    ),
};

/// librdkafka's own properties: their values, and the paths of files that hold values; and the schema registry.
static PROPERTIES: [SectionSchema; 3] = [
    section("properties", Shape::FreeTable, &[], &[]),
    section("properties_file", Shape::FreeTable, &[], &[]),
    section("schema_registry", Shape::Table, SCHEMA_REGISTRY, &[]),
];

static SERVICE_SECTIONS: [SectionSchema; 6] = [
    section("shape", Shape::Table, SHAPE, &[]),
    section("pace", Shape::Table, PACE, &[]),
    section("client", Shape::Map, CLIENT, &[section("limit", Shape::Table, LIMIT, &[])]),
    section("group", Shape::Map, GROUP, &[section("limit", Shape::Table, LIMIT, &[])]),
    section("source", Shape::List, SOURCE, &[]),
    section("rule", Shape::OptionalNamed, RULE, &RULE_SECTIONS),
];

static RULE_SECTIONS: [SectionSchema; 2] =
    [section("limit", Shape::Table, RULE_LIMIT, &[]), section("limits", Shape::OptionalList, RULE_LIMIT, &[])];

/// The keys of one rule of run time.
pub static RULE_SCHEMA: Schema = Schema {
    subject: "rule",
    variable_prefix: "",
    other_variables: &[],
    former_keys: &[],
    root: section("", Shape::Table, RULE, &RULE_SECTIONS),
};

const KAFKA: &[Key] = &[
    key("bootstrap_servers", SERVERS, Text("localhost:9092")),
    key("group_id", Kind::Text("1 to 100 letters, digits, dots, dashes or underscores"), Text("watermaster")),
    key("instance_id", INSTANCE_ID, Derived("the host's name")),
    key("delivery", Choice(Delivery::VARIANTS), Text("exactly_once")),
    key("group_protocol", Choice(GroupProtocol::VARIANTS), Text("classic")),
    key("min_commit_interval", millis(1, 10_000), Derived("the smaller of 20ms and commit_interval")),
    key("commit_interval", millis(1, 10_000), Text("100ms")),
    key("start_from", Choice(StartFrom::VARIANTS), Text("earliest")),
    key("on_foreign_offset", Choice(OnForeignOffset::VARIANTS), Text("stop")),
    key("on_data_loss", Choice(OnDataLoss::VARIANTS), Text("stop")),
    key("map_budget", Kind::Text("\"N chars\" or \"N bytes\", N from 64 to 4096"), Text("4096 chars")),
];

const SCHEMA_REGISTRY: &[Key] = &[
    key("url", Addresses("http://HOST:PORT or https://HOST, with or without a path"), Unset),
    key("username", Kind::Text("a text without a colon"), Unset),
    key("password", Kind::Secret("a text"), Unset),
    key("password_file", FILE, Unset),
    key("ca_file", FILE, Unset),
];

const ADMIN: &[Key] = &[
    key("listen", LISTEN, Text("127.0.0.1:9464")),
    reloaded_key("token_file", TOKEN_FILE, Unset),
    reloaded_key("metrics_token", Flag, Text("false")),
    key("tls_cert", Kind::File("the path of a file with certificates in PEM, the server's first"), Unset),
    key("tls_key", Kind::File("the path of a file with the private key of tls_cert in PEM, not encrypted"), Unset),
    key("metrics_clients", Count(0, 100_000), Text("200")),
    key("console", Flag, Text("true")),
];

const ADMIN_TOKEN: &[Key] = &[
    reloaded_key("name", Kind::Text("1 to 64 letters, digits, dashes or underscores"), Required),
    reloaded_key("file", TOKEN_FILE, Required),
    reloaded_key("role", Choice(Role::VARIANTS), Required),
    reloaded_key("services", Texts("a list of one or more names of services"), Unset),
];

const LOG: &[Key] = &[key("format", Choice(LogFormat::VARIANTS), Text("auto"))];

const PLACES: Kind = Texts(
    "a list of one or more of \"header:NAME\", \"header:NAME:^PATTERN\", \"json:/pointer\", \"avro:/FIELD/FIELD\", \
     \"protobuf:/FIELD/FIELD\", \"key\", \"key:^PATTERN\" and \"topic\"",
);

const SERVICE: &[Key] = &[
    key("name", Kind::Text("1 to 64 letters, digits, dashes or underscores"), Required),
    key("target", TOPIC, Required),
    key("dead_letter", TOPIC, Required),
    reloaded_key("capacity", Count(1, MAX_CAPACITY), Required),
    reloaded_key("capacity_min", Count(1, MAX_CAPACITY), Unset),
    reloaded_key("capacity_max", Count(1, MAX_CAPACITY), Unset),
    reloaded_key("cycle", millis(100, DAY), Text("10s")),
    reloaded_key("reservation", RATIO, Text("0.1")),
    reloaded_key("lending", Choice(Lending::VARIANTS), Text("proportional")),
    reloaded_key("mode", Choice(Mode::VARIANTS), Text("shape")),
    reloaded_key("enforce", Flag, Text("true")),
    reloaded_key("window", Choice(Window::VARIANTS), Text("sliding")),
    reloaded_key("catch_up", Choice(CatchUp::VARIANTS), Text("delay")),
    key("scope", Choice(Scope::VARIANTS), Text("group")),
    key("control_topic", TOPIC, Derived("<group_id>.<service>.seats")),
    key("group_ahead_time", millis(SECOND, 600_000), Derived("three cycles, at least 3s and at most 30s")),
    key("group_silence", millis(SECOND, 600_000), Text("6s")),
    key("on_undeliverable", Choice(OnUndeliverable::VARIANTS), Text("stop")),
    key("client_from", PLACES, Text("header:client-id, topic")),
    key("group_from", PLACES, Unset),
    key("consumer_group", CONSUMER_GROUP, Unset),
    reloaded_key("max_open", Count(1, MAX_CAPACITY), Unset),
    key("rules_topic", TOPIC, Unset),
    reloaded_key("rules_max_capacity", Count(1, MAX_CAPACITY), Unset),
    key("dead_letter_headers", Choice(DeadLetterHeaders::VARIANTS), Text("native")),
    key("redrive_client", Kind::Text("a client id, 1 to 128 bytes"), Text("redrive")),
    key("redrive_key_file", TOKEN_FILE, Unset),
    reloaded_key("max_clients", Count(1, MAX_CLIENTS as u64), Text("1000")),
    reloaded_key("unlisted_weight", WEIGHT, Text("1.0")),
    reloaded_key("client_idle_timeout", millis(SECOND, MAX_IDLE_TIMEOUT), Derived("the larger of 10m and two cycles")),
];

const SHAPE: &[Key] = &[
    reloaded_key("queue_capacity", Count(1, 1_000_000_000), Text("10000")),
    reloaded_key("queue_bytes", Size(1 << 10, 1 << 40), Text("256MiB")),
    reloaded_key("max_delay", millis(1, MAX_DELAY), Derived("no limit in mode shape, 60s in mode reject")),
    reloaded_key("overflow", Choice(Overflow::VARIANTS), Text("auto")),
    reloaded_key("burst", RATIO, Text("0.01")),
];

const PACE: &[Key] = &[
    key("group", CONSUMER_GROUP, Unset),
    reloaded_key("control", Choice(Control::VARIANTS), Text("observe")),
    reloaded_key("floor", Count(1, MAX_CAPACITY), Derived("a tenth of the capacity, or capacity_min if that is more")),
    reloaded_key("ceiling", Count(1, MAX_CAPACITY), Unset),
    reloaded_key("max_behind", millis(100, 3_600_000), Text("2s")),
    reloaded_key("interval", millis(SECOND, 300_000), Text("5s")),
    reloaded_key("poll", millis(100, 10_000), Text("500ms")),
    reloaded_key("signal_timeout", millis(SECOND, DAY), Text("5m")),
];

const CLIENT: &[Key] = &[reloaded_key("weight", WEIGHT, Unset)];

const GROUP: &[Key] = &[reloaded_key("weight", WEIGHT, Unset), reloaded_key("clients", CLIENT_IDS, Unset)];

const LIMIT: &[Key] = &[
    reloaded_key("rate", Count(1, u32::MAX as u64), Required),
    reloaded_key("per", millis(1, DAY), Text("1s")),
    reloaded_key("burst", Count(1, u32::MAX as u64), Derived("the value of rate")),
];

const RULE_LIMIT: &[Key] = &[LIMIT[0], LIMIT[1], LIMIT[2], reloaded_key("scale", Choice(Scale::VARIANTS), Unset)];

const IDS: Kind = Texts("a list of one or more ids of 1 to 128 bytes, in which * stands for any text");
const MOMENT: Kind = Kind::Moment("a date and a time with an offset, such as 2026-07-03T00:00:00+02:00");

const RULE: &[Key] = &[
    reloaded_key("name", Kind::Text("1 to 64 of a-z, 0-9, dots, dashes or underscores"), Required),
    reloaded_key("clients", IDS, Unset),
    reloaded_key("in_groups", IDS, Unset),
    reloaded_key("groups", IDS, Unset),
    reloaded_key("service", Flag, Text("false")),
    reloaded_key("priority", Kind::Whole(-1_000, 1_000), Text("0")),
    reloaded_key("from", MOMENT, Unset),
    reloaded_key("until", MOMENT, Unset),
    reloaded_key("disabled", Flag, Text("false")),
    reloaded_key("note", Kind::Text("a text of 1 to 256 bytes"), Unset),
    reloaded_key("weight", WEIGHT, Unset),
    reloaded_key("max_delay", millis(1, MAX_DELAY), Unset),
    reloaded_key("hold", Flag, Unset),
    reloaded_key("expire_before", MOMENT, Unset),
    reloaded_key("group", Kind::Text("the name of a group, or \"\" for the unlisted clients"), Unset),
    reloaded_key("capacity", Count(1, MAX_CAPACITY), Unset),
    reloaded_key("enforce", Flag, Unset),
    reloaded_key("pace", Choice(RulePace::VARIANTS), Unset),
];

const SOURCE: &[Key] = &[
    reloaded_key("topic", TOPIC, Unset),
    reloaded_key("topic_pattern", Kind::Text("a regular expression for whole names of topics"), Unset),
    reloaded_key("client", CLIENT_ID, Derived("the capture (?<client>…) of topic_pattern, or the topic's name")),
    reloaded_key("allowed_clients", Texts("a list of one or more client ids of 1 to 128 bytes each"), Unset),
    key("target", TOPIC, Unset),
    key("dead_letter", TOPIC, Unset),
];
