use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use watermaster_core::map::Map;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::registry::{Counts, PAGE};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::Time;

use super::*;

const CYCLE: Duration = Duration::from_secs(1);

/// What happens to a service between two snapshots.
#[derive(Debug, Clone)]
enum Step {
    /// So many neighbouring clients send a record each, from this one on.
    Arrive(u16, u16),
    /// Cycles go by: what waits goes, who says nothing is forgotten.
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
        let demo =
            watermaster_tools::demo::config(Mode::Reject, false, "localhost:1").settings.services[0].policy.clone();
        let policy = Policy { cycle: CYCLE, client_idle_timeout: 2 * CYCLE, max_clients: 2_000, ..demo };
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &Map::default(), 0);
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
        self.throttle.handle_record(self.now, &Arrival { partition: 0, offset: self.offset, bytes: 10, sender });
        self.offset += 1;
    }

    fn decided(&self) -> [u64; 3] {
        let mut sum = self.throttle.unregistered().0;
        self.throttle.clients().for_each(|client| sum.merge(&client.counts));
        numbers(&sum)
    }

    fn page(&self, number: usize) -> Page {
        let (clients, forgotten) = self.throttle.page(number);
        let client = |client: &watermaster_core::registry::Client| ClientSnapshot {
            name: client.name.clone(),
            counts: client.counts,
            wants: client.since_cycle.unwrap_or(0),
            ..Default::default()
        };
        Page::new(clients.map(client).collect(), forgotten)
    }
}

fn numbers(counts: &Counts) -> [u64; 3] {
    [counts.admitted, counts.delayed, counts.rejected.total()]
}

fn sum(clients: &Clients, of_nobody: &Counts) -> [u64; 3] {
    let mut sum = *of_nobody;
    sum.merge(&clients.forgotten().counts);
    clients.iter().for_each(|client| sum.merge(&client.counts));
    numbers(&sum)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sums_never_fall_and_never_exceed_the_truth_whatever_is_renewed(
        always in 0..2_usize,
        others in 1..5_usize,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut service = Service::new();
        let mut renewal = Renewal::default();
        let mut before = [0; 3];
        // What was true of each when which snapshot was made.
        let mut history: Vec<BTreeMap<String, [u64; 4]>> = Vec::new();
        for step in &steps {
            service.apply(step);
            if !matches!(step, Step::Publish) {
                continue;
            }
            let throttle = &service.throttle;
            let clients = renewal.renew_some(
                throttle.known(), throttle.pages(), [always, always + others], |number| service.page(number));
            let shown = sum(&clients, &throttle.of_nobody().0);
            let truth = service.decided();
            for index in 0..3 {
                prop_assert!(before[index] <= shown[index], "{before:?} {shown:?}");
                prop_assert!(shown[index] <= truth[index], "{shown:?} {truth:?}");
            }
            before = shown;

            let figures = |client: &ClientSnapshot| {
                let [a, b, c] = numbers(&client.counts);
                (client.name.to_string(), [client.wants, a, b, c])
            };
            let now = (0..service.throttle.pages()).flat_map(|number| service.page(number).clients);
            history.push(now.map(|client| figures(&client)).collect());
            let names: Vec<&str> = clients.iter().map(|client| &*client.name).collect();
            prop_assert!(names.is_sorted_by(|a, b| a < b), "sorted, each once");
            prop_assert_eq!(clients.known(), service.throttle.known());
            // How long a page may have to wait for its turn.
            let turns = service.throttle.pages().saturating_sub(always).div_ceil(others).max(1);
            let lately = &history[history.len().saturating_sub(turns)..];
            for (name, shown) in clients.iter().map(figures) {
                let was = |then: &BTreeMap<String, [u64; 4]>| then.get(&name) == Some(&shown);
                prop_assert!(lately.iter().any(was), "{name} as it was more than {turns} snapshots ago");
            }
            // Who has been there all the time, and did not go and come back elsewhere, is shown.
            let life = |then: &BTreeMap<String, [u64; 4]>, name: &str| then.get(name).map(|[since, ..]| *since);
            for name in lately[0].keys() {
                let since = life(&lately[0], name);
                let stayed = lately.iter().all(|then| life(then, name) == since);
                prop_assert!(!stayed || clients.get(name).is_some(), "{name} has been there for {turns} snapshots");
            }
        }
    }
}

#[test]
fn as_many_as_are_renewed_at_once_are_of_one_moment() {
    let mut renewal = Renewal::default();
    let pages = AT_ONCE;
    for moment in 1..4_u64 {
        let page = |number: usize| {
            let client = |place| ClientSnapshot {
                name: format!("client-{}", number * PAGE + place).into(),
                wants: moment,
                ..Default::default()
            };
            Page::new((0..PAGE).map(client).collect(), Forgotten::default())
        };
        let clients = renewal.renew_some(pages * PAGE, pages, [ALWAYS, AT_ONCE], page);
        assert_eq!(clients.iter().len(), pages * PAGE);
        assert!(clients.iter().all(|client| client.wants == moment));
    }
}

/// A client of the demo that sent five times the capacity at once.
fn flooding(enforce: bool) -> ClientSnapshot {
    let now = Time::ZERO + Duration::from_secs(1_000);
    let policy =
        watermaster_tools::demo::config(Mode::Shape, !enforce, "localhost:1").settings.services[0].policy.clone();
    let sent = i64::try_from(policy.capacity * 5).unwrap();
    let mut throttle = Throttle::new(policy, now);
    throttle.handle_assigned(now, 0, 0, &Map::default(), sent);
    for offset in 0..sent {
        let sender = Sender::Client("home-loan");
        throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 100, sender });
    }
    Renewal::default().renew(&throttle).get("home-loan").unwrap().clone()
}

#[test]
fn nothing_waits_in_passthrough_but_it_is_shown_what_would() {
    let (enforced, observed) = (flooding(true), flooding(false));
    assert!(enforced.backlog > 0 && enforced.shadow_backlog == 0, "{enforced:?}");
    assert!(observed.backlog == 0 && observed.shadow_backlog == enforced.backlog, "{observed:?}");
    assert!(enforced.counts.delayed > 0 && observed.shadow.delayed == enforced.counts.delayed);
}
