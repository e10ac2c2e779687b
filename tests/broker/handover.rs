//! `watermaster handover` under live producers and kills: no record is lost, and as many are done twice as it says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use serde_json::Value;

use crate::adopting::{PARTITIONS, Workers};
use crate::dead_letters::Desk;
use crate::exactly_once::{STOP_TIMEOUT, config, numbered, wait_for_backlog};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::record::Identity;
use crate::support::repository::{read, root};
use crate::support::watermaster::{Watermaster, check};
use crate::support::{broker::Broker, config::SHORT_SESSION, wait::wait_until};

/// The steps of the command at which it is killed.
const STEPS: [&str; 2] = ["handover_before_commit", "handover_after_commit"];
/// Records that Watermaster does after it is back.
const MORE: u64 = 300;

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

fn client(rig: &Rig, group: &str) -> BaseConsumer {
    rig.broker.client().set("group.id", group).create().expect("a consumer")
}

/// Returns the committed offsets of a group in all sources, each with its metadata.
fn offsets(rig: &Rig, group: &str) -> TopicPartitionList {
    let mut all = TopicPartitionList::new();
    rig.sources.iter().for_each(|topic| all.add_partition_range(topic, 0, PARTITIONS - 1));
    client(rig, group).committed_offsets(all, DRAIN_TIMEOUT).expect("the group's offsets")
}

/// Leaves a group with the offsets that it has between two requests of one command: the first topic has the new ones, and
/// the others have those from before.
fn set_back_all_but_the_first_topic(rig: &Rig, group: &str, [before, after]: [&TopicPartitionList; 2]) {
    let mut mixed = TopicPartitionList::new();
    for (list, takes) in [(before, false), (after, true)] {
        for element in list.elements().iter().filter(|element| (element.topic() == rig.sources[0]) == takes) {
            if element.offset().to_raw().is_some_and(|offset| offset >= 0) {
                let mut copy = mixed.add_partition(element.topic(), element.partition());
                copy.set_offset(element.offset()).expect("a valid offset");
                copy.set_metadata(element.metadata());
            }
        }
    }
    rig.broker.delete_group(group);
    client(rig, group).commit(&mixed, CommitMode::Sync).expect("the group has no members");
}

