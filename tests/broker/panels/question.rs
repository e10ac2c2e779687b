//! What a dashboard asks, asked as Grafana would, and whether the answer is one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::placed::Needs;
use super::prometheus::{Prometheus, SCRAPE};
use super::stage::{CLIENT, SERVICES};
use crate::support::board::{list, placeholders, text};

/// The time that the boards show: since the start of the run.
#[derive(Clone, Copy)]
pub struct Run {
    start: Instant,
    since_1970: Duration,
}

/// A query of a panel or an annotation, with what it must answer with.
pub struct Question {
    /// How people find it.
    pub place: String,
    expression: String,
    legend: String,
    instant: bool,
    needs: Needs,
}

impl Run {
    pub fn start() -> Run {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
        Run { start: Instant::now(), since_1970 }
    }

    /// `start`, `end` and `step` of a query over all of it; the end is now.
    pub fn range(&self) -> [(&'static str, String); 3] {
        let end = self.since_1970 + self.start.elapsed();
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        [("start", seconds(self.since_1970)), ("end", seconds(end)), ("step", SCRAPE.as_secs().to_string())]
    }

    /// Puts in what Grafana would: *All* jobs and instances, one service, one client.
    pub fn substitute(&self, expression: &str, service: &str) -> String {
        let rate_interval = format!("{}s", 4 * SCRAPE.as_secs());
        let range = format!("{}s", self.start.elapsed().as_secs().max(1));
        let values = [
            ("$__rate_interval", rate_interval.as_str()),
            ("$__range", &range),
            ("$job", ".*"),
            ("$instance", ".*"),
            ("$service", service),
            ("$client", CLIENT),
        ];
        let plain = values.iter().fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value));
        assert!(!plain.contains('$'), "a variable that is not known here: {plain}");
        plain
    }
}

impl Question {
    /// A panel's query.
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

    /// Asks; what is wrong with the answer.
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

/// What is wrong with these series of a vector or a matrix.
fn judge(series: &[Value], needs: Needs, legend: &str) -> Result<(), String> {
    if series.is_empty() {
        return Err("no series".to_owned());
    }
    let named = |series: &Value, label: &str| !text(&series["metric"][label]).is_empty();
    if let Some(label) = placeholders(legend).find(|label| !series.iter().any(|series| named(series, label))) {
        return Err(format!("nothing for {label} of the legend"));
    }
    match needs {
        Needs::Quiet(_) => Ok(()),
        Needs::Filled(_) if series.iter().any(is_filled) => Ok(()),
        Needs::Filled(_) => Err(format!("nothing but {}", values(series))),
        Needs::AllServices => {
            everywhere(series, |_| true)?;
            if series.iter().any(is_filled) { Ok(()) } else { Err(format!("nothing but {}", values(series))) }
        }
        Needs::EachService => everywhere(series, is_filled),
    }
}

/// Whether there is such a series for every service.
fn everywhere(series: &[Value], such: impl Fn(&Value) -> bool) -> Result<(), String> {
    let found: BTreeSet<&str> =
        series.iter().filter(|series| such(series)).map(|series| text(&series["metric"]["service"])).collect();
    let missing: Vec<&str> = SERVICES.iter().filter(|service| !found.contains(**service)).copied().collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("nothing, or nothing but zeros, for {missing:?}")) }
}

/// Whether there is something to draw: a number that is not zero.
fn is_filled(series: &Value) -> bool {
    samples(series).any(|value| value.parse::<f64>().is_ok_and(|value| value.is_finite() && value != 0.0))
}

/// Of a matrix's series, or the one of a vector's.
fn samples(series: &Value) -> impl Iterator<Item = &str> {
    let one = series.get("value").into_iter();
    list(&series["values"]).chain(one).map(|sample| text(&sample[1]))
}

fn values(series: &[Value]) -> String {
    let values: BTreeSet<&str> = series.iter().flat_map(samples).collect();
    values.into_iter().collect::<Vec<_>>().join(", ")
}

#[test]
fn an_empty_answer_is_no_answer() {
    use serde_json::json;
    let needs = Needs::Filled("any");
    let matrix = |values: &[&str]| {
        let values: Vec<Value> = values.iter().map(|value| json!([1.5, value])).collect();
        json!({ "metric": { "client": "a" }, "values": values })
    };
    assert!(judge(&[], Needs::Quiet("any"), "").is_err());
    assert!(judge(&[matrix(&["0"])], Needs::Quiet("any"), "").is_ok());
    assert_eq!(judge(&[matrix(&["0", "NaN", "+Inf"])], needs, ""), Err("nothing but +Inf, 0, NaN".to_owned()));
    assert!(judge(&[matrix(&["0"]), matrix(&["NaN", "-0.1"])], needs, "{{client}}").is_ok());
    assert!(judge(&[matrix(&["1"])], needs, "{{reason}}").is_err(), "a legend without a name");
    let vector = |service: &str, value: &str| json!({ "metric": { "service": service }, "value": [1.5, value] });
    let all = |value: &str| SERVICES.map(|service| vector(service, value));
    assert!(judge(&all("1"), Needs::EachService, "").is_ok());
    assert!(judge(&all("0"), Needs::AllServices, "").is_err());
    let [first, second, third, _] = all("0");
    let one = vector(SERVICES[3], "1");
    assert!(judge(&[first.clone(), second.clone(), third.clone(), one.clone()], Needs::AllServices, "").is_ok());
    assert!(judge(&[first, second.clone(), third.clone(), one.clone()], Needs::EachService, "").is_err());
    assert!(judge(&[second, third, one], Needs::AllServices, "").is_err(), "a service is missing");
}
