//! The example of `config/lending-platform.toml` as `docker compose up` runs it: two instances, three services behind them,
//! a campaign, Prometheus with its rules. The story is asserted by counts of the target topics and of the services.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;
use watermaster_settings::Service;
use watermaster_settings::config::Config;

use crate::load::{number, rejected};
use crate::panels::prometheus::Prometheus;
use crate::support::broker::Topic;
use crate::support::own_broker::{OwnBroker, free_ports};
use crate::support::process::{Process, Signal};
use crate::support::repository::{read, root};
use crate::support::wait::{probe_until, wait_until};
use crate::support::watermaster::{PROGRAM, START_TIMEOUT, Watermaster};

const CONFIG: &str = "config/lending-platform.toml";
/// The shorter session of the bundled compose file, and the property of the broker that allows it.
const SESSION: &str = "deploy/compose/session.toml";
const SESSION_OF_BROKER: &str = "group.min.session.timeout.ms=3000";
const SCENARIO: &str = "config/scenarios/lending-platform.toml";
const PARTITIONS: i32 = 3;
/// The client that sends the campaign.
const CAMPAIGN: &str = "credit-card";
/// The services. The rate of each lies in this folder: it takes more than its capacity.
const SERVICES: [&str; 3] = ["kyc", "credit-scoring", "income-assessment"];
const RATES: &str = "deploy/compose/rates";
/// The length of the story, unless WATERMASTER_TEST_PLATFORM_MINUTES says another one.
const MINUTES: u64 = 10;
/// The alerts of a story of ten minutes. Their windows are five minutes long, so a shorter story has fewer.
const ALERTS: [&str; 3] = [
    "WatermasterDeadLetterRate credit-scoring", "WatermasterDelayAboveTarget kyc",
    "WatermasterRejecting credit-scoring",
];
/// The time after the story in which every alert ends.
const QUIET_TIMEOUT: Duration = Duration::from_secs(120);
/// The p99 in seconds that a product beside the campaign may wait in mode shape, beyond the p99 in shadow mode, where no
/// record waits for capacity: a busy machine delays both.
const MOST_WAIT: f64 = 1.0;
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The parts of the story at which the campaign begins, and at which an instance dies.
const CAMPAIGN_AT: f64 = 0.2;
const KILL_AT: f64 = 0.27;

/// The folder for what scripts/pictures draws: a report of the load, a screen of `top`, and what boards show.
const PICTURES: &str = "WATERMASTER_TEST_PLATFORM_PICTURES";
/// The boards, with the values of their variables. What they show of now is a busy moment.
const BOARDS: [(&str, &[&str]); 4] = [
    ("service", &["service=kyc"]),
    ("client", &["service=kyc", "client=credit-card"]),
    ("platform", &["service=kyc"]),
    ("capacity-planning", &["service=income-assessment"]),
];
const BUSY_AT: f64 = 0.47;
const TOP_AT: f64 = 0.32;
/// The seconds between two scrapes of the instances.
const SCRAPES: u64 = 5;

/// A command of the program, whose outputs go to files.
struct Job {
    process: Process,
    service: &'static str,
    dir: TempDir,
}

impl Job {
    fn start(broker: &OwnBroker, service: &'static str, arguments: &[&str]) -> Job {
        let dir = tempfile::Builder::new().prefix("watermaster-platform-").tempdir().expect("a temporary directory");
        let file = |name| File::create(dir.path().join(name)).expect("the output can be written");
        let mut command = Command::new(PROGRAM);
        command.args(arguments).args(["--output", "json", "--service", service, "--config"]).arg(root(CONFIG));
        command.env_clear().env("WATERMASTER_KAFKA__BOOTSTRAP_SERVERS", &broker.bootstrap);
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        Job { process: Process::start(&mut command), service, dir }
    }

    fn text(&self, name: &str) -> String {
        read(&self.dir.path().join(name))
    }

    /// Waits for the end of the command, and returns its report. A load whose records did not come out as they should
    /// exits with 70, and its report tells more.
    fn report(&mut self, timeout: Duration) -> Value {
        let status = self.process.wait(timeout);
        let [report, log] = ["out", "err"].map(|name| self.text(name));
        serde_json::from_str(&report).unwrap_or_else(|why| panic!("{}: {status}: {why}: {log}", self.service))
    }
}

/// The running platform.
struct Platform {
    instances: [Watermaster; 2],
    addresses: [String; 2],
    workers: Vec<Job>,
    loads: Vec<Job>,
    prometheus: Prometheus,
    started: Instant,
    length: Duration,
    // The last one, so that it outlives its clients.
    broker: OwnBroker,
}

