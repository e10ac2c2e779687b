//! The engine of a case.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use watermaster::engine::{self, Job};
use watermaster::heartbeat::Heartbeat;
use watermaster::kafka::preflight;
use watermaster::settings::{
    ClientFrom, Delivery, GroupProtocol, Kafka, OnDataLoss, OnForeignOffset, OnUndeliverable, Service, Source,
    StartFrom,
};
use watermaster::snapshot::SnapshotCell;
use watermaster_core::map::MapBudget;
use watermaster_core::policy::{CatchUp, Lending, Mode, Overflow, Policy, Window};
use watermaster_core::units::{Ratio, Weight};

use crate::records::SOURCE;

pub const TARGET: &str = "target";
pub const DEAD_LETTER: &str = "dead-letter";
/// A round that is full.
pub const RECORDS: u64 = 10_000;
/// No round is due before it is full, no cycle ends.
const NEVER: Duration = Duration::from_secs(3600);
/// Nothing is delayed or rejected by a capacity that is never used up.
const PLENTY: u64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// What becomes of the records.
pub struct Case {
    pub name: &'static str,
    delivery: Delivery,
    json: bool,
    mode: Mode,
    enforce: bool,
    catch_up: CatchUp,
    capacity: u64,
}

/// Shape, nothing delayed.
const SHAPE: Case = Case {
    name: "forwarded_shape",
    delivery: Delivery::ExactlyOnce,
    json: false,
    mode: Mode::Shape,
    enforce: true,
    catch_up: CatchUp::Reject,
    capacity: PLENTY,
};

impl Case {
    pub const ALL: [Case; 7] = [
        Case { name: "forwarded_passthrough", enforce: false, ..SHAPE },
        SHAPE,
        Case { name: "forwarded_shape_at_least_once", delivery: Delivery::AtLeastOnce, ..SHAPE },
        Case { name: "forwarded_shape_json", json: true, ..SHAPE },
        Case { name: "forwarded_reject", mode: Mode::Reject, ..SHAPE },
        // As records do that waited when their partition was assigned: through the backlog.
        Case { name: "forwarded_reject_catching_up", mode: Mode::Reject, catch_up: CatchUp::Delay, ..SHAPE },
        // All but one.
        Case { name: "forwarded_rejected", mode: Mode::Reject, capacity: 1, ..SHAPE },
    ];

    fn kafka(&self, broker: &str) -> Kafka {
        // Under callgrind all is fifty times as slow.
        let properties = ["session.timeout.ms", "transaction.timeout.ms", "socket.timeout.ms"];
        Kafka {
            bootstrap_servers: broker.to_owned(),
            group_id: self.name.to_owned(),
            instance_id: "0".to_owned(),
            delivery: self.delivery,
            group_protocol: GroupProtocol::Classic,
            commit_interval: NEVER,
            start_from: StartFrom::Earliest,
            on_foreign_offset: OnForeignOffset::Stop,
            on_data_loss: OnDataLoss::Stop,
            properties: properties.map(|property| (property.to_owned(), "60000".to_owned())).into(),
        }
    }

    fn service(&self) -> Service {
        let pointer = || ["client", "id"].map(str::to_owned).into();
        let client_from =
            if self.json { ClientFrom::Json(pointer()) } else { ClientFrom::Header("client-id".to_owned()) };
        Service {
            name: "count".to_owned(),
            target: TARGET.to_owned(),
            dead_letter: DEAD_LETTER.to_owned(),
            on_undeliverable: OnUndeliverable::Stop,
            client_from: vec![client_from],
            sources: vec![Source { topic: SOURCE.to_owned(), client: None, allowed_clients: None }],
            policy: self.policy(),
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            capacity: self.capacity,
            cycle: NEVER * 10,
            reservation: Ratio::ZERO,
            lending: Lending::Proportional,
            mode: self.mode,
            enforce: self.enforce,
            window: Window::Sliding,
            catch_up: self.catch_up,
            max_clients: 1000,
            unlisted_weight: Weight::ONE,
            client_idle_timeout: NEVER * 20,
            clients: Vec::new(),
            queue_capacity: 1_000_000,
            queue_bytes: 1 << 30,
            max_delay: NEVER,
            overflow: Overflow::DeadLetter,
            burst: Ratio::ONE,
            commit_interval: NEVER,
            map_budget: MapBudget::Chars(4096),
        }
    }
}

/// Runs the engine of a case until all records are committed. What callgrind counts: this thread, while it is in here.
#[inline(never)]
pub fn measured(broker: &str, case: &str) -> Result<(), Box<dyn Error>> {
    let case = Case::ALL.iter().find(|one| one.name == case).ok_or("no such case")?;
    let (cell, shutdown) = (SnapshotCell::default(), Arc::new(AtomicBool::new(false)));
    let job = Job {
        kafka: case.kafka(broker),
        service: case.service(),
        accept_foreign_offsets: false,
        facts: preflight::Report::default(),
        cell: cell.clone(),
        heartbeat: Arc::new(Heartbeat::new(Instant::now(), PATIENCE)),
        policies: Arc::default(),
        shutdown: Arc::clone(&shutdown),
    };
    let watching = thread::spawn(move || {
        let all = until_all(&cell);
        shutdown.store(true, Ordering::Relaxed);
        all
    });
    engine::run(job)?;
    watching.join().map_err(|_| "the watching thread panicked")?.map_err(Into::into)
}

/// Waits until all records are committed.
fn until_all(cell: &SnapshotCell) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let snapshot = cell.get();
        let counts = snapshot.clients.iter().map(|client| client.counts.admitted + client.counts.rejected.total());
        let done: u64 = counts.sum();
        if done == RECORDS {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("{done} records of {RECORDS} were forwarded: {snapshot:?}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}
