//! Who forwards, and how it is started.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::bare::Transactions;
use crate::options::ClientFrom;
use crate::workload::{Turned, Workload};

/// One of those that are compared.
#[derive(Debug, Clone)]
pub struct Runner {
    pub name: String,
    pub program: Program,
    pub commit_interval_ms: u64,
    /// Runs under this command.
    pub under: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    Bare(Transactions),
    Watermaster(Mode, Delivery),
    /// A shell command.
    Peer(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Passthrough,
    Reject,
    Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Passthrough => "passthrough",
            Mode::Reject => "reject",
            Mode::Shape => "shape",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Mode::Passthrough => "enforce = false",
            Mode::Reject => "mode = \"reject\"",
            Mode::Shape => "mode = \"shape\"",
        }
    }
}

impl Delivery {
    pub fn name(self) -> &'static str {
        match self {
            Delivery::AtLeastOnce => "at_least_once",
            Delivery::ExactlyOnce => "exactly_once",
        }
    }
}

/// Between which topics of which broker.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    pub broker: &'a str,
    pub source: &'a str,
    pub target: &'a str,
    pub dead_letter: &'a str,
}

/// A program that can be started. The folder holds its configuration.
pub struct Start {
    pub command: Command,
    /// Where it tells of itself.
    pub admin: Option<u16>,
    pub _folder: TempDir,
}

impl Runner {
    /// Whether what it forwards arrives with transactions.
    pub fn transactional(&self) -> bool {
        match &self.program {
            Program::Bare(transactions) => *transactions == Transactions::Yes,
            Program::Watermaster(_, delivery) => *delivery == Delivery::ExactlyOnce,
            Program::Peer(_) => false,
        }
    }

    /// Whether it is one of the loops.
    pub fn bare(&self) -> bool {
        matches!(self.program, Program::Bare(_))
    }

    pub fn start(&self, workload: &Workload, route: Route<'_>) -> Start {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut admin = None;
        let (program, arguments) = match &self.program {
            Program::Bare(transactions) => self.bare_loop(*transactions, workload, route),
            Program::Watermaster(mode, delivery) => {
                let file = folder.path().join("watermaster.toml");
                let port = *admin.insert(free_port());
                std::fs::write(&file, self.config(*mode, *delivery, workload, route, port)).expect("a configuration");
                let file = file.to_str().expect("a readable path").to_owned();
                (env!("CARGO_BIN_EXE_watermaster").to_owned(), vec!["run".to_owned(), "--config".to_owned(), file])
            }
            // `exec`: its CPU, not a shell's, is measured.
            Program::Peer(command) => ("sh".to_owned(), vec!["-c".to_owned(), format!("exec {command}")]),
        };
        let under = self.under.iter().flat_map(|under| under.split_whitespace().map(str::to_owned));
        let mut words = under.chain([program]).chain(arguments);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).stdout(Stdio::piped()).env("RUST_LOG", "error");
        command.env("BROKER", route.broker).env("SOURCE", route.source).env("TARGET", route.target);
        Start { command, admin, _folder: folder }
    }

    fn bare_loop(&self, transactions: Transactions, workload: &Workload, route: Route<'_>) -> (String, Vec<String>) {
        let program = std::env::current_exe().expect("this program has a path");
        let records = workload.records.to_string();
        let mut arguments: Vec<String> =
            ["--bare", route.broker, route.source, route.target, &records].map(str::to_owned).into();
        arguments.extend(["--commit-interval".to_owned(), self.commit_interval_ms.to_string()]);
        if transactions == Transactions::Yes {
            arguments.push("--transactions".to_owned());
        }
        (program.to_str().expect("a readable path").to_owned(), arguments)
    }

    fn config(&self, mode: Mode, delivery: Delivery, workload: &Workload, route: Route<'_>, port: u16) -> String {
        let Route { broker, source, target, dead_letter } = route;
        let client_from = match workload.client_from {
            ClientFrom::Header => "header:client-id",
            ClientFrom::Json => "json:/client/id",
        };
        let mut text = format!(
            "[kafka]\nbootstrap_servers = \"{broker}\"\ngroup_id = \"{target}\"\ndelivery = \"{}\"\ncommit_interval = \"{}ms\"\n\
             [kafka.properties]\n\"session.timeout.ms\" = \"60000\"\n\"transaction.timeout.ms\" = \"60000\"\n\
             [admin]\nlisten = \"127.0.0.1:{port}\"\n\
             [[service]]\nname = \"bench\"\ntarget = \"{target}\"\ndead_letter = \"{dead_letter}\"\n\
             capacity = {}\ncycle = \"10s\"\n{}\nclient_from = [\"{client_from}\"]\nmax_clients = {}\n",
            delivery.name(),
            self.commit_interval_ms,
            workload.capacity(),
            mode.config(),
            workload.clients.max(1000),
        );
        if matches!(workload.turned, Turned::Rejected { .. }) {
            // What waits in the source already would be delayed until it is caught up.
            text.push_str("catch_up = \"reject\"\n");
        }
        text.push_str("[service.shape]\nqueue_capacity = 1000000\nqueue_bytes = \"4GiB\"\nmax_delay = \"600s\"\n");
        write!(text, "[[service.source]]\ntopic = \"{source}\"\n").expect("memory takes it");
        for client in workload.rejected_clients() {
            write!(text, "[service.client.{client}]\nlimit = {{ rate = 1, per = \"1h\", burst = 1 }}\n")
                .expect("memory takes it");
        }
        text
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound").port()
}
