//! Recording rules and alerts use existing series; each alert is tested and has a runbook. promtool tests the results
//! of the rules (`prometheus/rules/tests`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::repository::{files, read, root};
use crate::{assert_none, catalogue::all_labels, promql::examine};

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Rule {
    fn name(&self) -> &str {
        self.record.as_deref().or(self.alert.as_deref()).expect("a rule records or alerts")
    }
}

#[derive(Deserialize)]
struct TestFile {
    evaluation_interval: String,
    group_eval_order: Vec<String>,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    input_series: Vec<Input>,
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
    #[serde(default)]
    promql_expr_test: Vec<ExpressionTest>,
}

#[derive(Deserialize)]
struct Input {
    series: String,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct ExpressionTest {
    exp_samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    labels: String,
}

fn yaml<T: DeserializeOwned>(path: &std::path::Path) -> T {
    yaml_serde::from_str(&read(path)).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn groups() -> Vec<Group> {
    files("prometheus/rules", "yml").iter().flat_map(|path| yaml::<RuleFile>(path).groups).collect()
}

fn rules() -> Vec<Rule> {
    groups().into_iter().flat_map(|group| group.rules).collect()
}

/// Returns the names of all alerts.
pub fn alerts() -> BTreeSet<String> {
    rules().into_iter().filter_map(|rule| rule.alert).collect()
}

fn test_files() -> Vec<TestFile> {
    files("prometheus/rules/tests", "yml").iter().map(|path| yaml(path)).collect()
}

fn recorded() -> BTreeSet<String> {
    rules().into_iter().filter_map(|rule| rule.record).collect()
}

#[test]
fn every_rule_parses_and_uses_existing_names() {
    let recorded = recorded();
    let mut problems = Vec::new();
    for rule in rules() {
        let findings = examine(&rule.expr, &recorded);
        problems.extend(findings.problems.iter().map(|why| format!("{}: {why}", rule.name())));
        problems.extend(findings.not_rated.iter().map(|name| format!("{}: {name} is used without rate", rule.name())));
    }
    assert_none(problems);
}

/// The chart replaces each number before a comment `# threshold NAME` by its value of this name.
#[test]
fn thresholds_are_the_defaults_of_the_chart() {
    #[derive(Deserialize)]
    struct Values {
        #[serde(rename = "prometheusRule")]
        rules: Rules,
    }
    #[derive(Deserialize)]
    struct Rules {
        thresholds: BTreeMap<String, yaml_serde::Value>,
    }
    let mut found = Vec::new();
    for path in files("prometheus/rules", "yml") {
        let text = read(&path);
        let lines = text.lines().filter_map(|line| line.split_once(" # threshold "));
        found.extend(lines.map(|(expression, name)| {
            let number = expression.split_whitespace().last().expect("a number before the comment");
            (name.to_owned(), number.to_owned())
        }));
    }
    found.sort();
    let values: Values = yaml(&root("deploy/helm/watermaster/values.yaml"));
    let given = values.rules.thresholds.into_iter();
    let given: Vec<_> = given
        .map(|(name, value)| (name, yaml_serde::to_string(&value).expect("a plain value").trim().to_owned()))
        .collect();
    assert_eq!(found, given);
}

#[test]
fn recorded_series_are_named_by_level_metric_and_operation() {
    let odd = recorded().into_iter().filter(|name| {
        let parts: Vec<_> = name.split(':').collect();
        parts.len() != 3 || !parts[1].starts_with("watermaster_") || parts.contains(&"")
    });
    assert_none(odd.collect());
}

#[test]
fn names_of_rules_and_groups_are_unique() {
    let (rules, groups) = (rules(), groups());
    assert_eq!(rules.iter().map(Rule::name).collect::<BTreeSet<_>>().len(), rules.len(), "rules");
    assert_eq!(groups.iter().map(|group| &group.name).collect::<BTreeSet<_>>().len(), groups.len(), "groups");
}

#[test]
fn each_alert_has_a_severity_a_description_and_a_runbook() {
    let runbooks = read(&root("docs/runbooks.md"));
    let sections: BTreeSet<_> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut problems = Vec::new();
    for rule in rules().iter().filter(|rule| rule.alert.is_some()) {
        let name = rule.name();
        if !rule.labels.get("severity").is_some_and(|word| ["critical", "warning", "info"].contains(&word.as_str())) {
            problems.push(format!("{name}: no severity"));
        }
        for annotation in ["summary", "description"] {
            if !rule.annotations.get(annotation).is_some_and(|text| text.ends_with('.')) {
                problems.push(format!("{name}: no {annotation}, or no full stop"));
            }
        }
        let link = format!("docs/runbooks.md#{}", name.to_lowercase());
        if rule.annotations.get("runbook_url") != Some(&link) || !sections.contains(name) {
            problems.push(format!("{name}: no link to a section {name} of the runbooks"));
        }
    }
    let alerts = alerts();
    // A title in words is no alert.
    let orphans = sections.iter().filter(|section| !section.contains(' ') && !alerts.contains(**section));
    problems.extend(orphans.map(|section| format!("runbooks: {section} is not an alert")));
    assert_none(problems);
}

#[test]
fn annotations_use_existing_labels() {
    let known: BTreeSet<_> = all_labels().collect();
    let mut problems = Vec::new();
    for rule in rules() {
        for text in rule.annotations.values() {
            let labels = text.split("$labels.").skip(1).filter_map(|rest| rest.split([' ', '}']).next());
            let unknown = labels.filter(|label| !known.contains(*label));
            problems.extend(unknown.map(|label| format!("{}: no label {label}", rule.name())));
        }
    }
    assert_none(problems);
}

#[test]
fn each_alert_has_a_test_that_fires_and_one_that_stays_silent() {
    let tests: Vec<Test> = test_files().into_iter().flat_map(|file| file.tests).collect();
    let mut problems = Vec::new();
    for alert in alerts() {
        let of_alert = |test: &Test| -> Vec<bool> {
            let asked = test.alert_rule_test.iter().filter(|asked| asked.alertname == alert);
            asked.map(|asked| !asked.exp_alerts.is_empty()).collect()
        };
        if !tests.iter().any(|test| of_alert(test).contains(&true)) {
            problems.push(format!("{alert}: no test in which it fires"));
        }
        if !tests.iter().map(of_alert).any(|fires| !fires.is_empty() && !fires.contains(&true)) {
            problems.push(format!("{alert}: no test in which it stays silent"));
        }
    }
    assert_none(problems);
}

/// An alert fired for ever at evaluations between the multiples of 15 s at which its tests looked.
#[test]
fn each_alert_fires_in_a_test_with_evaluations_at_odd_times() {
    let files = test_files().into_iter().filter(|file| ["7s", "7m"].contains(&file.evaluation_interval.as_str()));
    let tests: Vec<Test> = files.flat_map(|file| file.tests).collect();
    let fires = |alert: &str, test: &Test| {
        let label = format!("alertname=\"{alert}\"");
        let mut samples = test.promql_expr_test.iter().flat_map(|asked| &asked.exp_samples);
        let mut alerts = test.alert_rule_test.iter().filter(|asked| !asked.exp_alerts.is_empty());
        samples.any(|sample| sample.labels.contains(&label)) || alerts.any(|asked| asked.alertname == alert)
    };
    assert_none(alerts().into_iter().filter(|alert| !tests.iter().any(|test| fires(alert, test))).collect());
}

/// promtool accepts a test of an alert that does not exist if the test expects no alert.
#[test]
fn tests_of_rules_name_existing_alerts_and_series() {
    let (alerts, recorded) = (alerts(), recorded());
    let order: BTreeSet<_> = groups().into_iter().map(|group| group.name).collect();
    let mut problems = Vec::new();
    for file in test_files() {
        problems.extend(file.group_eval_order.iter().filter(|group| !order.contains(*group)).cloned());
        for test in &file.tests {
            for input in &test.input_series {
                let findings = examine(&input.series, &recorded);
                problems.extend(findings.problems.iter().map(|why| format!("{}: {why}", test.name)));
            }
            let unknown = test.alert_rule_test.iter().filter(|asked| !alerts.contains(&asked.alertname));
            problems.extend(unknown.map(|asked| format!("{}: no alert {}", test.name, asked.alertname)));
        }
    }
    assert_none(problems);
}
