//! The ledger of dead letters on a real Kafka: no job sends what another one has sent.

use std::process::Stdio;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::topic_partition_list::Offset;

use super::*;
use crate::rig::DEAD_LETTER_PARTITIONS;
use crate::support::wait::let_the_fault_last;
use crate::support::{broker::Topic, generator::Random, process::Process, process::Signal};

/// The number of dead letters with each reason.
const LETTERS: [(&str, u64); 3] = [("expired", 202), ("queue_full", 350), ("anonymous", 40)];
const ALL: u64 = 592;

fn reason(number: u64) -> &'static str {
    let mut end = 0;
    let found = LETTERS.iter().find(|(_, count)| {
        end += count;
        number < end
    });
    found.expect("a number below the sum").0
}

/// Fills the dead-letter topic with [`LETTERS`], whose reasons alternate in it; returns the record of each number.
fn fill(rig: &Rig) -> HashMap<u64, Outgoing> {
    let start = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[0], start + number as i64);
    // 151 and 592 have no common divisor, so each number comes once.
    let numbers = (0..ALL).map(|n| n * 151 % ALL);
    let letter = |number| dead_letter(rig, &record(number), (0, 7), reason(number), 1);
    Producer::to(&rig.broker).send_all(numbers.map(letter));
    (0..ALL).map(|number| (number, record(number))).collect()
}

fn config(rig: &Rig) -> Config {
    let mut config = rig.config(rig.service(10_000, "1s", "", ""));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    keep_redrive_key(&mut config);
    config
}

/// Deletes the topics that a redrive makes.
fn delete_made(rig: &Rig) {
    rig.broker.delete(&["parked", "ledger"].map(|name| format!("{}.{name}", rig.dead_letter)));
}

