//! Rounds of a bounded size under any reload: a commit records exactly the records that are in rounds so far.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use watermaster_core::offset_map::{MapBudget, OffsetMap};
use watermaster_core::policy::{Mode, Overflow, Policy};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::{offset_map, slot::Slot, units::Time};

use crate::case::{Class, name, policies};
use crate::{check, sim::START};

#[derive(Debug, Clone)]
enum Step {
    /// Records of a client are read.
    Read { client: usize, partition: u32, records: u32 },
    /// A record without a client is read.
    Anonymous { partition: u32 },
    /// Time passes, in thousandths of a cycle.
    Wait { cycles: u32 },
    /// A reload changes bounds, mode or overflow.
    Change(Box<Policy>),
    /// A round is committed.
    Round,
    /// A partition is revoked and assigned again.
    Revoke { partition: u32 },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    /// Number of outputs in a full round.
    full: usize,
    script: Vec<Step>,
}

const PARTITIONS: u32 = 3;

fn bounded(class: Class) -> impl Strategy<Value = Policy> {
    (policies(class), 1_u64..40, 500_u64..20_000, 24_usize..60, any::<u8>()).prop_map(
        |(policy, queue_capacity, queue_bytes, chars, rare)| Policy {
            queue_capacity: if rare % 3 == 0 { 1 << 40 } else { queue_capacity },
            queue_bytes: if rare % 4 == 0 { 1 << 40 } else { queue_bytes },
            map_budget: if rare < 90 { MapBudget::Chars(chars) } else { MapBudget::default() },
            max_delay: if rare % 5 == 0 { Some(policy.cycle * 2) } else { policy.max_delay },
            enforce: rare % 16 != 15,
            capacity: policy.capacity.min(50),
            ..policy
        },
    )
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    (bounded(class), 1_usize..30).prop_flat_map(move |(policy, full)| {
        let budget = policy.map_budget;
        let clients = policy.clients.len().min(6);
        let partition = 0..PARTITIONS;
        let step = prop_oneof![
            8 => (0..clients, partition.clone(), prop_oneof![1_u32..6, 1_u32..60])
                .prop_map(|(client, partition, records)| Step::Read { client, partition, records }),
            2 => partition.clone().prop_map(|partition| Step::Anonymous { partition }),
            3 => (1_u32..1_500).prop_map(|cycles| Step::Wait { cycles }),
            2 => bounded(class).prop_map(move |policy| Step::Change(Box::new(Policy { map_budget: budget, ..policy }))),
            6 => proptest::strategy::Just(Step::Round),
            1 => partition.prop_map(|partition| Step::Revoke { partition }),
        ];
        vec(step, 1..40).prop_map(move |script| Case { policy: policy.clone(), full, script })
    })
}

/// A throttle, and an owner that puts at most `full` outputs into a round.
struct Owner {
    throttle: Throttle,
    now: Time,
    full: usize,
    held: BTreeMap<Slot, (u32, i64)>,
    /// Number of outputs that are not committed.
    round: usize,
    /// By partition: the offsets that were in a round.
    completed: Vec<BTreeSet<i64>>,
    ends: Vec<i64>,
    paused: Vec<bool>,
}

impl Owner {
    fn output(&mut self, partition: u32, offset: i64) {
        assert!(self.round < self.full, "a full round got another output");
        self.round += 1;
        assert!(self.completed[partition as usize].insert(offset), "{partition}/{offset} is in two rounds");
    }

    fn read(&mut self, sender: Sender<'_>, partition: u32) {
        // The engine reads nothing while its round is full.
        if self.round >= self.full {
            self.round();
        }
        if self.paused[partition as usize] {
            return;
        }
        let offset = self.ends[partition as usize];
        self.ends[partition as usize] += 1;
        let arrival = Arrival { partition, offset, bytes: 200, sender, written_ms: None };
        match self.throttle.handle_record(self.now, &arrival) {
            Verdict::Skip => panic!("an unread record is skipped"),
            Verdict::Delay(slot) => assert_eq!(self.held.insert(slot, (partition, offset)), None),
            Verdict::Admit(_) | Verdict::Reject(_) => self.output(partition, offset),
        }
    }

    fn act(&mut self) {
        self.throttle.handle_timeout(self.now);
        while self.round < self.full
            && let Some(action) = self.throttle.poll_action(self.now)
        {
            match action {
                Action::Admit { slot, .. } | Action::Reject { slot, .. } => {
                    let (partition, offset) = self.held.remove(&slot).expect("only held records are decided later");
                    self.output(partition, offset);
                }
                Action::Pause { partition } => self.paused[partition as usize] = true,
                Action::Resume { partition } => self.paused[partition as usize] = false,
            }
        }
    }

