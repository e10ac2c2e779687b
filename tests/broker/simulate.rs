//! `watermaster trace` and `watermaster simulate`: what they say about records that are really in Kafka.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::load::{CAMPAIGN, json, load, number};
use crate::rig::{Rig, TargetTime};
use crate::{support::broker::Broker, support::config::Config};

/// A configuration on disk, and the trace that is recorded with it.
struct Recording {
    folder: tempfile::TempDir,
}

impl Recording {
    fn new(config: &Config) -> Recording {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(folder.path().join("watermaster.toml"), config.to_toml()).expect("the file can be written");
        Recording { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, command: &str, (option, file): (&str, &Path), more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_watermaster"))
            .args([command, "--output", "json", option])
            .arg(file)
            .arg("--config")
            .arg(self.path("watermaster.toml"))
            .args(more)
            .env_clear()
            .output()
            .expect("watermaster runs")
    }

    fn trace(&self, more: &[&str]) -> Output {
        self.run("trace", ("--out", &self.path("kyc.trace")), more)
    }

    fn simulate(&self, more: &[&str]) -> Value {
        json(&self.run("simulate", ("--trace", &self.path("kyc.trace")), more))
    }
}

fn clients(point: &Value) -> &[Value] {
    point["clients"].as_array().expect("a list of clients")
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_trace_holds_the_records_of_the_topics() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "trace", 1, 3, TargetTime::Create);
    let config = rig.config(rig.service(10_000, "1s", "client_from = [\"header:client-id\"]", ""));
    let (sent, _) = load(&config, CAMPAIGN, &["--seconds", "1", "--no-read-back"]);
    let sent = json(&sent);
    let recording = Recording::new(&config);
    let traced = json(&recording.trace(&[]));
    assert_eq!(traced["records"], sent["totals"]["sent"]);
    assert_eq!((&traced["clients"], &traced["gaps"], &traced["late"]), (&2.into(), &0.into(), &0.into()), "{traced:#}");
    let partitions = traced["partitions"].as_array().expect("a list of partitions");
    assert_eq!(partitions.iter().filter(|partition| number(&partition["records"]) > 0).count(), 3);
    // No group was joined, and nothing was committed.
    assert_eq!(rig.lag_of_committed(&rig.sources[0], 3), None);

    let simulated = recording.simulate(&["--warm-up", "0"]);
    for client in clients(&simulated["points"][0]) {
        let named = |other: &&Value| other["name"] == client["name"];
        let of_load = sent["clients"].as_array().expect("a list of clients").iter().find(named);
        assert_eq!(Some(&client["records"]), of_load.map(|client| &client["sent"]), "{client:#}");
    }
    // The second half of the time holds the rest of the records.
    let half = |option: &str| {
        let from = humantime::parse_rfc3339(traced["from"].as_str().expect("a time")).expect("a time");
        let at = humantime::format_rfc3339_millis(from + std::time::Duration::from_millis(500)).to_string();
        number(&json(&recording.trace(&[option, &at]))["records"])
    };
    let (before, after) = (half("--to"), half("--from"));
    assert!(before > 0 && after > 0 && before + after == number(&sent["totals"]["sent"]), "{before} and {after}");
    // Hashes in place of ids.
    assert_eq!(recording.trace(&["--hash-ids"]).status.code(), Some(0));
    let bytes = std::fs::read(recording.path("kyc.trace")).expect("the trace can be read");
    assert!(!bytes.windows(8).any(|window| window == b"campaign"));
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_missing_source_is_an_error_of_the_configuration() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "trace", 1, 1, TargetTime::Create);
    let mut service = rig.service(100, "1s", "", "");
    service.sources[0].0 += "-nowhere";
    let output = Recording::new(&rig.config(service)).trace(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("nowhere: does not exist"), "{said}");
}

/// A campaign runs live, half a minute each; then a trace of it is simulated with the same configuration.
mod long {
    use super::*;
    use crate::load::rejected;
    use crate::support::watermaster::Watermaster;

    const LONGER: &str = "30";
    /// Two clients and the parts of the capacity that they send: 30 %, and up to 250 %.
    const KEYS: &str = "client_from = [\"header:client-id\"]\nscope = \"instance\"\n";

    /// Returns the time of the first line about a cycle's allocation.
    fn cycle_start(log: &str) -> String {
        let line = log.lines().find(|line| line.contains("allocated") && line.contains("cause=\"cycle\""));
        let line = line.unwrap_or_else(|| panic!("no cycle was allocated:\n{log}"));
        line.split_whitespace().next().expect("a line begins with its time").to_owned()
    }

    fn assert_agree(what: &str, live: f64, simulated: f64, most: f64) {
        eprintln!("{what}: live {live}, simulated {simulated}");
        assert!((live - simulated).abs() <= most, "{what}: live {live}, simulated {simulated}");
    }

