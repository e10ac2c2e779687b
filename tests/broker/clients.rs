//! The number of librdkafka clients. Each has threads of its own, and connections to all brokers that it uses.

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::config::{Config, Service};
use crate::{support::broker::Broker, support::wait::wait_until, support::watermaster::Watermaster};

/// The consumer, the producer, the reader of the control topic, and the producer of the seat.
const OF_SERVICE: usize = 4;
/// The client that asks about topics, groups and dead letters.
const OF_PROCESS: usize = 1;

/// A service used to have two more: one asked for positions of redrive jobs, and one about its target.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn a_service_keeps_four_clients_and_the_process_one() {
    let broker = Broker::of_this_run();
    for count in [1, 3] {
        let rigs: Vec<Rig> = (0..count).map(|_| Rig::new(&broker, "clients", 1, 2, TargetTime::Create)).collect();
        let service = |(n, rig): (usize, &Rig)| Service {
            name: format!("service-{n}"),
            ..rig.service(1_000, "1s", "consumer_group = \"bureau\"", "")
        };
        let services = rigs.iter().enumerate().map(service).collect();
        let mut config = Config::new(&broker.bootstrap, &rigs[0].name, services);
        config.kafka.clear();
        let mut watermaster = Watermaster::start(&config);
        let open = |n: usize| {
            watermaster.metric("watermaster_dead_letter_unread_offsets", &[&format!("service=\"service-{n}\"")])
        };
        wait_until("the dead letters are counted", DRAIN_TIMEOUT, || (0..count).all(|n| open(n).is_some()));
        // A new group opens its bank with one more producer, for a moment.
        let expected = count * OF_SERVICE + OF_PROCESS;
        wait_until("only the clients that stay are left", DRAIN_TIMEOUT, || watermaster.client_count() <= expected);
        assert_eq!(watermaster.client_count(), expected, "{count} services");
        watermaster.terminate(DRAIN_TIMEOUT);
    }
}
