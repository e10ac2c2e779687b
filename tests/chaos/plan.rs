//! What the conductor, the generator and the oracle agree on: written by the first, read by the others.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};

/// How the program under test is to treat what comes too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    Shape,
    Reject,
}

/// A source topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    /// When it was made; more may be added.
    pub partitions: i32,
    pub compacted: bool,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub mode: Mode,
    /// All brokers, past the proxies.
    pub bootstrap: String,
    pub group: String,
    pub service: String,
    pub sources: Vec<Source>,
    pub target: String,
    pub dead_letter: String,
    /// The brokers set the target's timestamps (then the promise can be judged), or the target is compacted and keeps
    /// the records' own (then there are more kinds of poison).
    pub append_time: bool,
    /// Records per second of the generator, on average.
    pub rate: u64,
    /// Records per cycle of each instance.
    pub capacity: u64,
    pub cycle_ms: u64,
    pub commit_interval_ms: u64,
    /// `session.timeout.ms` and `transaction.timeout.ms` of the instances: there are faults that last less and more.
    pub session_ms: u64,
    pub transaction_ms: u64,
    /// How old a record has to be before the cleaner may take it.
    pub compaction_lag_ms: u64,
    pub group_protocol: String,
    /// More lines of `[kafka]` and of `[kafka.properties]`.
    pub more_kafka: String,
    pub more_properties: String,
}

/// Records larger than this are refused by the target.
pub const TARGET_MAX_BYTES: usize = 200_000;
/// Partitions of the target: not those of the sources, so that a copied partition number shows.
pub const TARGET_PARTITIONS: i32 = 6;
pub const DEAD_LETTER_PARTITIONS: i32 = 3;
impl Plan {
    pub fn read(path: &Path) -> Plan {
        let text = std::fs::read_to_string(path).expect("the conductor wrote the plan");
        serde_json::from_str(&text).expect("the conductor writes JSON")
    }

    pub fn write(&self, path: &Path) {
        let text = serde_json::to_string_pretty(self).expect("a plan is plain data");
        std::fs::write(path, text).expect("the run's directory can be written");
    }

    /// By then everything is settled that a broken session or transaction left behind.
    pub fn settling(&self) -> Duration {
        Duration::from_millis(self.session_ms + self.transaction_ms) + Duration::from_secs(10)
    }

    /// The consumer group of the service.
    pub fn consumer_group(&self) -> String {
        format!("{}.{}", self.group, self.service)
    }

    pub fn transactional_id(&self, instance_id: &str) -> String {
        format!("{}.{}.{instance_id}", self.group, self.service)
    }

    /// A client that reaches the brokers themselves.
    pub fn client(&self) -> ClientConfig {
        client(&self.bootstrap)
    }

    pub fn outputs(&self) -> [&str; 2] {
        [&self.target, &self.dead_letter]
    }
}

/// A client of these brokers that finds one that is back soon.
pub fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("broker.address.family", "v4");
    config.set("reconnect.backoff.max.ms", "500").set("topic.metadata.refresh.interval.ms", "3000");
    config
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    u64::try_from(since_1970.as_millis()).expect("for millions of years")
}
