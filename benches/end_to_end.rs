//! What a decision costs end to end: `watermaster run` beside a loop that consumes and produces and decides nothing.
//!
//! Needs a broker: `WATERMASTER_TEST_BROKER=localhost:9092 cargo bench --bench end_to_end` (`scripts/bench` starts one).
//! Both forward the same records on the same broker, in turn; figures are whole-process CPU (user + system) per record
//! and records per second of wall time, each the median of all pairs, with the ratio pair by pair.
//!
//! The loop is written as its author would: `BaseConsumer` and `BaseProducer` with the properties that watermaster uses.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

const PARTITIONS: i32 = 4;
const CLIENTS: u64 = 16;
const VALUE_BYTES: usize = 256;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, broker, source, target, records] = &arguments[..]
        && role == "--bare"
    {
        return bare_loop(broker, source, target, records.parse().expect("a number of records"));
    }
    let Ok(broker) = std::env::var("WATERMASTER_TEST_BROKER") else {
        eprintln!("end_to_end needs a broker: set WATERMASTER_TEST_BROKER, or use scripts/bench");
        std::process::exit(2);
    };
    let setting = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (records, pairs) = (setting("WATERMASTER_BENCH_RECORDS", 1_000_000), setting("WATERMASTER_BENCH_PAIRS", 5));
    compare(&broker, records, pairs);
}

/// One run: CPU seconds, wall seconds, and how long a round took on average (0 for the loop).
#[derive(Clone, Copy)]
struct Cost {
    cpu: f64,
    wall: f64,
    round: f64,
}

/// What is compared: the name, the mode and the delivery of the service; the first one is the loop.
const ROWS: [(&str, &str, &str); 7] = [
    ("bare loop", "", ""),
    ("passthrough", "enforce = false", "at_least_once"),
    ("passthrough, once", "enforce = false", "exactly_once"),
    ("reject", "mode = \"reject\"", "at_least_once"),
    ("reject, once", "mode = \"reject\"", "exactly_once"),
    ("shape", "mode = \"shape\"", "at_least_once"),
    ("shape, once", "mode = \"shape\"", "exactly_once"),
];

fn compare(broker: &str, records: u64, pairs: u64) {
    let admin = Topics::new(broker);
    let run = std::process::id();
    let source = format!("bench-{run}-source");
    admin.create(&source);
    println!("filling {source}: {records} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, {CLIENTS} clients");
    fill(broker, &source, records);
    let mut table: Vec<(&str, Vec<Cost>)> = ROWS.iter().map(|(name, ..)| (*name, Vec::new())).collect();
    for pair in 0..pairs {
        println!("pair {} of {pairs}", pair + 1);
        for step in 0..table.len() {
            // Alternating order: whatever drifts, drifts for all.
            let n = if pair % 2 == 0 { step } else { table.len() - 1 - step };
            let target = format!("bench-{run}-{pair}-{n}");
            admin.create(&target);
            let cost = match n {
                0 => bare(broker, &source, &target, records),
                _ => watermaster(broker, &source, &target, records, ROWS[n].1, ROWS[n].2),
            };
            admin.delete(&target);
            table[n].1.push(cost);
        }
    }
    admin.delete(&source);
    print_table(&table, records);
}

fn print_table(table: &[(&str, Vec<Cost>)], records: u64) {
    let bare = &table[0].1;
    println!(
        "\n{:<18} {:>13} {:>10} {:>10} {:>13} {:>10}",
        "", "CPU µs/record", "records/s", "CPU ratio", "", "round ms"
    );
    for (name, costs) in table {
        println!(
            "{name:<18} {:>13.2} {:>10.0} {} {:>10.1}",
            median(&sorted(costs.iter().map(|cost| cost.cpu))) / records as f64 * 1e6,
            records as f64 / median(&sorted(costs.iter().map(|cost| cost.wall))),
            ratio(costs, bare, |cost| cost.cpu),
            median(&sorted(costs.iter().map(|cost| cost.round))) * 1e3,
        );
    }
    println!("\nexactly_once against at_least_once, the same mode in the same pair:");
    println!("{:<18} {:>24} {:>24}", "", "CPU", "round time");
    for rows in table[1..].chunks(2) {
        let [(name, plain), (_, once)] = rows else { continue };
        println!("{name:<18} {} {}", ratio(once, plain, |cost| cost.cpu), ratio(once, plain, |cost| cost.round));
    }
}

/// The median of the ratios, pair by pair, with the least and the largest.
fn ratio(costs: &[Cost], against: &[Cost], of: impl Fn(&Cost) -> f64) -> String {
    let ratios = sorted(costs.iter().zip(against).map(|(cost, against)| of(cost) / of(against)));
    let spread = format!("({:.2}–{:.2})", ratios[0], ratios[ratios.len() - 1]);
    format!("{:>10.2} {spread:>13}", median(&ratios))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn bare(broker: &str, source: &str, target: &str, records: u64) -> Cost {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(["--bare", broker, source, target, &records.to_string()]);
    measure(command, broker, target, records, None)
}

fn watermaster(broker: &str, source: &str, target: &str, records: u64, mode: &str, delivery: &str) -> Cost {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("watermaster.toml");
    let dead_letter = target;
    let port = free_port();
    let config = format!(
        "[kafka]\nbootstrap_servers = \"{broker}\"\ngroup_id = \"{target}\"\ndelivery = \"{delivery}\"\n\
         [admin]\nlisten = \"127.0.0.1:{port}\"\n\
         [[service]]\nname = \"bench\"\ntarget = \"{target}\"\ndead_letter = \"{dead_letter}-dead\"\n\
         capacity = 1000000000\ncycle = \"10s\"\n{mode}\nclient_from = [\"header:client-id\"]\n\
         [[service.source]]\ntopic = \"{source}\"\n"
    );
    let admin = Topics::new(broker);
    admin.create(&format!("{target}-dead"));
    std::fs::write(&file, config).expect("the configuration is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_watermaster"));
    command.args(["run", "--config"]).arg(&file).env("RUST_LOG", "error");
    let cost = measure(command, broker, target, records, Some(port));
    admin.delete(&format!("{target}-dead"));
    cost
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound").port()
}

