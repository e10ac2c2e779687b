//! Rules of run time: their topic, the API of two instances, and what they do to records.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::rules_log;
use crate::support::broker::{Broker, Topic};
use crate::support::config::Config;
use crate::support::judge::Judge;
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::wait::{wait_for, wait_until};
use crate::support::watermaster::{START_TIMEOUT, Watermaster, request_at};

const CAPACITY: u64 = 1_000;
/// The tokens of the roles read, write and operate.
const TOKENS: [&str; 3] = ["token-of-the-reader", "token-of-the-writer", "token-of-operators"];

/// A service with a topic of rules, and the folder of its tokens.
struct World {
    rig: Rig,
    config: Config,
    _rules: crate::support::broker::Topics,
    _tokens: tempfile::TempDir,
}

impl World {
    fn new(broker: &Broker, prefix: &str) -> World {
        let rig = Rig::new(broker, prefix, 1, 2, TargetTime::Create);
        let topic = format!("{}.rules", rig.name);
        // Small segments, so that compaction does its work in a test.
        let mut compacted = Topic::new(&topic, 1);
        let settings = [("cleanup.policy", "compact"), ("segment.ms", "1000"), ("min.cleanable.dirty.ratio", "0.01")];
        settings.into_iter().for_each(|(name, value)| compacted.set(name, value));
        let rules = broker.create(&[compacted]);
        let tokens = tempfile::tempdir().expect("a temporary folder");
        let admin = TOKENS.iter().zip(["read", "write", "operate"]).map(|(token, role)| {
            let file = tokens.path().join(role);
            std::fs::write(&file, token).expect("a token");
            format!("[[admin.token]]\nname = \"{role}\"\nrole = \"{role}\"\nfile = {file:?}\n")
        });
        let keys = format!("rules_topic = {topic:?}");
        let config = Config {
            admin: "\n".to_owned() + &admin.collect::<String>(),
            ..rig.config(rig.service(CAPACITY, "1s", &keys, ""))
        };
        World { rig, config, _rules: rules, _tokens: tokens }
    }
}

/// A request to the rules of the service, with a token by its role.
fn ask(
    instance: &Watermaster, method: &str, path: &str, role: usize, condition: Condition<'_>, body: &Value,
) -> Answer {
    let url = instance.url().expect("the log has the admin address");
    ask_at(&url, method, path, role, condition, body).expect("the admin API answers")
}

/// The status, the ETag and the body.
type Answer = (u16, Option<String>, Value);

fn ask_at(url: &str, method: &str, path: &str, role: usize, condition: Condition<'_>, body: &Value) -> Option<Answer> {
    let authorization = format!("Bearer {}", TOKENS[role]);
    let mut headers = vec![("authorization", authorization.as_str())];
    headers.extend(condition);
    let text = if body.is_null() { String::new() } else { body.to_string() };
    if !text.is_empty() {
        headers.push(("content-type", "application/json"));
    }
    let (status, etag, body) = request_at(url, method, &format!("/v1/services/kyc/{path}"), &headers, &text)?;
    Some((status, etag, serde_json::from_str(&body).unwrap_or_default()))
}

/// A header that states versions, if one does.
type Condition<'a> = Option<(&'a str, &'a str)>;

const NEW: Condition<'_> = Some(("if-none-match", "*"));
const ANY: Condition<'_> = Some(("if-match", "*"));

/// The rules of run time: names with versions.
fn rules(instance: &Watermaster) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("rules?origin=run_time&after={after}");
        let (status, _, page) = ask(instance, "GET", &path, 0, None, &Value::Null);
        assert_eq!(status, 200, "{page}");
        let rules = page["rules"].as_array().expect("rules").iter();
        all.extend(rules.map(|rule| (text(&rule["name"]), text(&rule["etag"]))));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => return all,
        }
    }
}

