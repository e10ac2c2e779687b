//! Three Kafka nodes from the jars, each broker and controller, which tests kill, stop, freeze and restart.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{error::Error, fs};

use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::children::{guarded, start};
use crate::support::process::{Process, Signal};
use crate::{plan::client, support::own_broker::free_ports, wire};

pub const NODES: usize = 3;
/// Time for a cluster to come up.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_START_ATTEMPTS: usize = 3;

/// Properties of every node.
const PROPERTIES: &[&str] = &[
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "unclean.leader.election.enable=false",
    "offsets.topic.replication.factor=3",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "transaction.state.log.num.partitions=6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
    "broker.session.timeout.ms=3000",
    "broker.heartbeat.interval.ms=500",
    "controlled.shutdown.enable=true",
    // A restarted node soon leads partitions again, so that faults always find a leader to hit.
    "leader.imbalance.check.interval.seconds=8",
    "leader.imbalance.per.broker.percentage=1",
    "log.cleaner.backoff.ms=2000",
    "log.cleaner.dedupe.buffer.size=16777216",
    "group.min.session.timeout.ms=3000",
    // Session times of the new group protocol, as short as those of the classic one.
    "group.consumer.min.session.timeout.ms=3000",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.heartbeat.interval.ms=500",
    "group.consumer.heartbeat.interval.ms=1500",
    // The whole test runs on two cores.
    "num.network.threads=2",
    "num.io.threads=3",
    "num.replica.fetchers=1",
    "background.threads=2",
    "replica.fetch.wait.max.ms=300",
];

/// Eligible leader replicas are off. With them, a controller of Kafka 4.1.0 and 4.4.0 may not forget a deleted topic that
/// had lost its leader uncleanly ("Topic ID … existed in isrMembers, but not in the topics map"), so that no killed node can
/// register any more.
const NO_ELIGIBLE_REPLICAS: &str = "eligible.leader.replicas.version=0";

/// The cluster. Nodes are counted from 0, Kafka's ids from 1.
pub struct Cluster {
    nodes: Vec<Mutex<Node>>,
    ports: Vec<Ports>,
    dir: PathBuf,
}

/// The ports of a node.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    plain: u16,
    controller: u16,
    /// The listener that the proxy connects to.
    pub behind_proxy: u16,
    /// The port of the proxy, which the node advertises on the listener behind it.
    pub proxy: u16,
}

struct Node {
    process: Option<Process>,
    frozen: bool,
}

impl Cluster {
    /// Starts all nodes and waits until the cluster is whole; also returns the time that took. `proxies` are the ports
    /// of the proxies.
    pub fn start(dir: &Path, proxies: &[u16; NODES]) -> Result<(Cluster, Duration), Box<dyn Error>> {
        // Another process may take a free port before the node does; then the node ends, and another attempt is made.
        let mut left = MAX_START_ATTEMPTS;
        loop {
            let cluster = Cluster::on_free_ports(dir, proxies);
            let took = cluster.wait_whole(START_TIMEOUT);
            left -= 1;
            match took {
                Ok(took) => return Ok((cluster, took)),
                Err(error) if left == 0 => return Err(error),
                Err(error) => eprintln!("another attempt to start the cluster: {error}"),
            }
            (0..NODES).for_each(|node| _ = cluster.kill(node));
            (0..NODES).for_each(|node| _ = fs::remove_dir_all(cluster.dir_of(node)));
        }
    }

    fn on_free_ports(dir: &Path, proxies: &[u16; NODES]) -> Cluster {
        let free: [u16; 3 * NODES] = free_ports();
        let of_nodes = free.chunks(3).zip(proxies);
        let ports = of_nodes
            .map(|(free, &proxy)| Ports { plain: free[0], controller: free[1], behind_proxy: free[2], proxy })
            .collect();
        let nodes = (0..NODES).map(|_| Mutex::new(Node { process: None, frozen: false })).collect();
        let cluster = Cluster { nodes, ports, dir: dir.to_owned() };
        (0..NODES).for_each(|node| cluster.start_node(node));
        cluster
    }

    pub fn ports(&self, node: usize) -> Ports {
        self.ports[node]
    }

    /// Returns the addresses of all nodes, past the proxies.
    pub fn bootstrap(&self) -> String {
        let addresses = self.ports.iter().map(|ports| format!("127.0.0.1:{}", ports.plain));
        addresses.collect::<Vec<_>>().join(",")
    }

    fn node(&self, node: usize) -> MutexGuard<'_, Node> {
        self.nodes[node].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn dir_of(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node-{}", node + 1))
    }

