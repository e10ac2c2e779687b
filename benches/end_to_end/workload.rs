//! The records of a run, and the way they are sent.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

/// The place of a client's id in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClientFrom {
    Header,
    Json,
}

/// The records of a run, and how Watermaster is to treat them.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Number of records of all services together; each service has an equal share.
    pub records: u64,
    pub bytes: usize,
    pub clients: u64,
    pub partitions: i32,
    /// Number of services, each with topics of its own.
    pub services: u64,
    pub client_from: ClientFrom,
    pub scenario: Scenario,
}

/// The arrival of the records and their treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// All records wait in the source and are admitted at once.
    Nothing,
    /// Records arrive during the run in bursts of twice the capacity. The first [`BUCKET_SECONDS`] of a burst fit in
    /// the bucket and the rest is delayed, so the length of a burst sets the delayed percentage.
    Delayed { percent: u8, capacity: u64 },
    /// All records wait in the source; the records of this percentage of the clients are rejected by a limit.
    Rejected { percent: u8 },
    /// All records wait in the source and then in backlogs: almost none is admitted. Each client keeps to one
    /// partition.
    Held,
    /// Records arrive evenly during the run and are admitted.
    Steady { capacity: u64, rate: u64 },
}

/// Depth of the pacing bucket, in seconds of the capacity: two commit intervals.
const BUCKET_SECONDS: f64 = 0.2;
/// Length of a burst with the quiet after it, in lengths of the burst. At 4, half of the capacity is used.
const PERIOD: f64 = 4.0;
/// Time between the start of a program and the first record of a live workload; by then the program has joined its
/// group.
pub const LEAD: Duration = Duration::from_secs(2);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { records, bytes, clients, partitions, .. } = self;
        let from = if self.client_from == ClientFrom::Json { "JSON" } else { "a header" };
        write!(f, "{records} records of {bytes} bytes, {partitions} partitions, {clients} clients in {from}")?;
        if self.services > 1 {
            write!(f, ", {} services", self.services)?;
        }
        match self.scenario {
            Scenario::Nothing => Ok(()),
            Scenario::Delayed { percent, capacity } => write!(f, ", {percent} % delayed by a capacity of {capacity}/s"),
            Scenario::Rejected { percent } => write!(f, ", {percent} % rejected"),
            Scenario::Held => write!(f, ", all held"),
            Scenario::Steady { capacity, rate } => write!(f, ", {rate} of {capacity} a second"),
        }
    }
}

impl Workload {
    /// Tells whether records are sent during the run.
    pub fn live(&self) -> bool {
        matches!(self.scenario, Scenario::Delayed { .. } | Scenario::Steady { .. })
    }

    /// Returns the capacity for a cycle of ten seconds; practically unlimited where the capacity is to delay no record.
    pub fn capacity(&self) -> u64 {
        match self.scenario {
            Scenario::Delayed { capacity, .. } | Scenario::Steady { capacity, .. } => capacity * 10,
            Scenario::Nothing | Scenario::Rejected { .. } => 1_000_000_000,
            Scenario::Held => 1,
        }
    }

    /// Returns the clients with rejected records.
    pub fn rejected_clients(&self) -> impl Iterator<Item = String> {
        let percent = if let Scenario::Rejected { percent } = self.scenario { u64::from(percent) } else { 0 };
        (0..self.clients * percent / 100).map(client)
    }

    /// Returns the time that sending all records takes.
    pub fn lasts(&self) -> Duration {
        self.due(self.records)
    }

    /// Returns the number of records of each service.
    fn records_each(&self) -> u64 {
        self.records / self.services
    }

    /// Returns the partition of a record; `None` lets the key decide.
    fn partition(&self, n: u64) -> Option<i32> {
        let client = i32::try_from(n % self.clients).expect("the number of clients fits in an i32");
        (self.scenario == Scenario::Held).then(|| client % self.partitions)
    }

    /// Returns the time at which record `n` is sent, counted from the first one.
    fn due(&self, n: u64) -> Duration {
        match self.scenario {
            Scenario::Nothing | Scenario::Rejected { .. } | Scenario::Held => Duration::ZERO,
            Scenario::Steady { rate, .. } => Duration::from_secs_f64(n as f64 / rate as f64),
            Scenario::Delayed { percent, capacity } => {
                let rate = 2.0 * capacity as f64;
                let burst = BUCKET_SECONDS / (1.0 - f64::from(percent) / 100.0);
                let each = (burst * rate) as u64;
                Duration::from_secs_f64((n / each) as f64 * burst * PERIOD + (n % each) as f64 / rate)
            }
        }
    }

    /// Writes a value of the configured length that begins with the time since `began`.
    fn value(&self, n: u64, began: Instant, buffer: &mut Vec<u8>) {
        use std::io::Write as _;
        buffer.clear();
        let stamp = began.elapsed().as_micros();
        let written = match self.client_from {
            ClientFrom::Header => write!(buffer, "{stamp:016} "),
            ClientFrom::Json => {
                let client = client(n % self.clients);
                write!(
                    buffer,
                    "{{\"at\":\"{stamp:016}\",\"amount\":{},\"currency\":\"EUR\",\
                     \"applicant\":{{\"name\":\"Ada Example\",\"city\":\"Köln\"}},\
                     \"client\":{{\"id\":\"{client}\"}},\"note\":\"",
                    n % 10_000
                )
            }
        };
        written.expect("writing to a vector does not fail");
        let closing: &[u8] = if self.client_from == ClientFrom::Json { b"\"}" } else { b"" };
        let filler = (0..).map(|n: usize| b'a' + (n * 7 % 25) as u8);
        buffer.extend(filler.take(self.bytes.saturating_sub(buffer.len() + closing.len())));
        buffer.extend(closing);
    }
}

/// Reads from a value the time at which it was sent, counted from the generator's start.
pub fn sent_at(value: &[u8]) -> Option<Duration> {
    let from = value.iter().position(u8::is_ascii_digit)?;
    std::str::from_utf8(value.get(from..from + 16)?).ok()?.parse().ok().map(Duration::from_micros)
}

fn client(number: u64) -> String {
    format!("client-{number}")
}

/// Sends the records of one service, each at its due time after `began`.
pub fn send(broker: &str, topic: &str, workload: &Workload, began: Instant) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("linger.ms", if workload.live() { "2" } else { "20" })
        .set("compression.type", "lz4")
        // The same partitioner as the measured programs, so that records keep their partition number.
        .set("partitioner", "murmur2_random")
        .create()
        .expect("the producer configuration is valid");
    let mut value = Vec::new();
    for n in 0..workload.records_each() {
        let wait = workload.due(n).saturating_sub(began.elapsed());
        if !wait.is_zero() {
            std::thread::sleep(wait.max(Duration::from_millis(1)));
        }
        workload.value(n, began, &mut value);
        let (key, client) = (n.to_string(), client(n % workload.clients));
        let name = if workload.client_from == ClientFrom::Header { "client-id" } else { "trace-id" };
        let headers = || OwnedHeaders::new().insert(Header { key: name, value: Some(&client) });
        let record = || {
            let record = BaseRecord::to(topic).key(&key).payload(&value).headers(headers());
            if let Some(partition) = workload.partition(n) { record.partition(partition) } else { record }
        };
        while producer.send(record()).is_err() {
            producer.poll(Duration::from_millis(10));
        }
        if n % 1024 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(Duration::from_secs(60)).expect("all records are delivered");
}