/// A rule that one instance takes holds at the other, too; it survives a kill; and without it the records go on.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_rule_of_one_instance_holds_at_all_and_survives_a_kill() {
    let broker = Broker::of_this_run();
    let world = World::new(&broker, "rules");
    let mut instances = Watermaster::start_all(&world.config, &["one", "two"]);
    let hold = json!({ "clients": ["batch"], "hold": true, "note": "a test" });
    let put = Instant::now();
    let (status, etag, view) = ask(&instances[0], "PUT", "rules/night?wait=10s", 1, NEW, &hold);
    assert_eq!((status, view["state"].as_str()), (201, Some("in_force")), "{view}");
    assert_eq!(view["instances"], json!({ "live": 2, "same_rules": 2 }), "{view}");
    eprintln!("both instances have the rule after {:?}", put.elapsed());
    assert_eq!(Some(format!("{:?}", rules(&instances[1])[0].1)), etag);
    let (_, _, why) = ask(&instances[1], "GET", "explain?client=batch", 0, None, &Value::Null);
    let decided = why["fields"].as_array().unwrap().iter().find(|field| field["field"] == "hold").unwrap();
    assert_eq!((&decided["value"], &decided["rule"]["name"]), (&"true".into(), &"night".into()), "{why}");

    let producer = Producer::to(&broker);
    let source = &world.rig.sources[0];
    let clients = ["batch", "web"];
    producer.send_all((0..400).map(|number| Outgoing::numbered(source, number, clients[number as usize % 2])));
    producer.flush();
    let admitted = |instances: &[Watermaster], client: &str| {
        let client = format!("client=\"{client}\"");
        let of = |one: &Watermaster| one.metric("watermaster_records_total", &["decision=\"admitted\"", &client]);
        instances.iter().filter_map(of).sum::<f64>() as u64
    };
    wait_until("the other client's records are admitted", DRAIN_TIMEOUT, || admitted(&instances, "web") == 200);
    assert_eq!(admitted(&instances, "batch"), 0, "a held client");

    instances[1].kill();
    instances[1] = Watermaster::start(&Config { instance: "two", ..world.config.clone() });
    assert_eq!(rules(&instances[0]), rules(&instances[1]));
    let (status, _, _) = ask(&instances[1], "DELETE", "rules/night", 1, ANY, &Value::Null);
    assert_eq!(status, 204);
    wait_until("the rule is gone at the other instance", DRAIN_TIMEOUT, || rules(&instances[0]).is_empty());
    wait_until("the held records are delivered", DRAIN_TIMEOUT, || world.rig.read_target().len() == 400);
    for instance in &mut instances {
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
    let judge = Judge { admits_all: true, ..NUMBERED };
    judge.judge(&world.rig.read_sources(), &world.rig.read_target(), &world.rig.read_dead_letter()).assert_right();
}

/// The bug: in a group without a search for the capacity no instance was the first, so that none deleted anything.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_rule_that_ended_more_than_thirty_days_ago_is_deleted() {
    let broker = Broker::of_this_run();
    let world = World::new(&broker, "rules-ended");
    let instances = Watermaster::start_all(&world.config, &["one", "two"]);
    // An instance refuses a rule that is over.
    let mut writer = rules_log::Instance::new(&broker, &format!("{}.rules", world.rig.name), 3);
    writer.put("night", Some(r#"{"clients":["batch"],"hold":true,"until":"2026-01-01T00:00:00Z"}"#));
    writer.wait("the rule is deleted", |writer| writer.version("night").is_none().then_some(()));
    wait_until("all know that", DRAIN_TIMEOUT, || instances.iter().all(|one| rules(one).is_empty()));
}

/// Two people change one version at two instances at a time: one of them wins, and the other one sees the winner.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn of_two_changes_of_one_version_exactly_one_wins() {
    race(100);
}

