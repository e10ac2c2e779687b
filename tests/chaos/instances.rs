//! The instances under test: starts, ends and freezes their processes, and reads their metrics.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::children::{guarded, start};
use crate::plan::{Mode, Plan};
use crate::rules;
use crate::support::process::{Process, Signal};
use crate::{flow::SourcePartition, support::watermaster::sample};

/// The time after which an instance that was frozen has published its state again.
const STALE_TIME: Duration = Duration::from_secs(3);
const TEMPLATE: &str = include_str!("instance.toml");

/// A slot for an instance. Most slots run all the time; the last ones are for extra instances.
pub struct Slot {
    /// The current `instance_id`.
    pub id: String,
    process: Option<Process>,
    log: PathBuf,
    starts: u32,
    ids: u32,
    frozen: bool,
    /// The time at which the process went on after it was frozen.
    thawed: Option<Instant>,
    /// The time at which a fault took its transactional id.
    pub fenced: Option<Instant>,
    /// A fault handles this slot; the watch ignores it.
    pub claimed: bool,
    /// The latest metrics.
    seen: Metrics,
}

/// All instances of a run.
pub struct Fleet {
    plan: Plan,
    dir: PathBuf,
    /// Addresses of the brokers, through the proxies.
    bootstrap: String,
    slots: Vec<Mutex<Slot>>,
    /// Additional environment variables of every instance.
    environment: Vec<(String, String)>,
}

/// A process without a slot. It is killed when it is dropped.
pub struct Detached {
    process: Process,
    log: PathBuf,
}

impl Detached {
    /// Waits until the process ends by itself.
    pub fn wait_end(&mut self, timeout: Duration) -> Option<ExitStatus> {
        wait(&mut self.process, timeout)
    }

    /// Tells whether the log contains this text.
    pub fn log_contains(&self, text: &str) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|log| log.contains(text))
    }
}

/// An answer of `/metrics`.
#[derive(Debug, Clone, Default)]
pub struct Metrics(String);

impl Metrics {
    /// Sums over all label sets that contain each of these `name="value"` pairs; 0 if there are none.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.0.lines().filter_map(|line| sample(line, name, labels)).sum()
    }

    /// Returns the source partitions assigned to the instance: those with a lag metric.
    pub fn partitions(&self, plan: &Plan) -> Vec<SourcePartition> {
        let lines = self.0.lines().filter(|line| line.starts_with("watermaster_consumer_lag_records{"));
        let label = |line: &str, name: &str| -> Option<String> {
            Some(line.split_once(&format!("{name}=\""))?.1.split('"').next()?.to_owned())
        };
        let partition = |line: &str| {
            let topic = label(line, "topic")?;
            let source = plan.sources.iter().position(|source| source.name == topic)?;
            Some((u8::try_from(source).ok()?, label(line, "partition")?.parse().ok()?))
        };
        lines.filter_map(partition).collect()
    }

    pub fn backlog(&self) -> f64 {
        self.sum("watermaster_backlog_records", &[])
    }

    pub fn recreations(&self) -> f64 {
        self.sum("watermaster_producer_recreations_total", &[])
    }

    /// Returns the number of rounds that were not committed.
    pub fn troubled_rounds(&self) -> f64 {
        self.sum("watermaster_rounds_total", &[]) - self.sum("watermaster_rounds_total", &["outcome=\"committed\""])
    }

    pub fn rebalances(&self) -> f64 {
        self.sum("watermaster_rebalances_total", &[])
    }
}

