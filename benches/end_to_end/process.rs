//! A running program: its CPU, memory and metrics.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::bare;

/// A process that is ended when dropped, also on a panic.
pub struct Running {
    child: Child,
    /// The port of Watermaster's metrics; `None` for other programs.
    admin: Option<u16>,
    /// The temporary folder with the configuration.
    _folder: TempDir,
}

impl Running {
    pub fn start(mut command: Command, admin: Option<u16>, folder: TempDir) -> Running {
        Running { child: command.spawn().expect("the program starts"), admin, _folder: folder }
    }

    /// Tells whether the process is Watermaster, which serves metrics.
    pub fn has_metrics(&self) -> bool {
        self.admin.is_some()
    }

    pub fn assert_alive(&mut self) {
        assert!(self.child.try_wait().expect("the child can be waited for").is_none(), "the program ended early");
    }

    /// Waits until the loop reports that all records are forwarded and committed.
    pub fn wait_until_done(&mut self) {
        let mut line = String::new();
        let stdout = self.child.stdout.take().expect("standard output is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("standard output can be read");
        assert_eq!(line.trim(), bare::DONE, "the loop failed");
    }

    /// Sums the samples of Watermaster's metrics on lines that start with `prefix`; 0 if the endpoint does not answer
    /// yet.
    pub fn metric_sum(&self, prefix: &str) -> f64 {
        let Some(port) = self.admin else { return 0.0 };
        let Ok(scrape) = ureq::get(format!("http://127.0.0.1:{port}/metrics")).call() else { return 0.0 };
        let text = scrape.into_body().read_to_string().expect("metrics are text");
        let values = text.lines().filter(|line| line.starts_with(prefix)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().expect("a sample ends with a number")).sum()
    }

    /// Returns the user and system time so far.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> =
            stat.rsplit(')').next().expect("stat has the command in brackets").split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().expect("times are whole ticks")).sum();
        ticks / 100.0
    }

    /// Returns the resident memory.
    pub fn resident_bytes(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the resident memory.
    pub fn peak_bytes(&self) -> f64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with(name)).expect("status has this field");
        let kibibytes: f64 =
            line.split_whitespace().nth(1).expect("the field has a value").parse().expect("the value is a number");
        kibibytes * 1024.0
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("/proc can be read")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
