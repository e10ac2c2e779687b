//! The log of rules on a real Kafka: races of two instances, what compaction leaves, and a topic that lost its records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use watermaster_core::rules::log::record::RuleVersion;
use watermaster_core::rules::log::{LogAction, Precondition, WriteOutcome, WriteRefusal, WriteRequest, WriteTicket};
use watermaster_core::units::Time;
use watermaster_kafka::control::ensure_topic;
use watermaster_kafka::rules_log::RulesTopic;

use crate::control::kafka;
use crate::support::broker::{Broker, Topic, unique};
use crate::support::own_broker::OwnBroker;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a record in one call.
const WAIT: Duration = Duration::from_millis(2);

/// A reader and writer of a topic.
pub struct Instance {
    topic: RulesTopic,
    began: Instant,
    outcomes: HashMap<WriteTicket, WriteOutcome>,
}

impl Instance {
    /// An instance that knows the rules.
    pub fn new(broker: &Broker, topic: &str, number: u64) -> Instance {
        let topic = RulesTopic::new(&kafka(broker, number), topic, topic, number, Duration::from_secs(2));
        let mut instance = Instance { topic, began: Instant::now(), outcomes: HashMap::new() };
        instance.wait("the rules", |instance| instance.topic.log().is_live().then_some(()));
        instance
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// Takes what is there. Returns whether the brokers answered.
    fn look(&mut self) -> bool {
        loop {
            match self.topic.poll(self.now(), WAIT) {
                Ok(Some(LogAction::Done(ticket, outcome))) => drop(self.outcomes.insert(ticket, outcome)),
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(error) => {
                    println!("{error}");
                    return false;
                }
            }
        }
    }

    /// Looks until there is an answer.
    pub fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Instance) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.look();
            if let Some(answer) = probe(self) {
                return answer;
            }
            assert!(began.elapsed() < 2 * TIMEOUT, "waited for {what}");
        }
    }

    fn ask(&mut self, name: &str, precondition: Precondition, rule: Option<&str>) -> WriteTicket {
        let (rule, by) = (rule.map(Into::into), "test".into());
        let request = WriteRequest { name: name.into(), precondition, rule, by, at: 0 };
        self.topic.write(self.now(), request).expect("the change is taken")
    }

    fn outcome(&mut self, ticket: WriteTicket) -> WriteOutcome {
        self.wait("the outcome of a change", |instance| instance.outcomes.remove(&ticket))
    }

    /// Makes a change that comes in force.
    pub fn put(&mut self, name: &str, rule: Option<&str>) -> RuleVersion {
        let ticket = self.ask(name, Precondition::Any, rule);
        match self.outcome(ticket) {
            WriteOutcome::InForce(version) => version,
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Reads as far as another instance.
    fn read_to(&mut self, known: Option<u64>) {
        self.wait("the end of the log", |instance| (instance.topic.log().known() >= known).then_some(()));
    }

    pub fn version(&self, name: &str) -> Option<RuleVersion> {
        self.topic.log().get(name).map(|rule| rule.version)
    }
}

fn rule(number: u64) -> String {
    format!(r#"{{"clients":["*"],"weight":{number}}}"#)
}

/// Asserts that two instances know the same at the same offset.
fn assert_agree(one: &Instance, other: &Instance) {
    assert_eq!(one.topic.log().known(), other.topic.log().known());
    assert_eq!(one.topic.log().totals(), other.topic.log().totals());
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn of_two_changes_of_one_version_exactly_one_comes_in_force() {
    const RACES: u64 = 100;
    let broker = Broker::of_this_run();
    let topic = unique("rules");
    ensure_topic(&kafka(&broker, 0), &topic, &topic, None, TIMEOUT).expect("the topic is made");
    let (mut one, mut other) = (Instance::new(&broker, &topic, 1), Instance::new(&broker, &topic, 2));
    let mut stated = one.put("summer", Some(&rule(0)));
    other.read_to(one.topic.log().known());
    other.put("warm", Some(&rule(0)));
    let (mut won, mut times) = ([0; 2], Vec::new());
    for race in 1..=RACES {
        one.wait("the version", |one| (one.version("summer") == Some(stated)).then_some(()));
        other.wait("the version", |other| (other.version("summer") == Some(stated)).then_some(()));
        let began = Instant::now();
        let precondition = Precondition::Version(stated);
        let tickets = [&mut one, &mut other].map(|instance| instance.ask("summer", precondition, Some(&rule(race))));
        // Each instance sends first in half of the races.
        if race % 2 == 0 {
            one.look();
        } else {
            other.look();
        }
        let outcomes = [one.outcome(tickets[0]), other.outcome(tickets[1])];
        times.push(began.elapsed());
        let (winner, loser) = match &outcomes {
            [WriteOutcome::InForce(_), loser] => (0, loser),
            [loser, WriteOutcome::InForce(_)] => (1, loser),
            outcomes => panic!("race {race}: {outcomes:?}"),
        };
        won[winner] += 1;
        let WriteOutcome::InForce(version) = outcomes[winner] else { unreachable!("it won") };
        assert_eq!(*loser, WriteOutcome::Refused(WriteRefusal::Changed { in_force: Some(version) }));
        assert_eq!(version.n, race + 1);
        stated = version;
    }
    times.sort_unstable();
    println!("won: {won:?}; a race took {:?} (median), {:?} (most)", times[times.len() / 2], times[times.len() - 1]);
    one.put("summer", None);
    other.read_to(one.topic.log().known());
    assert_eq!(other.version("summer"), None);
    one.read_to(other.topic.log().known());
    assert_agree(&one, &other);
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;
    use crate::rig::DRAIN_TIMEOUT;
    use crate::support::reader::read_all;
    use crate::support::wait::wait_until;

    fn compacted(name: &str) -> Topic {
        let mut topic = Topic::new(unique(name), 1);
        topic.set("cleanup.policy", "compact");
        topic.set("segment.ms", "1000");
        topic.set("min.cleanable.dirty.ratio", "0.01");
        topic.set("delete.retention.ms", "1000");
        topic
    }

    /// The records of the topic that are left below an offset.
    fn records_below(broker: &Broker, topic: &str, end: u64) -> usize {
        read_all(broker, topic).iter().filter(|record| (record.offset as u64) < end).count()
    }

    /// Instances change, delete and clean rules until compaction has removed most records. A third instance, which
    /// reads only what is left, has the same sum.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn compaction_changes_nothing_that_was_decided() {
        const CHANGES: u64 = 200;
        let broker = OwnBroker::with(&["log.cleaner.backoff.ms=200"]);
        let topic = compacted("rules");
        let _topics = broker.create(std::slice::from_ref(&topic));
        let (mut one, mut other) = (Instance::new(&broker, &topic.name, 1), Instance::new(&broker, &topic.name, 2));
        for number in 0..CHANGES {
            let name = format!("rule-{}", number % 7);
            let instance = if number % 3 == 0 { &mut other } else { &mut one };
            instance.look();
            let is_there = instance.version(&name).is_some();
            instance.put(&name, (!is_there || number % 5 != 0).then(|| rule(number)).as_deref());
            let now = instance.now();
            instance.topic.clean(now, true, 100);
        }
        one.read_to(other.topic.log().known());
        other.read_to(one.topic.log().known());
        let end = one.topic.log().known().expect("the rules are known");
        let mut number = 0;
        wait_until("most records to be compacted away", 4 * DRAIN_TIMEOUT, || {
            // Only segments before the last one are compacted.
            number += 1;
            one.put("clock", Some(&rule(number)));
            let now = one.now();
            one.topic.clean(now, true, 100);
            one.look();
            let left = records_below(&broker, &topic.name, end);
            println!("{left} of {end} records are left");
            left < end as usize / 4
        });
        let mut third = Instance::new(&broker, &topic.name, 3);
        loop {
            other.read_to(one.topic.log().known());
            third.read_to(one.topic.log().known());
            one.look();
            if one.topic.log().known() == third.topic.log().known() {
                break;
            }
        }
        assert_agree(&one, &other);
        assert_agree(&one, &third);
        let versions = |instance: &Instance| -> Vec<(String, RuleVersion)> {
            let rules = instance.topic.log().rules_within_bounds();
            rules.into_iter().map(|(name, rule)| (name.to_string(), rule.version)).collect()
        };
        assert_eq!(versions(&one), versions(&third));
        println!("{:?}", versions(&third));
    }

    /// The brokers stand still. The outcome of a change is unknown after five seconds, and the rules stay in force. The
    /// producer that gave the record up is not used again.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn a_change_without_an_answer_has_an_unknown_outcome() {
        let mut broker = OwnBroker::start();
        let topic = compacted("rules");
        let _topics = broker.create(std::slice::from_ref(&topic));
        let mut one = Instance::new(&broker, &topic.name, 1);
        let first = one.put("summer", Some(&rule(1)));
        broker.freeze();
        let began = Instant::now();
        let ticket = one.ask("summer", Precondition::Version(first), Some(&rule(2)));
        assert_eq!(one.outcome(ticket), WriteOutcome::Unknown);
        println!("the outcome is unknown after {:?}", began.elapsed());
        assert_eq!(one.version("summer"), Some(first));
        one.wait("the producer to give up", |one| (one.topic.age() > Duration::from_secs(15)).then_some(()));
        broker.thaw();
        // The change may have arrived.
        let second = one.put("summer", Some(&rule(3)));
        assert!((2..=3).contains(&second.n), "{second}");
        let mut other = Instance::new(&broker, &topic.name, 2);
        one.read_to(other.topic.log().known());
        other.read_to(one.topic.log().known());
        assert_agree(&one, &other);
        println!("version {second} is in force");
    }

    /// The topic is deleted by mistake, and made anew. The rules stay in force, and nothing is written until an
    /// operator accepts the loss.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn rules_stay_in_force_when_the_topic_loses_its_records() {
        let broker = Broker::of_this_run();
        let topic = compacted("rules");
        let topics = broker.create(std::slice::from_ref(&topic));
        let mut one = Instance::new(&broker, &topic.name, 1);
        let version = one.put("summer", Some(&rule(1)));
        drop(topics);
        wait_until("the topic to be made anew", TIMEOUT, || {
            ensure_topic(&kafka(&broker, 0), &topic.name, &topic.name, None, TIMEOUT).is_ok_and(|made| made.created)
        });
        one.wait("the loss", |one| one.topic.log().is_lost().then_some(()));
        assert_eq!(one.version("summer"), Some(version));
        // By this age WatermasterRulesBehind tells the operators.
        let age = one.topic.age();
        one.wait("a greater age", |one| (one.topic.age() > age + Duration::from_secs(3)).then_some(()));
        one.topic.accept_loss();
        one.wait("the new log", |one| one.topic.log().is_live().then_some(()));
        assert_eq!(one.version("summer"), None);
        assert_eq!(one.put("summer", Some(&rule(2))).n, 1);
    }
}
