//! A scenario as written: what each client sends and when, independent of any service.
//!
//! `docs/load.md` describes the file; `plan` fits it to a service.

use std::{path::Path, time::Duration};

use strum::{Display, EnumString, VariantNames};
use watermaster_settings::config::{self, ConfigErrors, Origin};
use watermaster_settings::reader::Fallback::{Derived, Required, Text, Unset};
use watermaster_settings::reader::{Choice, FromText, Kind, Reader, Section, ValueError};
use watermaster_settings::reader::{Key, Schema, SectionSchema, Shape, key, section};
use watermaster_settings::{client_id::MAX_CLIENT_BYTES, read_struct};

use crate::cli::Failure;

/// The highest rate, in records per second.
const MAX_RATE: f64 = 1_000_000.0;
/// The highest rate, in percent of the capacity.
const MAX_PERCENT: f64 = 100_000.0;
/// The largest value of a record.
const MAX_VALUE_BYTES: u64 = 1_000_000;
/// The values of `value_bytes`.
const VALUE_BYTES: &str = "a size in bytes, or [smallest, largest], from 0 to 1000000";

pub(crate) const RATE: Kind = Kind::DecimalOrPercent(
    "records per second (50, 0.5) or a part of the service's capacity (\"80%\"), from 0 to 1000000 or 100000%",
);
const LENGTH: Kind = Kind::Duration(Duration::from_millis(1), Duration::from_secs(7 * 24 * 3600));
const TEXT: Kind = Kind::Text("a text");

/// Every key of a scenario.
static SCHEMA: Schema = Schema {
    subject: "scenario",
    // No variable sets a key: none of them is read.
    variable_prefix: "",
    other_variables: &[],
    former_keys: &[],
    root: section("", Shape::Table, SCENARIO, &CLIENTS),
};

static CLIENTS: [SectionSchema; 1] = [section("client", Shape::List, CLIENT, &CLIENT_SECTIONS)];
static CLIENT_SECTIONS: [SectionSchema; 2] = [
    section("phase", Shape::List, &[key("kind", Kind::Choice(PhaseKind::VARIANTS), Required)], &PHASE_KINDS),
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
    key("seed", Kind::Count(0, i64::MAX as u64), Text("1")),
];
const CLIENT: &[Key] = &[
    key("id", Kind::Text("a client id of 1 to 128 bytes"), Required),
    key("topic", Kind::Text("a source topic of the service"), Unset),
    key("value_bytes", Kind::Integers(VALUE_BYTES), Text("300")),
    key("arrivals", Kind::Choice(Arrivals::VARIANTS), Text("poisson")),
    key("keys", Kind::Count(0, 1_000_000), Text("100")),
];
const RETRY: &[Key] = &[
    key("backoff", LENGTH, Text("500ms")),
    key("max_backoff", LENGTH, Text("10s")),
    key("attempts", Kind::Count(2, 100), Text("5")),
];
const STEADY: &[Key] = &[key("rate", RATE, Required), key("for", LENGTH, Required)];
const RAMP: &[Key] = &[key("from", RATE, Required), key("to", RATE, Required), key("for", LENGTH, Required)];
const BURST: &[Key] = &[key("records", Kind::Count(1, 10_000_000), Required), key("for", LENGTH, Text("100ms"))];
const CAMPAIGN: &[Key] = &[
    key("base", RATE, Text("0")),
    key("peak", RATE, Required),
    key("rise", LENGTH, Text("5s")),
    key("plateau", LENGTH, Required),
    key("decay", LENGTH, Text("10s")),
];

/// A valid scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    pub name: String,
    /// A sentence about the scenario; may be empty.
    pub description: String,
    /// Fixes arrivals and sizes.
    pub seed: u64,
    /// At least one client; all ids differ.
    pub clients: Vec<ClientLoad>,
}

