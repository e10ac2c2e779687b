//! A program while it runs: what it takes, and what it tells.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::bare;

/// A process that ends with its run, be it by a panic.
pub struct Running {
    child: Child,
    /// Where watermaster tells of itself.
    admin: Option<u16>,
    /// Holds its configuration.
    _folder: TempDir,
}

impl Running {
    pub fn start(mut command: Command, admin: Option<u16>, folder: TempDir) -> Running {
        Running { child: command.spawn().expect("the forwarder starts"), admin, _folder: folder }
    }

    /// Whether it is watermaster, which tells of itself.
    pub fn tells(&self) -> bool {
        self.admin.is_some()
    }

    pub fn assert_alive(&mut self) {
        assert!(self.child.try_wait().expect("it is a child").is_none(), "the forwarder ended");
    }

    /// Until one of the loops says that all is forwarded and committed.
    pub fn await_done(&mut self) {
        let mut line = String::new();
        let said = self.child.stdout.take().expect("it is a pipe");
        BufReader::new(said).read_line(&mut line).expect("it says something");
        assert_eq!(line.trim(), bare::DONE, "the loop failed");
    }

    /// The sum of the samples of watermaster's own scrape whose line begins so; 0 where nobody answers (yet).
    pub fn scraped(&self, beginning: &str) -> f64 {
        let Some(port) = self.admin else { return 0.0 };
        let Ok(scrape) = ureq::get(format!("http://127.0.0.1:{port}/metrics")).call() else { return 0.0 };
        let text = scrape.into_body().read_to_string().expect("text");
        let values = text.lines().filter(|line| line.starts_with(beginning)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().expect("a number")).sum()
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a command in brackets").split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().expect("ticks")).sum();
        ticks / 100.0
    }

    /// What is resident.
    pub fn resident_bytes(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// The most that was resident at once.
    pub fn peak_bytes(&self) -> f64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with(name)).expect("it is told");
        let kibibytes: f64 = line.split_whitespace().nth(1).expect("a figure").parse().expect("a number");
        kibibytes * 1024.0
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("Linux's /proc")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