    /// Starts a node on its existing data; returns at once.
    pub fn start_node(&self, node: usize) {
        let ports = self.ports[node];
        let voters =
            self.ports.iter().enumerate().map(|(n, ports)| format!("{}@127.0.0.1:{}", n + 1, ports.controller));
        let dir = self.dir_of(node);
        fs::create_dir_all(&dir).expect("the run's directory can be written");
        let mut command = guarded(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kafka-node"));
        command.arg(&dir).arg(ports.plain.to_string()).arg(ports.controller.to_string());
        command.arg(format!("node.id={}", node + 1));
        command.arg(format!(
            "listeners=PLAINTEXT://127.0.0.1:{},PROXIED://127.0.0.1:{},CONTROLLER://127.0.0.1:{}",
            ports.plain, ports.behind_proxy, ports.controller
        ));
        command.arg(format!(
            "advertised.listeners=PLAINTEXT://127.0.0.1:{},PROXIED://127.0.0.1:{}",
            ports.plain, ports.proxy
        ));
        command.arg(format!("controller.quorum.voters={}", voters.collect::<Vec<_>>().join(",")));
        command.env("WATERMASTER_KAFKA_FEATURE", NO_ELIGIBLE_REPLICAS);
        command.args(PROPERTIES).env("WATERMASTER_KAFKA_HEAP", "512m").stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        *self.node(node) = Node { process: Some(start(command)), frozen: false };
    }

    /// Kills a node, as a power cut would; returns false if it was not running.
    pub fn kill(&self, node: usize) -> bool {
        let mut node = self.node(node);
        let Some(mut process) = node.process.take() else { return false };
        process.signal(Signal::Kill);
        process.wait(Duration::from_secs(10));
        true
    }

    /// Stops a node as its operator would, and kills it after the timeout; tells whether it ended by itself.
    pub fn stop(&self, node: usize, timeout: Duration) -> bool {
        let Some(mut process) = self.node(node).process.take() else { return false };
        process.signal(Signal::Term);
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if process.try_wait().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    pub fn freeze(&self, node: usize) {
        let mut node = self.node(node);
        node.frozen = true;
        node.process.iter_mut().for_each(|process| process.signal(Signal::Stop));
    }

    pub fn thaw(&self, node: usize) {
        let mut node = self.node(node);
        node.frozen = false;
        node.process.iter_mut().for_each(|process| process.signal(Signal::Continue));
    }

    /// Tells whether a node runs and is not frozen.
    pub fn is_up(&self, node: usize) -> bool {
        let mut node = self.node(node);
        !node.frozen && node.process.as_mut().is_some_and(|process| process.try_wait().is_none())
    }

    /// Tells whether a node ended that nothing had stopped.
    fn has_ended(&self, node: usize) -> bool {
        self.node(node).process.as_mut().is_some_and(|process| process.try_wait().is_some())
    }

    /// Starts stopped nodes and thaws frozen ones.
    pub fn heal(&self) {
        for node in 0..NODES {
            let frozen = self.node(node).frozen;
            if frozen {
                self.thaw(node);
            } else if !self.is_up(node) {
                self.start_node(node);
            }
        }
    }

    /// Tells whether all nodes answer, and every partition has a leader and all its replicas in sync.
    pub fn is_whole(&self) -> bool {
        let Ok(consumer) = client(&self.bootstrap()).create::<BaseConsumer>() else { return false };
        let Ok(metadata) = consumer.fetch_metadata(None, Duration::from_secs(3)) else { return false };
        let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
        // Metadata alone is not enough: a killed node is listed until its session has ended.
        self.all_answer()
            && metadata.brokers().len() == NODES
            && partitions.into_iter().all(|p| p.leader() > 0 && p.isr().len() == NODES)
    }

    /// Tells whether every node answers a client.
    pub fn all_answer(&self) -> bool {
        (0..NODES).all(|node| self.is_up(node) && wire::answers(self.ports[node].plain))
    }

    /// Waits until the cluster is whole; returns the time that took. Meanwhile nodes that ended by themselves start
    /// again, as a supervisor would start them: Kafka ends if the controllers change while a broker registers.
    pub fn wait_whole(&self, timeout: Duration) -> Result<Duration, Box<dyn Error>> {
        let began = Instant::now();
        while began.elapsed() < timeout {
            if self.is_whole() {
                return Ok(began.elapsed());
            }
            for node in (0..NODES).filter(|node| self.has_ended(*node)) {
                eprintln!("node {} ended by itself, and starts again", node + 1);
                self.start_node(node);
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        Err(format!("the cluster is not whole after {timeout:?}: see {}/node-*/kafka.log", self.dir.display()).into())
    }

    /// Waits until every node knows the topic, which was created last.
    pub fn wait_known(&self, topic: &str, timeout: Duration) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + timeout;
        for ports in &self.ports {
            // A new client asks its bootstrap node.
            let knows = || {
                let consumer: BaseConsumer = client(&format!("127.0.0.1:{}", ports.plain)).create().ok()?;
                let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(3)).ok()?;
                let mut partitions = metadata.topics().first()?.partitions().iter().map(|p| p.leader() > 0).peekable();
                (partitions.peek().is_some() && partitions.all(|led| led)).then_some(())
            };
            while knows().is_none() {
                if Instant::now() > deadline {
                    return Err(format!("a node does not know {topic}").into());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// Returns the node that coordinates a group or a transactional id.
    pub fn coordinator(&self, kind: wire::Coordinator, key: &str) -> Option<usize> {
        let up = (0..NODES).filter(|node| self.is_up(*node));
        let answers = up.filter_map(|node| wire::find_coordinator(self.ports[node].plain, kind, key));
        answers.map(|id| id as usize - 1).next()
    }

    /// Returns the node that leads most partitions of these topics, and their number.
    pub fn busiest(&self, topics: &[&str]) -> Option<(usize, usize)> {
        let consumer: BaseConsumer = client(&self.bootstrap()).create().ok()?;
        let metadata = consumer.fetch_metadata(None, Duration::from_secs(3)).ok()?;
        let mut leads = [0; NODES];
        for topic in metadata.topics().iter().filter(|topic| topics.contains(&topic.name())) {
            for partition in topic.partitions() {
                if let Some(count) = leads.get_mut((partition.leader() - 1) as usize) {
                    *count += 1;
                }
            }
        }
        leads.into_iter().enumerate().max_by_key(|(_, count)| *count)
    }
}
