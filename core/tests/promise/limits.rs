//! A client's own limit beside governor, on a clock of its own.

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use proptest::prelude::Strategy;
use watermaster_core::policy::{Limit, Mode, Policy};
use watermaster_core::reason::Reason;
use watermaster_core::units::{Ratio, Time};

use crate::case::{Class, Step, own_limits, policies, scripts};
use crate::check;
use crate::pace::only_capacity;
use crate::sim::START;
use crate::world::{Who, World};

/// Governor, asked in the order of decisions.
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

    /// Whether a token is there at this moment, or when.
    fn take(&mut self, at: Time) -> Result<(), Time> {
        self.clock.advance(at.since(self.now));
        self.now = at;
        self.limiter.check().map_err(|until| START + until.earliest_possible().into())
    }
}

fn scripted(class: Class) -> impl Strategy<Value = (Policy, Limit, Vec<Step>)> {
    (policies(class), own_limits()).prop_flat_map(|(mut policy, limit)| {
        policy.clients[0].limit = Some(limit);
        scripts(policy.clients.len(), 2, 60).prop_map(move |mut script| {
            // A new process begins with full buckets.
            script.retain(|step| !matches!(step, Step::Restart { .. }));
            (policy.clone(), limit, script)
        })
    })
}

/// Whoever is admitted has a token; who is rejected as `client_limit` has none; any other refusal takes none.
fn agrees_with_governor((policy, limit, script): (Policy, Limit, Vec<Step>)) {
    let mut world = World::new(policy, 2, 3, 5);
    for step in script {
        world.step(step);
    }
    let mut twin = Twin::new(&limit);
    for decision in world.decisions.iter().filter(|decision| decision.who == Who::Client(0)) {
        match decision.rejection {
            None => assert_eq!(twin.take(decision.at), Ok(()), "admitted at {:?}", decision.at),
            Some(rejection) if rejection.reason == Reason::ClientLimit => {
                let until = twin.take(decision.at).expect_err("there is no token");
                assert_eq!(until, decision.at + rejection.retry_after);
            }
            Some(_) => {}
        }
    }
}

#[test]
fn an_own_limit_is_governors() {
    check("limit_reject", scripted, agrees_with_governor);
}

/// Shape mode, nothing but the limit in the way: each record goes at the moment at which governor has a token for it.
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
    for decision in world.decisions.iter().filter(|decision| decision.who == Who::Client(0)) {
        let read = world.record(decision.record.0, decision.record.1).read;
        let mut due = read.max(twin.now);
        while let Err(until) = twin.take(due) {
            due = until;
        }
        assert_eq!(decision.at, due, "{:?}", decision.record);
    }
}

#[test]
fn an_own_limit_delays_no_longer_than_governor() {
    check("limit_shape", scripted, delays_as_governor);
}
