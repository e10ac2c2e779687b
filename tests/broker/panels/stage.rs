//! The system under observation: four services, which run the same campaign in different modes, and two instances, which
//! share the capacity of two of the services.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{fs::File, path::PathBuf, time::Duration};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use tempfile::TempDir;

use crate::support::broker::{Broker, Topic, Topics, unique};
use crate::support::config::{Config, Service};
use crate::support::repository::{read, root};
use crate::{support::own_broker::free_port, support::process::Process, support::watermaster::Watermaster};

/// The service in mode `shape` that rejects records beyond the bounds of delay and backlog.
pub const CAMPAIGN: &str = "campaign";
/// The service in mode `reject`. A second instance joins it, and shares its capacity.
pub const REJECTS: &str = "rejects";
/// The service in shadow mode, with `[service.pace]`.
pub const SHADOW: &str = "shadow";
/// The service in mode `shape` with `overflow = "pause"`, which leaves the excess in Kafka. A second instance joins it,
/// and shares its capacity.
pub const PAUSES: &str = "pauses";
/// The services with two instances, and the capacity of each.
pub const SHARED: [&str; 2] = [REJECTS, PAUSES];
pub const SHARED_CAPACITY: u64 = 100;
pub const SERVICES: [&str; 4] = [CAMPAIGN, REJECTS, SHADOW, PAUSES];

/// The client that sends the campaign and is chosen on the board *Client*.
pub const CLIENT: &str = "credit-card";
/// The clients of `config/scenarios/campaign.toml`.
const CLIENTS: [&str; 4] = [CLIENT, "home-loan", "personal-loan", "car-loan"];
/// The number of clients with their own source topic. The records of the fourth client go to the first topic, so that
/// completed and delayed records alternate there and the offset map is not empty.
const SOURCES: usize = 3;

/// The partitions of each topic.
const PARTITIONS: i32 = 2;

/// The duration of the campaign in seconds. The test may end earlier: as soon as all queries return data.
const PLAYED: &str = "40";
/// The time that the service behind the target of [`SHADOW`] takes for a record: too long for the campaign.
const WORK_TIME: Duration = Duration::from_millis(25);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const TOKEN: &str = "the-token-of-the-panels";

pub struct Stage {
    first: Watermaster,
    second: Option<Watermaster>,
    loads: Vec<Load>,
    worker: Worker,
    config: Config,
    ports: [u16; 2],
    /// The folder with the configuration for the loads, their logs and the token.
    dir: TempDir,
    _topics: Topics,
}

/// A running `watermaster load`.
struct Load {
    process: Process,
    service: &'static str,
    log: PathBuf,
}

impl Stage {
    /// Returns the admin addresses of the first and the second instance.
    pub fn addresses(ports: [u16; 2]) -> [String; 2] {
        ports.map(|port| format!("127.0.0.1:{port}"))
    }

    pub fn ports() -> [u16; 2] {
        let first = free_port();
        loop {
            let second = free_port();
            if second != first {
                return [first, second];
            }
        }
    }

    /// Starts the first instance, and one load for each service.
    pub fn start(ports: [u16; 2]) -> Stage {
        let broker = Broker::of_this_run();
        let group = unique("panels");
        let mut services: Vec<Service> = SERVICES.iter().map(|name| service(&group, name)).collect();
        let topics = broker.create(&services.iter().flat_map(topics).collect::<Vec<_>>());
        read_slowly(&broker, &group, &mut services[0]);
        let shadow = services.iter().find(|service| service.name == SHADOW).expect("a service in shadow mode");
        let worker = Worker::start(&broker, &format!("{group}.workers"), &shadow.target);
        let dir = tempfile::Builder::new().prefix("watermaster-panels-").tempdir().expect("a temporary directory");
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN).expect("the token can be written");
        let mut config = Config::new(&broker.bootstrap, &group, services);
        config.kafka = "delivery = \"exactly_once\"".to_owned();
        config.admin = format!("token_file = {:?}", token.display().to_string());
        (config.instance, config.listen) = ("first", format!("127.0.0.1:{}", ports[0]));
        std::fs::write(dir.path().join("load.toml"), config.to_toml()).expect("the configuration can be written");
        let first = Watermaster::start(&config);
        let loads = SERVICES.iter().map(|service| Load::start(&dir, service)).collect();
        Stage { first, second: None, loads, worker, config, ports, dir, _topics: topics }
    }

    /// Starts the second instance, which takes over partitions of two services.
    pub fn join(&mut self) {
        let mut config = self.config.clone();
        (config.instance, config.listen) = ("second", format!("127.0.0.1:{}", self.ports[1]));
        config.services.retain(|service| SHARED.contains(&service.name.as_str()));
        self.second = Some(Watermaster::spawn(&config));
    }

    /// Reloads the first instance with a fence around the campaign's capacity, and puts a rule for clients that send
    /// nothing. Neither changes a decision.
    pub fn fence(&mut self) {
        let authorization = format!("Bearer {TOKEN}");
        let headers =
            [("authorization", &*authorization), ("if-none-match", "*"), ("content-type", "application/json")];
        let (path, rule) = (format!("/v1/services/{CAMPAIGN}/rules/none"), r#"{"clients": ["none-*"], "weight": 2}"#);
        let answer = self.first.request("PUT", &path, &headers, rule).expect("the admin API answers");
        assert_eq!(answer.0, 201, "{answer:?}");
        self.reload_campaign(|campaign| campaign.keys.push_str("\ncapacity_max = 1000000"));
    }

    /// Reloads the first instance with another capacity and shadow mode for the campaign.
    pub fn reload(&mut self) {
        self.reload_campaign(|campaign| {
            campaign.capacity *= 2;
            campaign.keys.push_str("\nenforce = false");
        });
    }

    fn reload_campaign(&mut self, change: impl FnOnce(&mut Service)) {
        change(self.config.services.iter_mut().find(|service| service.name == CAMPAIGN).expect("a campaign service"));
        let (status, body) = self.first.reload(&self.config.to_toml(), TOKEN);
        assert_eq!(status, 200, "{body}");
    }

    /// Panics if an instance has ended, or a load has failed.
    pub fn assert_well(&mut self) {
        self.first.assert_running();
        if let Some(second) = &mut self.second {
            second.assert_running();
        }
        self.loads.iter_mut().for_each(Load::assert_well);
    }

    /// Ends the loads and the instances.
    pub fn end(mut self) {
        self.loads.clear();
        self.worker.stop();
        for watermaster in [Some(&mut self.first), self.second.as_mut()].into_iter().flatten() {
            assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        }
        drop(self.dir);
    }
}

