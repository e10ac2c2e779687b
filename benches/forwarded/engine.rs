//! The measured cases, and the engine that runs one of them.

use std::time::{Duration, Instant};
use std::{error::Error, thread};

use watermaster::engine::{self, Job};
use watermaster::services::{Change, ServiceHandle};
use watermaster::snapshot::SnapshotCell;
use watermaster_core::pace::{Control, PaceParams};
use watermaster_core::policy::{CatchUp, Mode, Policy};
use watermaster_core::units::Ratio;
use watermaster_kafka::preflight;
use watermaster_settings::{
    ClientFrom, Delivery, GroupProtocol, Kafka, OnDataLoss, OnForeignOffset, PaceSettings, Service, Source, StartFrom,
    secrets::Secrets,
};

use crate::records::{RECORDS, SOURCE};

/// The outputs of [`Service::new`].
pub const TARGET: &str = "target";
pub const DEAD_LETTER: &str = "dead";
/// Longer than a run: rounds end only when they are full, and no cycle ends.
const NEVER: Duration = Duration::from_secs(3600);
/// A capacity that is never used up, so that it delays and rejects no record.
const UNLIMITED: u64 = 1_000_000_000;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// A configuration under which the records are forwarded.
pub struct Case {
    pub name: &'static str,
    delivery: Delivery,
    json: bool,
    mode: Mode,
    enforce: bool,
    catch_up: CatchUp,
    capacity: u64,
    /// A search for the capacity has changed the limit.
    paced: bool,
}

/// Shape mode with no record delayed; the other cases differ from it in one or two fields.
const SHAPE: Case = Case {
    name: "forwarded_shape",
    delivery: Delivery::ExactlyOnce,
    json: false,
    mode: Mode::Shape,
    enforce: true,
    catch_up: CatchUp::Reject,
    capacity: UNLIMITED,
    paced: false,
};

impl Case {
    pub const ALL: [Case; 8] = [
        Case { name: "forwarded_shadow", enforce: false, ..SHAPE },
        SHAPE,
        Case { name: "forwarded_paced", paced: true, ..SHAPE },
        Case { name: "forwarded_shape_at_least_once", delivery: Delivery::AtLeastOnce, ..SHAPE },
        Case { name: "forwarded_shape_json", json: true, ..SHAPE },
        Case { name: "forwarded_reject", mode: Mode::Reject, ..SHAPE },
        // Records that waited in the source when their partition was assigned pass through the backlog.
        Case { name: "forwarded_reject_catching_up", mode: Mode::Reject, catch_up: CatchUp::Delay, ..SHAPE },
        // All records but one are rejected.
        Case { name: "forwarded_rejected", mode: Mode::Reject, capacity: 1, ..SHAPE },
    ];

    fn kafka(&self, broker: &str) -> Kafka {
        // Long timeouts, because callgrind makes the engine fifty times slower.
        let properties = ["session.timeout.ms", "transaction.timeout.ms", "socket.timeout.ms"];
        Kafka {
            bootstrap_servers: broker.to_owned(),
            // A group of its own for each process, so that each reads all records.
            group_id: format!("{}-{}", self.name, std::process::id()),
            instance_id: "0".to_owned(),
            delivery: self.delivery,
            group_protocol: GroupProtocol::Classic,
            min_commit_interval: NEVER,
            commit_interval: NEVER,
            start_from: StartFrom::Earliest,
            on_foreign_offset: OnForeignOffset::Stop,
            on_data_loss: OnDataLoss::Stop,
            properties: properties.map(|property| (property.to_owned(), "60000".to_owned())).into(),
            secrets: Secrets::default(),
            property_files: Default::default(),
            schema_registry: None,
        }
    }

    fn service(&self) -> Service {
        let pointer = || ["client", "id"].map(str::to_owned).into();
        let client_from =
            if self.json { ClientFrom::Json(pointer()) } else { ClientFrom::Header("client-id".to_owned()) };
        let source = Source::new(SOURCE);
        Service {
            pace: self.paced.then(pace),
            group_silence: NEVER,
            ..Service::new("count", client_from, vec![source], self.policy())
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            reservation: Ratio::ZERO,
            mode: self.mode,
            enforce: self.enforce,
            catch_up: self.catch_up,
            client_idle_timeout: NEVER * 20,
            queue_capacity: 1_000_000,
            queue_bytes: 1 << 30,
            max_delay: None,
            burst: Ratio::ONE,
            commit_interval: NEVER,
            ..Policy::new(self.capacity, NEVER * 10)
        }
    }
}

fn pace() -> PaceSettings {
    let params = PaceParams {
        control: Control::Apply,
        capacity: UNLIMITED,
        floor: 1,
        ceiling: UNLIMITED,
        cycle: NEVER * 10,
        max_behind: NEVER,
        interval: NEVER,
        signal_timeout: NEVER,
    };
    PaceSettings { params, poll: NEVER }
}

/// Runs the engine of a case until all records are committed. Callgrind counts this thread while it is inside this
/// function.
#[inline(never)]
pub fn measured(broker: &str, case: &str) -> Result<(), Box<dyn Error>> {
    let case = Case::ALL.iter().find(|known| known.name == case).ok_or("unknown case")?;
    let service = case.service();
    let handle = ServiceHandle::new(&service);
    if case.paced {
        handle.inbox.leave(Change { capacity: Some(UNLIMITED / 2), ..Change::default() });
    }
    let job = Job {
        kafka: case.kafka(broker),
        service,
        accept_foreign_offsets: false,
        facts: preflight::Report::default(),
        handle: handle.clone(),
    };
    let watcher = thread::spawn(move || {
        let committed = wait_until_committed(&handle.cell);
        handle.stop();
        committed
    });
    engine::run(job)?;
    watcher.join().map_err(|_| "the watching thread panicked")?.map_err(|error| -> Box<dyn Error> { error })
}

/// Waits until all records are committed.
fn wait_until_committed(cell: &SnapshotCell) -> Result<(), Box<dyn Error + Send + Sync>> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    loop {
        let snapshot = cell.get();
        let counts = snapshot.clients.iter().map(|client| client.counts.admitted + client.counts.rejected.total());
        let done: u64 = counts.sum();
        if done == RECORDS {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("{done} of {RECORDS} records were forwarded: {snapshot:?}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}
