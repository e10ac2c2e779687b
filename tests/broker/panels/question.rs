//! The queries of the dashboards, sent as Grafana sends them, and the check of their answers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::placed::Needs;
use super::prometheus::{Prometheus, SCRAPE};
use super::stage::{CLIENT, SERVICES};
use crate::support::board::{list, placeholders, text};

/// The time range that the boards show: from the start of the run until now.
#[derive(Clone, Copy)]
pub struct Run {
    start: Instant,
    since_1970: Duration,
}

/// A query of a panel or an annotation, and the data that it must return.
pub struct Question {
    /// The board, panel and query, for messages.
    pub place: String,
    expression: String,
    legend: String,
    instant: bool,
    needs: Needs,
}

impl Run {
    pub fn start() -> Run {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970");
        Run { start: Instant::now(), since_1970 }
    }

    /// Returns `start`, `end` and `step` of a query over the whole run; the end is now.
    pub fn range(&self) -> [(&'static str, String); 3] {
        let end = self.since_1970 + self.start.elapsed();
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        [("start", seconds(self.since_1970)), ("end", seconds(end)), ("step", SCRAPE.as_secs().to_string())]
    }

    /// Substitutes the variables as Grafana does: *All* clusters, namespaces, jobs and instances, one service, one client.
    pub fn substitute(&self, expression: &str, service: &str) -> String {
        let rate_interval = format!("{}s", 4 * SCRAPE.as_secs());
        let range = format!("{}s", self.start.elapsed().as_secs().max(1));
        let values = [
            ("$__rate_interval", rate_interval.as_str()),
            ("$__range", &range),
            ("$cluster", ".*"),
            ("$namespace", ".*"),
            ("$job", ".*"),
            ("$instance", ".*"),
            ("$service", service),
            ("$client", CLIENT),
        ];
        let plain = values.iter().fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
        assert!(!plain.contains('$'), "this test does not know a variable in: {plain}");
        plain
    }
}

impl Question {
    /// Returns the question of a panel's query.
    pub fn of_target(place: String, target: &Value, needs: Needs) -> Question {
        Question {
            place: format!("{place}, query {}", text(&target["refId"])),
            expression: text(&target["expr"]).to_owned(),
            legend: text(&target["legendFormat"]).to_owned(),
            instant: target["instant"] == true,
            needs,
        }
    }

    pub fn of_annotation(place: String, annotation: &Value, needs: Needs) -> Question {
        let legend = [&annotation["titleFormat"], &annotation["textFormat"]].map(text).concat();
        Question { place, expression: text(&annotation["expr"]).to_owned(), legend, instant: false, needs }
    }

    /// Sends the query; the error says what is wrong with the answer.
    pub fn ask(&self, prometheus: &Prometheus, run: Run) -> Result<(), String> {
        let expression = run.substitute(&self.expression, self.needs.service());
        let [start, end, step] = run.range();
        let answer = if self.instant {
            prometheus.ask("query", &[("query", &expression), ("time", &end.1)])
        } else {
            let range = [&start, &end, &step].map(|(name, value)| (*name, value.as_str()));
            prometheus.ask("query_range", &[&[("query", expression.as_str())], &range[..]].concat())
        };
        let answer = answer.and_then(|data| judge(list(&data["result"]).as_slice(), self.needs, &self.legend));
        answer.map_err(|why| format!("{}: {why}: {expression}", self.place))
    }
}

/// Checks the series of a vector or a matrix; the error says what is wrong with them.
fn judge(series: &[Value], needs: Needs, legend: &str) -> Result<(), String> {
    if series.is_empty() {
        return Err("no series".to_owned());
    }
    let named = |series: &Value, label: &str| !text(&series["metric"][label]).is_empty();
    if let Some(label) = placeholders(legend).find(|label| !series.iter().any(|series| named(series, label))) {
        return Err(format!("no value for the label {label} of the legend"));
    }
    match needs {
        Needs::Quiet(_) => Ok(()),
        Needs::Filled(_) if series.iter().any(is_filled) => Ok(()),
        Needs::Filled(_) => Err(format!("only {}", values(series))),
        Needs::AllServices => {
            everywhere(series, |_| true)?;
            if series.iter().any(is_filled) { Ok(()) } else { Err(format!("only {}", values(series))) }
        }
        Needs::EachService => everywhere(series, is_filled),
    }
}

/// Checks that every service has a series for which `such` holds.
fn everywhere(series: &[Value], such: impl Fn(&Value) -> bool) -> Result<(), String> {
    let found: BTreeSet<&str> =
        series.iter().filter(|series| such(series)).map(|series| text(&series["metric"]["service"])).collect();
    let missing: Vec<&str> = SERVICES.iter().filter(|service| !found.contains(**service)).copied().collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no series, or only zeros, for {missing:?}")) }
}

/// Returns whether a sample of the series is a finite number other than zero.
fn is_filled(series: &Value) -> bool {
    samples(series).any(|value| value.parse::<f64>().is_ok_and(|value| value.is_finite() && value != 0.0))
}

/// Returns the samples of a matrix's series, or the single sample of a vector's.
fn samples(series: &Value) -> impl Iterator<Item = &str> {
    let one = series.get("value").into_iter();
    list(&series["values"]).chain(one).map(|sample| text(&sample[1]))
}

fn values(series: &[Value]) -> String {
    let values: BTreeSet<&str> = series.iter().flat_map(samples).collect();
    values.into_iter().collect::<Vec<_>>().join(", ")
}

#[test]
fn answers_without_data_are_rejected() {
    use serde_json::json;
    let needs = Needs::Filled("any");
    let matrix = |values: &[&str]| {
        let values: Vec<Value> = values.iter().map(|value| json!([1.5, value])).collect();
        json!({ "metric": { "client": "a" }, "values": values })
    };
    assert!(judge(&[], Needs::Quiet("any"), "").is_err());
    assert!(judge(&[matrix(&["0"])], Needs::Quiet("any"), "").is_ok());
    assert_eq!(judge(&[matrix(&["0", "NaN", "+Inf"])], needs, ""), Err("only +Inf, 0, NaN".to_owned()));
    assert!(judge(&[matrix(&["0"]), matrix(&["NaN", "-0.1"])], needs, "{{client}}").is_ok());
    assert!(judge(&[matrix(&["1"])], needs, "{{reason}}").is_err(), "a series without the label of the legend");
    let vector = |service: &str, value: &str| json!({ "metric": { "service": service }, "value": [1.5, value] });
    let all = |value: &str| SERVICES.map(|service| vector(service, value));
    assert!(judge(&all("1"), Needs::EachService, "").is_ok());
    assert!(judge(&all("0"), Needs::AllServices, "").is_err());
    let [first, second, third, _] = all("0");
    let one = vector(SERVICES[3], "1");
    assert!(judge(&[first.clone(), second.clone(), third.clone(), one.clone()], Needs::AllServices, "").is_ok());
    assert!(judge(&[first, second.clone(), third.clone(), one.clone()], Needs::EachService, "").is_err());
    assert!(judge(&[second, third, one], Needs::AllServices, "").is_err(), "a series of one service is missing");
}