impl Load {
    fn start(dir: &TempDir, service: &'static str) -> Load {
        let log = dir.path().join(format!("{service}.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_watermaster"));
        command.args(["load", "--service", service, "--seconds", PLAYED, "--no-read-back", "--config"]);
        command.arg(dir.path().join("load.toml")).arg("--scenario").arg(root("config/scenarios/campaign.toml"));
        let stderr = File::create(&log).expect("the log can be written");
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Load { process: Process::start(&mut command), service, log }
    }

    /// Panics if the load has ended with an error.
    fn assert_well(&mut self) {
        if let Some(status) = self.process.try_wait() {
            assert!(status.success(), "the load of {} ended with {status}: {}", self.service, read(&self.log));
        }
    }
}

/// A protected service that works off one record at a time, and commits several times a second.
struct Worker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(broker: &Broker, group: &str, target: &str) -> Worker {
        let mut config = broker.client();
        config.set("group.id", group).set("auto.offset.reset", "earliest").set("auto.commit.interval.ms", "200");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        consumer.subscribe(&[target]).expect("the target exists");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                if consumer.poll(Duration::from_millis(100)).is_some() {
                    thread::sleep(WORK_TIME);
                }
            }
        };
        Worker { stop, thread: thread::spawn(work) }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the worker does not panic");
    }
}

/// Commits the beginning of a target for a consumer group, as a protected service that is slow would.
fn read_slowly(broker: &Broker, group: &str, service: &mut Service) {
    let readers = format!("{group}.readers");
    let consumer: BaseConsumer = broker.client().set("group.id", &readers).create().expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        offsets.add_partition_offset(&service.target, partition, Offset::Offset(0)).expect("a valid offset");
    }
    consumer.commit(&offsets, CommitMode::Sync).expect("offsets can be committed");
    service.keys.push_str(&format!("\nconsumer_group = {readers:?}"));
}

fn topics(service: &Service) -> Vec<Topic> {
    let names = service.sources.iter().map(|(topic, _)| topic).chain([&service.target, &service.dead_letter]);
    let topic = |name| {
        let mut topic = Topic::new(name, PARTITIONS);
        // A panel draws the retention, which a topic without a limit does not have.
        topic.set("retention.ms", "86400000");
        topic
    };
    names.map(topic).collect()
}

/// A group of one client shares as that client would.
const CAMPAIGN_TABLES: &str = "[service.shape]
queue_capacity = 1000
max_delay = \"8s\"
[service.group.cards]
clients = [\"credit-card\"]";

const SHADOW_TABLES: &str = "[service.shape]
queue_capacity = 300
max_delay = \"5s\"
[service.pace]
group = \"GROUP.workers\"
ceiling = 200
interval = \"1s\"
poll = \"200ms\"";

fn service(group: &str, name: &str) -> Service {
    // The bounds differ between the services, so that every outcome of a mode occurs in it.
    let (capacity, keys, tables) = match name {
        CAMPAIGN => (200, "rules_topic = \"GROUP.rules\"", CAMPAIGN_TABLES),
        REJECTS => {
            let limit = "[service.client.credit-card]\nlimit = { rate = 80, per = \"1s\", burst = 20 }";
            (SHARED_CAPACITY, "mode = \"reject\"\nscope = \"group\"", limit)
        }
        SHADOW => (100, "enforce = false", SHADOW_TABLES),
        _ => (SHARED_CAPACITY, "scope = \"group\"", "[service.shape]\nqueue_capacity = 100\noverflow = \"pause\""),
    };
    let known = |client: &&&str| !tables.contains(&format!("service.client.{client}]"));
    let clients: String = CLIENTS.iter().filter(known).map(|client| format!("[service.client.{client}]\n")).collect();
    Service {
        name: name.to_owned(),
        target: format!("{group}.{name}.target"),
        dead_letter: format!("{group}.{name}.dead-letter"),
        capacity,
        cycle: "1s",
        sources: CLIENTS[..SOURCES]
            .iter()
            .map(|client| (format!("{group}.{name}.{client}"), (*client).to_owned()))
            .collect(),
        keys: format!("client_from = [\"header:client-id\"]\n{}", keys.replace("GROUP", group)),
        tables: format!("{}\n{clients}", tables.replace("GROUP", group)),
    }
}
