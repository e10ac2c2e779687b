//! Rules as a file and as a request write them.

use serde_json::json;
use watermaster_core::policy::Policy;
use watermaster_core::rules::Advantage;

use super::*;
use crate::config::{Config, PropertyRules};

const SERVICE: &str = r#"[[service]]
name = "kyc"
target = "t"
dead_letter = "d"
capacity = 100
source = [{ topic = "s" }]
"#;
const RULES: PropertyRules = PropertyRules { version: || "0".to_owned(), check: |_, _| Ok(()), clients: |_| Ok(()) };

fn config(text: &str) -> Result<Config, String> {
    let none: [(std::ffi::OsString, std::ffi::OsString); 0] = [];
    Config::parse(&format!("{SERVICE}{text}"), Path::new("w.toml"), none, RULES).map_err(|errors| errors.to_string())
}

fn policy(text: &str) -> Policy {
    config(text).unwrap_or_else(|errors| panic!("{errors}")).settings.services.remove(0).policy
}

/// The rules that a request may write, with the values that they set.
#[test]
fn the_examples_of_the_documents_are_rules() {
    let policy = policy(
        r#"
        group_from = ["topic"]
        client_from = ["header:channel", "key"]
        [service.client."home-loan/web"]
        weight = 2
        [service.group.credit-card]
        [service.group.home-loan]
        limit = { rate = 500, per = "1s" }
        clients = ["hl-*", "mortgage"]

        [[service.rule]]
        name = "everyone"
        clients = ["*"]
        limit = { rate = 20, per = "1s", scale = "weight" }

        [[service.rule]]
        name = "summer"
        groups = ["credit-card"]
        weight = 2
        priority = 10
        from = 2026-07-03T00:00:00+02:00
        until = "2026-07-06T00:00:00+02:00"
        "#
        .replace("source", "")
        .as_str(),
    );
    // 2026-07-02T22:00:00Z
    let summer = 1_783_029_600_000;
    let at = |now| policy.at(now);
    let weight = |policy: &Policy| policy.groups[policy.group_named("credit-card").unwrap()].weight.thousandths();
    assert_eq!([summer - 1, summer, summer + 72 * 3_600_000].map(|now| weight(&at(now))), [1_000, 2_000, 1_000]);
    let limits = |client: &str| at(0).effects_on(client).unwrap().limits;
    assert_eq!(limits("credit-card/app")[0].burst.get(), 20);
    assert_eq!(
        (limits("home-loan/web")[0].burst.get(), limits("home-loan/web")[0].per),
        (40, Duration::from_millis(500))
    );
    assert_eq!(at(0).groups[at(0).group_named("home-loan").unwrap()].limits[0].rate.get(), 500);
    assert_eq!(policy.rules.next_change(0), Some(summer));
    let now = at(summer);
    let decided = now.explain_group("credit-card");
    assert_eq!(&*decided[0].rules[0].name, "summer");
    let ranks = [0, 0].map(|at| watermaster_core::rules::Rank::of(decided[0].rules[at], "credit-card"));
    assert_eq!(ranks[0].advantage_over(&ranks[1]), Advantage::Name);
}

/// A table says nothing of a weight that is not written, so that a rule for all clients decides it.
#[test]
fn a_table_sets_only_the_fields_that_are_written() {
    let text = "[service.client]\na = {}\nb = { weight = 1 }\n[[service.rule]]\nname = \"all\"\nclients = [\"*\"]\nweight = 3\n";
    let weights = policy(text).at(0).clients.into_iter().map(|client| client.weight.thousandths()).collect::<Vec<_>>();
    assert_eq!(weights, [3_000, 1_000]);
}

