//! From the former version, whose members share a capacity by posts in a control topic, to this one and back, as
//! docs/upgrading.md describes it.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::promise::{PROMISE, STOP_TIMEOUT, TABLES};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::broker::{Broker, Topic, Topics};
use crate::support::config::Config;
use crate::support::producer::{Outgoing, Producer};
use crate::support::reader::{Follower, read_all};
use crate::support::record::{Identity, Record};
use crate::support::{wait::wait_until, watermaster::START_TIMEOUT, watermaster::Watermaster};

const KEYS: &str = "client_from = [\"header:client-id\"]";
/// A lease that ends in no test.
const LONG_LEASE: u8 = 120;
const SHORT_LEASE: u8 = 3;
/// The records that each step of a test sends.
const RECORDS: u64 = 200;

fn config(rig: &Rig, keys: &str) -> Config {
    let mut config = rig.config(rig.service(PROMISE.capacity, "2s", &format!("{KEYS}\n{keys}"), TABLES));
    (config.commit_interval, config.instance) = ("20ms", "wm-0");
    config
}

/// Returns the name of the former version's control topic.
fn former_topic(rig: &Rig) -> String {
    format!("{}.kyc.control", rig.name)
}

fn create_former_topic(rig: &Rig) -> Topics {
    let mut topic = Topic::new(former_topic(rig), 1);
    topic.set("cleanup.policy", "compact");
    topic.set("min.compaction.lag.ms", "60000");
    rig.broker.create(&[topic])
}

/// Returns a post of a member of the former version, with the bytes that it wrote: the lease is in seconds.
fn post(rig: &Rig, instance: &str, seq: u8, lease: u8, left: bool) -> Outgoing {
    // Version, instance id, incarnation 160; capacity 400, cycle 10 s, mode reject, digest.
    let mut value = [&[1, instance.len() as u8], instance.as_bytes(), &[0xa0, 1]].concat();
    value.extend([0x90, 3, 0x90, 0x4e, 1, 7]);
    // seq; seen, have, want, pace; the lease in seconds and nanoseconds, left; all loads, of which there is none.
    value.extend([seq, 9, 100, 100, 100, lease, 0, u8::from(left), 1, 0]);
    let key = format!("p/{instance}/00000000000000a0").into_bytes();
    Outgoing { topic: former_topic(rig), key: Some(key), value: Some(value), ..Outgoing::default() }
}

/// Returns the number of members of the rig's consumer group.
fn members(rig: &Rig) -> usize {
    let asker: BaseConsumer = rig.broker.client().create().expect("a consumer");
    let groups = asker.fetch_group_list(Some(&format!("{}.kyc", rig.name)), DRAIN_TIMEOUT).expect("the broker answers");
    groups.groups().iter().map(|group| group.members().len()).sum()
}

fn wait_for_log(watermaster: &mut Watermaster, text: &str) {
    wait_until(text, START_TIMEOUT, || {
        watermaster.assert_running();
        watermaster.log().contains(text)
    });
}

/// Members of the two versions do not know each other's parts: together they would admit twice the capacity.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn an_instance_waits_until_the_members_of_the_former_version_have_stopped() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "former", 1, 2, TargetTime::Create);
    let _topic = create_former_topic(&rig);
    let producer = Producer::to(&broker);
    let source = rig.sources[0].clone();
    let records = |run: u64| (RECORDS * run..RECORDS * (run + 1)).map(|n| Outgoing::numbered(&source, n, "one"));
    producer.send_all(records(0));
    producer.send_all([
        post(&rig, "wm-0", 4, LONG_LEASE, true),
        post(&rig, "wm-1", 4, LONG_LEASE, false),
        post(&rig, "wm-killed", 4, SHORT_LEASE, false),
    ]);

    let mut instance = Watermaster::spawn(&config(&rig, ""));
    let waits = "waiting for members of the former version: wm-1";
    wait_for_log(&mut instance, "waiting for members of the former version: wm-1, wm-killed");
    wait_until(waits, START_TIMEOUT, || {
        instance.get("/readyz").is_some_and(|(status, body)| status == 503 && body.contains(&format!("{waits}\"")))
    });
    assert_eq!(members(&rig), 0, "an instance that waits takes no partition from the others");
    producer.send_all([post(&rig, "wm-1", 5, LONG_LEASE, true)]);
    instance.wait_ready(START_TIMEOUT);
    // A record behind an end of the log that was told late looked as if it had not arrived, and all began anew.
    assert!(!instance.log().contains("waiting for the control topic"), "{}", instance.log());
    let mut follower = Follower::of(&broker, &[&rig.target], Identity::Value);
    follower.wait_for(RECORDS, DRAIN_TIMEOUT);
    let version = |record: &Record| record.value.as_ref().and_then(|value| value.first().copied());
    let last = read_all(&broker, &former_topic(&rig)).last().and_then(version);
    assert_eq!(last, Some(2), "a program of the former version stops at the first record of this version");

    // The killed member's last post stays in the log for ever, and so could its lease be waited for.
    producer.send_all([post(&rig, "wm-killed", 5, LONG_LEASE, false)]);
    instance.kill();
    let mut instance = Watermaster::start(&config(&rig, ""));
    producer.send_all(records(1));
    follower.wait_for(RECORDS * 2, DRAIN_TIMEOUT);
    assert!(!instance.log().contains("former version"), "{}", instance.log());
    assert_eq!(instance.terminate(STOP_TIMEOUT).code(), Some(0));
}