/// The sum of the samples of watermaster's own scrape whose line begins so.
fn scraped(port: u16, beginning: &str) -> f64 {
    let scrape = ureq::get(format!("http://127.0.0.1:{port}/metrics")).call().expect("it is watched");
    let text = scrape.into_body().read_to_string().expect("text");
    let values = text.lines().filter(|line| line.starts_with(beginning)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}

/// Runs a forwarder until the target holds all records, and one that is watched at a port says that all are committed.
fn measure(mut command: Command, broker: &str, target: &str, records: u64, port: Option<u16>) -> Cost {
    let began = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().expect("the forwarder starts");
    let probe: BaseConsumer = ClientConfig::new().set("bootstrap.servers", broker).create().expect("a consumer");
    while arrived(&probe, target) < records {
        assert!(began.elapsed() < Duration::from_secs(180), "the forwarder takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Markers of transactions count as offsets too, so it may not be over yet.
    let admitted = |port| scraped(port, "watermaster_records_total") as u64;
    while port.is_some_and(|port| admitted(port) < records) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let wall = began.elapsed().as_secs_f64();
    let cpu = cpu_seconds(&child);
    let round =
        |port| scraped(port, "watermaster_round_seconds_sum") / scraped(port, "watermaster_round_seconds_count");
    let round = port.map_or(0.0, round);
    end(&mut child);
    Cost { cpu, wall, round }
}

fn arrived(probe: &BaseConsumer, target: &str) -> u64 {
    let high =
        |partition| probe.fetch_watermarks(target, partition, Duration::from_secs(5)).map_or(0, |(_, high)| high);
    (0..PARTITIONS).map(|partition| high(partition) as u64).sum()
}

/// User and system time of a running process, from /proc.
fn cpu_seconds(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("Linux's /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a command in brackets").split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().expect("ticks")).sum();
    ticks / 100.0
}

fn end(child: &mut Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    child.wait().expect("the forwarder ends");
}

/// Consumes and produces, decides nothing; commits as often as watermaster does.
fn bare_loop(broker: &str, source: &str, target: &str, records: u64) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("group.id", target)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "10")
        .set("queued.max.messages.kbytes", "16384")
        .set("queued.min.messages", "20000")
        .set("fetch.max.bytes", "16777216")
        .create()
        .expect("a consumer");
    consumer.subscribe(&[source]).expect("a subscription");
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "5")
        .set("compression.type", "lz4")
        .set("delivery.report.only.error", "true")
        .create()
        .expect("a producer");
    let mut forwarded = 0;
    let mut round = Instant::now();
    loop {
        if let Some(message) = consumer.poll(Duration::from_millis(20)) {
            forward(&producer, target, &message.expect("a record"));
            forwarded += 1;
        }
        if round.elapsed() > Duration::from_millis(100) || forwarded == records {
            producer.flush(Duration::from_secs(30)).expect("all arrived");
            let _ = consumer.commit_consumer_state(CommitMode::Async);
            round = Instant::now();
        }
        if forwarded == records {
            // Measured from outside while it waits here.
            std::thread::sleep(Duration::from_secs(600));
        }
    }
}

fn forward(producer: &BaseProducer, target: &str, message: &BorrowedMessage<'_>) {
    let mut record = BaseRecord::<[u8], [u8]>::to(target);
    (record.key, record.payload) = (message.key(), message.payload());
    record.timestamp = message.timestamp().to_millis();
    record.headers = message.headers().map(|headers| headers.detach());
    loop {
        match producer.send(record) {
            Ok(()) => return,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                producer.poll(Duration::from_millis(10));
                record = back;
            }
            Err((error, _)) => panic!("{error}"),
        }
    }
}

fn fill(broker: &str, topic: &str, records: u64) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("linger.ms", "20")
        .set("compression.type", "lz4")
        .create()
        .expect("a producer");
    let value: Vec<u8> = (0..VALUE_BYTES).map(|n| (n * 7 % 251) as u8).collect();
    for n in 0..records {
        let (key, client) = (n.to_string(), format!("client-{}", n % CLIENTS));
        let headers = || OwnedHeaders::new().insert(Header { key: "client-id", value: Some(&client) });
        while producer.send(BaseRecord::to(topic).key(&key).payload(&value).headers(headers())).is_err() {
            producer.poll(Duration::from_millis(10));
        }
    }
    producer.flush(Duration::from_secs(60)).expect("all arrived");
}

/// Makes and removes topics.
struct Topics {
    admin: AdminClient<DefaultClientContext>,
    runtime: tokio::runtime::Runtime,
}

impl Topics {
    fn new(broker: &str) -> Topics {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Topics {
            admin: ClientConfig::new().set("bootstrap.servers", broker).create().expect("an admin client"),
            runtime,
        }
    }

    fn create(&self, topic: &str) {
        let topic = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        let made = self.runtime.block_on(self.admin.create_topics([&topic], &AdminOptions::new()));
        made.expect("topics are made").into_iter().for_each(|topic| drop(topic.expect("the topic is made")));
    }

    fn delete(&self, topic: &str) {
        let _ = self.runtime.block_on(self.admin.delete_topics(&[topic], &AdminOptions::new()));
    }
}
