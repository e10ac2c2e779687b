//! Around the throttler: the broker, the HTTP side, the products and the reader of the target.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::scenario::Schedule;
use super::setup::{CYCLE, PARTITIONS};
use super::traffic::{self, Sent};
use crate::admin::{self, AdminState, ServiceHandle, Shown};
use crate::heartbeat::Heartbeat;
use crate::metrics::Publisher;
use crate::snapshot::SnapshotCell;
use crate::trial::signals;
use crate::trial::window::WindowMaximum;
use watermaster_kafka::embedded::Embedded;
use watermaster_kafka::probe::{TargetReader, TestProducer};
use watermaster_settings::Service;

/// Where the demo listens, unless somebody else does.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// An embedded broker with the service's topics.
pub fn broker(service: &Service) -> Result<Embedded, String> {
    let broker = Embedded::start(1).map_err(|error| error.to_string())?;
    let sources = service.sources.iter().map(|source| &source.topic);
    for topic in sources.chain([&service.target, &service.dead_letter]) {
        broker.create_topic(topic, PARTITIONS).map_err(|error| error.to_string())?;
    }
    Ok(broker)
}

/// The HTTP side and the signals, on a small runtime of their own.
pub struct Web {
    address: SocketAddr,
    draining: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
    runtime: Runtime,
}

impl Web {
    /// Serves on [`ADDRESS`], or on a free port if that is taken.
    pub fn start(
        service: &Service,
        cell: &SnapshotCell,
        heartbeat: &Arc<Heartbeat>,
        librdkafka: &str,
        interrupts: Sender<()>,
    ) -> Result<Web, String> {
        let cannot = |error: std::io::Error| format!("can't serve HTTP: {error}");
        let listener = bind().map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let draining = Arc::new(AtomicBool::new(false));
        let state = Arc::new(state(service, cell, heartbeat, librdkafka, &draining));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(cannot)?;
        let (stop, stopped) = oneshot::channel();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(cannot)?
        };
        let server = runtime.spawn(admin::serve(listener, state, async { drop(stopped.await) }));
        runtime.spawn(signals::forward(interrupts));
        Ok(Web { address, draining, stop, server, runtime })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on `/readyz` says that the end is near.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Answers what is open and ends.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.runtime.block_on(self.server);
    }
}

fn bind() -> std::io::Result<TcpListener> {
    let listener = match TcpListener::bind(ADDRESS) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            eprintln!("{ADDRESS} is taken; a free port is used instead");
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        }
        bound => bound,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn state(
    service: &Service,
    cell: &SnapshotCell,
    heartbeat: &Arc<Heartbeat>,
    librdkafka: &str,
    draining: &Arc<AtomicBool>,
) -> AdminState {
    let mut publisher = Publisher::new(librdkafka, 200);
    publisher.declare(service);
    let policy = &service.policy;
    let config = json!({
        "service": [{
            "name": service.name,
            "target": service.target,
            "dead_letter": service.dead_letter,
            "capacity": policy.capacity,
            "cycle": format!("{} s", policy.cycle.as_secs()),
            "mode": policy.mode.as_str(),
            "enforce": policy.enforce,
        }],
    });
    AdminState {
        services: vec![ServiceHandle {
            name: service.name.clone(),
            cell: cell.clone(),
            heartbeat: Arc::clone(heartbeat),
        }],
        publisher: Mutex::new(publisher),
        configuration: Shown::Fixed { config, hash: "demo".to_owned() },
        token: None,
        draining: Arc::clone(draining),
    }
}

/// The products, sending on a thread of their own.
pub struct Products {
    stop: Sender<()>,
    thread: JoinHandle<Result<Sent, String>>,
}

impl Products {
    /// Sends the schedule from `start` on.
    pub fn start(schedule: Schedule, bootstrap_servers: &str, start: Instant) -> Result<Products, String> {
        let mut producer = TestProducer::new(bootstrap_servers).map_err(|error| error.to_string())?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("products".to_owned())
            .spawn(move || traffic::send(schedule, &mut producer, start, &stopped))
            .map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(Products { stop, thread })
    }

    /// Whether they have nothing more to send, or can't.
    pub fn ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// They stop at once; what was sent is acknowledged.
    pub fn stop(self) -> Result<Sent, String> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| Err("the products' thread panicked".to_owned()))
    }
}

/// An independent reader of the target.
pub struct Reader {
    arrivals: Arc<Mutex<WindowMaximum>>,
    _reader: TargetReader,
}

impl Reader {
    /// Reads the target from its beginning.
    pub fn start(bootstrap_servers: &str, target: &str) -> Result<Reader, String> {
        let arrivals = Arc::new(Mutex::new(WindowMaximum::new(CYCLE)));
        let seen = Arc::clone(&arrivals);
        let start = Instant::now();
        let on_arrival = move |at: Instant| lock(&seen).record(at.saturating_duration_since(start));
        let reader = TargetReader::start(bootstrap_servers, target, PARTITIONS, on_arrival);
        Ok(Reader { arrivals, _reader: reader.map_err(|error| error.to_string())? })
    }

    /// The most that arrived in any window of one cycle.
    pub fn largest_window(&self) -> u64 {
        lock(&self.arrivals).largest()
    }

    /// All that arrived.
    pub fn total(&self) -> u64 {
        lock(&self.arrivals).total()
    }
}

fn lock(arrivals: &Mutex<WindowMaximum>) -> std::sync::MutexGuard<'_, WindowMaximum> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}
