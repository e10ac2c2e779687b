//! The demo's configuration fits its scenario.

use watermaster_core::policy::Mode;

use super::*;

#[test]
fn the_options_take_effect_in_the_configuration() {
    let settings = config(Mode::Reject, true, "127.0.0.1:7").settings;
    assert_eq!(settings.kafka.bootstrap_servers, "127.0.0.1:7");
    let policy = &settings.services[0].policy;
    assert_eq!((policy.mode, policy.enforce, policy.capacity), (Mode::Reject, false, 200));
    assert!(policy.clients.windows(2).all(|pair| pair[0].weight == pair[1].weight));
}

#[test]
fn each_client_of_the_scenario_has_a_source_of_its_own_and_the_campaign_exceeds_the_capacity() {
    let service = config(Mode::Shape, false, "127.0.0.1:7").settings.services.remove(0);
    let plan = Plan::new(&scenario(Duration::from_secs(30)), &service).unwrap();
    assert_eq!(plan.length, Duration::from_secs(30));
    let mut topics: Vec<usize> = plan.clients.iter().map(|client| client.topic).collect();
    topics.dedup();
    assert_eq!(topics.len(), service.sources.len());
    let sent_until = |seconds| -> f64 {
        let until = Duration::from_secs(seconds);
        plan.clients.iter().map(|client| client.profile.expected(until)).sum()
    };
    let capacity = service.policy.capacity as f64;
    assert!(sent_until(6) < 6.0 * capacity);
    assert!(sent_until(27) > 27.0 * 1.6 * capacity);
}
