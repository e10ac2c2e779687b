//! Cut-over and way back of docs/adopting.md, under live producers: the service sees each record exactly once. The
//! offsets are handed over as Kafka's own tool does; `handover.rs` tests the command of the page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{thread::JoinHandle, time::Duration};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message as _, Offset, TopicPartitionList};

use crate::exactly_once::{STOP_TIMEOUT, config, numbered, wait_for_backlog};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Load, Outgoing};
use crate::{
    support::broker::Broker, support::config::Config, support::wait::wait_until, support::watermaster::START_TIMEOUT,
    support::watermaster::Watermaster,
};

pub const PARTITIONS: i32 = 2;
const TOKEN: &str = "the-token-of-the-reload";

/// The consumers of the protected service: they read some topics in their group, and commit after the last record.
pub struct Workers {
    seen: Arc<Mutex<Vec<u64>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Workers {
    pub fn start(broker: &Broker, group: &str, topics: &[&str], seen: &Arc<Mutex<Vec<u64>>>) -> Workers {
        let mut settings = broker.client();
        settings.set("group.id", group).set("isolation.level", "read_committed").set("auto.offset.reset", "earliest");
        settings.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        let consumer: BaseConsumer = settings.create().expect("a consumer");
        consumer.subscribe(topics).expect("valid names");
        let (stop, to) = (Arc::new(AtomicBool::new(false)), Arc::clone(seen));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Some(Ok(record)) = consumer.poll(Duration::from_millis(20)) else { continue };
                let text = std::str::from_utf8(record.payload().expect("a value")).expect("text");
                let number = text.split('|').next().and_then(|digits| digits.parse().ok()).expect("a number");
                to.lock().expect("no holder panics").push(number);
                consumer.store_offset_from_message(&record).expect("the partition is assigned");
            }
            match consumer.commit_consumer_state(CommitMode::Sync) {
                Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => {}
                Err(error) => panic!("the service's commit: {error}"),
            }
        });
        Workers { seen: Arc::clone(seen), stop, thread }
    }

    fn count(&self) -> usize {
        self.seen.lock().expect("no holder panics").len()
    }

    pub fn wait_for(&self, count: usize) {
        wait_until(&format!("the service to see {count} records"), DRAIN_TIMEOUT, || self.count() >= count);
    }

    /// Ends the consumers after their last commit; they leave the group.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the service does not panic");
    }
}

/// Commits the offsets of one group for another, as `kafka-consumer-groups --reset-offsets --from-file` does: without
/// metadata, and only once the other group is empty. A partition without an offset gets none.
fn hand_over(rig: &Rig, from: &str, to: &str) {
    let consumer =
        |group: &str| -> BaseConsumer { rig.broker.client().set("group.id", group).create().expect("a consumer") };
    let mut all = TopicPartitionList::new();
    rig.sources.iter().for_each(|topic| all.add_partition_range(topic, 0, PARTITIONS - 1));
    let committed = consumer(from).committed_offsets(all, DRAIN_TIMEOUT).expect("the group's offsets");
    let mut list = TopicPartitionList::new();
    for element in committed.elements() {
        if let Offset::Offset(offset) = element.offset() {
            list.add_partition_offset(element.topic(), element.partition(), Offset::Offset(offset)).expect("valid");
        }
    }
    assert!(list.count() > 0, "{from} has no offsets");
    let to = consumer(to);
    wait_until("the other group to be empty", DRAIN_TIMEOUT, || to.commit(&list, CommitMode::Sync).is_ok());
}

fn assert_each_once(seen: &Mutex<Vec<u64>>, sent: u64) {
    let mut seen = seen.lock().expect("no holder panics").clone();
    seen.sort_unstable();
    let repeated = seen.windows(2).filter(|pair| pair[0] == pair[1]).count();
    seen.dedup();
    eprintln!("the service saw {} of {sent} records, {repeated} of them twice", seen.len());
    assert!(repeated == 0 && seen.iter().copied().eq(0..sent), "{repeated} repeated, {} seen of {sent}", seen.len());
}