impl Fleet {
    /// Creates slots without starting instances.
    pub fn new(plan: &Plan, dir: &Path, bootstrap: &str, slots: usize, environment: Vec<(String, String)>) -> Fleet {
        let slot = |number: usize| {
            let id = format!("wm-{number}");
            let (process, log, seen) = (None, PathBuf::new(), Metrics::default());
            let (frozen, thawed, fenced, claimed) = (false, None, None, false);
            Mutex::new(Slot { id, process, log, starts: 0, ids: 0, frozen, thawed, fenced, claimed, seen })
        };
        let slots = (0..slots).map(slot).collect();
        Fleet { plan: plan.clone(), dir: dir.to_owned(), bootstrap: bootstrap.to_owned(), slots, environment }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn slot(&self, slot: usize) -> MutexGuard<'_, Slot> {
        self.slots[slot].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts an instance with the id of its slot.
    pub fn start(&self, number: usize) {
        let mut slot = self.slot(number);
        slot.starts += 1;
        let name = format!("instance-{number}-{:02}", slot.starts);
        slot.log = self.dir.join(format!("{name}.log"));
        let file = self.dir.join(format!("{name}.toml"));
        fs::write(&file, self.configuration(&slot.id)).expect("the run's directory can be written");
        let mut command = guarded(self.dir.join("watermaster"));
        command.arg("run").arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&slot.log).expect("the run's directory can be written"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WATERMASTER_")) {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let failpoint = self.failpoint(number);
        // The file may be left over from an earlier process.
        let _ = fs::remove_file(&failpoint);
        command.env("WATERMASTER_FAILPOINT", failpoint);
        slot.process = Some(start(command));
        (slot.frozen, slot.seen) = (false, Metrics::default());
    }

    fn configuration(&self, id: &str) -> String {
        let plan = &self.plan;
        let mut more_properties = plan.more_properties.clone();
        // With the new protocol the brokers set these times.
        if plan.group_protocol == "classic" {
            let (session, beat) = (plan.session_ms, plan.session_ms / 4);
            more_properties +=
                &format!("\"session.timeout.ms\" = \"{session}\"\n\"heartbeat.interval.ms\" = \"{beat}\"");
        }
        let (mut more_admin, mut more_service) = (String::new(), String::new());
        if plan.rules {
            more_admin = format!("token_file = {:?}", self.dir.join(rules::TOKEN_FILE));
            more_service = format!("rules_topic = {:?}", plan.rules_topic());
        }
        let mut text = fill(
            TEMPLATE,
            &[
                ("bootstrap", &self.bootstrap),
                ("group", &plan.group),
                ("id", id),
                ("commit_interval_ms", &plan.commit_interval_ms.to_string()),
                ("group_protocol", &plan.group_protocol),
                ("more_kafka", &plan.more_kafka),
                ("transaction_ms", &plan.transaction_ms.to_string()),
                ("more_properties", &more_properties),
                ("more_admin", &more_admin),
                ("more_service", &more_service),
                ("service", &plan.service),
                ("target", &plan.target),
                ("dead_letter", &plan.dead_letter),
                ("capacity", &plan.start_capacity().to_string()),
                ("cycle_ms", &plan.cycle_ms.to_string()),
                ("scope", if plan.grouped { "group" } else { "instance" }),
                ("silence_ms", &plan.silence_ms.to_string()),
                ("mode", if plan.mode == Mode::Shape { "shape" } else { "reject" }),
            ],
        );
        if plan.pace {
            let (group, floor, ceiling) = (plan.workers(), plan.capacity / 10, plan.capacity);
            text += "[service.pace]\ncontrol = \"apply\"\n";
            text += &format!("group = \"{group}\"\nfloor = {floor}\nceiling = {ceiling}\n");
        }
        for source in &plan.sources {
            text += &format!("[[service.source]]\ntopic = \"{}\"\n", source.name);
        }
        text
    }

    /// Takes the process out of its slot, so that another one can be started beside it.
    pub fn detach(&self, number: usize) -> Option<Detached> {
        let mut slot = self.slot(number);
        slot.process.take().map(|process| Detached { process, log: slot.log.clone() })
    }

    /// Returns the file in which an instance finds the step at which to end or to stop itself.
    fn failpoint(&self, number: usize) -> PathBuf {
        self.dir.join(format!("instance-{number}.failpoint"))
    }

    /// Makes an instance end itself at this step of a round.
    pub fn die_at(&self, number: usize, step: &str) {
        fs::write(self.failpoint(number), step).expect("the run's directory can be written");
    }

    /// Gives the slot a new id.
    pub fn rename(&self, number: usize) {
        let mut slot = self.slot(number);
        slot.ids += 1;
        slot.id = format!("wm-{number}-{}", slot.ids);
    }

    /// Kills an instance, as the kernel's out-of-memory killer would; returns false if it was not running.
    pub fn kill(&self, number: usize) -> bool {
        let mut slot = self.slot(number);
        let Some(mut process) = slot.process.take() else { return false };
        process.signal(Signal::Kill);
        process.wait(Duration::from_secs(10));
        true
    }

    pub fn freeze(&self, number: usize) {
        let mut slot = self.slot(number);
        slot.frozen = true;
        slot.process.iter_mut().for_each(|process| process.signal(Signal::Stop));
    }

    /// Makes an instance stop itself at this step of a round.
    pub fn freeze_at(&self, number: usize, step: &str) {
        self.slot(number).frozen = true;
        fs::write(self.failpoint(number), format!("stop {step}")).expect("the run's directory can be written");
    }

    pub fn thaw(&self, number: usize) {
        let mut slot = self.slot(number);
        (slot.frozen, slot.thawed) = (false, Some(Instant::now()));
        // An instance that never reached the step must not stop later, outside any fault.
        let _ = fs::remove_file(self.failpoint(number));
        slot.process.iter_mut().for_each(|process| process.signal(Signal::Continue));
    }

    /// Tells whether the kernel reports the process as stopped.
    pub fn is_stopped(&self, number: usize) -> bool {
        let slot = self.slot(number);
        let pid = slot.process.as_ref().map_or(0, Process::pid);
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    }

    /// Ends an instance with SIGTERM and returns its status; `None` if it was not running, or was killed after the
    /// timeout.
    pub fn terminate(&self, number: usize, timeout: Duration) -> Option<ExitStatus> {
        let mut process = self.slot(number).process.take()?;
        process.signal(Signal::Term);
        wait(&mut process, timeout)
    }

    /// Waits until an instance ends by itself; then it counts as not running.
    pub fn wait_end(&self, number: usize, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if let Some(status) = self.ended(number) {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Returns the status of an instance that has ended by itself, once.
    pub fn ended(&self, number: usize) -> Option<ExitStatus> {
        let mut slot = self.slot(number);
        let status = slot.process.as_mut()?.try_wait()?;
        slot.process = None;
        Some(status)
    }

    pub fn is_running(&self, number: usize) -> bool {
        self.slot(number).process.is_some()
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.len()).filter(|slot| self.is_running(*slot)).collect()
    }

    /// Returns status and body of a GET; `None` without an answer.
    pub fn get(&self, number: usize, path: &str) -> Option<(u16, String)> {
        self.ask(number, ureq::http::Request::get(path).body(String::new()).ok()?, Duration::from_secs(2))
    }

    /// Returns status and body of a request by the author of the rules; `None` without an answer.
    pub fn request(
        &self, number: usize, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>,
        timeout: Duration,
    ) -> Option<(u16, Value)> {
        let mut request = ureq::http::Request::builder().method(method).uri(path);
        let authorization = format!("Bearer {}", rules::TOKEN);
        for (name, value) in headers.iter().chain(&[("authorization", authorization.as_str())]) {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(body.map(Value::to_string).unwrap_or_default()).ok()?;
        let (status, text) = self.ask(number, request, timeout)?;
        Some((status, serde_json::from_str(&text).unwrap_or_default()))
    }

    /// Sends a request with the path alone as its address.
    fn ask(&self, number: usize, mut request: ureq::http::Request<String>, timeout: Duration) -> Option<(u16, String)> {
        let log = {
            let slot = self.slot(number);
            slot.process.as_ref().filter(|_| !slot.frozen)?;
            slot.log.clone()
        };
        let text = fs::read_to_string(log).ok()?;
        let line = text.lines().find(|line| line.contains("listening") && line.contains("http://"))?;
        let address = line.split("http://").nth(1)?;
        let end = address.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]".contains(c)));
        let url = format!("http://{}{}", &address[..end.unwrap_or(address.len())], request.uri());
        *request.uri_mut() = url.parse().ok()?;
        let config = ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true);
        let agent = config.timeout_global(Some(timeout)).build().new_agent();
        let mut response = agent.run(request).ok()?;
        let body = response.body_mut().read_to_string().ok()?;
        Some((response.status().as_u16(), body))
    }

    pub fn is_ready(&self, number: usize) -> bool {
        self.get(number, "/readyz").is_some_and(|(status, _)| status == 200)
    }

    /// Returns the current metrics, or the latest ones if the instance does not answer.
    pub fn metrics(&self, number: usize) -> Metrics {
        let now = self.get(number, "/metrics").map(|(_, text)| Metrics(text));
        let mut slot = self.slot(number);
        if let Some(now) = now {
            slot.seen = now;
        }
        slot.seen.clone()
    }

    /// Returns the metrics of all instances that answer. An instance that was frozen still answers with its state from
    /// before, so it is left out for a while.
    pub fn current_metrics(&self) -> BTreeMap<usize, Metrics> {
        let is_stale = |slot: &usize| self.slot(*slot).thawed.is_some_and(|at| at.elapsed() < STALE_TIME);
        let current = self.running().into_iter().filter(|slot| !is_stale(slot));
        current.filter_map(|slot| Some((slot, Metrics(self.get(slot, "/metrics")?.1)))).collect()
    }

    /// Returns the metrics of all running instances, by slot.
    pub fn all_metrics(&self) -> BTreeMap<usize, Metrics> {
        self.running().into_iter().map(|slot| (slot, self.metrics(slot))).collect()
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self, number: usize, lines: usize) -> String {
        let text = fs::read_to_string(&self.slot(number).log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Tells whether the log contains this text.
    pub fn log_contains(&self, number: usize, text: &str) -> bool {
        fs::read_to_string(&self.slot(number).log).is_ok_and(|log| log.contains(text))
    }
}

/// Replaces each `{name}` of a template with its value.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| {
        let name = format!("{{{name}}}");
        assert!(text.contains(&name), "the template has no {name}");
        text.replace(&name, value)
    })
}

fn wait(process: &mut Process, timeout: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}
