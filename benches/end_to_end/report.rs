//! The file of `--json`: one line for each table or point of an axis, each with a description of the machine.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::{io::Write as _, process::Command};

use serde_json::{Value, json};

/// Appends results to the file, if one is given.
pub struct Report {
    file: Option<PathBuf>,
    machine: Value,
}

impl Report {
    pub fn new(file: Option<PathBuf>) -> Report {
        Report { file, machine: machine() }
    }

    /// Appends a result at once, so that it is kept if a later measurement fails.
    pub fn add(&self, measured: &str, result: Value) {
        let Some(file) = &self.file else { return };
        let line = json!({ "measured": measured, "machine": self.machine, "result": result });
        let mut file = OpenOptions::new().create(true).append(true).open(file).expect("the file can be written");
        writeln!(file, "{line}").expect("the results are written");
    }
}

/// Describes the machine and the versions that the figures depend on.
fn machine() -> Value {
    json!({
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "cpu": field("/proc/cpuinfo", "model name"),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "commit": output("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        "rustc": output("rustc", &["--version"]),
        "rdkafka": locked("rdkafka"),
        "librdkafka": rdkafka::util::get_rdkafka_version().1,
        // `scripts/bench` sets the version of the broker that it started.
        "kafka": std::env::var("WATERMASTER_BENCH_KAFKA").ok(),
    })
}

/// Returns the memory that is available without swapping, in bytes.
pub fn free_memory() -> f64 {
    let free = field("/proc/meminfo", "MemAvailable").expect("/proc/meminfo can be read");
    let kibibytes: f64 =
        free.split_whitespace().next().and_then(|text| text.parse().ok()).expect("the field is a number");
    kibibytes * 1024.0
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the value of a `name: value` line.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns the version of a package in the lock file.
fn locked(package: &str) -> Option<String> {
    let text = fs::read_to_string(root().join("Cargo.lock")).ok()?;
    let (_, rest) = text.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split_once('"').map(|(version, _)| version.to_owned())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