    /// Returns the simulated point, beside which each number of the live run agrees.
    fn simulated_point(output: &Output) -> Value {
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let live = report["live"].as_array().expect("a list of comparisons");
        live.iter().for_each(|one| eprintln!("{one}"));
        assert!(live.len() > 1 && output.status.success(), "{live:#?}");
        report["points"][0].clone()
    }

    /// The runs to compare, and the runs that may be tried for them.
    const RUNS: usize = 3;
    const TRIES: u64 = 12;
    /// A generator that is later, or a round that takes longer, tells that the machine stood still for a while. An
    /// instance that stands still reads many records at once, which a simulation does not know.
    const MAX_LATE: f64 = 0.1;
    const MAX_ROUND: &str = "le=\"0.25\"";

    /// Runs the campaign three times, and compares each time what the clients met with what the simulation says.
    fn compare(keys: &str, shadow: bool) {
        let broker = Broker::of_this_run();
        let mut compared = 0;
        for seed in 1..=TRIES {
            let rig = Rig::new(&broker, "agree", 1, 12, TargetTime::Append);
            // In reject mode a shorter cycle would make more of the time between a record and its reading.
            let mut config = rig.config(rig.service(800, "2s", &format!("{KEYS}{keys}"), ""));
            config.environment.push(("RUST_LOG", "info,watermaster::engine::report=debug".to_owned()));
            let watermaster = Watermaster::start(&config);
            let report = json(&load(&config, CAMPAIGN, &["--seconds", LONGER, "--seed", &seed.to_string()]).0);
            assert_eq!((&report["ended"], &report["ok"]), (&"accounted_for".into(), &true.into()), "{report:#}");
            let rounds = |suffix: &str, labels: &[&str]| {
                watermaster.metric(&format!("watermaster_round_seconds_{suffix}"), labels).expect("the metric exists")
            };
            let late = report["generator"]["late_max_seconds"].as_f64().expect("a time");
            let slow = rounds("count", &[]) - rounds("bucket", &[MAX_ROUND]);
            if late > MAX_LATE || slow > 0.0 {
                eprintln!("seed {seed} does not count: the generator was late by {late} s, {slow} rounds were slow");
                continue;
            }
            compare_run(&config, &watermaster, &report, shadow);
            compared += 1;
            if compared == RUNS {
                return;
            }
        }
        panic!("this machine is too busy for a comparison: {compared} of {TRIES} runs were undisturbed");
    }

    fn compare_run(config: &Config, watermaster: &Watermaster, report: &Value, shadow: bool) {
        let recording = Recording::new(config);
        assert_eq!(json(&recording.trace(&[]))["records"], report["totals"]["sent"]);
        let trace = ("--trace", &*recording.path("kyc.trace"));
        let cycle_start = cycle_start(&watermaster.log());
        let run = recording.path("run.json");
        std::fs::write(&run, report.to_string()).expect("the file can be written");
        let run = run.to_str().expect("a path in UTF-8");
        let simulated = recording.run("simulate", trace, &["--record-at", run, "--cycle-start", &cycle_start]);
        let point = simulated_point(&simulated);
        for client in clients(&point) {
            let name = client["name"].as_str().expect("a name");
            let what = |what: &str| format!("seed {}, {name}: {what}", report["seed"]);
            let counts = |part: f64| (part * number(&client["records"]) as f64).max(20.0);
            let metric = |metric: &str| {
                let prefix = if shadow { "watermaster_shadow_" } else { "watermaster_" };
                let label = format!("client=\"{name}\"");
                watermaster.metric(&format!("{prefix}{metric}"), &[&label]).unwrap_or(0.0)
            };
            if point["mode"] == "reject" {
                // Which records wait at all depends on the phase of the rounds in the cycle. Of the 3 663 of a trace,
                // simulated rounds every 20.0 to 21.5 ms delay 219 to 441, the live run 259. All waits are short.
                let of_run = clients(report).iter().find(|of_run| of_run["name"] == name).expect("a client of the run");
                let longest = |of: &Value| of["delay_seconds"]["max"].as_f64().expect("a time");
                assert_agree(&what("longest delay"), longest(of_run), longest(client), 0.2);
            } else {
                let found = number(&client["delayed"]) as f64;
                assert_agree(&what("delayed"), metric("delayed_total"), found, counts(0.01));
            }
            let found = rejected(client) as f64;
            assert_agree(&what("rejected"), metric("rejected_total"), found, counts(0.01));
        }
        if !shadow {
            let live = watermaster.metric("watermaster_window_admitted_max_units", &[]).unwrap_or(0.0);
            assert_agree("largest window", live, number(&point["largest_window"]) as f64, live * 0.01);
        }
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_simulation_agrees_with_a_live_run_in_shape_mode() {
        compare("", false);
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_simulation_agrees_with_a_live_run_in_reject_mode() {
        compare("mode = \"reject\"\ncatch_up = \"reject\"\n", false);
    }

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_simulation_agrees_with_shadow_mode() {
        compare("enforce = false\n", true);
    }
}
