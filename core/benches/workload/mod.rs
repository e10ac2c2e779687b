//! The workload of the core's benchmarks: services with only known clients, and the three operations that cost time.
//!
//! Only the code inside [`measured`] is timed, and only that is counted by `scripts/instructions`: not the making of
//! ids, nor the work between two batches. Ids are in the cache when they are looked up, like the id of a record that
//! was just read.

use std::time::{Duration, Instant};
use std::{fmt::Write, hint::black_box};

use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Lending, Mode, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::{Ratio, Time};

pub const CYCLE: Duration = Duration::from_secs(10);
/// Number of decisions between two calls for timeouts and actions.
const BATCH: usize = 1024;
/// Time from one record to the next.
const STEP: Duration = Duration::from_micros(1);
/// A capacity above the demand of any cycle.
const PLENTY: u64 = 1_000_000_000;
/// A capacity of one record per ten steps.
const LITTLE: u64 = 1_000_000;

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Shape: a record that is admitted at once.
    AtOnce,
    /// Shape: a record that joins the backlog.
    Delayed,
    /// Shape: a record that leaves the backlog, with the call for the next timeout.
    Served,
    /// Reject: a record that is within its client's grant.
    Reject,
    /// The end of a cycle: the wants of all clients, the search for idle ones, and the allocation.
    Edge(Lending),
}

impl Case {
    pub const ALL: [(&str, Case); 6] = [
        ("at_once", Case::AtOnce),
        ("delayed", Case::Delayed),
        ("served", Case::Served),
        ("reject", Case::Reject),
        ("edge", Case::Edge(Lending::Proportional)),
        ("edge_max_min", Case::Edge(Lending::MaxMin)),
    ];

    fn policy(self, clients: usize) -> Policy {
        let mode = if self == Case::Reject { Mode::Reject } else { Mode::Shape };
        match self {
            Case::AtOnce | Case::Reject => policy(mode, PLENTY, clients),
            Case::Delayed | Case::Served => policy(mode, LITTLE, clients),
            Case::Edge(lending) => Policy {
                lending,
                burst: Ratio::ONE,
                queue_bytes: u64::MAX,
                ..policy(mode, 2 * clients as u64 / 3 + 1, clients)
            },
        }
    }
}

/// A running service of one of [`Case::ALL`].
pub struct Service {
    case: Case,
    throttle: Throttle,
    clients: usize,
    ids: Vec<String>,
    random: u64,
    now: Time,
    offset: i64,
}

impl Service {
    /// Creates a service in which all clients are known and a few cycles have passed.
    pub fn new(case: Case, clients: usize) -> Service {
        Service::with(case, case.policy(clients), clients)
    }

    /// Creates a service with another policy.
    pub fn with(case: Case, policy: Policy, clients: usize) -> Service {
        let now = Time::from_nanos(1_700_000_000_000_000_000);
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        let ids = vec![String::new(); BATCH];
        let mut service = Service { case, throttle, clients, ids, random: 1, now, offset: 0 };
        for client in 0..clients {
            service.name(0, client);
            service.decide(1, Duration::from_micros(10));
        }
        for _ in 0..3 {
            service.look(CYCLE);
        }
        service
    }

    /// Measures this many operations. Returns the mean time of an operation for each batch.
    pub fn run(&mut self, operations: u64) -> Vec<Duration> {
        let mut left = operations as usize;
        let mut each = Vec::new();
        while left > 0 {
            let batch = if matches!(self.case, Case::Edge(_)) { 1 } else { left.min(BATCH) };
            let took = match self.case {
                Case::AtOnce | Case::Reject => self.decisions(batch, STEP),
                Case::Delayed => {
                    let took = self.decisions(batch, Duration::ZERO);
                    self.serve_all();
                    took
                }
                Case::Served => {
                    self.decisions(batch, Duration::ZERO);
                    timed(|| self.serve_all())
                }
                Case::Edge(_) => self.edge(),
            };
            each.push(took / batch as u32);
            left -= batch;
        }
        each
    }

    /// Adds records to the backlog that stay there. Returns the mean time of a record for each batch.
    pub fn pile_up(&mut self, records: u64) -> Vec<Duration> {
        (0..records.div_ceil(BATCH as u64)).map(|_| self.decisions(BATCH, STEP) / BATCH as u32).collect()
    }

    fn decisions(&mut self, batch: usize, step: Duration) -> Duration {
        self.look(STEP);
        for index in 0..batch {
            let client = self.random() as usize % self.clients;
            self.name(index, client);
        }
        // `Served` measures only the departures, `Delayed` only the decisions.
        if self.case == Case::Served {
            self.decide(batch, step);
            return Duration::ZERO;
        }
        timed(|| self.decide(batch, step))
    }

    /// Measures the end of a cycle in which a few clients flood and the others want little or nothing.
    fn edge(&mut self) -> Duration {
        for _ in 0..self.clients.div_ceil(BATCH) {
            for index in 0..BATCH {
                let client = self.random() as usize % self.clients;
                // Small numbers are more frequent.
                let client = client * (self.random() as usize % self.clients) / self.clients;
                self.name(index, client);
            }
            self.decide(BATCH, Duration::ZERO);
            self.look(Duration::ZERO);
        }
        self.now = self.now + CYCLE;
        let took = timed(|| self.throttle.handle_timeout(self.now));
        self.look(Duration::ZERO);
        took
    }

    fn serve_all(&mut self) {
        while self.throttle.backlog().0 > 0 {
            self.now = self.now + 10 * STEP;
            self.look(Duration::ZERO);
            black_box(self.throttle.poll_timeout(self.now));
        }
    }

    fn decide(&mut self, batch: usize, step: Duration) {
        for id in &self.ids[..batch] {
            self.now = self.now + step;
            let arrival =
                Arrival { partition: 0, offset: self.offset, bytes: 256, sender: Sender::Client(id), written_ms: None };
            self.offset += 1;
            black_box(self.throttle.handle_record(self.now, &arrival));
        }
    }

    /// Lets time pass and carries out due timeouts and actions.
    fn look(&mut self, time: Duration) {
        self.now = self.now + time;
        self.throttle.handle_timeout(self.now);
        while let Some(action) = self.throttle.poll_action(self.now) {
            black_box(action);
        }
    }

    fn name(&mut self, index: usize, client: usize) {
        let id = &mut self.ids[index];
        id.clear();
        write!(id, "client-{client:08}").expect("writing to a string cannot fail");
    }

    /// Draws a number with Xorshift: the same clients in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }
}

/// Builds a policy without a burst: the bucket is one record deep.
pub fn policy(mode: Mode, capacity: u64, clients: usize) -> Policy {
    Policy {
        mode,
        max_clients: clients,
        client_idle_timeout: CYCLE * 1_000_000,
        max_delay: None,
        burst: Ratio::ZERO,
        commit_interval: Duration::from_nanos(1),
        ..Policy::new(capacity, CYCLE)
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    measured(work);
    began.elapsed()
}

/// Runs the measured work. Callgrind counts this function by its name, so no other function may have the same name.
#[inline(never)]
fn measured(work: impl FnOnce()) {
    work();
}