    /// Commits the round and compares the commit with the records in rounds so far.
    fn round(&mut self) {
        self.act();
        for partition in 0..PARTITIONS {
            let (base, text) =
                self.throttle.commit_without(self.now, partition, &[]).expect("the map fits in its budget");
            let map = offset_map::decode(base, text.as_bytes()).expect("the core's own map");
            let recorded = |offset: i64| offset < base || map.completed.contains(offset);
            for offset in 0..self.ends[partition as usize] {
                let sent = self.completed[partition as usize].contains(&offset);
                assert_eq!(recorded(offset), sent, "{partition}/{offset}: recorded (left), in a round (right)");
            }
            self.throttle.handle_committed(partition);
        }
        self.round = 0;
    }

    fn revoke(&mut self, partition: u32) {
        self.round();
        let (base, text) = self.throttle.commit_without(self.now, partition, &[]).expect("the map fits in its budget");
        let mut freed = self.throttle.handle_revoked(partition);
        freed.sort_unstable();
        let mine: Vec<Slot> = self.held.iter().filter(|(_, (of, _))| *of == partition).map(|(slot, _)| *slot).collect();
        assert_eq!(freed, mine, "the slots of its delayed records are freed, each once");
        self.held.retain(|_, (of, _)| *of != partition);
        let map = offset_map::decode(base, text.as_bytes()).expect("the core's own map");
        self.paused[partition as usize] = false;
        self.throttle.handle_assigned(self.now, partition, base, &map, 0);
        let undecided: Vec<i64> = (base..self.ends[partition as usize])
            .filter(|offset| !self.completed[partition as usize].contains(offset))
            .collect();
        for offset in undecided {
            if self.round >= self.full {
                self.round();
            }
            let sender = Sender::Client("again");
            let arrival = Arrival { partition, offset, bytes: 200, sender, written_ms: None };
            match self.throttle.handle_record(self.now, &arrival) {
                Verdict::Skip => panic!("{partition}/{offset} is skipped, but was never decided"),
                Verdict::Delay(slot) => assert_eq!(self.held.insert(slot, (partition, offset)), None),
                Verdict::Admit(_) | Verdict::Reject(_) => self.output(partition, offset),
            }
        }
    }
}

fn run(case: Case) {
    let Case { policy, full, script } = case;
    let mut throttle = Throttle::new(policy, START);
    for partition in 0..PARTITIONS {
        throttle.handle_assigned(START, partition, 0, &OffsetMap::default(), 30);
    }
    let places = PARTITIONS as usize;
    let mut owner = Owner {
        throttle,
        now: START,
        full,
        held: BTreeMap::new(),
        round: 0,
        completed: vec![BTreeSet::new(); places],
        ends: vec![0; places],
        paused: vec![false; places],
    };
    for step in script {
        match step {
            Step::Read { client, partition, records } => {
                (0..records).for_each(|_| owner.read(Sender::Client(&name(client)), partition));
            }
            Step::Anonymous { partition } => owner.read(Sender::Anonymous, partition),
            Step::Wait { cycles } => owner.now = owner.now + owner.throttle.policy().cycle * cycles / 1_000,
            Step::Change(policy) => owner.throttle.handle_policy(owner.now, *policy),
            Step::Round => owner.round(),
            Step::Revoke { partition } => owner.revoke(partition),
        }
    }
    // Rounds continue until no action is due: then the backlogs are within their bounds.
    let mut rounds = 0;
    let interval = owner.throttle.policy().commit_interval;
    while owner.round > 0 || rounds < 5 || owner.throttle.poll_timeout(owner.now) <= owner.now {
        owner.round();
        // A surplus is evicted over several commit intervals.
        owner.now = owner.now + interval;
        owner.act();
        rounds += 1;
        assert!(rounds < 5_000, "rounds without an end");
    }
    let policy = owner.throttle.policy();
    let (_, bytes) = owner.throttle.backlog();
    if policy.enforce && policy.mode == Mode::Shape && policy.overflow == Overflow::DeadLetter {
        assert!(bytes <= policy.queue_bytes, "{bytes} of {}", policy.queue_bytes);
        let longest = owner.throttle.clients().iter().map(|(_, client)| client.backlog().0).max().unwrap_or(0);
        assert!(longest <= policy.queue_capacity, "{longest} of {}", policy.queue_capacity);
    }
}

#[test]
fn no_round_exceeds_its_bounds_after_any_reload() {
    check("rounds", cases, run);
}