/// The load of one client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientLoad {
    pub origin: Origin,
    /// 1 to 128 bytes.
    pub id: String,
    /// The source topic; `None`: the first source that admits the client.
    pub topic: Option<String>,
    /// The smallest and the largest value, in bytes.
    pub value_bytes: (u32, u32),
    pub arrivals: Arrivals,
    /// The number of different keys; 0: null keys.
    pub keys: u32,
    /// The phases, one after the other.
    pub phases: Vec<ScenarioPhase>,
    pub retry: Option<RetryPolicy>,
}

/// Distribution of records in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Arrivals {
    /// Independent of each other, as from people.
    Poisson,
    /// At equal distances, as from machines.
    Even,
}

impl Choice for Arrivals {}

/// A part of a client's load, in which the rate changes linearly. A campaign has three phases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScenarioPhase {
    pub length: Duration,
    pub from: Rate,
    pub to: Rate,
}

/// The values of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
enum PhaseKind {
    Steady,
    Ramp,
    Burst,
    Campaign,
}

impl Choice for PhaseKind {}

/// A rate of sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Records per second.
    PerSecond(f64),
    /// A part of the capacity: 1.0 is all of it.
    OfCapacity(f64),
    /// Records in the whole phase, however long it is.
    Records(u32),
}

impl Rate {
    /// Returns the records per second in a phase of this length, for a service that takes `capacity_per_second`.
    pub fn per_second(self, length: Duration, capacity_per_second: f64) -> f64 {
        match self {
            Rate::PerSecond(rate) => rate,
            Rate::OfCapacity(part) => part * capacity_per_second,
            Rate::Records(records) => f64::from(records) / length.as_secs_f64().max(1e-9),
        }
    }
}

/// Parses records per second, or percents of the capacity.
impl FromText for Rate {
    fn from_text(text: &str, _: Kind) -> Result<Rate, ValueError> {
        let (number, max, rate): (&str, f64, fn(f64) -> Rate) = match text.strip_suffix('%') {
            None => (text, MAX_RATE, Rate::PerSecond),
            Some(percent) => (percent.trim(), MAX_PERCENT, |percent| Rate::OfCapacity(percent / 100.0)),
        };
        let number = number.parse().map_err(|_| ValueError::NotDecimal)?;
        if (0.0..=max).contains(&number) { Ok(rate(number)) } else { Err(ValueError::NotAllowed) }
    }
}

/// Retries of a client's rejected records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The wait before the second attempt; doubled before each further attempt.
    pub backoff: Duration,
    /// The longest wait between two attempts.
    pub max_backoff: Duration,
    /// The number of all attempts, the first one included.
    pub attempts: u32,
}

impl RetryPolicy {
    /// Returns the wait after the attempt with this number (from 1) was rejected; `None` after the last attempt.
    pub fn wait_after(&self, attempt: u32) -> Option<Duration> {
        let doubled = 2_u32.checked_pow(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        (attempt < self.attempts).then(|| self.backoff.saturating_mul(doubled).min(self.max_backoff))
    }
}

impl Scenario {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Scenario, Failure> {
        let text = std::fs::read_to_string(path).map_err(|source| {
            Failure::config(format_args!("the scenario {} can't be read: {source}", path.display()))
        })?;
        Ok(Scenario::parse(&text, path)?)
    }

    /// Reads the text of the file at `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Scenario, ConfigErrors> {
        let reader = Reader::new(&SCHEMA, &[(path, text)], [])?;
        let scenario = scenario(&reader.root(), path);
        Ok(reader.finish(scenario)?.value)
    }

    /// Returns the time from the first record to the end of the last phase.
    pub fn length(&self) -> Duration {
        self.clients.iter().map(ClientLoad::length).max().unwrap_or_default()
    }

    /// Stretches or shortens all phases so that the scenario takes `length`, at the same rates.
    pub fn stretched(mut self, length: Duration) -> Scenario {
        let factor = length.as_secs_f64() / self.length().as_secs_f64().max(f64::MIN_POSITIVE);
        for phase in self.clients.iter_mut().flat_map(|client| &mut client.phases) {
            phase.length = phase.length.mul_f64(factor);
        }
        self
    }
}

