//! What may be chosen.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::bare::{Task, Transactions};
use crate::runner::{Delivery, Mode, Program, Runner};
use crate::workload::{Turned, Workload};

/// Forwards the same records with bare loops and with watermaster, and compares what it costs.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", max_term_width = 120)]
pub struct Options {
    /// How often each is run
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,

    /// Records forwarded in each run
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,

    /// Bytes of a record's value
    #[arg(long, default_value_t = 256)]
    bytes: usize,

    /// How many clients send
    #[arg(long, default_value_t = 16)]
    clients: u64,

    /// Partitions of each topic
    #[arg(long, default_value_t = 4)]
    partitions: i32,

    /// Where a client's id stands
    #[arg(long, value_enum, default_value_t = ClientFrom::Header)]
    client_from: ClientFrom,

    /// So many percent are delayed: records are sent while it runs, in bursts of twice the capacity
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=95), conflicts_with = "rejected")]
    delayed: Option<u8>,

    /// So many percent of the clients have all their records rejected
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    rejected: Option<u8>,

    /// With --delayed and --latency: the service's capacity, in records per second
    #[arg(long, default_value_t = 50_000)]
    pub capacity: u64,

    /// Only those whose name contains one of these
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,

    /// Another program: a shell command that forwards from $SOURCE to $TARGET on $BROKER until it is killed
    #[arg(long = "peer", value_name = "NAME=CMD", value_parser = peer)]
    peers: Vec<(String, String)>,

    /// The time from sending a record to reading it from the target, instead of CPU
    #[arg(long)]
    pub latency: bool,

    /// The memory that a delayed record takes, instead of CPU
    #[arg(long, conflicts_with_all = ["latency", "delayed", "rejected"])]
    pub backlog: bool,

    /// With --latency: records per second, in percent of the capacity
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub load: u64,

    /// How often watermaster and the loops commit
    #[arg(long, value_name = "MS", default_value_t = 100)]
    commit_interval: u64,

    /// Write the results there, too
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
            commit_interval: std::time::Duration::from_millis(self.commit_interval),
        })
    }

    pub fn workload(&self) -> Workload {
        Workload {
            records: self.records,
            bytes: self.bytes,
            clients: self.clients,
            partitions: self.partitions,
            client_from: self.client_from,
            turned: match (self.delayed, self.rejected) {
                (Some(percent), _) => Turned::Delayed { percent, capacity: self.capacity },
                (_, Some(percent)) => Turned::Rejected { percent },
                _ if self.backlog => Turned::Held,
                _ if self.latency => Turned::Steady { capacity: self.capacity, rate: self.capacity * self.load / 100 },
                _ => Turned::Nothing,
            },
        }
    }

    /// Who is compared. The first two are the loops that the others are compared with.
    pub fn runners(&self) -> Vec<Runner> {
        let modes: &[Mode] = match (self.delayed, self.rejected, self.latency) {
            _ if self.backlog => &[Mode::Shape],
            (Some(_), ..) => &[Mode::Shape],
            (_, Some(_), _) => &[Mode::Reject],
            (.., true) => &[Mode::Passthrough, Mode::Shape],
            _ => &[Mode::Passthrough, Mode::Reject, Mode::Shape],
        };
        let runner = |name: String, program| Runner {
            name,
            program,
            commit_interval_ms: self.commit_interval,
            under: self.under.clone(),
        };
        let mut all = vec![
            runner("plain loop".to_owned(), Program::Bare(Transactions::No)),
            runner("transactional loop".to_owned(), Program::Bare(Transactions::Yes)),
        ];
        for &mode in modes {
            for delivery in [Delivery::AtLeastOnce, Delivery::ExactlyOnce] {
                let name = format!("{} {}", mode.name(), delivery.name());
                all.push(runner(name, Program::Watermaster(mode, delivery)));
            }
        }
        if self.latency || self.backlog {
            all.retain(|runner| runner.transactional() && !(self.backlog && runner.bare()));
        }
        let chosen = |runner: &Runner| self.only.iter().any(|text| runner.name.contains(text.as_str()));
        all.retain(|runner| self.only.is_empty() || chosen(runner));
        all.extend(self.peers.iter().map(|(name, command)| runner(name.clone(), Program::Peer(command.clone()))));
        all
    }
}
