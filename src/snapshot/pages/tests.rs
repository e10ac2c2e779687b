use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::scheduler::{Counts, PAGE};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::{offset_map::OffsetMap, units::Time};

use super::*;

const CYCLE: Duration = Duration::from_secs(1);

/// An event of a service between two snapshots.
#[derive(Debug, Clone)]
enum Step {
    /// Clients from the first number on send a record each; the second number is their count.
    Arrive(u16, u16),
    /// Cycles pass: delayed records are sent, idle clients are evicted.
    Wait(u8),
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..1_500_u16, 1..700_u16).prop_map(|(from, count)| Step::Arrive(from, count)),
        2 => (1..4_u8).prop_map(Step::Wait),
        5 => Just(Step::Publish),
    ]
}

struct Service {
    throttle: Throttle,
    now: Time,
    offset: i64,
}

impl Service {
    fn new() -> Service {
        let now = Time::ZERO + Duration::from_secs(1_000);
        let demo = crate::tests::service(Mode::Reject, true).policy;
        let policy = Policy { cycle: CYCLE, client_idle_timeout: 2 * CYCLE, max_clients: 2_000, ..demo };
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        Service { throttle, now, offset: 0 }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Arrive(from, count) => (from..from + count).for_each(|client| self.arrive(client)),
            Step::Wait(cycles) => {
                self.now = self.now + CYCLE * u32::from(cycles);
                self.throttle.handle_timeout(self.now);
                while self.throttle.poll_action(self.now).is_some() {}
            }
            Step::Publish => {}
        }
    }

    fn arrive(&mut self, client: u16) {
        let name = format!("client-{client}");
        let sender = Sender::Client(&name);
        self.throttle.handle_record(
            self.now,
            &Arrival { partition: 0, offset: self.offset, bytes: 10, sender, written_ms: None },
        );
        self.offset += 1;
    }

    fn decided(&self) -> [u64; 3] {
        let mut sum = self.throttle.totals().unregistered;
        for page in 0..self.throttle.clients().pages() {
            let (clients, forgotten) = self.throttle.clients().page(page);
            sum.merge(&forgotten.counts);
            clients.for_each(|client| sum.merge(&client.counts));
        }
        numbers(&sum)
    }

    fn page(&self, number: usize) -> Page {
        let (clients, forgotten) = self.throttle.clients().page(number);
        let client = |client: &watermaster_core::scheduler::Client| ClientSnapshot {
            name: client.name.clone(),
            counts: client.counts,
            levels: Levels { wants: client.since_cycle.unwrap_or(0), ..Default::default() },
            ..Default::default()
        };
        Page::new(clients.map(client).collect(), forgotten)
    }
}

fn numbers(counts: &Counts) -> [u64; 3] {
    [counts.admitted, counts.delayed, counts.rejected.total()]
}

fn sum(clients: &Clients, unregistered: &Counts) -> [u64; 3] {
    let mut sum = *unregistered;
    sum.merge(&clients.forgotten().counts);
    clients.iter().for_each(|client| sum.merge(&client.counts));
    numbers(&sum)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sums_never_fall_and_never_exceed_the_true_sums(
        always in 0..2_usize,
        others in 1..5_usize,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut service = Service::new();
        let mut builder = SnapshotBuilder::default();
        let mut before = [0; 3];
        // The figures of each client at the time of each snapshot.
        let mut history: Vec<BTreeMap<String, [u64; 4]>> = Vec::new();
        for step in &steps {
            service.apply(step);
            if !matches!(step, Step::Publish) {
                continue;
            }
            let throttle = &service.throttle;
            let clients = builder.build_some(
                throttle.clients().len(), throttle.clients().pages(), [always, always + others], |number| service.page(number));
            let shown = sum(&clients, &throttle.totals().unregistered);
            let truth = service.decided();
            for index in 0..3 {
                prop_assert!(before[index] <= shown[index], "{before:?} {shown:?}");
                prop_assert!(shown[index] <= truth[index], "{shown:?} {truth:?}");
            }
            before = shown;

            let figures = |client: &ClientSnapshot| {
                let [a, b, c] = numbers(&client.counts);
                (client.name.to_string(), [client.levels.wants, a, b, c])
            };
            let now = (0..service.throttle.clients().pages()).flat_map(|number| service.page(number).clients);
            history.push(now.map(|client| figures(&client)).collect());
            let names: Vec<&str> = clients.iter().map(|client| &*client.name).collect();
            prop_assert!(names.is_sorted_by(|a, b| a < b), "names are not sorted and unique");
            prop_assert_eq!(clients.known(), service.throttle.clients().len());
            // The number of snapshots after which each page has been copied.
            let turns = service.throttle.clients().pages().saturating_sub(always).div_ceil(others).max(1);
            let lately = &history[history.len().saturating_sub(turns)..];
            for (name, shown) in clients.iter().map(figures) {
                let was = |then: &BTreeMap<String, [u64; 4]>| then.get(&name) == Some(&shown);
                prop_assert!(lately.iter().any(was), "{name} has figures from more than {turns} snapshots ago");
            }
            // A client that stayed registered in one slot is shown.
            let life = |then: &BTreeMap<String, [u64; 4]>, name: &str| then.get(name).map(|[since, ..]| *since);
            for name in lately[0].keys() {
                let since = life(&lately[0], name);
                let stayed = lately.iter().all(|then| life(then, name) == since);
                let is_shown = names.binary_search(&name.as_str()).is_ok();
                prop_assert!(!stayed || is_shown, "{name} is missing after {turns} snapshots");
            }
        }
    }
}

#[test]
fn clients_that_fit_in_one_snapshot_are_of_the_same_moment() {
    let mut builder = SnapshotBuilder::default();
    let pages = COPIED;
    for moment in 1..4_u64 {
        let page = |number: usize| {
            let client = |place| ClientSnapshot {
                name: format!("client-{}", number * PAGE + place).into(),
                levels: Levels { wants: moment, ..Default::default() },
                ..Default::default()
            };
            Page::new((0..PAGE).map(client).collect(), Forgotten::default())
        };
        let clients = builder.build_some(pages * PAGE, pages, [CURRENT, COPIED], page);
        assert_eq!(clients.iter().len(), pages * PAGE);
        assert!(clients.iter().all(|client| client.levels.wants == moment));
    }
}

/// Returns a client of the demo that sent five times the capacity at once.
fn flooding(enforce: bool) -> ClientSnapshot {
    let now = Time::ZERO + Duration::from_secs(1_000);
    let policy = crate::tests::service(Mode::Shape, enforce).policy;
    let sent = i64::try_from(policy.capacity * 5).unwrap();
    let mut throttle = Throttle::new(policy, now);
    throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), sent);
    for offset in 0..sent {
        let sender = Sender::Client("home-loan");
        throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 100, sender, written_ms: None });
    }
    SnapshotBuilder::default()
        .build(&throttle, now, &Unread::new())
        .iter()
        .find(|client| &*client.name == "home-loan")
        .unwrap()
        .clone()
}

#[test]
fn in_shadow_mode_the_backlog_is_empty_and_the_shadow_backlog_is_shown() {
    let (enforced, shadowed) = (flooding(true), flooding(false));
    assert!(enforced.levels.backlog > 0 && enforced.levels.shadow_backlog == 0, "{enforced:?}");
    assert!(shadowed.levels.backlog == 0 && shadowed.levels.shadow_backlog == enforced.levels.backlog, "{shadowed:?}");
    assert!(enforced.counts.delayed > 0 && shadowed.shadow.delayed == enforced.counts.delayed);
}
