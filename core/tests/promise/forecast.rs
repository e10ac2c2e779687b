//! The forecast of a change of rules: the grants that it tells are those of the next cycle, but for left-over records.

use std::sync::Arc;

use proptest::collection::vec;
use watermaster_core::policy::Policy;
use watermaster_core::scheduler;

use crate::case::{Class, grouped_policies, name, rules, with_rules};
use crate::check;
use crate::sim::Sim;
use proptest::prelude::Strategy;

/// A policy with rules, and the records that each client sends at the start of a cycle.
fn cases(class: Class) -> impl Strategy<Value = (Policy, Vec<u32>)> {
    grouped_policies(class).prop_flat_map(|policy| {
        (rules(policy.capacity), 0_u32..4).prop_flat_map(move |(rules, listed)| {
            let mut policy = Policy { rules: Arc::default(), ..policy.clone() };
            policy.clients.truncate(policy.clients.len() * listed as usize / 3);
            let policy = with_rules(&policy, &rules).at(1);
            vec(0_u32..60, 1..12).prop_map(move |sent| (policy.clone(), sent))
        })
    })
}

#[test]
fn a_forecast_tells_the_grants_of_the_next_cycle() {
    check("forecast", cases, |(policy, sent)| {
        let mut sim = Sim::new(policy.clone(), 1);
        for _ in 0..4 {
            for (client, &records) in sent.iter().enumerate() {
                for _ in 0..records {
                    sim.read(&name(client), 0);
                }
            }
            sim.run_for(policy.cycle);
        }
        sim.throttle.handle_timeout(sim.now);
        let known: Vec<_> = sim.throttle.clients().iter().map(|(_, client)| client).collect();
        if known.is_empty() {
            return;
        }
        let wants: Vec<_> = known.iter().map(|client| (Arc::clone(&client.name), client.last_wants)).collect();
        let told = scheduler::grants(&policy, policy.capacity, &wants);
        for (client, told) in known.iter().zip(told) {
            let granted = if client.held { 0 } else { client.grant.records };
            assert!(told.abs_diff(granted) <= 3, "{}: {told} told, {granted} granted, {wants:?}", client.name);
        }
    });
}
