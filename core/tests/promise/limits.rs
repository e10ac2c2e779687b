//! A client's own limit compared with the crate governor.

use governor::{Quota, RateLimiter, clock::FakeRelativeClock};
use proptest::prelude::Strategy;
use watermaster_core::policy::{Limit, Mode, Policy};
use watermaster_core::reason::Reason;
use watermaster_core::units::{Ratio, Time};

use crate::case::{Class, Step, own_limits, policies, scripts};
use crate::world::{Origin, World};
use crate::{check, pace::only_capacity, sim::START};

/// Governor's limiter, asked in the order of decisions.
struct Twin {
    clock: FakeRelativeClock,
    limiter: RateLimiter<
        governor::state::NotKeyed,
        governor::state::InMemoryState,
        FakeRelativeClock,
        governor::middleware::NoOpMiddleware<governor::nanos::Nanos>,
    >,
    now: Time,
}

impl Twin {
    fn new(limit: &Limit) -> Twin {
        let clock = FakeRelativeClock::default();
        let quota = Quota::with_period(limit.per / limit.rate.get()).unwrap().allow_burst(limit.burst);
        Twin { limiter: RateLimiter::direct_with_clock(quota, clock.clone()), clock, now: START }
    }

    /// Takes a token at this time. Returns the time of the next token if there is none.
    fn take(&mut self, at: Time) -> Result<(), Time> {
        self.clock.advance(at.since(self.now));
        self.now = at;
        self.limiter.check().map_err(|until| START + until.earliest_possible().into())
    }
}

fn scripted(class: Class) -> impl Strategy<Value = (Policy, Limit, Vec<Step>)> {
    (policies(class), own_limits()).prop_flat_map(|(mut policy, limit)| {
        policy.clients[0].limits = vec![limit];
        scripts(policy.clients.len(), 2, 60).prop_map(move |mut script| {
            // A new process starts with full buckets.
            script.retain(|step| !matches!(step, Step::Restart { .. }));
            (policy.clone(), limit, script)
        })
    })
}

/// Checks that an admitted record takes a token, a record rejected as `client_limit` finds none, and any other
/// rejection takes none.
fn agrees_with_governor((policy, limit, script): (Policy, Limit, Vec<Step>)) {
    let mut world = World::new(policy, 2, 3, 5);
    for step in script {
        world.step(step);
    }
    let mut twin = Twin::new(&limit);
    for decision in world.decisions.iter().filter(|decision| decision.origin == Origin::Client(0)) {
        match decision.rejection {
            None => assert_eq!(twin.take(decision.at), Ok(()), "admitted at {:?}", decision.at),
            Some(rejection) if rejection.reason == Reason::ClientLimit => {
                let until = twin.take(decision.at).expect_err("governor has no token either");
                assert_eq!(until, decision.at + rejection.retry_after);
            }
            Some(_) => {}
        }
    }
}

#[test]
fn a_client_limit_agrees_with_governor() {
    check("limit_reject", scripted, agrees_with_governor);
}

/// Checks shape mode with only the limit in effect: each record is admitted when governor has a token for it.
fn delays_as_governor((policy, limit, script): (Policy, Limit, Vec<Step>)) {
    let policy = Policy {
        mode: Mode::Shape,
        capacity: 1_000_000_000,
        burst: Ratio::ONE,
        reservation: policy.reservation,
        ..only_capacity(policy)
    };
    let mut world = World::new(policy, 2, 3, 5);
    for step in script {
        if matches!(step, Step::Send { .. } | Step::Wait { .. } | Step::Commit | Step::Hole { .. }) {
            world.step(step);
        }
    }
    let mut twin = Twin::new(&limit);
    for decision in world.decisions.iter().filter(|decision| decision.origin == Origin::Client(0)) {
        let read = world.record(decision.record.0, decision.record.1).read;
        let mut due = read.max(twin.now);
        while let Err(until) = twin.take(due) {
            due = until;
        }
        assert_eq!(decision.at, due, "{:?}", decision.record);
    }
}

#[test]
fn a_client_limit_delays_exactly_as_governor() {
    check("limit_shape", scripted, delays_as_governor);
}