fn race(races: usize) {
    let broker = Broker::of_this_run();
    let world = World::new(&broker, "rules-race");
    let mut instances = Watermaster::start_all(&world.config, &["one", "two"]);
    let rule = |weight: usize| json!({ "clients": ["a"], "weight": weight });
    let (status, mut etag, _) = ask(&instances[0], "PUT", "rules/race", 1, NEW, &rule(1));
    assert_eq!(status, 201);
    for race in 0..races {
        let stated = etag.clone().expect("an ETag");
        wait_until("both instances have the version", START_TIMEOUT, || {
            instances.iter().all(|one| rules(one).iter().any(|(_, version)| format!("{version:?}") == stated))
        });
        let start = Barrier::new(2);
        let answers: Vec<_> = thread::scope(|scope| {
            let put = |(place, instance)| {
                let (start, stated, body) = (&start, &stated, rule(2 * race + place + 2));
                scope.spawn(move || {
                    start.wait();
                    ask(instance, "PUT", "rules/race", 1, Some(("if-match", stated)), &body)
                })
            };
            let threads: Vec<_> = instances.iter().enumerate().map(put).collect();
            threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        });
        let statuses: Vec<u16> = answers.iter().map(|(status, ..)| *status).collect();
        assert!(statuses == [200, 412] || statuses == [412, 200], "race {race}: {statuses:?} {answers:?}");
        etag = answers.iter().find(|(status, ..)| *status == 200).and_then(|(_, etag, _)| etag.clone());
        let loser = answers.iter().find(|(status, ..)| *status == 412).expect("a loser");
        assert_eq!(loser.2["error"], "changed");
    }
    // A reader that begins after all this, in a log that compaction has worked on, knows the same.
    let mut third = Watermaster::start(&Config { instance: "three", ..world.config.clone() });
    assert_eq!(rules(&third), rules(&instances[0]));
    assert_eq!(third.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", third.log());
    for instance in &mut instances {
        assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
    }
}

/// Each refusal has its status and its word, and no effect.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn each_refusal_has_a_status_and_no_effect() {
    let broker = Broker::of_this_run();
    let world = World::new(&broker, "rules-refused");
    let mut config = world.config.clone();
    config.services[0].tables += "\n[[service.rule]]\nname = \"of-file\"\nclients = [\"x\"]\nweight = 2\n";
    let mut instance = Watermaster::start(&config);
    let (status, etag, _) = ask(&instance, "PUT", "rules/known", 1, NEW, &json!({ "clients": ["a"], "weight": 2 }));
    assert_eq!(status, 201);
    let right = json!({ "clients": ["a"], "weight": 3 });
    let stale = Some(("if-match", "\"7-0123456789abcdef\""));
    let large = json!({ "clients": ["a"], "weight": 3, "note": "x".repeat(70_000) });
    let rows: [(&str, &str, usize, Condition<'_>, Value, u16, &str); 19] = [
        ("PUT", "rules/known", 1, stale, right.clone(), 412, "changed"),
        ("PUT", "rules/known", 1, NEW, right.clone(), 412, "changed"),
        ("PUT", "rules/other", 1, ANY, right.clone(), 412, "changed"),
        ("PUT", "rules/known", 1, None, right.clone(), 428, "precondition_required"),
        ("PUT", "rules/known", 0, ANY, right.clone(), 403, "this request needs a token"),
        ("PUT", "rules/all", 1, NEW, json!({ "service": true, "capacity": 900 }), 403, "forbidden"),
        ("PUT", "rules/all", 2, NEW, json!({ "service": true, "capacity": 1001 }), 422, "invalid"),
        ("PUT", "rules/known", 1, ANY, json!({ "clients": ["a"], "wieght": 3 }), 422, "invalid"),
        (
            "PUT",
            "rules/known",
            1,
            ANY,
            json!({ "clients": ["a"], "weight": 1, "until": "2020-01-01T00:00:00Z" }),
            422,
            "invalid",
        ),
        ("PUT", "rules/Known", 1, NEW, right.clone(), 422, "invalid"),
        ("PUT", "rules/client.a", 1, NEW, right.clone(), 422, "invalid"),
        ("PUT", "rules/known", 1, ANY, json!(["a"]), 400, "not_json"),
        ("PUT", "rules/known", 1, ANY, large, 413, "too_large"),
        ("PUT", "rules/known?wait=1h", 1, ANY, right.clone(), 400, "bad_request"),
        ("DELETE", "rules/of-file", 1, ANY, Value::Null, 409, "in_file"),
        ("DELETE", "rules/none", 1, ANY, Value::Null, 412, "changed"),
        ("GET", "rules/none", 0, None, Value::Null, 404, "not_found"),
        ("GET", "rules?limit=0", 0, None, Value::Null, 400, "bad_request"),
        ("GET", "explain?at=tomorrow", 0, None, Value::Null, 400, "bad_request"),
    ];
    for (method, path, role, condition, body, status, word) in rows {
        let answer = ask(&instance, method, path, role, condition, &body);
        assert_eq!(answer.0, status, "{method} {path}: {answer:?}");
        assert!(answer.2["error"].as_str().is_some_and(|error| error.starts_with(word)), "{path}: {answer:?}");
    }
    let (status, _, dry) = ask(&instance, "PUT", "rules/known?dry_run=true", 0, None, &right);
    assert_eq!((status, dry["dry_run"].as_bool()), (200, Some(true)), "{dry}");
    assert_eq!(rules(&instance), [("known".to_owned(), etag.clone().unwrap().trim_matches('"').to_owned())]);
    let unchanged = ask(&instance, "GET", "rules/known", 0, Some(("if-none-match", &etag.unwrap())), &Value::Null);
    assert_eq!(unchanged.0, 304);
    // A rule of run time replaces that of the file, whose place it leaves again.
    let (status, ..) =
        ask(&instance, "PUT", "rules/of-file", 1, NEW, &json!({ "clients": ["x"], "disabled": true, "weight": 2 }));
    assert_eq!(status, 201);
    let state = |origin: &str| {
        let (_, _, page) = ask(&instance, "GET", &format!("rules?origin={origin}"), 0, None, &Value::Null);
        let rules = page["rules"].as_array().unwrap().clone();
        rules.iter().find(|rule| rule["name"] == "of-file").map(|rule| rule["state"].as_str().unwrap().to_owned())
    };
    assert_eq!([state("file"), state("run_time")].map(Option::unwrap), ["replaced", "disabled"]);
    let (status, ..) = ask(&instance, "DELETE", "rules/of-file", 1, ANY, &Value::Null);
    assert_eq!(status, 204);
    assert_eq!((state("file").as_deref(), state("run_time")), (Some("in_force"), None));
    assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn of_a_thousand_pairs_of_changes_one_of_each_wins() {
        race(1_000);
    }

    /// Puts a new rule; asks the instances in turn until one of them says that it is in force. Returns its ETag.
    fn put(urls: &[Mutex<String>; 2], number: usize, path: &str, body: &Value) -> String {
        let mut attempt = 0;
        wait_for(path, DRAIN_TIMEOUT, || {
            attempt += 1;
            let url = urls[(number + attempt) % 2].lock().expect("no holder panics").clone();
            match ask_at(&url, "PUT", path, 1, NEW, body) {
                Some((201, etag, _)) => Some(etag.expect("an ETag").trim_matches('"').to_owned()),
                // The outcome of the attempt before was unknown: it came in force.
                Some((412, _, answer)) if attempt > 1 && answer["in_force"]["rule"]["weight"] == body["weight"] => {
                    Some(answer["in_force"]["etag"].as_str().expect("an ETag").to_owned())
                }
                // The instance was killed, starts, or can't tell the outcome.
                None | Some((404 | 429 | 503 | 504, ..)) => None,
                Some(answer) => panic!("{path}: {answer:?}"),
            }
        })
    }

    /// Ten thousand rules are put at two instances while records flow. One instance after the other is killed, each after
    /// a number of answers. Each rule with an answer is in force at all instances, also at one that starts afterwards,
    /// with the version of the answer.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn ten_thousand_rules_are_known_to_all_although_instances_are_killed() {
        const RULES: usize = 10_000;
        const WRITERS: usize = 16;
        const KILLS: usize = 4;
        let names = ["one", "two"];
        let broker = Broker::of_this_run();
        let world = World::new(&broker, "rules-many");
        let config = Config { kafka: "delivery = \"exactly_once\"".to_owned(), ..world.config.clone() };
        let mut instances = Watermaster::start_all(&config, &names);
        let url = |instance: &Watermaster| instance.url().expect("the log has the admin address");
        let urls = [0, 1].map(|place| Mutex::new(url(&instances[place])));
        let source = world.rig.sources[0].clone();
        let load = Load::start(&broker, 200, move |number| {
            Outgoing::numbered(&source, number, ["batch", "web"][number as usize % 2])
        });
        let (next, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let answers = Mutex::new((BTreeMap::new(), Vec::new()));
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= RULES {
                            return;
                        }
                        let (name, began) = (format!("r-{number:05}"), Instant::now());
                        let body = json!({ "clients": [format!("client-{number}")], "weight": number % 900 + 1 });
                        let etag = put(&urls, number, &format!("rules/{name}"), &body);
                        let mut answers = answers.lock().expect("no holder panics");
                        answers.0.insert(name, etag);
                        answers.1.push(began.elapsed());
                        drop(answers);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for kill in 1..=KILLS {
                let due = || answered.load(Ordering::Relaxed) >= kill * RULES / (KILLS + 1);
                wait_until("enough answers for a kill", 4 * DRAIN_TIMEOUT, due);
                let place = kill % 2;
                instances[place].kill();
                instances[place] = Watermaster::start(&Config { instance: names[place], ..config.clone() });
                *urls[place].lock().expect("no holder panics") = url(&instances[place]);
            }
        });
        let put = Instant::now();
        let in_force = |instance: &Watermaster| {
            let labels = ["origin=\"run_time\"", "state=\"in_force\""];
            instance.metric("watermaster_rules", &labels) == Some(RULES as f64)
        };
        wait_until("both instances have all rules", DRAIN_TIMEOUT, || instances.iter().all(in_force));
        let seen = put.elapsed();
        let (answers, mut times) = answers.into_inner().expect("no holder panics");
        times.sort_unstable();
        let at = |per_cent: usize| -> Duration { times[times.len() * per_cent / 100] };
        println!("a put took {:?} (median), {:?} (p99); all rules at both {seen:?} after the last", at(50), at(99));
        instances.push(Watermaster::start(&Config { instance: "three", ..config.clone() }));
        wait_until("the third instance has all rules", DRAIN_TIMEOUT, || in_force(&instances[2]));
        let answers: Vec<(String, String)> = answers.into_iter().collect();
        for instance in &instances {
            assert_eq!(rules(instance), answers);
            let sum = |one: &Watermaster| one.metric("watermaster_rules_checksum", &[]);
            wait_until("the same sum", DRAIN_TIMEOUT, || {
                sum(instance).is_some() && sum(instance) == sum(&instances[0])
            });
        }
        let sent = load.stop();
        let delivered = || world.rig.read_target().len() as u64 >= sent;
        wait_until("all records are delivered", DRAIN_TIMEOUT, delivered);
        for instance in &mut instances {
            assert_eq!(instance.terminate(DRAIN_TIMEOUT).code(), Some(0), "{}", instance.log());
        }
        let judge = Judge { admits_all: true, ..NUMBERED };
        judge.judge(&world.rig.read_sources(), &world.rig.read_target(), &world.rig.read_dead_letter()).assert_right();
    }
}
