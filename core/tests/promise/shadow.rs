//! Shadow mode admits every record at once, and counts the decisions of an enforcing twin.

use proptest::prelude::Strategy;
use watermaster_core::delays::ClientDelays;
use watermaster_core::offset_map::{MapBudget, OffsetMap};
use watermaster_core::policy::{Mode, Overflow, Policy};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::case::{Class, Step, grouped_policies, name, own_limits, scripts};
use crate::check;
use crate::sim::{START, unregistered};

fn cases(class: Class) -> impl Strategy<Value = (Policy, Vec<Step>)> {
    (grouped_policies(class), proptest::option::of(own_limits()), 0_u8..6).prop_flat_map(|(mut policy, limit, rare)| {
        policy.clients[0].limits = limit.into_iter().collect();
        policy.overflow = Overflow::DeadLetter;
        policy.map_budget = MapBudget::default();
        match rare {
            0 => policy.max_delay = Some(policy.cycle * 3 / 2),
            1 => policy.max_clients = policy.clients.len() + 5,
            2 => policy.client_idle_timeout = policy.cycle * 2,
            _ => {}
        }
        if policy.mode == Mode::Reject {
            // Catch-up backlogs are bounded by pausing, which shadow mode does not do.
            (policy.queue_capacity, policy.queue_bytes) = (1 << 40, 1 << 40);
        }
        scripts(policy.clients.len(), 2, 60).prop_map(move |script| (policy.clone(), script))
    })
}

/// Two throttles with the same input.
struct Twins {
    enforcing: Throttle,
    shadow: Throttle,
    now: Time,
    ends: [i64; 2],
    sent: u64,
    fresh: u32,
    /// The waits of the enforcing twin's actions, one commit interval or longer.
    waits: ClientDelays,
}

impl Twins {
    fn new(policy: Policy) -> Twins {
        let shadow = Policy { enforce: false, ..policy.clone() };
        let mut twins = Twins {
            enforcing: Throttle::new(policy, START),
            shadow: Throttle::new(shadow, START),
            now: START,
            ends: [0; 2],
            sent: 0,
            fresh: 0,
            waits: ClientDelays::default(),
        };
        for partition in 0..2 {
            // The first 20 records of each partition are catching up.
            twins.enforcing.handle_assigned(START, partition, 0, &OffsetMap::default(), 20);
            twins.shadow.handle_assigned(START, partition, 0, &OffsetMap::default(), 20);
        }
        twins
    }

    fn send(&mut self, sender: Sender<'_>, partition: usize, bytes: u32) {
        let arrival =
            Arrival { partition: partition as u32, offset: self.ends[partition], bytes, sender, written_ms: None };
        self.ends[partition] += 1;
        self.sent += 1;
        self.enforcing.handle_record(self.now, &arrival);
        let verdict = self.shadow.handle_record(self.now, &arrival);
        assert!(matches!(verdict, Verdict::Admit(_)), "{verdict:?}");
        self.act();
    }

    fn act(&mut self) {
        self.enforcing.handle_timeout(self.now);
        self.shadow.handle_timeout(self.now);
        while let Some(action) = self.enforcing.poll_action(self.now) {
            assert!(!matches!(action, Action::Pause { .. }), "no partition pauses in this test");
            if let Action::Admit { waited, .. } = action
                && waited >= self.enforcing.policy().commit_interval
            {
                self.waits.record(waited);
            }
        }
        assert_eq!(self.shadow.poll_action(self.now), None, "shadow mode has no action");
    }

    fn run_until(&mut self, until: Time) {
        self.act();
        loop {
            let next = self.enforcing.poll_timeout(self.now);
            assert_eq!(self.shadow.poll_timeout(self.now), next);
            if next > until {
                break;
            }
            self.now = next;
            self.act();
        }
        self.now = until;
    }

    fn step(&mut self, step: Step) {
        let cycle = self.enforcing.policy().cycle;
        match step {
            Step::Send { client, partition, records, bytes } => {
                (0..records).for_each(|_| self.send(Sender::Client(&name(client)), partition, bytes));
            }
            Step::Flood { ids, partition } => {
                for _ in 0..ids {
                    self.fresh += 1;
                    self.send(Sender::Client(&format!("fresh-{}", self.fresh)), partition, 1);
                }
            }
            Step::Unknown { allowed, partition, records } => {
                let sender = if allowed { Sender::Anonymous } else { Sender::NotAllowed("stranger") };
                (0..records).for_each(|_| self.send(sender, partition, 1));
            }
            Step::Wait { cycles } => self.run_until(self.now + cycle * cycles / 1_000),
            Step::Stall { cycles } => self.now = self.now + cycle * cycles / 1_000,
            Step::FetchGap { partition } => {
                self.enforcing.handle_fetch_gap(partition as u32, self.ends[partition] + 5);
                self.shadow.handle_fetch_gap(partition as u32, self.ends[partition] + 5);
            }
            Step::Storm { .. } | Step::Hole { .. } => {}
            Step::Commit | Step::Restart { .. } | Step::Reassign { .. } => {}
        }
    }
}

fn shadow_counts_match_enforcement((policy, script): (Policy, Vec<Step>)) {
    let mut twins = Twins::new(policy);
    for step in script {
        twins.step(step);
    }
    twins.act();
    let mut admitted = 0;
    for (_, client) in twins.enforcing.clients().iter() {
        let shadow = twins.shadow.client(&client.name).expect("both know the same clients");
        assert_eq!(shadow.shadow, client.counts, "{}", client.name);
        assert_eq!((shadow.wants(), shadow.grant), (client.wants(), client.grant), "{}", client.name);
        assert_eq!((shadow.counts.delayed, shadow.counts.rejected.total()), (0, 0));
        admitted += shadow.counts.admitted;
    }
    let (real, counted) = unregistered(&twins.shadow);
    let mut delays = counted.delays;
    twins.shadow.clients().iter().for_each(|(_, client)| delays.merge(&client.shadow.delays));
    assert_eq!(delays, twins.waits, "shadow mode knows the delays that enforcing gives");
    assert_eq!(counted, unregistered(&twins.enforcing).0);
    assert_eq!(admitted + real.admitted, twins.sent, "shadow mode admits every record");
    assert_eq!(twins.shadow.backlog(), (0, 0));
}

#[test]
fn shadow_mode_admits_all_and_counts_like_enforcement() {
    check("shadow", cases, shadow_counts_match_enforcement);
}