/// The states of seats and the posts can't share a topic: compaction and each reader would mix them up.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_former_version_s_control_topic_is_not_taken_for_this_one_s() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "former-name", 1, 1, TargetTime::Create);
    let _topic = create_former_topic(&rig);
    Producer::to(&broker).send_all([post(&rig, "wm-1", 4, SHORT_LEASE, true)]);
    let keys = format!("control_topic = {:?}", former_topic(&rig));
    let mut instance = Watermaster::spawn(&config(&rig, &keys));
    assert_eq!(instance.wait(Duration::from_secs(30)).code(), Some(70), "{}", instance.log());
    assert!(instance.log().contains("name another topic in control_topic"), "{}", instance.log());
}

mod long {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    use crate::exactly_once::{numbered, wait_for_backlog};
    use crate::rig::{NUMBERED, now_ms};
    use crate::support::config::SHORT_SESSION;
    use crate::support::judge::Judge;
    use crate::support::producer::Load;
    use crate::support::repository::{read, root};

    /// The records that are admitted between two steps: two cycles.
    const STEP: u64 = PROMISE.capacity * 2;

    /// A version of the program, and the lines of a configuration that it does not know.
    struct Version {
        program: PathBuf,
        unknown: &'static [&'static str],
    }

    impl Version {
        fn spawn(&self, config: &Config, instance: &'static str) -> Watermaster {
            let text = Config { instance, ..config.clone() }.to_toml();
            let known = |line: &&str| !self.unknown.iter().any(|key| line.starts_with(key));
            let text: Vec<&str> = text.lines().filter(known).collect();
            Watermaster::spawn_program(&self.program, &text.join("\n"), &[])
        }
    }

    /// Builds the commit that docs/upgrading.md names, in a folder of its own; a second run finds it built.
    fn former() -> Version {
        let text = read(&root("docs/upgrading.md"));
        let commit = text.split_once("commit `").and_then(|(_, rest)| rest.split_once('`')).expect("a commit").0;
        let folder = root("target/former").join(commit);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        let run = |command: &mut Command| {
            let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(status.success(), "{command:?}: {status}; the clone needs its whole history");
        };
        let archive = folder.join("source.tar");
        run(Command::new("git").current_dir(root("")).args(["archive", "-o"]).arg(&archive).arg(commit));
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder));
        let build = ["build", "--quiet", "--locked", "--bin", "watermaster", "--target-dir", "target"];
        run(Command::new("cargo").current_dir(&folder).args(build));
        Version { program: folder.join("target/debug/watermaster"), unknown: &["group_silence"] }
    }

    /// A group of two instances under load, while their versions change.
    struct Upgrade {
        rig: Rig,
        config: Config,
        running: [Watermaster; 2],
        follower: Follower,
        /// The times of changes, in milliseconds since 1970.
        changes: Vec<(&'static str, i64)>,
    }

    const INSTANCES: [&str; 2] = ["wm-0", "wm-1"];

    impl Upgrade {
        /// Waits until all run and more records are admitted, and then until some are delayed, so that maps have gaps.
        fn settle(&mut self) {
            for watermaster in &mut self.running {
                watermaster.wait_ready(START_TIMEOUT);
            }
            self.follower.wait_for(self.follower.seen() as u64 + STEP, DRAIN_TIMEOUT);
            self.running.iter_mut().for_each(|watermaster| wait_for_backlog(watermaster, 100.0));
        }

        fn note(&mut self, change: &'static str) {
            self.changes.push((change, now_ms()));
        }

        /// Replaces one instance after the other. The first one waits for the last one of the former version.
        fn roll_forward(&mut self, to: &Version, change: &'static str, stop: fn(&mut Watermaster)) {
            stop(&mut self.running[0]);
            self.running[0] = to.spawn(&self.config, INSTANCES[0]);
            wait_for_log(&mut self.running[0], "waiting for members of the former version");
            // After a kill, the brokers give the partitions away once the session is over.
            self.follower.wait_for(self.follower.seen() as u64 + STEP, DRAIN_TIMEOUT);
            assert!(!self.running[0].is_ready());
            self.note(change);
            stop(&mut self.running[1]);
            self.running[1] = to.spawn(&self.config, INSTANCES[1]);
            self.settle();
        }

        fn start_all(&mut self, version: &Version) {
            self.running = INSTANCES.map(|instance| version.spawn(&self.config, instance));
            self.settle();
        }
    }

    fn terminate(watermaster: &mut Watermaster) {
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    }

    /// Returns the longest time without an append that ends after `since`.
    fn longest_pause(target: &[Record], since: i64) -> i64 {
        let mut times: Vec<i64> = target.iter().map(|record| record.timestamp).collect();
        times.sort_unstable();
        let pauses = times.windows(2).filter(|pair| pair[1] > since).map(|pair| pair[1] - pair[0]);
        pauses.max().unwrap_or(0)
    }

    fn judge(rig: &Rig, target: &[Record]) -> u64 {
        let judge = Judge { keeps_timestamps: false, ..NUMBERED };
        judge.judge(&rig.read_sources(), target, &rig.read_dead_letter()).assert_right().admitted
    }

    #[test]
    #[ignore = "needs a real Kafka, and builds the former version: scripts/test --long"]
    fn the_way_from_the_former_version_and_back_loses_nothing_and_keeps_to_the_capacity() {
        let former = former();
        let this = Version { program: env!("CARGO_BIN_EXE_watermaster").into(), unknown: &[] };
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "upgrade", 2, 4, TargetTime::Append);
        let mut config = config(&rig, "");
        config.kafka = format!("delivery = \"exactly_once\"{SHORT_SESSION}");
        let sources = rig.sources.clone();
        let load = Load::start(&broker, PROMISE.capacity * 6 / 10, move |n| numbered(&sources, n));
        let follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::Value);
        let running = INSTANCES.map(|instance| former.spawn(&config, instance));
        let mut upgrade = Upgrade { rig, config, running, follower, changes: Vec::new() };
        upgrade.settle();

        upgrade.roll_forward(&this, "rolling forward", terminate);
        upgrade.running[0].kill();
        upgrade.running[0] = this.spawn(&upgrade.config, INSTANCES[0]);
        upgrade.settle();
        assert!(!upgrade.running[0].log().contains("former version"), "{}", upgrade.running[0].log());
        let mut late = former.spawn(&upgrade.config, "wm-late");
        assert_eq!(late.wait(START_TIMEOUT).code(), Some(70));
        assert!(late.log().contains("format 2 is not known here"), "{}", late.log());

        upgrade.running.iter_mut().for_each(terminate);
        upgrade.note("back");
        broker.delete(&[former_topic(&upgrade.rig), format!("{}.kyc.seats", upgrade.rig.name)]);
        upgrade.start_all(&former);
        upgrade.roll_forward(&this, "rolling forward with kills", Watermaster::kill);
        upgrade.running.iter_mut().for_each(terminate);

        upgrade.note("at full speed");
        let sent = load.stop();
        upgrade.config.services[0].capacity = 100_000;
        let mut last = this.spawn(&upgrade.config, INSTANCES[0]);
        upgrade.follower.wait_for(sent, DRAIN_TIMEOUT);
        terminate(&mut last);
        let target = upgrade.rig.read_target();
        assert_eq!(judge(&upgrade.rig, &target), sent, "records are lost or rejected");
        let end = upgrade.changes.last().map_or(0, |(_, time)| *time);
        let limited: Vec<Record> = target.into_iter().filter(|record| record.timestamp < end).collect();
        for pair in upgrade.changes.windows(2) {
            let [(change, from), (_, until)] = pair else { unreachable!("pairs") };
            let of_step: Vec<_> = limited.iter().filter(|record| record.timestamp < *until).cloned().collect();
            eprintln!("{change}: nothing was admitted for {} ms", longest_pause(&of_step, *from));
        }
        PROMISE.assert_kept(&limited, 1);
    }
}
