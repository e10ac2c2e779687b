//! Failover with MirrorMaker 2 and back, as docs/failover.md describes it. Each time the service moves to a cluster that
//! was empty when the mirror began.

mod long {
    use std::collections::HashMap;
    use std::fs::File;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use tempfile::TempDir;

    use crate::exactly_once::{STOP_TIMEOUT, config, follow, numbered, wait_for_backlog};
    use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
    use crate::support::own_broker::{OwnBroker, jars, temporary_directory};
    use crate::support::process::{Process, Signal};
    use crate::support::producer::Producer;
    use crate::support::reader::read_all;
    use crate::support::record::{Identity, Record};
    use crate::support::repository::{read, root};
    use crate::support::{wait::wait_until, watermaster::Watermaster};

    const PARTITIONS: i32 = 2;
    /// The records that are sent before each failover.
    const RECORDS: u64 = 6_000;
    /// The time limit for MirrorMaker 2, which takes long to start on a busy machine.
    const MIRROR_TIMEOUT: Duration = Duration::from_secs(240);

    /// A process of MirrorMaker 2.
    struct Mirror {
        process: Process,
        _dir: TempDir,
    }

    impl Mirror {
        /// Copies the topics and the group of the rig with the properties of the page, in shorter intervals.
        fn start(rig: &Rig, backup: &OwnBroker) -> Mirror {
            let page = read(&root("docs/failover.md"));
            let (_, block) = page.split_once("```properties\n").expect("the page has properties");
            let (properties, _) = block.split_once("```").expect("the block ends");
            let topics = [&rig.sources[..], &[rig.target.clone(), rig.dead_letter.clone()]].concat().join(",");
            let own = format!(
                "primary.bootstrap.servers = {}\nbackup.bootstrap.servers = {}\ntopics = {}\ngroups = {}\n",
                rig.broker.bootstrap,
                backup.bootstrap,
                escaped(&topics),
                escaped(&format!("{}.kyc", rig.name))
            );
            let replicas = ["", "offset-syncs.topic.", "checkpoints.topic.", "heartbeats.topic.", "offset.storage."];
            let replicas = replicas
                .iter()
                .chain(&["config.storage.", "status.storage."])
                .map(|of| format!("{of}replication.factor = 1\n"));
            let intervals = ["refresh.topics", "refresh.groups", "sync.group.offsets", "emit.checkpoints"];
            let intervals = intervals.iter().map(|of| format!("{of}.interval.seconds = 1\n"));
            let text: String = [properties.to_owned(), own].into_iter().chain(replicas).chain(intervals).collect();
            let dir = temporary_directory();
            let file = dir.path().join("mm2.properties");
            std::fs::write(&file, text).expect("the properties can be written");
            let log = File::create(dir.path().join("mm2.log")).expect("the log can be written");
            let mut command = Command::new("java");
            command.args(["-Xmx256m", "-XX:+UseSerialGC", "-cp"]).arg(jars());
            command.arg("org.apache.kafka.connect.mirror.MirrorMaker").arg(&file).stdin(Stdio::null());
            command.stderr(log.try_clone().expect("the log can be shared")).stdout(log);
            Mirror { process: Process::start(&mut command), _dir: dir }
        }

        fn stop(mut self) {
            self.process.signal(Signal::Term);
            self.process.wait(MIRROR_TIMEOUT);
        }
    }

    /// Makes a list of names one of regular expressions.
    fn escaped(names: &str) -> String {
        // Java's properties take a backslash away.
        names.replace('.', "\\\\.")
    }