/// Hands over by the commands of the page, as soon as the members of both groups are gone, after kills at each step: the
/// group has the same offsets as if the command had run once. Returns the last result.
fn hand_over(desk: &Desk, rig: &Rig, option: &str, group: &str) -> Value {
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
    let takes = if option == "--to" { group.to_owned() } else { format!("{}.kyc", rig.name) };
    let before = offsets(rig, &takes);
    for step in STEPS {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), step).expect("the file can be written");
        let mut command = desk.any_command("handover", &execute);
        let output = command.env("WATERMASTER_FAILPOINT", file.path()).output().expect("watermaster runs");
        assert_eq!(output.status.code(), None, "{step}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let once = offsets(rig, &takes);
    assert!(once != before, "the command that was killed after its commit had committed all");
    set_back_all_but_the_first_topic(rig, &takes, [&before, &once]);
    let (code, out, err) = run(&["--execute", "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let done: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&done["executed"], &done["twice"]), (&Value::Bool(true), &planned["twice"]));
    assert_ne!(done["commits"], 0, "{done}");
    assert!(offsets(rig, &takes) == once, "{:?} instead of {once:?}", offsets(rig, &takes));
    let (_, out, _) = run(&["--execute"]);
    assert!(out.contains("nothing is left to do"), "{out}");
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

/// Two instances share the capacity. In a flood one is killed and the other stopped, the service reads the sources itself,
/// and later both come back.
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

    let mut instances = Watermaster::start_all(&config, &["killed", "stopped"]);
    let of_target = Workers::start(&broker, &format!("{}-target", rig.name), &[&rig.target], &seen);
    instances.iter_mut().for_each(|instance| wait_for_backlog(instance, 500.0));
    of_target.wait_for(2_000);
    instances[0].kill();
    assert_eq!(instances[1].terminate(STOP_TIMEOUT).code(), Some(0), "{}", instances[1].log());
    let handed = hand_over(&desk, &rig, "--to", &group);
    let said = handed["twice"].as_u64().expect("a number");
    assert!(said > 0, "the test needs records that were completed out of order: {handed}");
    // An instance that starts by itself would repeat what the service does now. It stops, and says how to go back; so
    // does `check` before.
    let (code, warned) = check(&config);
    assert_eq!(code, Some(0), "{warned}");
    assert!(warned.contains("an instance that starts stops, unless it is told to go on"), "{warned}");
    assert!(warned.contains("`watermaster handover --from GROUP --execute` takes it back"), "{warned}");
    let mut forgotten = Watermaster::spawn(&config);
    assert_eq!(forgotten.wait(DRAIN_TIMEOUT).code(), Some(70), "{}", forgotten.log());
    assert!(
        forgotten.log().contains("`watermaster handover --from GROUP --execute` takes it back"),
        "{}",
        forgotten.log()
    );
    let in_target = rig.read_target().len();
    of_target.wait_for(in_target);

    let of_sources = Workers::start(&broker, &group, &topics, &seen);
    of_sources.wait_for(in_target + said as usize + 2_000);
    // Records that the service has not repeated by the end would stay completed for Watermaster. The target is read until
    // then: a transaction that the killed instance left open may hold records back.
    wait_until("the service to repeat what it has to", DRAIN_TIMEOUT, || repeats(&seen) >= said);
    of_target.stop();
    of_sources.stop();
    // With `--force`, the service does again all that it has done itself.
    let again = set_back(&desk, "--to", &group);
    let of_sources = Workers::start(&broker, &group, &topics, &seen);
    wait_until("the service to do all of it again", DRAIN_TIMEOUT, || repeats(&seen) >= said + again);
    of_sources.stop();
    let handed = hand_over(&desk, &rig, "--from", &group);
    assert_eq!(handed["twice"], 0);
    // Watermaster starts with its own settings: the offsets are not foreign.
    let mut instances = Watermaster::start_all(&config, &["killed", "stopped"]);
    let of_target = Workers::start(&broker, &format!("{}-target", rig.name), &[&rig.target], &seen);
    instances.iter_mut().for_each(|instance| wait_for_backlog(instance, 100.0));
    let sent = load.stop();
    of_target.wait_for((sent + said + again) as usize);
    for instance in &mut instances {
        assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
    of_target.stop();

    let (counts, repeated) = (counts(&seen), repeats(&seen));
    eprintln!("{} of {sent} records were done, {repeated} repeats: {said} and {again} were announced", counts.len());
    assert!(counts.keys().copied().eq(0..sent), "{} of {sent} records were done", counts.len());
    assert_eq!(repeated, said + again);
    assert!(counts.values().all(|count| *count <= 3));
    assert_eq!(rig.read_dead_letter().len(), 0);
}

/// Returns record `n`. Each topic holds the records of one client.
fn of_one_client(sources: &[String], n: u64) -> Outgoing {
    let topic = n as usize % sources.len();
    Outgoing::numbered(&sources[topic], n, &format!("client-{topic}"))
}

/// Sets back a group that is ahead, which takes `--force`. Returns how many records are announced to be done twice.
fn set_back(desk: &Desk, option: &str, group: &str) -> u64 {
    let run = |more: &[&str]| desk.any("handover", &[&[option, group, "--execute"], more].concat());
    let (code, out, err) = run(&[]);
    assert!(code == Some(70) && err.contains("is ahead in") && out.contains("ahead by"), "{code:?}: {out}{err}");
    let (_, told, _) = desk.any("handover", &[option, group, "--force"]);
    let (code, out, err) = run(&["--force", "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let done: Value = serde_json::from_str(&out).expect("JSON");
    // The consumers may have skipped some of the records.
    assert_eq!((&done["executed"], &done["twice_is_upper_bound"]), (&true.into(), &true.into()), "{done}");
    assert!(told.contains(&format!("at most {} records will be done twice", done["twice"])), "{told}");
    done["twice"].as_u64().expect("a number")
}

/// Nothing is completed out of order here, so a crash doubles nothing, and `--force` exactly what lies before the offsets
/// of the group that is set back.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn with_one_client_per_topic_only_force_does_records_twice() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "handover-one", 2, PARTITIONS, TargetTime::Create);
    let group = format!("{}-workers", rig.name);
    let mut config = config(&rig, 500, "only");
    config.kafka += SHORT_SESSION;
    let desk = Desk::new(&config);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 800, move |n| of_one_client(&sources, n));
    let mut watermaster = Watermaster::start(&config);
    wait_for_backlog(&mut watermaster, 300.0);
    watermaster.kill();
    let handed = hand_over(&desk, &rig, "--to", &group);
    assert_eq!(handed["twice"], 0, "{handed}");

    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let topics: Vec<&str> = rig.sources.iter().map(String::as_str).collect();
    let workers = Workers::start(&broker, &group, &topics, &seen);
    workers.wait_for(500);
    workers.stop();
    let again = set_back(&desk, "--to", &group);
    assert_eq!(again, seen.lock().expect("no holder panics").len() as u64, "all that the workers did");
    let (code, _, err) = desk.any("handover", &["--from", "no-such-group"]);
    assert!(code == Some(70) && err.contains("no-such-group has no offset"), "{code:?}: {err}");

    let sent = load.stop();
    let workers = Workers::start(&broker, &group, &topics, &seen);
    let admitted = rig.read_target().len();
    workers.wait_for((sent + again) as usize - admitted);
    workers.stop();

    // The other way round: Watermaster goes on, and is set back to the offsets of the workers.
    let (code, out, err) = desk.any("handover", &["--from", &group, "--execute"]);
    assert_eq!(code, Some(0), "{out}{err}");
    Producer::to(&broker).send_all((sent..sent + MORE).map(|n| of_one_client(&rig.sources, n)));
    let admit_more = |times: u64| {
        let mut watermaster = Watermaster::start(&config);
        wait_until("Watermaster to do the new records", DRAIN_TIMEOUT, || {
            rig.read_target().len() >= admitted + (times * MORE) as usize
        });
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    };
    admit_more(1);
    assert_eq!(set_back(&desk, "--from", &group), MORE);
    admit_more(2);

    let done = rig.read_target().iter().filter_map(|record| Identity::Value.of(record)).collect::<Vec<_>>();
    let done = Mutex::new([done, seen.lock().expect("no holder panics").clone()].concat());
    let (counts, repeated) = (counts(&done), repeats(&done));
    eprintln!("{} of {} records were done, {repeated} of them twice", counts.len(), sent + MORE);
    assert!(counts.keys().copied().eq(0..sent + MORE), "{} of {}", counts.len(), sent + MORE);
    assert!(repeated == again + MORE && counts.values().all(|count| *count <= 2), "{repeated}: {again} + {MORE}");
}

/// A group with members, of either protocol, is refused in both directions, and the members are named.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_group_with_members_is_refused_and_they_are_named() {
    let broker = Broker::of_this_run();
    for protocol in ["classic", "consumer"] {
        let rig = Rig::new(&broker, "handover-members", 1, PARTITIONS, TargetTime::Create);
        let group = format!("{}-workers", rig.name);
        let mut config = config(&rig, 500, "only");
        config.kafka += &format!("\ngroup_protocol = {protocol:?}");
        let desk = Desk::new(&config);
        let assert_refused = |words: &str| {
            for option in ["--to", "--from"] {
                for more in [&[][..], &["--execute", "--force"]] {
                    let (code, out, err) = desk.any("handover", &[&[option, &group], more].concat());
                    let what = format!("{protocol} {option} {more:?}: {code:?} {out}{err}");
                    assert!(code == Some(70) && err.contains(words), "{what}");
                }
            }
        };
        let mut watermaster = Watermaster::start(&config);
        assert_refused(&format!("{0}.kyc has members: {0}.only at 127.0.0.1", rig.name));
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        Producer::to(&broker).send_all([of_one_client(&rig.sources, 0)]);
        let workers = Workers::start(&broker, &group, &[&rig.sources[0]], &Arc::default());
        workers.wait_for(1);
        assert_refused(&format!("{group} has members: rdkafka at 127.0.0.1"));
        workers.stop();
    }
}
