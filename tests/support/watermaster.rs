//! The program under test, run as a process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::config::Config;
use super::process::{Process, Signal};
use super::wait::{wait_for, wait_until};

/// The name of the configuration file, in the folder of its process.
const FILE: &str = "watermaster.toml";

/// The program that this tree builds.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_watermaster");

/// The time limit for the program to become ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `watermaster check --connect`; returns the exit code and all output.
pub fn check(config: &Config) -> (Option<i32>, String) {
    check_with(config, &[])
}

/// Runs `check --connect` with more options.
pub fn check_with(config: &Config, options: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::Builder::new().prefix("watermaster-").tempdir().expect("a temporary directory");
    let output = command(Path::new(PROGRAM), "check", &config.to_toml(), &dir)
        .envs(config.environment.clone())
        .arg("--connect")
        .args(options)
        .output()
        .expect("watermaster runs");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), said.concat())
}

/// Returns the command `watermaster …` for a configuration, whose file is put into the folder.
pub fn short_command(config: &Config, dir: &TempDir, subcommand: &str, options: &[&str]) -> Command {
    let mut command = command(Path::new(PROGRAM), subcommand, &config.to_toml(), dir);
    command.args(options).envs(config.environment.clone()).stdin(Stdio::null());
    command
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(5))).build().new_agent()
}

fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Option<(u16, String)> {
    let mut response = response.ok()?;
    let body = response.body_mut().read_to_string().ok()?;
    Some((response.status().as_u16(), body))
}

/// Returns the command for a subcommand with this configuration, without the variables that would change it.
fn command(program: &Path, subcommand: &str, toml: &str, dir: &TempDir) -> Command {
    let file = dir.path().join(FILE);
    // A command that started a moment ago may be reading the file.
    if std::fs::read_to_string(&file).ok().as_deref() != Some(toml) {
        std::fs::write(&file, toml).expect("the configuration can be written");
    }
    let mut command = Command::new(program);
    command.args(subcommand.split(' ')).arg("--config").arg(&file);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WATERMASTER_")) {
        command.env_remove(name);
    }
    command
}

/// A process of `watermaster run`.
pub struct Watermaster {
    process: Process,
    log: Arc<Mutex<String>>,
    dir: TempDir,
}

impl Watermaster {
    /// Starts the program; returns at once.
    pub fn spawn(config: &Config) -> Watermaster {
        Watermaster::spawn_with(config, &[])
    }

    /// Starts the program with more options; returns at once.
    pub fn spawn_with(config: &Config, options: &[&str]) -> Watermaster {
        Watermaster::spawn_in(Path::new(PROGRAM), &config.to_toml(), options, &config.environment)
    }

    /// Starts a program of any version with the text of its configuration; returns at once.
    pub fn spawn_program(program: &Path, toml: &str, options: &[&str]) -> Watermaster {
        Watermaster::spawn_in(program, toml, options, &[])
    }

