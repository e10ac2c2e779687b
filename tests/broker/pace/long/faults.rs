//! Faults of the signal: permissions and offsets change under the search.

use super::*;
use crate::outage::WITH_ACLS;
use crate::support::own_broker::OwnBroker;

const ACLS: &str = "org.apache.kafka.tools.AclCommand";

/// Kafka's tool needs some seconds to begin, so the time counts from its end.
#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn a_withdrawn_permission_is_no_signal_and_changes_no_limit() {
    let own = OwnBroker::with(&WITH_ACLS);
    let world = World::on(&own, 300, APPLY, Duration::from_secs(1));
    let group = world.workers.group.clone();
    let acl = |verb: &str, principal: &str, operation: &str| {
        let arguments = [verb, principal, "User:ANONYMOUS", "--operation", operation, "--group", &group];
        let forced = ["--force"].into_iter().filter(|_| verb == "--remove");
        own.tool(ACLS, &arguments.into_iter().chain(forced).collect::<Vec<_>>());
    };
    acl("--add", "--allow-principal", "All");
    world.used(400.0, Duration::from_secs(60));
    let state = || pace(&world.watermaster)["state"].as_str().unwrap_or_default().to_owned();
    let limit = || world.watermaster.service("kyc")["capacity"].as_f64().unwrap_or(0.0);
    acl("--add", "--deny-principal", "Describe");
    wait_until("the signal to be missing", Duration::from_secs(5), || state() == "no_signal");
    let (found, held) = (world.figure("found"), limit());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(500));
        assert_eq!((state(), world.figure("found"), limit()), ("no_signal".to_owned(), found, held));
    }
    eprintln!("without the permission: found {found}, limit {held}, both unchanged for 20 s");
    acl("--remove", "--deny-principal", "Describe");
    wait_until("the signal to be back", Duration::from_secs(10), || state() != "no_signal");
    let used = world.used(400.0, Duration::from_secs(60));
    eprintln!("with it again: {}, {used:.3} used", pace(&world.watermaster));
    assert!(used >= 0.8, "{used}");
    world.finish();
}

impl World {
    /// Sets the committed offset of each partition, as a tool does while the service is away.
    fn reset_offsets(&mut self, to: impl Fn(i64) -> i64) {
        self.workers.stop();
        let group = &self.workers.group;
        let consumer: BaseConsumer = self.rig.broker.client().set("group.id", group).create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        for partition in 0..TARGET_PARTITIONS {
            let ends = consumer.fetch_watermarks(&self.rig.target, partition, DRAIN_TIMEOUT);
            let (_, end) = ends.expect("the broker answers");
            list.add_partition_offset(&self.rig.target, partition, Offset::Offset(to(end))).expect("a valid offset");
        }
        wait_until("the offsets to be reset", DRAIN_TIMEOUT, || consumer.commit(&list, CommitMode::Sync).is_ok());
        self.workers.run(&self.rig);
    }

    /// Looks at the found capacity for this time, and returns its largest fall and rise from one interval to the next.
    fn steps(&self, time: Duration) -> (f64, f64) {
        let (began, mut last) = (Instant::now(), Vec::new());
        while began.elapsed() < time {
            last.push(self.figure("found"));
            thread::sleep(Duration::from_millis(500));
        }
        // An interval is 5 s; looks at its edges see the change of the next one. The figures are whole records.
        let ratios = |rounding: f64| last.windows(9).map(move |looks| (looks[8] + rounding) / looks[0]);
        (ratios(1.0).fold(1.0, f64::min), ratios(-1.0).fold(1.0, f64::max))
    }
}

#[test]
#[ignore = "takes minutes: scripts/test --long"]
fn reset_offsets_move_the_estimate_by_one_step_at_most() {
    let mut world = World::on(&Broker::of_this_run(), 300, APPLY, Duration::from_secs(1));
    world.used(400.0, Duration::from_secs(60));
    for (name, to) in [("the start", 0), ("the end", i64::MAX)] {
        world.reset_offsets(|end| end.min(to));
        let (fall, rise) = world.steps(Duration::from_secs(60));
        eprintln!(
            "offsets at {name}: from one interval to the next {fall:.3} to {rise:.3}; {}",
            pace(&world.watermaster)
        );
        assert!(fall >= 0.5 && rise <= 1.1, "{fall} to {rise}");
    }
    world.finish();
}