    /// Counts the records by their numbers.
    fn tally<'r>(records: impl IntoIterator<Item = &'r Record>) -> HashMap<u64, u64> {
        let mut counts = HashMap::new();
        for record in records {
            *counts.entry(Identity::Value.of(record).expect("a record of this test")).or_default() += 1;
        }
        counts
    }

    /// Kills a service with delayed records and the cluster of the rig, and lets the service go on at an empty cluster
    /// that MirrorMaker 2 filled. All records up to `sent` were sent before. Returns the new cluster and its rig.
    fn fail_over(primary: OwnBroker, rig: Rig, sent: u64) -> (OwnBroker, Rig) {
        let backup = OwnBroker::start();
        let mirror = Mirror::start(&rig, &backup);
        let mut watermaster = Watermaster::start(&config(&rig, 400, "only"));
        let (mut follower, producer) = (follow(&primary, &rig), Producer::to(&primary));
        // Every partition gets a committed offset before the last records delay each other.
        for (from, to, delivered) in [(0, 1_500, 1_500), (1_500, RECORDS, 2_500)] {
            producer.send_all((sent + from..sent + to).map(|n| numbered(&rig.sources, n)));
            follower.wait_for(sent + delivered, DRAIN_TIMEOUT);
        }
        wait_for_backlog(&mut watermaster, 1_000.0);
        assert!(watermaster.metric("watermaster_map_span_records", &[]) > Some(0.0), "no offset map is in use");
        watermaster.kill();

        let there = rig.at(&backup);
        let is_copied = |topic: &String| read_all(&backup, topic).len() >= read_all(&primary, topic).len();
        wait_until("the mirror to have all records", MIRROR_TIMEOUT, || {
            there.sources.iter().chain([&there.target]).all(is_copied)
        });
        wait_until("the mirror to have all offsets", MIRROR_TIMEOUT, || {
            let offsets = there.sources.iter().filter_map(|topic| there.committed(topic, PARTITIONS));
            let offsets: Vec<Option<i64>> = offsets.flatten().collect();
            // MirrorMaker 2 may leave a partition out: it does not translate offsets that are too far back.
            offsets.iter().flatten().any(|offset| *offset > 0)
        });
        mirror.stop();
        drop((rig, primary));

        let sources = there.read_sources();
        let in_sources = tally(&sources);
        let by_mirror = in_sources.values().map(|count| count - 1).sum::<u64>();
        let before = tally(&there.read_target());
        // The records behind the translated offsets: the mirror opens them again, although the service had some.
        let committed =
            |topic: &String| (topic.clone(), there.committed(topic, PARTITIONS).expect("the group's offsets"));
        let committed: HashMap<String, _> = there.sources.iter().map(committed).collect();
        let is_open = |record: &&Record| Some(record.offset) >= committed[&*record.topic][record.partition as usize];
        let open = tally(sources.iter().filter(is_open));
        let may_repeat = |number: &u64| open.contains_key(number) || in_sources[number] > 1;
        let mut watermaster = Watermaster::start(&config(&there, 100_000, "only"));
        let log = watermaster.log();
        assert!(log.contains("MirrorMaker 2") && log.contains("are sent again"), "{log}");
        follow(&backup, &there).wait_for(sent + RECORDS, DRAIN_TIMEOUT);
        wait_until("the sources to be read", DRAIN_TIMEOUT, || {
            there.sources.iter().all(|topic| there.lag_of_committed(topic, PARTITIONS) == Some(0))
        });
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

        let after = tally(&there.read_target());
        let lost: Vec<u64> = (0..sent + RECORDS).filter(|number| !after.contains_key(number)).collect();
        let count = |counts: &HashMap<u64, u64>, number: &u64| counts.get(number).copied().unwrap_or(0);
        let repeated: Vec<u64> = before.keys().copied().filter(|n| count(&after, n) > count(&before, n)).collect();
        eprintln!(
            "{} records: {} lost, {} repeated; the mirror doubled {by_mirror} and opened {} again",
            sent + RECORDS,
            lost.len(),
            repeated.len(),
            before.keys().filter(|number| open.contains_key(number)).count()
        );
        assert!(lost.is_empty(), "records were lost: {lost:?}");
        assert_eq!(repeated.iter().filter(|number| !may_repeat(number)).count(), 0, "more than the mirror doubles");
        assert_eq!(there.read_dead_letter().len(), 0);
        (backup, there)
    }

    #[test]
    #[ignore = "needs Kafka's jars: scripts/test --long"]
    fn a_failover_and_the_way_back_lose_nothing() {
        let primary = OwnBroker::start();
        let rig = Rig::new(&primary, "mirror", 2, PARTITIONS, TargetTime::Create);
        let (backup, rig) = fail_over(primary, rig, 0);
        // The way back goes to the former cluster, which was emptied before.
        fail_over(backup, rig, RECORDS);
    }
}