/// The page's procedure names a job; the alert's remedy is the job `default`. Each job had only a position of its own,
/// so 202 of 592 records were sent twice, and the alert did not end.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_procedure_and_the_remedy_of_the_alert_send_each_dead_letter_once() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-ledger");
    let records = fill(&rig);
    let config = config(&rig);
    let desk = Desk::new(&config);
    let mut watermaster = Watermaster::start(&config);
    let open = "watermaster_dead_letter_unread_offsets";
    wait_until("the dead letters to be counted", DRAIN_TIMEOUT, || watermaster.metric(open, &[]) == Some(592.0));

    let monday = ["--where", "reason=expired", "--job", "monday"];
    let few = desk.json("redrive", &[&monday[..], &["--limit", "10"]].concat());
    assert_eq!(few["counts"]["redriven"], 10, "{few}");
    assert_eq!(desk.json("redrive", &monday)["counts"]["redriven"], 192);
    let rest = desk.json("redrive", &["--where", "reason=expired,reason=queue_full"]);
    assert_eq!(rest["counts"]["redriven"], 350, "{rest}");
    let closed = desk.json("close", &["--where", "reason=anonymous", "--limit", "15"]);
    assert_eq!(closed["closed"], 15, "{closed}");
    let ls = desk.json("ls", &[]);
    let counts = |group: &Value| ["open", "redriven", "parked", "closed"].map(|name| group[name].as_u64().unwrap());
    let groups: Vec<_> = ls["groups"].as_array().unwrap().iter().map(|g| (g["reason"].clone(), counts(g))).collect();
    let expected = [("anonymous", [25, 0, 0, 15]), ("queue_full", [0, 350, 0, 0]), ("expired", [0, 202, 0, 0])];
    assert_eq!(groups, expected.map(|(name, counts)| (Value::from(name), counts)), "{ls}");
    assert_eq!((&ls["records"], counts(&ls)), (&ALL.into(), [25, 552, 0, 15]));
    wait_until("the open ones to be counted", DRAIN_TIMEOUT, || watermaster.metric(open, &[]) == Some(25.0));

    let remedy = desk.json("redrive", &[]);
    assert_eq!(remedy["counts"]["redriven"], 25, "{remedy}");
    wait_until("nothing to be open", DRAIN_TIMEOUT, || {
        let age = watermaster.metric("watermaster_dead_letter_oldest_seconds", &[]);
        (watermaster.metric(open, &[]), age) == (Some(0.0), Some(0.0))
    });
    let all = rig.read_sources();
    let numbers = all.iter().filter_map(|record| Identity::Value.of(record));
    let back: HashMap<_, _> = numbers.map(|number| (number, (records[&number].clone(), 1))).collect();
    assert_eq!(back.len() as u64, ALL - 15);
    assert_back(&rig, &back);
    watermaster.terminate(DRAIN_TIMEOUT);
    delete_made(&rig);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_job_refuses_another_selection_and_again_sends_what_is_done() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-again");
    fill(&rig);
    let desk = Desk::new(&config(&rig));
    let came_back = || rig.read_sources().len();
    assert_eq!(desk.json("redrive", &["--job", "monday", "--where", "reason=expired"])["counts"]["redriven"], 202);
    for other in [&["--where", "reason=queue_full"][..], &["--since", "2h"], &["--partition", "1"]] {
        let (code, out, err) = desk.run("redrive", &[&["--job", "monday"], other].concat());
        assert!(code == Some(2) && err.contains("begun with other options"), "{other:?}: {code:?} {err}");
        assert_eq!((&*out, err.lines().count()), ("", 1), "nothing is reported beside the error: {err}");
    }
    let (code, _, err) = desk.run("redrive", &["--job", "default", "--where", "reason=queue_full"]);
    assert!(code == Some(2) && err.contains("begun with other options"), "{code:?} {err}");
    // The selection may be left out.
    let done = desk.json("redrive", &["--job", "monday"]);
    assert_eq!((&done["counts"]["redriven"], &done["counts"]["read"]), (&0.into(), &0.into()), "{done}");
    assert_eq!(came_back(), 202);

    let (code, _, err) = desk.run("close", &[]);
    assert!(code == Some(2) && err.contains("--all"), "{code:?} {err}");
    for (selected, number) in [(&["--where", "reason=anonymous"][..], 40), (&["--all"], ALL - 202)] {
        let would = desk.json("close", &[selected, &["--dry-run"]].concat());
        assert_eq!(would["closed"], number, "{would}");
    }
    assert_eq!(desk.json("ls", &[])["closed"], 0);
    let closed = desk.json("close", &["--where", "reason=anonymous"]);
    assert_eq!(closed["closed"], 40, "{closed}");
    let closed = desk.json("close", &["--where", "reason=anonymous"]);
    assert_eq!(closed["closed"], 0, "{closed}");
    let dry = desk.json("redrive", &["--dry-run"]);
    assert_eq!(dry["counts"]["redriven"], 350, "{dry}");
    let again = ["--again", "--where", "reason=expired,reason=anonymous"];
    assert_eq!(desk.json("redrive", &again)["counts"]["redriven"], 242);
    assert_eq!(came_back(), 444);
    // A job that is done begins anew.
    assert_eq!(desk.json("redrive", &["--again", "--job", "monday"])["counts"]["redriven"], 202);
    assert_eq!(came_back(), 646);
    assert_eq!(desk.json("redrive", &[])["counts"]["redriven"], 350);

    let (code, out, _) = desk.run("ls", &["--by", "client,reason", "--top", "1"]);
    assert!(code == Some(0) && out.contains("redriven-client") && out.contains("2 more rows"), "{out}");
    assert!(out.contains("592 dead letters") && out.contains(": 0 open, 592 redriven, 0 parked, 0 closed"), "{out}");
    delete_made(&rig);
}

/// A topic that is deleted and made anew has other dead letters at the same offsets.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_dead_letter_topic_that_is_made_anew_is_not_hidden_by_the_ledger() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-anew");
    fill(&rig);
    let desk = Desk::new(&config(&rig));
    assert_eq!(desk.json("redrive", &["--job", "first"])["counts"]["redriven"], ALL);
    broker.delete(std::slice::from_ref(&rig.dead_letter));
    let _anew = broker.create(&[Topic::new(&rig.dead_letter, DEAD_LETTER_PARTITIONS)]);
    fill(&rig);
    assert_eq!(desk.json("ls", &[])["open"], ALL);
    let (code, _, err) = desk.run("redrive", &["--job", "second"]);
    assert!(code == Some(0) && err.contains("was made anew"), "{code:?} {err}");
    assert_eq!(rig.read_sources().len() as u64, 2 * ALL);
    assert_eq!(desk.json("ls", &[])["redriven"], ALL);
    delete_made(&rig);
}

