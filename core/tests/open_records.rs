//! The bound on open records: those that were admitted, and that the service has not committed.

mod sim;

use std::time::Duration;

use proptest::prelude::*;
use sim::{Fate, Sim, policy};
use watermaster_core::policy::{Mode, Policy, Scope};
use watermaster_core::throttle::{GroupPart, Growth, OpenRoom};
use watermaster_core::units::Time;

const SECOND: Duration = Duration::from_secs(1);
const CLIENTS: [&str; 3] = ["home", "car", "card"];

/// A service that commits, and a look at its open records now and then.
struct Service {
    sim: Sim,
    max_open: u64,
    committed: u64,
}

impl Service {
    fn new(policy: Policy, max_open: u64) -> Service {
        let mut service = Service { sim: Sim::new(policy, 1), max_open, committed: 0 };
        service.look();
        service
    }

    fn open(&self) -> u64 {
        self.sim.throttle.admitted() - self.committed
    }

    /// Commits some of the open records.
    fn commit(&mut self, records: u64) {
        self.committed += records.min(self.open());
    }

    /// Counts the open records, and tells the throttle.
    fn look(&mut self) {
        let (admitted, records) = (self.sim.throttle.admitted(), self.max_open.saturating_sub(self.open()));
        self.sim.throttle.handle_open_room(Some(OpenRoom { admitted, records }));
        self.sim.act();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Read { client: usize, records: u8 },
    Wait { millis: u16 },
    Commit { records: u8 },
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..CLIENTS.len(), 1..40u8).prop_map(|(client, records)| Step::Read { client, records }),
        3 => (1..600u16).prop_map(|millis| Step::Wait { millis }),
        2 => (1..30u8).prop_map(|records| Step::Commit { records }),
        2 => Just(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// However late a look is, no more records are open than allowed; and all go once the service goes on.
    #[test]
    fn no_more_records_are_open_than_allowed(
        reject in any::<bool>(), capacity in 20..200u64, max_open in 1..100u64,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mode = if reject { Mode::Reject } else { Mode::Shape };
        let mut service = Service::new(Policy { mode, ..policy(capacity, SECOND) }, max_open);
        for step in steps {
            match step {
                Step::Read { client, records } => {
                    (0..records).for_each(|_| _ = service.sim.read(CLIENTS[client], 0));
                }
                Step::Wait { millis } => service.sim.run_for(Duration::from_millis(millis.into())),
                Step::Commit { records } => service.commit(records.into()),
                Step::Look => service.look(),
            }
            prop_assert!(service.open() <= max_open, "{} open, allowed: {max_open}", service.open());
        }
        // Each round admits a record at least, and there are at most 60 × 40.
        for _ in 0..2_400 {
            service.commit(u64::MAX);
            service.look();
            service.sim.run_for(SECOND / 4);
        }
        prop_assert!(service.sim.lives.values().all(|life| life.fate != Fate::Held), "a record waits for ever");
    }
}

/// Members of a group divide the room as they divide the capacity.
#[test]
fn a_member_takes_its_part_of_the_room_rounded_up() {
    for (limit, room, expected) in [(30, 10, 3), (33, 10, 4), (1, 10, 1), (0, 10, 0), (100, 10, 10), (200, 10, 10)] {
        let scope = Scope::Group;
        let mut sim = Sim::new(Policy { scope, ..policy(100, SECOND) }, 1);
        let part = GroupPart {
            limit,
            until: Time::NEVER,
            admitted: u64::MAX,
            pace: limit,
            growth: Growth::NONE,
            rejects: true,
        };
        sim.throttle.handle_part(sim.now, part);
        sim.throttle.handle_open_room(Some(OpenRoom { admitted: 0, records: room }));
        (0..20).for_each(|_| _ = sim.read("home", 0));
        sim.run_for(2 * SECOND);
        assert_eq!(sim.throttle.admitted(), expected, "a limit of {limit} of 100");
    }
}

/// A record that finds no room waits, also in reject mode: the capacity is not what it lacks.
#[test]
fn records_wait_for_room_in_both_modes_and_none_is_rejected() {
    for mode in [Mode::Shape, Mode::Reject] {
        let mut service = Service::new(Policy { mode, ..policy(1_000, SECOND) }, 5);
        (0..20).for_each(|_| _ = service.sim.read("home", 0));
        service.sim.run_for(2 * SECOND);
        assert_eq!(service.open(), 5, "{mode:?}");
        service.commit(3);
        assert_eq!(service.open(), 2);
        service.look();
        service.sim.run_for(SECOND);
        assert_eq!(service.open(), 5, "{mode:?}");
        // Without a signal there is no bound.
        service.sim.throttle.handle_open_room(None);
        service.sim.run_for(SECOND);
        assert_eq!(service.open(), 17, "{mode:?}");
    }
}
