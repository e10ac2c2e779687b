//! What is forwarded.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::options::ClientFrom;

/// Records, and what becomes of them.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Of all services together, as many of each.
    pub records: u64,
    pub bytes: usize,
    pub clients: u64,
    pub partitions: i32,
    /// Each with topics of its own.
    pub services: u64,
    pub client_from: ClientFrom,
    pub turned: Turned,
}

/// What does not go at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// All records wait in the source already, and may go.
    Nothing,
    /// Records come in bursts of twice the capacity. Its bucket takes what comes in 0.2 s at first, the rest of the burst waits.
    Delayed { percent: u8, capacity: u64 },
    /// All wait in the source already; so many clients have a limit that rejects what they sent.
    Rejected { percent: u8 },
    /// All wait in the source already, and then in backlogs: next to nothing may go. Each client keeps to one partition.
    Held,
    /// They come evenly, and may go.
    Steady { capacity: u64, rate: u64 },
}

/// Two commit intervals' worth of the capacity: how deep the bucket is that paces.
const BUCKET_SECONDS: f64 = 0.2;
/// How much longer a burst and the quiet after it take than the burst; half of the capacity is used.
const PERIOD: f64 = 4.0;
/// Who forwards has joined its group by then.
pub const LEAD: Duration = Duration::from_secs(2);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { records, bytes, clients, partitions, .. } = self;
        let from = if self.client_from == ClientFrom::Json { "JSON" } else { "a header" };
        write!(f, "{records} records of {bytes} bytes, {partitions} partitions, {clients} clients in {from}")?;
        if self.services > 1 {
            write!(f, ", {} services", self.services)?;
        }
        match self.turned {
            Turned::Nothing => Ok(()),
            Turned::Delayed { percent, capacity } => write!(f, ", {percent} % delayed by a capacity of {capacity}/s"),
            Turned::Rejected { percent } => write!(f, ", {percent} % rejected"),
            Turned::Held => write!(f, ", all held"),
            Turned::Steady { capacity, rate } => write!(f, ", {rate} of {capacity} a second"),
        }
    }
}

impl Workload {
    /// Whether records come while it runs.
    pub fn live(&self) -> bool {
        matches!(self.turned, Turned::Delayed { .. } | Turned::Steady { .. })
    }

    /// Records in ten seconds; without bounds where nothing is delayed by it.
    pub fn capacity(&self) -> u64 {
        match self.turned {
            Turned::Delayed { capacity, .. } | Turned::Steady { capacity, .. } => capacity * 10,
            Turned::Nothing | Turned::Rejected { .. } => 1_000_000_000,
            Turned::Held => 1,
        }
    }

    /// The clients whose records are rejected.
    pub fn rejected_clients(&self) -> impl Iterator<Item = String> {
        let percent = if let Turned::Rejected { percent } = self.turned { u64::from(percent) } else { 0 };
        (0..self.clients * percent / 100).map(client)
    }

    /// How long it takes to send them.
    pub fn lasts(&self) -> Duration {
        self.due(self.records)
    }

    /// Records of each service.
    fn records_each(&self) -> u64 {
        self.records / self.services
    }

    /// Where a record goes; by its key if that does not matter.
    fn partition(&self, n: u64) -> Option<i32> {
        let client = i32::try_from(n % self.clients).expect("fewer clients than that");
        (self.turned == Turned::Held).then(|| client % self.partitions)
    }

    /// When a record is sent, after the first one.
    fn due(&self, n: u64) -> Duration {
        match self.turned {
            Turned::Nothing | Turned::Rejected { .. } | Turned::Held => Duration::ZERO,
            Turned::Steady { rate, .. } => Duration::from_secs_f64(n as f64 / rate as f64),
            Turned::Delayed { percent, capacity } => {
                let rate = 2.0 * capacity as f64;
                let burst = BUCKET_SECONDS / (1.0 - f64::from(percent) / 100.0);
                let each = (burst * rate) as u64;
                Duration::from_secs_f64((n / each) as f64 * burst * PERIOD + (n % each) as f64 / rate)
            }
        }
    }

    /// A value of the right length, that begins with the time since `began`.
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
                    "{{\"at\":\"{stamp:016}\",\"amount\":{},\"currency\":\"EUR\",\"applicant\":{{\"name\":\"Ada Example\",\
                     \"city\":\"Köln\"}},\"client\":{{\"id\":\"{client}\"}},\"note\":\"",
                    n % 10_000
                )
            }
        };
        written.expect("memory takes it");
        let closing: &[u8] = if self.client_from == ClientFrom::Json { b"\"}" } else { b"" };
        let filler = (0..).map(|n: usize| b'a' + (n * 7 % 25) as u8);
        buffer.extend(filler.take(self.bytes.saturating_sub(buffer.len() + closing.len())));
        buffer.extend(closing);
    }
}

/// When the value says that it was sent, after the generator began.
pub fn sent_at(value: &[u8]) -> Option<Duration> {
    let from = value.iter().position(u8::is_ascii_digit)?;
    std::str::from_utf8(value.get(from..from + 16)?).ok()?.parse().ok().map(Duration::from_micros)
}

fn client(number: u64) -> String {
    format!("client-{number}")
}

/// Sends the records of one service, each when it is due after `began`.
pub fn send(broker: &str, topic: &str, workload: &Workload, began: Instant) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("linger.ms", if workload.live() { "2" } else { "20" })
        .set("compression.type", "lz4")
        // As those who forward: what is in a partition here is in the same one there.
        .set("partitioner", "murmur2_random")
        .create()
        .expect("a producer");
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
    producer.flush(Duration::from_secs(60)).expect("all arrived");
}
