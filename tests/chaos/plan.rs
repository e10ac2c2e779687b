//! The plan of a run: written by the main process, read by the generator and the oracle.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};

/// The mode of the service under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    Shape,
    Reject,
}

/// A source topic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    /// Number of partitions at creation; faults may add more.
    pub partitions: i32,
    pub compacted: bool,
}

/// The plan of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub mode: Mode,
    /// Addresses of all brokers, past the proxies.
    pub bootstrap: String,
    pub group: String,
    pub service: String,
    pub sources: Vec<Source>,
    pub target: String,
    pub dead_letter: String,
    /// True: the brokers set the target's timestamps, so that the promise can be judged. False: the target is compacted
    /// and keeps the records' timestamps, so that there are more kinds of poison records.
    pub append_time: bool,
    /// Average rate of the generator, in records per second.
    pub rate: u64,
    /// The instances share one capacity. Otherwise each of them has one for itself.
    pub grouped: bool,
    /// Capacity of the group, or of each instance, in records per cycle.
    pub capacity: u64,
    pub cycle_ms: u64,
    pub commit_interval_ms: u64,
    /// `session.timeout.ms` and `transaction.timeout.ms` of the instances. Some faults are shorter, some longer.
    pub session_ms: u64,
    pub transaction_ms: u64,
    /// `group_silence`: after that, other instances claim an instance's part of the capacity.
    pub silence_ms: u64,
    /// Pace moves the limit up to the capacity, by what the consumer group behind the target commits.
    pub pace: bool,
    /// Rules change at run time.
    pub rules: bool,
    /// The load is constant, and one client sends to one partition only.
    pub steady: bool,
    /// The age at which the cleaner may remove a record.
    pub compaction_lag_ms: u64,
    pub group_protocol: String,
    /// Additional lines of `[kafka]` and of `[kafka.properties]`.
    pub more_kafka: String,
    pub more_properties: String,
}

/// Largest record that the target accepts.
pub const TARGET_MAX_BYTES: usize = 200_000;
/// Number of partitions of the target. It differs from that of the sources, so that a copied partition number is
/// detected.
pub const TARGET_PARTITIONS: i32 = 6;
pub const DEAD_LETTER_PARTITIONS: i32 = 3;

impl Plan {
    pub fn read(path: &Path) -> Plan {
        let text = std::fs::read_to_string(path).expect("the main process wrote the plan");
        serde_json::from_str(&text).expect("the plan is valid JSON")
    }

    pub fn write(&self, path: &Path) {
        let text = serde_json::to_string_pretty(self).expect("a plan is plain data");
        std::fs::write(path, text).expect("the run's directory can be written");
    }

    /// The time after which broken sessions and transactions have been cleaned up.
    pub fn settling(&self) -> Duration {
        Duration::from_millis(self.session_ms + self.transaction_ms) + Duration::from_secs(10)
    }

    /// Returns the consumer group of the service.
    pub fn consumer_group(&self) -> String {
        format!("{}.{}", self.group, self.service)
    }

    /// Returns the consumer group behind the target.
    pub fn workers(&self) -> String {
        format!("{}.workers", self.group)
    }

    /// The capacity with which the instances start. The promise is the capacity, in any case.
    pub fn start_capacity(&self) -> u64 {
        if self.pace { self.capacity / 2 } else { self.capacity }
    }

    /// The default of `group_ahead_time`: the time for which an instance admits records without an answer from the
    /// control topic.
    pub fn ahead_time_ms(&self) -> u64 {
        (3 * self.cycle_ms).clamp(3_000, 30_000)
    }

    /// The topic through which the instances share one capacity.
    pub fn control_topic(&self) -> String {
        format!("{}.{}.seats", self.group, self.service)
    }

    /// The topic of the rules, which an instance makes.
    pub fn rules_topic(&self) -> String {
        format!("{}.{}.rules", self.group, self.service)
    }

    pub fn transactional_id(&self, instance_id: &str) -> String {
        format!("{}.{}.{instance_id}", self.group, self.service)
    }

    /// Returns the configuration of a client that connects past the proxies.
    pub fn client(&self) -> ClientConfig {
        client(&self.bootstrap)
    }

    pub fn outputs(&self) -> [&str; 2] {
        [&self.target, &self.dead_letter]
    }
}

/// Returns the configuration of a client that soon reconnects to a restarted broker.
pub fn client(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("broker.address.family", "v4");
    config.set("reconnect.backoff.max.ms", "500").set("topic.metadata.refresh.interval.ms", "3000");
    config
}

/// Returns the milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(since_1970.as_millis()).expect("milliseconds fit in 64 bits")
}
