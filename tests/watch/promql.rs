//! Checks of the names in PromQL expressions.

use std::collections::BTreeSet;

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::{self, Expr, VectorSelector};

use crate::catalogue::{self, Series};

/// The series that Prometheus itself creates.
const OF_PROMETHEUS: [&str; 2] = ["up", "ALERTS"];
/// The labels of `ALERTS` beside those of the alert's expression.
const OF_ALERTS: [&str; 3] = ["alertname", "alertstate", "severity"];
/// Grafana's variables, each with a value that the parser accepts.
const VARIABLES: [(&str, &str); 8] = [
    ("$__rate_interval", "20s"),
    ("$__range", "1h"),
    ("$cluster", "any"),
    ("$namespace", "any"),
    ("$job", "any"),
    ("$instance", "any"),
    ("$service", "any"),
    ("$client", "any"),
];

/// A selector, and the function that has it as an argument.
struct Selector<'e> {
    series: &'e VectorSelector,
    function: Option<&'static str>,
}

/// The names in an expression and the problems with them.
#[derive(Default)]
pub struct Findings {
    pub metrics: BTreeSet<&'static str>,
    /// The labels that the expression's results may have.
    pub labels: BTreeSet<&'static str>,
    /// Counters and histograms that are used without `rate`, `increase` or `changes`.
    pub not_rated: Vec<String>,
    pub problems: Vec<String>,
}

/// Examines an expression, which may use the recording rules `recorded`.
pub fn examine(text: &str, recorded: &BTreeSet<String>) -> Findings {
    let mut findings = Findings::default();
    let plain = VARIABLES.iter().fold(text.to_owned(), |text, (variable, value)| text.replace(variable, value));
    let expression = match parser::parse(&plain) {
        Ok(expression) => expression,
        Err(why) => {
            findings.problems.push(why);
            return findings;
        }
    };
    let (mut selectors, mut groupings) = (Vec::new(), Vec::new());
    collect(&expression, None, &mut selectors, &mut groupings);
    for selector in &selectors {
        findings.look_at(selector, recorded);
    }
    let unknown = groupings.iter().filter(|label| !findings.labels.contains(label.as_str()));
    let unknown: Vec<_> = unknown.map(|label| format!("no series in the expression has a label {label}")).collect();
    findings.problems.extend(unknown);
    findings
}

impl Findings {
    fn look_at(&mut self, selector: &Selector<'_>, recorded: &BTreeSet<String>) {
        let name = selector.series.name.as_deref().unwrap_or_default();
        if OF_PROMETHEUS.contains(&name) || recorded.contains(name) {
            self.labels.extend(catalogue::all_labels().chain(OF_ALERTS));
            return;
        }
        let Some(series) = Series::find(name) else {
            return self.problems.push(format!("no metric has a series {name:?}"));
        };
        self.metrics.insert(series.metric.name);
        self.labels.extend(series.labels());
        if series.grows() && !matches!(selector.function, Some("rate" | "increase" | "changes")) {
            self.not_rated.push(name.to_owned());
        }
        for matcher in &selector.series.matchers.matchers {
            if !series.labels().any(|label| label == matcher.name) {
                self.problems.push(format!("{name} has no label {}", matcher.name));
            }
            // The series of rule tests have no function.
            let is_whole = matcher.name == "le" && matcher.value.parse::<u64>().is_ok();
            if is_whole && matcher.op == MatchOp::Equal && selector.function.is_some() {
                let bound = &matcher.value;
                self.problems.push(format!("{name}: Prometheus 3 writes le={bound} as {bound}.0: {bound}|{bound}\\.0"));
            }
            for value in unknown_values(series, matcher) {
                self.problems.push(format!("{name}: {} is never {value:?}", matcher.name));
            }
        }
    }
}

fn unknown_values(series: Series, matcher: &Matcher) -> Vec<String> {
    let Some(known) = series.values(&matcher.name) else { return Vec::new() };
    let asked: Vec<&str> = match matcher.op {
        MatchOp::Equal | MatchOp::NotEqual => vec![&matcher.value],
        MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
    };
    asked.into_iter().filter(|value| !known.iter().any(|known| known == value)).map(str::to_owned).collect()
}

/// Collects the selectors and groupings of a tree. The parser's own walk does not name the function of a selector.
fn collect<'e>(
    expression: &'e Expr, function: Option<&'static str>, selectors: &mut Vec<Selector<'e>>,
    groupings: &mut Vec<String>,
) {
    match expression {
        Expr::VectorSelector(series) => selectors.push(Selector { series, function }),
        Expr::MatrixSelector(matrix) => selectors.push(Selector { series: &matrix.vs, function }),
        Expr::Call(call) => {
            for argument in &call.args.args {
                collect(argument, Some(call.func.name), selectors, groupings);
            }
        }
        Expr::Aggregate(aggregate) => {
            groupings.extend(aggregate.modifier.iter().flat_map(|modifier| modifier.labels().labels.clone()));
            collect(&aggregate.expr, None, selectors, groupings);
        }
        Expr::Binary(binary) => {
            if let Some(modifier) = &binary.modifier {
                groupings.extend(modifier.matching.iter().flat_map(|matching| matching.labels().labels.clone()));
                groupings.extend(modifier.card.labels().into_iter().flat_map(|labels| labels.labels.clone()));
            }
            collect(&binary.lhs, None, selectors, groupings);
            collect(&binary.rhs, None, selectors, groupings);
        }
        Expr::Unary(unary) => collect(&unary.expr, None, selectors, groupings),
        Expr::Paren(paren) => collect(&paren.expr, function, selectors, groupings),
        Expr::Subquery(subquery) => collect(&subquery.expr, None, selectors, groupings),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

#[test]
fn names_that_do_not_exist_are_reported() {
    let recorded = BTreeSet::from(["service:known:sum".to_owned()]);
    let problems = |text: &str| examine(text, &recorded).problems;
    for fine in [
        "sum by (client) (rate(watermaster_records_total{decision=\"admitted\"}[$__rate_interval]))",
        "service:known:sum{service=\"kyc\"} > 3 and on (job) up == 0",
        "histogram_quantile(0.9, sum by (le, phase) (rate(watermaster_round_phase_seconds_bucket[5m])))",
        "increase(watermaster_producer_recreations_total{cause=~\"fatal|fenced\"}[5m])",
    ] {
        assert_eq!(problems(fine), Vec::<String>::new(), "{fine}");
    }
    for (broken, why) in [
        ("sum(", "parse"),
        ("watermaster_redy", "no metric"),
        ("watermaster_delay_seconds", "no metric"),
        ("service:unknown:sum", "no metric"),
        ("watermaster_ready{client=\"a\"}", "no label"),
        ("sum by (reason) (watermaster_ready)", "no label"),
        ("increase(watermaster_rounds_total{outcome=\"fail\"}[5m])", "outcome"),
        ("increase(watermaster_rounds_total{outcome=~\"failed|fail\"}[5m])", "outcome"),
        ("rate(watermaster_delay_seconds_bucket{le=~\"20|20\\\\.0\"}[5m])", "le"),
        ("rate(watermaster_delay_seconds_bucket{le=\"1\"}[5m])", "Prometheus 3"),
    ] {
        assert!(!problems(broken).is_empty(), "{why}: {broken}");
    }
    assert_eq!(examine("sum(watermaster_records_total)", &recorded).not_rated, ["watermaster_records_total"]);
    assert!(examine("rate(watermaster_records_total[1m])", &recorded).not_rated.is_empty());
}