impl ClientLoad {
    pub fn length(&self) -> Duration {
        self.phases.iter().map(|phase| phase.length).sum()
    }
}

fn scenario(root: &Section<'_>, path: &Path) -> Option<Scenario> {
    let file_name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let tables = root.tables("client");
    let clients: Vec<Option<ClientLoad>> = tables.iter().map(client).collect();
    for (at, table) in tables.iter().enumerate() {
        let id = |at: usize| clients[at].as_ref().map(|client| client.id.as_str());
        if let Some(twin) = id(at).and_then(|own| (0..at).find(|&other| id(other) == Some(own))) {
            table.refuse("id", format!("is the id of client[{twin}], too"), "a different id for each client");
        }
    }
    read_struct!(Scenario {
        [root => seed]
        name: root.derived_text("name", Some(file_name), text),
        description: root.text("description", text),
        clients: clients.into_iter().collect(),
    })
}

fn client(table: &Section<'_>) -> Option<ClientLoad> {
    let phases: Vec<_> = table.tables("phase").iter().map(phases).collect();
    let retry = table.table("retry");
    read_struct!(ClientLoad {
        [table => arrivals, keys]
        origin: Some(table.origin.clone()),
        id: table.text("id", client_id),
        topic: table.optional("topic", text),
        value_bytes: value_bytes(table),
        phases: phases.into_iter().collect::<Option<Vec<_>>>().map(|phases| phases.concat()),
        retry: if retry.is_written() { self::retry(&retry).map(Some) } else { Some(None) },
    })
}

fn phases(section: &Section<'_>) -> Option<Vec<ScenarioPhase>> {
    let kind: PhaseKind = section.get("kind")?;
    let section = section.variant(&kind.to_string());
    let rate = |key| section.get::<Rate>(key);
    let phase = |length, from: Option<Rate>, to: Option<Rate>| {
        let length: Option<Duration> = section.get(length);
        Some(ScenarioPhase { length: length?, from: from?, to: to? })
    };
    match kind {
        PhaseKind::Steady => {
            let rate = rate("rate");
            Some(vec![phase("for", rate, rate)?])
        }
        PhaseKind::Ramp => Some(vec![phase("for", rate("from"), rate("to"))?]),
        PhaseKind::Burst => {
            let records = section.get("records").map(Rate::Records);
            Some(vec![phase("for", records, records)?])
        }
        PhaseKind::Campaign => {
            let (base, peak) = (rate("base"), rate("peak"));
            let phases = [phase("rise", base, peak), phase("plateau", peak, peak), phase("decay", peak, base)];
            phases.into_iter().collect()
        }
    }
}

fn retry(table: &Section<'_>) -> Option<RetryPolicy> {
    read_struct!(RetryPolicy { [table => backoff, max_backoff, attempts] })
}

fn text(text: &str) -> Result<String, ValueError> {
    Ok(text.to_owned())
}

fn client_id(id: &str) -> Result<String, ValueError> {
    if (1..=MAX_CLIENT_BYTES).contains(&id.len()) { text(id) } else { Err(ValueError::NotAllowed) }
}

/// Reads one size, or the smallest and the largest size.
fn value_bytes(table: &Section<'_>) -> Option<(u32, u32)> {
    let size = |text: &str| config::count(text, 0..=MAX_VALUE_BYTES).map(|size| size as u32);
    match table.list("value_bytes", size).flatten()?[..] {
        [size] if !table.is_list("value_bytes") => Some((size, size)),
        [least, most] if least <= most => Some((least, most)),
        ref sizes => {
            table.refuse("value_bytes", format!("is {sizes:?}"), VALUE_BYTES);
            None
        }
    }
}

#[cfg(test)]
mod tests;
