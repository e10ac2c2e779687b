//! The options of the command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use crate::axis::Scale;
use crate::bare::{Task, Transactions};
use crate::runner::{Delivery, Mode, Program, Runner};
use crate::workload::{ClientFrom, Scenario, Workload};

/// Forwards the same records with bare loops and with Watermaster, and compares the costs.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", max_term_width = 120)]
pub struct Options {
    /// Runs of each program
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,

    /// Records forwarded in each run; with --latency 12 seconds' worth, otherwise 1000000
    #[arg(long)]
    records: Option<u64>,

    /// Bytes of a record's value
    #[arg(long, default_value_t = 256)]
    bytes: usize,

    /// Number of clients that send
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    clients: u64,

    /// Partitions of each topic
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,

    /// The place of a client's id
    #[arg(long, value_enum, default_value_t = ClientFrom::Header)]
    client_from: ClientFrom,

    /// Delay this percentage of the records, sending them during the run in bursts of twice the capacity
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=95), group = "kind")]
    delayed: Option<u8>,

    /// Reject all records of this percentage of the clients
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100), group = "kind")]
    rejected: Option<u8>,

    /// With --delayed and --latency: the service's capacity, in records per second
    #[arg(long, default_value_t = 50_000)]
    capacity: u64,

    /// Only programs with one of these texts in their name
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,

    /// Another program: a shell command that forwards from $SOURCE to $TARGET on $BROKER until it is killed
    #[arg(long = "peer", value_name = "NAME=CMD", value_parser = peer)]
    peers: Vec<(String, String)>,

    /// Measure the time from sending a record to reading it from the target, instead of CPU
    #[arg(long, group = "kind")]
    pub latency: bool,

    /// Measure the memory that a delayed record takes, instead of CPU
    #[arg(long, group = "kind")]
    pub backlog: bool,

    /// Measure at each point of an axis: partitions, services, backlog or clients; AXIS=N,N… sets the points
    #[arg(long, value_name = "AXIS[=N,…]", value_parser = Scale::parse, group = "kind")]
    pub scale: Option<Scale>,

    /// With --backlog and --scale backlog: the memory of Watermaster at which to stop (default: 3 GiB less than is
    /// free)
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,

    /// With --latency: records per second, in percent of the capacity; several are measured one after the other
    #[arg(
        long,
        value_name = "PERCENT,…",
        default_value = "50",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub load: Vec<u64>,

    /// Commit interval of Watermaster and the loops; with --latency several, each with each load
    #[arg(
        long = "commit-interval",
        value_name = "MS,…",
        default_value = "100",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub commit_intervals: Vec<u64>,

    /// Append the results to a file, a line of JSON for each table or point of an axis
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Run each program under this command, for a profile: `--under 'valgrind --tool=callgrind'`
    #[arg(long, value_name = "CMD")]
    under: Option<String>,

    /// Run as one of the loops: broker, source, target, records
    #[arg(long, hide = true, num_args = 4)]
    bare: Vec<String>,
    #[arg(long, hide = true)]
    transactions: bool,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The time for which each run of `--latency` sends, unless `--records` is given.
const LATENCY_RUN: Duration = Duration::from_secs(12);

fn peer(text: &str) -> Result<(String, String), &'static str> {
    let (name, command) = text.split_once('=').ok_or("expected NAME=CMD")?;
    Ok((name.to_owned(), command.to_owned()))
}

impl Options {
    /// Returns the loop's task if this process is one of the loops.
    pub fn bare_task(&self) -> Option<Task> {
        let [broker, source, target, records] = &self.bare[..] else { return None };
        Some(Task {
            broker: broker.clone(),
            source: source.clone(),
            target: target.clone(),
            records: records.parse().expect("a number of records"),
            transactions: if self.transactions { Transactions::Yes } else { Transactions::No },
            commit_interval: Duration::from_millis(self.commit_interval()),
        })
    }

    pub fn pairs(&self) -> usize {
        self.pairs.into()
    }

    /// Returns the commit interval of measurements that use only one.
    pub fn commit_interval(&self) -> u64 {
        self.commit_intervals[0]
    }

    /// Returns the error if options that are valid one by one exclude each other.
    pub fn conflict(&self) -> Option<&'static str> {
        let several = self.load.len() > 1 || self.commit_intervals.len() > 1;
        (several && !self.latency).then_some("several loads or commit intervals need --latency")
    }

    pub fn workload(&self) -> Workload {
        Workload {
            records: self.records.unwrap_or(1_000_000),
            bytes: self.bytes,
            clients: self.clients,
            partitions: self.partitions,
            services: 1,
            client_from: self.client_from,
            scenario: match (self.delayed, self.rejected) {
                (Some(percent), _) => Scenario::Delayed { percent, capacity: self.capacity },
                (_, Some(percent)) => Scenario::Rejected { percent },
                _ if self.backlog || self.scale.as_ref().is_some_and(Scale::holds_records) => Scenario::Held,
                _ => Scenario::Nothing,
            },
        }
    }

    /// Returns a workload with evenly spaced records, at this percentage of the capacity.
    pub fn steady(&self, load: u64) -> Workload {
        let rate = (self.capacity * load / 100).max(1);
        Workload {
            records: self.records.unwrap_or(rate * LATENCY_RUN.as_secs()),
            scenario: Scenario::Steady { capacity: self.capacity, rate },
            ..self.workload()
        }
    }

    /// Returns the compared programs, with this commit interval.
    pub fn runners(&self, commit_interval_ms: u64) -> Vec<Runner> {
        let programs = self.programs().into_iter().map(|program| (program.name(), program));
        let chosen = |name: &str| self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()));
        let peers = self.peers.iter().map(|(name, command)| Program::Peer(name.clone(), command.clone()));
        programs
            .filter(|(name, _)| chosen(name))
            .chain(peers.filter(|_| !self.watermaster_only()).map(|peer| (peer.name(), peer)))
            .map(|(name, program)| Runner { name, program, commit_interval_ms, under: self.under.clone() })
            .collect()
    }

    /// Tells whether only Watermaster supports the measurement.
    fn watermaster_only(&self) -> bool {
        self.backlog || self.scale.as_ref().is_some_and(Scale::watermaster_only)
    }

    /// Returns the loops and the variants of Watermaster, the loops first: all others are compared with them.
    fn programs(&self) -> Vec<Program> {
        let transactional = Program::Bare(Transactions::Yes);
        let once = |mode| Program::Watermaster(mode, Delivery::ExactlyOnce);
        if self.watermaster_only() {
            return vec![once(Mode::Shape)];
        }
        if self.scale.is_some() {
            return vec![transactional, once(Mode::Shape)];
        }
        if self.latency {
            return vec![transactional, once(Mode::Shadow), once(Mode::Shape)];
        }
        let modes: &[Mode] = match (self.delayed, self.rejected) {
            (Some(_), _) => &[Mode::Shape],
            (_, Some(_)) => &[Mode::Reject],
            _ => &[Mode::Shadow, Mode::Reject, Mode::RejectCatchingUp, Mode::Shape],
        };
        let deliveries = [Delivery::AtLeastOnce, Delivery::ExactlyOnce];
        let each = |&mode: &Mode| deliveries.map(|delivery| Program::Watermaster(mode, delivery));
        [Program::Bare(Transactions::No), transactional].into_iter().chain(modes.iter().flat_map(each)).collect()
    }
}
