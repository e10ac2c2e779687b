//! The dry run of a rule.

use watermaster_api::{ClientEffect, RuleDryRun};
use watermaster_core::policy::Policy;
use watermaster_core::rules::Rules;
use watermaster_settings::config::rule_of_json;

use super::*;
use crate::admin::rules::dry_run;

/// Returns what rules would do to the clients `web`, which floods, and `app` and `idle`, which want less than their
/// shares of 30 records in 1 s. `web` has 500 delayed records.
fn dry_run_of(before: &[(&str, Value)], after: &[(&str, Value)]) -> RuleDryRun {
    let handle = ServiceHandle::new(&crate::tests::service(Mode::Shape, true));
    let client = |(name, wants, backlog): (&str, u64, u64)| {
        let levels = Levels { wants, backlog, ..Levels::default() };
        ClientSnapshot { name: name.into(), levels, ..Default::default() }
    };
    let clients = [("web", 900, 500), ("app", 10, 0), ("idle", 0, 0)].into_iter().map(client).collect();
    handle.cell.set(ServiceSnapshot { clients, ..snapshot() });
    let policy = |rules: &[(&str, Value)]| {
        let rule = |(name, body): &(&str, Value)| rule_of_json(name, body.as_object().unwrap(), u64::MAX).unwrap();
        let rules = Arc::new(Rules::new(rules.iter().map(rule).collect()));
        Policy { rules, ..Policy::new(90, Duration::from_secs(1)) }.at(1_000)
    };
    dry_run(&handle, &policy(before), &policy(after))
}

fn names(effects: &RuleDryRun) -> Vec<&str> {
    assert_eq!(effects.changed, effects.clients.len() as u64);
    effects.clients.iter().map(|effect| &*effect.name).collect()
}

/// A limit leaves the grant as it is. A reader of the grants alone took it for a rule without an effect.
#[test]
fn a_limit_shows_what_it_leaves_of_a_grant() {
    let rule = json!({ "clients": ["web"], "limits": [{ "rate": 10, "per": "2s" }, { "rate": 100, "per": "1s" }] });
    let effects = dry_run_of(&[], &[("slow", rule)]);
    assert_eq!(names(&effects), ["web"]);
    let ClientEffect { granted_before, granted_after, limit_before, limit_after, .. } = effects.clients[0];
    assert_eq!((granted_before, limit_before, limit_after), (granted_after, None, Some(5.0)));
}

/// A group's limit is one for all its clients together: no client may send more than it.
#[test]
fn the_limit_of_a_group_bounds_what_each_of_its_clients_may_send() {
    let group = |more: Value| {
        let mut rule = json!({ "groups": ["loans"] });
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        [("into", json!({ "clients": ["web"], "group": "loans" })), ("limited", rule)]
    };
    let before = group(json!({ "weight": 1 }));
    let limited = dry_run_of(&before, &group(json!({ "weight": 1, "limit": { "rate": 20, "per": "1m" } })));
    let web = limited.clients.iter().find(|effect| effect.name == "web").unwrap();
    assert_eq!((web.limit_before, web.limit_after), (None, Some(20.0 / 60.0)));
    let held = dry_run_of(&before, &group(json!({ "hold": true })));
    let web = held.clients.iter().find(|effect| effect.name == "web").unwrap();
    assert_eq!((web.limit_after, web.granted_after), (Some(0.0), 0));
}

/// The fault: a held client was said to get a part, and its delayed records to want nothing once it is released.
#[test]
fn a_hold_takes_everything_and_its_end_gives_the_delayed_records_a_part() {
    let hold = || ("stop", json!({ "clients": ["web"], "hold": true }));
    let held = dry_run_of(&[], &[hold()]);
    let web = held.clients.iter().find(|effect| effect.name == "web").unwrap();
    assert_eq!((web.granted_after, web.limit_after, web.backlog), (0, Some(0.0), 500));
    let released = dry_run_of(&[hold()], &[]);
    let web = released.clients.iter().find(|effect| effect.name == "web").unwrap();
    assert_eq!((web.granted_before, web.limit_before, web.limit_after), (0, Some(0.0), None));
    assert!(web.wants >= 500 && web.granted_after > 60, "{web:?}");
}

/// The fault: clients without any change were counted where only one side has rules.
#[test]
fn a_rule_for_one_client_leaves_the_others_out() {
    let none = json!({ "clients": ["unknown"], "weight": 1 });
    assert_eq!(names(&dry_run_of(&[], &[("none", none)])), [""; 0]);
    let later = json!({ "clients": ["idle"], "max_delay": "1h" });
    assert_eq!(names(&dry_run_of(&[], &[("later", later)])), ["idle"]);
}