    /// Starts a program of any version with these variables in its environment; returns at once.
    pub fn spawn_in(program: &Path, toml: &str, options: &[&str], environment: &[(&str, String)]) -> Watermaster {
        let dir = tempfile::Builder::new().prefix("watermaster-").tempdir().expect("a temporary directory");
        let mut command = command(program, "run", toml, &dir);
        command
            .args(options)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command);
        let stderr = process.child().stderr.take().expect("stderr is piped");
        let log = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = copy.lock().expect("no holder panics");
                log.push_str(&line);
                log.push('\n');
            }
        });
        Watermaster { process, log, dir }
    }

    /// Starts the program and waits until it is ready.
    pub fn start(config: &Config) -> Watermaster {
        let mut watermaster = Watermaster::spawn(config);
        watermaster.wait_ready(START_TIMEOUT);
        watermaster
    }

    /// Starts an instance for each of these ids, and waits until all are ready at a time.
    pub fn start_all(config: &Config, instances: &[&'static str]) -> Vec<Watermaster> {
        let start = |&instance: &&'static str| Watermaster::start(&Config { instance, ..config.clone() });
        let running: Vec<Watermaster> = instances.iter().map(start).collect();
        wait_until("all instances to be ready", START_TIMEOUT, || running.iter().all(Watermaster::is_ready));
        running
    }

    /// Waits until `/readyz` answers with 200.
    pub fn wait_ready(&mut self, timeout: Duration) {
        wait_until("watermaster to be ready", timeout, || {
            self.assert_running();
            self.is_ready()
        });
    }

    /// Panics with the end of the log if the program has ended.
    pub fn assert_running(&mut self) {
        let ended = self.process.try_wait();
        assert!(ended.is_none(), "watermaster ended with {ended:?}; its log:\n{}", self.log_tail());
    }

    pub fn is_ready(&self) -> bool {
        self.get("/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// Returns status and body of a GET; `None` if there is no answer.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        answer(agent().get(format!("{}{path}", self.url()?)).call())
    }

    /// Puts another configuration in place of the former one, at once.
    pub fn rewrite(&self, toml: &str) {
        let [new, file] = ["new", FILE].map(|name| self.dir.path().join(name));
        std::fs::write(&new, toml).and_then(|()| std::fs::rename(new, file)).expect("the configuration can be written");
    }

    /// Writes another configuration and asks for a reload; returns status and body of the answer.
    pub fn reload(&self, toml: &str, token: &str) -> (u16, String) {
        self.rewrite(toml);
        let url = format!("{}/v1/reload", self.url().expect("the log has the admin address"));
        let request = agent().post(url).header("authorization", format!("Bearer {token}"));
        // A reload may ask the brokers first.
        let request = request.config().timeout_global(Some(START_TIMEOUT)).build();
        answer(request.send_empty()).expect("the admin API answers")
    }

    /// Sends a request with these headers, and a body unless it is empty; returns the status, the ETag and the body.
    pub fn request(
        &self, method: &str, path: &str, headers: &[(&str, &str)], body: &str,
    ) -> Option<(u16, Option<String>, String)> {
        request_at(&self.url()?, method, path, headers, body)
    }

    /// Returns the admin API's description of a service.
    pub fn service(&self, name: &str) -> serde_json::Value {
        let (status, body) = self.get(&format!("/v1/services/{name}")).expect("the admin API answers");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("the admin API speaks JSON")
    }

    /// Returns the sum of a metric over all label sets that contain each of these `name="value"` pairs.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let (_, text) = self.get("/metrics")?;
        let values = text.lines().filter_map(|line| sample(line, name, labels));
        values.reduce(|sum, value| sum + value)
    }

    /// Returns the resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Returns the peak of the resident memory in KiB.
    pub fn peak_resident_kib(&self) -> u64 {
        self.status("VmHWM:")
    }

    /// Returns the number of librdkafka clients: each has one thread of this name.
    pub fn client_count(&self) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.pid())).into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.trim() == "rdk:main").count()
    }

    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    /// Sends SIGTERM and waits until the program ends.
    pub fn terminate(&mut self, timeout: Duration) -> ExitStatus {
        self.process.signal(Signal::Term);
        self.wait(timeout)
    }

    /// Sends SIGKILL, as the kernel's out-of-memory killer does, and waits until the program ends.
    pub fn kill(&mut self) {
        self.process.signal(Signal::Kill);
        self.wait(Duration::from_secs(10));
    }

    /// Suspends the program; its connections stay open.
    pub fn freeze(&mut self) {
        self.process.signal(Signal::Stop);
    }

    /// Resumes the program.
    pub fn thaw(&mut self) {
        self.process.signal(Signal::Continue);
    }

    /// Waits until the program ends.
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let process = &mut self.process;
        wait_for("watermaster to end", timeout, || process.try_wait())
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder panics").clone()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Returns the URL of the admin API, from the log line that names it.
    pub fn url(&self) -> Option<String> {
        let log = self.log.lock().expect("no holder panics");
        let line = log.lines().find(|line| line.contains("listening") && line.contains("http://"))?;
        let address = line.split("http://").nth(1)?;
        let end = address.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]".contains(c)));
        Some(format!("http://{}", &address[..end.unwrap_or(address.len())]))
    }
}

impl Drop for Watermaster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- watermaster's log ends with\n{}", self.log_tail());
        }
    }
}

/// Sends a request to an admin API; returns the status, the ETag and the body.
pub fn request_at(
    url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str,
) -> Option<(u16, Option<String>, String)> {
    let request = ureq::http::Request::builder().method(method).uri(format!("{url}{path}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let mut response = agent().run(request.body(body.to_owned()).expect("a request")).ok()?;
    let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).map(str::to_owned);
    let body = response.body_mut().read_to_string().ok()?;
    Some((response.status().as_u16(), etag, body))
}

/// Returns the value of a sample line of this metric family with all these labels.
pub fn sample(line: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let (found, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once("} ")?,
        None => ("", rest.strip_prefix(' ')?),
    };
    labels.iter().all(|label| found.contains(label)).then(|| value.trim().parse().ok())?
}