/// Each row: a rule, and the beginning of its error.
#[test]
fn a_wrong_rule_is_refused_with_its_reason() {
    let many = format!("clients = [{}]\nweight = 1", "\"a\",".repeat(1_001));
    let rows = [
        (
            "name = \"A\"\nclients = [\"a\"]\nweight = 1",
            "service[0].rule[0].name (service kyc) is \"A\": 'A' is not allowed",
        ),
        (
            "name = \"client.a\"\nclients = [\"a\"]\nweight = 1",
            "service[0].rule[0].name (service kyc) is \"client.a\": client.… is a table's name",
        ),
        (
            "name = \"..\"\nclients = [\"a\"]\nweight = 1",
            "service[0].rule[0].name (service kyc) is \"..\": a URL cannot end in it",
        ),
        ("clients = [\"a\"]\nweight = 1", "service[0].rule[0].name (service kyc) is missing"),
        (
            "name = \"r\"\nweight = 1",
            "service[0].rule[0].clients (service kyc) is missing, and the rule has no other target",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\ngroups = [\"g\"]\nweight = 1",
            "service[0].rule[0].clients (service kyc) stands beside another target",
        ),
        (
            "name = \"r\"\nservice = true\ngroups = [\"g\"]\nweight = 1",
            "service[0].rule[0].clients (service kyc) stands beside another target",
        ),
        (
            "name = \"r\"\ngroups = [\"g\"]\nin_groups = [\"g\"]\nweight = 1",
            "service[0].rule[0].in_groups (service kyc) stands beside groups",
        ),
        ("name = \"r\"\nclients = [\"a\"]", "service[0].rule[0].name (service kyc) names a rule without any effect"),
        (
            "name = \"r\"\nclients = [\"a\"]\nlimit = { rate = 1 }\nlimits = []",
            "service[0].rule[0].limit (service kyc) stands beside limits",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\ncapacity = 5",
            "service[0].rule[0].capacity (service kyc) is no field of a rule for clients",
        ),
        (
            "name = \"r\"\ngroups = [\"a\"]\nmax_delay = \"1s\"",
            "service[0].rule[0].max_delay (service kyc) is no field of a rule for groups",
        ),
        (
            "name = \"r\"\nservice = true\nweight = 2",
            "service[0].rule[0].weight (service kyc) is no field of a rule for the service",
        ),
        (
            "name = \"r\"\nservice = true\ncapacity = 101",
            "service[0].rule[0].capacity (service kyc) is 101, above rules_max_capacity (100)",
        ),
        (
            "name = \"r\"\nclients = [\"*\"]\nin_groups = [\"g\"]\ngroup = \"g\"",
            "service[0].rule[0].group (service kyc) stands beside in_groups",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nweight = 1\nfrom = 2026-07-03T00:00:00Z\nuntil = 2026-07-03T00:00:00Z",
            "service[0].rule[0].until (service kyc) is not after from",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nweight = 1\nuntil = 2026-07-03",
            "service[0].rule[0].until (service kyc) is 2026-07-03: a time without a date or an offset",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nweight = 1\nuntil = \"tomorrow\"",
            "service[0].rule[0].until (service kyc) is \"tomorrow\": a time without",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nweight = 1\nuntil = 9999-12-31T23:59:59-01:00",
            "service[0].rule[0].until (service kyc) is 9999-12-31T23:59:59-01:00: a time without",
        ),
        (
            "name = \"changes\"\nclients = [\"a\"]\nweight = 1",
            "service[0].rule[0].name (service kyc) is \"changes\": the API has this name",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nweight = 1\npriority = 1001",
            "service[0].rule[0].priority (service kyc) is 1001",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nlimit = { rate = 1 }\nlimits = [{ rate = 1 }]",
            "service[0].rule[0].limit (service kyc) stands beside limits",
        ),
        (
            "name = \"r\"\nclients = [\"a\"]\nlimits = [{ rate = 1 },{ rate = 1 },{ rate = 1 },{ rate = 1 },{ rate = 1 }]",
            "service[0].rule[0].limits (service kyc) has 5 limits",
        ),
        (&*format!("name = \"r\"\n{many}"), "service[0].rule[0].clients (service kyc) has more than 1000 entries"),
        (
            "name = \"r\"\nclients = [\"a\"]\nwieght = 1",
            "service[0].rule[0].name (service kyc) names a rule without any effect",
        ),
    ];
    for (rule, error) in rows {
        let errors = config(&format!("[[service.rule]]\n{rule}\n")).map(|_| ()).unwrap_err();
        assert!(errors.contains(error), "{rule}: {errors}");
    }
    let twice = "[[service.rule]]\nname = \"r\"\nclients = [\"a\"]\nweight = 1\n".repeat(2);
    assert!(config(&twice).map(|_| ()).unwrap_err().contains("which another rule of the service has"));
    let delay = |n: usize| format!("[[service.rule]]\nname = \"r{n}\"\nclients = [\"a{n}\"]\nmax_delay = \"{n}s\"\n");
    let delays = |count: usize| config(&(1..=count).map(delay).collect::<String>()).map(|_| ());
    assert!(delays(16).is_ok());
    assert!(delays(17).unwrap_err().contains("17 different values of max_delay"));
}

#[test]
fn an_empty_list_of_limits_is_no_limit() {
    let text = "[[service.rule]]\nname = \"all\"\nclients = [\"*\"]\nlimit = { rate = 1 }\n\
                [[service.rule]]\nname = \"vip\"\nclients = [\"vip\"]\nlimits = []\n";
    let policy = policy(text).at(0);
    assert_eq!(["vip", "a"].map(|client| policy.effects_on(client).unwrap().limits.len()), [0, 1]);
}

#[test]
fn doubtful_rules_are_reported() {
    let warnings = |text: &str| config(text).unwrap().warnings.iter().map(ToString::to_string).collect::<String>();
    let rule = |name: &str, rest: &str| format!("[[service.rule]]\nname = \"{name}\"\nclients = [\"a*\"]\n{rest}\n");
    let equal = warnings(&(rule("x", "weight = 1") + &rule("y", "weight = 2")));
    assert!(equal.contains("is also the priority of \"y\", which has the same target: the name decides"), "{equal}");
    let apart =
        rule("x", "weight = 1\nuntil = 2026-07-03T00:00:00Z") + &rule("y", "weight = 2\nfrom = 2026-07-03T00:00:00Z");
    assert_eq!(warnings(&apart), "");
    let unknown = warnings(&rule("x", "group = \"cards\""));
    assert!(unknown.contains("which no table and no rule names"), "{unknown}");
}

#[test]
fn a_request_writes_the_same_rule_as_a_file() {
    let of_file = policy(
        "[[service.rule]]\nname = \"r\"\ngroups = [\"g*\"]\nweight = 2.5\npriority = -3\nhold = true\nuntil = 2026-07-06T00:00:00+02:00\nlimits = [{ rate = 3, per = \"2s\", scale = \"weight\" }]\nnote = \"why\"\n",
    );
    let body = json!({
        "groups": ["g*"], "weight": 2.5, "priority": -3, "hold": true, "until": "2026-07-06T00:00:00+02:00",
        "limits": [{"rate": 3, "per": "2s", "scale": "weight"}], "note": "why",
    });
    let of_request = of_json("r", body.as_object().unwrap(), 100).unwrap();
    let of_file = of_file.rules.iter().find(|rule| !rule.is_table()).unwrap().clone();
    assert_eq!(Rule { origin: Origin::RunTime, ..of_file }, of_request);

    let wrong = json!({ "groups": "g", "wieght": 2, "priority": 1.5, "capacity": 1000 });
    let errors = of_json("r", wrong.as_object().unwrap(), 100).unwrap_err();
    let keys: Vec<String> = errors.iter().map(|error| error.key.to_string()).collect();
    assert_eq!(keys, ["capacity", "groups", "priority", "wieght"]);
}
