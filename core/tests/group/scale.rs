//! Groups of many members, and members of many clients.

use std::time::Duration;

use watermaster_core::group::demand::DemandMeter;
use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Record};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams, wire};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{ClientPolicy, Mode, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::{Time, Weight};

const CYCLE: Duration = Duration::from_secs(20);
const CAPACITY: u64 = 1_000_000;

#[test]
fn large_groups_look_and_post_less_often() {
    let params = GroupParams::new(&Policy::new(CAPACITY, CYCLE), Duration::from_secs(10));
    let times = |members, clients| {
        let times = params.times(members, clients);
        [times.look, times.heartbeat, times.lease].map(|time| time.as_millis())
    };
    assert_eq!(times(3, 10), [50, 2_000, 10_000]);
    assert_eq!(times(100, 1_000), [100, 2_000, 10_000]);
    assert_eq!(times(1_000, 1_000), [1_000, 3_000, 30_000]);
    assert_eq!(times(3, 100_000), [2_000, 2_000, 10_000]);
}

/// A throttle in reject mode that read some records of each client.
fn throttle(policy: &Policy, now: Time, clients: impl Iterator<Item = (String, u64)>) -> Throttle {
    let mut throttle = Throttle::new(policy.clone(), now);
    throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
    let mut offset = 0;
    for (client, records) in clients {
        for _ in 0..records {
            let arrival =
                Arrival { partition: 0, offset, bytes: 100, sender: Sender::Client(&client), written_ms: None };
            throttle.handle_record(now, &arrival);
            offset += 1;
        }
    }
    throttle
}

#[test]
fn clients_with_little_load_are_reported_as_one_sum() {
    let policy = Policy { mode: Mode::Reject, max_clients: 100_000, ..Policy::new(CAPACITY, CYCLE) };
    let params = GroupParams::new(&policy, Duration::from_secs(10));
    let now = Time::ZERO + Duration::from_secs(1);
    let small = (0..20_000).map(|client| (format!("client-{client:05}"), 2));
    let throttle = throttle(&policy, now, small.chain([("large".to_owned(), 500)]));
    let mut meter = DemandMeter::default();
    let loads = meter.measure(now, &params, &throttle, |_| None);
    let demands: Vec<(&str, u64)> = loads.iter().map(|(client, load)| (&**client, load.demand)).collect();
    assert_eq!(demands, [("large", 500), ("", 40_000)]);

    let key = Key { instance: "wm-0".into(), incarnation: 1 };
    let mut member = Member::new(params, Shares::new(&policy), key, 0, Clocks::same(now));
    let mut offset = 0;
    for look in 1..5 {
        let clocks = Clocks::same(now + Duration::from_secs(look));
        for record in member.look(clocks, 0, loads) {
            let (_, value) = wire::encode(&record);
            assert!(value.is_some_and(|value| value.len() < 200));
            member.handle_record(clocks, offset, &record);
            offset += 1;
        }
    }
    assert_eq!(member.target(), CAPACITY);
    assert!(member.part("large").is_some_and(|part| part.records >= 500));
    assert!(member.part("client-00007").is_some_and(|part| (2..=100).contains(&part.records)));
}

#[test]
fn a_post_of_as_many_clients_as_are_named_is_short() {
    let policy = Policy { mode: Mode::Reject, max_clients: 100_000, ..Policy::new(CAPACITY, CYCLE) };
    let params = GroupParams::new(&policy, Duration::from_secs(10));
    let now = Time::ZERO + Duration::from_secs(1);
    // The most clients that can use the capacity and be named; names as short as numbers.
    let throttle = throttle(&policy, now, (0..10_000).map(|client| (format!("{client:04}"), 100)));
    let mut meter = DemandMeter::default();
    let loads = meter.measure(now, &params, &throttle, |_| None);
    let key = Key { instance: "wm-0".into(), incarnation: 1 };
    let mut member = Member::new(params, Shares::new(&policy), key, 0, Clocks::same(now));
    let records = member.look(Clocks::same(now), 0, loads);
    let [record @ Record::Post(post)] = &records[..] else { panic!("{} records", records.len()) };
    let length = wire::encode(record).1.map_or(0, |value| value.len());
    println!("a post of {} clients takes {length} bytes", post.loads.len());
    assert!(post.loads.len() == 10_000 && length <= 80_000, "{length} bytes");
}

/// A post of 1 MB is refused by producer and topic. The largest loads are named, those of configured clients or not, and no record of the
/// others is forgotten; also if all clients are others than before.
#[test]
fn posts_of_very_many_clients_with_long_ids_stay_below_half_a_megabyte() {
    let name = |client: u64| format!("{client:0128}");
    let client = |number| ClientPolicy { name: name(number), weight: Weight::ONE, limit: None };
    let clients = (0..9_000).step_by(2).map(client).collect();
    let policy = Policy { mode: Mode::Reject, max_clients: 20_000, clients, ..Policy::new(30_000, CYCLE) };
    let params = GroupParams::new(&policy, Duration::from_secs(10));
    let key = Key { instance: "wm-0".into(), incarnation: 1 };
    let mut now = Time::ZERO + Duration::from_secs(1);
    let mut member = Member::new(params.clone(), Shares::new(&policy), key, 0, Clocks::same(now));
    let mut meter = DemandMeter::default();
    let mut offset = 0;
    for range in [0..9_000, 9_000..18_000] {
        let throttle = throttle(&policy, now, range.map(|client| (name(client), 1 + client % 5)));
        let loads = meter.measure(now, &params, &throttle, |_| None);
        let (unnamed, named) = loads.split_last().expect("loads");
        let with_load = |demand| named.iter().filter(|(_, load)| load.demand == demand).count();
        assert_eq!((&*unnamed.0, [5, 4, 2, 1].map(with_load)), ("", [1_800, 1_800, 0, 0]));
        assert_eq!(loads.iter().map(|(_, load)| load.demand).sum::<u64>(), 27_000, "{} named", named.len());
        for _ in 0..100 {
            now = now + Duration::from_secs(1);
            for record in member.look(Clocks::same(now), 0, loads) {
                let bytes = wire::encode(&record).1.map_or(0, |value| value.len());
                assert!(bytes <= 500_000, "{bytes} bytes");
                member.handle_record(Clocks::same(now), offset, &record);
                offset += 1;
            }
        }
    }
}
