//! A caller whose clock goes back, or who reads it once for many calls: the promise holds.

use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use watermaster_core::offset_map::{MapBudget, OffsetMap};
use watermaster_core::policy::Policy;
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::case::{Class, name, policies};
use crate::check;
use crate::sim::START;

/// A call, at a moment so many thousandths of a cycle before or after the last one.
#[derive(Debug, Clone, Copy)]
struct Call {
    thousandths: i32,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Records {
        client: usize,
        records: u32,
    },
    Act,
    /// A partition comes: the shell looks at the clock again for it.
    Assign,
    Timeout,
    Commit,
}

fn cases(class: Class) -> impl Strategy<Value = (Policy, Vec<Call>)> {
    policies(class).prop_flat_map(|mut policy| {
        policy.map_budget = MapBudget::default();
        let clients = policy.clients.len().min(12);
        let what = prop_oneof![
            6 => (0..clients, prop_oneof![1_u32..5, 1_u32..200])
                .prop_map(|(client, records)| What::Records { client, records }),
            3 => proptest::strategy::Just(What::Act),
            1 => proptest::strategy::Just(What::Assign),
            1 => proptest::strategy::Just(What::Timeout),
            1 => proptest::strategy::Just(What::Commit),
        ];
        let back = prop_oneof![5 => 0..300_i32, 2 => -300..0_i32, 1 => -3_000..3_000_i32];
        let call = (back, what).prop_map(|(thousandths, what)| Call { thousandths, what });
        vec(call, 1..60).prop_map(move |calls| (policy.clone(), calls))
    })
}

/// Whatever moments the calls name: admissions count at the latest moment that was named so far, and by these no window
/// of a cycle holds more than the capacity.
fn no_clock_admits_twice((policy, calls): (Policy, Vec<Call>)) {
    let (capacity, cycle) = (policy.capacity, policy.cycle);
    let mut throttle = Throttle::new(policy, START);
    throttle.handle_assigned(START, 0, 0, &OffsetMap::default(), 0);
    let (mut now, mut latest, mut offset, mut partitions) = (START, START, 0, 1);
    let mut admitted: Vec<Time> = Vec::new();
    for Call { thousandths, what } in calls {
        let by = cycle * thousandths.unsigned_abs() / 1_000;
        now = if thousandths < 0 { now - by } else { now + by };
        latest = latest.max(now);
        match what {
            What::Records { client, records } => {
                for _ in 0..records {
                    let sender = Sender::Client(&name(client));
                    let verdict = throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 1, sender });
                    admitted.extend(matches!(verdict, Verdict::Admit(_)).then_some(latest));
                    offset += 1;
                }
            }
            What::Act => {
                while let Some(action) = throttle.poll_action(now) {
                    admitted.extend(matches!(action, Action::Admit { .. }).then_some(latest));
                }
            }
            What::Assign => {
                throttle.handle_assigned(now, partitions, 0, &OffsetMap::default(), 0);
                partitions += 1;
            }
            What::Timeout => throttle.handle_timeout(now),
            What::Commit => {
                while let Some(action) = throttle.poll_action(now) {
                    admitted.extend(matches!(action, Action::Admit { .. }).then_some(latest));
                }
                throttle.commit_of(now, 0).expect("the map fits");
            }
        }
    }
    let mut first = 0;
    for (last, &at) in admitted.iter().enumerate() {
        while admitted[first] + cycle <= at {
            first += 1;
        }
        let window = (last + 1 - first) as u64;
        assert!(window <= capacity, "{window} of {capacity} in a window");
    }
}

#[test]
fn a_clock_that_goes_back_admits_no_record_twice() {
    check("clock", cases, no_clock_admits_twice);
}