/// Version 0.2 had a position for each job and no ledger.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_job_that_the_former_version_began_is_finished() {
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-former");
    fill(&rig);
    let desk = Desk::new(&config(&rig));
    let ends: Vec<i64> = (0..DEAD_LETTER_PARTITIONS)
        .map(|partition| rig.read_dead_letter().iter().filter(|letter| letter.partition == partition).count() as i64)
        .collect();
    let commit = |job: &str, conditions: &str, parts: i64| {
        let group = format!("{}.kyc.redrive.{job}", rig.name);
        let consumer: BaseConsumer = broker.client().set("group.id", group).create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        for (partition, end) in (0..).zip(&ends) {
            let select =
                format!(r#"{{"conditions":[{conditions}],"since":null,"until":null,"partition":null,"offsets":null}}"#);
            let mut element = list.add_partition(&rig.dead_letter, partition);
            element.set_offset(Offset::Offset(end * parts / 2)).expect("an offset");
            element.set_metadata(format!(r#"{{"end":{end},"select":{select},"to":"source"}}"#));
        }
        consumer.commit(&list, CommitMode::Sync).expect("a commit");
    };
    // The job of all dead letters has passed a half, another one is behind it.
    commit("default", "", 1);
    commit("monday", r#"{"reason":"expired"}"#, 0);
    let letters = rig.read_dead_letter();
    let left = |letter: &&Record| letter.offset >= ends[letter.partition as usize] / 2;
    let expired = |letter: &&Record| letter.header("throttle-reason") == Some("expired");
    let (all, expired) = (letters.iter().filter(left).count(), letters.iter().filter(left).filter(expired).count());
    assert_eq!(desk.json("ls", &[])["open"], all);
    assert_eq!(desk.json("redrive", &["--job", "monday"])["counts"]["redriven"], expired);
    assert_eq!(desk.json("redrive", &[])["counts"]["redriven"], all - expired);
    assert_eq!(rig.read_sources().len(), all);
    delete_made(&rig);
}

/// Two jobs with overlapping selections are started and killed at random moments, together or one after the other; the
/// later one stops the earlier one.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn overlapping_jobs_that_are_killed_at_any_moment_send_each_dead_letter_once() {
    const LETTERS: u64 = 40_000;
    const ROUNDS: u64 = 6;
    let seed = std::env::var("WATERMASTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    eprintln!("seed {seed} (WATERMASTER_TEST_SEED)");
    let mut random = Random(seed);
    let broker = Broker::of_this_run();
    let rig = rig(&broker, "dlq-overlap");
    let start = crate::rig::an_hour_ago();
    let record = |number: u64| first(number, &rig.sources[(number % 2) as usize], start + number as i64);
    let letter = |number: u64| dead_letter(&rig, &record(number), (0, 7), REASONS[(number % 9) as usize], 1);
    Producer::to(&broker).send_all((0..LETTERS).map(letter));
    let desk = Desk::new(&config(&rig));
    let jobs = [
        ["--job", "some", "--where", "reason=expired,reason=queue_full,reason=anonymous", "--rate", "1000"],
        ["--job", "others", "--where", "reason=expired,reason=queue_full,reason=client_limit", "--rate", "1000"],
    ];
    let back = || rig.read_sources().iter().filter(|record| record.header("throttle-redrive").is_some()).count() as u64;
    let mut ended_by_another = 0;
    for round in 0..ROUNDS {
        let mut running: Vec<Process> = Vec::new();
        let order = if random.below(2) == 0 { [0, 1] } else { [1, 0] };
        for job in order {
            let mut command = desk.command("redrive", &jobs[job]);
            let log = std::fs::File::create(desk.dir.path().join(format!("{round}-{job}.log"))).expect("a file");
            running.push(Process::start(command.stdout(Stdio::null()).stderr(log)));
            let_the_fault_last(Duration::from_millis(random.below(5_000)));
        }
        let killed = random.below(3) as usize;
        for at in if killed == 2 { vec![0, 1] } else { vec![killed, 1 - killed] } {
            running[at].signal(Signal::Kill);
        }
        for (job, process) in order.into_iter().zip(&mut running) {
            wait_until("the job to end", DRAIN_TIMEOUT, || process.try_wait().is_some());
            let log = std::fs::read_to_string(desk.dir.path().join(format!("{round}-{job}.log"))).expect("a log");
            let is_taken = log.contains("took over: start this one again after it");
            ended_by_another += u64::from(is_taken);
            // A job ends killed, done, or because the other one took over.
            let code = process.try_wait().and_then(|status| status.code());
            assert!(code.is_none_or(|code| code == 0 || code == 70 && is_taken), "{code:?} {log}");
        }
        eprintln!("round {round}: {} came back, {ended_by_another} jobs were ended by another one", back());
    }
    for job in &jobs {
        let done = desk.json("redrive", &job[..4]);
        assert_eq!(done["complete"], true, "{done}");
    }
    let done = desk.json("redrive", &[]);
    assert_eq!(done["complete"], true, "{done}");
    assert_back(&rig, &(0..LETTERS).map(|number| (number, (record(number), 1))).collect());
    assert_eq!(desk.json("ls", &[])["open"], 0);
    delete_made(&rig);
}