impl Platform {
    fn start() -> Platform {
        let minutes =
            std::env::var("WATERMASTER_TEST_PLATFORM_MINUTES").map_or(MINUTES, |text| text.parse().expect("minutes"));
        let length = Duration::from_secs(60 * minutes);
        let broker = OwnBroker::with(&[SESSION_OF_BROKER]);
        let config =
            Config::load(&[root(CONFIG)], [], watermaster_kafka::PROPERTY_RULES).expect("a valid configuration");
        // The topics live as long as the broker.
        std::mem::forget(broker.create(&config.settings.services.iter().flat_map(topics).collect::<Vec<_>>()));
        let addresses = free_ports::<2>().map(|port| format!("127.0.0.1:{port}"));
        let mut instances = addresses.each_ref().map(|address| instance(&broker, address));
        instances.iter_mut().for_each(|instance| instance.wait_ready(START_TIMEOUT));
        let prometheus = Prometheus::start(&addresses, None);
        eprintln!("Kafka       {}", broker.bootstrap);
        addresses.iter().for_each(|address| eprintln!("instance    http://{address}"));
        eprintln!("Prometheus  {}", prometheus.url);
        let path = |name: &str| root(name).display().to_string();
        let workers = SERVICES.map(|service| {
            Job::start(&broker, service, &["work", "--rate-file", &path(&format!("{RATES}/{service}"))])
        });
        let seconds = length.as_secs().to_string();
        let scenario = path(SCENARIO);
        let play = ["load", "--scenario", &scenario, "--seconds", &seconds];
        let report = pictures().map(|folder| folder.join("report.html").display().to_string());
        let loads = SERVICES.map(|service| {
            let report = report.as_deref().filter(|_| service == SERVICES[0]);
            let more = report.map(|file| ["--report", file]).into_iter().flatten();
            Job::start(&broker, service, &play.into_iter().chain(more).collect::<Vec<_>>())
        });
        let (workers, loads) = (workers.into(), loads.into());
        Platform { instances, addresses, workers, loads, prometheus, started: Instant::now(), length, broker }
    }

    /// Waits for a part of the story.
    fn until(&self, part: f64) {
        let at = self.started + self.length.mul_f64(part);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
    }

