//! A scenario as written: what each client sends and when, independent of any service.
//!
//! `docs/load.md` describes the file; `plan` fits it to a service.

mod phase;
mod read;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use toml_edit::{ImDocument, Item};
use watermaster_settings::client_id::MAX_CLIENT_BYTES;
use watermaster_settings::config::{ConfigError, Origin};

pub use phase::Phase;
use read::{Page, Table, ValueError};

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
    /// At least one phase; each follows the one before.
    pub phases: Vec<Phase>,
    pub retry: Option<RetryPolicy>,
}

/// Distribution of records in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Independent of each other, as from people.
    Poisson,
    /// At equal distances, as from machines.
    Even,
}

/// A rate of sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Records per second.
    PerSecond(f64),
    /// A part of the capacity: 1.0 is all of it.
    OfCapacity(f64),
}

impl Rate {
    /// Returns the records per second, for a service that takes `capacity_per_second`.
    pub fn per_second(self, capacity_per_second: f64) -> f64 {
        match self {
            Rate::PerSecond(rate) => rate,
            Rate::OfCapacity(part) => part * capacity_per_second,
        }
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

/// All errors of a scenario, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioErrors(pub Vec<ConfigError>);

impl fmt::Display for ScenarioErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "scenario: {count} error{}", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|error| write!(f, "\n\n{error}"))
    }
}

impl std::error::Error for ScenarioErrors {}

impl Scenario {
    /// Reads the text of the file at `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Scenario, ScenarioErrors> {
        let page = Page::new(text, path);
        let document = match ImDocument::parse(text) {
            Ok(document) => document,
            Err(error) => return Err(ScenarioErrors(vec![page.syntax_error(&error)])),
        };
        let scenario = scenario(&page.root(document.as_table()), path);
        let errors = page.into_errors();
        match scenario {
            Some(scenario) if errors.is_empty() => Ok(scenario),
            _ => Err(ScenarioErrors(errors)),
        }
    }

    /// Returns the time from the first record to the end of the last phase.
    pub fn length(&self) -> Duration {
        let of_client = |client: &ClientLoad| client.phases.iter().map(Phase::length).sum();
        self.clients.iter().map(of_client).max().unwrap_or_default()
    }

    /// Stretches or shortens all phases so that the scenario takes `length`, at the same rates.
    pub fn stretched(mut self, length: Duration) -> Scenario {
        let factor = length.as_secs_f64() / self.length().as_secs_f64().max(f64::MIN_POSITIVE);
        let phases = self.clients.iter_mut().flat_map(|client| &mut client.phases);
        phases.for_each(|phase| phase.stretch(factor));
        self
    }
}

fn scenario(root: &Table<'_>, path: &Path) -> Option<Scenario> {
    let file_name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = root.value("name", Some(file_name), "a text", read::text);
    let description = root.value("description", Some(String::new()), "a text", read::text);
    let seed = root.count("seed", Some(1), 0..=i64::MAX as u64);
    let tables = root.tables("client");
    if tables.is_empty() {
        root.refuse("client", "is missing", "at least one [[client]]");
    }
    let clients: Vec<Option<ClientLoad>> = tables.iter().map(client).collect();
    for (at, table) in tables.iter().enumerate() {
        let id = |at: usize| clients[at].as_ref().map(|client| client.id.as_str());
        if let Some(twin) = id(at).and_then(|mine| (0..at).find(|&other| id(other) == Some(mine))) {
            table.refuse("id", format!("is the id of client[{twin}], too"), "a different id for each client");
        }
    }
    root.finish();
    Some(Scenario {
        name: name?,
        description: description?,
        seed: seed?,
        clients: clients.into_iter().collect::<Option<_>>()?,
    })
}

fn client(table: &Table<'_>) -> Option<ClientLoad> {
    let id = table.value("id", None, "a client id of 1 to 128 bytes", client_id);
    let topic = table.value("topic", Some(None), "a source topic of the service", |item| read::text(item).map(Some));
    let sizes = "a size in bytes, or [smallest, largest], from 0 to 1000000";
    let value_bytes = table.value("value_bytes", Some((300, 300)), sizes, value_bytes);
    let names = [("poisson", Arrivals::Poisson), ("even", Arrivals::Even)];
    let arrivals = table.choice("arrivals", Some(Arrivals::Poisson), &names);
    let keys = table.count("keys", Some(100), 0..=1_000_000);
    let phases = table.tables("phase");
    if phases.is_empty() {
        table.refuse("phase", "is missing", format!("at least one [[client.phase]], of kind {}", phase::kinds()));
    }
    let phases: Vec<_> = phases.iter().map(phase::read).collect();
    let retry = table.table("retry").map(|table| retry(&table));
    table.finish();
    Some(ClientLoad {
        origin: table.origin(),
        id: id?,
        topic: topic?,
        value_bytes: value_bytes?,
        arrivals: arrivals?,
        keys: keys? as u32,
        phases: phases.into_iter().collect::<Option<_>>()?,
        retry: retry.map_or(Some(None), |retry| retry.map(Some))?,
    })
}

fn client_id(item: &Item) -> Result<String, ValueError> {
    let id = read::text(item)?;
    if id.is_empty() || id.len() > MAX_CLIENT_BYTES { Err(ValueError::Length(id.len())) } else { Ok(id) }
}

fn value_bytes(item: &Item) -> Result<(u32, u32), ValueError> {
    let size = |item: &Item| read::count(item, 0..=1_000_000).map(|size| size as u32);
    let Some(array) = item.as_array() else { return size(item).map(|size| (size, size)) };
    let sizes: Vec<u32> = array.iter().map(|value| size(&value.clone().into())).collect::<Result<_, _>>()?;
    match sizes[..] {
        [least, most] if least <= most => Ok((least, most)),
        [least, most] => Err(ValueError::Order(least, most)),
        _ => Err(ValueError::Pair(sizes.len())),
    }
}

fn retry(table: &Table<'_>) -> Option<RetryPolicy> {
    let backoff = table.duration("backoff", Some(Duration::from_millis(500)));
    let max_backoff = table.duration("max_backoff", Some(Duration::from_secs(10)));
    let attempts = table.count("attempts", Some(5), 2..=100);
    table.finish();
    Some(RetryPolicy { backoff: backoff?, max_backoff: max_backoff?, attempts: attempts? as u32 })
}

#[cfg(test)]
mod tests;