/// Switches to shadow mode, and waits until no record is completed beyond a committable offset.
fn release_all(watermaster: &Watermaster, shadow: &Config) {
    let (status, answer) = watermaster.reload(&shadow.to_toml(), TOKEN);
    assert_eq!(status, 200, "{answer}");
    wait_until("the offset maps to be empty", DRAIN_TIMEOUT, || {
        watermaster.service("kyc")["enforce"] == false
            && watermaster.metric("watermaster_map_span_records", &[]) == Some(0.0)
    });
}

/// The service reads the products' topics itself, then through Watermaster, then itself again.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_service_that_reads_the_sources_changes_over_and_back() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "adopt", 3, PARTITIONS, TargetTime::Create);
    let (workers, ours) = (format!("{}-workers", rig.name), format!("{}.kyc", rig.name));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let token = dir.path().join("token");
    std::fs::write(&token, TOKEN).expect("the token can be written");
    let with = |enforce: bool| {
        let mut config = config(&rig, 1_000, "only");
        config.admin = format!("token_file = {:?}", token.display().to_string());
        config.services[0].keys.push_str(&format!("\nenforce = {enforce}"));
        config
    };
    // The last topic falls silent before the cut-over, so Watermaster gets its offsets without a record of it.
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 1_500, move |n| numbered(&sources[..if n < 500 { 3 } else { 2 }], n));
    let topics: Vec<&str> = rig.sources.iter().map(String::as_str).collect();
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let service = Workers::start(&broker, &workers, &topics, &seen);
    service.wait_for(1_000);

    service.stop();
    let before = seen.lock().expect("no holder panics").len();
    hand_over(&rig, &workers, &ours);
    let mut watermaster = Watermaster::spawn_with(&with(true), &["--accept-foreign-offsets"]);
    watermaster.wait_ready(START_TIMEOUT);
    let service = Workers::start(&broker, &workers, &[&rig.target], &seen);
    wait_for_backlog(&mut watermaster, 300.0);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    // Every partition has an offset of Watermaster's now, so the option is not needed any more.
    let mut watermaster = Watermaster::start(&with(true));
    wait_for_backlog(&mut watermaster, 300.0);
    service.wait_for(service.count() + 500);

    release_all(&watermaster, &with(false));
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    service.wait_for(before + rig.read_target().len());
    service.stop();
    hand_over(&rig, &ours, &workers);
    let service = Workers::start(&broker, &workers, &topics, &seen);
    service.wait_for(service.count() + 500);
    let sent = load.stop();
    service.wait_for(sent as usize);
    service.stop();
    assert_each_once(&seen, sent);
    assert_eq!(rig.read_dead_letter().len(), 0);
}

mod long {
    use super::*;

    /// The products write straight to the service's topic, then to topics of their own, then straight again. The
    /// service's consumers go on all the time, and no offset is handed over.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn products_that_write_to_the_service_change_over_and_back() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "adopt-direct", 2, PARTITIONS, TargetTime::Create);
        let by_own_topics = Arc::new(AtomicBool::new(false));
        let (sources, target, own) = (rig.sources.clone(), rig.target.clone(), Arc::clone(&by_own_topics));
        let load = Load::start(&broker, 1_500, move |n| match numbered(&sources, n) {
            record if own.load(Ordering::Relaxed) => record,
            record => Outgoing { topic: target.clone(), ..record },
        });
        let seen = Arc::default();
        let service = Workers::start(&broker, &format!("{}-workers", rig.name), &[&rig.target], &seen);
        service.wait_for(1_000);
        let mut watermaster = Watermaster::start(&config(&rig, 1_000, "only"));
        by_own_topics.store(true, Ordering::Relaxed);
        wait_for_backlog(&mut watermaster, 1_000.0);
        by_own_topics.store(false, Ordering::Relaxed);
        service.wait_for(service.count() + 1_000);
        wait_until("the products' topics to be read to their ends", DRAIN_TIMEOUT, || {
            let lag = |topic: &String| rig.lag_of_committed(topic, PARTITIONS);
            rig.sources.iter().map(lag).sum::<Option<i64>>() == Some(0)
        });
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        let sent = load.stop();
        service.wait_for(sent as usize);
        service.stop();
        assert_each_once(&seen, sent);
        assert_eq!(rig.read_dead_letter().len(), 0);
    }
}
