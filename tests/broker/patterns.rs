//! Sources by pattern in the commands that run once.

use std::process::Command;

use crate::load::load;
use crate::rig::{Rig, TargetTime};
use crate::support::{broker::Broker, config::Config, watermaster::check};

const SCENARIO: &str = "
[[client]]
id = \"1\"
[[client.phase]]
kind = \"steady\"
rate = \"10%\"
for = \"1s\"
";

/// Returns a configuration whose only source is a pattern; the client is the last letter of a topic.
fn config(rig: &Rig, word: &str) -> Config {
    let name = rig.name.replace('.', "\\.");
    let pattern = format!("[[service.source]]\ntopic_pattern = '{name}\\.{word}-(?<client>[0-9])'");
    let mut service = rig.service(1_000, "1s", "client_from = [\"topic\"]", &pattern);
    service.sources.clear();
    rig.config(service)
}

fn simulate(config: &Config) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("the file can be written");
        folder.path().join(name)
    };
    let output = Command::new(env!("CARGO_BIN_EXE_watermaster"))
        .args(["simulate", "--config"])
        .arg(file("watermaster.toml", &config.to_toml()))
        .arg("--scenario")
        .arg(file("scenario.toml", SCENARIO))
        .env_clear()
        .output()
        .expect("watermaster runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Only `run` and `dlq` knew the topics behind a pattern: the others had no source at all and said "allowed: one of ;".
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn load_and_simulate_find_the_topics_of_a_pattern() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "patterns", 2, 1, TargetTime::Create);
    let matching = config(&rig, "source");
    let (sent, _) = load(&matching, SCENARIO, &["--no-read-back"]);
    assert_eq!(sent.status.code(), Some(0), "{}", String::from_utf8_lossy(&sent.stderr));
    let source = rig.read_sources();
    assert!(!source.is_empty() && source.iter().all(|record| *record.topic == *rig.sources[1]), "{source:?}");
    let (code, said) = simulate(&matching);
    assert_eq!(code, Some(0), "{said}");

    let idle = config(&rig, "sourse");
    let (failed, _) = load(&idle, SCENARIO, &["--no-read-back"]);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    for (code, said) in [(failed.status.code(), said), simulate(&idle)] {
        assert_eq!(code, Some(78), "{said}");
        assert!(said.contains("no topic of the cluster matches") && said.contains("sourse"), "{said}");
    }
}

/// A pattern with a mistyped letter reads nothing, and the brokers had what the configuration needs.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_pattern_without_a_topic_is_reported_with_the_nearest_one() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "patterns-check", 1, 1, TargetTime::Create);
    let (code, said) = check(&config(&rig, "source"));
    assert!(code == Some(0) && said.contains("the brokers have what the configuration needs"), "{code:?} {said}");
    let (code, said) = check(&config(&rig, "sourse"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no topic of the cluster matches topic_pattern"), "{said}");
    assert!(said.contains(&format!("the nearest is {}", rig.sources[0])), "{said}");
    assert!(!said.contains("the brokers have what the configuration needs"), "{said}");
}
