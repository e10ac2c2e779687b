//! `watermaster load` against a running Watermaster: its report accounts for every record and agrees with the metrics.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::rig::{Rig, TargetTime};
use crate::{
    support::broker::Broker, support::config::Config, support::wait::wait_until, support::watermaster::Watermaster,
};

pub const CAMPAIGN: &str = r#"
name = "short"
seed = 3

[[client]]
id = "steady"
value_bytes = [50, 500]
[[client.phase]]
kind = "steady"
rate = "30%"
for = "6s"

[[client]]
id = "campaign"
[[client.phase]]
kind = "campaign"
base = "20%"
peak = "250%"
rise = "1s"
plateau = "3s"
decay = "2s"
"#;

/// A client that retries every rejection, beside one that stays within its share.
const STORM: &str = r#"
[[client]]
id = "steady"
[[client.phase]]
kind = "steady"
rate = "20%"
for = "4s"

[[client]]
id = "stubborn"
retry = { backoff = "200ms", max_backoff = "1s", attempts = 3 }
[[client.phase]]
kind = "steady"
rate = "150%"
for = "4s"
"#;

/// Runs the load generator with this configuration and scenario.
pub fn load(config: &Config, scenario: &str, arguments: &[&str]) -> (Output, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("the file can be written");
        path
    };
    let page = dir.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_watermaster"))
        .args(["load", "--output", "json", "--config"])
        .arg(file("watermaster.toml", &config.to_toml()))
        .arg("--scenario")
        .arg(file("scenario.toml", scenario))
        .arg("--report")
        .arg(&page)
        .args(arguments)
        .env_clear()
        .output()
        .expect("watermaster runs");
    let page = std::fs::read_to_string(&page).unwrap_or_default();
    (output, page)
}

pub fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}; stderr:\n{stderr}"))
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

pub fn rejected(client: &Value) -> u64 {
    client["rejected"].as_object().expect("an object of reasons").values().map(number).sum()
}

/// Returns a client's admitted and rejected records by the service's metrics.
fn counted(watermaster: &Watermaster, client: &str) -> (u64, u64) {
    let client = format!("client=\"{client}\"");
    let of = |decision: &str| {
        let records = watermaster.metric("watermaster_records_total", &[&client, &format!("decision=\"{decision}\"")]);
        records.expect("the metric exists") as u64
    };
    (of("admitted"), of("rejected"))
}

/// Asserts that the report accounts for every record and agrees with the service's metrics.
fn assert_accounted_for(report: &Value, watermaster: &Watermaster) {
    assert_eq!(report["ended"], "accounted_for", "{report:#}");
    assert_eq!(report["ok"], true, "{:#}", report["problems"]);
    for client in report["clients"].as_array().expect("a list of clients").iter().chain([&report["totals"]]) {
        let open = ["waiting", "lost", "not_acknowledged", "duplicated"].map(|key| number(&client[key]));
        assert_eq!(open, [0; 4], "{client:#}");
        assert_eq!(number(&client["sent"]), number(&client["admitted"]) + rejected(client), "{client:#}");
        let name = client["name"].as_str().expect("a name");
        if name != "total" {
            let expected = (number(&client["admitted"]), rejected(client));
            // The metrics follow the commit within a second.
            wait_until(&format!("the metrics of {name} to say {expected:?}"), Duration::from_secs(10), || {
                counted(watermaster, name) == expected
            });
        }
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_report_of_a_campaign_agrees_with_the_metrics() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "load", 1, 3, TargetTime::Append);
    let mut config = rig.config(rig.service(400, "1s", "client_from = [\"header:client-id\"]", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    let watermaster = Watermaster::start(&config);
    let (output, page) = load(&config, CAMPAIGN, &[]);
    let report = json(&output);
    assert_accounted_for(&report, &watermaster);
    assert_eq!(output.status.code(), Some(0));
    // 720 records of the first client, about 4 600 of the second.
    let totals = &report["totals"];
    assert!((4_500..5_600).contains(&number(&totals["sent"])), "{totals:#}");
    assert_eq!(report["window"]["by"], "append_time");
    assert_eq!(report["window"]["promise"], "kept", "{:#}", report["window"]);
    assert!(
        number(&report["window"]["most_admitted"]) >= 360,
        "the load is too small for this test: {:#}",
        report["window"]
    );
    // Only the client beyond its share is delayed.
    let delay = |client: usize| report["clients"][client]["delay_seconds"]["p99"].as_f64().expect("a delay");
    assert!(delay(0) < 1.5, "{:#}", report["clients"][0]);
    assert!(delay(1) > 2.0, "{:#}", report["clients"][1]);
    assert_eq!(page.matches("<svg").count(), if rejected(totals) > 0 { 4 } else { 3 });
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_report_of_a_retry_storm_accounts_for_every_attempt() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "storm", 1, 2, TargetTime::Create);
    let keys = "mode = \"reject\"\nclient_from = [\"header:client-id\"]";
    let config = rig.config(rig.service(200, "1s", keys, ""));
    let watermaster = Watermaster::start(&config);
    let (output, _) = load(&config, STORM, &["--seed", "5"]);
    let report = json(&output);
    assert_accounted_for(&report, &watermaster);
    assert_eq!(report["window"]["by"], "arrival");
    let (steady, stubborn) = (&report["clients"][0], &report["clients"][1]);
    assert_eq!(number(&steady["retries"]), 0);
    let retries = number(&stubborn["retries"]);
    assert!(retries > 0 && retries <= rejected(stubborn), "{stubborn:#}");
    // A request has at most three attempts, and each attempt but the last is followed by a retry.
    assert!(number(&stubborn["sent"]) <= 3 * (number(&stubborn["sent"]) - retries), "{stubborn:#}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn records_that_no_instance_reads_are_reported_as_waiting() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "unread", 1, 1, TargetTime::Append);
    let config = rig.config(rig.service(10_000, "1s", "client_from = [\"header:client-id\"]", ""));
    let (output, _) = load(&config, CAMPAIGN, &["--seconds", "1", "--no-read-back"]);
    let report = json(&output);
    assert_eq!((output.status.code(), &report["ended"]), (Some(0), &Value::from("not_read_back")));
    let totals = &report["totals"];
    assert_eq!((number(&totals["waiting"]), number(&totals["not_acknowledged"])), (number(&totals["sent"]), 0));
    assert_eq!(rig.read_sources().len() as u64, number(&totals["sent"]));
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn missing_topics_and_wrong_scenarios_are_refused_at_once() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "missing", 1, 1, TargetTime::Append);
    let mut service = rig.service(100, "1s", "client_from = [\"header:client-id\"]", "");
    service.target = format!("{}-nowhere", rig.target);
    let (output, _) = load(&rig.config(service.clone()), CAMPAIGN, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("nowhere: does not exist"), "{said}");
    let (output, _) = load(&rig.config(service), "[[client]]\nid = \"a\"\n", &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("client[0].phase is missing") && said.contains("scenario.toml:1"), "{said}");
}
