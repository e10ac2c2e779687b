//! A Kafka of a test's own, which it may stop, kill and freeze.

use std::net::TcpListener;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::broker::Broker;
use super::process::{Process, Signal};
use super::wait::wait_until;

/// A killed broker may not come back before its last session has ended: let that be soon.
const SESSION: [&str; 2] = ["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"];

/// A single-node Kafka from the jars, on a data directory that survives restarts.
#[derive(Debug)]
pub struct OwnBroker {
    broker: Broker,
    // Ended before its directory goes.
    process: Option<Process>,
    dir: TempDir,
    ports: [u16; 2],
    properties: Vec<String>,
}

impl OwnBroker {
    /// Starts one with our usual properties.
    pub fn start() -> OwnBroker {
        OwnBroker::with(&[])
    }

    /// Starts one with these `key=value` properties on top.
    pub fn with(properties: &[&str]) -> OwnBroker {
        let ports = free_ports();
        let mut own = OwnBroker {
            broker: Broker { bootstrap: format!("127.0.0.1:{}", ports[0]) },
            dir: temporary_directory(),
            ports,
            properties: SESSION.iter().chain(properties).map(ToString::to_string).collect(),
            process: None,
        };
        own.start_again();
        own
    }

    /// Starts it on the data that it left, and waits until it answers.
    pub fn start_again(&mut self) {
        let mut command = Command::new(repository().join("scripts/kafka-node"));
        command.arg(self.dir.path()).args(self.ports.map(|port| port.to_string())).args(&self.properties);
        command.env("WATERMASTER_KAFKA_HEAP", "512m").stdin(Stdio::null());
        self.process = Some(Process::start(&mut command));
        wait_until("our own Kafka to answer", Duration::from_secs(60), || {
            let ended = self.running().try_wait();
            assert!(ended.is_none(), "Kafka ended with {ended:?}: {}", self.last_words());
            self.broker.answers()
        });
    }

    /// As [`start_again`](OwnBroker::start_again), with one more `key=value` property.
    pub fn start_again_with(&mut self, property: &str) {
        self.properties.push(property.to_owned());
        self.start_again();
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        self.running().signal(Signal::Kill);
        self.running().wait(Duration::from_secs(10));
        self.process = None;
    }

    /// Stops it from doing anything, its connections stay open.
    pub fn freeze(&mut self) {
        self.running().signal(Signal::Stop);
    }

    /// Lets it go on.
    pub fn thaw(&mut self) {
        self.running().signal(Signal::Continue);
    }

    /// Runs one of Kafka's command line tools, by its class, against this broker.
    pub fn tool(&self, class: &str, arguments: &[&str]) {
        let jars = std::env::var_os("WATERMASTER_KAFKA_JARS").map(PathBuf::from);
        let jars = jars.unwrap_or_else(|| repository().join(".cache/kafka")).join("*");
        let mut command = Command::new("java");
        command.arg("-cp").arg(jars).arg(class);
        command.args(["--bootstrap-server", &self.bootstrap]).args(arguments);
        let output = command.output().expect("java runs");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The first file of a partition's records.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        self.dir.path().join(format!("data/{topic}-{partition}/00000000000000000000.log"))
    }

    fn running(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was started")
    }

    fn last_words(&self) -> String {
        let read = |name| std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        ["format.log", "stdout.log", "kafka.log"].map(read).join("\n")
    }
}

impl Deref for OwnBroker {
    type Target = Broker;
    fn deref(&self) -> &Broker {
        &self.broker
    }
}

/// A port on which nothing listens now.
pub fn free_port() -> u16 {
    let [port] = free_ports();
    port
}

/// So many ports that nobody listens on.
pub fn free_ports<const N: usize>() -> [u16; N] {
    // All are held until all are known, so that they differ.
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Below the run's directory, where there is one: it goes with the run, even if this process is killed.
fn temporary_directory() -> TempDir {
    let run = std::env::var_os("WATERMASTER_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::Builder::new().prefix("watermaster-kafka-").tempdir_in(run).expect("a temporary directory")
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
