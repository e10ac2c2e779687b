//! The keys of a scenario.

use std::time::Duration;
use strum::VariantNames;

use watermaster_settings::reader::Fallback::{Derived, Required, Text, Unset};
use watermaster_settings::reader::Kind::{self, Choice, Count, DecimalOrPercent, Integers};
use watermaster_settings::reader::{Key, Schema, SectionSchema, Shape, key, section};

use super::{Arrivals, PhaseKind};

/// The highest rate, in records per second.
pub const MAX_RATE: f64 = 1_000_000.0;
/// The highest rate, in percent of the capacity.
pub const MAX_PERCENT: f64 = 100_000.0;
/// The largest value of a record.
pub const MAX_VALUE_BYTES: u64 = 1_000_000;
/// The values of `value_bytes`.
pub const VALUE_BYTES: &str = "a size in bytes, or [smallest, largest], from 0 to 1000000";

const RATE: Kind = DecimalOrPercent(
    "records per second (50, 0.5) or a part of the service's capacity (\"80%\"), from 0 to 1000000 or 100000%",
);
const LENGTH: Kind = Kind::Duration(Duration::from_millis(1), Duration::from_secs(7 * 24 * 3600));
const TEXT: Kind = Kind::Text("a text");

/// Every key of a scenario.
pub static SCHEMA: Schema = Schema {
    subject: "scenario",
    // No variable sets a key: none of them is read.
    variable_prefix: "",
    root: section("", Shape::Table, SCENARIO, &CLIENTS),
};

static CLIENTS: [SectionSchema; 1] = [section("client", Shape::List, CLIENT, &CLIENT_SECTIONS)];
static CLIENT_SECTIONS: [SectionSchema; 2] = [
    section("phase", Shape::List, &[key("kind", Choice(PhaseKind::VARIANTS), Required)], &PHASE_KINDS),
    section("retry", Shape::Table, RETRY, &[]),
];
static PHASE_KINDS: [SectionSchema; 4] = [
    section("steady", Shape::Variant, STEADY, &[]),
    section("ramp", Shape::Variant, RAMP, &[]),
    section("burst", Shape::Variant, BURST, &[]),
    section("campaign", Shape::Variant, CAMPAIGN, &[]),
];

const SCENARIO: &[Key] = &[
    key("name", TEXT, Derived("the file's name")),
    key("description", TEXT, Text("")),
    key("seed", Count(0, i64::MAX as u64), Text("1")),
];
const CLIENT: &[Key] = &[
    key("id", Kind::Text("a client id of 1 to 128 bytes"), Required),
    key("topic", Kind::Text("a source topic of the service"), Unset),
    key("value_bytes", Integers(VALUE_BYTES), Text("300")),
    key("arrivals", Choice(Arrivals::VARIANTS), Text("poisson")),
    key("keys", Count(0, 1_000_000), Text("100")),
];
const RETRY: &[Key] = &[
    key("backoff", LENGTH, Text("500ms")),
    key("max_backoff", LENGTH, Text("10s")),
    key("attempts", Count(2, 100), Text("5")),
];
const STEADY: &[Key] = &[key("rate", RATE, Required), key("for", LENGTH, Required)];
const RAMP: &[Key] = &[key("from", RATE, Required), key("to", RATE, Required), key("for", LENGTH, Required)];
const BURST: &[Key] = &[key("records", Count(1, 10_000_000), Required), key("for", LENGTH, Text("100ms"))];
const CAMPAIGN: &[Key] = &[
    key("base", RATE, Text("0")),
    key("peak", RATE, Required),
    key("rise", LENGTH, Text("5s")),
    key("plateau", LENGTH, Required),
    key("decay", LENGTH, Text("10s")),
];
