//! What `--json` keeps: a line for each table or point of a curve, each with the machine that it was measured on.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Where results are appended, if anywhere.
pub struct Report {
    file: Option<PathBuf>,
    machine: Value,
}

impl Report {
    pub fn new(file: Option<PathBuf>) -> Report {
        Report { file, machine: machine() }
    }

    /// Appends at once: what was measured stays when what comes next fails.
    pub fn add(&self, measured: &str, result: Value) {
        let Some(file) = &self.file else { return };
        let line = json!({ "measured": measured, "machine": self.machine, "result": result });
        let mut file = OpenOptions::new().create(true).append(true).open(file).expect("the file can be written");
        writeln!(file, "{line}").expect("the results are written");
    }
}

/// What a reader needs to compare figures with others.
fn machine() -> Value {
    json!({
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "cpu": field("/proc/cpuinfo", "model name"),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "commit": said("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        "rustc": said("rustc", &["--version"]),
        "rdkafka": locked("rdkafka"),
        "librdkafka": rdkafka::util::get_rdkafka_version().1,
        // `scripts/bench` knows what it started.
        "kafka": std::env::var("WATERMASTER_BENCH_KAFKA").ok(),
    })
}

/// Memory that could be had without taking it from anybody, in bytes.
pub fn free_memory() -> f64 {
    let free = field("/proc/meminfo", "MemAvailable").expect("Linux's /proc");
    let kibibytes: f64 = free.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number");
    kibibytes * 1024.0
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// What stands behind a name and a colon.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The version of a package in the lock file.
fn locked(package: &str) -> Option<String> {
    let text = fs::read_to_string(root().join("Cargo.lock")).ok()?;
    let (_, rest) = text.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split_once('"').map(|(version, _)| version.to_owned())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
