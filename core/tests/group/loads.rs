//! The loads that a member tells.

use std::{sync::Arc, time::Duration};

use watermaster_core::group::control::{Event, LogCall};
use watermaster_core::group::member::Member;
use watermaster_core::group::state::{BANK, Load, SeatLoads, SeatRecord};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::Policy;
use watermaster_core::units::Time;

use crate::node::Greedy;

/// A member alone on a log that answers at once.
struct Alone {
    member: Member,
    admissions: Greedy,
    now: Time,
    end: u64,
    /// The loads of the states so far.
    told: Vec<Option<SeatLoads>>,
}

impl Alone {
    fn event(&mut self, event: Event, commits: bool) {
        let calls = self.member.handle_event(Clocks::same(self.now), &event, &mut self.admissions);
        self.answer(calls, commits);
    }

    fn answer(&mut self, calls: Vec<LogCall>, commits: bool) {
        for call in calls {
            match call {
                LogCall::Open { attempt, .. } => {
                    self.event(Event::Opened { attempt, end: self.end }, commits);
                    if self.member.needs_memory() {
                        self.member.charge_memory(0);
                    }
                    self.event(Event::End(self.end), commits);
                }
                LogCall::Write { attempt, records } => {
                    let (mut is_bank, mut loads) = (false, None);
                    for record in &records {
                        match record {
                            SeatRecord::State(state) => is_bank = &*state.seat == BANK,
                            SeatRecord::Loads(told) => loads = Some(told.clone()),
                            _ => {}
                        }
                    }
                    let commits = commits || is_bank;
                    self.told.extend((!is_bank).then_some(loads));
                    if commits {
                        self.event(Event::Record { offset: self.end, record: records[0].clone() }, true);
                        self.end += 1;
                        self.event(Event::End(self.end), true);
                    }
                    self.event(Event::Written { attempt, committed: commits }, true);
                }
                LogCall::Close { .. } => {}
            }
        }
    }

    /// Lets the member look until it has made a state.
    fn until_state(&mut self, commits: bool) -> Option<SeatLoads> {
        let (states, loads) = (self.told.len(), vec![(Arc::from("client"), Load { demand: 10, wants: 10 })]);
        while self.told.len() == states {
            self.now = self.now + Duration::from_millis(50);
            let calls = self.member.look(Clocks::same(self.now), &loads, None, &mut self.admissions);
            self.answer(calls, commits);
        }
        self.told[states].clone()
    }
}

/// A state whose commit failed took its loads with it. They were told again only once they had changed.
#[test]
fn loads_are_told_again_if_their_state_was_not_committed() {
    let policy = Policy::new(100, Duration::from_secs(10));
    let params = GroupParams::new(&policy, Duration::from_secs(30), Duration::from_secs(6));
    let now = Time::ZERO + Duration::from_secs(1_000);
    let admissions = Greedy::new(params.window());
    let member = Member::new(params, Shares::new(&policy), Arc::from("alone"), 1, Clocks::same(now));
    let mut alone = Alone { member, admissions, now, end: 0, told: Vec::new() };
    assert!(alone.until_state(true).is_some(), "the first state has the loads");
    assert!(alone.until_state(true).is_none(), "they have not changed since");
    alone.member.change(GroupParams { rules: 1, ..alone.member.params().clone() }, Shares::new(&policy));
    let lost = alone.until_state(false).expect("the rules have changed");
    assert_eq!(alone.until_state(true), Some(lost), "the state with them was not committed");
}
