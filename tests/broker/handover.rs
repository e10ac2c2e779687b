//! `watermaster handover` under live producers and kills: no record is lost, and as many are done twice as it says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::adopting::{PARTITIONS, Workers};
use crate::dead_letters::Desk;
use crate::exactly_once::{STOP_TIMEOUT, config, numbered, wait_for_backlog};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing};
use crate::support::repository::{read, root};
use crate::support::{broker::Broker, config::SHORT_SESSION, wait::wait_until, watermaster::Watermaster};

/// The steps of the command at which it is killed.
const STEPS: [&str; 2] = ["handover_before_commit", "handover_after_commit"];

/// Returns the commands of docs/bypass.md that hand over with this option, without `--config`, for a group of a test.
fn of_page(option: &str, group: &str) -> Vec<Vec<String>> {
    let page = read(&root("docs/bypass.md"));
    let all =
        page.lines().filter_map(|line| line.trim().strip_prefix("watermaster handover --config watermaster.toml "));
    let all: Vec<_> = all.map(|line| line.replace("kyc-workers", group)).collect();
    assert_eq!(page.lines().filter(|line| line.trim().starts_with("watermaster ")).count(), all.len());
    let all = all.iter().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    all.filter(|words| words.iter().any(|word| word == option)).collect()
}

/// Hands over by the commands of the page, as soon as the members of both groups are gone, after kills at each step. Returns the last result.
fn hand_over(desk: &Desk, option: &str, group: &str) -> Value {
    let page = of_page(option, group);
    let [look, execute] = [0, 1].map(|index| page[index].iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((page.len(), execute.last()), (2, Some(&"--execute")));
    let options = &look[..];
    let run = |more: &[&str]| desk.any("handover", &[options, more].concat());
    wait_until("the groups to be without members", DRAIN_TIMEOUT, || {
        let (code, out, err) = run(&[]);
        assert!(code == Some(0) || err.contains("has members: "), "{out}{err}");
        code == Some(0)
    });
    let (_, planned, _) = run(&["--output", "json"]);
    let planned: Value = serde_json::from_str(&planned).expect("JSON");
    assert_eq!(planned["executed"], false);
    for step in STEPS {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), step).expect("the file can be written");
        let mut command = desk.any_command("handover", &execute);
        let output = command.env("WATERMASTER_FAILPOINT", file.path()).output().expect("watermaster runs");
        assert_eq!(output.status.code(), None, "{step}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let (code, out, err) = run(&["--execute", "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let done: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&done["executed"], &done["twice"]), (&Value::Bool(true), &planned["twice"]));
    assert_eq!(done["commits"], 0, "the command that was killed after its commit had committed all: {done}");
    done
}

/// Returns how often each record was seen.
fn counts(seen: &Mutex<Vec<u64>>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    seen.lock().expect("no holder panics").iter().for_each(|number| *counts.entry(*number).or_default() += 1);
    counts
}

/// Returns how many records were seen once more.
fn repeats(seen: &Mutex<Vec<u64>>) -> u64 {
    counts(seen).values().map(|count| count - 1).sum()
}

