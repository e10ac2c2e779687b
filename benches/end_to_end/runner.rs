//! The compared programs and their start.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::workload::{ClientFrom, Scenario, Workload};
use crate::{bare::Transactions, process::Running, topics::Route};

/// One of the compared programs.
#[derive(Debug, Clone)]
pub struct Runner {
    pub name: String,
    pub program: Program,
    pub commit_interval_ms: u64,
    /// The command under which the program runs, such as a profiler.
    pub under: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    Bare(Transactions),
    Watermaster(Mode, Delivery),
    /// A name and a shell command.
    Peer(String, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Shadow,
    /// Records that wait in the source at the start are decided at once.
    Reject,
    /// The default: records that wait in the source at the start pass through the backlog.
    RejectCatchingUp,
    Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Shadow => "shadow",
            Mode::Reject => "reject",
            Mode::RejectCatchingUp => "reject catching_up",
            Mode::Shape => "shape",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Mode::Shadow => "enforce = false",
            Mode::Reject => "mode = \"reject\"\ncatch_up = \"reject\"",
            Mode::RejectCatchingUp => "mode = \"reject\"",
            Mode::Shape => "mode = \"shape\"",
        }
    }
}

impl Delivery {
    fn name(self) -> &'static str {
        match self {
            Delivery::AtLeastOnce => "at_least_once",
            Delivery::ExactlyOnce => "exactly_once",
        }
    }
}

impl Program {
    pub fn name(&self) -> String {
        match self {
            Program::Bare(Transactions::No) => "plain loop".to_owned(),
            Program::Bare(Transactions::Yes) => "transactional loop".to_owned(),
            Program::Watermaster(mode, delivery) => format!("{} {}", mode.name(), delivery.name()),
            Program::Peer(name, _) => name.clone(),
        }
    }
}

impl Runner {
    /// Tells whether the program produces in transactions.
    pub fn transactional(&self) -> bool {
        match &self.program {
            Program::Bare(transactions) => *transactions == Transactions::Yes,
            Program::Watermaster(_, delivery) => *delivery == Delivery::ExactlyOnce,
            Program::Peer(..) => false,
        }
    }

    /// Tells whether the program is one of the loops.
    pub fn bare(&self) -> bool {
        matches!(self.program, Program::Bare(_))
    }

    /// Starts the program. Only Watermaster takes more than one route.
    pub fn start(&self, workload: &Workload, broker: &str, routes: &[Route]) -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let route = &routes[0];
        let mut admin = None;
        let (program, arguments) = match &self.program {
            Program::Bare(transactions) => self.bare_loop(*transactions, workload, broker, route),
            Program::Watermaster(mode, delivery) => {
                let file = folder.path().join("watermaster.toml");
                let mut text = self.config(*delivery, broker, &route.target, *admin.insert(free_port()));
                routes.iter().for_each(|route| text.push_str(&service(*mode, workload, route)));
                std::fs::write(&file, text).expect("the configuration can be written");
                let file = file.to_str().expect("the path is UTF-8").to_owned();
                (env!("CARGO_BIN_EXE_watermaster").to_owned(), vec!["run".to_owned(), "--config".to_owned(), file])
            }
            // With `exec` the measured process is the peer, not the shell.
            Program::Peer(_, command) => ("sh".to_owned(), vec!["-c".to_owned(), format!("exec {command}")]),
        };
        let under = self.under.iter().flat_map(|under| under.split_whitespace().map(str::to_owned));
        let mut words = under.chain([program]).chain(arguments);
        let mut command = Command::new(words.next().expect("a program is given"));
        command.args(words).env("RUST_LOG", "error");
        // Only the output of loops is read: another program would block on a full pipe.
        command.stdout(if self.bare() { Stdio::piped() } else { Stdio::from(std::io::stderr()) });
        command.env("BROKER", broker).env("SOURCE", &route.source).env("TARGET", &route.target);
        command.env("DEAD_LETTER", &route.dead_letter);
        command.env("COMMIT_INTERVAL_MS", self.commit_interval_ms.to_string());
        Running::start(command, admin, folder)
    }

    fn bare_loop(
        &self, transactions: Transactions, workload: &Workload, broker: &str, route: &Route,
    ) -> (String, Vec<String>) {
        let program = std::env::current_exe().expect("this program has a path");
        let records = workload.records.to_string();
        let mut arguments: Vec<String> =
            ["--bare", broker, &route.source, &route.target, &records].map(str::to_owned).into();
        arguments.extend(["--commit-interval".to_owned(), self.commit_interval_ms.to_string()]);
        if transactions == Transactions::Yes {
            arguments.push("--transactions".to_owned());
        }
        (program.to_str().expect("the path is UTF-8").to_owned(), arguments)
    }

    fn config(&self, delivery: Delivery, broker: &str, group: &str, port: u16) -> String {
        format!(
            "[kafka]\nbootstrap_servers = \"{broker}\"\ngroup_id = \"{group}\"\n\
             delivery = \"{}\"\ncommit_interval = \"{}ms\"\nstart_from = \"earliest\"\n\
             [kafka.properties]\n\"session.timeout.ms\" = \"60000\"\n\"transaction.timeout.ms\" = \"60000\"\n\
             [admin]\nlisten = \"127.0.0.1:{port}\"\n",
            delivery.name(),
            self.commit_interval_ms,
        )
    }
}

/// Configures a service with backlogs that hold all records for the whole run: no record is evicted or expires.
fn service(mode: Mode, workload: &Workload, route: &Route) -> String {
    let Route { source, target, dead_letter } = route;
    let client_from = match workload.client_from {
        ClientFrom::Header => "header:client-id",
        ClientFrom::Json => "json:/client/id",
    };
    let (queue_capacity, queue_bytes, max_delay) = match workload.scenario {
        Scenario::Held => (100_000_000, "1024GiB", "12h"),
        _ => (1_000_000, "4GiB", "600s"),
    };
    let mut text = format!(
        "[[service]]\nname = \"{target}\"\ntarget = \"{target}\"\ndead_letter = \"{dead_letter}\"\n\
         capacity = {}\ncycle = \"10s\"\n{}\nclient_from = [\"{client_from}\"]\nmax_clients = {}\n\
         [service.shape]\nqueue_capacity = {queue_capacity}\nqueue_bytes = \"{queue_bytes}\"\n\
         max_delay = \"{max_delay}\"\n\
         [[service.source]]\ntopic = \"{source}\"\n",
        workload.capacity(),
        mode.config(),
        workload.clients.max(1000),
    );
    for client in workload.rejected_clients() {
        write!(text, "[service.client.{client}]\nlimit = {{ rate = 1, per = \"1h\", burst = 1 }}\n")
            .expect("writing to a string does not fail");
    }
    text
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("the listener is bound").port()
}
