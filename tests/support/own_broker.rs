//! A test's own Kafka broker, which the test may stop, kill and freeze.

use std::hash::{BuildHasher, RandomState};
use std::process::{Command, Stdio};
use std::{net::TcpListener, ops::Deref, path::PathBuf, time::Duration};

use tempfile::TempDir;

use super::process::{Process, Signal};
use super::{broker::Broker, wait::wait_until};

/// Properties for a short broker session: a killed broker cannot return before its last session has ended.
const SESSION: [&str; 2] = ["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"];

/// A single-node Kafka from the jars, on a data directory that survives restarts.
#[derive(Debug)]
pub struct OwnBroker {
    broker: Broker,
    // Declared before `dir`, so that the process ends before its directory is removed.
    process: Option<Process>,
    dir: TempDir,
    ports: [u16; 2],
    properties: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// A listener of a broker beside `PLAINTEXT`.
#[derive(Debug, Clone, Copy)]
pub struct Listener {
    pub name: &'static str,
    /// Kafka's name of its security protocol.
    pub protocol: &'static str,
    /// The host that the broker names to clients.
    pub host: &'static str,
    pub port: u16,
}

impl OwnBroker {
    /// Starts a broker with the usual properties.
    pub fn start() -> OwnBroker {
        OwnBroker::with(&[])
    }

    /// Starts a broker with these `key=value` properties in addition.
    pub fn with(properties: &[&str]) -> OwnBroker {
        OwnBroker::with_listeners(&[], properties.iter().map(ToString::to_string).collect(), vec![])
    }

    /// Starts a broker with more listeners, more properties and more variables of the environment.
    pub fn with_listeners(
        listeners: &[Listener], properties: Vec<String>, environment: Vec<(&'static str, String)>,
    ) -> OwnBroker {
        let ports = free_ports();
        let mut own = OwnBroker {
            broker: Broker { bootstrap: format!("127.0.0.1:{}", ports[0]) },
            dir: temporary_directory(),
            ports,
            properties: SESSION.map(str::to_owned).into_iter().chain(properties).collect(),
            environment,
            process: None,
        };
        if !listeners.is_empty() {
            own.properties.extend(listener_properties(ports, listeners));
        }
        own.start_again();
        own
    }

    /// Starts the broker on its existing data, and waits until it answers.
    pub fn start_again(&mut self) {
        let mut command = Command::new(repository().join("scripts/kafka-node"));
        command.arg(self.dir.path()).args(self.ports.map(|port| port.to_string())).args(&self.properties);
        command.env("WATERMASTER_KAFKA_HEAP", "512m").envs(self.environment.clone()).stdin(Stdio::null());
        self.process = Some(Process::start(&mut command));
        wait_until("the test's own Kafka to answer", Duration::from_secs(60), || {
            let ended = self.running().try_wait();
            assert!(ended.is_none(), "Kafka ended with {ended:?}: {}", self.last_words());
            self.broker.answers()
        });
    }

    /// Starts the broker as [`start_again`](OwnBroker::start_again) does, with one more `key=value` property.
    pub fn start_again_with(&mut self, property: &str) {
        self.properties.push(property.to_owned());
        self.start_again();
    }

    /// Kills the broker without a shutdown, as a power cut does.
    pub fn kill(&mut self) {
        self.running().signal(Signal::Kill);
        self.running().wait(Duration::from_secs(10));
        self.process = None;
    }

    /// Suspends the broker; its connections stay open.
    pub fn freeze(&mut self) {
        self.running().signal(Signal::Stop);
    }

    /// Resumes the broker.
    pub fn thaw(&mut self) {
        self.running().signal(Signal::Continue);
    }

    /// Runs one of Kafka's command line tools, by its class, against this broker.
    pub fn tool(&self, class: &str, arguments: &[&str]) {
        tool(class, &[&["--bootstrap-server", &self.bootstrap], arguments].concat());
    }

    /// Returns the path of a partition's first segment file.
    pub fn segment(&self, topic: &str, partition: i32) -> PathBuf {
        self.dir.path().join(format!("data/{topic}-{partition}/00000000000000000000.log"))
    }

    /// Returns the log of the broker.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("kafka.log")).expect("the broker has a log")
    }

    fn running(&mut self) -> &mut Process {
        self.process.as_mut().expect("the broker was started")
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

/// Returns the properties that add these listeners to those of `scripts/kafka-node`.
fn listener_properties(ports: [u16; 2], listeners: &[Listener]) -> [String; 3] {
    let [port, controller] = ports;
    let plain = Listener { name: "PLAINTEXT", protocol: "PLAINTEXT", host: "127.0.0.1", port };
    let all: Vec<Listener> = [plain].into_iter().chain(listeners.iter().copied()).collect();
    let join = |each: &dyn Fn(&Listener) -> String| all.iter().map(each).collect::<Vec<_>>().join(",");
    [
        format!(
            "listeners=CONTROLLER://127.0.0.1:{controller},{}",
            join(&|Listener { name, port, .. }| format!("{name}://127.0.0.1:{port}"))
        ),
        format!(
            "advertised.listeners={}",
            join(&|Listener { name, host, port, .. }| format!("{name}://{host}:{port}"))
        ),
        format!(
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,{}",
            join(&|Listener { name, protocol, .. }| format!("{name}:{protocol}"))
        ),
    ]
}

/// Returns a port on which no process listens now.
pub fn free_port() -> u16 {
    let [port] = free_ports();
    port
}

/// Returns `N` different ports on which no process listens now. They are not of the range from which the system gives
/// connections their own ports: one of these took a broker's port before the broker did.
pub fn free_ports<const N: usize>() -> [u16; N] {
    // All ports are held until all are known, so that they differ.
    let mut listeners = Vec::new();
    while listeners.len() < N {
        let port = 12_000 + (RandomState::new().hash_one(()) % 8_000) as u16;
        listeners.extend(TcpListener::bind(("127.0.0.1", port)));
    }
    let mut ports = listeners.iter().map(|listener| listener.local_addr().expect("the listener is bound").port());
    [(); N].map(|()| ports.next().expect("as many as listeners"))
}

/// Creates a directory below that of the run, if there is one, so that `scripts/test` removes it even if this process
/// is killed.
pub fn temporary_directory() -> TempDir {
    let run = std::env::var_os("WATERMASTER_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::Builder::new().prefix("watermaster-kafka-").tempdir_in(run).expect("a temporary directory")
}

/// Runs one of Kafka's command line tools by its class.
pub fn tool(class: &str, arguments: &[&str]) {
    let mut command = Command::new("java");
    command.arg("-cp").arg(jars()).arg(class).args(arguments);
    let output = command.output().expect("java runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the class path of Kafka.
pub fn jars() -> PathBuf {
    let jars = std::env::var_os("WATERMASTER_KAFKA_JARS").map(PathBuf::from);
    jars.unwrap_or_else(|| repository().join(".cache/kafka")).join("*")
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