/// Watermaster is killed in a flood, its service reads the sources itself, and later Watermaster comes back.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_service_takes_its_sources_over_and_gives_them_back() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "handover", 3, PARTITIONS, TargetTime::Create);
    let group = format!("{}-workers", rig.name);
    let mut config = config(&rig, 1_000, "only");
    config.kafka += SHORT_SESSION;
    config.services[0].keys += &format!("\nconsumer_group = \"{}-target\"", rig.name);
    let desk = Desk::new(&config);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 1_500, move |n| numbered(&sources, n));
    let topics: Vec<&str> = rig.sources.iter().map(String::as_str).collect();
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();

    let mut watermaster = Watermaster::start(&config);
    let of_target = Workers::start(&broker, &format!("{}-target", rig.name), &[&rig.target], &seen);
    wait_for_backlog(&mut watermaster, 1_000.0);
    of_target.wait_for(2_000);
    watermaster.kill();
    let handed = hand_over(&desk, "--to", &group);
    let said = handed["twice"].as_u64().expect("a number");
    assert!(said > 0, "the test needs records that were completed out of order: {handed}");
    let in_target = rig.read_target().len();
    of_target.wait_for(in_target);
    of_target.stop();

    let of_sources = Workers::start(&broker, &group, &topics, &seen);
    of_sources.wait_for(in_target + said as usize + 2_000);
    // Records that the service has not repeated by the end would stay completed for Watermaster.
    wait_until("the service to repeat what it has to", DRAIN_TIMEOUT, || repeats(&seen) >= said);
    of_sources.stop();
    let handed = hand_over(&desk, "--from", &group);
    assert_eq!(handed["twice"], 0);
    // Watermaster starts with its own settings: the offsets are not foreign.
    let mut watermaster = Watermaster::start(&config);
    let of_target = Workers::start(&broker, &format!("{}-target", rig.name), &[&rig.target], &seen);
    wait_for_backlog(&mut watermaster, 100.0);
    let sent = load.stop();
    of_target.wait_for((sent + said) as usize);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    of_target.stop();

    let (counts, repeated) = (counts(&seen), repeats(&seen));
    eprintln!("{} of {sent} records were done, {repeated} of them twice; {said} were announced", counts.len());
    assert!(counts.keys().copied().eq(0..sent), "{} of {sent} records were done", counts.len());
    assert_eq!(repeated, said);
    assert!(counts.values().all(|count| *count <= 2));
    assert_eq!(rig.read_dead_letter().len(), 0);
}

/// Each topic holds the records of one client, so nothing is completed out of order, and a crash doubles nothing.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn with_one_client_per_topic_nothing_is_done_twice() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "handover-one", 2, PARTITIONS, TargetTime::Create);
    let group = format!("{}-workers", rig.name);
    let mut config = config(&rig, 500, "only");
    config.kafka += SHORT_SESSION;
    let desk = Desk::new(&config);
    let (sources, count) = (rig.sources.clone(), rig.sources.len() as u64);
    let load = Load::start(&broker, 800, move |n| {
        let topic = n % count;
        Outgoing::numbered(&sources[topic as usize], n, &format!("client-{topic}"))
    });
    let mut watermaster = Watermaster::start(&config);
    wait_for_backlog(&mut watermaster, 300.0);
    let (code, _, err) = desk.any("handover", &["--to", &group]);
    assert!(code == Some(70) && err.contains(&format!("{}.kyc has members: ", rig.name)), "{code:?}: {err}");
    watermaster.kill();
    let handed = hand_over(&desk, "--to", &group);
    assert_eq!(handed["twice"], 0, "{handed}");

    // A group in use is named, and one that is ahead is not set back unawares.
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let topics: Vec<&str> = rig.sources.iter().map(String::as_str).collect();
    let workers = Workers::start(&broker, &group, &topics, &seen);
    workers.wait_for(500);
    let (code, _, err) = desk.any("handover", &["--to", &group, "--execute"]);
    assert!(code == Some(70) && err.contains(&format!("{group} has members: ")), "{code:?}: {err}");
    workers.stop();
    let (code, out, err) = desk.any("handover", &["--to", &group, "--execute"]);
    assert!(code == Some(70) && err.contains("is ahead in") && out.contains("ahead by"), "{code:?}: {out}{err}");
    let (code, out, err) = desk.any("handover", &["--to", &group, "--force", "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let back: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(back["twice"], seen.lock().expect("no holder panics").len(), "all that the workers did: {back}");
    let (code, _, err) = desk.any("handover", &["--from", "no-such-group"]);
    assert!(code == Some(70) && err.contains("no-such-group has no offset"), "{code:?}: {err}");

    let sent = load.stop();
    let workers = Workers::start(&broker, &group, &topics, &seen);
    let admitted = rig.read_target().len();
    workers.wait_for(sent as usize - admitted);
    workers.stop();
    let done = rig
        .read_target()
        .iter()
        .filter_map(|record| crate::support::record::Identity::Value.of(record))
        .collect::<Vec<_>>();
    let done = Mutex::new([done, seen.lock().expect("no holder panics").clone()].concat());
    let counts = counts(&done);
    assert!(
        counts.keys().copied().eq(0..sent) && counts.values().all(|count| *count == 1),
        "{} of {sent}",
        counts.len()
    );
}
