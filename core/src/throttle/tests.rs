//! Properties of private parts of the throttle.

use std::{cmp::Reverse, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::allocator::Fixed;
use crate::allocator::Part;
use crate::policy::{ClientPolicy, Mode, Scope};
use crate::units::{Ratio, Weight};
use crate::{offset_map::OffsetMap, scheduler::Client};

#[derive(Debug, Clone)]
enum Call {
    /// A number of records of a client, each of this many bytes.
    Read(u8, u8, u32),
    Wait(u16),
    /// Another `queue_bytes`.
    Bound(u64),
}

fn call() -> impl Strategy<Value = Call> {
    // Few sizes, so that there are ties.
    let bytes = prop_oneof![Just(100_u32), Just(200), 1..2_000_u32];
    prop_oneof![
        8 => (0..12_u8, 1..9_u8, bytes).prop_map(|(client, count, bytes)| Call::Read(client, count, bytes)),
        2 => (1..2_500_u16).prop_map(Call::Wait),
        1 => (1_000..20_000_u64).prop_map(Call::Bound),
    ]
}

fn policy(enforce: bool) -> Policy {
    let client = |name: &str, thousandths| ClientPolicy {
        name: name.into(),
        weight: Weight::from_thousandths(thousandths).unwrap(),
        limits: Vec::new(),
    };
    Policy {
        reservation: Ratio::ZERO,
        enforce,
        max_clients: 20,
        client_idle_timeout: Duration::from_secs(2),
        clients: vec![client("heavy", 3_000), client("light", 500)],
        queue_capacity: 60,
        queue_bytes: 10_000,
        burst: Ratio::ZERO,
        commit_interval: Duration::from_millis(1),
        ..Policy::new(40, Duration::from_secs(1))
    }
}

/// Returns the client furthest above its share, by a scan of all clients.
fn furthest_by_scan(throttle: &Throttle) -> Option<u32> {
    let policy = throttle.policy();
    let excess = |client: &Client| {
        let share = client.grant.default_share.as_f64() / policy.capacity as f64;
        (client.backlog().1 as f64 - share * policy.queue_bytes as f64) as i64
    };
    let waiting = throttle.clients().iter().filter(|(_, client)| client.backlog().1 > 0);
    waiting.max_by_key(|(index, client)| (excess(client), Reverse(*index))).map(|(index, _)| index)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn heap_and_scan_find_the_same_client_furthest_above_its_share(
        enforce: bool,
        look in 1..4_usize,
        calls in prop::collection::vec(call(), 1..80),
    ) {
        let mut now = Time::ZERO + Duration::from_secs(1_000);
        let mut throttle = Throttle::new(policy(enforce), now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        let mut offset = 0;
        for (number, call) in calls.iter().enumerate() {
            match *call {
                Call::Read(client, count, bytes) => for _ in 0..count {
                    let name = match client {
                        0 => "heavy".to_owned(),
                        1 => "light".to_owned(),
                        _ => format!("c{client}"),
                    };
                    let sender = Sender::Client(&name);
                    throttle.handle_record(now, &Arrival { partition: 0, offset, bytes, sender, written_ms: None });
                    offset += 1;
                },
                Call::Wait(milliseconds) => {
                    now = now + Duration::from_millis(milliseconds.into());
                    throttle.handle_timeout(now);
                }
                Call::Bound(bytes) => {
                    throttle.handle_policy(now, Policy { queue_bytes: bytes, ..policy(enforce) });
                }
            }
            while throttle.poll_action(now).is_some() {}
            prop_assert!(throttle.scheduler.backlog.bytes <= throttle.policy().queue_bytes);
            // Only after some calls, so that evictions, too, are sometimes the first to use the heap.
            if number % look == 0 {
                prop_assert_eq!(throttle.scheduler.furthest_above_share(), furthest_by_scan(&throttle));
            }
        }
    }
}

/// Reads records of a client for ten seconds. Returns the number of those that are admitted.
fn admitted_of(throttle: &mut Throttle, from: Time, per_second: u32) -> usize {
    let times = (0..per_second * 10).map(|number| from + Duration::from_secs(1) * number / per_second);
    let is_admitted = |now: &Time| {
        let (offset, sender) = (now.as_nanos() as i64, Sender::Client("client"));
        let arrival = Arrival { partition: 0, offset, bytes: 100, sender, written_ms: None };
        matches!(throttle.handle_record(*now, &arrival), Verdict::Admit(_))
    };
    times.filter(is_admitted).count()
}

/// A client's use at an instance that lost a partition counted against the smaller part of its grant there: nothing
/// more was admitted until half of the use had left the window.
#[test]
fn a_client_goes_on_where_it_lost_a_partition() {
    let (cycle, begin) = (Duration::from_secs(10), Time::ZERO + Duration::from_secs(1_000));
    let part = |records, whole_records| Part {
        weight: Fixed::ZERO,
        records,
        whole_records,
        default_share: Fixed::ZERO,
        whole_share: Fixed::ZERO,
        least_share: 0,
        ratio: Ratio::ONE,
    };
    // The client sends 2 records a second, its part of 20. Then it may send 10 of a grant of this size.
    let go_on = |whole, per_second| {
        let policy = Policy { mode: Mode::Reject, scope: Scope::Group, ..Policy::new(300, cycle) };
        let mut throttle = Throttle::new(policy, begin);
        throttle.handle_assigned(begin, 0, 0, &OffsetMap::default(), 0);
        throttle.handle_part(
            begin,
            GroupPart {
                limit: 300,
                until: Time::NEVER,
                admitted: u64::MAX,
                pace: 300,
                growth: Growth::NONE,
                rejects: true,
            },
        );
        throttle.scheduler.client_of(begin, "client");
        throttle.handle_parts(begin, |_| Some(part(20, 20)), |_| None);
        assert_eq!(admitted_of(&mut throttle, begin, 2), 20);
        throttle.handle_parts(begin + cycle, |_| Some(part(10, whole)), |_| None);
        admitted_of(&mut throttle, begin + cycle, per_second)
    };
    assert!(go_on(20, 1) >= 9, "half of the records come to another instance");
    assert!(go_on(20, 8) <= 10, "a flood gets no more than the part");
    assert!(go_on(10, 1) <= 6, "a grant that is smaller at all instances is so at once");
}