    /// Writes a screen of `watermaster top` with its colours, as a terminal shows it.
    fn picture_top(&self, folder: &Path) {
        let url = format!("http://{}", self.addresses[0]);
        let tmux = |arguments: &[&str]| {
            let output = Command::new("tmux").args(["-L", "platform", "-f", "/dev/null"]).args(arguments).output();
            let output = output.expect("tmux runs");
            assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        tmux(&["new-session", "-d", "-x", "112", "-y", "20", PROGRAM, "top", "--service", SERVICES[0], "--url", &url]);
        let mut screen = Vec::new();
        // The first rates come with the second look.
        wait_until("top to show rates", STOP_TIMEOUT, || {
            screen = tmux(&["capture-pane", "-ep"]);
            let text = String::from_utf8_lossy(&screen);
            text.lines().any(|line| line.contains(CAMPAIGN) && line.contains("borrows") && !line.contains(" - "))
        });
        std::fs::write(folder.join("top.ansi"), screen).expect("the screen can be written");
        tmux(&["kill-server"]);
    }

    /// Writes what the boards show at a busy moment.
    fn picture_boards(&self, folder: &Path) {
        let since = SystemTime::now() - self.started.elapsed();
        let from = since.duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs();
        let to = from + self.length.mul_f64(BUSY_AT).as_secs();
        let date = humantime::format_rfc3339_seconds(since).to_string();
        std::fs::write(folder.join("date"), &date[..10]).expect("the date can be written");
        for (board, variables) in BOARDS {
            let mut command = Command::new("python3");
            command.arg(root("tools/pictures/ask.py")).arg(&self.prometheus.url);
            command.arg(root(&format!("grafana/dashboards/{board}.json")));
            command.args([from, to, SCRAPES].map(|seconds| seconds.to_string())).args(variables);
            command.stdout(File::create(folder.join(format!("{board}.json"))).expect("the folder exists"));
            assert!(command.status().expect("python3 runs").success(), "{board}");
        }
    }

    /// Returns the name of each alert that fires, with its service if it has one.
    fn alerts(&self, over: Duration) -> BTreeSet<String> {
        let query = format!("max_over_time(ALERTS{{alertstate=\"firing\"}}[{}s])", over.as_secs().max(1));
        let answer = self.prometheus.ask("query", &[("query", &query)]).expect("Prometheus answers");
        let alerts = answer["result"].as_array().cloned().unwrap_or_default();
        let name = |alert: &Value| {
            let [name, service] = ["alertname", "service"].map(|key| alert["metric"][key].as_str().unwrap_or_default());
            format!("{name} {service}").trim().to_owned()
        };
        alerts.iter().map(name).collect()
    }
}

fn pictures() -> Option<PathBuf> {
    std::env::var_os(PICTURES).map(PathBuf::from)
}

/// Starts an instance.
fn instance(broker: &OwnBroker, address: &str) -> Watermaster {
    let environment = [
        ("WATERMASTER_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap.clone()),
        ("WATERMASTER_KAFKA__INSTANCE_ID", address.replace(':', "-")),
        ("WATERMASTER_ADMIN__LISTEN", address.to_owned()),
    ];
    let session = root(SESSION).display().to_string();
    Watermaster::spawn_in(PROGRAM.as_ref(), &read(&root(CONFIG)), &["--config", &session], &environment)
}

fn topics(service: &Service) -> Vec<Topic> {
    let sources = service.sources.iter().map(|source| source.topic.clone());
    let names = sources.chain([service.target.clone(), service.dead_letter.clone()]);
    names.map(|name| Topic::new(name, PARTITIONS).with_append_time()).collect()
}

/// The claims about a story, and whether they held.
#[derive(Default)]
struct Verdict {
    held: Vec<String>,
    /// The claims that did not, each with what was seen.
    broken: Vec<String>,
}

impl Verdict {
    /// Notes a claim, and what was seen.
    fn claim(&mut self, claim: impl Into<String>, holds: bool, seen: impl std::fmt::Display) {
        let claim = claim.into();
        if holds { self.held.push(claim) } else { self.broken.push(format!("{claim}: {seen}")) }
    }

    /// Returns a line for each claim, those that did not hold last.
    fn text(&self) -> String {
        let Verdict { held, broken } = self;
        let mut text = String::new();
        held.iter().for_each(|claim| _ = writeln!(text, "  held    {claim}"));
        broken.iter().for_each(|claim| _ = writeln!(text, "  BROKEN  {claim}"));
        text + &format!("{} of {} claims held", held.len(), held.len() + broken.len())
    }

    /// Prints all claims, and fails if one did not hold.
    fn end(self) {
        eprintln!("\n{}", self.text());
        if !self.broken.is_empty() {
            // The claims say it all: a message with the place in this file would hide them.
            std::panic::resume_unwind(Box::new("claims are broken"));
        }
    }
}

/// Plays the story, and returns what held.
fn play(kill: bool) -> Verdict {
    let mut platform = Platform::start();
    platform.until(CAMPAIGN_AT);
    let quiet = platform.alerts(platform.started.elapsed());
    eprintln!("alerts before the campaign: {quiet:?}");
    if kill {
        platform.until(KILL_AT);
        platform.instances[1].kill();
        // Docker starts a container again, and so does Kubernetes.
        platform.instances[1] = instance(&platform.broker, &platform.addresses[1]);
    }
    if let Some(folder) = pictures() {
        platform.until(TOP_AT);
        platform.picture_top(&folder);
    }
    let loads: Vec<Value> = std::mem::take(&mut platform.loads)
        .iter_mut()
        .map(|load| load.report(platform.length + platform.length.max(Duration::from_secs(120))))
        .collect();
    pictures().iter().for_each(|folder| platform.picture_boards(folder));
    let fired = platform.alerts(platform.started.elapsed());
    eprintln!("alerts in the story: {fired:?}");
    let works: Vec<Value> = std::mem::take(&mut platform.workers).iter_mut().map(finish).collect();
    for (load, work) in loads.iter().zip(&works) {
        tell(load, work);
    }
    let mut verdict = Verdict::default();
    verdict.claim("no alert fires before the campaign", quiet.is_empty(), format_args!("{quiet:?}"));
    let expected = ALERTS.map(str::to_owned).into();
    if platform.length < Duration::from_secs(60 * MINUTES) {
        let claim = format!("no other alerts fire than {}", ALERTS.join(", "));
        verdict.claim(claim, fired.is_subset(&expected), format_args!("{fired:?}"));
    } else {
        verdict.claim(format!("the alerts {} fire", ALERTS.join(", ")), fired == expected, format_args!("{fired:?}"));
        let ended = probe_until(QUIET_TIMEOUT, || platform.alerts(Duration::from_secs(1)).is_empty());
        verdict.claim(format!("no alert fires {} s after the end", QUIET_TIMEOUT.as_secs()), ended, "one does");
    }
    for (instance, address) in platform.instances.iter_mut().zip(&platform.addresses) {
        instance.assert_running();
        let code = instance.terminate(STOP_TIMEOUT).code();
        verdict.claim(format!("the instance at {address} drains and stops"), code == Some(0), instance.log());
    }
    let shadow = loads.iter().find(|load| load["service"]["enforce"] == false).expect("a service in shadow mode");
    let noise = shadow["totals"]["delay_seconds"]["p99"].as_f64().expect("a time");
    let most_wait = noise + MOST_WAIT;
    loads.iter().zip(&works).for_each(|(load, work)| judge(load, work, most_wait, &mut verdict));
    verdict
}

/// Ends a service once it has nothing more to do, and returns its report.
fn finish(work: &mut Job) -> Value {
    wait_until(&format!("{} to be idle", work.service), Duration::from_secs(300), || {
        work.text("err").lines().last().is_some_and(|line| line.contains(": 0 finished/s"))
    });
    work.process.signal(Signal::Term);
    work.report(STOP_TIMEOUT)
}

/// Prints the figures of a service.
fn tell(load: &Value, work: &Value) {
    let window = &load["window"];
    eprintln!(
        "{}: {} of {} in the fullest cycle ({}); {work}",
        load["service"]["name"], window["most_admitted"], load["service"]["capacity"], window["promise"]
    );
    for client in load["clients"].as_array().expect("a list of clients") {
        let delay = &client["delay_seconds"];
        eprintln!(
            "  {}: {} sent, {} admitted, rejected {}; waited {} (p50), {} (p99), {} at most",
            client["name"],
            client["sent"],
            client["admitted"],
            client["rejected"],
            delay["p50"],
            delay["p99"],
            delay["max"]
        );
    }
}

/// Compares the figures of a service with the story.
fn judge(load: &Value, work: &Value, most_wait: f64, verdict: &mut Verdict) {
    let service = load["service"]["name"].as_str().expect("a name");
    let (totals, window) = (&load["totals"], &load["window"]);
    let enforced = load["service"]["enforce"] == true;
    let is_accounted = load["ended"] == "accounted_for" && load["ok"] == true;
    let none = ["lost", "duplicated", "waiting"].iter().all(|key| number(&totals[key]) == 0);
    verdict.claim(
        format!("{service}: each of {} records arrived once", totals["sent"]),
        is_accounted && none && work["finished"] == totals["admitted"],
        format_args!("ended {}, {totals}; the service: {work}", load["ended"]),
    );
    let promise = if enforced { "kept" } else { "not_given" };
    verdict.claim(
        match enforced {
            true => {
                format!("{service}: no cycle has more than its capacity of {} and a round", load["service"]["capacity"])
            }
            false => format!("{service}: in shadow mode, no capacity is promised"),
        },
        window["promise"] == promise,
        window,
    );
    if enforced {
        verdict.claim(
            format!("{service}: the service is never overloaded"),
            work["slowest"] == 1.0,
            format_args!("its slowest record took {} times as long", work["slowest"]),
        );
    }
    let delays = load["service"]["mode"] == "shape";
    for client in load["clients"].as_array().expect("a list of clients") {
        let (is_campaign, name) = (client["name"] == CAMPAIGN, client["name"].as_str().expect("a name"));
        let (wait, rejections) = (client["delay_seconds"]["p99"].as_f64().expect("a time"), rejected(client));
        let is_rejected = enforced && is_campaign && !delays;
        let fate = if is_rejected { "records above its share are rejected" } else { "no record is rejected" };
        let seen = format!("{rejections} rejected: {}", client["rejected"]);
        verdict.claim(format!("{service}: {name}: {fate}"), (rejections > 0) == is_rejected, seen);
        if enforced && delays {
            let fate = if is_campaign { "waits longer" } else { "waits no longer" };
            let claim = format!("{service}: {name} {fate} than {most_wait:.2} s (p99)");
            verdict.claim(claim, (wait > most_wait) == is_campaign, format_args!("{wait:.2} s"));
        }
    }
}

#[test]
fn a_claim_that_does_not_hold_is_told_last_with_what_was_seen_and_fails() {
    let mut verdict = Verdict::default();
    verdict.claim("a waits no longer than 1 s", false, "2 s");
    verdict.claim("b waits no longer than 1 s", true, "0 s");
    let text = "  held    b waits no longer than 1 s\n  BROKEN  a waits no longer than 1 s: 2 s\n1 of 2 claims held";
    assert_eq!(verdict.text(), text);
    std::panic::catch_unwind(|| verdict.end()).unwrap_err();
}

/// These tests run only with `scripts/test --long`, and by `scripts/platform`.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs Kafka's jars and Prometheus: scripts/platform"]
    fn a_campaign_harms_no_other_product() {
        play(false).end();
    }

    #[test]
    #[ignore = "needs Kafka's jars and Prometheus: scripts/platform"]
    fn a_campaign_harms_no_other_product_although_an_instance_is_killed() {
        play(true).end();
    }
}
