//! What may be chosen.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::bare::{Task, Transactions};
use crate::runner::{Delivery, Mode, Program, Runner};
use crate::scale::Scale;
use crate::workload::{Turned, Workload};

/// Forwards the same records with bare loops and with watermaster, and compares what it costs.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", max_term_width = 120)]
pub struct Options {
    /// How often each is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,

    /// Records forwarded in each run; with --latency 12 seconds' worth, otherwise 1000000
    #[arg(long)]
    records: Option<u64>,

    /// Bytes of a record's value
    #[arg(long, default_value_t = 256)]
    bytes: usize,

    /// How many clients send
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    clients: u64,

    /// Partitions of each topic
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,

    /// Where a client's id stands
    #[arg(long, value_enum, default_value_t = ClientFrom::Header)]
    client_from: ClientFrom,

    /// So many percent are delayed: records are sent while it runs, in bursts of twice the capacity
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=95), group = "kind")]
    delayed: Option<u8>,

    /// So many percent of the clients have all their records rejected
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100), group = "kind")]
    rejected: Option<u8>,

    /// With --delayed and --latency: the service's capacity, in records per second
    #[arg(long, default_value_t = 50_000)]
    capacity: u64,

    /// Only those whose name contains one of these
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,

    /// Another program: a shell command that forwards from $SOURCE to $TARGET on $BROKER until it is killed
    #[arg(long = "peer", value_name = "NAME=CMD", value_parser = peer)]
    peers: Vec<(String, String)>,

    /// The time from sending a record to reading it from the target, instead of CPU
    #[arg(long, group = "kind")]
    pub latency: bool,

    /// The memory that a delayed record takes, instead of CPU
    #[arg(long, group = "kind")]
    pub backlog: bool,

    /// A curve: partitions, services, backlog or clients, with other points than the usual ones by AXIS=N,N…
    #[arg(long, value_name = "AXIS[=N,…]", value_parser = Scale::parse, group = "kind")]
    pub scale: Option<Scale>,

    /// With --backlog and --scale backlog: stop at so much memory of watermaster's (default: 3 GiB less than is free)
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,

    /// With --latency: records per second, in percent of the capacity; several are measured one after the other
    #[arg(long, value_name = "PERCENT,…", default_value = "50", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub load: Vec<u64>,

    /// How often watermaster and the loops commit; with --latency several, each with each load
    #[arg(long = "commit-interval", value_name = "MS,…", default_value = "100", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub commit_intervals: Vec<u64>,

    /// Append the results to a file, a line of JSON for each table or point of a curve
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Runs under this command, for a profile: `--under 'valgrind --tool=callgrind'`
    #[arg(long, value_name = "CMD")]
    under: Option<String>,

    /// Be the loop that is measured: broker, source, target, records
    #[arg(long, hide = true, num_args = 4)]
    bare: Vec<String>,
    #[arg(long, hide = true)]
    transactions: bool,
    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClientFrom {
    Header,
    Json,
}

/// How long each run of `--latency` sends, unless the records are counted.
const LATENCY_RUN: Duration = Duration::from_secs(12);

fn peer(text: &str) -> Result<(String, String), String> {
    let (name, command) = text.split_once('=').ok_or("it takes NAME=CMD")?;
    Ok((name.to_owned(), command.to_owned()))
}

impl Options {
    /// What to forward if this process is one of the loops.
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

    /// Where there is one for all.
    pub fn commit_interval(&self) -> u64 {
        self.commit_intervals[0]
    }

    /// What is wrong with options that are right one by one.
    pub fn refused(&self) -> Option<&'static str> {
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
            turned: match (self.delayed, self.rejected) {
                (Some(percent), _) => Turned::Delayed { percent, capacity: self.capacity },
                (_, Some(percent)) => Turned::Rejected { percent },
                _ if self.backlog || self.scale.as_ref().is_some_and(Scale::holds) => Turned::Held,
                _ => Turned::Nothing,
            },
        }
    }

    /// Records that come evenly, at so many percent of the capacity.
    pub fn steady(&self, load: u64) -> Workload {
        let rate = (self.capacity * load / 100).max(1);
        Workload {
            records: self.records.unwrap_or(rate * LATENCY_RUN.as_secs()),
            turned: Turned::Steady { capacity: self.capacity, rate },
            ..self.workload()
        }
    }

    /// Who is compared, with this commit interval.
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

    /// Whether others can't do what is measured.
    fn watermaster_only(&self) -> bool {
        self.backlog || self.scale.as_ref().is_some_and(Scale::watermaster_only)
    }

    /// The loops first: the others are compared with them.
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
            return vec![transactional, once(Mode::Passthrough), once(Mode::Shape)];
        }
        let modes: &[Mode] = match (self.delayed, self.rejected) {
            (Some(_), _) => &[Mode::Shape],
            (_, Some(_)) => &[Mode::Reject],
            _ => &[Mode::Passthrough, Mode::Reject, Mode::RejectCatchingUp, Mode::Shape],
        };
        let deliveries = [Delivery::AtLeastOnce, Delivery::ExactlyOnce];
        let each = |&mode: &Mode| deliveries.map(|delivery| Program::Watermaster(mode, delivery));
        [Program::Bare(Transactions::No), transactional].into_iter().chain(modes.iter().flat_map(each)).collect()
    }
}
